"""What a model wants as input, and the check that an array is that: names, types, shapes, finite values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, UnsupportedError, UsageError
from qdq_passes.graph.sizes import dims_of
from qdq_passes.numerics.arrays import Array

from qdqtool.io.files.progress import Warn

Dims = tuple[int | str | None, ...]


@dataclass(frozen=True)
class InputSpec:
    """One input of a model.

    Args:
        name: name of the graph input.
        dtype: numpy type of the array; ``object`` for strings.
        shape: per dimension its size, its name when dynamic, or None; None altogether when the rank is unknown.
    """

    name: str
    dtype: np.dtype[Any]
    shape: Dims | None

    @property
    def batch(self) -> int:
        """Size of a piece along the first axis: the static size, 1 when dynamic or without axes."""
        first = self.shape[0] if self.shape else 1
        return first if isinstance(first, int) else 1

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of ``shape`` fits."""
        return self.shape is None or _fits(shape, self.shape)

    def takes_unbatched(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of ``shape`` fits once a first axis of size 1 is added."""
        return bool(self.shape) and self.batch == 1 and not self.takes(shape) and self.takes((1, *shape))

    @property
    def text(self) -> str:
        """``"float32 [N, 3]"``."""
        return f"{self.dtype} {format_shape(self.shape)}"


def input_specs(model: ir.Model) -> list[InputSpec]:
    """The inputs that a feed of ``model`` must hold: graph inputs that are not initializers.

    Raises:
        UnsupportedError: an input is not a tensor (a sequence, a map, an optional).
        ModelError: an input has no type of elements.
    """
    specs = []
    for value in model.graph.inputs:
        if value.name is None or value.name in model.graph.initializers:
            continue
        if not isinstance(value.type, ir.TensorType):
            raise UnsupportedError(f"input {value.name!r} is no tensor", hint="feed this model from Python")
        if value.dtype == ir.DataType.UNDEFINED:
            raise ModelError(f"input {value.name!r} has no type of elements", hint="export it again")
        dtype = np.dtype(np.object_) if value.dtype == ir.DataType.STRING else value.type.dtype.numpy()
        specs.append(InputSpec(value.name, np.dtype(dtype), _dims(value.shape)))
    return specs


def conform(array: object, spec: InputSpec, *, label: str, warn: Warn) -> Array:
    """``array`` as the model wants it, with a batch axis of 1 added where that alone is missing.

    Args:
        array: anything numpy makes an array of.
        spec: the input it is for.
        label: which sample, for messages.
        warn: told about conversions that may be a mistake.

    Raises:
        UsageError: shape or type do not fit, or the cast would lose information.
        ModelError: the data holds NaN or Inf.
    """
    where = f"input {spec.name!r}, {label}"
    given = np.asarray(array)
    if spec.takes_unbatched(given.shape):
        given = given[np.newaxis]
    if not spec.takes(given.shape):
        raise UsageError(f"shape {format_shape(given.shape)}, the model wants {format_shape(spec.shape)}", where=where)
    converted = np.asarray(_cast(given, spec, where, warn), order="C")
    if is_float(converted.dtype) and not np.isfinite(converted).all():
        bad = int(np.count_nonzero(~np.isfinite(converted)))
        raise ModelError(
            f"{bad} of {converted.size} values are NaN or Inf", where=where, hint="repair or drop the sample"
        )
    return converted


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether ``dtype`` is a floating point type, bfloat16 and float8 included."""
    return dtype.kind == "f" or (dtype.kind == "V" and dtype.name.startswith(("bfloat", "float")))


def format_shape(shape: Iterable[int | str | None] | None) -> str:
    """``(1, "N", None)`` → ``"[1, N, ?]"``."""
    return "of any rank" if shape is None else f"[{', '.join('?' if d is None else str(d) for d in shape)}]"


def _cast(array: Array, spec: InputSpec, where: str, warn: Warn) -> Array:
    have, want = array.dtype, spec.dtype
    if have == want:
        return array
    if want == np.object_ and have.kind in "SU":
        return array.astype(np.object_)
    numbers = all(t.kind in "iub" or is_float(t) for t in (have, want))
    if not numbers or (is_float(have) and not is_float(want)):
        hint = "convert the data to the model's type"
        raise UsageError(f"{have} data, the model wants {want}", where=where, hint=hint)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(want)
        if is_float(have):
            kept = not np.isfinite(array[~np.isfinite(cast)].astype(np.float64)).any()
        else:
            kept = np.array_equal(cast.astype(have), array) and np.array_equal(cast < 0, array < 0)
    if kept:
        if is_float(have) and want.itemsize < min(have.itemsize, 4):
            warn(f"input {spec.name!r}: {have} data rounded to {want}")
        if have == np.uint8 and is_float(want):
            warn(f"input {spec.name!r}: uint8 data for a {want} input, taken as 0..255 without scaling")
        return cast
    raise UsageError(f"{have} data holds values that {want} cannot hold", where=where, hint="scale or convert the data")


def _dims(shape: ir.Shape | None) -> Dims | None:
    return None if shape is None else tuple(dims_of(shape))


def _fits(shape: tuple[int, ...], wanted: Dims) -> bool:
    return len(shape) == len(wanted) and all(
        not isinstance(want, int) or want == got for want, got in zip(wanted, shape, strict=True)
    )
