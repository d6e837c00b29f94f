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
        "shared_data": [file for file, is_shared in _with_owners(saved.output, saved.source) if is_shared],
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
        say(f"wrote {files_of(saved.output, saved.source)}")

    out.result(payload, render)


def stored_bytes(path: str) -> int:
    """Bytes of a model in files: its own, and the data files it refers to."""
    from qdqtool.io.models.load import data_files

    return sum(os.path.getsize(file) for file in [path, *data_files(path)])


def files_of(output: str, source: str, *others: str) -> str:
    """What a command says it wrote, of a model: the file, its data file, ``others``; and the data file that it shares with the
    model it was made of, ``source``."""
    files = _with_owners(output, source)
    shared, own = ([file for file, is_shared in files if is_shared == wanted] for wanted in (True, False))
    known = {os.path.realpath(file) for file in own}
    own += [file for file in others if os.path.realpath(file) not in known]
    text = " and ".join([output, *own])
    if shared:
        text += f"; weights in {' and '.join(shared)}, shared with {source} (--copy-data writes its own)"
    return text


def _with_owners(output: str, source: str) -> list[tuple[str, bool]]:
    """The data files of ``output``, and of each whether ``source`` refers to it too."""
    from qdqtool.io.models.load import data_files

    files = data_files(output)
    theirs = set(data_files(source).values()) if files else set()
    return [(shown, real in theirs) for shown, real in files.items()]
