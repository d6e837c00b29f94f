"""The verb `check`: what our verifier, onnx.checker, a target, the installed onnxruntime and the lints find."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.io.files.progress import Warned
from qdqtool.io.files.shown import Shown
from qdqtool.options import option
from qdqtool.verbs.groups import DATA, MODEL, JUnit, Path
from qdqtool.verbs.lint import Lint, Linted, has_grids
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    import onnx_ir as ir
    from qdq_passes.core.findings import Finding

    from qdqtool.io.feeds.feeds import FeedSpec
    from qdqtool.io.files.progress import StageProgress
    from qdqtool.npu.report import Analysis
    from qdqtool.targets.target import Target
    from qdqtool.verbs.advice.trying import Advisor

#: Place of a finding that names no node; the same wherever the file lies, so that a baseline fits.
PLACE = "model"
#: Rule of the findings that say what a target leaves to the CPU.
PLACEMENT = "placement"
_ERRORS = ("error", "fatal")


@dataclass(frozen=True, kw_only=True, repr=False)
class Checked(Shown, Warned):
    """What was found.

    Args:
        target: name of the target.
        findings: level, rule, place, message and hint of each.
        graph: the model; None for a folder.
        known_errors: errors that the baseline has.
        known: rule and place of each error of the baseline.
    """

    figures: ClassVar[Mapping[str, str]] = {"target": "target", "errors": "errors", "findings": "findings"}

    target: str | None
    findings: list[dict[str, Any]]
    graph: ir.Model | None
    known_errors: int
    known: frozenset[tuple[str, str]] = frozenset()

    @property
    def errors(self) -> int:
        """New errors."""
        return sum(f["level"] in _ERRORS for f in self.findings) - self.known_errors

    def with_hints(self, analysis: Analysis) -> Checked:
        """Return these findings with the hints of ``analysis``, which were tried, where it has the same."""
        hints = {(f.rule, f.where): f.hint for f in analysis.findings}
        hints |= {(PLACEMENT, refusal.nodes[0]): refusal.suggestion for refusal in analysis.refusals}
        found = [{**f, "hint": hints.get((f["rule"], f["where"]), f["hint"])} for f in self.findings]
        return replace(self, findings=found)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; the keys of the command's contract."""
        from qdqtool.io.models.versions import loadable_in

        return {
            "target": self.target,
            "findings": self.findings,
            "onnxruntime": loadable_in(self.graph) if self.graph is not None else None,
            "errors": self.errors,
            "known_errors": self.known_errors,
        }


