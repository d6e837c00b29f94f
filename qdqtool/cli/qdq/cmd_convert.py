"""Convert pairs: width, signedness, symmetry, granularity, domain; bias types; integer operators into pairs."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.options import command
from qdqtool.cli.qdq.editing import Step, boundaries_option, edit_options, optionally_selected, run_edit
from qdqtool.cli.render import Out

DOMAINS = ("onnx", "com.microsoft", "com.amd.quark", "com.vai.quantize", "fix-neuron")


@command(name="convert")
@edit_options
@click.option(
    "--dtype",
    metavar="TYPE",
    help="Storage type: int8, uint8, int16, uint16, int4…; 8 ↔ 16 bit and signed ↔ unsigned are exact.",
)
@click.option(
    "--symmetric/--asymmetric",
    default=None,
    help="Zero point 0 (the middle of an unsigned type), or where the range wants it.",
)
@click.option("--per-tensor", is_flag=True, help="One scale for the whole tensor.")
@click.option("--per-axis", is_flag=True, help="Weights: a scale per output channel.")
@click.option("--axis", type=int, metavar="N", help="With --per-axis: the axis, instead of the operator's own.")
@click.option(
    "--kinds", multiple=True, type=click.Choice(["activation", "weight", "bias"]), help="Only these (repeat to unite)."
)
@click.option("--domain", type=click.Choice(DOMAINS), help="Whose operators.")
@click.option(
    "--bias",
    type=click.Choice(["int32", "int8"]),
    help="Biases: int32 at the scale s_x·s_w, or int8 with a scale of its own.",
)
@click.option("--qoperators", is_flag=True, help="Integer operators (QLinearConv, QGemm, MatMulNBits…) into pairs.")
@boundaries_option
def convert(
    out: Out,
    model: str,
    select: tuple[str, ...],
    allow_empty: bool,
    dtype: str | None,
    symmetric: bool | None,
    per_tensor: bool,
    per_axis: bool,
    axis: int | None,
    kinds: tuple[str, ...],
    domain: str | None,
    bias: str | None,
    qoperators: bool,
    boundaries: bool,
    **saving: Any,
) -> None:  # fmt: skip
    """Convert pairs between widths, signs, granularities and domains; all of them, or those of --select."""
    if per_tensor and per_axis:
        raise click.UsageError("qdq convert: give either --per-tensor or --per-axis")
    granularity = "per-tensor" if per_tensor else "per-axis" if per_axis else None
    encodings = {"dtype": dtype, "symmetric": symmetric, "granularity": granularity, "axis": axis}
    encodings = {name: value for name, value in encodings.items() if value is not None}
    if not (encodings or domain or bias or qoperators):
        raise click.UsageError("qdq convert: nothing to convert; give --dtype, --domain, --bias, --qoperators…")
    chosen = optionally_selected(out, model, select, allow_empty=allow_empty)
    only = {"kinds": list(kinds)} if kinds else {}
    to_domain: list[Step] = [("convert-qdq-domain", {**chosen, "to": domain})] if domain else []
    steps: list[Step] = [("convert-qoperators", chosen), ("unpack-matmul-nbits", chosen)] if qoperators else []
    steps += (
        to_domain if domain not in ("onnx", "fix-neuron") else []
    )  # first where types widen, last where they narrow
    steps += [("convert-encodings", {**chosen, **encodings, **only})] if encodings else []
    steps += [("convert-bias", {**chosen, "to": bias})] if bias else []
    steps += [("convert-boundaries", {})] if boundaries and dtype is not None else []
    steps += to_domain if domain in ("onnx", "fix-neuron") else []
    run_edit(out, model, steps, **saving)


command = convert
