"""Say of each node of MODEL whether an NPU computes it, why not, and what to change; exit 1 with errors or too little on it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.options import text
from qdqtool.cli.render import Out, megabytes, plural, say, table
from qdqtool.options import option
from qdqtool.verbs.groups import OnChip
from qdqtool.verbs.npu.analyze import Analyze
from qdqtool.verbs.npu.memory_plan import MemoryPlanOf

if TYPE_CHECKING:
    from qdqtool.npu.report import After, Analysis, BrokenRule, Reason

#: What is said of operators that run on the CPU because of others.
_POLICIES = {
    "region": "not taken, and with it all quantized operators that it is connected with",
    "whole-model": "not taken, and with it the whole model",
}
#: Partitions, reasons and findings shown without -v, and names of nodes in one line.
SHOWN, NAMES = 10, 3


@dataclass(frozen=True, kw_only=True)
class AnalyzeCommand(OnChip, Analyze):
    """`Analyze` as a command."""

    annotate: bool = option(
        False, "Write MODEL to OUTPUT with device, verdict and reason in its metadata.", before="outline"
    )


@command_of(AnalyzeCommand)
def analyze(out: Out, asked: AnalyzeCommand) -> int:
    from qdqtool.cli.tables.memory import show_memory
    from qdqtool.npu.analyzing import too_little
    from qdqtool.npu.shares import as_share
    from qdqtool.verbs.work.chip_times import chip_time, time_line

    model, output = text(asked.model), None if asked.output is None else text(asked.output)
    if os.path.isdir(model):
        if not asked.memory or output is not None or asked.require_npu is not None or asked.baseline is not None:
            raise UsageError("is a folder", where=model, hint="give one of its graphs, or --memory and --target alone")
        plan = MemoryPlanOf(model, target=asked.target).run()
        out.result({"model": model, "memory": plan.to_json()}, lambda: show_memory(plan))
        return 0
    if (asked.annotate or asked.outline) and output is None:
        raise UsageError("--annotate and --outline write a model", hint="say where: -o FILE")
    if output is not None and not (asked.annotate or asked.outline):
        raise UsageError("nothing to write", where=output, hint="give --annotate or --outline")
    found = ran(out, asked, "analyzing")
    told = chip_time(found.model, asked, on_cpu=found.on_cpu, crossings=len(found.partitions))

    def payload() -> dict[str, Any]:
        times = {} if told is None else {"chip_time": told}
        return {"model": model, **found.to_json(), "output": output, **times}

    def render() -> None:
        _render(found, out, model, output)
        if told is not None:
            say(time_line(told))
        if found.memory is not None:
            say()
            show_memory(found.memory)

    short = None if asked.require_npu is None else too_little(found, as_share(asked.require_npu))
    if short in found.failures:
        out.warn(f"{short}: {found.refusals[0].text}" if found.refusals else short)
    out.result(payload, render)
    return 1 if found.failures else 0


def _render(found: Analysis, out: Out, model: str, output: str | None) -> None:
    from qdqtool.cli.tables.saving import files_of

    say(
        f"{found.target}: {found.npu_compute_nodes} of {plural(found.compute_nodes, 'operator')} on the NPU "
        f"({found.npu_percent:.1f} %), {plural(len(found.partitions), 'partition')}, "
        f"{megabytes(found.boundary_bytes)} across their edges; verdict {found.verdict}{_share_of_macs(found)}"
    )
    for refusal in found.refusals:
        if refusal.pulled:
            say(f"{_POLICIES[found.policy]}: {refusal.who}")
    if not any(node.kind == "pair" for node in found.nodes) and (found.has_integers or not found.compute_nodes):
        say(_without_pairs(found, model))
    _partitions(found, everything=out.verbose)
    if out.verbose:
        _nodes(found)
    if found.rules:
        _rules(found.rules, everything=out.verbose)
    else:
        _reasons(found.reasons(), everything=out.verbose)
    _findings(found, everything=out.verbose)
    _advice(found)
    if output is not None:
        say(f"wrote {files_of(output, model)}")
    for failure in found.failures:
        say(f"failed: {failure}")


def _share_of_macs(found: Analysis) -> str:
    return f"; {found.macs_text}" if found.macs_text else ""


def _without_pairs(found: Analysis, model: str) -> str:
    from qdqtool.quantization.quantized_files import way_to_pairs

    if not found.compute_nodes:
        return "the model has no operators that compute or move data"
    return f"the model has no Q and DQ nodes: quantize it first, {way_to_pairs(model, found.target)}"


def _partitions(found: Analysis, *, everything: bool) -> None:
    if not found.partitions:
        return
    say()
    shown = found.partitions if everything else found.partitions[:SHOWN]
    rows = [
        (
            str(part.id),
            len(part.nodes),
            part.macs / 1e6,
            megabytes(part.weight_bytes),
            ", ".join(f"{c.name} {megabytes(c.bytes)}" for c in part.inputs[:NAMES]) + _more(len(part.inputs)),
            ", ".join(f"{c.name} {megabytes(c.bytes)}" for c in part.outputs[:NAMES]) + _more(len(part.outputs)),
        )
        for part in shown
    ]
    table(("partition", "nodes", "MMACs", "weights", "reads", "writes"), rows)
    if len(found.partitions) > len(shown):
        say(f"and {plural(len(found.partitions) - len(shown), 'more partition')} (-v)")


def _nodes(found: Analysis) -> None:
    say()
    rows = [
        (n.name, n.op, n.placement.device, n.placement.verdict, n.placement.partition, n.placement.rule)
        for n in found.nodes
    ]
    table(("node", "operator", "device", "verdict", "partition", "rule"), rows)


def _reasons(reasons: list[Reason], *, everything: bool) -> None:
    """Two or three lines each: who, why, and what would mend it."""
    shown = reasons if everything else reasons[:SHOWN]
    for reason in shown:
        placement, names = reason.placement, [node.name for node in reason.nodes]
        listed = ", ".join(names if everything else names[:NAMES]) + ("" if everything else _more(len(names)))
        say()
        say(f"{placement.verdict}  {len(names)} × {', '.join(reason.ops)}  [{placement.rule}]  {listed}")
        if placement.reason:
            say(f"    {placement.reason}")
        if placement.suggestion:
            each = len({node.placement.suggestion for node in reason.nodes}) > 1
            say(f"    → {placement.suggestion}{' (the first; --json has that of each)' if each else ''}")
    if len(reasons) > len(shown):
        say(f"and {plural(len(reasons) - len(shown), 'more reason')} (-v)")


def _rules(rules: Sequence[BrokenRule], *, everything: bool) -> None:
    """Where one refused node refuses the model: each rule that is not kept, by which nodes, and what would mend it."""
    for rule in rules:
        listed = ", ".join(rule.nodes if everything else rule.nodes[:NAMES])
        say()
        more = "" if everything else _more(len(rule.nodes))
        say(f"{rule.verdict}  {len(rule.nodes)} × {', '.join(rule.ops)}  [{rule.rule}]  {listed}{more}")
        say(f"    {rule.reason}")
        if rule.suggestion:
            say(f"    → {rule.suggestion}")


def _findings(found: Analysis, *, everything: bool) -> None:
    """The first finding of each rule, and how many there are."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for finding in found.findings:
        groups.setdefault((finding.level, finding.rule), []).append(finding)
    if groups:
        say()
    for (level, rule), findings in groups.items():
        for finding in findings if everything else findings[:1]:
            hint = f"; {finding.hint}" if finding.hint else ""
            say(f"{level:<7}  {rule}  {finding.where}: {finding.message}{hint}")
        if len(findings) > 1 and not everything:
            say(f"         and {len(findings) - 1} more {rule} (-v)")
    if found.known_errors:
        say(f"{plural(found.known_errors, 'error')} known from the baseline")


def _advice(found: Analysis) -> None:
    if found.repairs or found.cut is not None:
        say()
    for number, repair in enumerate(found.repairs, start=1):
        listed = ", ".join(repair.nodes[:NAMES]) + _more(len(repair.nodes))
        mend = repair.suggestion or repair.reason
        say(f"mend {number}: {len(repair.nodes)} × {', '.join(repair.ops)} ({listed}): {mend}")
        say(f"    then {_after(repair.after)}")
    if found.cut is not None:
        say(
            f"{'or ' if found.repairs else ''}cut off the head, {plural(found.cut.nodes, 'operator')}: {found.cut.command}"
        )
        say(f"    then {_after(found.cut.after)}")


def _after(after: After) -> str:
    return (
        f"{after.npu_compute_nodes} of {plural(after.compute_nodes, 'operator')} on the NPU, "
        f"{plural(after.partitions, 'partition')}, {megabytes(after.boundary_bytes)} across their edges"
    )


def _more(count: int) -> str:
    return f" and {count - NAMES} more" if count > NAMES else ""


command = analyze
