"""Tensors of a KV cache: the widths that a device wants of them, and the values that hold their rows."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.cache import CachePair, cache_pairs
from qdq_passes.graph.operators.kinds import kind_of
from qdq_passes.graph.uses import in_order, is_standard


@dataclass(frozen=True, kw_only=True)
class CacheWidths:
    """What a device wants of a tensor of the cache.

    Args:
        last_axis_bytes: the last axis is a multiple of so many bytes; 0 for any. Rows that are not are padded in memory.
        powers_of_two: every size but the first is a power of two.
        itemsize: bytes of a number as the device keeps it; 0 for those of the file.
    """

    last_axis_bytes: int = 0
    powers_of_two: bool = False
    itemsize: int = 0

    def complaints(self, sizes: Sequence[int], itemsize: int) -> list[str]:
        """What is wrong with a tensor of ``sizes`` and ``itemsize`` bytes a number, in words; empty when nothing is."""
        found = []
        width = sizes[-1] * (self.itemsize or itemsize)
        if self.last_axis_bytes and width % self.last_axis_bytes:
            padded = -(-width // self.last_axis_bytes) * self.last_axis_bytes
            found.append(
                f"its last axis of {sizes[-1]} is {width} bytes, padded to {padded}: {padded / width:.3g} times the memory"
            )
        odd = [size for size in sizes[1:] if size < 1 or size & (size - 1)]
        if self.powers_of_two and odd:
            found.append(f"sizes {', '.join(map(str, odd))} of {list(sizes)} are no powers of two")
        return found


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
    for pair, _ in cache_pairs(model.graph.inputs, in_order(model.graph)):
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
