"""--int8-weights: weights of named nodes in 8 bit under presets of fewer, and what is refused."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest
from qdq_passes.errors import UsageError
from qdq_passes.qdq.look.weighted_layers import weighted_layers

import qdqtool
from qdqtool import api
from tests.cases.cli_helpers import CALIB, DIGITS, SAMPLES
from tests.golden_messages.refusal import refusal


@pytest.mark.parametrize(("preset", "narrow"), [("w4-g32", ir.DataType.INT4), ("16a4w", ir.DataType.INT4)])
def test_named_layers_have_int8_weights_with_a_scale_per_output(preset: str, narrow: ir.DataType) -> None:
    made = qdqtool.quantize(DIGITS, None, preset=preset, data=CALIB, samples=2, int8_weights=["/head/*"]).model
    seen = set()
    for layer in weighted_layers(made):
        assert layer.pair is not None
        assert layer.pair.encoding is not None
        encoding, is_named = layer.pair.encoding, layer.name.startswith("/head/")
        seen.add(is_named)
        assert encoding.dtype == (ir.DataType.INT8 if is_named else narrow)
        if is_named:
            assert len(encoding.scale) == layer.form.sizes[1]
            assert encoding.is_symmetric
    assert seen == {True, False}


def test_a_selector_that_no_part_of_a_decoder_has_is_refused(tmp_path: Path) -> None:
    """One that is in the second part alone is not."""
    api.split(SAMPLES / "tiny_llama.onnx", tmp_path / "a", prefill=[8], context=[16], parts=2)
    done = api.quantize(tmp_path / "a", preset="w4-g32", int8_weights=["*linear_27"])
    kinds = [
        {str(layer.pair.encoding.dtype) for layer in weighted_layers(each.model) if layer.pair and layer.pair.encoding}
        for each in done.graphs.values()
    ]
    assert sorted(len(each) for each in kinds) == [1, 1, 2, 2]
    with refusal(UsageError):
        api.quantize(tmp_path / "a", preset="w4-g32", int8_weights=["nope"])


def test_what_is_refused(tmp_path: Path) -> None:
    for said in (
        {"preset": "xint8", "data": CALIB, "int8_weights": ["*"]},
        {"preset": "w4-g32", "int8_weights": ["/haed/fc"]},
    ):
        with refusal(UsageError):
            qdqtool.quantize(DIGITS, tmp_path / "a.onnx", **said)
    told: list[str] = []
    qdqtool.quantize(DIGITS, None, preset="w4-g32", int8_weights=["/haed/fc"], allow_empty=True, warn=told.append)
    assert any("'/haed/fc' matches nothing" in text for text in told)
    told.clear()
    qdqtool.quantize(DIGITS, None, preset="w4-g32", int8_weights=["op:Relu", "/head/*"], warn=told.append)
    assert told == ["--int8-weights op:Relu names no layer with a weight"]
