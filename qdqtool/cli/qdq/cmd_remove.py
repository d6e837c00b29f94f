"""Remove pairs, leaving the float value; stored integers are dequantized."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.options import command, load_model
from qdqtool.cli.qdq.editing import Step, edit_options, run_edit, selected
from qdqtool.cli.qdq.removal import first_steps, plan, warn_of_rest
from qdqtool.cli.render import Out


@command(name="remove")
@edit_options
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Everything quantized; integer operators, dynamic quantization, integer inputs and outputs too.",
)
@click.option("--keep-weights", is_flag=True, help="Leave weights and biases quantized.")
@click.option("--round-weights", is_flag=True, help="A float weight under a pair takes the values of its grid.")
@click.option(
    "--restore-relu", is_flag=True, help="Where a zero point clamps at 0 (a Relu that was left out), put a Relu."
)
@click.option(
    "--undo-dpu", is_flag=True, help="Also take back the DPU edits: pool factors, LeakyRelu alpha, HardSigmoid."
)
def remove(
    out: Out,
    model: str,
    select: tuple[str, ...],
    allow_empty: bool,
    everything: bool,
    keep_weights: bool,
    round_weights: bool,
    restore_relu: bool,
    undo_dpu: bool,
    **saving: Any,
) -> None:  # fmt: skip
    """Remove QDQ pairs of any tool, leaving the float value; stored integers are dequantized."""
    if keep_weights and round_weights:
        raise click.UsageError("qdq remove: --keep-weights leaves the pair that --round-weights removes")
    if undo_dpu and not everything and not select:
        everything = True
    chosen: dict[str, Any] | None
    chosen = selected(out, "qdq remove", model, select, everything=everything, allow_empty=allow_empty)
    steps: list[Step] = first_steps(model) if everything else []
    if select:
        before, chosen = plan(model, chosen, keep_weights=keep_weights)
        steps += before
    if everything and not keep_weights:
        steps += [("convert-qoperators", {}), ("unpack-matmul-nbits", {"weights": "float"})]
    if everything:
        steps += [("remove-dynamic-quantization", {})]
    if restore_relu and chosen is not None:
        steps.append(("restore-relu", chosen))
    elif everything:
        _warn_of_clamping(out, model)
    weights = {"keep_weights": True} if keep_weights else {"round_weights": True} if round_weights else {}
    if chosen is not None:
        steps.append(("remove-qdq", {**chosen, **weights, **({"float_io": True} if everything else {})}))
    steps += [("undo-dpu-edits", {})] if undo_dpu else []
    warn_of_rest(out, run_edit(out, model, steps, **saving), everything=everything, keep_weights=keep_weights)


def _warn_of_clamping(out: Out, model: str) -> None:
    """Say where the removal takes away what a Relu did."""
    from qdq_passes.qdq.look.pairs import qdq_pairs
    from qdq_passes.qdq.look.value_ranges import is_clamped_at_zero

    clamped = list(dict.fromkeys(pair.tensor for pair in qdq_pairs(load_model(model)) if is_clamped_at_zero(pair)))
    if clamped:
        more = f" and {len(clamped) - 1} more" if len(clamped) > 1 else ""
        out.warn(f"{clamped[0]}{more}: the zero point does the work of a Relu; --restore-relu puts one there")


command = remove