@dataclass(frozen=True, kw_only=True)
class Check(Linted, JUnit, Verb[Checked]):
    """Check MODEL with our verifier, with onnx.checker and in the installed onnxruntime; exit 1 with findings.

    MODEL may be a folder that `split` wrote: its files are compared with the hashes of the manifest, then checked graph by
    graph. Traps, which integer backends fall into silently, are warnings and notes; they change no exit code. Nor do lints:
    with --data, where the values of a model do not suit its grids (a Concat of unlike branches, a steep function, dead slices).
    """

    model: Path = field(kw_only=False, metadata=MODEL)
    target: Path | None = option(
        None,
        "Look for the traps of this target too, and for what it leaves to the CPU.",
        value="NAME|FILE",
        use="read",
        listed_by="targets",
    )
    runtime: bool = option(True, "Do not try to load the model in the installed onnxruntime.", flags=("--no-runtime",))
    baseline: Path | None = option(
        None, "JSON of an earlier check: exit 1 only on errors that it does not have.", value="FILE", use="read"
    )
    data: FeedSpec | None = field(default=None, metadata=DATA)
    trials: bool = option(True, "Do not try suggestions on a copy; of a folder none are tried.", flags=("--no-trials",))

    def run(self) -> Checked:
        """The findings."""
        from qdqtool.io.models.load import load
        from qdqtool.verbs.ci.cases import cases_of_check

        chip = None
        if self.target is not None:
            from qdqtool.targets.loading import load_target

            chip = load_target(self.target)
        path, graph = os.fspath(self.model), None
        if os.path.isdir(path):
            findings = _folder(path, chip, runtime=self.runtime, progress=self.progress)
        else:
            graph = load(path)
            findings = _findings(path, graph, chip, runtime=self.runtime, trials=self.trials)
        if not any(f["level"] in _ERRORS for f in findings):  # what does not run has no values
            findings = [*findings, *self._lints(graph)]
        known = _known(os.fspath(self.baseline)) if self.baseline is not None else set()
        old = sum(f["level"] in _ERRORS and (f["rule"], f["where"]) in known for f in findings)
        found = Checked(
            target=None if chip is None else chip.name, findings=findings, graph=graph, known_errors=old, known=frozenset(known)
        )  # fmt: skip
        self.write_junit("qdqtool check", cases_of_check(found))
        return found

    def _lints(self, graph: ir.Model | None) -> list[dict[str, Any]]:
        """Findings of the lints: of a model with pairs always (weights alone without data), of a float one with data or a preset.

        Raises:
            UsageError: data for a folder.
        """
        from qdq_passes.errors import UsageError

        is_asked = self.data is not None or self.preset is not None
        if graph is None:
            if is_asked:
                hint = "check one of the folder's files"
                raise UsageError("--data and --preset are for a single model", hint=hint)
            return []
        if not is_asked and not has_grids(graph):
            return []
        found = Lint(
            graph, self.data, preset=self.preset, exclude=self.exclude, samples=self.samples, seed=self.seed, image=self.image,
            tokenizer=self.tokenizer or os.path.dirname(self.model) or ".", jobs=self.jobs, progress=self.progress,
            warn=self.warn,
        ).run()  # fmt: skip
        return [replace(finding, hint=f"{finding.hint} (not tried)").to_json() for finding in found]


def _findings(path: str, graph: ir.Model, chip: Target | None, *, runtime: bool, trials: bool) -> list[dict[str, Any]]:
    """All findings of one model."""
    traps, advisor = _silent(graph, chip), None
    if chip is not None or any("`" in trap.hint for trap in traps):
        from qdqtool.verbs.advice.commands import untried
        from qdqtool.verbs.advice.trying import Advisor

        advisor = Advisor(graph, chip, path) if trials else None
        traps = [replace(f, hint=untried(f.hint, path, chip) if advisor is None else advisor.hint(f)) for f in traps]
    silent = [finding.to_json() for finding in traps]
    found = [*_verifier(graph), *_checker(path, graph), *silent, *_programs(graph, chip)]
    if chip is not None and not any(f["level"] in _ERRORS for f in found):
        found += _placement(path, graph, chip, advisor)
    return [*found, *_runtime(graph)] if runtime else found


def _silent(graph: ir.Model, chip: Target | None) -> list[Finding]:
    """Return silent pitfalls: those of every backend, which need no target, or also those of ``chip``."""
    if chip is None:
        from qdq_passes.npu.traps.rule import find_traps
        from qdq_passes.npu.traps.table import ALWAYS

        return find_traps(graph, ALWAYS)
    from qdqtool.npu.analyzing import silent_findings

    return silent_findings(graph, chip)


def _placement(path: str, graph: ir.Model, chip: Target, advisor: Advisor | None) -> list[dict[str, Any]]:
    """What keeps operators of ``graph`` off ``chip``: a warning for each reason that costs multiply-accumulates or keeps others
    off with it, a note for the others; one warning for a float model, of which integer engines take nothing."""
    from qdqtool.npu.analyzing import placed_on
    from qdqtool.npu.compiled import needs_library
    from qdqtool.quantization.quantized_files import way_to_pairs
    from qdqtool.verbs.advice.commands import untried

    if needs_library(graph):
        return []
    if chip.has_integers and not has_grids(graph):
        hint = f"quantize it: {way_to_pairs(path, chip.name)}"
        return [
            _finding("warning", PLACEMENT, PLACE, f"has no Q and DQ nodes, and {chip.name} computes on integers", hint)
        ]
    placed = placed_on(graph, chip)
    return [
        _finding(
            "warning" if refusal.macs or refusal.pulled else "note", PLACEMENT, refusal.nodes[0],
            f"{refusal.what} on the CPU: {refusal.reason}; {placed.target} takes {placed.text}",
            untried(refusal.suggestion, path, chip) if advisor is None else advisor.advice(refusal),
        )
        for refusal in placed.refusals
    ]  # fmt: skip


