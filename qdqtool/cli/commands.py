"""A command made of a verb: its arguments and options are the fields of the class, its help is the docstring."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator
from dataclasses import MISSING, replace
from typing import Any, TypeVar, get_args

import click

from qdqtool.cli.completing import completer
from qdqtool.cli.help import Command, Option
from qdqtool.cli.options import command
from qdqtool.cli.render import Out
from qdqtool.options import Field, options_of
from qdqtool.verbs.named_paths import refuse_clashes
from qdqtool.verbs.verb import Verb, help_of

V = TypeVar("V", bound=Verb[Any])
R = TypeVar("R")


def command_of(
    verb: type[V], *, group: click.Group | None = None, name: str | None = None
) -> Callable[[Callable[[Out, V], int | None]], click.Command]:
    """Make a command of a function ``f(out, verb)``: what the person says becomes a ``verb``.

    Its line in the list of commands is the docstring of the function, or the first of its help.

    Args:
        verb: the class; one for the command alone may add fields to that of `qdqtool.verbs`.
        group: the group of commands it belongs to.
        name: of the command; that of the function by default.
    """

    def decorate(function: Callable[[Out, V], int | None]) -> click.Command:
        def call(out: Out, **given: Any) -> int | None:
            asked = verb(**values_of(verb, given))
            paths = [*asked.named_paths(), *out.named_paths()]
            refuse_clashes(paths, overwrite=getattr(asked, "overwrite", out.overwrite))
            written = [each.path for each in paths if each.use == "file"]
            if not written:
                return function(out, asked)
            from qdqtool.io.files.atomic import together

            with together(written):
                return function(out, asked)

        call.__name__, call.__doc__ = function.__name__, help_of(verb)
        own = [each.name for each in options_of(verb)]
        made = command(group, name, uses=None, overwrites="overwrite" in own)(call)
        made.short_help = function.__doc__
        assert isinstance(made, Command)
        made.examples = verb.examples
        made.params += sorted(
            map(_parameter, _shown(verb)), key=lambda each: each.nargs == -1
        )  # what takes the rest is last
        return made

    return decorate


def ran(out: Out, verb: Verb[R], stage: str) -> R:
    """What ``verb`` gives, its warnings and its progress shown; ``stage`` is what is done first."""
    with out.progress(stage) as tick:
        return verb.heard(out.warn, progress=tick if verb.has_stages else functools.partial(tick, stage))


def values_of(cls: type, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``cls`` from what click found: a group becomes one value, None where nothing of it is given."""
    found = {}
    for each in options_of(cls):
        option = each.option
        if option.part is not None:
            parts = {o.name: given[_inner(each, o)] for o in options_of(option.part)}
            parts = {key: value for key, value in parts.items() if value is not None}
            found[each.name] = option.part(**parts) if parts else None
        elif option.kind != "python":
            value = given[each.name]
            is_silent = value == () and option.read is None and each.default is not MISSING
            found[each.name] = not value if each.is_inverted else each.default if is_silent else value
    return found


def _shown(cls: type) -> Iterator[Field]:
    """Options of ``cls`` as they are shown, those of groups among them; of these nothing has a default."""
    for each in options_of(cls):
        if each.option.part is not None:
            for inner in options_of(each.option.part):
                yield replace(inner, name=_inner(each, inner), default=None)
        elif each.option.kind != "python":
            yield each


def _inner(outer: Field, inner: Field) -> str:
    return f"{outer.option.prefix}{inner.name}".replace("-", "_")


def _parameter(each: Field) -> click.Parameter:
    option = each.option
    if option.kind == "argument":
        is_optional = each.default is not MISSING or (option.value or "").startswith("[")
        return click.Argument(
            [each.name], metavar=option.value, required=not is_optional, nargs=-1 if each.is_many else 1,
            type=click.Choice(each.choices) if each.choices else None, shell_complete=completer(each),
        )  # fmt: skip
    return Option(
        [each.name, *each.spellings], help=option.text, metavar=option.value, required=option.required,
        section=each.section, shell_complete=completer(each), **_form(each),
    )  # fmt: skip


def _form(each: Field) -> dict[str, Any]:
    """What click is to know of the value: its type, its default, how often it may be given."""
    option = each.option
    if each.is_switch and option.read is None:
        if each.is_flag:
            return {"is_flag": True}
        return {"default": each.default, "show_default": option.shown}
    form: dict[str, Any] = {"multiple": each.is_many, "show_default": option.shown}
    if option.alone is not None:
        form |= {"is_flag": False, "flag_value": option.alone}
    if option.read is not None:
        shown = {"default": option.shown, "show_default": True} if isinstance(option.shown, str) else {}
        return {**form, **shown, "callback": _reader(each)}
    if not each.is_many and each.default is not MISSING:
        form["default"] = each.default
    kind = next((one for one in each.types if isinstance(one, enum.EnumMeta)), None)
    if kind is not None:
        form["callback"] = lambda context, parameter, value: None if value is None else kind(value)
    return {**form, "type": _type(each)}


def _type(each: Field) -> click.ParamType[Any] | type | None:
    if each.choices:
        return click.Choice(each.choices)
    types = {inner for one in each.types for inner in (get_args(one) or (one,))}
    if float in types:
        return float
    if int not in types:
        return None
    least, most = each.option.least, each.option.most
    return int if least is None and most is None else click.IntRange(min=least, max=most)


def _reader(each: Field) -> Callable[[click.Context, click.Parameter, Any], object]:
    """A callback that makes the value of what is said; where nothing is, the default."""
    read = each.option.read
    assert read is not None

    def value_of(context: click.Context, parameter: click.Parameter, value: Any) -> object:
        if value is None or value == ():
            return None if each.default is MISSING else each.default
        try:
            return read(value)
        except ValueError as error:
            raise click.UsageError(f"{each.spelled} {error}", context) from error

    return value_of
