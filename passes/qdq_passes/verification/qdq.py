"""Rules on what Q and DQ nodes mean; onnx.checker looks at none of this.

q = saturate(round(x / scale) + zero_point), x' = (q − zero_point)·scale, so scale > 0 and finite, zero_point of the type of
q, and a DQ behind a Q must undo it: same scale, zero point and axis. Scales computed at run time are not looked at."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.findings import Problem, place
from qdq_passes.graph.operators.qdq_ops import FIRST_OPSET, OPSET_OF_AXIS, OPSET_OF_BLOCKS
from qdq_passes.graph.uses import constant_array
from qdq_passes.qdq.edit.streamed import StreamedTensor

if TYPE_CHECKING:
    from qdq_passes.verification.rules import Walk

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
QUANTIZE = frozenset(
    {("", "QuantizeLinear"), ("com.microsoft", "QuantizeLinear"), ("com.amd.quark", "ExtendedQuantizeLinear"),
     ("com.vai.quantize", "VitisQuantizeLinear")}
)  # fmt: skip
DEQUANTIZE = frozenset({(domain, name.replace("Quantize", "Dequantize")) for domain, name in QUANTIZE})

#: Domains where the zero point has the type of the integers.
TYPED_DOMAINS = ("", "com.microsoft", "com.amd.quark")
SAME_TYPE = "give the zero point the type of the integers"


@dataclass(eq=False)
class Linear:
    """A Q or DQ node, looked at once.

    Args:
        node: the node.
        is_q: whether it quantizes.
        opset: version of its domain.
        x: the tensor.
        scale: its scales.
        zero: its zero points, None when left out.
    """

    node: ir.Node
    is_q: bool
    opset: int
    x: ir.Value
    scale: ir.Value
    zero: ir.Value | None

    @functools.cached_property
    def scales(self) -> npt.NDArray[np.generic] | None:
        """The scales, None when they are not constant."""
        return constant_array(self.scale)

    @property
    def scale_shape(self) -> tuple[int, ...] | None:
        """Shape of the scales, None when they are not constant; those of an initializer are not read for it."""
        held = None if self.scale.is_graph_input() else self.scale.const_value
        if held is not None:
            return tuple(held.shape.numpy())
        return None if self.scales is None else self.scales.shape

    @functools.cached_property
    def zero_points(self) -> npt.NDArray[np.generic] | None:
        """The zero points, None when they are not constant or left out."""
        return constant_array(self.zero)

    def number(self, name: str, default: int) -> int:
        """An integer attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None or attribute.is_ref() else attribute.as_int()

    @property
    def stored(self) -> ir.DataType | None:
        """Type of the quantized side, as far as it is declared, or told by the Q before a DQ."""
        if self.is_q:
            return self.node.outputs[0].dtype
        producer = self.x.producer() if self.x.dtype is None else None
        if producer is None or (producer.domain, producer.op_type) not in QUANTIZE or len(producer.inputs) < 3:
            return self.x.dtype
        return None if producer.inputs[2] is None else producer.inputs[2].dtype

    @property
    def dims(self) -> ir.Shape | None:
        """Shape of the tensor."""
        return self.x.shape if self.x.shape is not None else self.node.outputs[0].shape


def linears(walk: Walk) -> list[Linear]:
    """Every Q and DQ node of the walk that has a tensor and a scale; made once, shared by the rules."""
    if "linears" not in walk.memo:
        found = []
        for node, scope in walk.nodes:
            key = (node.domain, node.op_type)
            if key in QUANTIZE or key in DEQUANTIZE:
                x, scale, zero = (*node.inputs, None, None, None)[:3]
                if x is not None and scale is not None:
                    found.append(Linear(node, key in QUANTIZE, scope.imports.get(node.domain, 0), x, scale, zero))
        walk.memo["linears"] = found
    return cast(list[Linear], walk.memo["linears"])


def scale(walk: Walk) -> Iterator[Problem]:
    """Scales are positive and finite: a negative one mirrors the tensor, zero divides by zero."""
    for linear in linears(walk):
        if type(linear.scale.const_value) is StreamedTensor:
            continue  # computed when they are written, and positive
        scales = linear.scales
        if scales is None or (scales.size == 1 and 0 < float(scales.item()) < np.inf):
            continue
        numbers = scales.astype(np.float64).ravel()
        good = (numbers > 0) & (numbers < np.inf)
        if not good.all():
            bad = numbers[~good]
            message = f"has the scale {bad[0]:g}" + (f" and {bad.size - 1} more such" if bad.size > 1 else "")
            yield "error", place(linear.node), message, "scales must be positive and finite: calibrate again"


def types(walk: Walk) -> Iterator[Problem]:
    """The zero point has the type of the integers; up to opset 22 the scale has the type of the floats."""
    for linear in linears(walk):
        node, stored, zero = linear.node, linear.stored, linear.zero
        named = ir.DataType(linear.number("output_dtype", 0)) if linear.is_q else ir.DataType.UNDEFINED
        zero_type = zero.dtype if zero is not None else None
        if linear.is_q and zero is None:
            zero_type = named or ir.DataType.UINT8
        if linear.is_q and named and zero_type not in (None, named):
            yield (
                "error",
                place(node),
                f"has output_dtype {_word(named)}, a zero point of {_word(zero_type)}",
                SAME_TYPE,
            )
        elif node.domain in TYPED_DOMAINS and None not in (stored, zero_type) and stored != zero_type:
            yield "error", place(node), f"has a zero point of {_word(zero_type)} on {_word(stored)}", SAME_TYPE
        if stored == ir.DataType.INT32 and linear.zero_points is not None and np.any(linear.zero_points):
            yield "error", place(node), "has a zero point on int32", "int32 (a bias) is symmetric: make it zero"
        if linear.is_q and not node.domain and linear.opset < 23:
            given, wanted = linear.scale.dtype, linear.x.dtype
            if wanted in FLOATS and given is not None and given != wanted:
                message = f"has a scale of {_word(given)} on a tensor of {_word(wanted)}"
                yield "error", place(node), message, "cast the scale, or convert to opset 23"


