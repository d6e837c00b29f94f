"""Entry point of ``qdqtool``: finds commands by file name and turns errors into one line and an exit code."""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import click
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.registry import Entry, FolderRegistry, add_path, unknown_name
from qdq_passes.errors import QdqError, UsageError

from qdqtool import interrupts
from qdqtool.cli.help import write_page
from qdqtool.cli.render import tell

#: When Python looks for cycles among objects: a graph in memory has many, and hardly any go before the command ends.
COLLECT = (400_000, 5, 10)
#: Each thread of numpy's BLAS spins for 30 ms at import. Large products run on one thread anyway (`one_thread`).
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class CommandRegistry(FolderRegistry):
    """Commands: the files ``cmd_*.py`` of our packages, and the verbs that need none; of either several may stand in one table.

    Args:
        verbs: the package of verbs that write a model; each is a command of its name, unless a ``cmd_`` file makes that.
    """

    prefix: str = "cmd_"
    attribute: str | None = "command"
    table: str | None = "COMMANDS"
    verbs: str | None = None

    def _own(self) -> Iterable[Entry]:
        by_hand = list(super()._own())
        yield from by_hand
        names = {entry.name for entry in by_hand}
        for verb in FolderRegistry(self.kind, (self.verbs,), table="VERBS")._own() if self.verbs is not None else ():
            if verb.name not in names:
                yield replace(verb, load=_command_loader(verb))


def _command_loader(verb: Entry) -> Callable[[], click.Command]:
    def load() -> click.Command:
        from qdqtool.cli.tables.saving import edit_command

        return edit_command(verb.load(), verb.name)

    return load


COMMANDS = CommandRegistry(
    "commands",
    ("qdqtool.cli", "qdqtool.cli.edits", "qdqtool.cli.npu", "qdqtool.cli.chips", "qdqtool.cli.story"),
    verbs="qdqtool.verbs.edits",
)

#: Exit codes beside those of `QdqError`.
INTERNAL_ERROR, INTERRUPTED = 70, 130


def in_one_line(command: click.Command) -> str:
    """What ``command`` does, as a list says it: the first line of its help where it has no shorter one."""
    return command.short_help or (command.help or "").partition("\n")[0]


def summary_of_command(entry: Entry) -> str:
    """Return the one-line help of a command: the first line of its file, or the stored summary of a row of a table."""
    from qdqtool.cli.tables.summaries import summary_of

    return entry.first_doc_line() or summary_of("commands", entry, lambda: in_one_line(entry.load()))


class CommandFolder(click.Group):
    """A group whose commands are those of a registry, whose modules are imported when they are used, and those added to it."""

    registry = COMMANDS

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands; their one-line help is the first line of their file, so that none is imported."""
        rows = {name: summary_of_command(entry) for name, entry in self._entries().items()}
        rows |= {name: in_one_line(made) for name, made in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The page of the docs."""
        write_page(ctx, formatter)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, sorted."""
        return sorted({*self._entries(), *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command called ``cmd_name``; a usage error with the nearest names when there is none."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        entries = self._entries()
        if cmd_name not in entries:
            raise unknown_name(self.registry.kind, cmd_name, entries)
        found = entries[cmd_name].load()
        if not isinstance(found, click.Command):
            raise UsageError("its `command` is no click command", where=entries[cmd_name].origin)
        return found

    def _entries(self) -> dict[str, Entry]:
        return {name: entry for name, entry in self.registry.entries().items() if name not in self.commands}


class SubCommands(CommandFolder):
    """A group inside a command (``qdqtool qdq list``); an unknown name is answered with those that exist.

    Args:
        verbs: the package of verbs that need no command of their own, as in `CommandRegistry`.
    """

    def __init__(self, *args: Any, verbs: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.registry = CommandRegistry(self.name or "", (), verbs=verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command called ``cmd_name``; a usage error with the names there are when there is none."""
        names = self.list_commands(ctx)
        if cmd_name not in names:
            raise UsageError(f"unknown {self.name} command {cmd_name!r}", hint=f"there is {', '.join(names)}")
        return super().get_command(ctx, cmd_name)


