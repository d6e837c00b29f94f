"""Say of each node of MODEL whether an NPU computes it, why not, and what to change; exit 1 with errors or too little on it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.compiling import target_options
from qdqtool.cli.options import command, model_argument
from qdqtool.cli.render import Out, megabytes, plural, say, table

if TYPE_CHECKING:
    from qdqtool.npu.report import After, Analysis, BrokenRule, Reason

#: Partitions, reasons and findings shown without -v, and names of nodes in one line.
SHOWN, NAMES = 10, 3


@command()
@model_argument
@target_options
@click.option(
    "--simulated", is_flag=True, help="What the simulated NPU runs; it leaves to the CPU what it has no kernel for."
)
@click.option("--require-npu", metavar="PERCENT", help="Exit 1 when fewer of the operators are on the NPU: 100%, 95%.")
@click.option(
    "--baseline", metavar="FILE", help="JSON of an earlier analysis: exit 1 only when something is worse than there."
)
@click.option(
    "--memory", is_flag=True,
    help="Also plan its memory on the target: weights, KV cache, activations; MODEL may be a folder that `split` wrote.",
)  # fmt: skip
@click.option("--annotate", is_flag=True, help="Write MODEL to OUTPUT with device, verdict and reason in its metadata.")
@click.option("--outline", is_flag=True, help="… and with each partition as a local function, one box in Netron.")
@click.option("-o", "--output", metavar="FILE", help="Where to write the model; parent folders are made.")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option("--no-provenance", is_flag=True, help="Leave out the metadata entry that says what was done.")
def analyze(
    out: Out,
    model: str,
    output: str | None,
    annotate: bool,
    outline: bool,
    overwrite: bool,
    require_npu: str | None,
    **options: Any,
) -> int:
    """Say of each node of MODEL whether an NPU computes it, why not, and what to change; exit 1 with errors or too little on it.

    Errors are what the target computes silently wrong; they change no verdict.
    """
    from qdq_passes.errors import UsageError

    from qdqtool import api
    from qdqtool.cli.memory_tables import show_memory
    from qdqtool.cli.saving import refuse_output

    if os.path.isdir(model):
        if not options["memory"] or output is not None or require_npu is not None or options["baseline"] is not None:
            raise UsageError("is a folder", where=model, hint="give one of its graphs, or --memory and --target alone")
        plan = api.memory_plan(model, target=options["target"])
        out.result({"model": model, "memory": plan.to_json()}, lambda: show_memory(plan))
        return 0
    if (annotate or outline) and output is None:
        raise UsageError("--annotate and --outline write a model", hint="say where: -o FILE")
    if output is not None:
        if not (annotate or outline):
            raise UsageError("nothing to write", where=output, hint="give --annotate or --outline")
        refuse_output(output, overwrite, model, options["baseline"])
    share = None if require_npu is None else _percent(require_npu)
    with out.progress("analyzing"):
        found = api.analyze(
            model, output, require_npu=share, outline=outline, overwrite=overwrite, warn=out.warn, **options
        )
    payload = {"model": model, **found.to_json(), "output": output}

    def render() -> None:
        _render(found, out, output)
        if found.memory is not None:
            say()
            show_memory(found.memory)

    out.result(payload, render)
    return 1 if found.failures else 0


def _percent(text: str) -> float:
    """``95%`` or ``95``.

    Raises:
        UsageError: it is no share of 0 to 100 percent.
    """
    from qdq_passes.errors import UsageError

    try:
        share = float(text.removesuffix("%"))
    except ValueError:
        share = -1.0
    if not 0 <= share <= 100:
        raise UsageError(f"--require-npu {text!r} is no share", hint="write 95%, up to 100%")
    return share


def _render(found: Analysis, out: Out, output: str | None) -> None:
    say(
        f"{found.target}: {found.npu_compute_nodes} of {plural(found.compute_nodes, 'operator')} on the NPU "
        f"({found.npu_percent:.1f} %), {plural(len(found.partitions), 'partition')}, "
        f"{megabytes(found.boundary_bytes)} across their edges; verdict {found.verdict}{_share_of_macs(found)}"
    )
    if not any(node.kind == "pair" for node in found.nodes) and (found.has_integers or not found.compute_nodes):
        say(_without_pairs(found))
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
        say(f"wrote {output}")
    for failure in found.failures:
        say(f"failed: {failure}")


def _share_of_macs(found: Analysis) -> str:
    return "" if found.npu_macs_share is None else f"; {100 * found.npu_macs_share:.1f} % of the MACs"


def _without_pairs(found: Analysis) -> str:
    if not found.compute_nodes:
        return "the model has no operators that compute or move data"
    return f"the model has no Q and DQ nodes: quantize it first, `qdqtool quantize --target {found.target}`"


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
