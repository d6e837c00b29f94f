"""Text of pipelines: printing and parsing are each other's inverse, for every pass and any options."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import string
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from qdq_passes.core import registry
from qdq_passes.core.base import Named, Pass
from qdq_passes.core.registry import PASSES
from qdq_passes.errors import UsageError
from qdq_passes.pipeline.option_types import field_type
from qdq_passes.pipeline.pipeline import Pipeline, parse_pipeline
from qdq_passes.pipeline.text import PipelineSyntaxError, format_pass, make_pass
from qdq_passes.select.selectors import Selector

from tests.dial import examples
from tests.properties.graphs import DETERMINISTIC

EVERY_TYPE = '''
"""A pass with an option of every type that options may have."""
import enum
from dataclasses import dataclass
from typing import Literal

from qdq_passes.core.base import Named, Pass
from qdq_passes.select.selectors import ALL, Selector


class Colour(enum.Enum):
    RED = "red"
    NONE = "none"


@dataclass(frozen=True)
class EveryType(Pass):
    flag: bool = False
    count: int = 0
    ratio: float = 1.0
    word: str = "default"
    choice: Literal["exact", "none", "true", "1"] = "exact"
    number: Literal[1, 2, 4] = 1
    colour: Colour = Colour.RED
    select: Selector = ALL
    words: tuple[str, ...] = ()
    ratios: tuple[float, ...] = (1.0,)
    counts: tuple[int, ...] = ()
    maybe: int | None = None
    ranges: Named | None = None

    def run(self, model):
        return iter(())
'''

#: Words that read as something else when they stand bare.
TRAPS = (
    "true",
    "none",
    "None",
    "nan",
    "NaN",
    "inf",
    "Infinity",
    "-inf",
    "1",
    "1.0",
    "1e5",
    "0x1",
    "@x",
    "a b",
    "",
    "{",
    '"',
    "a,b",
    "é",
    "a\nb",
)
#: Any text that is UTF-8, said by categories: of the name of a codec hypothesis makes a table first, which takes seconds.
ANYTHING = st.characters(exclude_categories=["Cs"])
texts = st.sampled_from(TRAPS) | st.text(ANYTHING, max_size=8) | st.text(string.ascii_letters + "./_:*-", max_size=8)
names = st.text(string.ascii_lowercase + "-_0123456789", min_size=1, max_size=6).filter(lambda t: t[0].isalpha())
globs = st.text(string.ascii_letters + "/*._- ", min_size=1, max_size=8).filter(lambda t: t.strip())
selectors = st.builds(Selector.of, globs | globs.map("op:{}".format) | globs.map("!tensor:{}".format))


@pytest.fixture(scope="module", autouse=True)
def every_type(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The pass above, found in a folder of one's own."""
    folder: Path = tmp_path_factory.mktemp("own")
    (folder / "passes").mkdir()
    (folder / "passes" / "every_type.py").write_text(EVERY_TYPE)
    registry.add_path(folder)
    yield
    registry._added.remove(folder)


def values_of(wanted: Any) -> st.SearchStrategy[Any]:
    """Any value of a field type."""
    arguments = typing.get_args(wanted)
    if wanted is Selector:
        return (
            selectors
            | st.just(Selector())
            | st.builds(lambda a, b: Selector((*a.texts, *b.texts)), selectors, selectors)
        )
    if wanted is Named:
        return st.builds(Named, names)
    if wanted is type(None):
        return st.none()
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return st.sampled_from(list(wanted))
    if typing.get_origin(wanted) is typing.Literal:
        return st.sampled_from(arguments)
    if typing.get_origin(wanted) is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if arguments:
        known = [a for a in arguments if a in (int, float, str, bool, Named, type(None))]
        return st.one_of([values_of(a) for a in known])
    return {
        bool: st.booleans(),
        int: st.integers(1 - 2**63, 2**63 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: texts,
    }[wanted]


@st.composite
def passes(draw: st.DrawFn) -> Pass:
    """Any pass with any options that it can be made with; those without a default are always given."""
    cls = PASSES.load(draw(st.sampled_from([*PASSES.names(), "every-type"])))
    options = {
        field.name: draw(values_of(field_type(cls, field.name)))
        for field in dataclasses.fields(cls)
        if (field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING)
        or draw(st.booleans())
    }
    try:
        return typing.cast("Pass", cls(**options))
    except UsageError:  # it wants at least one of several, or not two together
        reject()


@settings(DETERMINISTIC, max_examples=examples(400))
@given(st.lists(passes(), min_size=1, max_size=3))
def test_parsing_undoes_printing(chain: list[Pass]) -> None:
    pipeline = Pipeline(tuple(chain))
    text = str(pipeline)
    assert parse_pipeline(text) == pipeline, text
    assert str(parse_pipeline(text)) == text


@settings(DETERMINISTIC, max_examples=examples(200))
@given(passes())
def test_plain_values_make_the_same_pass(pass_: Pass) -> None:
    """An edit script gives options as TOML values, under the names of the text."""
    options = {
        field.name.replace("_", "-"): plain(getattr(pass_, field.name))
        for field in dataclasses.fields(pass_)
        if getattr(pass_, field.name) is not None
    }
    assert make_pass(type(pass_).name(), options) == pass_


def plain(value: Any) -> Any:
    """An option value as TOML has it."""
    if isinstance(value, Selector):
        return list(value.texts)
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Named):
        return str(value)
    return value.value if isinstance(value, enum.Enum) else value


@settings(DETERMINISTIC, max_examples=examples(300))
@given(st.text('ab-{}[]"@=,. 1\\\n', max_size=24))
def test_any_text_parses_or_says_where_it_is_wrong(text: str) -> None:
    """No text makes the parser raise anything but its own error, with a caret below the text."""
    with contextlib.suppress(PipelineSyntaxError):
        pipeline = parse_pipeline(text)
        assert parse_pipeline(str(pipeline)) == pipeline
        return
    with pytest.raises(PipelineSyntaxError) as caught:
        parse_pipeline(text)
    assert str(caught.value).splitlines()[-1].strip() == "^"
    assert 0 <= caught.value.column <= len(text)


@settings(DETERMINISTIC, max_examples=examples(200))
@given(passes(), st.data())
def test_cut_text_is_refused_or_shorter(pass_: Pass, data: st.DataObject) -> None:
    """The beginning of a text is never read as the whole pass with other options than it shows."""
    text = format_pass(pass_)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    with contextlib.suppress(UsageError):
        read = parse_pipeline(cut)
        assert "{" not in cut
        assert str(read) == cut.strip()
