"""Check MODEL with our verifier, with onnx.checker and in the installed onnxruntime; exit 1 with findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.options import command, model_argument
from qdqtool.cli.render import Out, say, table

if TYPE_CHECKING:
    import onnx_ir as ir


@command()
@model_argument
@click.option("--no-runtime", is_flag=True, help="Do not try to load the model in the installed onnxruntime.")
@click.option(
    "--baseline", metavar="FILE", help="JSON of an earlier check: exit 1 only on errors that it does not have."
)
def check(out: Out, model: str, no_runtime: bool, baseline: str | None) -> int:
    """Check MODEL with our verifier, with onnx.checker and in the installed onnxruntime; exit 1 with findings."""
    from qdqtool.cli.options import load_model

    graph = load_model(out, model)
    findings = [*_verifier(graph), *_checker(model, graph)]
    if not no_runtime:
        findings += _runtime(model)
    errors = [f for f in findings if f["level"] in ("error", "fatal")]
    if baseline is not None:
        known = _known(baseline)
        errors = [f for f in errors if (f["rule"], f["where"]) not in known]
    from qdqtool.io.versions import loadable_in

    payload = {"model": model, "findings": findings, "onnxruntime": loadable_in(graph), "errors": len(errors)}
    out.result(payload, lambda: _render(payload))
    return 1 if errors else 0


def _verifier(graph: ir.Model) -> list[dict[str, Any]]:
    from qdq_passes.core.verify import verify

    return [f.to_json() for f in verify(graph)]


def _checker(path: str, graph: ir.Model) -> list[dict[str, Any]]:
    """onnx.checker; what it rejects only for an operator that it does not know is a note, onnxruntime decides about those."""
    import onnx.checker
    from qdq_passes.analysis.uses import all_nodes

    try:
        onnx.checker.check_model(path, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, OSError) as error:
        text = " ".join(str(error).split())
        contrib = next((n for n in all_nodes(graph) if f"No Op registered for {n.op_type} " in text), None)
        if contrib is not None:
            return [
                _finding("note", "onnx-checker-contrib", contrib.name or contrib.op_type,
                         f"{contrib.op_type} is a contrib operator of onnxruntime, onnx.checker does not know it",
                         "load it in onnxruntime; other tools may refuse it")
            ]  # fmt: skip
        return [_finding("error", "onnx-checker", path, text[:400], "see the message of onnx.checker")]
    return []


def _runtime(path: str) -> list[dict[str, Any]]:
    from qdqtool.runtime.session import load_check, version

    error = load_check(path)
    if error is None:
        return []
    return [
        _finding(
            "error", "onnxruntime-load", path, f"onnxruntime {version()} refuses it: {error}", "see `onnxruntime` above"
        )
    ]


def _finding(level: str, rule: str, where: str, message: str, hint: str) -> dict[str, Any]:
    return {"level": level, "rule": rule, "where": where, "message": message, "hint": hint}


def _known(path: str) -> set[tuple[str, str]]:
    import json
    from pathlib import Path

    from qdq_passes.errors import UsageError

    try:
        findings = json.loads(Path(path).read_text())["findings"]
        return {(f["rule"], f["where"]) for f in findings}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError("is no report of `qdqtool check --json`", where=path) from error


def _render(payload: dict[str, Any]) -> None:
    findings = payload["findings"]
    if findings:
        rows = [(f["level"], f["rule"], f["where"], f["message"], f["hint"]) for f in findings]
        table(("level", "rule", "where", "message", "what to do"), rows)
    else:
        say("no findings")
    say(f"loads in onnxruntime {payload['onnxruntime']}")


command = check
