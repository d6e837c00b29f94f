"""Options said once: the command, the function, recipes and the page of options follow from the fields of a verb."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import click
import pytest
from qdq_passes.errors import UsageError

import qdqtool
from qdqtool.api import VERBS
from qdqtool.cli.commands import command_of
from qdqtool.cli.main import COMMANDS
from qdqtool.cli.render import Out
from qdqtool.io.feeds.image_options import Fit, ImageOptions
from qdqtool.options import LAST, changed, group, metadata_of, option, options_of, pairs, part_of, python_only
from qdqtool.quantization.options import PlanOptions
from qdqtool.verbs.quantize import Quantize
from qdqtool.verbs.verb import Verb, documented, function_of
from tests.golden_messages.refusal import refusal


@dataclass(frozen=True, kw_only=True)
class Shared:
    seed: int = option(0, "Seed.", shown=True)
    image: ImageOptions | None = group(ImageOptions, prefix="image-", recipe=False)


@dataclass(frozen=True, kw_only=True)
class Paint(Shared, Verb[str]):
    """Paint the MODEL.

    With care.
    """

    placed: ClassVar = {"seed": "coats"}

    model: str = field(kw_only=False, metadata=metadata_of("The model.", kind="argument", value="MODEL", use="read"))
    output: str | None = field(
        default=None, kw_only=False, metadata=metadata_of("Where to.", value="FILE", use="file", flags=("-o", "--output"))
    )  # fmt: skip
    colour: Literal["red", "blue"] = option("red", "Which colour.")
    coats: int = option(1, "How many.", value="N", least=1)
    names: Sequence[str] = option((), "Which ones.", value="NAME", flags=("--name",))
    extra: Mapping[str, str] | None = option(
        None, "More.", value="K=V", many=True, read=lambda texts: pairs(texts, example="a=b")
    )
    dry: bool | None = option(None, "Whether to wait.")
    glossy: bool = option(False, "Shine.", recipe=False, before="colour")
    primer: bool = option(True, "No primer.", flags=("--no-primer",))
    thin: float | None = option(None, "Thin it.", alone="0.5", read=float, value="[X]")
    last: bool = option(False, "Comes last.", before=LAST)
    listener: Any = python_only(None, "Told.")

    def run(self) -> str:
        return f"{self.model} in {self.colour}"


paint = function_of(Paint)


def given(*arguments: str) -> Paint:
    """What the command makes of ``arguments``."""
    found: list[Paint] = []

    @command_of(Paint, name="paint")
    def run(out: Out, asked: Paint) -> None:
        found.append(asked)

    run.main(list(arguments), standalone_mode=False)
    return found[0]


def test_the_command_line_gives_the_same_verb_as_python() -> None:
    assert given("m") == Paint("m")
    asked = given(
        "m", "-o", "o", "--colour", "blue", "--coats", "2", "--name", "a", "--name", "b", "--extra", "x=1", "--extra", "y=2",
        "--no-dry", "--glossy", "--no-primer", "--seed", "7", "--image-fit", "letterbox", "--image-size", "4x8", "--last",
    )  # fmt: skip
    assert asked == Paint(
        "m", "o", colour="blue", coats=2, names=("a", "b"), extra={"x": "1", "y": "2"}, dry=False, glossy=True, primer=False,
        seed=7, image=ImageOptions(fit=Fit.LETTERBOX, size=(4, 8)), last=True,
    )  # fmt: skip
    assert (given("m", "--thin").thin, given("m", "--thin=0.25").thin) == (0.5, 0.25)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--coats", "0"], "0 is not in the range"),
        (["--colour", "green"], "is not one of 'red', 'blue'"),
        (["--extra", "x"], "--extra 'x' is no K=V; write a=b"),
        (["--extra", "x=1", "--extra", "x=2"], "--extra x is given twice"),
        (["--thin=much"], "--thin could not convert"),
        (["--image-size", "big"], "--image-size 'big' is no size"),
    ],
)
def test_values_that_an_option_does_not_take(arguments: list[str], message: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        given("m", *arguments)
    assert message in caught.value.format_message()


def test_the_function() -> None:
    assert paint("m", colour="blue") == "m in blue"
    assert paint.__doc__ == documented(Paint)
    assert "With care." in documented(Paint)
    assert "colour: Which colour." in documented(Paint)
    assert list(inspect.signature(paint).parameters)[:2] == ["model", "output"]
    with refusal(UsageError):
        paint("m", color="blue")
    with pytest.raises(TypeError, match=r"^paint\(\): missing a required argument: 'model'$"):
        paint()
    with pytest.raises(TypeError, match=r"^paint\(\): too many positional arguments$"):
        paint("m", "o", "more")


def test_several_values_of_a_type_that_is_not_imported_say_how_they_are_read() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Vague:
        parts: Sequence[Unknown] = option((), "Parts.")  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(TypeError, match=r"^Vague\.parts: Sequence\[Unknown\] names what is not imported"):
        options_of(Vague)


def test_the_order() -> None:
    names = [each.name for each in options_of(Paint)]
    assert names == [
        "model", "output", "glossy", "colour", "seed", "coats", "names", "extra", "dry", "primer", "thin", "listener", "image",
        "last",
    ]  # fmt: skip


def test_recipes_hold_what_was_said_beside_the_defaults() -> None:
    assert changed(Paint("m", "o", coats=2, glossy=True, names=[], listener=print)) == {"coats": 2}
    assert part_of(Shared, Paint("m", seed=3)) == Shared(seed=3)


def test_an_option_of_quantize_is_one_line() -> None:
    """What a subclass adds with one field is on the command, in Python and in recipes."""

    @dataclass(frozen=True, kw_only=True)
    class More(Quantize):
        polish: bool = option(False, "Polish the result.")

    @command_of(More, name="more")
    def run(out: Out, asked: More) -> None:
        assert asked.polish

    assert run.main(["m", "--polish"], standalone_mode=False) is None
    assert "polish" in inspect.signature(More).parameters
    assert changed(More("m", polish=True)) == {"polish": True}


@pytest.mark.parametrize("name", sorted(VERBS))
def test_every_field_of_a_verb_says_what_it_is(name: str) -> None:
    function = getattr(importlib.import_module(VERBS[name]), name)
    assert function.__name__ == name
    verb = inspect.unwrap(function)
    assert Verb in verb.__bases__
    names = {each.name for each in dataclasses.fields(verb)}
    assert set(inspect.signature(function).parameters) == {each.name for each in options_of(verb)} == names
    assert all(each.option.help for each in options_of(verb))


def test_names_of_options_are_the_same_in_python() -> None:
    """What `quantize` has as a command and not in Python, where a goal has a function of its own, only shows or writes something."""
    command = COMMANDS.load("quantize")
    python = set(inspect.signature(qdqtool.api.quantize_to_goal).parameters)
    assert set(inspect.signature(qdqtool.quantize).parameters) < python
    names = {each.name for each in command.params if each.name and not each.name.startswith("image_")}
    assert names - python == {
        "as_json",
        "fail_on_warning",
        "json_out",
        "path",
        "print_pipeline",
        "quiet",
        "save_ranges",
        "verbose",
    }
    assert python - names == {"hooks", "image", "progress", "warn"}
    assert {each.name for each in dataclasses.fields(PlanOptions)} <= python