def _add_paths(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> None:
    for folder in value:
        add_path(folder)


@click.group(
    cls=CommandFolder,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    invoke_without_command=True,
)
@click.option(
    "--path",
    multiple=True,
    metavar="DIR",
    is_eager=True,
    expose_value=False,
    callback=_add_paths,
    help="Also search DIR for passes/ presets/ targets/ methods/ commands/ (as does QDQTOOL_PATH).",
)
@click.option("--version", is_flag=True, help="Print the version and exit.")
@click.option(
    "-v", "--verbose", is_flag=True, help="With --version: what it runs on, and whether the simulated NPU was built."
)
@click.pass_context
def cli(ctx: click.Context, version: bool, verbose: bool) -> None:
    """Edit, quantize and check ONNX models for NPUs."""
    if version:
        _show_version(verbose=verbose)
        ctx.exit()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _show_version(*, verbose: bool) -> None:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        click.echo(f"qdqtool {version_of('qdqtool')}")
    except PackageNotFoundError:
        click.echo("qdqtool, run from its sources without being installed")
    if not verbose:
        return
    from qdqtool.npu.library import library_path

    for name in ("onnx", "onnx-ir", "onnxruntime", "numpy"):
        click.echo(f"{name} {version_of(name)}")
    try:
        click.echo(f"simulated NPU: {library_path()}")
    except QdqError as error:
        click.echo(f"simulated NPU: {error}")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit; ``arguments`` default to those of the process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the terminal has no letter for is written as an escape
            stream.reconfigure(errors="backslashreplace")
    usual, is_ours = gc.get_threshold(), not any(name in os.environ for name in BLAS_THREADS)
    if is_ours:
        os.environ[BLAS_THREADS[0]] = "1"
    gc.set_threshold(*COLLECT)
    try:
        try:
            interrupts.begin()
            code = run(sys.argv[1:] if arguments is None else arguments)
        except KeyboardInterrupt:
            code = interrupts.code()
        interrupts.end(code)
    finally:  # behind the end: a process of one command is gone by now, without a last collection
        gc.set_threshold(*usual)
        if is_ours:
            os.environ.pop(BLAS_THREADS[0], None)


def run(arguments: list[str]) -> int:
    """Run the command line and return its exit code. A user's fault is one line on stderr; ``-v`` adds the traceback."""
    verbose = any(a in ("-v", "--verbose") for a in arguments)
    try:
        result = _result(arguments)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        tell(f"interrupted; {interrupts.written()}")
        return interrupts.code()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        _show(f"{error.format_message().rstrip('.')}{_where_to_look(error)}", verbose)
        return error.exit_code
    except QdqError as error:
        told = [*getattr(error, "__notes__", []), *getattr(error.__cause__, "__notes__", [])]
        notes = "".join(f" ({note})" for note in dict.fromkeys(told))
        first, newline, rest = str(error).partition("\n")
        _show(f"{first}{notes}{newline}{rest}", verbose)
        return error.exit_code
    except SystemExit as error:
        if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):  # click: whoever read our help went away
            return 0
        return error.code if isinstance(error.code, int) else INTERNAL_ERROR
    except OSError as error:
        _show(f"{error.filename or ''}: {error.strerror or error}".lstrip(": "), verbose)
        return 2
    except Exception as error:  # noqa: BLE001  (the border: a bug of ours becomes one line and exit 70)
        hint = "" if verbose else "; run again with -v for the traceback"
        _show(f"internal error: {type(error).__name__}: {' '.join(str(error).split())}{hint}", verbose)
        return INTERNAL_ERROR


def _result(arguments: list[str]) -> object:
    """What the command gives; of an interrupt that some module made another error of, the interrupt."""
    try:
        return cli.main(arguments, prog_name="qdqtool", standalone_mode=False)
    except BaseException:
        if interrupts.State.heard:
            raise KeyboardInterrupt from None
        raise


def _where_to_look(error: click.ClickException) -> str:
    """What helps after a wrong option or argument: the help of the command it was given to."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"; see `{context.command_path} --help`" if context is not None else ""


def _show(message: str, verbose: bool) -> None:
    if verbose:
        import traceback

        tell(traceback.format_exc(), lines=True)
    tell(f"error: {message}", lines=True)


if __name__ == "__main__":
    main()
