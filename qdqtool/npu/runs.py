"""Run provider, reference, QDQ model and float model over the samples, and collect the figures of their outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, UnsupportedError, UsageError
from qdq_passes.npu.partitions.partitions import Partitioning
from qdq_passes.npu.reference.run import run_reference
from qdq_passes.numerics.agreement import Accumulator
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.pairs import encoding_of, is_dequantize

from qdqtool.io.feeds.feeds import Feeds
from qdqtool.io.files.progress import StageProgress
from qdqtool.npu.devices import Device
from qdqtool.npu.estimated import Estimate
from qdqtool.npu.simulated import OutputFigures, Placement, Simulation
from qdqtool.runtime.node_runs import NodeRuns
from qdqtool.runtime.session import Session, open_session
from qdqtool.targets.target import Target

#: (tested, reference) of each pair that is compared; ``base`` stands for the reference or the QDQ model.
PAIRS = (("npu", "base"), ("npu", "qdq"), ("npu", "float"), ("qdq", "float"))
Values = Mapping[str, Array]


@dataclass
class Run:
    """Something that computes the outputs of a model, and how long it took.

    Args:
        name: ``"npu"``, ``"reference"``, ``"qdq"`` or ``"float"``.
        description: what it is.
        call: feed → outputs by name.
        seconds: of each call.
    """

    name: str
    description: str
    call: Callable[[Values], Values]
    seconds: list[float] = field(default_factory=list)

    def __call__(self, feed: Values) -> Values:
        """The outputs for ``feed``; the time is noted."""
        start = time.perf_counter()
        found = self.call(feed)
        self.seconds.append(time.perf_counter() - start)
        return found


def session_run(name: str, description: str, session: Session, inputs: Sequence[str], outputs: Sequence[str]) -> Run:
    """A session whose ends are matched with those of the simulated model: by name, or else by position.

    Raises:
        UsageError: it has more or fewer inputs or outputs.
    """
    to, back = by_position(inputs, session.input_names), by_position(outputs, session.output_names)
    if to is None or back is None:
        raise UsageError(
            f"{description} has the inputs {', '.join(session.input_names)} and the outputs"
            f" {', '.join(session.output_names)}, the model {', '.join(inputs)} and {', '.join(outputs)}",
            hint="give two forms of one model",
        )

    def call(feed: Values) -> Values:
        found = session.run({to[key]: array for key, array in feed.items()})
        return {key: found[other] for key, other in back.items()}

    return Run(name, description, call)


def qdq_run(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> Run:
    """The QDQ model on onnxruntime's CPU provider without optimization."""
    return session_run("qdq", "the QDQ model in onnxruntime without optimization", open_session(model), inputs, outputs)


def float_run(model: ir.Model, given: ir.Model | None, inputs: Sequence[str], outputs: Sequence[str]) -> Run:
    """The float model: ``given``, or ``model`` (QDQ) without its pairs on activations."""
    if given is not None:
        return session_run("float", "the float model", open_session(given), inputs, outputs)
    made = run_pipeline(model, "restore-relu,remove-qdq{keep-weights=true}", copy=True).model
    description = "the model without its pairs on activations; its weights are the quantized ones"
    return session_run("float", description, open_session(made), inputs, outputs)


def reference_run(model: ir.Model, plan: Partitioning, arithmetic: Arithmetic) -> Run:
    """The numpy reference on ``model``, whose partitioning ``plan`` is; onnxruntime computes the nodes of the CPU."""
    nodes = NodeRuns(model)
    on_npu, verdicts = plan.partition_of, plan.verdict_of

    def in_float(node: ir.Node) -> bool:
        verdict = verdicts.get(node)
        return verdict is not None and verdict.kind == "npu-float"

    def call(feed: Values) -> Values:
        # division by zero and the like are values on the CPU's nodes, as they are in onnxruntime
        with np.errstate(all="ignore"):
            return run_reference(model, feed, arithmetic, on_npu=on_npu.__contains__, fallback=nodes, in_float=in_float)

    return Run("reference", "the numpy reference", call)


