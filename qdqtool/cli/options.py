"""A command that is written by hand: what every command has, and what own commands may want."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.help import Command
from qdqtool.cli.main import _add_paths
from qdqtool.cli.render import Out
from qdqtool.options import Use
from qdqtool.verbs.named_paths import NamedPath, refuse_clashes

if TYPE_CHECKING:
    import onnx_ir as ir


Decorator = Callable[[Any], Any]


def stack(*decorators: Decorator) -> Decorator:
    """Several decorators as one, applied so that options show in the order given."""
    return lambda function: functools.reduce(lambda f, d: d(f), reversed(decorators), function)


def command(
    group: click.Group | None = None,
    name: str | None = None,
    *,
    uses: Mapping[str, Use] | None = MappingProxyType({}),
    overwrites: bool = False,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function ``f(out, …)``: adds ``--json --json-out -v -q --path`` and passes an `Out` first.

    Args:
        group: the group of commands it belongs to.
        name: of the command; that of the function by default.
        uses: what becomes of the file that an option names; of options that are not there, it is read. None: ``f`` looks at them.
        overwrites: there is an ``--overwrite``, which else is added for ``--json-out``.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        has_own = overwrites or any(each.name == "overwrite" for each in getattr(function, "__click_params__", ()))

        @functools.wraps(function)
        def call(
            as_json: bool, json_out: str | None, verbose: bool, quiet: bool, fail_on_warning: bool, **options: Any
        ) -> Any:
            overwrite = bool(options["overwrite"] if has_own else options.pop("overwrite"))
            out = Out(as_json, json_out, verbose, quiet, overwrite)
            if uses is not None:
                given = {key: value for key, value in options.items() if isinstance(value, str)}
                named = [NamedPath(f"--{key}", value, uses.get(key, "read")) for key, value in given.items()]
                refuse_clashes([*named, *out.named_paths()], overwrite=overwrite)
            code = function(out, **options)
            return 1 if fail_on_warning and out.warned and not code else code

        shared = click.option("--overwrite", is_flag=True, help="Replace the FILE of --json-out if it exists.")
        options = stack(
            click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else there."),
            click.option("--json-out", metavar="FILE", help="Write the JSON document to FILE."),
            *(() if has_own else (shared,)),
            click.option("-v", "--verbose", is_flag=True, help="Show what was skipped and why; tracebacks on errors."),
            click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors and warnings."),
            click.option("--fail-on-warning", is_flag=True, help="Exit 1 if there are warnings."),
            click.option(
                "--path", multiple=True, metavar="DIR", is_eager=True, expose_value=False, callback=_add_paths,
                help="Also search DIR for own passes, presets, targets, methods, commands.",
            ),
        )  # fmt: skip
        make = click.command if group is None else group.command
        made: click.Command = make(name, cls=Command)(options(call))
        assert isinstance(made, Command)
        made.uses = uses
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
