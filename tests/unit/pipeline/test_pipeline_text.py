"""The text of pipelines: canonical form, and errors with a caret under the place."""

from __future__ import annotations

import pytest
from qdq_passes import parse_pipeline
from qdq_passes.core.base import Named
from qdq_passes.errors import UsageError
from qdq_passes.pipeline.text import PipelineSyntaxError, make_pass

from tests.golden_messages.refusal import refusal


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("sort", "sort"),
        (" sort ,\n give-names ", "sort,give-names"),
        ("infer-shapes{}", "infer-shapes"),
        ("infer-shapes{ data-propagation = true }", "infer-shapes"),
        ("infer-shapes{data_propagation=false}", "infer-shapes{data-propagation=false}"),
        ("insert-qdq{scale=0.5 select=tensor:w}", 'insert-qdq{select="tensor:w" scale=[0.5]}'),
        (
            'insert-qdq{scale=[1,0.5] axis=0 select=["a","op:B"]}',
            'insert-qdq{select=["a","op:B"] scale=[1.0,0.5] axis=0}',
        ),
        ("annotate-encodings{encodings=@ranges}", "annotate-encodings{encodings=@ranges}"),
        ('rename{values=["a=b"]}', 'rename{values=["a=b"]}'),
        ('insert-qdq{select="a \\" b"}', 'insert-qdq{select="a \\" b"}'),
    ],
)
def test_text(text: str, canonical: str) -> None:
    assert str(parse_pipeline(text)) == canonical
    assert parse_pipeline(canonical) == parse_pipeline(text)


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("", "the pipeline is empty", 0),
        ("sort,", "expected a pass name", 5),
        ("sort give-names", "expected ','", 5),
        ("srot", "unknown pass 'srot'; did you mean 'sort'?", 0),
        ("sort,remove_qdq", "unknown pass 'remove_qdq'; did you mean 'remove-qdq'", 5),
        ("zzz", "unknown pass 'zzz'; see `qdqtool list passes`", 0),
        ("sort{x=1}", "sort has no option 'x'; it takes no options", 5),
        ("remove-qdq{slect=a}", "remove-qdq has no option 'slect'; did you mean select?", 11),
        ("remove-qdq{select}", "expected '='", 17),
        ("remove-qdq{select=}", "expected a value", 18),
        ("remove-qdq{select=a", "the text ends inside braces", 19),
        ('remove-qdq{select="a}', "expected a closed string", 18),
        ('remove-qdq{select="\\q"}', "not a JSON string", 18),
        ("remove-qdq{keep-weights=1}", "1 is no value for keep-weights; expected true | false", 24),
        ("remove-qdq{keep-weights=@x}", "@x is no value for keep-weights", 24),
        ("insert-qdq{weights=both}", '"both" is no value for weights; expected qdq | dq', 19),
        ("insert-qdq{axis=x}", '"x" is no value for axis; expected an integer | none', 16),
        ("insert-qdq{scale=[1,a]}", "is no value for scale; expected [a number, …]", 17),
        ("remove-qdq{select=layer:x}", "no layer range", 18),
        ("adjust-ranges", "adjust-ranges needs ranges; write adjust-ranges{ranges=…}", 0),
        ("annotate-encodings{encodings=3}", "3 is no value for encodings; expected @name", 29),
    ],
)
def test_text_errors_have_a_caret(text: str, message: str, column: int) -> None:
    with pytest.raises(PipelineSyntaxError) as caught:
        parse_pipeline(text)
    lines = str(caught.value).split("\n")
    assert message in lines[0]
    assert lines[1:] == [f"  {text}", f"  {' ' * column}^"]
    assert caught.value.exit_code == 2


def test_the_caret_stays_under_its_place_in_long_texts() -> None:
    text = "sort," * 40 + "srot" + ",sort" * 40
    with pytest.raises(PipelineSyntaxError) as caught:
        parse_pipeline(text)
    _, line, caret = str(caught.value).split("\n")
    assert line[caret.index("^") :].startswith("srot")
    assert len(line) < 110


def test_plain_values() -> None:
    made = make_pass("insert-qdq", {"select": ["tensor:w"], "scale": [1, 0.5], "axis": 0, "weights": "dq"})
    assert made == parse_pipeline("insert-qdq{select=tensor:w scale=[1,0.5] axis=0 weights=dq}").passes[0]
    assert make_pass("annotate-encodings", {"encodings": "@ranges"}).encodings == Named("ranges")  # type: ignore[attr-defined]
    with refusal(UsageError):
        make_pass("remove-qdq", {"slect": "a"})
    with refusal(UsageError):
        make_pass("adjust-ranges", {})
