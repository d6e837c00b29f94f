"""What a deployment made: the figures, which bounds it misses, the report, and the files of its folder."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import cached_property
from typing import Any, ClassVar

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.annotate import Placement
from qdq_passes.numerics.agreement import worst_first

from qdqtool.comparison.report import Compared, Comparison
from qdqtool.io.files.artifacts import replaced_in, without_seconds, write_json
from qdqtool.io.files.atomic import write_whole
from qdqtool.io.files.progress import Warned
from qdqtool.io.files.shown import Shown
from qdqtool.io.files.text_table import EXACT, TextTable, megabytes, plural
from qdqtool.npu.analyzing import too_little
from qdqtool.npu.report import Analysis
from qdqtool.npu.simulated import Simulation
from qdqtool.record.record import Record, merged
from qdqtool.targets.device import Device
from qdqtool.verbs.check import Checked
from qdqtool.verbs.ci.baseline import StoredDeployment
from qdqtool.verbs.groups import LEAST_DB
from qdqtool.verbs.work.bounds.outputs import missed
from qdqtool.verbs.work.quantizing import Quantized
from qdqtool.verbs.work.records import comparison_record

#: The report as an artifact.
KIND, VERSION, KIND_OF_SECONDS = "deployment", 1, "seconds"
#: The files of the folder.
MODEL, FLOAT, SOURCE, RANGES, STATISTICS = "model.onnx", "float.onnx", "source.onnx", "ranges.json", "statistics.npz"
PIPELINE, COMMANDS, REPORT, TEXT, DEVICE = "pipeline.txt", "commands.sh", "report.json", "report.txt", "device.py"
SECONDS = "seconds.json"
#: What is in each.
_WHAT = {
    MODEL: "the quantized model",
    FLOAT: "the float model as cleaned",
    SOURCE: "the float model as it was given",
    RANGES: "ranges of the activations",
    STATISTICS: "statistics of the layers' inputs",
    PIPELINE: f"the passes that make {MODEL} of {FLOAT} and {RANGES}",
    COMMANDS: "the commands that make all of it again",
    REPORT: "every figure",
    SECONDS: "what the steps took on this machine",
    TEXT: "this summary",
    DEVICE: "runs it on the device",
}
#: Outputs, tensors, reasons and findings that the summary shows.
SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What must hold.

    Args:
        npu_share: least share of the multiply-accumulates on the NPU, 0 to 1; 0 for none.
        sqnr_db: least SQNR of every output to the float model.
        metric: least figure of the quantized model.
        outputs: least SQNR of single outputs, by name, in place of ``sqnr_db``.
        partitions: most partitions.
    """

    npu_share: float = 0.0
    sqnr_db: float = LEAST_DB
    metric: float | None = None
    outputs: Mapping[str, float] = field(default_factory=dict)
    partitions: int | None = None


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Figures of a metric, the higher the better; None where nothing differs from the float model.

    Args:
        name: of the metric.
        floating: of the float model.
        quantized: of the quantized one.
    """

    name: str
    floating: float | None
    quantized: float | None


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the summary: a line, and a table where there are rows; columns without a title make one without a head."""

    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[object, ...], ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class Deployment(Shown, Warned):
    """A folder for an NPU, and what was found on the way.

    Args:
        folder: where it lies.
        source: file of the float model.
        target: name of the NPU.
        device: how it runs there; None where the target does not say.
        cleaning: text of the pipeline that cleaned the float model.
        quantized: the quantized model and the story of it.
        checked: findings about it.
        analysis: what the target makes of it.
        comparison: it against the float model as cleaned.
        judged: figures of the metric that was asked for.
        simulation: it on the simulated NPU; None without samples for that.
        bounds: what must hold.
        commands: commands that do the same, into a folder ``$out``.
        seconds: of each step.
        judged_on: what samples the comparison is of: those it was calibrated on, some held out of these, or others.
        files: name → bytes of the files in the folder.
        before: an earlier deployment that it is held against.
    """

    figures: ClassVar[Mapping[str, str]] = {
        "folder": "folder",
        "target": "target",
        "npu_share": "analysis.share",
        "sqnr_db": "comparison.min_sqnr",
        "missed": "missed",
        "files": "files",
    }

    folder: str
    source: str
    target: str
    device: Device | None
    cleaning: str
    quantized: Quantized
    checked: Checked
    analysis: Analysis
    comparison: Comparison
    judged: Judged | None
    simulation: Simulation | None
    bounds: Bounds
    commands: tuple[str, ...]
    seconds: Mapping[str, float]
    judged_on: str = ""
    files: Mapping[str, int | None] = field(default_factory=dict)
    before: StoredDeployment | None = None

    @cached_property
    def missed(self) -> tuple[str, ...]:
        """The bounds that do not hold, and what is wrong whatever was asked for; with a baseline what is worse than there."""
        return tuple(self._missed() if self.before is None else self.before.regressions(self))

    def _missed(self) -> Iterator[str]:
        bounds, simulation = self.bounds, self.simulation
        if self.checked.errors:
            first = next(f for f in self.checked.findings if f["level"] in ("error", "fatal"))
            yield f"check: {plural(self.checked.errors, 'error')}, the first {first['rule']} at {first['where']}"
        yield from (f"analyze: {failure}" for failure in self.analysis.failures)
        if short := too_little(self.analysis, bounds.npu_share):
            yield short
        if bounds.partitions is not None and len(self.analysis.partitions) > bounds.partitions:
            yield f"{plural(len(self.analysis.partitions), 'partition')}, allowed are {bounds.partitions}"
        yield from missed(self.comparison, bounds.sqnr_db, bounds.outputs)
        judged = self.judged
        if (
            judged is not None
            and judged.quantized is not None
            and bounds.metric is not None
            and judged.quantized < bounds.metric
        ):
            yield f"{judged.name} of the quantized model is {judged.quantized:.4g}, required is {bounds.metric:g}"
        if simulation is not None and simulation.base_is_reference and not simulation.is_exact:
            names = [output.name for output in simulation.outputs if output.exact not in (None, 1.0)]
            yield f"simulate: differs from the reference at {', '.join(names)}"

    @property
    def outputs(self) -> list[Compared]:
        """The outputs, worst first."""
        return sorted(self.comparison.outputs, key=lambda output: worst_first(output.agreement.sqnr_db))

    @property
    def record(self) -> Record:
        """What the steps know of tensors and nodes; the noise is the comparison's, which runs the most samples."""
        compared = comparison_record(self.comparison, self.quantized.model)
        ran = [] if self.simulation is None else [self.simulation.record]
        return merged([self.quantized.record, self.analysis.record, *ran, compared])

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; the keys of the report. There is one ``record``, of all steps."""
        judged = self.judged
        return {
            "folder": self.folder,
            "source": self.source,
            "target": self.target,
            "preset": self.quantized.quantization.plan.preset.name,
            "passed": not self.missed,
            "missed": list(self.missed),
            "warnings": list(self.warnings),
            "bounds": {
                "require_npu": self.bounds.npu_share, "min_metric": self.bounds.metric,
                "min_sqnr": self.bounds.sqnr_db if math.isfinite(self.bounds.sqnr_db) else None,
                "min_output": dict(self.bounds.outputs), "max_partitions": self.bounds.partitions,
            },
            "npu_share": self.analysis.share,
            "sqnr_db": self.comparison.min_sqnr,
            "judged_on": {"samples": self.comparison.samples, "which": self.judged_on},
            "metric": None
            if judged is None
            else {"name": judged.name, "float": judged.floating, "quantized": judged.quantized},
            "estimated_us": None if self.simulation is None else self.simulation.to_json()["estimated_us"],
            "cleaning": self.cleaning,
            "quantization": self.quantized.to_json(),
            "check": self.checked.to_json(),
            "analysis": _beside(self.analysis.to_json()),
            "comparison": self.comparison.to_json(),
            "simulation": None if self.simulation is None else _beside(self.simulation.to_json()),
            "record": self.record.to_json(),
            "device": None if self.device is None else asdict(self.device),
            "commands": list(self.commands),
            "files": sorted(self.files),
            "seconds": {step: round(seconds, 3) for step, seconds in self.seconds.items()},
        }  # fmt: skip

    @property
    def sections(self) -> list[Section]:
        """The summary; of warnings whoever listens is told as they come up."""
        return [*self._figures(), *self._tables(), *self._end()]

    @property
    def text(self) -> str:
        """The summary as text."""
        parts = [
            "\n".join([*([part.title] if part.title else []), *TextTable(part.columns, part.rows).lines])
            for part in [*self._figures(), *self._tables(), *self._warned(), *self._end()]
        ]
        return "\n\n".join(parts) + "\n"

    def _figures(self) -> Iterator[Section]:
        """What it comes down to."""
        done, found, simulation = self.quantized.quantization, self.analysis, self.simulation
        partitions = plural(len(found.partitions), "partition")
        share = f", {found.macs_text}" if found.macs_text else ""
        sizes = [megabytes(_bytes_of(self.files, name)) for name in (FLOAT, MODEL)]
        rows = [
            ("target", self.target),
            ("preset", done.plan.preset.name),
            ("size", " → ".join(sizes) + self.quantized.why_large),
            (
                "on the NPU",
                f"{found.npu_compute_nodes} of {self._operators}{share}, {partitions}",
            ),
            ("findings", _counted(self.checked.findings)),
            *([("Sigmoid", done.choice)] if done.choice else []),
            ("judged on", f"{plural(self.comparison.samples, 'sample')} {self.judged_on}"),
        ]
        if self.judged is not None:
            floating, quantized = (
                EXACT if x is None else f"{x:.4g}" for x in (self.judged.floating, self.judged.quantized)
            )
            rows.append((self.judged.name, f"float {floating}, quantized {quantized}"))
        if simulation is not None:
            rows.append(("simulated", _agreement(simulation)))
            us = None if simulation.estimate is None or simulation.is_cpu_alone else simulation.estimate.us
            if us is not None:
                rows.append(("estimated time", f"about {us:,.4g} µs a run; computed, not measured"))
        yield Section(title="", columns=("", ""), rows=tuple(rows))

    @property
    def _operators(self) -> str:
        return plural(self.analysis.compute_nodes, "operator")

    def _tables(self) -> Iterator[Section]:
        """Outputs and tensors, the worst first; what is not on the NPU, and what was found."""
        columns = ("SQNR dB", "max abs", "cosine", "exact")
        yield Section(title="", columns=("output", *columns), rows=tuple(map(_figures_of, self.outputs[:SHOWN])))
        worst = tuple(
            (name, each.node, *rest) for each in self.comparison.tensors[:SHOWN] for name, *rest in [_figures_of(each)]
        )
        if worst:
            yield Section(title="", columns=("worst tensor", "node", *columns), rows=worst)
        converted = self.quantized.quantization.conversions
        if converted:
            told: list[tuple[object, ...]] = [(change.where, change.because) for change in converted[:SHOWN]]
            more = len(converted) - len(told)
            told += [(f"and {more} more", f"in {REPORT}")] if more else []
            yield Section(title="", columns=("converted node", "how"), rows=tuple(told))
        reasons = [reason for reason in self.analysis.reasons() if not reason.nodes[0].is_npu]
        if reasons:
            rows = tuple((len(r.nodes), ", ".join(r.ops), _because(r.placement)) for r in reasons[:SHOWN])
            yield Section(title="", columns=("nodes", "on the CPU", "because"), rows=rows)
        levels = ("fatal", "error", "warning")
        worse = sorted(
            (f for f in self.checked.findings if f["level"] in levels), key=lambda f: levels.index(f["level"])
        )
        first = {(f["level"], f["rule"]): f for f in reversed(worse)}
        if first:
            rows = tuple(
                (f["level"], f["rule"], f"{f['where']}: {f['message']}") for f in [*first.values()][::-1][:SHOWN]
            )
            yield Section(title="", columns=("finding", "rule", "where"), rows=rows)

    def _warned(self) -> Iterator[Section]:
        """The warnings."""
        yield from (Section(title=f"warning: {text}") for text in self.warnings)

    def _end(self) -> Iterator[Section]:
        """How it runs on the device, the files, and what is missed."""
        if self.device is not None:
            run: tuple[tuple[object, ...], ...] = (
                ("run it on", self.device.machines), ("with", f"python {DEVICE} SAMPLES.npz  ({self.device.provider})"),
                ("the log says", self.device.log), ("as here", f"{self.analysis.npu_compute_nodes} of {self._operators}"),
            )  # fmt: skip
            yield Section(title="", columns=("", ""), rows=run)
        rows = tuple(
            (name, "" if size is None else megabytes(size), _WHAT.get(name, "weights"))
            for name, size in sorted(self.files.items())
        )
        yield Section(title="", columns=("file", "size", "what it is"), rows=rows)
        yield from (Section(title=f"failed: {text}") for text in self.missed)


def _beside(data: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a step beside the record of all."""
    return {key: value for key, value in data.items() if key != "record"}


