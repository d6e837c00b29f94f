"""A command that is written by hand: what every command has, and what own commands may want."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.help import Command
from qdqtool.cli.main import _add_paths
from qdqtool.cli.render import Out
from qdqtool.io.files.atomic import refuse_inputs

if TYPE_CHECKING:
    import onnx_ir as ir


Decorator = Callable[[Any], Any]


def stack(*decorators: Decorator) -> Decorator:
    """Several decorators as one, applied so that options show in the order given."""
    return lambda function: functools.reduce(lambda f, d: d(f), reversed(decorators), function)


def command(group: click.Group | None = None, name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function ``f(out, …)``: adds ``--json --json-out -v -q --path`` and passes an `Out` first."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def call(as_json: bool, json_out: str | None, verbose: bool, quiet: bool, **options: Any) -> Any:
            if json_out is not None:
                refuse_inputs(json_out, [v for v in options.values() if isinstance(v, str)])
            return function(Out(as_json, json_out, verbose, quiet), **options)

        options = stack(
            click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else there."),
            click.option("--json-out", metavar="FILE", help="Write the JSON document to FILE."),
            click.option("-v", "--verbose", is_flag=True, help="Show what was skipped and why; tracebacks on errors."),
            click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors and warnings."),
            click.option(
                "--path", multiple=True, metavar="DIR", is_eager=True, expose_value=False, callback=_add_paths,
                help="Also search DIR for own passes, presets, targets, methods, commands.",
            ),
        )  # fmt: skip
        make = click.command if group is None else group.command
        made: click.Command = make(name, cls=Command)(options(call))
        return made

    return decorate


def text(value: object) -> str:
    """A value that is text, as it comes from the command line: the name of a model, a folder, a file."""
    assert isinstance(value, str)
    return value


model_argument = click.argument("model", metavar="MODEL")


def load_model(path: str) -> ir.Model:
    """Load a model for a command."""
    from qdqtool.io.models.load import load

    return load(path)
