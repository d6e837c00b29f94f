"""fuse-sdpa-kv-cache

Attention over a cache that is updated in place: found between the writes of new keys and values and the result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.edit.function import Functions
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.decoder.look.cache import CachePair
from qdq_passes.decoder.look.flow import PRODUCTS, is_attention, is_product
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.decoder.look.updates import SCATTERS
from qdq_passes.graph.build import drop_chains
from qdq_passes.graph.edit import Namer, drop_unread, move_annotations
from qdq_passes.graph.uses import (
    DATA_MOVEMENT,
    Reach,
    constant_array,
    in_order,
    is_constant,
    is_standard,
    label,
    only_reader,
    reach,
    values_read,
)

NAME = "SdpaWithKvCache"
_INPUTS = ("query", "key", "value", "key_cache", "value_cache", "position_ids", "mask")
_OUTPUTS = ("output", "present_key", "present_value")


@dataclass(frozen=True)
class FuseSdpaKvCache(Pass):
    """Make one operator of an attention and the writes into its cache: qdqtool.llm.SdpaWithKvCache, a local function.

    (y, key_cache', value_cache') = SdpaWithKvCache(query, key, value, key_cache, value_cache, position_ids, mask), after the
    operator of the same purpose in ExecuTorch (sdpa_with_kv_cache). Its body is the nodes it stands for, so that any runtime runs
    it; layers that compute alike share one function. Slots are made of the positions inside.

    Graph: ``past_key, key → ScatterElements → present_key; past_value, value → ScatterElements → present_value; query,
    present_key → MatMul → Add(mask) → Softmax → MatMul(present_value) → y`` → the call.
    Requires: a cache that is updated in place (scatter-kv-cache), whose keys and values feed one product each.
    Keeps: inputs, outputs and their names; numerics bit-exact.
    Skips: a value inside that others read or that is a graph output, operators of other kinds in between.
    """

    keeps: ClassVar[Keeps] = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Layer by layer."""
        if not any(node.op_type == "Softmax" or node.op_type == "Attention" for node in model.graph):
            return
        pairs = {(pair.layer, pair.part): pair for pair in decoder_io(model).pairs}
        functions, namer, paths = Functions(model, NAME), Namer(model), reach(model.graph)
        for layer, part in sorted(pairs):
            key, value = pairs.get((layer, "key")), pairs.get((layer, "value"))
            if key is None or value is None:
                yield skip(pairs[layer, part].update, "keys and values are one state; run it before unify-kv-state")
                continue
            if part == "value":
                continue
            found = cached_attention(key, value, paths, model.graph)
            if isinstance(found, str):
                yield skip(key.update, found)
                continue
            yield from _fuse(model, found, functions, namer, key.update)
        if model.functions:
            model.graph.sort()


def _fuse(
    model: ir.Model, found: CachedAttention, functions: Functions, namer: Namer, write: ir.Node
) -> Iterator[Change]:
    """Put the call where the last node stands; the nodes that nobody else reads go."""
    names = [*_INPUTS, *(f"operand_{number}" for number in range(len(found.inputs)))][: len(found.inputs)]
    call = functions.call(found.nodes, found.inputs, names, found.outputs, _OUTPUTS)
    call.name = namer.fresh(f"{write.name}_{NAME}")
    model.graph.insert_after(found.nodes[-1], call)
    for old, new in zip(found.outputs, call.outputs, strict=True):
        old.name = namer.fresh(f"{old.name}_replaced")
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        move_annotations(old, new)
        new.metadata_props.update(old.metadata_props)
    read = [value for node in found.nodes for value in node.inputs]
    because = f"{len(found.nodes)} nodes become one call of {call.op_type}"
    for _ in drop_chains(found.outputs, because):
        pass
    drop_unread(read)
    yield Change("replace", call.name, because)


#: Constants of so many bytes at most stand in the function; larger ones stay initializers and are inputs of the call.
INSIDE_BYTES = 1024
#: Operators that may stand between the writes and the result.
_INSIDE = frozenset(
    {
        "Add", "And", "Attention", "Cast", "Clip", "Concat", "Div", "IsNaN", "Max", "Min", "Mul", "Neg", "Softmax", "Sub", "Tanh",
        "Where",
    }
) | DATA_MOVEMENT | PRODUCTS | SCATTERS  # fmt: skip
#: Operators by which positions become the slots that a write takes.
_INDEX = frozenset({"Add", "Cast", "Concat"}) | DATA_MOVEMENT
#: Which input of a write is what: (cache, slots, new rows).
_OPERANDS = {"ScatterElements": (0, 1, 2), "ScatterND": (0, 1, 2), "TensorScatter": (0, 2, 1)}