def written(found: Deployment, made: str, path: str) -> Deployment:
    """``found`` with the files that are in the folder ``made``, where pipeline, commands and report are written too; these name
    the model in the folder, which may be moved, in place of its ``path`` for a shell."""
    write_whole(os.path.join(made, PIPELINE), f"{found.quantized.quantization.plan.pipeline}\n".encode())
    write_whole(os.path.join(made, COMMANDS), _script(found).encode())
    if found.device is not None:
        is_whole = found.analysis.npu_compute_nodes == found.analysis.compute_nodes
        write_whole(os.path.join(made, DEVICE), found.device.script(MODEL, is_whole=is_whole).encode())
    sizes = {entry.name: entry.stat().st_size for entry in os.scandir(made)}
    whole = replace(found, files={**sizes, REPORT: None, SECONDS: None, TEXT: None})
    told = {key: value for key, value in whole.to_json().items() if key != "folder"}
    report, seconds = without_seconds(replaced_in(told, path, MODEL))
    write_json(os.path.join(made, SECONDS), kind=KIND_OF_SECONDS, version=VERSION, payload=seconds)
    write_json(os.path.join(made, REPORT), kind=KIND, version=VERSION, payload=report)
    write_whole(os.path.join(made, TEXT), whole.text.replace(path, MODEL).encode())
    return whole


