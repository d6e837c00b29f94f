"""What `compile` and `lower` share: their options, and what they print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.options import stack
from qdqtool.cli.render import Out, megabytes, plural, say, table

if TYPE_CHECKING:
    from qdqtool.npu.compile import Lowered, Reason

#: Reasons shown without ``-v``.
SHOWN = 5

target_options = stack(
    click.option("--target", required=True, metavar="NAME|FILE", help="The NPU (`list targets`)."),
    click.option(
        "--boundary",
        type=click.Choice(["cpu", "npu"]),
        help="Where the Q and DQ of float inputs and outputs run, where not as the target says.",
    ),
    click.option("--allow-findings", is_flag=True, help="Save although the model has errors that it came with."),
)


def show_lowered(out: Out, done: Lowered, source: str, output: str) -> None:
    """Print what became of the model, as the command's result."""
    out.result({**done.to_json(), "output": output}, lambda: _render(out, done, source))


def _first(reason: Reason) -> str:
    return reason.reason if reason.nodes == 1 else f"{reason.reason} (the first of them)"


def _render(out: Out, done: Lowered, source: str) -> None:
    from qdqtool.cli.saving import stored_bytes

    whole = done.npu_nodes + done.cpu_nodes
    rows: list[tuple[str, Any]] = [
        ("target", done.target),
        ("nodes on the NPU", f"{done.npu_nodes} of {whole}"),
        ("partitions", str(len(done.parts))),
        ("size", f"{megabytes(stored_bytes(source))} → {megabytes(sum(map(stored_bytes, done.files)))}"),
    ]
    table(("", ""), rows)
    if done.reasons:
        say()
        shown = done.reasons if out.verbose else done.reasons[:SHOWN]
        table(("nodes", "rule", "on the CPU, because"), [(str(r.nodes), r.rule, _first(r)) for r in shown])
        if len(done.reasons) > len(shown):
            say(f"and {plural(len(done.reasons) - len(shown), 'more reason')} (-v)")
    if not done.npu_nodes:
        out.warn(f"nothing of the model runs on {done.target}; `qdqtool analyze` says of each node why")
    say(f"wrote {' and '.join(done.files)}")
