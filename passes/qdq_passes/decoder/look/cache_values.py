"""The values that hold rows of a KV cache: what comes in, the new rows, what goes out, and what joins them."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from qdq_passes.decoder.look.cache import CachePair, cache_pairs
from qdq_passes.graph.operators.kinds import kind_of
from qdq_passes.graph.uses import is_standard

#: Operators that write new rows (at this index) into a cache.
NEW_ROWS = {"ScatterElements": 2, "ScatterND": 2, "TensorScatter": 1}


@dataclass(frozen=True, kw_only=True)
class CacheValues:
    """One tensor of the cache.

    Args:
        pair: what goes in and comes out.
        values: all that holds its rows, the past first.
    """

    pair: CachePair
    values: tuple[ir.Value, ...]


def cache_values(model: ir.Model) -> list[CacheValues | tuple[ir.Node, str]]:
    """The tensors of the cache, by layer, key before value; (node, reason) for one that an operator keeps itself."""
    found: list[CacheValues | tuple[ir.Node, str]] = []
    for pair, _ in cache_pairs(model):
        update = pair.update
        if not is_standard(update, "Concat", *NEW_ROWS):
            found.append((update, f"{kind_of(update)} keeps the cache itself: it stays float"))
            continue
        values = [pair.past, *_new_rows(update, pair), pair.present]
        if pair.layers == 1:
            values.append(update.outputs[0])
        found.append(CacheValues(pair=pair, values=tuple(dict.fromkeys(values))))
    return found


def _new_rows(update: ir.Node, pair: CachePair) -> list[ir.Value]:
    """The new rows of a tensor of one layer; of a state of several the present alone counts, which holds those of all."""
    if pair.layers != 1:
        return []
    if is_standard(update, "Concat"):
        return [value for value in update.inputs[1:] if value is not None]
    value = update.inputs[NEW_ROWS[update.op_type]]
    return [value] if value is not None else []
