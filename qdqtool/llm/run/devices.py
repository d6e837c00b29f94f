"""What runs the graphs of a folder: onnxruntime's CPU provider alone, or a device by its name; and where it runs the operators.

A device opens a graph as stages, pieces that one engine runs. Devices lie above this package, one file each, as commands and
passes do: `DEVICES` finds them by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, Literal, Protocol, cast, get_args

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.record import Phase
from qdq_passes.errors import UsageError
from qdq_passes.npu.units.verdict import CPU, PlacedUnit

from qdqtool.llm.folder.manifest import StaticModel
from qdqtool.llm.plan.schedules import Policy
from qdqtool.llm.run import DEVICES
from qdqtool.llm.run.run_times import RunTimes
from qdqtool.runtime.session import Session

#: Device without a name.
PLAIN = "cpu"

#: What of a graph an NPU may take: all that its target takes; or the linear layers and what stands between them, with attention
#: and norms on the CPU (the arrangement of llm.npu, arXiv 2407.05858).
Arrangement = Literal["whole", "linear"]


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """What a session says of its devices.

    Args:
        target: name or file of the target; None for none.
        arrange: None for what the target says.
        schedule: see `qdqtool.llm.plan.schedules.Policy`.
        threads: threads inside an operator; 0 leaves the choice to onnxruntime.
    """

    target: str | None = None
    arrange: Arrangement | None = None
    schedule: Policy = "out-of-order"
    threads: int = 0


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one engine does of a graph in one run, as it is estimated.

    Args:
        name: of the piece.
        engine: what runs it.
        us: microseconds on the target; an estimate.
    """

    name: str
    engine: str
    us: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage:
    """A session that runs a piece of a graph, or all of it.

    Args:
        session: what runs.
        pieces: what it does, in order; one, unless the graph is a single session.
    """

    session: Session
    pieces: tuple[Piece, ...]

    @property
    def engine(self) -> str:
        """What runs it: the engine of the most of its time."""
        return max(self.pieces, key=lambda piece: piece.us).engine


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenedPart:
    """A graph file, open on a device.

    Args:
        stages: its sessions, in an order in which they can run one after the other; values have the same names in all.
        placement: where its operators run; None where the device does not tell.
        assumptions: the numbers that the microseconds of its pieces are made of, each a JSON object with a ``key``.
    """

    stages: tuple[Stage, ...]
    placement: GraphPlacement | None = None
    assumptions: tuple[Mapping[str, Any], ...] = ()


class Device(Protocol):
    """Something that opens the graphs of a folder."""

    def open(self, path: str, model: StaticModel, part: int) -> OpenedPart:
        """The graph file at ``path``, which is part ``part`` of ``model``.

        Raises:
            QdqError: it cannot be opened on this device.
        """


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The device of each phase, and how their stages are ordered.

    Args:
        by_phase: device of each phase.
        names: their names.
        schedule: see `qdqtool.llm.plan.schedules.Policy`.
        times: what runs take where it is known as a whole, as of a chip.
    """

    by_phase: Mapping[Phase, Device]
    names: Mapping[Phase, str] = field(default_factory=dict)
    schedule: Policy = "sequential"
    times: RunTimes | None = None

    def open(self, path: str, model: StaticModel, part: int) -> OpenedPart:
        """As `Device.open`, on the device of the phase of ``model``."""
        return self.by_phase[model.phase].open(path, model, part)


def names_plain(*names: str | None) -> bool:
    """Whether onnxruntime's CPU provider alone runs what ``names``, of both phases or of one, say."""
    return all(name in (None, PLAIN) for name in names)


def devices_of(
    device: str | None = None,
    *,
    target: str | os.PathLike[str] | None = None,
    arrange: str | None = None,
    schedule: str | None = None,
    prefill_device: str | None = None,
    decode_device: str | None = None,
    threads: int = 0,
    times: RunTimes | None = None,
) -> Devices | None:
    """The devices that options name; None where onnxruntime's CPU provider runs all, and nothing is asked about it.

    Args:
        device: for both phases; ``"cpu"`` by default.
        target: name or file of the target.
        arrange: one of `Arrangement`; what the target says by default.
        schedule: one of `qdqtool.llm.plan.schedules.Policy`; out of order by default.
        prefill_device: for prefill alone.
        decode_device: for decode alone.
        threads: threads inside an operator; 0 leaves the choice to onnxruntime.
        times: what runs take where it is known as a whole, as of a chip.

    Raises:
        UsageError: an option means nothing, or nothing without another.
    """
    names: dict[Phase, str] = {
        "prefill": prefill_device or device or PLAIN,
        "decode": decode_device or device or PLAIN,
    }
    for option, given, known in (
        ("arrange", arrange, get_args(Arrangement)),
        ("schedule", schedule, get_args(Policy)),
    ):
        if given is not None and given not in known:
            raise UsageError(f"{option} cannot be {given!r}", hint=f"it is {' or '.join(known)}")
    if names_plain(*names.values()):
        if times is not None:
            raise UsageError("the times of a chip are of a device", hint="give --device npusim --target NAME")
        if target is not None or arrange is not None or schedule is not None:
            raise UsageError("target, arrangement and schedule are of a device", hint="give --device npusim")
        return None
    options = DeviceOptions(
        target=None if target is None else os.fspath(target),
        arrange=cast(Arrangement | None, arrange),
        schedule=cast(Policy, schedule or "out-of-order"),
        threads=threads,
    )
    made = {name: DEVICES.load(name)(options) for name in sorted(set(names.values()))}
    return Devices(
        by_phase={phase: made[name] for phase, name in names.items()},
        names=names,
        schedule=options.schedule,
        times=times,
    )


@dataclass(frozen=True, kw_only=True)
class GraphPlacement:
    """Where the operators of one graph file run.

    Args:
        graph: name of its file.
        phase: what it is for.
        units: its operators (QuantizeLinear, DequantizeLinear and constants do not count).
        stages: how many pieces it is cut into.
        notes: what is to be said of it.
    """

    graph: str
    phase: Phase
    units: tuple[PlacedUnit, ...]
    stages: int
    notes: tuple[str, ...] = ()

    @property
    def nodes(self) -> dict[str, int]:
        """Engine → operators."""
        return _sums(self.units, lambda unit: 1)

    @property
    def macs(self) -> dict[str, int]:
        """Engine → multiply-accumulates of one run."""
        return _sums(self.units, lambda unit: unit.macs)

    @property
    def npu_macs_share(self) -> float | None:
        """Share of the multiply-accumulates on an NPU, 0..1; None where there are none."""
        total = sum(self.macs.values())
        return 1 - self.macs.get(CPU, 0) / total if total else None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: counts by engine, the share, and of each operator of the CPU why."""
        return {
            "graph": self.graph,
            "phase": self.phase,
            "nodes": self.nodes,
            "macs": self.macs,
            "npu_macs_share": self.npu_macs_share,
            "stages": self.stages,
            "on_cpu": [asdict(unit) for unit in self.units if unit.engine == CPU],
            "notes": list(self.notes),
        }


def _sums(units: Sequence[PlacedUnit], of: Callable[[PlacedUnit], int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for unit in units:
        found[unit.engine] = found.get(unit.engine, 0) + of(unit)
    return dict(sorted(found.items()))
