"""Check MODEL with our verifier, with onnx.checker and in the installed onnxruntime; exit 1 with findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.render import Out, plural, say
from qdqtool.verbs.check import Check

if TYPE_CHECKING:
    import onnx_ir as ir


@command_of(Check)
def check(out: Out, asked: Check) -> int:
    found = ran(out, asked, "checking")
    payload = {"model": asked.model, **found.to_json()}
    out.result(payload, lambda: _render(payload, found.graph))
    return 1 if found.errors else 0


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
