"""Results as the test cases of a JUnit file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qdqtool.io.files.junit import Case

if TYPE_CHECKING:
    from qdqtool.npu.report import Analysis
    from qdqtool.verbs.check import Checked
    from qdqtool.verbs.work.deployment import Deployment

_ERRORS = ("error", "fatal")


def cases_of_check(found: Checked) -> list[Case]:
    """Return a case for each finding; new errors fail."""
    cases = []
    for finding in found.findings:
        text = f"{finding['where']}: {finding['message']}{'; ' if finding['hint'] else ''}{finding['hint']}"
        is_new = finding["level"] in _ERRORS and (finding["rule"], finding["where"]) not in found.known
        failure = text if is_new else ""
        cases.append(
            Case(name=f"{finding['rule']} {finding['where']}", group=finding["level"], failure=failure, note=text)
        )
    return cases


def cases_of_analysis(found: Analysis) -> list[Case]:
    """Return a case for each operator, skipped where the CPU runs it, and one that fails for each failure."""
    nodes = [node for node in found.nodes if node.is_compute]
    operators = [
        Case(
            name=f"{node.name} ({node.op})", group=found.target, note=node.placement.suggestion,
            skipped="" if node.is_npu else f"on the CPU: {node.placement.reason or node.placement.rule}",
        )
        for node in nodes
    ]  # fmt: skip
    return [*operators, *_bounds(found.target, found.failures)]


def cases_of_deployment(found: Deployment) -> list[Case]:
    """Return a case for each output, which fails where it misses its bound, and one that fails for each other bound."""
    missed = found.missed
    texts = {
        output.name: [text for text in missed if text.startswith(f"output {output.text}:")] for output in found.outputs
    }
    outputs = [
        Case(
            name=f"output {output.name}", group=found.target, failure="; ".join(texts[output.name]),
            note="exact" if output.agreement.sqnr_db is None else f"SQNR {output.agreement.sqnr_db:.1f} dB",
        )
        for output in found.outputs
    ]  # fmt: skip
    told = {text for each in texts.values() for text in each}
    return [*outputs, *_bounds(found.target, [text for text in missed if text not in told])]


def _bounds(target: str, missed: Sequence[str]) -> list[Case]:
    return [Case(name=f"bound {number}", group=target, failure=text) for number, text in enumerate(missed, 1)]