class Runs:
    """What runs, sample by sample. The device runs as ``"npu"``; without one the reference takes its place.

    Args:
        model: the simulated model.
        device: what it runs on.
    """

    def __init__(self, model: ir.Model, device: Device) -> None:
        self._inputs = [v.name for v in model.graph.inputs if v.name and v.name not in model.graph.initializers]
        self._outputs = [v.name for v in model.graph.outputs if v.name]
        self._values = list(model.graph.outputs)
        self._device = device
        self._runs: dict[str, Run] = {}
        self._base = ""
        self._notes = list(device.notes)
        self._count = 0
        self._kept: dict[str, list[Array]] = {}
        self.shapes: tuple[str, ...] = ()
        if device.session is not None:
            self._add(session_run("npu", device.description, device.session, self._inputs, self._outputs))

    def add_reference(self, model: ir.Model, plan: Partitioning, target: Target) -> None:
        """Run the reference on ``model``, of which ``plan`` says what the NPU computes."""
        self._add(reference_run(model, plan, target.arithmetic))

    def add_others(self, source: ir.Model, floats: ir.Model | None) -> None:
        """Run the QDQ model ``source``, and ``floats`` or what it is without its pairs."""
        self._values = list(source.graph.outputs)
        try:
            self._add(qdq_run(source, self._inputs, self._outputs))
            self._add(float_run(source, floats, self._inputs, self._outputs))
        except UnsupportedError as error:  # of numbers that the CPU does not compute with: bfloat16
            if not {"npu", "reference"} & set(self._runs):
                raise
            self._notes.append(f"not compared with the QDQ model or the float model in onnxruntime: {error}")

    def over(self, feeds: Feeds, *, keep: bool, progress: StageProgress | None) -> list[Figures]:
        """Run everything on every sample.

        Args:
            feeds: the samples.
            keep: keep the outputs of the device.
            progress: called with (stage, done, total).

        Raises:
            UsageError: there is no sample, or nothing that runs.
        """
        if "npu" not in self._runs and "reference" not in self._runs:
            raise UsageError("nothing to run: " + "; ".join(self._notes), hint="install the library")
        figures = [Figures(value) for value in self._values]
        for feed in feeds:
            found = self._sample(feed)
            for name, output in zip(self._outputs, figures, strict=True):
                output.add({key: values[name] for key, values in found.items()})
            if keep:
                for name in self._outputs:
                    if isinstance(found["npu"][name], np.ndarray):
                        self._kept.setdefault(name, []).append(np.array(found["npu"][name]))
            self._count += 1
            if progress is not None:
                progress("simulating", self._count, feeds.count)
        if not self._count:
            raise UsageError("there is no sample to run", hint="--data gives the samples")
        return figures

    def result(
        self,
        figures: Iterable[Figures],
        *,
        target: str,
        placement: Placement | None,
        estimate: Estimate | None,
        notes: Iterable[str],
    ) -> Simulation:
        """All of it, put together."""
        device = self._runs.get("npu") or self._runs["reference"]
        base = self._runs.get(self._base)
        return Simulation(
            target=target,
            device=device.description,
            base="" if base is None else base.description,
            base_is_reference=self._base == "reference",
            float_model=self._runs["float"].description if "float" in self._runs else "",
            samples=self._count,
            outputs=tuple(output.result() for output in figures),
            placement=placement,
            estimate=estimate,
            seconds={name: tuple(run.seconds) for name, run in self._runs.items()},
            notes=(*self._notes, *notes),
            values=self._kept,
        )

    def _add(self, run: Run) -> None:
        self._runs[run.name] = run

    def _sample(self, feed: Mapping[str, Array]) -> dict[str, Values]:
        """The outputs of each run; ``"npu"`` is the device or what took its place, ``"base"`` what it is compared with."""
        if not self.shapes:
            self.shapes = tuple(
                f"{name}={'x'.join(map(str, array.shape))}" for name, array in feed.items() if array.ndim
            )
        found: dict[str, Values] = {}
        for name, run in list(self._runs.items()):
            try:
                found[name] = run(feed)
            except UnsupportedError as error:
                if name != "reference" or "npu" not in self._runs:
                    raise
                del self._runs[name]
                self._notes.append(f"the reference cannot run this model, the QDQ model stands in its place: {error}")
        if "npu" not in found:
            found["npu"] = found["reference"]
            self._base = "qdq" if "qdq" in found else ""
        else:
            self._base = next((name for name in ("reference", "qdq") if name in found), "")
        if self._base:
            found["base"] = found[self._base]
        return found


