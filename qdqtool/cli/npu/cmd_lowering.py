"""The commands `compile` and `lower`: how they are run, and what they print."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.options import text
from qdqtool.cli.render import Out, megabytes, plural, say, table
from qdqtool.verbs.npu.compile import Compile
from qdqtool.verbs.npu.lower import Lower

if TYPE_CHECKING:
    from qdqtool.npu.compile import Lowered, Reason

#: Reasons shown without ``-v``.
SHOWN = 5


@command_of(Compile)
def compile(out: Out, asked: Compile) -> None:
    _run(out, asked, "compiling")


@command_of(Lower)
def lower(out: Out, asked: Lower) -> None:
    _run(out, asked, "lowering")


def _run(out: Out, asked: Compile | Lower, stage: str) -> None:
    """Do it, and print what became of the model, as the command's result."""
    from qdqtool.io.models.hooks import Reproducer

    source, output = text(asked.model), text(asked.output)
    done = ran(out, replace(asked, hooks=(Reproducer(f"{output}.reproducer"),)), stage)
    if not done.npu_nodes:
        out.warn(f"nothing of the model runs on {done.target}; `qdqtool analyze` says of each node why")
    out.result(lambda: {**done.to_json(), "output": output}, lambda: _render(out, done, source))


def _first(reason: Reason) -> str:
    return reason.reason if reason.nodes == 1 else f"{reason.reason} (the first of them)"


def _render(out: Out, done: Lowered, source: str) -> None:
    from qdqtool.cli.tables.saving import files_of, stored_bytes

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
    say(f"wrote {files_of(done.files[0], source, *done.files[1:])}")


COMMANDS = {"compile": compile, "lower": lower}
