"""The hook that looks on while passes choose and move encodings."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from qdq_passes.clean.give_names import GiveNames
from qdq_passes.core.base import Change
from qdq_passes.numerics.arrays import MANY, Array, Numbers
from qdq_passes.numerics.encoding import Encoding

from qdqtool.record.moves import EncodingWatch
from qdqtool.record.record import Moved

MODEL = ir.from_onnx_text(
    """<ir_version: 10, opset_import: ["" : 21]> g (float[4] x) => (float[4] y) { y = Relu(x) }"""
)


def test_very_many_scales_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be computed from the weights at every look, and who keeps them keeps those."""

    def looked() -> Array:
        raise AssertionError("the numbers were looked at")

    scales = Numbers(MANY, looked, source="weights")
    many = Encoding(dtype=ir.DataType.INT4, scale=scales, zero_point=Numbers.same(MANY, 0), shape=(MANY,), axis=0)
    few = Encoding.per_tensor(ir.DataType.INT8, 0.5)
    seen = iter([{"a": many}, {"a": many}, {"a": few}, {"a": few}])
    monkeypatch.setattr("qdqtool.record.moves.encodings_of", lambda model: next(seen))
    watch = EncodingWatch()
    for number in range(4):
        watch.after(GiveNames(), MODEL, [Change("name", "a", f"rule {number}")])
    watch.after(GiveNames(), MODEL, [])  # nothing changed: not looked at
    assert watch.moves(["a", "b"]) == {
        "a": (Moved(by="give-names", because="rule 0"), Moved(by="give-names", because="rule 2", after=few.to_json())),
        "b": (),
    }
