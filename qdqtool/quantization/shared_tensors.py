"""One name, one tensor, one encoding in all graphs of one model: ranges and encodings are shared by name.

Graphs of one split have their names from one prepared model. Where a name stands for something else in another graph, as names
that are counted do, it gets another one there, before anything is observed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir
from qdq_passes.decoder.bound_attention_mask import BoundAttentionMask
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import DATA_MOVEMENT, constant_array, is_constant, main_nodes
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.pipeline.pipeline import Pipeline
from qdq_passes.qdq.look.pairs import Kind, qdq_pairs

from qdqtool.calibrate.observer import Range
from qdqtool.quantization.plan import Plan

#: What the shape of a run decides about: it is looked through, as a graph of one token has less of it.
_MOVES = DATA_MOVEMENT | {"Cast", "GatherElements", "GatherND"}
#: Larger constants are told by their shape and their name.
_READ_BYTES = 1 << 16

Signature = tuple[object, ...]


def share_names(graphs: Mapping[str, ir.Model]) -> list[tuple[str, str, str]]:
    """Rename values of later ``graphs``, in place, that have the name of another tensor in an earlier one.

    Two values are the same tensor where the same operator makes them of the same tensors and constants; what only moves elements
    is looked through, integers do not count. Names of graph inputs and outputs stay: the manifest says what they are.

    Args:
        graphs: by name, the first decides.

    Returns:
        (graph, old name, new name).
    """
    known: dict[str, Signature] = {}
    renamed = []
    for graph, model in graphs.items():
        namer = Namer(model)
        found = {value: _signature(node, value) for node in main_nodes(model) for value in node.outputs if value.name}
        for value, signature in found.items():
            name = value.name or ""
            if known.setdefault(name, signature) == signature or value.is_graph_output():
                continue
            value.name = _free(f"{name}_of_{graph.removesuffix('.onnx')}", namer, known)
            known[value.name] = signature
            renamed.append((graph, name, value.name))
    return renamed


def _free(wanted: str, namer: Namer, known: Mapping[str, Signature]) -> str:
    name = namer.fresh(wanted)
    while name in known:
        name = namer.fresh(wanted)
    return name


def _signature(node: ir.Node, value: ir.Value) -> Signature:
    """What ``value`` is, by the names of what it is made of."""
    root = _root(value)
    if root is not value:
        return ("moved", root.name)
    inputs = tuple(_operand(v) for v in node.inputs if v is not None)
    return (node.domain, node.op_type, node.outputs.index(value), *(each for each in inputs if each is not None))


def _root(value: ir.Value) -> ir.Value:
    """What ``value`` has its elements from."""
    node = value.producer()
    while node is not None and node.domain in ("", "ai.onnx") and node.op_type in _MOVES and node.inputs:
        source = node.inputs[0]
        if source is None or is_constant(source):
            break
        value, node = source, source.producer()
    return value


def _operand(value: ir.Value) -> object:
    """An input of a node: its tensor by name, a constant by what it holds; None for integers, which shapes decide about."""
    if not is_constant(value):
        return _root(value).name
    tensor = value.const_value
    if tensor is not None and (tensor.nbytes > _READ_BYTES or isinstance(tensor, ir.ExternalTensor)):
        return None if tensor.dtype.is_integer() else (value.name, tuple(tensor.shape.numpy()))
    array = constant_array(value)
    if array is None or array.dtype.kind in "iub":
        return None
    return array.shape, hashlib.sha256(array.tobytes()).hexdigest()


def with_one_mask(
    plans: Mapping[str, Plan], prepared: Mapping[str, ir.Model], ranges: Mapping[str, Range]
) -> dict[str, Plan]:
    """``plans``, masks hidden by the lowest bound that any of the graphs asks for: parts of a graph read the same mask.

    Args:
        plans: by graph.
        prepared: the prepared graphs.
        ranges: what they share.
    """
    bounds = {name: _bound(plan, prepared[name], ranges) for name, plan in plans.items()}
    lowest = min(bounds.values(), default=0.0)
    return {name: _hiding(plan, lowest) if bounds[name] not in (0.0, lowest) else plan for name, plan in plans.items()}


def _bound(plan: Plan, model: ir.Model, ranges: Mapping[str, Range]) -> float:
    steps = [replace(step, ranges=ranges) for step in plan.materialise.passes if isinstance(step, BoundAttentionMask)]
    return min([step.bound(model) for step in steps], default=0.0)


def _hiding(plan: Plan, hidden: float) -> Plan:
    passes = (replace(p, hidden=hidden) if isinstance(p, BoundAttentionMask) else p for p in plan.materialise.passes)
    return replace(plan, materialise=Pipeline(tuple(passes)))


def disagreements(models: Mapping[str, ir.Model]) -> dict[str, dict[str, dict[str, object]]]:
    """Of each graph that gives a tensor another encoding than an earlier one: tensor → the earlier encoding, as an override.

    Args:
        models: the quantized graphs, in order.
    """
    known: dict[tuple[str, Kind], Encoding | None] = {}
    found: dict[str, dict[str, dict[str, object]]] = {}
    for name, model in models.items():
        for pair in qdq_pairs(model):
            first = known.setdefault((pair.tensor, pair.kind), pair.encoding)
            if first is not None and first != pair.encoding:
                found.setdefault(name, {})[pair.tensor] = _override(first)
    return found


def _override(encoding: Encoding) -> dict[str, object]:
    """``encoding`` as an override that leaves nothing to choose."""
    said: dict[str, object] = {"dtype": encoding.dtype.name.lower(), "scale": list(encoding.scale)}
    said["zero_point"] = [int(z) for z in encoding.zero_point]
    return {**said, **({} if encoding.axis is None else {"axis": encoding.axis})}
