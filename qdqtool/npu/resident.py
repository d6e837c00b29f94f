"""What a decoder does not move: its KV cache, which stays on the device, and heads that are repeated on the way into a product.

    cache       past → update → present   no boundary traffic; the update writes the new rows alone
    repeats     keys → Unsqueeze → Expand → Reshape → Transpose → MatMul   the product reads ``keys`` once, all before it is free

A cache is kept where it is updated in place: in the static graphs of `split` unless the host slides it, and, as is assumed, in
other decoders with a past for each present. Repeated heads are those of grouped queries, of which a kernel reads each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir
from qdq_passes.decoder.look.cache import cache_pairs
from qdq_passes.decoder.look.record import DECODER
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.uses import in_order, is_standard
from qdq_passes.npu.partitions.partition_graph import Partition, bytes_of
from qdq_passes.npu.units.units import Unit

from qdqtool.npu.work import Work

#: What the repeated heads pass through, and what stands before their repetition.
_MOVES = ("Expand", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze")
_BEFORE = ("Identity", "Reshape", "Unsqueeze")
#: Bytes of one number.
NUMBER = 8


def cache_on_device(units: Sequence[Unit]) -> frozenset[ir.Value]:
    """Past and present values of a KV cache that the graph of ``units`` updates in place; empty for what is no decoder."""
    graph = units[0].core.graph if units else None
    if not isinstance(graph, ir.Graph):
        return frozenset()
    record = DECODER.get(graph)
    if record is not None:
        names = {name for each in record.cache for name in (each.past, each.present)}
        ends = [value for value in (*graph.inputs, *graph.outputs) if value.name in names]
        return frozenset(ends if record.layout == "in-place" else ())
    try:
        pairs = [pair for pair, _ in cache_pairs(graph.inputs, in_order(graph))]
    except UnsupportedError:
        return frozenset()
    return frozenset(value for pair in pairs for value in (pair.past, pair.present))


def cache_note(partitions: Sequence[Partition], kept: frozenset[ir.Value]) -> list[str]:
    """What is assumed of the cache, in words; empty where none of it would cross an edge."""
    size = sum(bytes_of(value) for part in partitions for value in (*part.inputs, *part.outputs) if value in kept)
    return (
        [f"assumed: the KV cache stays on the device, {size} bytes of it are not copied at each call"] if size else []
    )


def without_copies(
    work: Mapping[Unit, Work | str], partitions: Sequence[Partition], kept: frozenset[ir.Value]
) -> tuple[dict[Unit, Work | str], set[Unit]]:
    """``work`` where a cache of ``kept`` is written in place and repeated heads are read once; and the units that repeat them."""
    found = {unit: _in_place(unit, done, kept) for unit, done in work.items()}
    repeats: set[Unit] = set()
    for part in partitions:
        for unit in part.units:
            done = found[unit]
            if unit in repeats or isinstance(done, str) or not is_standard(unit.core, "Expand", "Tile"):
                continue
            chain = _chain(unit, {u: w for u in part.units if isinstance(w := found[u], Work)}, part)
            repeats.update(chain)
            found.update(chain)
    return found, {unit for unit in repeats if isinstance(done := found[unit], Work) and not done.writes}


def _in_place(unit: Unit, done: Work | str, kept: frozenset[ir.Value]) -> Work | str:
    """What an update of the cache does: it writes what it reads beside the past, whose integers may count as no data."""
    is_update = unit.core.op_type == "Concat" or unit.core.op_type.startswith("Scatter")
    if isinstance(done, str) or not is_update or kept.isdisjoint(done.writes):
        return done
    reads = {value: size for value, size in done.reads.items() if value not in kept}
    new = unit.core.inputs[-1]
    rows = sum(reads.values()) or (0 if new is None else bytes_of(new))
    whole = sum(done.writes.values())
    ops = done.element_ops * rows // whole if whole else 0
    return replace(done, reads=reads, writes=dict.fromkeys(done.writes, rows), element_ops=ops)


def _scales(unit: Unit, done: Work) -> bool:
    """Whether ``unit`` multiplies what flows in by one number, as exporters scale keys."""
    return is_standard(unit.core, "Div", "Mul") and len(done.reads) == 1 and done.weight_bytes <= NUMBER


def _chain(start: Unit, done: Mapping[Unit, Work], part: Partition) -> dict[Unit, Work]:
    """What becomes of the work of ``start``, which repeats, of what passes it on, and of the products that read it; empty unless
    it makes more of one value, for products of two activations alone."""
    readers: dict[ir.Value, list[Unit]] = {}
    for unit, work in done.items():
        for value in work.reads:
            readers.setdefault(value, []).append(unit)
    writers = {value: unit for unit, work in done.items() for value in work.writes}
    if sum(done[start].writes.values()) <= sum(done[start].reads.values()) or len(done[start].reads) != 1:
        return {}
    inside, products, waiting = {start}, set[Unit](), [start]
    while waiting:
        for value in done[waiting.pop()].writes:
            if value in part.outputs or not readers.get(value):
                return {}
            for unit in readers[value]:
                if is_standard(unit.core, *_MOVES) or _scales(unit, done[unit]):
                    waiting += [unit] if unit not in inside else []
                    inside.add(unit)
                elif done[unit].products is not None and len(done[unit].reads) > 1:
                    products.add(unit)
                else:
                    return {}
    ((source, size),) = done[start].reads.items()
    while (before := writers.get(source)) is not None and is_standard(before.core, *_BEFORE):
        if source in part.outputs or readers[source] != [start] or len(done[before].reads) != 1:
            break
        start = before
        inside.add(before)
        ((source, size),) = done[before].reads.items()
    repeated = {value for unit in inside for value in done[unit].writes}
    if any(value not in repeated | {source} for unit in inside for value in done[unit].reads):
        return {}
    found = {unit: replace(done[unit], reads={}, writes={}, element_ops=0) for unit in inside}
    for unit in products:
        reads = {value: each for value, each in done[unit].reads.items() if value not in repeated}
        found[unit] = replace(done[unit], reads={**reads, source: size})
    return found
