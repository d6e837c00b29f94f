"""What a graph needs of the memory that an NPU addresses: weights, KV cache, activations.

    weights      of the operators on the NPU, as stored after quantization, each once
    KV cache     pasts and presents that cross the edges of partitions; what is written in place is there once, new rows that come
                 out beside a past count. Where the CPU quantizes them on the way, what the NPU has are copies, and each counts
    activations  the most that is alive at once in a partition: what it reads from outside, from its beginning to the last reader;
                 what a unit writes, from there to its last reader, to the end where others read it

Nothing is known of a compiler's own buffers: the plan is a lower bound. What the CPU runs lies in its own memory."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.cut_points import chosen_cuts
from qdq_passes.decoder.look.io import DecoderIo, decoder_io
from qdq_passes.errors import QdqError, UsageError
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.uses import in_order, readers
from qdq_passes.npu.partitions.partition_graph import Partition, bytes_of, stored_weights
from qdq_passes.npu.partitions.partitions import partition_for
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.npu.work import Work, work_of
from qdqtool.targets.target import Target


@dataclass(frozen=True, kw_only=True)
class GraphMemory:
    """One graph.

    Args:
        graph: its name.
        weights: identity of a stored tensor → bytes; the same in graphs that share it.
        kv: name of the past of a tensor of the cache → bytes.
        activations: bytes at most at once.
        parts: how many parts the graph must be cut into; 1 where it fits; None where no number of parts helps.
    """

    graph: str
    weights: Mapping[str, int]
    kv: Mapping[str, int]
    activations: int
    parts: int | None = 1

    @property
    def weight_bytes(self) -> int:
        """Of all weights."""
        return sum(self.weights.values())

    @property
    def kv_bytes(self) -> int:
        """Of the cache."""
        return sum(self.kv.values())

    @property
    def bytes(self) -> int:
        """Of all."""
        return self.weight_bytes + self.kv_bytes + self.activations

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "graph": self.graph, "weight_bytes": self.weight_bytes, "kv_bytes": self.kv_bytes,
            "activation_bytes": self.activations, "bytes": self.bytes, "parts": self.parts,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Graphs that lie in the memory of one NPU together.

    Args:
        target: name of the target.
        addressable_bytes: what one compiled graph may hold.
        source, confidence: of that number.
        graphs: each graph.
        notes: what is to be said of it.
    """

    target: str
    addressable_bytes: int
    source: str
    confidence: str
    graphs: tuple[GraphMemory, ...]
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def weight_bytes(self) -> int:
        """Of the weights of all graphs; what several read counts once."""
        return sum({key: size for graph in self.graphs for key, size in graph.weights.items()}.values())

    @property
    def unshared_weight_bytes(self) -> int:
        """Likewise, had each graph its own."""
        return sum(graph.weight_bytes for graph in self.graphs)

    @property
    def bytes(self) -> int:
        """Of all graphs together: one cache at a time, the largest, in all its parts; activations of the graph that runs, the
        most."""
        kv: dict[str, int] = {}
        for graph in self.graphs:
            kv |= {name: max(size, kv.get(name, 0)) for name, size in graph.kv.items()}
        return self.weight_bytes + sum(kv.values()) + max((graph.activations for graph in self.graphs), default=0)

    @property
    def fits(self) -> bool:
        """Whether every graph fits as it is."""
        return all(graph.parts == 1 for graph in self.graphs)

    @property
    def parts(self) -> int | None:
        """In how many parts the model must be split; None where that does not help."""
        each = [graph.parts for graph in self.graphs]
        known = [count for count in each if count is not None]
        return max(known, default=1) if len(known) == len(each) else None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "target": self.target, "addressable_bytes": self.addressable_bytes, "source": self.source,
            "confidence": self.confidence, "graphs": [graph.to_json() for graph in self.graphs],
            "weight_bytes": self.weight_bytes, "unshared_weight_bytes": self.unshared_weight_bytes, "bytes": self.bytes,
            "fits": self.fits, "parts": self.parts, "notes": list(self.notes),
        }  # fmt: skip


def graph_memory(model: ir.Model, target: Target, *, name: str, cache: Mapping[str, str] | None = None) -> GraphMemory:
    """What the NPU of ``target`` needs for ``model``, which is not changed.

    Args:
        model: with static shapes; a dimension that is not known counts as 1.
        target: the target.
        name: of the graph.
        cache: of each input and output that is a tensor of a KV cache, its name and that of the past; None looks for them, as
            far as the model is a decoder.
    """
    work = copy_model(model)
    run_pipeline(work, "infer-shapes,lift-constants")
    io = _decoder(work)
    if cache is None:
        pairs = io.pairs if io is not None else ()
        cache = {value.name or "": pair.past.name or "" for pair in pairs for value in (pair.past, pair.present)}
    parts = partition_for(work, target, simulated=False).partitions
    stored = stored_weights(unit for part in parts for unit in part.units)
    held = dict.fromkeys(v for part in parts for v in (*part.inputs, *part.outputs) if _past_of(v, cache))
    found = GraphMemory(
        graph=name,
        weights={_identity(value): size for value, size in stored.items()},
        kv=_cache_bytes(held, cache),
        activations=max((_peak(part, held) for part in parts), default=0),
    )
    limit = int(target.memory.addressable_bytes.value)
    if found.bytes <= limit:
        return found
    sizes = {value.name or "": size for value, size in stored.items()} | dict(found.kv)
    return dataclasses.replace(found, parts=_parts(in_order(work.graph), io, found, sizes, limit))