def _script(found: Deployment) -> str:
    """The commands as a script that makes the folder again."""
    clean, *rest = found.commands
    replay = f'qdqtool opt "$out"/{FLOAT} -p @"$out"/{PIPELINE} --ranges "$out"/{RANGES} -o NEW.onnx'
    lines = [
        "#!/bin/sh",
        f"# What `qdqtool deploy` did, command by command: `sh {COMMANDS} NEW_FOLDER`, where it was run. Without data,",
        f"#     {replay}",
        f"# makes {MODEL} again, byte for byte (-p @{PIPELINE}, with --statistics {STATISTICS} where that file is there).",
        "set -eu",
        "out=${1:?give a new folder}",
        'mkdir "$out"',
        clean,
        "failed=0",
        *(f"{line} || failed=1" for line in rest),
        "exit $failed",
    ]
    return "\n".join(lines) + "\n"


def _bytes_of(files: Mapping[str, int | None], model: str) -> int:
    """Bytes of a model and of the data file beside it."""
    return sum(size or 0 for name, size in files.items() if name.startswith(model.removesuffix("onnx")))


def _counted(findings: Sequence[Mapping[str, Any]]) -> str:
    """``1 error, 2 warnings, no notes``."""
    counts = {level: sum(f["level"] == level for f in findings) for level in ("error", "warning", "note")}
    counts["error"] += sum(f["level"] == "fatal" for f in findings)
    return ", ".join(plural(count, level) for level, count in counts.items() if count) or "none"


def _agreement(found: Simulation) -> str:
    """How far the simulated NPU agrees with the reference, and on how much."""
    samples = f"on {plural(found.samples, 'sample')}"
    if not found.base:
        return f"{found.device}, {samples}, compared with nothing"
    if found.is_cpu_alone:
        return f"nothing: the CPU was compared with itself {samples}"
    if found.is_exact:
        return f"equal to {found.base} {samples}"
    worst = min(output.exact for output in found.outputs if output.exact is not None)
    return f"{worst:.2%} of the worst output equal to {found.base} {samples}"


def _figures_of(found: Compared) -> tuple[object, ...]:
    seen = found.agreement
    return found.text, EXACT if seen.sqnr_db is None else round(seen.sqnr_db, 2), seen.max_abs, seen.cosine, seen.exact


def _because(placement: Placement) -> str:
    return f"{placement.reason} → {placement.suggestion}" if placement.suggestion else placement.reason
