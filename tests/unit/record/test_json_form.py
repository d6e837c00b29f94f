"""The JSON form of a record: what is written is read again, what is not known is refused in a line, and the schema says the same."""

from __future__ import annotations

import json
import runpy
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes.errors import ModelError

from qdqtool.record.record import (
    CAUSES,
    Histogram,
    Moved,
    NodeRecord,
    Record,
    TensorRecord,
    Whole,
    merged,
)
from tests.cases.records import large_record
from tests.dial import examples

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads(files("qdqtool.record").joinpath("schema.json").read_text("utf-8"))

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
MAYBE = st.none() | NUMBERS
COUNTS = st.integers(0, 2**40)
TEXTS = st.text(max_size=5)
SCALES = st.floats(2.0**-100, 2.0**100)
ENCODINGS = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["int8", "uint16", "int4"]), "axis": st.none(), "block_size": st.just(0), "scale": SCALES,
     "zero_point": st.just(0)},
) | st.lists(SCALES, min_size=1, max_size=3).map(
    lambda scale: {"dtype": "int8", "axis": 0, "block_size": 0, "scale": scale, "zero_point": [0] * len(scale)}
)  # fmt: skip
PRICES = st.dictionaries(st.sampled_from(CAUSES), st.floats(0, 1e30))
MOVES = st.builds(Moved, by=TEXTS, because=TEXTS, before=st.none() | ENCODINGS, after=st.none() | ENCODINGS)
HISTOGRAMS = st.builds(Histogram, low=NUMBERS, high=NUMBERS, counts=st.lists(COUNTS, max_size=4).map(tuple))
TENSORS = st.builds(
    TensorRecord, name=TEXTS, kind=st.sampled_from(["activation", "weight", "bias"]), node=TEXTS,
    encoding=st.none() | ENCODINGS, low=MAYBE, high=MAYBE, histogram=st.none() | HISTOGRAMS,
    moved=st.lists(MOVES, max_size=2).map(tuple), clipped=st.none() | st.floats(0, 1), sqnr_db=MAYBE, here_db=MAYBE,
    whole_db=MAYBE, price=PRICES, excluded=TEXTS, kept=TEXTS,
)  # fmt: skip
NODES = st.builds(
    NodeRecord, name=TEXTS, op=TEXTS, tensors=st.lists(TEXTS, max_size=2).map(tuple), here_db=MAYBE, whole_db=MAYBE,
    price=PRICES, excluded=TEXTS, verdict=TEXTS, rule=TEXTS, reason=TEXTS, suggestion=TEXTS, device=TEXTS,
    partition=st.none() | st.integers(0, 9), us=MAYBE, low_us=MAYBE, high_us=MAYBE, limit=TEXTS, bytes=st.none() | COUNTS,
)  # fmt: skip
WHOLES = st.builds(
    Whole, file_bytes=st.none() | COUNTS, target=TEXTS, operators=st.none() | COUNTS, npu_operators=st.none() | COUNTS,
    macs=st.none() | COUNTS, npu_macs=st.none() | COUNTS, chip=TEXTS, stack=TEXTS, us=MAYBE, low_us=MAYBE, high_us=MAYBE,
    notes=st.lists(TEXTS, max_size=2).map(tuple),
)  # fmt: skip
RECORDS = st.builds(
    Record, tensors=st.lists(TENSORS, max_size=3).map(tuple), nodes=st.lists(NODES, max_size=3).map(tuple),
    noise=st.dictionaries(TEXTS, st.floats(0, 1e30), max_size=2), samples=COUNTS, model=TEXTS, whole=WHOLES,
)  # fmt: skip


@settings(max_examples=examples(100))
@given(RECORDS)
def test_what_is_written_is_read_again(record: Record) -> None:
    data = json.loads(json.dumps(record.to_json(), allow_nan=False))
    assert Record.from_json(data) == record
    jsonschema.validate(data, SCHEMA)


@settings(max_examples=examples(20))
@given(st.lists(RECORDS, max_size=3))
def test_prices_add_up_to_the_noise_they_are_of(records: list[Record]) -> None:
    """Never those of one record beside the noise of another."""
    found = merged(records)
    sources = [one for one in records if one.noise == found.noise and one.samples == found.samples]
    assert not found.causes or any(set(found.causes) <= set(one.causes) for one in sources)
    assert found == merged([found])


def test_a_large_record() -> None:
    record = large_record(nodes=50, tensors=80)
    data = json.loads(json.dumps(record.to_json()))
    jsonschema.validate(data, SCHEMA)
    assert Record.from_json(data) == record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "has version 2, a record of version 1 can be read; update qdqtool"),
        ({"version": None}, "has version None, a record of version 1 can be read; write it again"),
        ({"colour": 1}, "the record cannot be read: colour is not known; write it again"),
        ({"nodes": [{"name": "a"}, {"name": "b", "speed": 1}]}, "the record cannot be read: nodes[1].speed is not known; write it again"),
        ({"nodes": [{"op": "Conv"}]}, "the record cannot be read: nodes[0].name is missing; write it again"),
        ({"samples": "8"}, "the record cannot be read: samples is text, expected a whole number; write it again"),
        ({"tensors": [{"name": "x", "kind": "weight", "encoding": {"dtype": "int8"}}]},
         "the record cannot be read: tensor 'x' has an encoding that is none ('scale'); write it again"),
    ],
)  # fmt: skip
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    data = Record().to_json() | change
    with pytest.raises(ModelError) as caught:
        Record.from_json(data)
    assert str(caught.value) == message
    if "encoding" not in message or "version" in change:
        assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(data)


def test_the_schema_is_that_of_the_dataclasses() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_record.py"))
    assert made["text"]() == made["SCHEMA"].read_text(encoding="utf-8"), "run python docs/make_record.py"
    page = made["PAGE"].read_text(encoding="utf-8")
    assert made["page"](page) == page, "run python docs/make_record.py"
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
