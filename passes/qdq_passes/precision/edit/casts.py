"""Surgery at the border of a region that computes in another float type: Casts, one per tensor, none between two of its nodes;
constants in half precision.

float16 ends at 65504, bfloat16 at 3.39e38, below float32's 3.40e38. Attention masks lie beyond: added to scores or chosen by a
Where, −3.4e38 means the same as the lowest number there is. A bound of Clip, Min or Max that cannot be reached bounds nothing.
Below 6e-8 float16 has but 0: an epsilon becomes the smallest number; what multiplies by such a constant stays float."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.core.base import Change
from qdq_passes.graph.edit import (
    Namer,
    drop_unread,
    graph_of,
    insert_after,
    make_node,
    move_annotations,
    new_constant,
    remove,
)
from qdq_passes.graph.operators.float_schemas import Retyped
from qdq_passes.graph.uses import constant_array, dtype_of, is_constant, is_standard, label

#: Operators of masks, and of bounds: beyond the range of the type they mean its end.
_MASKING = ("Add", "Sub", "Where", "Pad")
_BOUNDING = ("Clip", "Max", "Min")
#: Operators that a constant too small for the type keeps from 0, as an epsilon does.
_SUMMING = ("Add", "Sub")
#: From here on a factor is that of a mask, (1 − m)·−1e9, not one of arithmetic.
_MASK_FACTOR = -1e4


def in_half(array: npt.NDArray[Any], dtype: ir.DataType, node: ir.Node) -> tuple[npt.NDArray[Any], str] | str:
    """``array`` as ``dtype`` for its reader ``node``, and a remark (``""`` for none); a text says why it cannot be.

    Args:
        array: any shape.
        dtype: FLOAT16, BFLOAT16 or FLOAT.
        node: the node that reads it.
    """
    limits = ml_dtypes.finfo(dtype.numpy())  # type: ignore[no-untyped-call]
    lowest, highest = float(limits.min), float(limits.max)
    with np.errstate(over="ignore"):
        cast = array.astype(dtype.numpy())
    name = dtype.name.lower()
    gone = (array != 0) & (cast == 0)
    if gone.any() and (not cast.any() or is_standard(node, "Div")):
        smallest, tiny = float(limits.smallest_subnormal), float(array[gone].ravel()[0])
        if not is_standard(node, *_SUMMING, *_BOUNDING):
            return f"holds {tiny:.6g}, which rounds to 0; {smallest:.6g} is the smallest {name}"
        kept = np.where(gone, np.copysign(smallest, array), array).astype(dtype.numpy())
        return kept, f"{tiny:.6g} becomes {np.copysign(smallest, tiny):.6g}, the smallest {name}"
    lost = np.isfinite(array) & ~np.isfinite(cast.astype(np.float32))
    if not lost.any():
        return cast, ""
    beyond = array[lost]
    extreme = float(beyond[np.argmax(np.abs(beyond.astype(np.float64)))])
    is_mask = is_standard(node, *_MASKING) and (beyond < 0).all()
    is_mask = is_mask or (is_standard(node, "Mul") and (beyond < _MASK_FACTOR).all())
    if not (is_mask or is_standard(node, *_BOUNDING)):
        return f"holds {extreme:.6g}, beyond {highest:.6g}, the largest {name}"
    saturated = np.clip(cast.astype(np.float32), lowest, highest).astype(dtype.numpy())
    kept = np.where(lost, saturated, cast)
    return (
        kept,
        f"{extreme:.6g} becomes {lowest if extreme < 0 else highest:.6g}, the {'lowest' if extreme < 0 else 'largest'} {name}",
    )


class Region:
    """Nodes of one graph that are to compute in ``dtype``.

    Args:
        model: the model.
        dtype: the float type.
        nodes: the nodes, in the order of the graph, and what of them becomes ``dtype``.
        types: element types of what they read and write.
        convert_io: graph inputs and outputs at the border become ``dtype`` too.
    """

    def __init__(
        self, model: ir.Model, dtype: ir.DataType, nodes: Mapping[ir.Node, Retyped],
        types: Mapping[ir.Value, ir.DataType | None], *, convert_io: bool,
    ) -> None:  # fmt: skip
        self._model, self._dtype, self._nodes, self._convert_io = model, dtype, nodes, convert_io
        self._types = types
        self._namer = Namer(model)
        self._written = {node.outputs[i] for node, what in nodes.items() for i in what.outputs}
        #: What stands for a value from outside, or for a constant, inside of the region.
        self._inside: dict[tuple[ir.Value, str], ir.Value] = {}
        self._suffix = f"_{dtype.name.lower()}"

    def convert(self) -> Iterator[Change]:
        """Retype the nodes, what they read and what they write."""
        old: dict[ir.Value, None] = {}
        for node, what in self._nodes.items():
            for index in what.inputs:
                value = node.inputs[index]
                assert value is not None
                if value not in self._written:
                    inner, changes = self._entering(value, node)
                    node.replace_input_with(index, inner)
                    old[value] = None
                    yield from changes
            yield Change("edit", label(node), f"computes in {self._dtype.name.lower()}")
        for node, what in self._nodes.items():
            for index in what.outputs:
                yield from self._leaving(node.outputs[index])
        yield from self._drop(old)

    def _entering(self, value: ir.Value, node: ir.Node) -> tuple[ir.Value, list[Change]]:
        """What ``node`` reads in the region for ``value``, which comes from outside."""
        array = constant_array(value)
        found = in_half(array, self._dtype, node) if array is not None else ""
        key = (value, "" if isinstance(found, str) else found[1])
        if key in self._inside:
            return self._inside[key], []
        made, changes = self._brought_in(value) if isinstance(found, str) else self._as_constant(value, node, *found)
        self._inside[key] = made
        return made, changes

    def _as_constant(
        self, value: ir.Value, node: ir.Node, data: npt.NDArray[Any], remark: str
    ) -> tuple[ir.Value, list[Change]]:
        tensor = ir.tensor(data, dtype=self._dtype)
        made = new_constant(value.graph or graph_of(node), self._namer, f"{value.name}{self._suffix}", tensor, [node])
        made.metadata_props.update(value.metadata_props)
        return made, [Change("replace", value.name or "", ", ".join(filter(None, (self._suffix[1:], remark))))]

    def _brought_in(self, value: ir.Value) -> tuple[ir.Value, list[Change]]:
        producer = value.producer()
        source = producer.inputs[0] if producer is not None and self._casts(producer) else None
        if source is not None and (self._types.get(source) or dtype_of(source)) == self._dtype:
            return source, []
        if self._convert_io and value.is_graph_input() and value.graph is self._model.graph:
            return value, self._retype_input(value)
        there = self._cast_there(value)
        cast = there or self._cast(value, self._dtype, f"{value.name}{self._suffix}")
        insert_after(self._model, value, [cast])
        changes = [] if there else [Change("insert", value.name or "", f"{cast.name} to {self._suffix[1:]}")]
        return cast.outputs[0], changes

    def _leaving(self, value: ir.Value) -> Iterator[Change]:
        """Retype ``value``, which a node of the region writes, and cast it back for those outside."""
        before = self._types[value] or ir.DataType.FLOAT
        value.type = ir.TensorType(self._dtype)
        outside = [(use.node, use.idx) for use in value.uses() if use.idx not in self._inputs(use.node)]
        for node, index in list(outside):
            if self._casts(node) and _target(node) == self._dtype and not node.outputs[0].is_graph_output():
                node.outputs[0].replace_all_uses_with(value)
                yield from remove(node, f"{value.name} is {self._suffix[1:]} already")
                outside.remove((node, index))
        is_output = value.is_graph_output()
        kept = is_output and self._convert_io
        if not outside and (not is_output or kept):
            return
        name = value.name or "value"
        cast = self._cast(value, before, f"{name}_{before.name.lower()}")
        insert_after(self._model, value, [cast])
        for node, index in outside:
            node.replace_input_with(index, cast.outputs[0])
        if not kept:
            self._take_over(value, cast.outputs[0], name, is_output=is_output)
        yield Change("insert", name, f"{cast.name} to {before.name.lower()}")

    def _take_over(self, value: ir.Value, outer: ir.Value, name: str, *, is_output: bool) -> None:
        """``outer`` is what those outside know by the name of ``value``."""
        graph = value.graph
        assert graph is not None
        self._namer.release(outer.name or "")
        value.name = self._namer.fresh(f"{name}{self._suffix}")
        if is_output:
            for index, output in enumerate(graph.outputs):
                if output is value:
                    graph.outputs[index] = outer
        outer.name = name
        move_annotations(value, outer)

    def _retype_input(self, value: ir.Value) -> list[Change]:
        before = self._types[value] or ir.DataType.FLOAT
        value.type = ir.TensorType(self._dtype)
        outside = [(use.node, use.idx) for use in value.uses() if use.idx not in self._inputs(use.node)]
        changes = [Change("edit", value.name or "", f"is {self._suffix[1:]}")]
        if outside:
            cast = self._cast(value, before, f"{value.name}_{before.name.lower()}")
            insert_after(self._model, value, [cast])
            for node, index in outside:
                node.replace_input_with(index, cast.outputs[0])
            changes.append(Change("insert", value.name or "", f"{cast.name} to {before.name.lower()}"))
        return changes

    def _inputs(self, node: ir.Node) -> tuple[int, ...]:
        """The inputs of ``node`` that are in the region."""
        what = self._nodes.get(node)
        return () if what is None else what.inputs

    def _cast(self, value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
        producer = value.producer()
        near = [producer] if producer is not None else list(value.consumers())[:1]
        return make_node(
            "Cast", [value], name=self._namer.fresh(f"{name}_Cast"), output=self._namer.fresh(name), like=value, dtype=to,
            attributes=[ir.AttrInt64("to", to.value)], stands_for=near,
        )  # fmt: skip

    def _cast_there(self, value: ir.Value) -> ir.Node | None:
        """A Cast of ``value`` to the region's type that somebody else reads already."""
        for node in value.consumers():
            if self._casts(node) and _target(node) == self._dtype and node.graph is value.graph:
                graph_of(node).remove(node)
                return node
        return None

    def _casts(self, node: ir.Node) -> bool:
        return is_standard(node, "Cast") and node not in self._nodes

    def _drop(self, values: Mapping[ir.Value, None]) -> Iterator[Change]:
        """Remove constants and Casts that nobody reads any more."""
        yield from drop_unread(v for v in values if is_constant(v))
        for value in values:
            producer = value.producer()
            if producer is None or producer.graph is None or not self._casts(producer):
                continue
            if not value.uses() and not value.is_graph_output():
                yield from remove(producer, f"nobody reads {value.name} any more")


def _target(cast: ir.Node) -> ir.DataType | None:
    to = cast.attributes.get("to")
    return None if to is None or to.is_ref() else ir.DataType(to.as_int())
