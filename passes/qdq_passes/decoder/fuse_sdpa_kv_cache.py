"""fuse-sdpa-kv-cache"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.attention.edit.function import Functions
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.decoder.look.sdpa import CachedAttention, cached_attention
from qdq_passes.graph.build import drop_chains
from qdq_passes.graph.edit import Namer, drop_unread, move_annotations
from qdq_passes.graph.reach import reach

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
