"""describe-encodings"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass
from qdq_passes.graph.operators.qdq_ops import is_quantization
from qdq_passes.graph.operators.qoperators import (
    Parameters,
    bias_parameters,
    form_of,
    parameters_of,
    result_parameters,
    storage_type,
)
from qdq_passes.graph.uses import FLOAT_TYPES, all_nodes, all_values, constant_array, dtype_of, input_at, is_constant
from qdq_passes.qdq.edit.display import SCALE, ZERO_POINT, Notes, write_notes
from qdq_passes.qdq.look.grids import Grid, grid_of
from qdq_passes.qdq.look.pairs import half_pairs, qdq_pairs

#: IR version from which a local function holds types and descriptions of its values.
IR_OF_FUNCTION_VALUES = 10


@dataclass(frozen=True)
class DescribeEncodings(Pass):
    """Write every encoding where viewers such as Netron show it: metadata, descriptions, quantization annotations.

    Q and DQ get the metadata ``qdq.tensor, qdq.kind, qdq.dtype, qdq.scale, qdq.zero_point, qdq.position, qdq.axis,
    qdq.block_size, qdq.range``; the operators around them, and those on integers, ``qdq.input[0]``, ``qdq.output[0]``…; the
    tensors those of Q and DQ, a line in their description, and the entry in ``graph.quantization_annotation`` that names their
    scale and zero point.

    Graph: unchanged; a value inside without any type gains its element type (Netron shows nothing of it otherwise).
    Requires: nothing.
    Keeps: everything; numerics bit-exact.
    Skips: nothing. What an earlier run wrote is written anew, and taken away where there is no encoding any more.
    """

    keeps: ClassVar[Keeps] = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Collect what is to be said, then say it where it does not stand yet."""
        found, noted, mute = described(model), Noted(), _values_of_old_functions(model)
        for one in found:
            one.note(noted)
        holders: list[ir.Node | ir.Value] = [*all_nodes(model), *(v for v in all_values(model) if v not in mute)]
        written = [holder for holder in holders if write_notes(holder, noted.get(holder, Notes()))]
        new = set(written)
        for one in found:
            if not new.isdisjoint(one.holders):
                yield Change("describe", one.tensor, one.summary)
        told = {holder for one in found for holder in one.holders}
        for holder in written:
            if holder not in told:
                yield Change("describe", holder.name or "<unnamed>", "what it reads and writes")


def _values_of_old_functions(model: ir.Model) -> set[ir.Value]:
    """Values of local functions, where the file has no place for what is said about them."""
    if model.ir_version >= IR_OF_FUNCTION_VALUES:
        return set()
    functions = model.functions.values()
    return {v for f in functions for v in [*f.inputs, *(output for node in f for output in node.outputs)]}


#: First opset whose Q and DQ may have a scale of another type than their float tensor.
OPSET_OF_MIXED_FLOATS = 23

Noted = dict[ir.Node | ir.Value, Notes]


@dataclass(frozen=True, eq=False, kw_only=True)
class Described:
    """Something with an encoding.

    Args:
        tensor: name of the float tensor.
        kind: activation, weight or bias.
        grid: the encoding, None when it is computed at run time or is no grid.
        otherwise: what is said of the scale then.
        nodes: Q and DQ, which bear the encoding.
        floats: the float tensor, and what is read instead of it.
        integers: the integers.
        around: operators that write or read it, and as what.
        scale: the value that holds the scale, if one does.
        zero_point: the value that holds the zero point, if one does.
        is_of_scale: whether the float tensor has the type of the scale, where nothing else tells its type.
    """

    tensor: str
    kind: str
    grid: Grid | None
    otherwise: str
    nodes: tuple[ir.Node, ...] = ()
    floats: tuple[ir.Value, ...] = ()
    integers: tuple[ir.Value, ...] = ()
    around: tuple[tuple[ir.Node, str], ...] = ()
    scale: ir.Value | None = None
    zero_point: ir.Value | None = None
    is_of_scale: bool = True

    @property
    def holders(self) -> list[ir.Node | ir.Value]:
        """The nodes and values that it is said of in full."""
        return [*self.nodes, *self.floats, *self.integers]

    @cached_property
    def summary(self) -> str:
        """One line: ``int8, scale 2^-4, zero point 0, activation``."""
        return f"{self.grid or f'scale {self.otherwise}'}, {self.kind}"

    @cached_property
    def rows(self) -> dict[str, str]:
        """Rows of metadata."""
        fields = {"scale": self.otherwise} if self.grid is None else self.grid.fields()
        return {"tensor": self.tensor, "kind": self.kind, **fields}

    def note(self, noted: Noted) -> None:
        """Add what there is to say to the nodes, the values, and the operators around."""
        for holder in self.holders:
            noted.setdefault(holder, Notes()).add(self.rows)
        graph = (*self.nodes, *(node for node, _ in self.around))[-1].graph
        tensors = {SCALE: self.scale, ZERO_POINT: self.zero_point}
        names = {key: tensor.name for key, tensor in tensors.items() if tensor is not None and tensor.name}
        like_scale = dtype_of(self.scale) if self.scale is not None else None
        for value in (*self.floats, *self.integers):
            notes = noted[value]
            notes.lines = list(dict.fromkeys([*notes.lines, self.summary]))
            if names and value.graph is graph:
                notes.tensors.append(names)
            if value in self.integers:
                notes.dtype = self.grid.dtype if self.grid is not None else None
            elif like_scale in FLOAT_TYPES:
                notes.dtype = dtype_of(value) or (like_scale if self.is_of_scale else None)
        for node, key in self.around:
            noted.setdefault(node, Notes()).add({key: self.summary})


