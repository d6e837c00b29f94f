"""Variants of one quantization: some nodes alone, or some nodes in another precision; built on the prepared model and judged.

The float model is prepared and calibrated once, and its outputs are computed once. A variant costs a copy of the graph (weights
are shared), the passes behind calibration, and one run over the samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import QdqError
from qdq_passes.graph.edit import copy_model
from qdq_passes.pipeline.pipeline import Pipeline
from qdq_passes.select.globs import literal

from qdqtool.calibrate.ranges import Ranges
from qdqtool.calibrate.statistics import Statistics
from qdqtool.io.files.artifacts import sha256_of_json
from qdqtool.presets.preset import Preset
from qdqtool.quantization.calibrating import observed_names
from qdqtool.quantization.eight_bit_weights import EightBitWeights
from qdqtool.quantization.options import PlanOptions
from qdqtool.quantization.plan import RANGES, Plan, plan
from qdqtool.quantization.recovery import Recovering
from qdqtool.runtime.session import open_session
from qdqtool.search.precision_cost import Cost, Prices, cost_of
from qdqtool.workers.shared_model import SharedModel

if TYPE_CHECKING:
    from qdqtool.search.goal.standing import Standing
    from qdqtool.search.metrics import Metric
    from qdqtool.targets.legalization import Legalization

Arrays = Mapping[str, npt.NDArray[Any]]

#: Precisions that a node can be raised to, cheapest first.
RAISED = ("int16", "fp16", "bf16", "float")
#: What its weights are raised to before, under presets that give them fewer bits.
NARROW = ("int8_weights",)
OF_NODES = (*NARROW, *RAISED)
#: Those of them that a node computes in, rather than stores its values in.
FLOATS = ("fp16", "bf16", "float")


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """What all variants have in common: the arguments of `qdqtool.quantization.plan.plan`.

    Args:
        preset: the preset.
        options: what the user says.
        ops: operator types instead of the preset's.
        legalization: what the target changes.
        missing: selectors of the user's that match nothing, and were warned about.
        overrides: what is said of single tensors, once the user's functions were asked; None where there are none.
    """

    preset: Preset
    options: PlanOptions = field(default_factory=PlanOptions)
    ops: tuple[str, ...] = ()
    legalization: Legalization | None = None
    missing: tuple[str, ...] = ()
    overrides: str | None = None

    def plan(self, point: Point | None = None) -> Plan:
        """The plan of a variant."""
        options = self.options if point is None else point.laid_over(self.options)
        made = plan(self.preset, options, ops=self.ops, legalization=self.legalization)
        if self.overrides is not None:
            annotate = replace(made.annotate, overrides=self.overrides)
            passes = tuple(annotate if p is made.annotate else p for p in made.materialise.passes)
            wide = tuple(each for each in made.annotators if isinstance(each, EightBitWeights))
            made = replace(made, materialise=Pipeline(passes), annotators=wide)
        return made.without(self.missing) if self.missing else made


@dataclass(frozen=True, kw_only=True)
class Point:
    """What tells a variant from the plain quantization, by exact node names of the prepared model.

    Args:
        raised: (precision, names of the nodes that have it), each precision once, in the order of `OF_NODES`; names sorted.
        only: the only nodes that are quantized; None: all that the preset and the user let.
        options: (name, value) of options of `quantize` that are said besides, sorted; what is calibrated hangs on them.
    """

    raised: tuple[tuple[str, tuple[str, ...]], ...] = ()
    only: tuple[str, ...] | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, precisions: Mapping[str, str], options: Mapping[str, Any] | None = None) -> Point:
        """Of node name → precision, and of options."""
        raised = [(p, tuple(sorted(name for name, its in precisions.items() if its == p))) for p in OF_NODES]
        return cls(
            raised=tuple((p, names) for p, names in raised if names), options=tuple(sorted((options or {}).items()))
        )

    @property
    def key(self) -> str:
        """Hex SHA-256 of what it says."""
        return sha256_of_json(self.to_json())

    @property
    def precisions(self) -> dict[str, str]:
        """Node name → precision."""
        return {name: precision for precision, names in self.raised for name in names}

    def __hash__(self) -> int:
        """Of what it says, but for the values of options, which may be mappings."""
        return hash((self.raised, self.only, tuple(name for name, _ in self.options)))

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: a list of names a precision."""
        data: dict[str, Any] = {precision: list(names) for precision, names in self.raised}
        data |= {} if self.only is None else {"only": list(self.only)}
        return data | ({"options": dict(self.options)} if self.options else {})

    def laid_over(self, options: PlanOptions) -> PlanOptions:
        """``options`` with this said besides: what the command line would say with selectors of these names."""
        said: dict[str, Any] = {p: (*getattr(options, p), *map(literal, nodes)) for p, nodes in self.raised}
        options = replace(options, **said)
        return options if self.only is None else replace(options, only=tuple(map(literal, self.only)))


