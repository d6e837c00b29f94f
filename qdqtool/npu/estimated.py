"""What an estimate says, as values and as JSON: figures of nodes and partitions, and the numbers they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.targets.cost import Confidence

#: What a node may be limited by, and in words.
RESOURCES = {"matrix": "matrix unit", "vector": "vector unit", "dram": "DRAM"}


@dataclass(frozen=True, kw_only=True)
class NodeEstimate:
    """One unit.

    Args:
        name: of its operator.
        op: its operator.
        device: the engine, or ``"CPU"``.
        partition: id of its partition; None on the CPU.
        macs: multiply-accumulates.
        element_ops: element operations beside them.
        weight_bytes: of constants as stored.
        dram_bytes: between the addressable memory and the memory beside the engines.
        tiles: of the matrix unit; 0 where it multiplies nothing.
        utilisation: share of the tiles' multiply-accumulates that are needed, 0..1; None without tiles.
        cycles: by resource; empty without an estimate.
        us: microseconds; None without an estimate.
        bound_by: the slowest resource; empty without an estimate.
        note: why there is no estimate, or what is unusual.
    """

    name: str
    op: str
    device: str
    partition: int | None
    macs: int = 0
    element_ops: int = 0
    weight_bytes: int = 0
    dram_bytes: int = 0
    tiles: int = 0
    utilisation: float | None = None
    cycles: Mapping[str, float] = field(default_factory=dict)
    us: float | None = None
    bound_by: str = ""
    note: str = ""

    @property
    def resource_us(self) -> dict[str, float]:
        """Microseconds that each resource is busy."""
        slowest = max(self.cycles.values(), default=0.0)
        return {
            key: cycles / slowest * self.us if slowest and self.us is not None else 0.0
            for key, cycles in self.cycles.items()
        }

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: the fields by their names."""
        return {
            "name": self.name, "op": self.op, "device": self.device, "partition": self.partition, "macs": self.macs,
            "element_ops": self.element_ops, "weight_bytes": self.weight_bytes, "dram_bytes": self.dram_bytes,
            "tiles": self.tiles, "utilisation": self.utilisation, "cycles": dict(self.cycles), "us": self.us,
            "bound_by": self.bound_by, "note": self.note,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PartitionEstimate:
    """What a partition costs beside its nodes, in microseconds.

    Args:
        id: of the partition.
        dispatch_us: to start it.
        in_bytes: what is copied to it.
        out_bytes: what is copied back.
        in_us: for ``in_bytes``.
        out_us: for ``out_bytes``.
        nodes_us: its nodes; None when one of them has no estimate.
    """

    id: int
    dispatch_us: float
    in_bytes: int
    out_bytes: int
    in_us: float
    out_us: float
    nodes_us: float | None

    @property
    def us(self) -> float | None:
        """All of it."""
        return None if self.nodes_us is None else self.dispatch_us + self.in_us + self.nodes_us + self.out_us

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: the fields by their names, and ``us``."""
        return {
            "id": self.id, "dispatch_us": self.dispatch_us, "in_bytes": self.in_bytes, "out_bytes": self.out_bytes,
            "in_us": self.in_us, "out_us": self.out_us, "nodes_us": self.nodes_us, "us": self.us,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """A number of the target that the estimate is made of.

    Args:
        key: its name in the target file.
        value: the number.
        source: where it comes from.
        confidence: how sure it is.
    """

    key: str
    value: Any
    source: str
    confidence: Confidence

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: the fields by their names."""
        return {"key": self.key, "value": self.value, "source": self.source, "confidence": self.confidence}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimate of one inference.

    Args:
        target: name of the target.
        nodes: every unit, in the order of the graph.
        partitions: in the order of their ids.
        assumptions: the numbers it is made of.
        notes: what it leaves out, and what does not fit the target.
    """

    target: str
    nodes: tuple[NodeEstimate, ...]
    partitions: tuple[PartitionEstimate, ...]
    assumptions: tuple[Assumption, ...]
    notes: tuple[str, ...]

    @property
    def us(self) -> float | None:
        """Microseconds on the NPU, its partitions one after the other; 0 without partitions, as what the CPU needs is not in it;
        None when a partition has no estimate (its shapes are not static)."""
        parts = [part.us for part in self.partitions]
        known = [us for us in parts if us is not None]
        return sum(known, 0.0) if len(known) == len(parts) else None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready. ``estimate`` says that it is one."""
        return {
            "estimate": "not a measurement: computed from the target's numbers",
            "target": self.target,
            "us": self.us,
            "nodes": [node.to_json() for node in self.nodes],
            "partitions": [part.to_json() for part in self.partitions],
            "assumptions": [a.to_json() for a in self.assumptions],
            "notes": list(self.notes),
        }
