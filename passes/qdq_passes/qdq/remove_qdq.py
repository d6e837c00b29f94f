"""remove-qdq"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.errors import ModelError
from qdq_passes.graph.annotate import LEFT_FLOAT
from qdq_passes.graph.edit import (
    Namer,
    bypass,
    drop_unread,
    drop_unused_domains,
    graph_of,
    make_node,
    new_constant,
    remove,
    replace_value,
)
from qdq_passes.graph.operators.qdq_ops import OPERATORS
from qdq_passes.graph.uses import all_graphs, all_nodes, constant_array, dtype_of
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.qdq.edit.display import forget_tensors
from qdq_passes.qdq.edit.float_values import made_in, restore_floats
from qdq_passes.qdq.edit.integers import remember_integers
from qdq_passes.qdq.look.pairs import Half, Pair, encoding_of, half_pairs, is_named, is_quantize, qdq_pairs
from qdq_passes.select.selectors import ALL, Selector, select

#: Float initializers made of stored integers, so that two DequantizeLinear of one tensor give one.
Made = dict[tuple[ir.Value, Encoding, np.dtype[Any]], ir.Value]


@dataclass(frozen=True)
class RemoveQdq(Pass):
    """Remove QDQ pairs of any tool, leaving the float value; stored integers (any type, per-axis, blocked) are dequantized.

    Graph: ``t → Q → DQ → A`` → ``t → A``; ``w_quantized → DQ → A`` → ``w → A`` with w = (q − zero_point)·scale; a FixNeuron
    or a block float goes likewise; a pair that writes another float type than it reads leaves a Cast. With ``float-io`` the
    halves at the ends of the graph go too: ``x → DQ → A`` → ``x → A``.
    Requires: constant scales and zero points on stored integers.
    Keeps: names of inputs and outputs, and but for ``float-io`` their types; activations are no longer rounded. Weights of a pair
    on the float weight are those before rounding, and before narrow-weights, unless ``round_weights``; masks are those before
    bound-attention-mask. Stored integers whose scale refine-positions moved without them stand for what they did before.
    Skips: pairs that ``select`` does not name; a DequantizeLinear of computed integers, or of an input with a default; a
    QuantizeLinear whose integers feed an integer operator.

    Args:
        select: pairs, by their float value or by their Q or DQ node.
        keep_weights: leave pairs and stored integers of weights and biases.
        float_io: integer inputs that a DequantizeLinear reads and integer outputs that a QuantizeLinear writes become float.
        round_weights: a weight under a pair becomes its dequantized value, as stored integers do, instead of what it was.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="activations are no longer rounded to a grid")
    select: Selector = ALL
    keep_weights: bool = False
    float_io: bool = False
    round_weights: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Bypass pair after pair, then drop what nobody reads."""
        hit = select(model, self.select)
        nodes, values = set(hit.nodes), set(hit.values)
        namer = Namer(model)
        for node in all_nodes(model) if self.select.is_all else ():
            node.metadata_props.pop(LEFT_FLOAT, None)
        made: Made = {}
        pairs = [p for p in qdq_pairs(model) if self.select.is_all or is_named(p, nodes, values)]
        types = {pair.source: dtype_of(pair.source) for pair in pairs if pair.source is not None}  # pairs tell theirs
        parameters: dict[ir.Value | None, None] = {}  # which all pairs may share
        for pair in pairs:
            if not (self.keep_weights and pair.kind != "activation"):
                yield from self._remove(pair, namer, made, types, parameters)
        yield from drop_unread(parameters)
        for half in half_pairs(model):
            if self.select.is_all or half.node in nodes or not values.isdisjoint(half.node.outputs):
                yield from self._remove_half(half, model.graph, namer)
        yield from self._restored(model, nodes, namer)
        yield from drop_unused_domains(model, set(OPERATORS) - {"", "ai.onnx"})

    def _remove(
        self,
        pair: Pair,
        namer: Namer,
        made: Made,
        types: Mapping[ir.Value, ir.DataType | None],
        spare: dict[ir.Value | None, None],
    ) -> Iterator[Change]:
        parameters = [*pair.dq.inputs, *(pair.q.inputs[1:] if pair.q is not None else [])]
        floats = pair.source if pair.q is not None else None
        is_rounded = pair.q is None or (self.round_weights and pair.stored is not None)
        source = _dequantized(pair, namer, made) if is_rounded else _converted(pair, namer, types)
        yield bypass(pair.dq, namer, "remove-qdq" + (": dequantized" if is_rounded else ""), source=source)
        if pair.q is not None and pair.q is not pair.dq and _is_unread(pair.q.outputs[0]):
            parameters.append(pair.q.inputs[0])
            yield from remove(pair.q, "remove-qdq")
        if floats is not None:
            _forget(floats, parameters)
            if not any(is_quantize(use.node) for use in floats.uses()) and restore_floats(floats, namer):
                yield Change("edit", pair.tensor, "the values from before narrow-weights")
        spare.update(dict.fromkeys(parameters))

    def _restored(self, model: ir.Model, nodes: Set[ir.Node], namer: Namer) -> Iterator[Change]:
        """Masks that were bounded for the sake of pairs are as they were."""
        for value in [v for graph in all_graphs(model) for v in graph.initializers.values()]:
            readers = [use.node for use in value.uses()]
            is_hit = self.select.is_all or not nodes.isdisjoint(readers)
            if is_hit and not any(map(is_quantize, readers)) and restore_floats(value, namer):
                yield Change("edit", value.name or "", "the values from before bound-attention-mask")

    def _remove_half(self, half: Half, main: ir.Graph, namer: Namer) -> Iterator[Change]:
        """An integer end of the graph becomes float; halves that feed or follow integer operators stay."""
        node, parameters = half.node, list(half.node.inputs)
        source, result = node.inputs[0], node.outputs[0]
        assert source is not None
        if half.is_q and _is_unread(result):
            yield from remove(node, "remove-qdq: nobody reads it")
        elif not half.is_q and source.is_initializer():
            yield skip(node, f"{source.name} is an input with a default; remove-initializer-inputs makes it a constant")
        elif not _is_end(half, main):
            yield skip(node, "its integers come from or go to something else than a pair")
        elif not self.float_io:
            yield skip(node, "its integers are an end of the graph; float-io=true makes that float")
        elif half.is_q:
            name, result.type = result.name or "", ir.TensorType(dtype_of(source) or ir.DataType.FLOAT)
            replace_value(result, source, namer)
            yield from remove(node, f"remove-qdq: output {name} is float now")
        else:
            source.type = ir.TensorType(dtype_of(result) or ir.DataType.FLOAT)
            yield bypass(node, namer, f"remove-qdq: input {source.name} is float now")
        yield from drop_unread(parameters)


def _forget(floats: ir.Value, parameters: list[ir.Value | None]) -> None:
    """What a pair stood on has no scale and zero point any more, unless another pair with them is left on it."""
    names = {value.name for value in parameters if value is not None and value.name}
    quantizers = [use.node for use in floats.uses() if is_quantize(use.node)]
    left = {value.name for node in quantizers for value in node.inputs[1:] if value is not None}
    forget_tensors(floats, names - left)


def _is_unread(value: ir.Value) -> bool:
    return not value.uses() and not value.is_graph_output()


def _dequantized(pair: Pair, namer: Namer, made: Made) -> ir.Value:
    """A float initializer with the values that the DequantizeLinear of a constant makes.

    Raises:
        ModelError: that cannot be known.
    """
    array, encoding, dtype = constant_array(pair.stored), pair.encoding, _float_type(pair)
    if pair.stored is None or array is None or encoding is None or dtype is None:
        raise ModelError(
            "scale or zero point is not constant", where=pair.dq.name, hint="fold-constants may make it so"
        )
    if pair.q is not None and encoding_of(pair.q) != encoding:
        raise ModelError("Q and DQ have different encodings", where=pair.dq.name, hint="see `qdqtool check`")
    key = (pair.stored, encoding, dtype)
    if key not in made or made[key].graph is not (pair.stored.graph or graph_of(pair.dq)):
        integers = array if pair.q is None else quantize(array, encoding)
        made_with = encoding if pair.q is not None else made_in(pair.stored, encoding)
        graph = pair.stored.graph or graph_of(pair.dq)
        _free_name(pair, namer)
        data = _values(integers, made_with, dtype, pair)
        made[key] = new_constant(graph, namer, pair.tensor or "weight", data, [pair.dq])
        if made[key].const_value is not None:
            remember_integers(made[key], integers, made_with)
    return made[key]


def _values(integers: Array, encoding: Encoding, dtype: np.dtype[Any], pair: Pair) -> Array:
    try:
        return dequantize(integers, encoding, dtype)
    except ModelError as error:
        raise ModelError(error.message, where=pair.dq.name, hint=error.hint) from error


def _converted(pair: Pair, namer: Namer, types: Mapping[ir.Value, ir.DataType | None]) -> ir.Value | None:
    """What Q reads; behind a Cast where the DequantizeLinear writes another float type, as it may since opset 23."""
    source = pair.source
    if pair.q is None or pair.q is pair.dq or source is None:
        return source
    scales = [node.inputs[1] if len(node.inputs) > 1 else None for node in (pair.q, pair.dq)]
    of_q, of_dq = (None if scale is None else dtype_of(scale) for scale in scales)
    written = pair.dq.attributes.get("output_dtype")
    wanted = ir.DataType(written.as_int()) if written is not None and written.as_int() else of_dq
    have = types.get(source) or of_q
    if wanted is None or have is None or wanted == have:
        return source
    cast = make_node(
        "Cast", [source], name=namer.fresh(f"{pair.tensor}_Cast"), output=namer.fresh(f"{pair.tensor}_cast"), like=source,
        attributes=[ir.AttrInt64("to", wanted.value)], stands_for=[pair.dq], dtype=wanted,
    )  # fmt: skip
    graph_of(pair.dq).insert_before(pair.dq, cast)
    return cast.outputs[0]


def _free_name(pair: Pair, namer: Namer) -> None:
    """Let what is about to go give up the name of the float tensor: the dequantized value, a constant that nobody else reads."""
    goes = [] if pair.output.is_graph_output() else [pair.output]
    if pair.q is None and pair.stored is not None:
        goes += [pair.stored] if [use.node for use in pair.stored.uses()] == [pair.dq] else []
    elif pair.q is not None and pair.stored is not None:
        used = [use.node for value in (pair.stored, pair.q.outputs[0]) for use in value.uses()]
        goes += [pair.stored] if used == [pair.q, pair.dq] and not pair.q.outputs[0].is_graph_output() else []
    for value in goes:
        if value.name == pair.tensor:
            value.name = namer.fresh(f"{pair.tensor}_replaced")
            namer.release(pair.tensor)


def _float_type(pair: Pair) -> np.dtype[Any] | None:
    """Type of what the DequantizeLinear makes: ``output_dtype`` (since opset 23; 0 stands for the scale's), or the scale's."""
    wanted = pair.dq.attributes.get("output_dtype")
    if wanted is not None and wanted.as_int():
        return ir.DataType(wanted.as_int()).numpy()
    scale = constant_array(pair.dq.inputs[1]) if len(pair.dq.inputs) > 1 else constant_array(pair.source)
    return None if scale is None else scale.dtype


def _is_end(half: Half, main: ir.Graph) -> bool:
    """Whether the integers are an input of the main graph that only the DQ reads, or an output that only the Q writes."""
    integers = half.node.outputs[0] if half.is_q else half.node.inputs[0]
    if integers is None or integers.graph is not main:
        return False
    if half.is_q:
        return integers.is_graph_output() and not integers.uses()
    return (
        integers.is_graph_input()
        and not integers.is_graph_output()
        and [use.node for use in integers.uses()] == [half.node]
    )
