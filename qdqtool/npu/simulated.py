"""What a simulation found, as values and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal

import numpy as np
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.numerics.agreement import Agreement
from qdq_passes.numerics.arrays import Array

from qdqtool.io.files.progress import Warned
from qdqtool.io.files.shown import Shown
from qdqtool.npu.estimated import Estimate
from qdqtool.npu.shares import group_of
from qdqtool.record.record import NOTHING, NodeRecord, Record

#: Who tells where the nodes run: onnxruntime's assignment info, or our partitioner where onnxruntime does not.
PlacementSource = Literal["onnxruntime", "partitioner"]


@dataclass(frozen=True, kw_only=True)
class OutputFigures:
    """One output of the model, over all samples.

    Args:
        name: of the output.
        max_lsb: largest difference to the base in steps of the output's encoding; None without a base or an encoding, where
            elements differ.
        against: agreement of each of ``"npu/base"``, ``"npu/qdq"``, ``"npu/float"``, ``"qdq/float"`` that was had: the tested
            side stands first.
    """

    name: str
    max_lsb: int | None
    against: Mapping[str, Agreement]

    @property
    def exact(self) -> float | None:
        """Share of elements equal to the base, 0..1; None without one."""
        return self.against["npu/base"].exact if "npu/base" in self.against else None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: ``max_lsb, exact, max_abs`` against the base, ``sqnr_db`` and ``exact_rate`` by pair."""
        base = self.against.get("npu/base")
        rest = {key: found for key, found in self.against.items() if key != "npu/base"}
        return {
            "max_lsb": self.max_lsb,
            "exact": self.exact,
            "max_abs": None if base is None else base.max_abs,
            "sqnr_db": {key: found.sqnr_db for key, found in rest.items()},
            "exact_rate": {key: found.exact for key, found in rest.items()},
        }


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the operators run; QuantizeLinear, DequantizeLinear and constants are not counted.

    Args:
        source: who says so.
        nodes: in the order of the model where it is known; without a name where onnxruntime does not tell it. ``device`` is an
            engine of the target, a provider's name, or ``"CPU"``.
        partitions: how many pieces were handed to the NPU.
    """

    source: PlacementSource
    nodes: tuple[NodeRecord, ...]
    partitions: int

    @property
    def npu_nodes(self) -> int:
        """Operators on the NPU."""
        return sum(node.partition is not None for node in self.nodes)

    @property
    def cpu_nodes(self) -> int:
        """Operators on the CPU."""
        return len(self.nodes) - self.npu_nodes

    def reasons(self) -> list[list[NodeRecord]]:
        """The operators on the CPU by rule, those without one by their words; the most frequent first."""
        groups: dict[str, list[NodeRecord]] = {}
        for node in self.nodes:
            if node.partition is None:
                key = " ".join(group_of(node.op, node.rule)) if node.rule and node.reason else node.reason
                groups.setdefault(key, []).append(node)
        return sorted(groups.values(), key=lambda nodes: -len(nodes))

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: ``source, npu_nodes, cpu_nodes, partitions, nodes``."""
        return {
            "source": self.source,
            "npu_nodes": self.npu_nodes,
            "cpu_nodes": self.cpu_nodes,
            "partitions": self.partitions,
            "nodes": [
                {
                    "name": node.name, "op": node.op, "device": node.device, "partition": node.partition,
                    "reason": node.reason, "suggestion": node.suggestion + (" (not tried)" if "`" in node.suggestion else ""),
                }
                for node in self.nodes
            ],
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False)
class Simulation(Shown, Warned):
    """What a simulation found.

    Args:
        target: name of the target; empty for another provider without one.
        device: what ran in the place of the NPU, in words.
        base: what its outputs are compared with, in words; empty when there was nothing.
        base_is_reference: whether that is the reference, which the simulated NPU must equal.
        float_model: what the float model is, in words; empty when there was none.
        samples: feeds that ran.
        outputs: of the model, in its order.
        placement: where the operators run; None when nobody knows.
        estimate: of the time on the target; None without a target.
        seconds: of each run, by what ran: ``"npu"``, ``"reference"``, ``"qdq"``, ``"float"``.
        notes: what was left out, and why.
        values: the outputs of the NPU, one array a sample; empty unless they were kept.
        chip_time: what a run takes on a chip, as `estimate` says it; None where nobody asked.
        record: where nodes ran and why, their bytes, their times on a chip; noise at the outputs where the float model is known.
    """

    figures: ClassVar[Mapping[str, str]] = {
        "target": "target",
        "samples": "samples",
        "outputs": "outputs",
        "is_exact": "is_exact",
        "estimated_us": "estimate.us",
    }

    target: str
    device: str
    base: str
    base_is_reference: bool
    float_model: str
    samples: int
    outputs: tuple[OutputFigures, ...]
    placement: Placement | None
    estimate: Estimate | None
    seconds: Mapping[str, tuple[float, ...]]
    notes: tuple[str, ...] = ()
    values: Mapping[str, list[Array]] = field(default_factory=dict)
    chip_time: Mapping[str, Any] | None = None
    record: Record = NOTHING

    @property
    def wall_s(self) -> float | None:
        """Seconds of one run of the provider on this machine, the median; None when none ran."""
        runs = self.seconds.get("npu", ())
        return float(np.median(runs)) if runs else None

    @property
    def is_cpu_alone(self) -> bool:
        """Whether nothing runs on the NPU, so that the CPU is compared with itself."""
        return self.placement is not None and bool(self.placement.nodes) and not self.placement.npu_nodes

    @property
    def is_exact(self) -> bool:
        """Whether every output equals the base in every element; also when there is no base."""
        return all(output.exact in (None, 1.0) for output in self.outputs)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; the keys of the command's contract among them. ``estimated_us`` is computed, never measured."""
        return {
            "target": self.target,
            "device": self.device,
            "compared_with": self.base,
            "float_model": self.float_model,
            "samples": self.samples,
            "outputs": {output.name: output.to_json() for output in self.outputs},
            "placement": None if self.placement is None else self.placement.to_json(),
            "estimated_us": None if self.estimate is None else self.estimate.us,
            "estimate": None if self.estimate is None else self.estimate.to_json(),
            **({} if self.chip_time is None else {"chip_time": dict(self.chip_time)}),
            "wall_s": self.wall_s,
            "seconds": {key: sum(runs) for key, runs in self.seconds.items()},
            "notes": list(self.notes),
            **self.record.as_key(),
        }
