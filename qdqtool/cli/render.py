"""What a command prints: one JSON document, or tables; rich where a person looks at a terminal, plain columns elsewhere."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from typing import TYPE_CHECKING, Any

import click
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import visible

from qdqtool.io.files.text_table import EXACT, Precise, TextTable, megabytes, plural
from qdqtool.verbs.named_paths import NamedPath

if TYPE_CHECKING:
    from qdqtool.io.files.progress import StageProgress


__all__ = ["EXACT", "Out", "Precise", "megabytes", "plural", "say", "table"]


@dataclass
class Out:
    """The output of one run of a command. Results go to stdout, everything else to stderr.

    Args:
        as_json: print the result as one JSON document and nothing else.
        json_out: also write that document to this file.
        verbose: show skips and reasons.
        quiet: print nothing but errors and warnings (and JSON where asked for).
        overwrite: files that exist may be replaced.
    """

    as_json: bool = False
    json_out: str | None = None
    verbose: bool = False
    quiet: bool = False
    overwrite: bool = False
    warned: list[str] = field(default_factory=list)

    def named_paths(self) -> tuple[NamedPath, ...]:
        """The file that it writes."""
        return () if self.json_out is None else (NamedPath("--json-out", self.json_out, "file"),)

    @property
    def writes_json(self) -> bool:
        """Whether the result is written as JSON, to stdout or to a file."""
        return self.as_json or self.json_out is not None

    def result(self, payload: Any, render: Callable[[], None]) -> None:
        """The result: ``payload``, or what it returns, as JSON where asked for, with the warnings that were given; else
        ``render()`` prints tables."""
        text = None
        if self.writes_json:
            payload = payload() if callable(payload) else payload
            payload = {**payload, "warnings": list(dict.fromkeys((*payload.get("warnings", ()), *self.warned)))}
            text = _json(payload)
            if self.json_out is not None:
                from qdqtool.io.files.atomic import write_whole

                write_whole(self.json_out, (text + "\n").encode(), overwrite=self.overwrite)
        self._settle()
        if text is not None and self.as_json:
            coding = getattr(sys.stdout, "encoding", None) or "utf-8"
            say(text if coding.lower() == "utf-8" else _json(payload, ascii_only=True), lines=True)
        elif not self.quiet:
            render()

    @staticmethod
    def _settle() -> None:
        """Leave the files that were written in place, whatever becomes of what is printed."""
        outputs = getattr(sys.modules.get("qdqtool.io.files.atomic"), "Outputs", None)
        if outputs is not None and outputs.current is not None:
            outputs.current.settle()

    def note(self, text: str) -> None:
        """A remark on stderr."""
        if not self.quiet:
            tell(text)

    def detail(self, text: str) -> None:
        """A remark on stderr that only ``-v`` shows."""
        if self.verbose:
            tell(text)

    def warn(self, text: str) -> None:
        """A warning on stderr, each once; ``-q`` does not silence it."""
        if text not in self.warned:
            self.warned.append(text)
            tell(f"warning: {text}")

    @contextmanager
    def progress(self, what: str) -> Iterator[StageProgress]:
        """A progress bar on stderr while the block runs; nothing when stderr is no terminal."""
        if self.quiet or not _is_terminal(sys.stderr):
            yield lambda stage, done, total: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda stage, done, total: bar.update(task, description=visible(stage), completed=done, total=total)


def _is_terminal(stream: Any) -> bool:
    """Whether a person looks at ``stream``; it is None where the shell closed it."""
    return stream is not None and stream.isatty()


def _json(payload: Any, *, ascii_only: bool = False) -> str:
    """One JSON document: null for what is not finite, and escapes for what a terminal would act on."""
    import json

    text = json.dumps(_finite(payload), indent=2, ensure_ascii=ascii_only, allow_nan=False)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def tell(text: str, *, lines: bool = False) -> None:
    """A line on stderr, or several; dropped where nobody reads there any more."""
    with suppress(BrokenPipeError):
        click.echo(visible(text, keep="\n\t" if lines else ""), err=True)


def say(text: str = "", *, lines: bool = False, end: str = "\n") -> None:
    """A line on stdout, or several where ``lines``: a name in one cannot begin another. When its reader went away
    (``| head -1``), the rest is dropped and the command does its job."""
    try:
        click.echo(visible(text, keep="\n\t" if lines else "") + end, nl=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on stdout. Columns of numbers are right-aligned; columns without a title make a table without a head.

    On a terminal that is wide enough it is drawn by rich; a narrower one wraps whole lines, so that names stay in one piece.
    """
    made = TextTable(columns, rows)
    if _is_terminal(sys.stdout) and sum(made.widths) + 3 * len(columns) <= _columns():
        _rich_table(made)
        return
    for line in made.lines:
        say(line)


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns


def listed(columns: Sequence[str], rows: Sequence[Sequence[object]], most: int | None = None) -> None:
    """A table behind an empty line, of at most ``most`` rows, and how many more there are; nothing where there are none."""
    if not rows:
        return
    say()
    table(columns, rows[:most])
    if most is not None and len(rows) > most:
        say(f"and {len(rows) - most} more (-v)")


def _rich_table(made: TextTable) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=SIMPLE_HEAD, show_header=any(made.columns), show_edge=False, pad_edge=False)
    for name, right in zip(made.columns, made.numeric, strict=True):
        shown.add_column(name, justify="right" if right else "left", no_wrap=True)
    for row in made.cells:
        shown.add_row(*(Text(c) for c in row))
    Console().print(shown)
