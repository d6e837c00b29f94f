"""An estimate of the time on the target, node by node, from the numbers of its file. Nothing is measured.

    matrix cycles  tiles · rows·depth·columns of a tile / MACs a cycle; plus a penalty for each group of a grouped convolution,
                   where a weight has a scale per block as many times those of 8 bits, where that is more
    vector cycles  element operations · bits/8 / elements a cycle
    DRAM cycles    (weights + activations that leave the memory beside the engines) / bytes a cycle
    node           the slowest of the three: they overlap
    partition      dispatch + bytes in and out / boundary speed + its nodes, one after the other

A grouped convolution, above all a depthwise one, runs on the matrix unit, where each group fills tiles of its own, or on the
vector unit, one multiply-accumulate an element operation: whichever is quicker. An activation stays beside the engines when what
its writer and each of its readers read and write fits there at once. Weights are read once; where neither the weights nor the
inputs of a node fit, the cheaper side is read again for each piece of the other. Floats are as wide as the target computes them.
A KV cache stays on the device, and heads repeated for grouped queries are read once (`qdqtool.npu.resident`). Nodes on the CPU
are listed without an estimate: where nothing runs on the NPU the estimate is 0, and a note says so."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir
from qdq_passes.npu.partitions.partition_graph import Partition, bytes_of
from qdq_passes.npu.partitions.partitions import Partitioning
from qdq_passes.npu.units.units import Unit
from qdq_passes.npu.units.verdict import Verdict

from qdqtool.npu.estimated import Assumption, Estimate, NodeEstimate, PartitionEstimate
from qdqtool.npu.resident import cache_note, cache_on_device, without_copies
from qdqtool.npu.work import Work, work_of
from qdqtool.targets.cost import Cost, Figure, Memory
from qdqtool.targets.target import Target

#: Bits of an element that is computed in floating point.
FLOAT_BITS = {"float16": 16, "bfloat16": 16, "float32": 32}
#: Names in a note.
SHOWN = 3
#: What is said of what repeats the heads of a cache.
REPEATS = "repeats heads for a product that reads each once: no time of its own"


def estimate(target: Target, found: Partitioning) -> Estimate:
    """The estimate of one inference of a model with static shapes.

    Args:
        target: whose ``cost`` and ``memory`` it is made of.
        found: who runs what.
    """
    cost, memory = target.cost, target.memory
    part_of = {unit: part for part in found.partitions for unit in part.units}
    kept = cache_on_device(found.units)
    bits = FLOAT_BITS[target.arithmetic.float_precision]
    work, repeats = without_copies({unit: work_of(unit, bits) for unit in found.units}, found.partitions, kept)
    beside = _beside(found.partitions, work, int(memory.tile_bytes.value))
    nodes = []
    for unit, verdict in zip(found.units, found.verdicts, strict=True):
        part, done = part_of.get(unit), work[unit]
        if part is None or isinstance(done, str):
            nodes.append(_without(unit, part, verdict, done))
        else:
            node = _node(unit, part, verdict, done, target, beside)
            nodes.append(replace(node, note=REPEATS) if unit in repeats else node)
    partitions = [
        _partition(part, [n for n in nodes if n.partition == part.id], cost, kept) for part in found.partitions
    ]
    counted = _notes(nodes, found.partitions, work, memory, sum(v.kind == "npu-float" for v in found.verdicts))
    return Estimate(
        target=target.name,
        nodes=tuple(nodes),
        partitions=tuple(partitions),
        assumptions=assumptions(target),
        notes=(*counted, *cache_note(found.partitions, kept)),
    )


def _without(unit: Unit, part: Partition | None, verdict: Verdict, done: Work | str) -> NodeEstimate:
    macs = 0 if isinstance(done, str) else done.macs
    note = "on the CPU: no estimate" if part is None else str(done)
    device = "CPU" if part is None else verdict.engine
    partition = None if part is None else part.id
    return NodeEstimate(
        name=unit.core.name or "", op=unit.core.op_type, device=device, partition=partition, macs=macs, note=note
    )


def _node(
    unit: Unit, part: Partition, verdict: Verdict, work: Work, target: Target, beside: set[ir.Value]
) -> NodeEstimate:
    cost, memory, precision = target.cost, target.memory, target.arithmetic.float_precision
    is_float = verdict.kind == "npu-float"
    bits = FLOAT_BITS[precision] if is_float else max(work.bits, 8)
    wide = cost.vector_elements_per_cycle.value * 8 / bits
    matrix, vector, tiles, notes = 0.0, work.element_ops / wide, 0, []
    if work.products is not None:
        tile = memory.tile.value
        tiles = work.products.tiles(tile)
        matrix = tiles * math.prod(tile) / _macs_per_cycle(cost, bits, is_float=is_float)
        if work.is_blocked:
            in_bytes = tiles * math.prod(tile) / _macs_per_cycle(cost, 8, is_float=False)
            matrix = max(matrix, in_bytes * cost.blocked_penalty.value)
            notes.append(f"a scale per block: {cost.blocked_penalty.value:g} times the time of 8 bits, or more")
        if work.is_grouped:
            matrix += work.products.count * cost.per_group_penalty.value
            notes.append(f"{work.products.count} groups, {cost.per_group_penalty.value:g} cycles each")
        if work.is_grouped and vector + work.macs / wide < matrix:
            matrix, vector, tiles = 0.0, vector + work.macs / wide, 0
            notes = [f"{work.products.count} groups, on the vector unit"]
    moved = _dram_bytes(work, beside, int(memory.tile_bytes.value))
    cycles = {"matrix": matrix, "vector": vector, "dram": moved / cost.dram_bytes_per_cycle.value}
    slowest = max(cycles, key=lambda key: cycles[key])
    return NodeEstimate(
        name=unit.core.name or "",
        op=unit.core.op_type,
        device=verdict.engine,
        partition=part.id,
        macs=work.macs,
        element_ops=work.element_ops,
        weight_bytes=work.weight_bytes,
        dram_bytes=moved,
        tiles=tiles,
        utilisation=work.macs / (tiles * math.prod(memory.tile.value)) if tiles else None,
        cycles=cycles,
        us=cycles[slowest] / cost.clock_mhz.value,
        bound_by=slowest if cycles[slowest] else "",
        note="; ".join([*([f"in floating point ({precision})"] if is_float else []), *notes]),
    )


def _macs_per_cycle(cost: Cost, bits: int, *, is_float: bool) -> float:
    """Of the narrowest type that holds ``bits``; a target that does not say takes twice the bits at a quarter of the speed."""
    known = cost.macs_per_cycle
    if is_float and "float" in known:
        return known["float"].value
    key = "8" if bits <= 8 else "16"
    return known[key].value if key in known else known["8"].value / 4


def _beside(partitions: Sequence[Partition], work: Mapping[Unit, Work | str], room: int) -> set[ir.Value]:
    """The values that never leave the memory beside the engines: written and read by units of one partition, each of which has
    room for all that it reads and writes."""
    found: set[ir.Value] = set()
    for part in partitions:
        known = [done for unit in part.units if isinstance(done := work[unit], Work)]
        crossing = {*part.inputs, *part.outputs}
        written = {value for done in known for value in done.writes}
        large = {
            value
            for done in known
            if sum(done.reads.values()) + sum(done.writes.values()) > room
            for value in (*done.reads, *done.writes)
        }
        found |= written - crossing - large
    return found


def _dram_bytes(work: Work, beside: set[ir.Value], room: int) -> int:
    read = sum(size for value, size in work.reads.items() if value not in beside)
    written = sum(size for value, size in work.writes.items() if value not in beside)
    pieces_of_weights, pieces_of_inputs = -(-work.weight_bytes // room), -(-read // room)
    again = 0
    if pieces_of_weights > 1 and pieces_of_inputs > 1:
        again = min((pieces_of_weights - 1) * read, (pieces_of_inputs - 1) * work.weight_bytes)
    return work.weight_bytes + read + written + again


def _partition(
    part: Partition, nodes: Sequence[NodeEstimate], cost: Cost, kept: Collection[ir.Value]
) -> PartitionEstimate:
    known = [node.us for node in nodes if node.us is not None]
    came, went = (sum(bytes_of(value) for value in ends if value not in kept) for ends in (part.inputs, part.outputs))
    speed = cost.boundary_bytes_per_us.value
    return PartitionEstimate(
        id=part.id,
        dispatch_us=cost.dispatch_us.value,
        in_bytes=came,
        out_bytes=went,
        in_us=came / speed,
        out_us=went / speed,
        nodes_us=sum(known) if len(known) == len(nodes) else None,
    )


def assumptions(target: Target, *, with_cpu: bool = False) -> tuple[Assumption, ...]:
    """The numbers that an estimate for ``target`` is made of; those of the CPU beside it ``with_cpu``."""
    cost, memory = target.cost, target.memory
    figures: dict[str, Figure[Any]] = {
        "memory.tile": memory.tile,
        "memory.tile_bytes": memory.tile_bytes,
        "memory.addressable_bytes": memory.addressable_bytes,
        "cost.clock_mhz": cost.clock_mhz,
        **{f"cost.macs_per_cycle.{key}": figure for key, figure in sorted(cost.macs_per_cycle.items())},
        "cost.vector_elements_per_cycle": cost.vector_elements_per_cycle,
        "cost.dram_bytes_per_cycle": cost.dram_bytes_per_cycle,
        "cost.dispatch_us": cost.dispatch_us,
        "cost.boundary_bytes_per_us": cost.boundary_bytes_per_us,
        "cost.per_group_penalty": cost.per_group_penalty,
        "cost.blocked_penalty": cost.blocked_penalty,
    }
    if with_cpu:
        figures |= {"cost.cpu.macs_per_us": cost.cpu_macs_per_us, "cost.cpu.elements_per_us": cost.cpu_elements_per_us}
    return tuple(
        Assumption(
            key=key,
            value=list(figure.value) if isinstance(figure.value, tuple) else figure.value,
            source=figure.source,
            confidence=figure.confidence,
        )
        for key, figure in figures.items()
    )


def _notes(
    nodes: Sequence[NodeEstimate],
    partitions: Sequence[Partition],
    work: Mapping[Unit, Work | str],
    memory: Memory,
    floating: int,
) -> list[str]:
    notes = []
    if not partitions:
        notes.append("nothing runs on the NPU: 0 µs there")
    if any(node.partition is None for node in nodes):
        notes.append(f"not in the estimate: what runs on the CPU, {_first(nodes)}")
    if floating:
        notes.append(
            f"{floating} node{'s are' if floating > 1 else ' is'} computed in floating point, at the speed of that"
        )
    limit = int(memory.addressable_bytes.value)
    for part in partitions:
        known = [done for unit in part.units if isinstance(done := work[unit], Work)]
        weights = sum(done.weight_bytes for done in known)
        largest = max((sum(done.reads.values()) + sum(done.writes.values()) for done in known), default=0)
        if weights + largest > limit:
            notes.append(
                f"partition {part.id} needs {weights + largest} bytes at once, the target addresses {limit}: cut it"
            )
    return notes


def _first(nodes: Sequence[NodeEstimate]) -> str:
    names = [node.name for node in nodes if node.partition is None]
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
