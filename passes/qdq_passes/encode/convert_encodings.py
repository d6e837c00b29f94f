"""convert-encodings"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.operators.channels import channel_axis
from qdq_passes.graph.uses import constant_array, readers
from qdq_passes.numerics.encoding import (
    FLOAT32_TINY,
    SMALLEST_SCALE,
    Encoding,
    integer_range,
    is_integer_type,
    parse_dtype,
)
from qdq_passes.numerics.quantize import dequantize
from qdq_passes.numerics.reencode import (
    PLAIN_FLOATS,
    change_type,
    cover,
    cover_values,
    is_centered,
    one_scale,
    real_range,
    rule_of,
)
from qdq_passes.qdq.edit.clips import clips_at_zero, put_activation
from qdq_passes.qdq.edit.reencode import (
    Edit,
    check,
    float_tensor,
    reencode,
    settled,
    targets,
    why_not_editable,
    without_pair,
)
from qdq_passes.qdq.look.pairs import Half, Kind, Pair, dequantizers
from qdq_passes.qdq.look.value_ranges import proven_range
from qdq_passes.select.selectors import ALL, Selector

#: Steps of the grid that an asymmetric range must gain: requantized values may lie half a step off at either end.
WORTH = 1.5


@dataclass(frozen=True)
class ConvertEncodings(Pass):
    """Give pairs another type, symmetry or granularity that means the same range, or the nearest there is.

    Wider types and the other sign are exact: every point of the old grid is one of the new (int8 scale s, zero point z →
    int16 s/2^8, z·2^8; uint8 s, z + 128). Narrower ones are the inverse. Symmetric: the scale that covers the larger side;
    asymmetric: the data of a weight, or what the graph proves of an activation (Relu, Sigmoid, Softmax, Clip…). Powers of two
    stay powers of two.

    Graph: unchanged but for parameters and stored integers, which are requantized from the values they stand for; where a pair
    with the range [0, high] did the work of a Relu and its range becomes two-sided, a Relu is put before it.
    Requires: constant scales; an opset that knows the type and the granularity.
    Keeps: names of inputs and outputs; int32 biases at s_x·s_w follow.
    Skips: pairs of other ``kinds``; integers that enter or leave the graph or that something else reads; weights whose readers
    have no common axis of output channels; per-axis for activations and biases; ranges that nothing proves to be tighter.

    Args:
        select: pairs, by their float value or by their Q or DQ node.
        dtype: storage type; "" leaves it.
        symmetric: zero point 0 (the middle of an unsigned type), or one that fits the range; none leaves it.
        granularity: one scale, or (weights) one per index of the axis of output channels; none leaves it.
        axis: axis for ``per-axis``, instead of the operator's own.
        kinds: what is converted; biases only when named, and those at s_x·s_w only when they alone are.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="another grid, on purpose; a wider type or another sign keeps values")
    select: Selector = ALL
    dtype: str = ""
    symmetric: bool | None = None
    granularity: Literal["per-tensor", "per-axis"] | None = None
    axis: int | None = None
    kinds: tuple[Literal["activation", "weight", "bias"], ...] = ("activation", "weight")

    def __post_init__(self) -> None:
        if not (self.dtype or self.symmetric is not None or self.granularity):
            raise UsageError("nothing to convert", where=self.name(), hint="give dtype, symmetric or granularity")
        if self.axis is not None and self.granularity != "per-axis":
            raise UsageError("an axis without granularity=per-axis", where=self.name())

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Choose for all, then write."""
        if self.dtype:
            parse_dtype(self.dtype)
        found, edits = targets(model, self.select), []
        for target in found:
            kind: Kind = "activation" if isinstance(target, Half) else target.kind
            if kind not in self.kinds:
                continue
            old = target.encoding
            reason = why_not_editable(target, changes_type=True)
            if isinstance(target, Half) or old is None or reason is not None:
                yield skip(target.tensor, reason or "nothing reads its integers")
                continue
            new = self._convert(target, old)
            if isinstance(new, str):
                yield skip(target.tensor, new)
                continue
            new = settled(target, new)
            if new == old:
                continue
            try:
                check(model, target, new)
            except UsageError as error:  # its float type does not hold the scale
                yield skip(target.tensor, error.message)
            else:
                edits.append(Edit(target, old, new))
        if not found:
            yield from without_pair(model, self.select)
        namer, made = Namer(model), dict[ir.Value, ir.Value]()
        for edit in edits:
            q = edit.target.q if isinstance(edit.target, Pair) else None
            if q is not None and isinstance(edit.target, Pair) and clips_at_zero(edit.target, edit.old, edit.new):
                yield put_activation(model, q, namer, made)
        yield from reencode(model, edits, namer)

    def _convert(self, pair: Pair, old: Encoding) -> Encoding | str:
        """The new encoding of ``pair``, or why it has none."""
        dtype = parse_dtype(self.dtype) if self.dtype else old.dtype
        by_values = self.granularity == "per-axis" or self.symmetric is not None or old.dtype in PLAIN_FLOATS
        values = _values(pair, old) if by_values else None
        if values is not None and not np.isfinite(values).all():
            return "holds values that are not finite"
        if old.dtype in PLAIN_FLOATS and dtype != old.dtype and values is None:
            return f"{old.dtype.name.lower()} has no range to choose a scale by; give one with set-qdq"
        if self.granularity == "per-axis":
            axis = self._axis(pair, values)
            if isinstance(axis, str) and (not self.dtype and self.symmetric is None):
                return axis
            if isinstance(axis, int) and values is not None and not _runs_along(old, axis, values.ndim):
                rule = rule_of(old, dtype, symmetric=self.symmetric is not False, smallest=_smallest(pair))
                return cover_values(values, axis, rule)
        elif self.granularity == "per-tensor":
            old = one_scale(old)
        if old.dtype in PLAIN_FLOATS and values is not None and dtype not in PLAIN_FLOATS:
            return cover_values(values, None, rule_of(old, dtype, symmetric=self.symmetric is not False))
        if self.symmetric is True and is_integer_type(dtype) and not is_centered(old):
            low, high = real_range(old) if values is None else _ends(values, old)
            return cover(low, high, rule=rule_of(old, dtype, symmetric=True, smallest=_smallest(pair)), like=old)
        new = change_type(old, dtype)
        if self.symmetric is False and is_integer_type(dtype) and is_centered(new):
            tight = _tightened(pair, values, new)
            if tight is None and new == pair.encoding:
                return "its range is symmetric, and nothing proves a tighter one"
            return tight or new
        return new

    def _axis(self, pair: Pair, values: npt.NDArray[Any] | None) -> int | str:
        """The axis of the scales of a weight, from the front; or why it has none."""
        if pair.kind != "weight" or values is None:
            return f"is {'a bias' if pair.kind == 'bias' else 'an activation'}, which has one scale"
        if self.axis is not None:
            rank = values.ndim
            if not -rank <= self.axis < rank:
                return f"has no axis {self.axis} in shape {list(values.shape)}"
            return self.axis % rank
        outputs = [dq.outputs[0] for dq in ([pair.dq] if pair.q is None else dequantizers(pair.q))]
        return channel_axis([use for value in outputs for use in readers(value)], values.ndim)


def _values(pair: Pair, old: Encoding) -> npt.NDArray[Any] | None:
    """Real values of a constant: its float data, or what the integers stand for."""
    array = constant_array(pair.stored)
    return array if array is None or pair.q is not None else dequantize(array, old)


def _runs_along(encoding: Encoding, axis: int, rank: int) -> bool:
    return encoding.axis is not None and not encoding.block_size and encoding.axis % rank == axis


def _ends(values: npt.NDArray[Any], like: Encoding) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """(lowest, highest) value per scale of ``like``; blocks have the range that their encoding covers."""
    if like.block_size:
        return real_range(like)
    axes = None if like.axis is None else tuple(i for i in range(values.ndim) if i != like.axis % values.ndim)
    low, high = (f(values.astype(np.float64), axis=axes, initial=0.0) for f in (np.min, np.max))
    return np.asarray(low), np.asarray(high)


def _tightened(pair: Pair, values: npt.NDArray[Any] | None, now: Encoding) -> Encoding | None:
    """An asymmetric encoding for what ``pair`` really takes, or None when it gains less than `WORTH` steps over ``now``."""
    low, high = real_range(now)
    if values is not None:
        low, high = _ends(values, now)
    else:
        proven = proven_range(pair.source)
        low, high = np.maximum(low, proven[0]), np.minimum(high, proven[1])
    found = cover(low, high, rule=rule_of(now, now.dtype, symmetric=False, smallest=_smallest(pair)), like=now)
    qmin, qmax = integer_range(now.dtype, symmetric=False)
    old, new = (np.array(e.scale, np.float64) for e in (now, found))
    return found if bool(np.any(new * (qmax - qmin) <= old * (qmax - qmin - WORTH))) else None


def _smallest(pair: Pair) -> float:
    return SMALLEST_SCALE.get(float_tensor(pair).dtype or ir.DataType.FLOAT, FLOAT32_TINY)
