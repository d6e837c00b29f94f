"""Give pairs another scale, zero point or type; stored integers are requantized."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.options import command
from qdqtool.cli.qdq.editing import Step, all_option, boundaries_option, edit_options, run_edit, selected
from qdqtool.cli.render import Out


@command(name="set")
@edit_options
@all_option
@click.option("--scale", "scales", multiple=True, type=float, metavar="S", help="Scale; repeat for per-axis or blocks.")
@click.option("--zero-point", "zero_points", multiple=True, type=int, metavar="Z", help="Zero point; repeat likewise.")
@click.option("--dtype", metavar="TYPE", help="Storage type.")
@click.option("--axis", type=int, metavar="N", help="Axis of per-axis or blocked scales.")
@click.option("--block-size", type=click.IntRange(min=1), metavar="N", help="Elements of the axis per scale.")
@click.option("--round-pow2", is_flag=True, help="Round every scale up to a power of two, 2^-p.")
@click.option("--nearest", is_flag=True, help="With --round-pow2: to the nearest in log2, which may clip.")
@click.option(
    "--sharing",
    type=click.Choice(["leave", "follow"]),
    default="leave",
    show_default=True,
    help="Whether tensors that read the same scale follow.",
)
@boundaries_option
def set_encoding(
    out: Out,
    model: str,
    select: tuple[str, ...],
    allow_empty: bool,
    everything: bool,
    scales: tuple[float, ...],
    zero_points: tuple[int, ...],
    dtype: str | None,
    axis: int | None,
    block_size: int | None,
    round_pow2: bool,
    nearest: bool,
    sharing: str,
    boundaries: bool,
    **saving: Any,
) -> None:
    """Set scale, zero point or type of the selected pairs; what is not given stays, stored integers are requantized."""
    given: dict[str, Any] = {
        "scale": list(scales), "zero_point": list(zero_points), "dtype": dtype, "axis": axis, "block_size": block_size,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value not in (None, [])}
    if not given and not round_pow2:
        raise click.UsageError("qdq set: nothing to set; give --scale, --zero-point, --dtype, --axis or --round-pow2")
    if nearest and not round_pow2:
        raise click.UsageError("qdq set: --nearest goes with --round-pow2")
    chosen = selected(out, "qdq set", model, select, everything=everything, allow_empty=allow_empty)
    follow = {"sharing": sharing} if sharing != "leave" else {}
    steps: list[Step] = [("set-qdq", {**chosen, **given, **follow})] if given else []
    if round_pow2:
        steps.append(("round-scales-pow2", {**chosen, **({"nearest": True} if nearest else {})}))
    steps += [("convert-boundaries", {})] if boundaries and dtype is not None else []
    run_edit(out, model, steps, **saving)


command = set_encoding
