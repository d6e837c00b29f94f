"""How commands that change a model show what was done."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.render import Out, plural, say
from qdqtool.verbs.pairs import PairEditing

if TYPE_CHECKING:
    from qdqtool.verbs.editing import Edit


def edit_command(verb: type[Edit], name: str) -> click.Command:
    """The command ``name`` of a verb that writes a model: it shows what was done."""

    @command_of(verb, name=name)
    def command(out: Out, asked: Edit) -> None:
        run_edit(out, asked)

    return command


def run_edit(out: Out, asked: Edit, *, times: bool = False) -> None:
    """Do it, and print what the pipeline did, as the command's result; of pairs only the passes that had something to do."""
    saved = ran(out, asked, "loading")
    report, shows_idle = saved.report, out.verbose or not isinstance(asked, PairEditing)
    payload = {
        "output": saved.output,
        "files": list(saved.files),
        "modified": report.modified,
        "passes": report.to_json(),
    }

    def render() -> None:
        for part in report.passes:
            done = [c for c in part.changes if not c.is_skip]
            if not part.changes and not shows_idle:
                continue
            skips = len(part.changes) - len(done)
            took = f"  {part.seconds * 1000:.1f} ms" if times else ""
            say(f"{part.text}: {plural(len(done), 'change')}" + (f", {skips} skipped" if skips else "") + took)
            if out.verbose:
                for change in part.changes:
                    say(f"  {change}")
        if report.passes and not report.modified:
            say("nothing to change: the model is saved as it was")
        say(f"wrote {' and '.join(saved.files)}")

    out.result(payload, render)


def stored_bytes(path: str) -> int:
    """Bytes of a model in files: its own, and the data files it refers to."""
    import onnx_ir as ir

    from qdqtool.io.files.read import holds
    from qdqtool.io.models.load import load, slots

    if not holds(path, b"location"):  # the key of every reference to a data file: no need to parse
        return os.path.getsize(path)
    tensors = [slot.tensor for slot in slots(load(path))]
    files = {os.path.realpath(t.path) for t in tensors if isinstance(t, ir.ExternalTensor)}
    return sum(os.path.getsize(file) for file in [path, *files])
