"""Insert pairs on selected tensors with an encoding given, or on a model from ranges or an encodings file."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.options import command
from qdqtool.cli.qdq.editing import Step, boundaries_option, edit_options, optionally_selected, run_edit
from qdqtool.cli.render import Out

if TYPE_CHECKING:
    from qdq_passes.pipeline.pipeline import Report


@command(name="insert")
@edit_options
@click.option("--scale", "scales", multiple=True, type=float, metavar="S", help="Scale; repeat for per-axis or blocks.")
@click.option("--zero-point", "zero_points", multiple=True, type=int, metavar="Z", help="Zero point; 0 by default.")
@click.option("--dtype", metavar="TYPE", help="Storage type; int8 by default.")
@click.option("--axis", type=int, metavar="N", help="Axis of per-axis or blocked scales.")
@click.option("--block-size", type=click.IntRange(min=1), metavar="N", help="Elements of the axis per scale.")
@click.option("--ranges", metavar="FILE", help="Choose encodings from the ranges that `calibrate` wrote.")
@click.option(
    "--encodings",
    metavar="FILE",
    help="Take encodings from a file of AIMET, QNN or onnxruntime; see `encodings import`.",
)
@click.option(
    "--scales",
    "policy",
    type=click.Choice(["pow2", "any"]),
    help="With --ranges: powers of two (default), or any scale.",
)
@click.option("--asymmetric", is_flag=True, help="With --ranges: activations have a zero point.")
@click.option(
    "--dynamic", is_flag=True, help="Scales computed in the graph from each input (onnxruntime's dynamic quantization)."
)
@click.option("--per-token", is_flag=True, help="With --dynamic: a scale per index of all but the last axis.")
@click.option(
    "--weights",
    type=click.Choice(["qdq", "dq"]),
    default="qdq",
    show_default=True,
    help="Pair on the float weight, or stored integers.",
)
@click.option("--dedicated", is_flag=True, help="A pair per reader instead of one for all.")
@click.option(
    "--domain",
    type=click.Choice(["onnx", "com.microsoft", "com.amd.quark", "com.vai.quantize"]),
    help="Whose operators.",
)
@boundaries_option
def insert(
    out: Out,
    model: str,
    select: tuple[str, ...],
    allow_empty: bool,
    scales: tuple[float, ...],
    zero_points: tuple[int, ...],
    dtype: str | None,
    axis: int | None,
    block_size: int | None,
    ranges: str | None,
    encodings: str | None,
    policy: str | None,
    asymmetric: bool,
    dynamic: bool,
    per_token: bool,
    weights: str,
    dedicated: bool,
    domain: str | None,
    boundaries: bool,
    **saving: Any,
) -> None:  # fmt: skip
    """Insert QDQ pairs on the selected tensors, with an encoding given, chosen from ranges, or computed in the graph."""
    from qdqtool.cli.named import bind

    if [bool(scales), bool(ranges), bool(encodings), dynamic].count(True) != 1:
        raise click.UsageError("qdq insert: give one of --scale, --ranges, --encodings and --dynamic")
    if not ranges and (policy or asymmetric):
        raise click.UsageError("qdq insert: --scales and --asymmetric go with --ranges")
    if not dynamic and per_token:
        raise click.UsageError("qdq insert: --per-token goes with --dynamic")
    if dynamic and (dtype or weights != "qdq" or dedicated or domain):
        raise click.UsageError(
            "qdq insert: --dtype, --weights, --dedicated and --domain do not go with --dynamic, which quantizes activations only"
        )
    if not scales and (zero_points or axis is not None or block_size):
        raise click.UsageError("qdq insert: --zero-point, --axis and --block-size go with --scale")
    if scales and not select:
        raise click.UsageError("qdq insert: --scale without --select; say which tensors: --select tensor:NAME")
    chosen = optionally_selected(out, model, select, allow_empty=allow_empty)
    if dynamic:
        granularity = {"granularity": "per-token"} if per_token else {}
        run_edit(out, model, [("insert-dynamic-quantization", {**chosen, **granularity})], **saving)
        return
    options: dict[str, Any] = {**chosen, "weights": weights}
    options |= {"dedicated": True} if dedicated else {}
    of_domain = {"domain": domain} if domain else {}
    options |= of_domain
    after: list[Step] = [("convert-boundaries", {})] if boundaries else []
    if scales:
        options |= {"scale": list(scales), "zero_point": list(zero_points), "dtype": dtype or "int8"}
        options |= {"axis": axis} if axis is not None else {}
        options |= {"block_size": block_size} if block_size else {}
        saved = run_edit(out, model, [("insert-qdq", options), *after], **saving)
        _warn_if_nothing(out, saved.report)
        return
    if encodings:
        steps: list[Step] = [
            ("apply-encodings", {"encodings": "@encodings", **of_domain}),
            ("insert-qdq", options),
            *after,
        ]
        saved = run_edit(out, model, steps, inputs={"encodings": bind("encodings", encodings, model)}, **saving)
        _warn_if_nothing(out, saved.report)
        return
    annotate: dict[str, Any] = {"encodings": "@ranges", **of_domain}
    annotate |= {"activations": dtype} if dtype else {}
    annotate |= {"scales": policy} if policy else {"scales": "any"} if asymmetric else {}
    annotate |= {"symmetric": False} if asymmetric else {}
    steps = [("annotate-encodings", annotate), ("insert-qdq", options), *after]
    saved = run_edit(out, model, steps, inputs={"ranges": bind("ranges", ranges or "", model)}, **saving)
    _warn_if_nothing(out, saved.report)


def _warn_if_nothing(out: Out, report: Report) -> None:
    """Say that no pair was made, and the reasons by how often they were given."""
    changes = [change for part in report.passes for change in part.changes]
    if any(part.modified for part in report.passes if part.text.startswith("insert-qdq")):
        return
    reasons = Counter(change.because for change in changes if change.is_skip).most_common(3)
    why = "; ".join(f"{because} ({count})" for because, count in reasons)
    out.warn("no pair was inserted" + (f": {why}" if why else ""))


command = insert