@dataclass(frozen=True, kw_only=True)
class Placing:
    """What becomes of a variant on its way to the chip.

    Args:
        refused: names of the operators that the target does not take; none without one.
        ms: what a run takes on the chip, in the middle of its interval; None without one.
        sha256: of the model, see `qdqtool.calibrate.fingerprint`.
        weight_bytes: of its weights, biases and other constants.
    """

    refused: tuple[str, ...] = ()
    ms: float | None = None
    sha256: str = ""
    weight_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a variant is worth.

    Args:
        figure: of the metric; None where nothing differs from the float model.
        cost: what it costs.
        reason: why it could not be made, in words; then ``figure`` says nothing. Empty where it could.
        standing: to a goal; None without one, and where it was not judged.
        placing: what a target and a chip make of it; None where nobody asked.
    """

    figure: float | None
    cost: Cost
    reason: str = ""
    standing: Standing | None = None
    placing: Placing | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; inverse of `from_json`."""
        found: dict[str, Any] = {"figure": self.figure, **self.cost.to_json(), "reason": self.reason}
        found |= {} if self.standing is None else {"standing": self.standing.to_json()}
        return found | ({} if self.placing is None else {"placing": asdict(self.placing)})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measured:
        """Read the form that `to_json` writes."""
        from qdqtool.search.goal.standing import Standing

        figure, standing, placing = data["figure"], data.get("standing"), data.get("placing")
        return cls(
            figure=None if figure is None else float(figure), cost=Cost.from_json(data), reason=str(data["reason"]),
            standing=None if standing is None else Standing.from_json(standing),
            placing=None if placing is None else Placing(**{**placing, "refused": tuple(placing["refused"])}),
        )  # fmt: skip


#: What says nothing, as nothing could be made.
FAILED = Cost(macs={}, crossings=0, bytes=0, total=0.0)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What variants are made of and judged by: the context of a worker.

    Args:
        model: the prepared float model, with its annotations.
        scheme: what the variants have in common.
        ranges: of every activation that the plain quantization observes.
        inputs: what else the passes read by name.
        feeds: samples to judge on, with what the data holds beside the inputs.
        references: outputs of the float model for them.
        metric: name of the metric.
        prices: of what is not in 8 bit.
        learns_on: samples that rounding is learned from, anew of each variant; none where it is not.
        sums: what other passes then read of the layers' inputs.
    """

    model: SharedModel
    scheme: Scheme
    ranges: Ranges
    inputs: Mapping[str, Any]
    feeds: tuple[Arrays, ...]
    references: tuple[Arrays, ...]
    metric: str
    prices: Prices = field(default_factory=Prices)
    learns_on: tuple[Arrays, ...] = ()
    sums: Statistics | None = None

    @cached_property
    def prepared(self) -> ir.Model:
        """The prepared float model; not to be changed."""
        return self.model.load()

    @cached_property
    def opened_metric(self) -> Metric:
        """The metric."""
        from qdqtool.search.metrics import open_metric

        return open_metric(self.metric)

    def build(self, point: Point) -> ir.Model:
        """The model of a variant, as `quantize` would make it with these nodes named on its command line.

        Raises:
            QdqError: it cannot be made.
        """
        return self.planned(self.scheme.plan(point))

    def planned(self, job: Plan) -> ir.Model:
        """The model that the plan ``job`` of a variant makes.

        Raises:
            QdqError: it cannot be made.
        """
        model = copy_model(self.prepared)
        job = job.annotated(model)
        job.precision.run(model)
        inputs = {**self.inputs, RANGES: self._bound(observed_names(model, job))}
        if not self.learns_on:
            job.materialise.run(model, inputs=inputs)
            return model
        learning = Recovering.learning(model, self.learns_on, self.sums)
        job.materialise.run(model, inputs={**inputs, **learning.inputs(job.materialise)}, hooks=[learning])
        return model

    def judge(self, model: ir.Model) -> float | None:
        """The figure of ``model``.

        Raises:
            QdqError: onnxruntime refuses it, or the metric fails.
        """
        return self.opened_metric.measure(outputs_of(model, self.feeds), self.feeds, self.references)

    def _bound(self, names: Sequence[str]) -> dict[str, Any]:
        """The ranges of ``names`` alone: those that a calibration of this variant would have."""
        bound = self.ranges.bound
        return {name: bound[name] for name in names if name in bound}

    def __getstate__(self) -> dict[str, Any]:
        """What travels: the fields, without what was made of them here."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def measure(baseline: Baseline, point: Point) -> Measured:
    """Build and judge one variant; one that cannot be made is told by the reason."""
    try:
        model = baseline.build(point)
    except QdqError as error:
        return Measured(figure=None, cost=FAILED, reason=str(error))
    return Measured(figure=baseline.judge(model), cost=cost_of(model, baseline.prices))


@contextmanager
def running(model: ir.Model) -> Iterator[Callable[[Sequence[Arrays]], list[Arrays]]]:
    """What gives the outputs of ``model`` for each of some feeds, of which arrays that are no inputs are left out; one thread."""
    session = open_session(model)
    inputs = set(session.input_names)
    try:
        yield lambda feeds: [session.run({k: v for k, v in feed.items() if k in inputs}) for feed in feeds]
    finally:
        session.close()


def outputs_of(model: ir.Model, feeds: Sequence[Arrays]) -> list[Arrays]:
    """Outputs of ``model`` for each of ``feeds``; see `running`."""
    with running(model) as run:
        return run(feeds)
