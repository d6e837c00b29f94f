"""What a command prints: one JSON document, or tables; rich where a person looks at a terminal, plain columns elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import click

#: Called with (done, total or None).
ProgressCallback = Callable[[int, int | None], None]


@dataclass
class Out:
    """The output of one run of a command. Results go to stdout, everything else to stderr.

    Args:
        as_json: print the result as one JSON document and nothing else.
        json_out: also write that document to this file.
        verbose: show skips and reasons.
        quiet: print nothing but errors (and JSON where asked for).
    """

    as_json: bool = False
    json_out: str | None = None
    verbose: bool = False
    quiet: bool = False
    _warned: set[str] = field(default_factory=set)

    def result(self, payload: Any, render: Callable[[], None]) -> None:
        """The result: ``payload`` as JSON where asked for, else ``render()`` prints tables."""
        if self.as_json or self.json_out:
            import json

            text = json.dumps(payload, indent=2, ensure_ascii=False, allow_nan=False)
            if self.json_out:
                from qdqtool.io.atomic import write_whole

                write_whole(self.json_out, (text + "\n").encode())
            if self.as_json:
                click.echo(text)
                return
        if not self.quiet:
            render()

    def note(self, text: str) -> None:
        """A remark on stderr."""
        if not self.quiet:
            click.echo(text, err=True)

    def detail(self, text: str) -> None:
        """A remark on stderr that only ``-v`` shows."""
        if self.verbose:
            click.echo(text, err=True)

    def warn(self, text: str) -> None:
        """A warning on stderr, each once; ``-q`` does not silence it."""
        if text not in self._warned:
            self._warned.add(text)
            click.echo(f"warning: {text}", err=True)

    @contextmanager
    def progress(self, what: str) -> Iterator[ProgressCallback]:
        """A progress bar on stderr while the block runs; nothing when stderr is no terminal."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda done, total: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)


def say(text: str = "") -> None:
    """A line on stdout."""
    click.echo(text)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
    """A table on stdout. Columns whose cells are all numbers are right-aligned."""
    cells = [[_cell(c) for c in row] for row in rows]
    numeric = [
        all(isinstance(row[i], int | float) or row[i] is None for row in rows) and bool(rows)
        for i in range(len(columns))
    ]
    if sys.stdout.isatty():
        _rich_table(columns, cells, numeric, title)
        return
    if title:
        say(title)
    widths = [max([len(columns[i]), *(len(row[i]) for row in cells)]) for i in range(len(columns))]
    for row in [list(columns), *cells]:
        padded = [c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, numeric, strict=True)]
        say("  ".join(padded).rstrip())


def _rich_table(columns: Sequence[str], cells: list[list[str]], numeric: list[bool], title: str | None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    for name, right in zip(columns, numeric, strict=True):
        shown.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in cells:
        shown.add_row(*(Text(c) for c in row))
    Console().print(shown)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_cell(v) for v in value) + "]"
    return str(value)


def megabytes(count: int) -> str:
    """Bytes in words."""
    return (
        f"{count} B" if count < 1024 else f"{count / 1024:.1f} KiB" if count < 1024**2 else f"{count / 1024**2:.1f} MiB"
    )
