"""What is known of an operand or a result of a unit, by the names that the conditions of target files use."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
from qdq_passes.graph.uses import FLOAT_TYPES, constant_array, dtype_of
from qdq_passes.npu.units.units import Operand, OperandKind, Result
from qdq_passes.numerics.encoding import Encoding, integer_range, is_integer_type
from qdq_passes.qdq.look.biases import constant_shape
from qdq_passes.qdq.look.grids import middle
from qdq_passes.qdq.look.pairs import dequantizers, is_quantize

#: Constants of so many elements at most are read for ``values``: axes, shapes, bounds.
READABLE = 64


class TensorFacts:
    """What is known of an operand or a result. What is not known is None.

    Fields:
        kind: activation, weight, bias, constant, control, float, absent (`qdq_passes.npu.units.units.OperandKind`); of a result
            activation, or float, or control where it is no float.
        dtype: storage type where it is quantized, else element type: ``uint8``, ``float``, ``int64``.
        bits, signed: of that type; signed is None for floats.
        quantized: whether it is integers behind a constant encoding.
        encoding: all of it, to compare: ``x.encoding == y.encoding``.
        scale, zero_point: the first; scales, zero_points: all.
        symmetric: whether every zero point is the middle of its type, 0 or 128.
        pow2: whether every scale is a power of two; position: p of the first scale 2^-p.
        granularity: ``per-tensor``, ``per-axis`` or ``blocked``; axis (counted from the front), block_size.
        low, high: the smallest and largest number its first scale and zero point can stand for, as float32.
        shape: dimensions, None where one is symbolic; rank.
        last_axis_bytes: of its last axis, in its storage type; a half byte counts as one.
        batch: how many samples of the model's inputs it holds; 1 where it has no batch.
        constant: whether its data are known; values: those data, of small constants that are not quantized.
    """

    FIELDS: ClassVar = (
        "kind", "dtype", "bits", "signed", "quantized", "encoding", "scale", "zero_point", "scales", "zero_points",
        "symmetric", "pow2", "position", "granularity", "axis", "block_size", "low", "high", "shape", "rank", "last_axis_bytes",
        "batch", "constant", "values",
    )  # fmt: skip

    def __init__(
        self,
        kind: OperandKind,
        value: ir.Value | None,
        integers: ir.Value | None,
        encoding: Encoding | None,
        constant: bool,
        batch: int = 1,
    ) -> None:
        self.kind: str = kind
        self.batch = batch
        self.constant = constant
        self.encoding = encoding
        self._value, self._integers = value, integers

    @classmethod
    def of_operand(cls, operand: Operand) -> TensorFacts:
        """Of an input."""
        return cls(operand.kind, operand.value, operand.integers, operand.encoding, operand.constant, operand.batch)

    @classmethod
    def of_result(cls, result: Result) -> TensorFacts:
        """Of an output."""
        dtype = dtype_of(result.value)
        is_float = dtype is None or dtype in FLOAT_TYPES
        kind: OperandKind = "activation" if result.encoding is not None else "float" if is_float else "control"
        return cls(kind, result.value, result.integers, result.encoding, False)

    @property
    def label(self) -> str:
        """The name of its value, for reasons; conditions do not see it."""
        return self._value.name or "?" if self._value is not None else "?"

    @property
    def shape_text(self) -> str:
        """Its shape with the names of symbolic dimensions: ``batch×3×?``."""
        value = next((v for v in self._of_one_shape() if v is not None and v.shape is not None), None)
        dims = () if value is None or value.shape is None else value.shape
        return "×".join(str(d) if isinstance(d, int) else d.value or "?" for d in dims)

    @property
    def quantized(self) -> bool:
        return self.encoding is not None

    @cached_property
    def _dtype(self) -> ir.DataType | None:
        if self.encoding is not None:
            return self.encoding.dtype
        return dtype_of(self._value) if self._value is not None else None

    @property
    def dtype(self) -> str | None:
        return None if self._dtype is None else self._dtype.name.lower()

    @property
    def bits(self) -> int | None:
        return None if self._dtype is None else self._dtype.bitwidth

    @property
    def signed(self) -> bool | None:
        return None if self._dtype is None or not is_integer_type(self._dtype) else not self._dtype.name.startswith("U")

    @property
    def scales(self) -> list[float] | None:
        return None if self.encoding is None else list(self.encoding.scale)

    @property
    def scale(self) -> float | None:
        return self.encoding.scale[0] if self.encoding is not None and self.encoding.scale else None

    @property
    def zero_points(self) -> list[int | float] | None:
        return None if self.encoding is None else list(self.encoding.zero_point)

    @property
    def zero_point(self) -> int | float | None:
        return self.encoding.zero_point[0] if self.encoding is not None and self.encoding.zero_point else None

    @cached_property
    def symmetric(self) -> bool | None:
        if self.encoding is None:
            return None
        return all(z == middle(self.encoding.dtype) for z in self.encoding.zero_point)

    @cached_property
    def pow2(self) -> bool | None:
        return None if self.encoding is None else self.encoding.position is not None

    @property
    def position(self) -> int | None:
        positions = self.encoding.position if self.encoding is not None else None
        return positions[0] if positions else None

    @property
    def granularity(self) -> str | None:
        return None if self.encoding is None else self.encoding.granularity.kind

    @property
    def axis(self) -> int | None:
        axis = None if self.encoding is None else self.encoding.axis
        if axis is None or axis >= 0:
            return axis
        return None if self.rank is None else axis + self.rank

    @property
    def block_size(self) -> int:
        return 0 if self.encoding is None else self.encoding.block_size

    @cached_property
    def _range(self) -> tuple[float, float] | None:
        if self.encoding is None or not self.encoding.scale or not is_integer_type(self.encoding.dtype):
            return None
        bounds = np.array(integer_range(self.encoding.dtype, symmetric=False), np.float64) - self.encoding.zero_point[0]
        low, high = np.float32(self.encoding.scale[0]) * bounds.astype(np.float32)
        return float(low), float(high)

    @property
    def low(self) -> float | None:
        return None if self._range is None else self._range[0]

    @property
    def high(self) -> float | None:
        return None if self._range is None else self._range[1]

    @cached_property
    def shape(self) -> list[int | None] | None:
        for value in self._of_one_shape():
            if value is not None and value.shape is not None:
                return [dim if isinstance(dim, int) else None for dim in value.shape]
        known = constant_shape(self._value)
        return None if known is None else list(known)

    def _of_one_shape(self) -> tuple[ir.Value | None, ...]:
        return (self._value, self._integers, *_behind(self._integers))

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def last_axis_bytes(self) -> int | None:
        size = self.shape[-1] if self.shape else None
        return None if size is None or self.bits is None else -(-size * self.bits // 8)

    @cached_property
    def values(self) -> list[Any] | None:
        array = constant_array(self._value) if self.encoding is None else None
        if array is None or array.size > READABLE or array.dtype.kind not in "biuf":
            return None
        found: list[Any] = array.ravel().tolist()
        return found


#: What stands for an operand beyond the last.
ABSENT = TensorFacts("absent", None, None, None, False)


def _behind(integers: ir.Value | None) -> list[ir.Value]:
    """What is dequantized of ``integers``: it has their shape."""
    producer = integers.producer() if integers is not None else None
    return [] if producer is None or not is_quantize(producer) else [dq.outputs[0] for dq in dequantizers(producer)]
