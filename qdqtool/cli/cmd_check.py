"""Check MODEL with our verifier, with onnx.checker and in the installed onnxruntime; exit 1 with findings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.linting import lint_findings, lint_options
from qdqtool.cli.options import command, load_model, model_argument
from qdqtool.cli.render import Out, plural, say

if TYPE_CHECKING:
    import onnx_ir as ir

    from qdqtool.targets.target import Target

#: Place of a finding that names no node; the same wherever the file lies, so that a baseline fits.
MODEL = "model"


@command()
@model_argument
@click.option("--target", metavar="NAME|FILE", help="Look for the traps of this target too (`list targets`).")
@click.option("--no-runtime", is_flag=True, help="Do not try to load the model in the installed onnxruntime.")
@click.option(
    "--baseline", metavar="FILE", help="JSON of an earlier check: exit 1 only on errors that it does not have."
)
@lint_options
def check(out: Out, model: str, target: str | None, no_runtime: bool, baseline: str | None, **lints: Any) -> int:
    """Check MODEL with our verifier, with onnx.checker and in the installed onnxruntime; exit 1 with findings.

    MODEL may be a folder that `split` wrote: its files are compared with the hashes of the manifest, then checked graph by
    graph. Traps, which integer backends fall into silently, are warnings and notes; they change no exit code. Nor do lints:
    with --data, where the values of a model do not suit its grids (a Concat of unlike branches, a steep function, dead slices).
    """
    from qdqtool.io.models.versions import loadable_in
    from qdqtool.targets.loading import load_target

    chip = load_target(target) if target is not None else None
    if os.path.isdir(model):
        findings, graph = _folder(out, model, chip, no_runtime), None
    else:
        graph = load_model(model)
        findings = _findings(model, graph, chip, no_runtime)
    if not any(f["level"] in ("error", "fatal") for f in findings):  # what does not run has no values
        findings = [*findings, *lint_findings(out, model, graph, lints)]
    errors = [f for f in findings if f["level"] in ("error", "fatal")]
    known = _known(baseline) if baseline is not None else set()
    new = [f for f in errors if (f["rule"], f["where"]) not in known]
    payload = {
        "model": model,
        "target": chip.name if chip is not None else None,
        "findings": findings,
        "onnxruntime": loadable_in(graph) if graph is not None else None,
        "errors": len(new),
        "known_errors": len(errors) - len(new),
    }
    out.result(payload, lambda: _render(payload, graph))
    return 1 if new else 0


def _findings(path: str, graph: ir.Model, chip: Target | None, no_runtime: bool) -> list[dict[str, Any]]:
    """All findings of one model."""
    from qdqtool.targets.findings import silent_findings

    silent = [finding.to_json() for finding in silent_findings(graph, chip)]
    found = [*_verifier(graph), *_checker(path, graph), *silent, *_programs(graph, chip)]
    return found if no_runtime else [*found, *_runtime(graph)]


def _folder(out: Out, folder: str, chip: Target | None, no_runtime: bool) -> list[dict[str, Any]]:
    """Findings of a folder that `split` wrote: files against the hashes of the manifest, then graph by graph."""
    from qdqtool.llm.folder.manifest import read_manifest, verify_folder

    with out.progress("hashing") as tick:
        damaged = verify_folder(folder, progress=lambda done, total: tick("hashing", done, total))
    if damaged:
        return [finding.to_json() for finding in damaged]
    found = []
    for model in read_manifest(folder).models:
        for part in model.parts:
            path = os.path.join(folder, part.file)
            for finding in _findings(path, load_model(path), chip, no_runtime):
                found.append({**finding, "where": f"{part.file}: {finding['where']}"})
    return found


def _verifier(graph: ir.Model) -> list[dict[str, Any]]:
    from qdq_passes.verification.rules import verify

    return [f.to_json() for f in verify(graph)]


def _checker(path: str, graph: ir.Model) -> list[dict[str, Any]]:
    """onnx.checker. What it rejects only for an operator of onnxruntime, our verifier has noted; onnxruntime decides about it."""
    import onnx.checker
    from qdq_passes.graph.uses import all_nodes

    from qdqtool.io.models.parse import read_model

    is_text = os.path.splitext(path)[1].lower() in (".onnxtxt", ".json", ".textproto", ".prototxt", ".pbtxt")
    try:
        onnx.checker.check_model(read_model(path) if is_text else path, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, OSError) as error:
        text = " ".join(str(error).split())
        noted = {f["where"] for f in _verifier(graph) if (f["level"], f["rule"]) == ("note", "known-operators")}
        if any(f"No Op registered for {n.op_type} " in text for n in all_nodes(graph) if n.name in noted):
            return []
        return [_finding("error", "onnx-checker", MODEL, text[:400], "export the model again, or edit what it names")]
    return []


def _runtime(graph: ir.Model) -> list[dict[str, Any]]:
    from qdq_passes.errors import QdqError, SetupError

    from qdqtool.npu.compiled import needs_library, open_model
    from qdqtool.npu.library import library_path

    if needs_library(graph):
        try:
            library_path()
        except SetupError as error:
            return [_finding("note", "npu-library", MODEL, f"is not loaded: {error.message}", error.hint or "")]
    try:
        open_model(graph)
    except SetupError:
        raise
    except QdqError as error:
        return [_finding("error", "onnxruntime-load", error.where or MODEL, error.message, error.hint or "")]
    return []


def _programs(graph: ir.Model, chip: Target | None) -> list[dict[str, Any]]:
    """Programs of an NPU in the model: damaged, or compiled for another target."""
    from qdqtool.npu.compiled import findings

    return [f.to_json() for f in findings(graph, chip)]


def _finding(level: str, rule: str, where: str, message: str, hint: str) -> dict[str, Any]:
    return {"level": level, "rule": rule, "where": where, "message": message, "hint": hint}


def _known(path: str) -> set[tuple[str, str]]:
    """(rule, place) of the findings of an earlier report."""
    import json

    from qdq_passes.errors import UsageError

    from qdqtool.io.files.read import read_text

    try:
        findings = json.loads(read_text(path))["findings"]
        return {(f["rule"], f["where"]) for f in findings}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError("is no report of `qdqtool check --json`", where=path) from error


def _render(payload: dict[str, Any], graph: ir.Model | None) -> None:
    for f in payload["findings"]:
        hint = f"; {f['hint']}" if f["hint"] else ""
        say(f"{f['level']:<7}  {f['rule']}  {f['where']}: {f['message']}{hint}")
    if not payload["findings"]:
        say("no findings")
    if payload["known_errors"]:
        say(f"{plural(payload['known_errors'], 'error')} known from the baseline, {payload['errors']} new")
    if graph is None:
        return
    opset = graph.opset_imports.get("", 0)
    say(f"IR {graph.ir_version}, opset {opset}: onnxruntime that reads it: {payload['onnxruntime']}")


command = check