def described(model: ir.Model) -> list[Described]:
    """Everything with an encoding, bodies and local functions included."""
    is_of_scale = model.opset_imports.get("", 1) < OPSET_OF_MIXED_FLOATS
    found = [_of_nodes(pair.tensor, pair.kind, pair.q, pair.dq, is_of_scale=is_of_scale) for pair in qdq_pairs(model)]
    found += [
        _of_nodes(
            half.tensor, "activation", *((half.node, None) if half.is_q else (None, half.node)), is_of_scale=is_of_scale
        )
        for half in half_pairs(model)
    ]
    return [*found, *(operand for node in all_nodes(model) for operand in _of_operator(node))]


def _of_nodes(tensor: str, kind: str, q: ir.Node | None, dq: ir.Node | None, *, is_of_scale: bool) -> Described:
    """A pair, or the half of one; ``q`` is ``dq`` where one node does both."""
    nodes = tuple(dict.fromkeys(node for node in (q, dq) if node is not None))
    last, is_fused = nodes[-1], q is dq
    scale, zero_point = (None, None) if is_fused else (input_at(last, 1), input_at(last, 2))
    source = q.inputs[0] if q is not None else None
    read = dq.outputs[0] if dq is not None else None
    writer = source.producer() if source is not None else None
    around = [] if writer is None or source is None else [(writer, f"output[{source.index()}]")]
    around += [(use.node, f"input[{use.idx}]") for use in read.uses()] if read is not None else []
    integers = [] if is_fused else [node.outputs[0] if node is q else node.inputs[0] for node in nodes]
    return Described(
        tensor=tensor,
        kind=kind,
        grid=grid_of(last),
        otherwise=f"chosen by {last.op_type}" if scale is None else f"computed as {scale.name}",
        nodes=nodes,
        floats=_named([source, read]),
        integers=_named(integers),
        around=tuple((node, key) for node, key in around if not is_quantization(node)),
        scale=scale,
        zero_point=zero_point,
        is_of_scale=is_of_scale,
    )


def _of_operator(node: ir.Node) -> Iterator[Described]:
    """The operands of QLinearConv, QGemm and their like, and what they write."""
    form = form_of(node)
    if form is None:
        return
    found = [(operand.value, parameters_of(node, operand)) for operand in form.operands]
    if form.bias is not None and (bias := bias_parameters(node, form)) is not None:
        found.append((form.bias, bias))
    for index, parameters in found:
        value = input_at(node, index)
        if value is not None:
            kind = ("bias" if index == form.bias else "weight") if is_constant(value) else "activation"
            yield _of_integers(node, value, parameters, kind, f"input[{index}]")
    result = result_parameters(node, form)
    if result is not None:
        yield _of_integers(node, node.outputs[0], result, "activation", "output[0]")


def _of_integers(node: ir.Node, value: ir.Value, parameters: Parameters, kind: str, key: str) -> Described:
    scale = parameters.scale if isinstance(parameters.scale, ir.Value) else None
    return Described(
        tensor=(value.name or "").removesuffix("_quantized"),
        kind=kind,
        grid=_grid(value, parameters),
        otherwise=f"computed as {scale.name}" if scale is not None else "computed at run time",
        integers=_named([value]),
        around=((node, key),),
        scale=scale,
        zero_point=parameters.zero_point,
    )


def _grid(value: ir.Value, parameters: Parameters) -> Grid | None:
    scales, dtype = parameters.scales, storage_type(value, parameters)
    zeros = constant_array(parameters.zero_point) if parameters.zero_point is not None else np.zeros(1)
    if scales is None or zeros is None or dtype is None:
        return None
    return Grid(
        dtype=dtype,
        scale=scales.astype(np.float32),
        zero_point=zeros.astype(np.float32),
        axis=parameters.axis if scales.size > 1 else None,
    )


def _named(values: Iterable[ir.Value | None]) -> tuple[ir.Value, ...]:
    return tuple(dict.fromkeys(value for value in values if value is not None and value.name))