def _decoder(model: ir.Model) -> DecoderIo | None:
    try:
        return decoder_io(model)
    except QdqError:
        return None


def _parts(
    nodes: Sequence[ir.Node], io: DecoderIo | None, found: GraphMemory, sizes: Mapping[str, int], limit: int
) -> int | None:
    """How many parts `split` would make so that what the NPU holds of each, ``sizes`` by name, fits; where the model is no
    decoder, how many its bytes need at least."""
    room = limit - found.activations
    if room <= 0:
        return None
    if io is None:
        return max(1, math.ceil((found.weight_bytes + found.kv_bytes) / room))
    try:
        return len(chosen_cuts(nodes, io, max_bytes=room, sizes=sizes)) + 1
    except UsageError:
        return None


def _cache_bytes(held: Iterable[ir.Value], cache: Mapping[str, str]) -> dict[str, int]:
    """Bytes of the tensors of the cache that lie at the edges of partitions, by the name of the past."""
    groups: dict[str, list[ir.Value]] = {}
    for value in held:
        groups.setdefault(_past_of(value, cache), []).append(value)
    found = {}
    for past, values in groups.items():
        own = [value for value in values if value.is_graph_input()]
        beside = [value for value in values if not own or (value not in own and value.shape != own[0].shape)]
        found[past] = sum(bytes_of(value) for value in (*own, *beside))
    return found


def _past_of(value: ir.Value, cache: Mapping[str, str]) -> str:
    """The past of the tensor of the cache that a value at the edge of a partition is, or is in integers, behind or before its
    pair; empty where it is none."""
    before = value.producer()
    sources = [before.inputs[0]] if before is not None and is_quantize(before) else []
    ends = [node.outputs[0] for node, index in readers(value) if index == 0 and is_dequantize(node)]
    return next(
        (past for end in (value, *sources, *ends) if end is not None and (past := cache.get(end.name or ""))), ""
    )


def plan_of(target: Target, graphs: Iterable[GraphMemory]) -> MemoryPlan:
    """``graphs`` together in the memory of ``target``."""
    limit = target.memory.addressable_bytes
    found = tuple(graphs)
    notes = []
    for graph in found:
        if graph.parts is None:
            notes.append(
                f"{graph.graph}: no number of parts makes it fit: take a shorter context, or weights of fewer bits"
            )
        elif graph.parts > 1:
            notes.append(f"{graph.graph} needs {graph.bytes:,} bytes: `qdqtool split --parts {graph.parts}`")
    return MemoryPlan(
        target=target.name, addressable_bytes=int(limit.value), source=limit.source, confidence=limit.confidence,
        graphs=found, notes=tuple(notes),
    )  # fmt: skip


def _peak(part: Partition, elsewhere: Collection[ir.Value]) -> int:
    """Bytes of activations that are alive at once in ``part``, at most."""
    steps = [done for unit in part.units if isinstance(done := work_of(unit), Work)]
    size: dict[ir.Value, int] = {}
    first: dict[ir.Value, int] = {}
    last: dict[ir.Value, int] = {}
    for step, done in enumerate(steps):
        for value, count in (*done.reads.items(), *done.writes.items()):
            if value not in elsewhere:
                size[value] = count
                first.setdefault(value, step)
                last[value] = step
    for value in part.inputs:
        if value in first:
            first[value] = 0
    for value in part.outputs:
        if value in last:
            last[value] = len(steps) - 1
    return _most([(first[value], size[value]) for value in size], [(last[value] + 1, -size[value]) for value in size])


def _most(begins: Sequence[tuple[int, int]], ends: Sequence[tuple[int, int]]) -> int:
    alive = most = 0
    for _, change in sorted([*begins, *ends]):  # of one step, what ends comes first: its change is negative
        alive += change
        most = max(most, alive)
    return most


def _identity(value: ir.Value) -> str:
    """What tells that two graphs store one tensor: its place in a file, else what it holds."""
    tensor = value.const_value
    if isinstance(tensor, ir.ExternalTensor):
        return f"{tensor.location}:{tensor.offset}:{tensor.length}"
    if tensor is None:
        return value.name or ""
    return hashlib.sha256(f"{tensor.dtype}{tensor.shape}".encode() + tensor.tobytes()).hexdigest()
