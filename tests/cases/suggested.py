"""Suggestions of `analyze`: their commands, whether there are such, and running them."""

from __future__ import annotations

import re
import shlex
from functools import cache

import click
from qdq_passes.pipeline.pipeline import parse_pipeline
from qdq_passes.select.selectors import Selector

from qdqtool.cli.main import cli as root
from qdqtool.presets import PRESETS
from qdqtool.targets.loading import TARGETS
from tests.cases.cli_helpers import cli

_COMMAND = re.compile(r"`([^`]*)`")
#: Suggestions without a command say so in these words.
WITHOUT = ("no pass is known that ", "nothing to mend")


def commands(suggestion: str) -> list[str]:
    """What stands in backticks."""
    return _COMMAND.findall(suggestion)


def complaint(suggestion: str) -> str | None:
    """What is wrong with ``suggestion``; None where it names a way out that there is, or says that there is none."""
    if not suggestion:
        return "is empty"
    if suggestion.count("`") % 2:
        return "has an odd backtick"
    if not commands(suggestion) and not any(words in suggestion for words in WITHOUT):
        return "names no command, and does not say that there is none"
    return next((wrong for command in commands(suggestion) if (wrong := _why_not(command)) is not None), None)


def without_files(words: list[str], at: int) -> list[str]:
    """The options in the ``words`` of a command behind its name, without the model it names and where it writes."""
    options = words[at:] if words[at : at + 1] and words[at].startswith("-") else words[at + 1 :]
    where = options.index("-o") if "-o" in options else None
    return options if where is None else [*options[:where], *options[where + 2 :]]


def follow(suggestion: str, model: str, folder: str, data: str = "random:2") -> str:
    """Run the first way out, the commands that are joined by ``then`` and ``and``; the path of the model they end with."""
    way = suggestion.split("; or ")[0]
    for number, command in enumerate(commands(way)):
        output = f"{folder}/step{number}.onnx"
        words = shlex.split(command)[1:]
        at = 2 if words[0] == "qdq" else 1
        more = ["--data", data] if words[0] == "quantize" else []
        options = without_files(words, at)
        if "--data" in options:  # what stands for the data of a user
            options, more = [word for word in options if word not in ("--data", "DATA")], ["--data", data]
        cli(*words[:at], model, "-o", output, *options, *more)
        model = output
    return model


@cache
def _why_not(command: str) -> str | None:
    words = shlex.split(command)
    if words[0] != "qdqtool":
        return f"`{command}` is no command of qdqtool"
    found, rest = _found(words[1:])
    if found is None:
        return f"`{command}`: there is no such command"
    rest = rest[1:] if rest and not rest[0].startswith("-") else rest  # the model
    options = {name: option for option in found.params for name in (*option.opts, *option.secondary_opts)}
    given: str | None = None
    for word in rest:
        if given is not None:
            if (wrong := _why_not_value(given, word, options[given])) is not None:
                return f"`{command}`: {wrong}"
            given = None
        elif word not in options:
            return f"`{command}`: there is no option {word}"
        elif not getattr(options[word], "is_flag", False):
            given = word
    return None if given is None or rest[-1:] == ["--outputs"] else f"`{command}`: {given} has no value"


def _found(words: list[str]) -> tuple[click.Command | None, list[str]]:
    """The command that ``words`` name, and its options."""
    context, found = click.Context(root), root.commands.get(words[0]) or root.get_command(click.Context(root), words[0])
    if isinstance(found, click.Group):
        return found.get_command(context, words[1]), words[2:]
    return found, words[1:]


def _why_not_value(option: str, value: str, parameter: click.Parameter) -> str | None:
    if option in ("-p", "--pipeline"):
        parse_pipeline(value)  # an unknown pass is an error
    elif option in ("--select", "--exclude", "--only"):
        Selector.of(value)
    elif option == "--target" and value not in TARGETS.names():
        return f"there is no target {value}"
    elif option == "--preset" and value not in PRESETS.names():
        return f"there is no preset {value}"
    elif isinstance(parameter.type, click.Choice) and value not in parameter.type.choices:
        return f"{option} cannot be {value}"
    return None
