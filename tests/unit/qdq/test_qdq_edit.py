"""Surgery on pairs: what it refuses to write over, and notes on weights that mean nothing any more."""

from __future__ import annotations

import base64
import json

import pytest
from qdq_passes.errors import ModelError
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import all_nodes
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.edit.integers import KEY
from qdq_passes.qdq.edit.pairs import write_encodings

from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal


@pytest.mark.parametrize("computed", ["scale", "zero point"])
def test_what_is_computed_at_run_time_is_not_written(computed: str) -> None:
    inputs = {
        "scale": "float s) => (float[2] y) <int8 z = {0}>",
        "zero point": "int8 z) => (float[2] y) <float s = {0.5}>",
    }
    graph = model(
        f"g (float[2] x, {inputs[computed]} {{ [q] i = QuantizeLinear(x, s, z) [d] y = DequantizeLinear(i, s, z) }}"
    )
    encoding = Encoding.from_json({"dtype": "int8", "scale": 0.25, "zero_point": 1, "axis": None, "block_size": None})
    with refusal(ModelError):
        write_encodings(dict.fromkeys(all_nodes(graph), encoding), Namer(graph))


STORED = """g (float[2] x) => (float[2] y) <int32[2] w_quantized = {1, 16777217}, float s = {0.5}>
{ [d] w = DequantizeLinear(w_quantized, s) [m] y = Mul(x, w) }"""


@pytest.mark.parametrize(
    "change",
    [
        lambda _: "{",
        lambda _: "[]",
        lambda note: json.dumps({"encoding": note["encoding"]}),
        lambda note: json.dumps({**note, "data": "%%"}),
        lambda note: json.dumps({**note, "data": base64.b64encode(b"123").decode()}),
        lambda note: json.dumps({**note, "encoding": {"dtype": "int9"}}),
    ],
    ids=["no JSON", "no object", "no data", "no base64", "half an integer", "no encoding"],
)
def test_a_broken_note_of_integers_is_named(change: object) -> None:
    """`remove-qdq` notes integers that float32 does not hold on the weight that it makes; who quantizes that again reads them."""
    graph = model(STORED)
    run_pipeline(graph, "remove-qdq")
    weight = graph.graph.initializers["w"]
    assert callable(change)
    weight.metadata_props[KEY] = change(json.loads(weight.metadata_props[KEY]))
    with pytest.raises(ModelError, match=rf"w: its metadata {KEY} is broken: .*; remove that entry"):
        run_pipeline(graph, 'insert-qdq{select="tensor:w" scale=0.5 dtype=int32 weights=dq}')


def test_a_note_of_another_encoding_means_nothing_any_more() -> None:
    """w = 0.5·(1, 2²⁴ + 1) is (0.5, 2²³) in float32: (2, 2²⁵) at 0.25, whatever integers are noted for 0.5."""
    graph = model(STORED)
    run_pipeline(graph, 'remove-qdq,insert-qdq{select="tensor:w" scale=0.25 dtype=int32 weights=dq}')
    stored = graph.graph.initializers["w_quantized"].const_value
    assert stored is not None
    assert stored.numpy().tolist() == [2, 2**25]