class Figures:
    """Figures of one output.

    Args:
        value: the output, in a model that shows the DequantizeLinear which writes it.
    """

    def __init__(self, value: ir.Value) -> None:
        self.name = value.name or ""
        producer = value.producer()
        self._encoding = encoding_of(producer) if producer is not None and is_dequantize(producer) else None
        self._pairs: dict[str, Accumulator] = {}
        self._varying: set[str] = set()
        self._lsb: int | None = 0

    def add(self, runs: Mapping[str, Array]) -> None:
        """Take one sample in.

        Args:
            runs: the output in each run: ``"npu"``, ``"base"``, ``"qdq"``, ``"float"``, as far as they were made.

        Raises:
            ModelError: the NPU's differs in shape from what it is to equal. Other runs round otherwise, and where the values say
                how many there are, as of boxes that a detector keeps, they are not compared from there on.
        """
        runs = {name: array for name, array in runs.items() if isinstance(array, np.ndarray)}  # no sequences
        for tested, reference in PAIRS:
            key = f"{tested}/{reference}"
            if key in self._varying:
                continue
            if tested not in runs or reference not in runs or not _comparable(runs[tested], runs[reference]):
                continue
            try:
                self._pairs.setdefault(key, Accumulator()).add(runs[reference], runs[tested])
            except ModelError as error:
                if reference != "base":
                    self._varying.add(key)
                    del self._pairs[key]
                    continue
                error.where = f"output {self.name!r} of {tested} and {reference}"
                raise
        if "npu" in runs and "base" in runs and self._lsb is not None:
            found = _lsb(runs["base"], runs["npu"], self._encoding)
            self._lsb = None if found is None else max(self._lsb, found)

    def result(self) -> OutputFigures:
        """The figures of all samples."""
        return OutputFigures(
            name=self.name,
            max_lsb=self._lsb if "npu/base" in self._pairs else None,
            against={key: pair.result() for key, pair in self._pairs.items()},
        )


def _comparable(a: Array, b: Array) -> bool:
    """Whether both are numbers of one kind: an integer output says nothing beside a float one."""
    return (a.dtype.kind in "iub") == (b.dtype.kind in "iub")


def _lsb(x: Array, y: Array, encoding: Encoding | None) -> int | None:
    """Largest difference in integers: those of the output, or those that ``encoding`` makes of its floats."""
    if x.dtype.kind in "OSU" or not x.size:
        return 0 if np.array_equal(x, y) else None
    if x.dtype.kind in "iu":
        return int(np.abs(x.astype(np.int64) - y.astype(np.int64)).max())
    if np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
        return 0
    if encoding is None or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return None
    scale = encoding.granularity.expand(encoding.scale_array(), x.shape).astype(np.float64)
    return int(np.abs(np.rint(x / scale) - np.rint(y / scale)).max())


def by_position(names: Sequence[str], other: Sequence[str]) -> dict[str, str] | None:
    """Names → names of another model: equal ones, or by position; None where there are not as many."""
    if set(names) == set(other):
        return {name: name for name in names}
    return dict(zip(names, other, strict=True)) if len(names) == len(other) else None
