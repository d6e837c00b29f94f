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
    ("text", "column"),
    [
        ("", 0),
        ("sort,", 5),
        ("sort give-names", 5),
        ("srot", 0),
        ("sort,remove_qdq", 5),
        ("zzz", 0),
        ("sort{x=1}", 5),
        ("remove-qdq{slect=a}", 11),
        ("remove-qdq{select}", 17),
        ("remove-qdq{select=}", 18),
        ("remove-qdq{select=a", 19),
        ('remove-qdq{select="a}', 18),
        ('remove-qdq{select="\\q"}', 18),
        ("remove-qdq{keep-weights=1}", 24),
        ("remove-qdq{keep-weights=@x}", 24),
        ("insert-qdq{weights=both}", 19),
        ("insert-qdq{axis=x}", 16),
        ("insert-qdq{scale=[1,a]}", 17),
        ("remove-qdq{select=layer:x}", 18),
        ("adjust-ranges", 0),
        ("annotate-encodings{encodings=3}", 29),
    ],
)
def test_text_errors_have_a_caret(text: str, column: int) -> None:
    with refusal(PipelineSyntaxError) as caught:
        parse_pipeline(text)
    assert str(caught.value).split("\n")[1:] == [f"  {text}", f"  {' ' * column}^"]
    assert caught.value.exit_code == 2


def test_the_caret_stays_under_its_place_in_long_texts() -> None:
    text = "sort," * 40 + "srot" + ",sort" * 40
    with refusal(PipelineSyntaxError) as caught:
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
