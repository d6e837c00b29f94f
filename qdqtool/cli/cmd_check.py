"""Check MODEL with our verifier, with onnx.checker and in the installed onnxruntime; exit 1 with findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.render import Out, plural, say
from qdqtool.verbs.check import Check

if TYPE_CHECKING:
    import onnx_ir as ir


#: Warnings and notes that are shown without ``--verbose``, the worst; errors are all shown.
SHOWN = 5
_KINDS = ("warning", "note")


@command_of(Check)
def check(out: Out, asked: Check) -> int:
    found = ran(out, asked, "checking")
    payload = {"model": asked.model, **found.to_json()}
    out.result(payload, lambda: _render(payload, found.graph, out.verbose))
    return 1 if found.errors else 0


def _render(payload: dict[str, Any], graph: ir.Model | None, verbose: bool) -> None:
    worst_first = [f for kind in _KINDS for f in payload["findings"] if f["level"] == kind]
    left = [] if verbose else worst_first[SHOWN:]
    for f in payload["findings"]:
        if any(f is other for other in left):
            continue
        hint = f"; {f['hint']}" if f["hint"] else ""
        say(f"{f['level']:<7}  {f['rule']}  {f['where']}: {f['message']}{hint}")
    if left:
        counts = {kind: sum(f["level"] == kind for f in left) for kind in _KINDS}
        say(f"… and {' and '.join(plural(count, f'more {kind}') for kind, count in counts.items() if count)}: -v")
    if not payload["findings"]:
        say("no findings")
    if payload["known_errors"]:
        say(f"{plural(payload['known_errors'], 'error')} known from the baseline, {payload['errors']} new")
    if graph is None:
        return
    opset = graph.opset_imports.get("", 0)
    say(f"IR {graph.ir_version}, opset {opset}: onnxruntime that reads it: {payload['onnxruntime']}")


command = check
