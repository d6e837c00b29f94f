"""insert-qdq"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from qdq_passes.analysis.demands import has_pair
from qdq_passes.analysis.qdq_opsets import FIRST_OPSET, OPSET_OF_AXIS, OPSET_OF_BLOCKS, OPSET_OF_HALF
from qdq_passes.analysis.uses import (
    QUANTIZABLE_TYPES,
    all_values,
    constant_array,
    dtype_of,
    is_constant,
)
from qdq_passes.core.annotate import ENCODING
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.core.edit import Namer, drop_unread, insert_after, make_node, new_constant, put_first
from qdq_passes.core.inference import static_shape
from qdq_passes.core.select import ALL, Selector, select_values
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.numerics.encoding import Encoding, integer_range, parse_dtype
from qdq_passes.numerics.quantize import quantize


@dataclass(frozen=True)
class InsertQdq(Pass):
    """Insert a QuantizeLinear/DequantizeLinear pair on every annotated value, or on chosen values with an encoding given.

    Graph: ``t → {A, B}`` → ``t → QuantizeLinear → DequantizeLinear → {A, B}``; a weight likewise, or with ``weights=dq`` its
    integers ``w_quantized → DequantizeLinear``. Names: ``t_scale``, ``t_zero_point``, nodes ``t_QuantizeLinear`` and
    ``t_DequantizeLinear``; a graph output keeps its name, its producer writes ``t_QuantizeLinear_Input``.
    Requires: opset 10; 13 for per-axis; 19 on float16; 21 for blocks and for types other than int8, uint8 (and int32, stored).
    Keeps: names of inputs and outputs; the numbers are quantized.
    Skips: values that have a pair already, or that are no float32, float16 or bfloat16; selected values without an encoding.

    Args:
        select: the values (of those annotated; all that are annotated by default).
        weights: ``qdq`` keeps the float weight and puts a pair on it; ``dq`` stores integers.
        scale: explicit scale(s) for the selected values instead of their annotation.
        zero_point: explicit zero point(s); 0 by default.
        dtype: storage type for explicit scales.
        axis: axis of explicit per-axis scales.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="values are rounded to the grid of their encoding")
    select: Selector = ALL
    weights: Literal["qdq", "dq"] = "qdq"
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    dtype: str = "int8"
    axis: int | None = None

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Insert in the order of the graph; the encoding's annotation is taken off once it is real."""
        selected = select_values(model, self.select)
        explicit = self._explicit()
        opset = model.opset_imports.get("", 1)
        work: list[tuple[ir.Value, Encoding]] = []
        for value in all_values(model):
            encoding = (explicit or ENCODING.get(value)) if value in selected else None
            if encoding is None:
                if value in selected and not self.select.is_all:
                    yield skip(value, "has no encoding")
                continue
            reason = _why_not(value)
            if reason is not None:
                yield skip(value, reason)
                continue
            _check(value, encoding, opset, stored=is_constant(value) and self.weights == "dq")
            work.append((value, encoding))
        namer = Namer(model)
        for value, encoding in work:
            ENCODING.clear(value)
            if is_constant(value) and self.weights == "dq":
                yield _store_integers(value, encoding, namer)
            else:
                yield _insert_pair(model, value, encoding, namer)

    def _explicit(self) -> Encoding | None:
        if not self.scale:
            if self.zero_point or self.axis is not None:
                raise UsageError("a zero point or an axis without a scale", where=self.name(), hint="give scale too")
            return None
        if any(not (s > 0 and np.isfinite(s)) for s in self.scale):
            raise UsageError(f"scale {list(self.scale)} is not positive", where=self.name())
        if len(self.scale) > 1 and self.axis is None:
            raise UsageError(f"{len(self.scale)} scales without an axis", where=self.name(), hint="give axis")
        dtype = parse_dtype(self.dtype)
        qmin, qmax = integer_range(dtype, symmetric=False)
        zero_point = self.zero_point or (0,) * len(self.scale)
        for z in zero_point:
            if not qmin <= z <= qmax:
                raise UsageError(f"zero point {z} is no {self.dtype}, which holds {qmin} to {qmax}", where=self.name())
        if len(zero_point) != len(self.scale):
            raise UsageError(f"{len(self.scale)} scales but {len(zero_point)} zero points", where=self.name())
        shape = () if self.axis is None else (len(self.scale),)
        return Encoding(dtype=dtype, scale=self.scale, zero_point=zero_point, shape=shape, axis=self.axis)


def _insert_pair(model: ir.Model, value: ir.Value, encoding: Encoding, namer: Namer) -> Change:
    base = value.name or "value"
    scale, zero_point = _parameters(_home(model, value), value, encoding, namer, base)
    attributes = _attributes(encoding)
    stands_for = _neighbour(value)
    readers = [(use.node, use.idx) for use in value.uses()]
    q = make_node(
        "QuantizeLinear", [value, scale, zero_point], name=namer.fresh(f"{base}_QuantizeLinear"),
        output=namer.fresh(f"{base}_QuantizeLinear_Output"), like=value, dtype=encoding.dtype, attributes=attributes,
        stands_for=stands_for,
    )  # fmt: skip
    dq = make_node(
        "DequantizeLinear", [q.outputs[0], scale, zero_point], name=namer.fresh(f"{base}_DequantizeLinear"),
        output=namer.fresh(f"{base}_DequantizeLinear_Output"), like=value, attributes=attributes, stands_for=stands_for,
    )  # fmt: skip
    insert_after(model, value, [q, dq])
    for node, index in readers:
        node.replace_input_with(index, dq.outputs[0])
    _hand_over_output(value, dq.outputs[0], namer)
    return Change("insert", base, f"{q.name}, {dq.name}")