def _folder(folder: str, chip: Target | None, *, runtime: bool, progress: StageProgress | None) -> list[dict[str, Any]]:
    """Findings of a folder that `split` wrote: files against the hashes of the manifest, then graph by graph."""
    from qdqtool.io.files.progress import stage
    from qdqtool.io.models.load import load
    from qdqtool.llm.folder.manifest import read_manifest, verify_folder

    damaged = verify_folder(folder, progress=stage(progress, "hashing"))
    if damaged:
        return [finding.to_json() for finding in damaged]
    found = []
    for model in read_manifest(folder).models:
        for part in model.parts:
            path = os.path.join(folder, part.file)
            for finding in _findings(path, load(path), chip, runtime=runtime, trials=False):
                found.append({**finding, "where": f"{part.file}: {finding['where']}"})
    return found


def _verifier(graph: ir.Model) -> list[dict[str, Any]]:
    from qdq_passes.verification.rules import verify

    return [f.to_json() for f in verify(graph)]


def _checker(path: str, graph: ir.Model) -> list[dict[str, Any]]:
    """onnx.checker. What it rejects only for an operator of onnxruntime, our verifier has noted; onnxruntime decides about it."""
    import onnx.checker
    from qdq_passes.graph.shapes.guards import GUARDS, guarding
    from qdq_passes.graph.shapes.propagation import FAILURES
    from qdq_passes.graph.uses import all_nodes

    from qdqtool.io.models.parse import read_model

    is_text = os.path.splitext(path)[1].lower() in (".onnxtxt", ".json", ".textproto", ".prototxt", ".pbtxt")
    try:
        with guarding(GUARDS, strict=True):
            onnx.checker.check_model(read_model(path) if is_text else path, full_check=True)
    except (*FAILURES, OSError) as error:
        text = " ".join(str(error).split())
        noted = {f["where"] for f in _verifier(graph) if (f["level"], f["rule"]) == ("note", "known-operators")}
        if any(f"No Op registered for {n.op_type} " in text for n in all_nodes(graph) if n.name in noted):
            return []
        return [_finding("error", "onnx-checker", PLACE, text[:400], "export the model again, or edit what it names")]
    return []


def _runtime(graph: ir.Model) -> list[dict[str, Any]]:
    from qdq_passes.errors import QdqError, SetupError

    from qdqtool.npu.compiled import needs_library, open_model
    from qdqtool.npu.library import library_path

    if needs_library(graph):
        try:
            library_path()
        except SetupError as error:
            return [_finding("note", "npu-library", PLACE, f"is not loaded: {error.message}", error.hint or "")]
    try:
        open_model(graph)
    except SetupError:
        raise
    except QdqError as error:
        return [_finding("error", "onnxruntime-load", error.where or PLACE, error.message, error.hint or "")]
    return []


def _programs(graph: ir.Model, chip: Target | None) -> list[dict[str, Any]]:
    """Programs of an NPU in the model: damaged, or compiled for another target."""
    from qdqtool.npu.compiled import findings

    return [f.to_json() for f in findings(graph, chip)]


def _finding(level: str, rule: str, where: str, message: str, hint: str) -> dict[str, Any]:
    return {"level": level, "rule": rule, "where": where, "message": message, "hint": hint}


def _known(path: str) -> set[tuple[str, str]]:
    """(rule, place) of the findings of an earlier report."""
    from qdq_passes.errors import UsageError
    from qdq_passes.numerics.documents import json_of

    from qdqtool.io.files.read import read_text

    try:
        findings = json_of(read_text(path))["findings"]
        return {(f["rule"], f["where"]) for f in findings}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError("is no report of `qdqtool check --json`", where=path) from error


check = function_of(Check)
