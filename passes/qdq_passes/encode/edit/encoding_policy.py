"""The policy of a quantization: which encoding a tensor gets, by what it is, what is known of it and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.encode.edit.precision import ObservedRange, stored_type
from qdq_passes.encode.edit.weight_policy import blocked_encoding, weight_type
from qdq_passes.encode.look.demands import Role
from qdq_passes.errors import QdqError, UsageError
from qdq_passes.graph.operators.channels import Use, weight_axis
from qdq_passes.graph.uses import constant_array, dtype_of
from qdq_passes.numerics import minmse
from qdq_passes.numerics.encoding import (
    FLOAT32_MAX,
    FLOAT32_TINY,
    SMALLEST_SCALE,
    Encoding,
    encoding_of_range,
    encoding_of_weight,
    integer_range,
    reduced_range,
)
from qdq_passes.numerics.histogram import Histogram
from qdq_passes.numerics.mapped import encoding_of_large, is_large_file
from qdq_passes.numerics.override import Override
from qdq_passes.numerics.pow2 import position_of
from qdq_passes.numerics.reencode import rounded_up_to
from qdq_passes.qdq.edit.checks import check_numbers

_NOTHING_SAID = Override()


@dataclass(frozen=True, kw_only=True)
class EncodingPolicy:
    """How encodings are chosen.

    Args:
        dtypes: storage type per role.
        power_of_two: scales are rounded up to powers of two.
        nearest: to the nearest instead.
        minmse: weights and biases have the power of two of the least squared error, see `minmse`; data that is 0 everywhere keeps
            scale 1 unless ``nearest``.
        symmetric: activations have zero point 0.
        asymmetric_outputs: operator types whose outputs may have a zero point where activations have none.
        weights_symmetric: weights have; biases always do.
        reduced: weights use one bit less.
        min_range: narrowest range.
        min_scale: smallest scale, and that of what is 0 everywhere; 0 sets no bound, and 1 for what is 0. What is stored in other
            bits than its role asks for has as much as that grid asks for: 2^-20 in 16 bit for 2^-12 in 8.
        widening: most times that ``min_range`` and ``min_scale`` widen what is not 0, so that they cost no more than a bit; 0 for
            whatever it takes.
        per_axis: operator type → axis of the scales of its weights, see `graph.operators.channels`.
        block_size: elements per scale of weights of which one axis is summed over; 0 for none. With ``minmse`` their scales are
            those of least squares.
        weight_types: operator type → storage type of the weights it reads, see `weight_types`.
        overrides: tensor name → what is said of it instead.
    """

    dtypes: Mapping[Role, ir.DataType]
    power_of_two: bool
    symmetric: bool
    weights_symmetric: bool
    reduced: bool = False
    min_range: float = 0.0
    nearest: bool = False
    minmse: bool = False
    min_scale: float = 0.0
    widening: float = 2.0
    per_axis: Mapping[str, int | None] = field(default_factory=dict)
    block_size: int = 0
    weight_types: Mapping[str, ir.DataType | None] = field(default_factory=dict)
    asymmetric_outputs: Collection[str] = ()
    overrides: Mapping[str, Override] = field(default_factory=dict)

    def says(self, value: ir.Value) -> bool:
        """Whether something is said of ``value`` alone."""
        return (value.name or "") in self.overrides

    def has_scale(self, value: ir.Value) -> bool:
        """Whether the encoding of ``value`` is said in full."""
        return bool(self.overrides.get(value.name or "", _NOTHING_SAID).scale)

    def needs_range(self, value: ir.Value) -> bool:
        """Whether the activation ``value`` needs an observed range."""
        return self.overrides.get(value.name or "", _NOTHING_SAID).needs_range

    def choose(
        self, value: ir.Value, role: Role, given: ObservedRange | Encoding | None, uses: Sequence[Use]
    ) -> tuple[Encoding, str]:
        """The encoding of ``value``, and a remark on it (``""`` for none).

        Args:
            value: what is quantized.
            role: what it is to its readers.
            given: its observed range, or a ready encoding, which is taken as it is where nothing is said of the tensor.
            uses: the readers that demand the encoding.

        Raises:
            UsageError: an activation without a range; an override that does not fit the tensor.
            ModelError: a range or data that is not finite.
        """
        override = self.overrides.get(value.name or "", _NOTHING_SAID)
        if isinstance(given, Encoding) and not self.says(value):
            return given, ""
        rule, remark = self._rule(value, role, override, uses)
        try:
            told = override.encoding(rule.dtype)
            if told is not None:
                zeros = [int(z) for z in told.zero_point]
                check_numbers(value.name or "", told.scale, zeros, told.dtype, told.axis, 0)
                return told, "overridden"
            if role == "activation":
                encoding, found = _of_activation(rule, override, None if isinstance(given, Encoding) else given)
            else:
                encoding, found = self._of_constant(value, rule, override, uses if role == "weight" else ())
            return _held(encoding, value), f"{remark}, {found}".removeprefix(", ").removesuffix(", ")
        except QdqError as error:
            error.where = error.where or value.name
            raise

    def _rule(self, value: ir.Value, role: Role, override: Override, uses: Sequence[Use]) -> tuple[_Rule, str]:
        """What holds for ``value``, and a remark where its readers want different types."""
        dtype, remark = self.dtypes[role], ""
        if role == "weight" and self.weight_types:
            wanted, remark = weight_type(uses, self.weight_types, dtype)
            role, dtype = ("activation", self.dtypes["activation"]) if wanted is None else (role, wanted)
        writer = value.producer() if role == "activation" else None
        offset = writer is not None and writer.op_type in self.asymmetric_outputs
        symmetric = {"activation": self.symmetric and not offset, "weight": self.weights_symmetric, "bias": True}[role]
        readers = [node for node, _ in uses] if value.const_value is not None else ()
        stored = stored_type(value, role, dtype, readers)
        floor = self.min_scale * 2.0 ** (dtype.bitwidth - stored.bitwidth)
        rule = _Rule(
            dtype=stored,
            symmetric=symmetric,
            power_of_two=self.power_of_two,
            nearest=self.nearest,
            smallest=SMALLEST_SCALE.get(dtype_of(value) or ir.DataType.FLOAT, FLOAT32_TINY),
            reduced=self.reduced and role == "weight",
            min_range=self.min_range,
            empty=floor or 1.0,
            floor=floor,
            widening=self.widening or math.inf,
        )
        said = replace(
            rule,
            dtype=override.dtype or rule.dtype,
            symmetric=rule.symmetric if override.symmetric is None else override.symmetric,
            reduced=rule.reduced if override.reduced is None else override.reduced,
        )
        return said, remark if override.dtype is None else ""

    def _of_constant(
        self, value: ir.Value, rule: _Rule, override: Override, uses: Sequence[Use]
    ) -> tuple[Encoding, str]:
        axis, remark, large = override.axis, "overridden" if self.says(value) else "", value.const_value
        if self.block_size and uses and not remark:
            blocked = blocked_encoding(value, uses, rule, self.block_size, fitted=self.minmse)
            if isinstance(blocked, Encoding):
                return blocked, ""
            remark = f"no blocks, as {blocked}"
        if (
            large is not None
            and is_large_file(large)
            and not self.says(value)
            and not (self.minmse and self.power_of_two)
        ):
            axis, without = weight_axis(uses, tuple(large.shape.numpy()), self.per_axis)
            return encoding_of_large(large, axis, **vars(rule)), f"{remark}, {without}".strip(", ")
        array = constant_array(value)
        assert array is not None
        if axis is None and not self.says(value):
            axis, without = weight_axis(uses, array.shape, self.per_axis)
            remark = f"{remark}, {without}".strip(", ")
        if override.low or override.high:
            return _of_said_range(rule, override, array), remark
        if self.minmse and self.power_of_two:
            return self._of_least_error(array, axis, rule), f"{remark}, least squared error".removeprefix(", ")
        return encoding_of_weight(array, axis, **vars(rule)), remark

    def _of_least_error(self, array: npt.NDArray[Any], axis: int | None, rule: _Rule) -> Encoding:
        start = encoding_of_weight(array, axis, **vars(replace(rule, nearest=True)))
        qmin, qmax = reduced_range(rule.dtype) if rule.reduced else integer_range(rule.dtype, symmetric=True)
        middle = int(start.zero_point[0]) if start.zero_point else 0
        limits = (qmin - middle, qmax - middle)
        smallest = max(rule.smallest, min(rule.floor, rule.widening * max(start.scale)))
        return minmse.search(array, start, limits=limits, smallest=smallest, keep_zeros=not self.nearest)


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """Keyword arguments of `encoding_of_range`."""

    dtype: ir.DataType
    symmetric: bool
    power_of_two: bool
    nearest: bool
    smallest: float
    reduced: bool
    min_range: float
    empty: float
    floor: float
    widening: float


def _of_activation(rule: _Rule, override: Override, observed: ObservedRange | None) -> tuple[Encoding, str]:
    if override.axis is not None or override.reduced is not None:
        what = "an axis" if override.axis is not None else "a reduced range"
        raise UsageError(f"{what} is for weights, this is an activation", hint="leave it out of the override")
    if observed is None and override.needs_range:
        raise UsageError(
            "no range for this tensor",
            hint="calibrate this model again, with `quantize --save-ranges` if it is not a tensor of the float model; or leave "
            "it out with --exclude",
        )
    low = override.low[0] if override.low or observed is None else observed.low
    high = override.high[0] if override.high or observed is None else observed.high
    if low > high and (override.low or override.high):
        raise UsageError(f"low {low:.6g} is above high {high:.6g}, of which one was seen", hint="override both ends")
    return encoding_of_range(low, high, **vars(rule)), "" if override == _NOTHING_SAID else "overridden"


def _held(encoding: Encoding, value: ir.Value) -> Encoding:
    """``encoding`` with scales that the float type of ``value`` holds, in which they are stored."""
    dtype = dtype_of(value) or ir.DataType.FLOAT
    is_held = dtype == ir.DataType.FLOAT or encoding.block_size  # blocks are computed in the type of the weight
    return encoding if is_held else rounded_up_to(encoding, dtype.numpy())


def _of_said_range(rule: _Rule, override: Override, array: npt.NDArray[Any]) -> Encoding:
    """The encoding of a constant whose range is overridden, wholly or (per-tensor) at one end."""
    if override.axis is None:
        low, high = (float(np.ravel(f(array, initial=array.dtype.type(0)))[0]) for f in (np.min, np.max))
        low, high = (override.low or (low,))[0], (override.high or (high,))[0]
        return encoding_of_range(low, high, **vars(rule))
    found = encoding_of_weight(np.array([override.low, override.high], np.float64), 1, **vars(rule))
    return replace(found, axis=override.axis)


def check_min_scale(scale: float, *, power_of_two: bool) -> None:
    """Refuse what cannot be the smallest scale.

    Raises:
        UsageError: ``scale`` is negative or not finite, or no power of two where all scales are.
    """
    if not 0 <= scale <= FLOAT32_MAX:
        raise UsageError(f"min-scale={scale} is no scale", hint="0, which sets no bound, or a small number as 0.000244")
    if power_of_two and scale and position_of(scale) is None:
        raise UsageError(f"min-scale={scale:.6g} is no power of two", hint="round it, or write scales=any")


#: What ``@ranges`` is bound to: ranges, or ready encodings, by tensor name.
Ranges = Mapping[str, ObservedRange | Encoding]


@runtime_checkable
class WithHistogram(Protocol):
    """A range that may bring the histogram of the values it was made from."""

    @property
    def histogram(self) -> Histogram | None: ...


def histogram_of(ranges: Mapping[str, object], name: str) -> Histogram | None:
    """The histogram of the tensor ``name``, or None where none was kept.

    Args:
        ranges: what ``@ranges`` is bound to: range (or ready encoding) by tensor name.
        name: name of the tensor.
    """
    found = ranges.get(name)
    return found.histogram if isinstance(found, WithHistogram) else None


def range_of(ranges: Ranges, name: str) -> tuple[float, float] | None:
    """(low, high) seen of the tensor ``name``; None where nothing is known of it, or where it has a ready encoding."""
    found = ranges.get(name)
    if found is None or isinstance(found, Encoding):
        return None
    low, high = float(found.low), float(found.high)
    return (low, high) if math.isfinite(low) and math.isfinite(high) and low <= high else None