@dataclass(frozen=True)
class CachedAttention:
    """The nodes of one attention, in order.

    Args:
        nodes: from the writes to the result; those that make slots of positions stand in front, and others may read them too.
        inputs: query, new keys, new values, key cache, value cache, positions, then the mask and whatever else is read.
        outputs: result, key cache and value cache with the new rows.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ir.Value, ir.Value]


def cached_attention(key: CachePair, value: CachePair, reach: Reach, graph: ir.Graph) -> CachedAttention | str:
    """The attention of a layer, or in words why it is not one that stands alone."""
    writes = (key.update, value.update)
    if not all(is_standard(node, *SCATTERS) for node in writes):
        return "its cache grows or is inside of it; run scatter-kv-cache first"
    if writes[0] is writes[1]:
        return "keys and values are one tensor"
    ends = [_products(node.outputs[0]) for node in writes]
    scores, result = next(iter(ends[0]), None), next(iter(ends[1]), None)
    if scores is None or result is None or len(ends[0]) != 1 or len(ends[1]) != 1:
        return "its keys or values feed several products"
    inside = reach.between(writes, [result]) | {*writes, scores, result}
    query = _query(scores, inside)
    reason = _why_not(scores, result, inside, writes)
    if query is None or reason:
        return reason or "its query is not told from its keys"
    slots = _index_nodes(writes)
    if isinstance(slots, str):
        return slots
    index, positions = slots
    scaled = _scaling(query, scores)
    if scaled is not None:
        inside.add(scaled[0])
        query = scaled[1]
    nodes = [node for node in in_order(graph) if node in inside or node in index]
    operands = [[node.inputs[i] for i in _OPERANDS[node.op_type]] for node in writes]
    first = [query, operands[0][2], operands[1][2], operands[0][0], operands[1][0], positions]
    made = {output for node in nodes for output in node.outputs}
    others = [v for node in nodes for v in values_read(node) if v not in made and v not in first and not _is_small(v)]
    inputs = tuple(v for v in (*first, *dict.fromkeys(others)) if v is not None)
    return CachedAttention(tuple(nodes), inputs, (result.outputs[0], writes[0].outputs[0], writes[1].outputs[0]))


def _is_small(value: ir.Value) -> bool:
    """Whether ``value`` is a constant that may stand inside of a function."""
    array = constant_array(value)
    return array is not None and array.nbytes <= INSIDE_BYTES


def _products(value: ir.Value) -> list[ir.Node]:
    """The products and attentions that ``value`` reaches first."""
    found, seen, stack = dict[ir.Node, None](), {value}, [value]
    while stack:
        for node in stack.pop().consumers():
            if is_product(node) or is_attention(node):
                found[node] = None
            else:
                new = [output for output in node.outputs if output not in seen]
                seen.update(new)
                stack += new
    return list(found)


def _query(scores: ir.Node, inside: Iterable[ir.Node]) -> ir.Value | None:
    """What the keys are multiplied by."""
    if is_attention(scores):
        return scores.inputs[0]
    made = {output for node in inside for output in node.outputs}
    others = [v for v in scores.inputs[:2] if v is not None and v not in made]
    return others[0] if len(others) == 1 else None


def _why_not(scores: ir.Node, result: ir.Node, inside: set[ir.Node], writes: tuple[ir.Node, ir.Node]) -> str:
    strange = sorted(n.op_type for n in inside if not is_standard(n, *_INSIDE))
    products = [n for n in inside if is_product(n) or is_attention(n)]
    softmaxes = [n for n in inside if is_standard(n, "Softmax")]
    if strange:
        return f"{strange[0]} stands between the cache and the result"
    if set(products) != {scores, result} or len(softmaxes) != (0 if scores is result else 1):
        return "is no product, softmax and product"
    for node in inside - {result, *writes}:
        if any(
            output.is_graph_output() or any(user not in inside for user in output.consumers())
            for output in node.outputs
        ):
            return f"{label(node)} is read outside of it"
    return ""


def _index_nodes(writes: tuple[ir.Node, ir.Node]) -> tuple[set[ir.Node], ir.Value] | str:
    """The nodes that make the slots of both writes, and the one input they start from."""
    nodes, starts = set[ir.Node](), set[ir.Value]()
    stack = [node.inputs[_OPERANDS[node.op_type][1]] for node in writes]
    while stack:
        value = stack.pop()
        producer = value.producer() if value is not None else None
        if value is None or is_constant(value):
            continue
        if producer is None or not is_standard(producer, *_INDEX):
            starts.add(value)
        elif producer not in nodes:
            nodes.add(producer)
            stack += producer.inputs
    return (
        (nodes, starts.pop())
        if len(starts) == 1
        else f"its slots come from {len(starts)} values, not from positions alone"
    )


def _scaling(query: ir.Value, scores: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """The product with a constant that ``scores`` alone reads as its query; and what it multiplies."""
    node = query.producer()
    if node is None or not is_standard(node, "Mul", "Div") or only_reader(query) is not scores or is_attention(scores):
        return None
    constants = [v for v in node.inputs if is_constant(v)]
    others = [v for v in node.inputs if v is not None and v not in constants]
    is_scaling = len(constants) == 1 and len(others) == 1 and (node.op_type == "Mul" or node.inputs[0] is others[0])
    return (node, others[0]) if is_scaling else None
