"""Run a quantized MODEL on the simulated NPU in onnxruntime: agreement, placement, wall time, and an estimate for the target."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.options import command, image_settings, model_argument, sample_options
from qdqtool.cli.render import EXACT, Out, megabytes, plural, say, table

if TYPE_CHECKING:
    from qdqtool.npu.estimated import NodeEstimate
    from qdqtool.npu.simulated import Simulation

#: Nodes of the estimate, and operators on the CPU, that are shown without -v.
SHOWN = 10
#: Samples without --samples: the reference is slow.
SAMPLES = 16
NODE_COLUMNS = (
    "node (estimate)", "operator", "µs", "MACs", "DRAM bytes", "cycles: matrix", "vector", "DRAM", "bound by", "utilisation",
)  # fmt: skip


@command()
@model_argument
@click.option("--target", metavar="NAME|FILE", help="The NPU (`list targets`); a compiled model says it itself.")
@click.option(
    "--data", metavar="D", required=True,
    help="Samples: file.npz, a folder of .npz or of images, module:function, or random:N[:SEED].",
)  # fmt: skip
@sample_options(SAMPLES)
@click.option(
    "--float", "float_model", metavar="FILE", help="The float model; else MODEL without its activation pairs."
)
@click.option("--against", metavar="FILE", help="Of a compiled MODEL, the QDQ model that it was compiled from.")
@click.option(
    "--boundary", type=click.Choice(["cpu", "npu"]), help="Where Q and DQ at float ends run, not as the target says."
)
@click.option(
    "--optimize", is_flag=True, help="Let onnxruntime optimize first, as an application's session does by default."
)
@click.option(
    "--threads",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="N",
    help="Threads inside an operator; 0: onnxruntime's choice.",
)
@click.option(
    "--reference/--no-reference", default=True, help="Compare with the numpy reference (slow), or with the QDQ model."
)
@click.option(
    "--min-sqnr", type=float, metavar="DB", help="Exit 1 when an output is below this SQNR to the float model."
)
@click.option(
    "--trace", metavar="FILE", help="Write a timeline of the estimate (JSON, for chrome://tracing or Perfetto)."
)
@click.option("-o", "--output", metavar="FILE", help="Write the outputs of the NPU to an .npz.")
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@click.option("--ep-library", metavar="FILE", help="Run on the provider of this library instead of the simulated NPU.")
@click.option("--ep-name", metavar="NAME", help="... of this name; can be left out when the library has one.")
@click.option("--ep-option", "ep_options", multiple=True, metavar="K=V", help="An option of the provider (repeat).")
def simulate(
    out: Out, model: str, min_sqnr: float | None, ep_options: tuple[str, ...], trace: str | None, output: str | None,
    **options: Any,
) -> int:  # fmt: skip
    """Run a quantized MODEL on the simulated NPU of --target inside onnxruntime, and compare with the reference.

    MODEL is QDQ, or what `compile` wrote. Exit 1 when an output of the simulated NPU differs from the reference.
    """
    from qdqtool import api
    from qdqtool.cli.options import refuse_inputs

    if min_sqnr is not None and math.isnan(min_sqnr):
        raise click.UsageError("--min-sqnr is no number")
    inputs = [
        model,
        options["data"],
        options["float_model"],
        options["against"],
        options["target"],
        options["ep_library"],
    ]
    for file in filter(None, (trace, output)):
        refuse_inputs(file, inputs)
    image = image_settings(options)
    with out.progress("simulating") as tick:
        found = api.simulate(
            model, image=image, trace=trace, output=output, ep_options=_options(ep_options), progress=tick, warn=out.warn,
            **options,
        )  # fmt: skip
    for text in found.notes:
        out.note(f"note: {text}")
    below = min_sqnr is not None and _is_below(found, min_sqnr)
    out.result(found.to_json(), lambda: _render(found, out.verbose, trace, output))
    wrong = found.base_is_reference and not options["optimize"] and not found.is_exact
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


def _options(given: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for key, equals, _ in pairs:
        if not equals or not key:
            raise click.UsageError(f"--ep-option {key!r} has no value; write KEY=VALUE")
    return {key: value for key, _, value in pairs}


def _render(found: Simulation, everything: bool, trace: str | None, output: str | None) -> None:
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
    shown = on_cpu if everything else on_cpu[:SHOWN]
    say()
    table(("on the CPU", "operator", "reason"), [(n.name, n.op, _why(n.reason, n.suggestion)) for n in shown])
    if len(on_cpu) > len(shown):
        say(f"and {len(on_cpu) - len(shown)} more (-v)")
    say()


def _why(reason: str, suggestion: str) -> str:
    return f"{reason}; {suggestion}" if suggestion else reason or "-"


def _estimate(found: Simulation, everything: bool) -> None:
    estimate = found.estimate
    assert estimate is not None
    figures = len(estimate.assumptions)
    assumed = sum(a.confidence == "assumed" for a in estimate.assumptions)
    time = "no estimate" if estimate.us is None else f"about {_us(estimate.us):,} µs a run"
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
    for text in estimate.notes:
        say(text)


def _node(node: NodeEstimate) -> tuple[object, ...]:
    from qdqtool.npu.estimated import RESOURCES

    return (
        node.name, node.op, _us(node.us), node.macs, megabytes(node.dram_bytes),
        *(round(node.cycles.get(key, 0.0)) for key in RESOURCES), RESOURCES.get(node.bound_by, "-"),
        None if node.utilisation is None else f"{node.utilisation:.0%}",
    )  # fmt: skip


def _us(us: float | None) -> object:
    """Microseconds with as many digits as an estimate has, at most."""
    return None if us is None else round(us) if us >= 100 else round(us, 2)


command = simulate
