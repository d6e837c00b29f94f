"""Hints: what only qdqtool writes beside the encodings, when the model or the caller wants something else."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest
from qdq_passes.errors import QdqError
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import qdq_pairs

from tests.cases.encodings_helpers import NET, back, encodings, file, int8, there, uint8
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal


def test_the_callers_style_wins_over_the_hints() -> None:
    text = """g (float[2] x) => (float[2] y) <int8[2] w_int = {3, 4}, float s = {0.5}> { [d] w = DequantizeLinear(w_int, s) [m] y = Mul(x, w) }"""
    bare, document, _ = there(model(text), "aimet-2.0.0")
    (kept,) = qdq_pairs(back(bare, document).model)
    assert kept.stored is not None
    assert (kept.q, kept.stored.name) == (None, "w_int")
    (pair,) = qdq_pairs(back(bare, document, weights="qdq").model)
    assert pair.q is not None
    (plain,) = qdq_pairs(back(bare, document, hints=False).model)
    assert plain.stored is not None
    assert plain.stored.name == f"{plain.tensor}_quantized"


BROKEN_HINTS = [
    {"pairs": [{"q": {"nmae": "q"}}], "stored": 1},
    {"pairs": 3},
    {"integers": [[1]]},
    {"axis": "first"},
    [],
]


@pytest.mark.parametrize("hint", BROKEN_HINTS)
def test_broken_hints(hint: Any) -> None:
    document = {**file(int8("w")), "qdqtool": {"tensors": {"w": hint}}}
    with refusal(QdqError):
        back(model(NET), document)
    assert back(model(NET), document, hints=False).encoded == ("w",)


def test_hints_about_readers_that_are_gone() -> None:
    """The model changed since: who is named and not there gets nothing, everybody else reads what the hint says."""
    pairs = [
        {"q": {"name": "q"}, "dq": {"name": "d"}, "readers": [["gone", 0]]},
        {"q": {"name": "q2"}, "dq": {"name": "d2"}},
    ]
    document = {**file(uint8("x")), "qdqtool": {"tensors": {"x": {"pairs": pairs}}}}
    graph = back(model("g (float[2] x) => (float[2] y) { [r] y = Relu(x) }"), document).model.graph
    relu = next(node for node in graph if node.name == "r")
    assert relu.inputs[0] is not None
    assert relu.inputs[0].producer().name == "d2"  # type: ignore[union-attr]


HINTS_OF_ANOTHER_MODEL = [
    ("x", {"stored": "x_q", "pairs": [{"q": None}]}),  # x is no constant
    ("x", {"pairs": [{"output": True}]}),  # and no output
    ("y", {"pairs": [{"q": None}]}),  # y is no input
]


@pytest.mark.parametrize(("name", "hint"), HINTS_OF_ANOTHER_MODEL)
def test_hints_that_do_not_fit_the_model_any_more(name: str, hint: Any) -> None:
    document = {**file(uint8(name)), "qdqtool": {"tensors": {name: hint}}}
    done = back(model("g (float[2] x) => (float[2] y) { [r] t = Relu(x) [n] y = Neg(t) }"), document)
    assert done.notes == (f"{name} is no longer what the hints about it say; they are not used",)
    assert encodings(done) == {name: Encoding.per_tensor(ir.DataType.UINT8, 0.5, 128)}
