"""Run a quantized MODEL on the simulated NPU in onnxruntime: agreement, placement, wall time, and an estimate for the target."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click
from qdq_passes._lazy_dataclass import dataclass

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.options import text
from qdqtool.cli.render import EXACT, Out, megabytes, plural, say, table
from qdqtool.options import option
from qdqtool.verbs.npu.simulate import Simulate
from qdqtool.verbs.work.chip_times import time_line

if TYPE_CHECKING:
    from qdqtool.npu.estimated import NodeEstimate
    from qdqtool.npu.simulated import Simulation

#: Nodes of the estimate, and reasons of the CPU, that are shown without -v; operators in one line.
SHOWN, OPS = 10, 3
NODE_COLUMNS = (
    "node (estimate)", "operator", "µs", "MACs", "DRAM bytes", "cycles: matrix", "vector", "DRAM", "bound by", "utilisation",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SimulateCommand(Simulate):
    """`Simulate` as a command."""

    min_sqnr: float | None = option(
        None, "Exit 1 when an output is below this SQNR to the float model.", value="DB", before="trace"
    )


@command_of(SimulateCommand)
def simulate(out: Out, asked: SimulateCommand) -> int:
    if asked.min_sqnr is not None and math.isnan(asked.min_sqnr):
        raise click.UsageError("--min-sqnr is no number")
    trace, output = (None if file is None else text(file) for file in (asked.trace, asked.output))
    found = ran(out, asked, "simulating")
    for note in found.notes:
        out.note(f"note: {note}")
    below = asked.min_sqnr is not None and _is_below(found, asked.min_sqnr)
    out.result(found.to_json, lambda: _render(found, out.verbose, trace, output))
    wrong = found.base_is_reference and not asked.optimize and not found.is_exact
    return 1 if below or wrong else 0


def _is_below(found: Simulation, db: float) -> bool:
    """Whether the SQNR of an output to the float model is below ``db``.

    Raises:
        UsageError: no output has one.
    """
    figures = [figure for output in found.outputs if (figure := output.against.get("npu/float")) is not None]
    if not figures:
        from qdq_passes.errors import UsageError

        hint = "give --against for a compiled model, or --float with the outputs of MODEL"
        raise UsageError("--min-sqnr has nothing to look at: no output is compared with a float model", hint=hint)
    return any(figure.sqnr_db is not None and figure.sqnr_db < db for figure in figures)


def _render(found: Simulation, everything: bool, trace: str | None, output: str | None) -> None:
    if found.is_cpu_alone:
        say("the CPU was compared with itself: nothing of the model runs on the NPU")
        say()
    _outputs(found)
    say()
    say(
        f"{found.device} against {found.base}, {plural(found.samples, 'sample')}"
        if found.base
        else f"{found.device}, {plural(found.samples, 'sample')}"
    )
    _placement(found, everything)
    if found.wall_s is not None:
        say(f"wall time: {1e3 * found.wall_s:.3g} ms a run on this machine, which says nothing about the target")
    if found.estimate is not None:
        _estimate(found, everything)
    if found.chip_time is not None:
        say(time_line(found.chip_time))
    for what, file in (("timeline of the estimate", trace), ("outputs", output)):
        if file is not None:
            say(f"wrote the {what}: {file}")


def _outputs(found: Simulation) -> None:
    pairs = [key for key in ("npu/qdq", "npu/float", "qdq/float") if any(key in o.against for o in found.outputs)]
    titles = {"npu/qdq": "SQNR dB to QDQ", "npu/float": "to float", "qdq/float": "QDQ to float"}
    rows = [
        (
            o.name,
            o.max_lsb,
            o.exact,
            *(None if key not in o.against else _sqnr(o.against[key].sqnr_db) for key in pairs),
        )
        for o in found.outputs
    ]
    table(("output", "max LSB", "exact", *(titles[key] for key in pairs)), rows)


def _sqnr(db: float | None) -> object:
    return EXACT if db is None else round(db, 2)


def _placement(found: Simulation, everything: bool) -> None:
    placement = found.placement
    if placement is None:
        return
    by = "onnxruntime says" if placement.source == "onnxruntime" else "the partitioner says"
    say(
        f"placement: {placement.npu_nodes} of {plural(len(placement.nodes), 'operator')} on the NPU in"
        f" {plural(placement.partitions, 'partition')}, {placement.cpu_nodes} on the CPU ({by})"
    )
    on_cpu = [node for node in placement.nodes if node.partition is None]
    if not on_cpu:
        return
    say()
    if everything:
        table(("on the CPU", "operator", "reason"), [(n.name, n.op, n.why) for n in on_cpu])
    else:
        groups = placement.reasons()
        rows = [(len(nodes), _some([n.op for n in nodes]), nodes[0].name, nodes[0].why) for nodes in groups[:SHOWN]]
        table(("on the CPU", "operators", "for example", "reason"), rows)
        if len(groups) > len(rows):
            say(f"and {plural(len(groups) - len(rows), 'more reason')} (-v: node by node)")
    say()


def _some(ops: list[str]) -> str:
    """The first operators of ``ops``, each once."""
    found = list(dict.fromkeys(ops))
    return ", ".join(found[:OPS]) + (f" and {len(found) - OPS} more" if len(found) > OPS else "")


def _estimate(found: Simulation, everything: bool) -> None:
    estimate = found.estimate
    assert estimate is not None
    figures = len(estimate.assumptions)
    assumed = sum(a.confidence == "assumed" for a in estimate.assumptions)
    if not estimate.partitions:
        say(f"no estimate for {estimate.target}: nothing runs on the NPU")
        return
    time = "no estimate" if estimate.us is None else f"about {_us(estimate.us)} µs a run"
    say(
        f"estimate for {estimate.target}: {time}; computed from the target's numbers, {assumed} of {figures} of them assumed;"
        " nothing was measured"
    )
    ran = [node for node in estimate.nodes if node.partition is not None]
    shown = ran if everything else sorted(ran, key=lambda n: -(n.us or 0.0))[:SHOWN]
    if shown:
        say()
        table(NODE_COLUMNS, [_node(node) for node in shown])
        if len(ran) > len(shown):
            say(f"and {len(ran) - len(shown)} more, cheaper (-v)")
    if estimate.partitions:
        say()
        parts = estimate.partitions if everything else estimate.partitions[:SHOWN]
        table(
            ("partition (estimate)", "µs", "dispatch", "transfer in", "nodes", "transfer out", "bytes in", "bytes out"),
            [
                (p.id, *map(_us, (p.us, p.dispatch_us, p.in_us, p.nodes_us, p.out_us)), p.in_bytes, p.out_bytes)
                for p in parts
            ],
        )
    for note in estimate.notes:
        say(note)


def _node(node: NodeEstimate) -> tuple[object, ...]:
    from qdqtool.npu.estimated import RESOURCES

    return (
        node.name, node.op, _us(node.us), node.macs, megabytes(node.dram_bytes),
        *(round(node.cycles.get(key, 0.0)) for key in RESOURCES), RESOURCES.get(node.bound_by, "-"),
        None if node.utilisation is None else f"{node.utilisation:.0%}",
    )  # fmt: skip


def _us(us: float | None) -> object:
    """Microseconds with as many digits as an estimate has, at most."""
    if us is None or us >= 100:
        return None if us is None else f"{round(us):,}"
    return "0" if us == 0 else f"{us:.2g}" if us < 1 else f"{us:.3g}"


command = simulate