def _word(dtype: ir.DataType | None) -> str:
    return "nothing" if dtype is None else dtype.name.lower()


def shape(walk: Walk) -> Iterator[Problem]:
    """Per-tensor: one scale. Per-axis: as many as the axis has elements. Blocked: one per block, of the tensor's rank."""
    for linear in linears(walk):
        shape_of_scales, zero = linear.scale_shape, linear.zero
        if shape_of_scales is None:
            continue
        size = math.prod(shape_of_scales)
        count = None if zero is None or zero.const_value is None else zero.const_value.size
        if count not in (None, size):
            message = f"has {size} scales and {count} zero points"
            yield "error", place(linear.node), message, "give as many of one as of the other"
        problem = _shape_problem(linear, shape_of_scales)
        if problem:
            yield "error", place(linear.node), problem, "calibrate again, or set the axis the scales run along"


def _shape_problem(linear: Linear, found: tuple[int, ...]) -> str:
    """What is wrong with scales of shape ``found``, or nothing."""
    if not found and "block_size" not in linear.node.attributes:
        return ""
    block, axis = linear.number("block_size", 0), linear.number("axis", 1)
    if block < 0:
        return f"has a block_size of {block}"
    if not block and len(found) > 1:
        return f"has scales of shape {list(found)} but no block_size"
    if linear.dims is None or (not block and found in ((), (1,))):
        return ""
    dims = [d if isinstance(d, int) else None for d in linear.dims]
    if not -len(dims) <= axis < len(dims):
        return f"has axis {axis} on a tensor of {len(dims)} dimensions"
    axis %= len(dims)
    if not block:
        return "" if dims[axis] in (None, found[0]) else f"has {found[0]} scales on axis {axis}, which has {dims[axis]}"
    size = dims[axis]
    wanted = [*dims[:axis], None if size is None else -(-size // block), *dims[axis + 1 :]]
    if len(found) != len(wanted) or any(w not in (None, f) for w, f in zip(wanted, found, strict=True)):
        return f"has scales of shape {list(found)} where blocks of {block} on axis {axis} need {wanted}"
    return ""


def opset(walk: Walk) -> Iterator[Problem]:
    """The imported opset knows the type and the granularity."""
    for linear in linears(walk):
        if linear.node.domain or not linear.opset:
            continue
        stored = linear.stored
        if stored is not None and stored not in FIRST_OPSET:
            yield (
                "error",
                place(linear.node),
                f"stores {_word(stored)}, which no opset knows",
                "store int8, uint8, int16…",
            )
            continue
        needs = {10 if stored is None else FIRST_OPSET[stored]: _word(stored)}
        if linear.number("block_size", 0):
            needs[OPSET_OF_BLOCKS] = "block_size"
        elif linear.scales is not None and linear.scales.size > 1:
            needs[OPSET_OF_AXIS] = "a scale per axis"
        newest = max(needs)
        if newest > linear.opset:
            message = f"uses {needs[newest]}, which opset {linear.opset} does not have"
            yield "error", place(linear.node), message, f"run the pass convert-opset{{version={newest}}}"


def pair(walk: Walk) -> Iterator[Problem]:
    """A DQ right behind a Q has its scale, zero point, axis and block size; else the pair changes the tensor."""
    quantizers = {id(linear.node): linear for linear in linears(walk) if linear.is_q}
    for dq in linears(walk):
        q = None if dq.is_q else quantizers.get(id(dq.x.producer()))
        if q is None:
            continue
        where, other = place(dq.node), f"{place(q.node)} before it"
        if q.scale is not dq.scale and _differ(q.scales, dq.scales):
            yield "error", where, f"has scale {_show(dq.scales)}, {other} {_show(q.scales)}", "give both the same"
        if q.zero is not dq.zero:
            mine, its = (np.zeros(()) if half.zero is None else half.zero_points for half in (dq, q))
            if _differ(mine, its):
                yield "error", where, f"has zero point {_show(mine)}, {other} {_show(its)}", "give both the same"
        for name, default in (("axis", 1), ("block_size", 0)) if q.scales is not None and q.scales.size > 1 else ():
            this, that = dq.number(name, default), q.number(name, default)
            if this != that and not (name == "axis" and q.dims is not None and (this - that) % len(q.dims) == 0):
                yield "error", where, f"has {name} {this}, {other} {that}", "give both the same"


def _differ(a: npt.NDArray[np.generic] | None, b: npt.NDArray[np.generic] | None) -> bool:
    """Whether two known tensors of scales or zero points are unequal; a single zero stands for any number of zeros."""
    if a is None or b is None:
        return False
    if a.size != b.size:
        return bool(np.any(a) or np.any(b))
    return a is not b and bool(np.any(a.astype(np.float64).ravel() != b.astype(np.float64).ravel()))


def _show(values: npt.NDArray[np.generic] | None) -> str:
    if values is None:
        return "0"
    numbers = [f"{float(v):g}" for v in values.ravel()[:3]]
    return numbers[0] if values.size == 1 else f"[{', '.join(numbers)}{', …' if values.size > 3 else ''}]"