def _home(model: ir.Model, value: ir.Value) -> ir.Graph:
    """Where the parameters of a pair on ``value`` live: the main graph, which bodies see; in a function, where the value is."""
    return model.graph if value.graph is None or value.graph in list(model.graphs()) else value.graph


def _neighbour(value: ir.Value) -> list[ir.Node]:
    """The node whose scope a pair on ``value`` belongs to: its producer, or the first reader of an input or weight."""
    producer = value.producer()
    return [producer] if producer is not None and producer.op_type != "Constant" else list(value.consumers())[:1]


def _hand_over_output(value: ir.Value, dequantized: ir.Value, namer: Namer) -> None:
    """A graph output is what the DequantizeLinear writes, under the old name. A graph input that is an output stays."""
    graph, name = value.graph, value.name
    if graph is None or not value.is_graph_output() or value.is_graph_input() or value.is_initializer():
        return
    value.name = namer.fresh(f"{name}_QuantizeLinear_Input")
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = dequantized
    dequantized.name = name


def _store_integers(value: ir.Value, encoding: Encoding, namer: Namer) -> Change:
    """``value`` (constant) becomes integers and a DequantizeLinear."""
    array, graph = constant_array(value), value.graph
    assert array is not None
    assert graph is not None
    base = value.name or "weight"
    scale, zero_point = _parameters(graph, value, encoding, namer, base)
    integers = ir.tensor(quantize(array, encoding), dtype=encoding.dtype)
    stored = new_constant(graph, namer, f"{base}_quantized", integers, _neighbour(value))
    readers = [(use.node, use.idx) for use in value.uses()]
    dq = make_node(
        "DequantizeLinear", [stored, scale, zero_point], name=namer.fresh(f"{base}_DequantizeLinear"),
        output=namer.fresh(f"{base}_DequantizeLinear_Output"), like=value,
        attributes=_attributes(encoding), stands_for=_neighbour(value),
    )  # fmt: skip
    put_first(graph, [dq])
    for node, index in readers:
        node.replace_input_with(index, dq.outputs[0])
    drop_unread([value])
    return Change("insert", base, f"{stored.name}, {dq.name}")


def _parameters(
    graph: ir.Graph, value: ir.Value, encoding: Encoding, namer: Namer, base: str
) -> tuple[ir.Value, ir.Value]:
    """Initializers ``<t>_scale`` (in the value's float type) and ``<t>_zero_point``."""
    near = _neighbour(value)
    float_type = (dtype_of(value) or ir.DataType.FLOAT).numpy()
    scale = new_constant(graph, namer, f"{base}_scale", encoding.scale_array().astype(float_type), near)
    tensor = ir.tensor(encoding.zero_point_array(), dtype=encoding.dtype)
    return scale, new_constant(graph, namer, f"{base}_zero_point", tensor, near)


def _attributes(encoding: Encoding) -> list[ir.Attr]:
    attributes = [] if encoding.axis is None else [ir.AttrInt64("axis", encoding.axis)]
    return [*attributes, *([ir.AttrInt64("block_size", encoding.block_size)] if encoding.block_size else [])]


def _why_not(value: ir.Value) -> str | None:
    """Why ``value`` gets no pair, in words."""
    if has_pair(value):
        return "has a pair already"
    dtype = dtype_of(value)
    if dtype is not None and dtype not in QUANTIZABLE_TYPES:
        return f"is {dtype.name.lower()}, which QuantizeLinear does not take"
    if value.producer() is None and not value.uses():
        return "no node reads it"
    return None


def _check(value: ir.Value, encoding: Encoding, opset: int, *, stored: bool) -> None:
    """Refuse what the opset or the types cannot hold; before anything is edited.

    Raises:
        UnsupportedError: an opset too old, or a type that QuantizeLinear cannot write.
        UsageError: scales that do not fit the tensor or its float type.
    """
    name, dtype = encoding.dtype.name.lower(), dtype_of(value) or ir.DataType.FLOAT
    if encoding.dtype == ir.DataType.INT32 and not stored:
        raise UnsupportedError(
            "QuantizeLinear writes no int32", where=value.name, hint="store the integers: weights=dq"
        )
    first = FIRST_OPSET.get(encoding.dtype)
    if first is None:
        raise UnsupportedError(
            f"QuantizeLinear knows no {name}", where=value.name, hint="for example int8, uint8, int16, int4"
        )
    needed = max(
        first,
        OPSET_OF_AXIS if encoding.axis is not None else 0,
        OPSET_OF_BLOCKS if encoding.block_size else 0,
        OPSET_OF_HALF if dtype != ir.DataType.FLOAT else 0,
    )
    if opset < needed:
        on = "" if dtype == ir.DataType.FLOAT else f" on {dtype.name.lower()}"
        raise UnsupportedError(
            f"{name} {encoding.granularity.kind}{on} needs opset {needed}, the model has {opset}",
            where=value.name,
            hint=f"run convert-opset{{version={needed}}} first",
        )
    scale = encoding.scale_array().astype(dtype.numpy()).astype(np.float32)
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise UsageError(f"scale {encoding.scale[0]:g} is no positive {dtype.name.lower()}", where=value.name)
    shape = static_shape(value)
    if shape is not None and encoding.axis is not None:
        if not -len(shape) <= encoding.axis < len(shape):
            raise UsageError(f"axis {encoding.axis} does not exist in shape {shape}", where=value.name)
        wanted = encoding.granularity.scale_shape(tuple(shape))
        if wanted != encoding.shape:
            raise UsageError(
                f"scales of shape {list(encoding.shape)} on a tensor of shape {shape}, axis {encoding.axis}",
                where=value.name,
                hint=f"expected shape {list(wanted)}",
            )
