"""Masks and positions of decoders as exporters write them: what they are told to be, and that the numbers stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.decoder.look.host_boundary import frozen_positions, shared_positions
from qdq_passes.decoder.look.host_region import READ_BYTES, Host, Sizes
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.errors import UnsupportedError
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.io.models.load import load
from tests.cases.small_decoders import decoder, difference, weight
from tests.golden_messages.refusal import refusal

DATA = Path(__file__).parents[2] / "data" / "decoders"
CLEAN = "lift-constants,remove-no-ops,give-names"
#: Masks: 0 added, or weights that underflow to 0, as before. Rotations are computed of the same numbers.
EXACT = 0.0
WINDOWS = {"gemma2_optimum": [16, 0], "gpt2_torchscript": [0, 0], "llama_dynamo23": [0, 0], "llama_dynamo_anon": [0, 0]}


@pytest.mark.product(cover=("form",), extra=1)
@pytest.mark.parametrize("form", ["input", "graph"])
@pytest.mark.parametrize("name", WINDOWS)
def test_numbers_stay(name: str, form: str) -> None:
    before = load(DATA / name / "model.onnx")
    pipeline = f"{CLEAN},replace-attention-mask{{form={form}}},replace-positions"
    report = run_pipeline(load(DATA / name / "model.onnx"), pipeline)
    names = [v.name for v in report.model.graph.inputs if "past" not in (v.name or "")]
    masks = [f"attention_mask_w{w}" if w else "attention_mask" for w in sorted(set(WINDOWS[name]))]
    assert sorted(names) == sorted(["input_ids", "position_ids", *(masks if form == "input" else [])])
    for batch, past, new in ((1, 7, 3), (2, 5, 2), (1, 0, 4), (1, 40, 3)):
        assert difference(before, report.model, batch=batch, past=past, new=new) == EXACT
    io = decoder_io(report.model)
    assert io.positions is not None
    host = Host(report.model, io)
    assert frozen_positions(host, io.positions) == []
    assert shared_positions(host, io.positions) is None


def test_masks_of_group_query_attention_are_its_own() -> None:
    report = run_pipeline(load(DATA / "llama_genai_int4" / "model.onnx"), "replace-attention-mask,replace-positions")
    assert not report.modified
    assert [str(change).partition(":")[0] for change in report.changes] == ["skip main_graph", "skip main_graph"]


def test_positions_of_the_export_without_them_are_seen() -> None:
    """gemma2 of optimum: a Range from the size of the cache rotates keys."""
    model = run_pipeline(load(DATA / "gemma2_optimum" / "model.onnx"), f"{CLEAN},replace-attention-mask").model
    found = frozen_positions(Host(model, decoder_io(model)), None)
    assert {node.op_type for node, _ in found} == {"Mul"}


@pytest.mark.parametrize("name", WINDOWS)
def test_shapes_follow(name: str) -> None:
    """What depends on tokens is not evaluated, and every shape is known."""
    model = load(DATA / name / "model.onnx")
    io = decoder_io(model)
    host = Host(model, io)
    found = host.probe(Sizes(batch=2, past=7, new=3))
    assert found.failures == {}
    assert found.specs[io.logits].shape == (2, 3, 1000)
    for pair in io.pairs:
        heads, size = found.specs[pair.past].shape[1], found.specs[pair.past].shape[3]
        assert found.specs[pair.present].shape == (2, heads, 10, size)
        assert pair.present not in found.arrays


class Unreadable(ir.Tensor[np.ndarray]):  # type: ignore[type-var]
    """A weight whose data must not be looked at."""

    def numpy(self) -> np.ndarray:
        raise AssertionError("was read")

    def tobytes(self) -> bytes:
        raise AssertionError("was read")


def test_large_weights_are_not_read() -> None:
    """A word table of more than `READ_BYTES`, transposed before it is used: as exporters tie it to the head."""
    model = decoder(
        positions="wide = Transpose(big) more = Gather(wide, input_ids) x = Add(words, more)",
        more={"big": weight("big", 8, 11)},
    )
    value = model.graph.initializers["big"]
    assert value.const_value is not None
    wide = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (8, READ_BYTES), (0, 0))
    value.const_value, value.shape = Unreadable(wide, name="big"), ir.Shape(wide.shape)
    io = decoder_io(model)
    found = Host(model, io).probe(Sizes(past=7, new=3))
    assert found.specs[io.logits].shape == (1, 3, 11)


def test_an_operator_that_cannot_be_evaluated_is_named() -> None:
    """One of another domain on the way to a mask; the same beside it does not matter."""
    strange = "[strange] far = com.acme.Distance(attention_mask) masked = Add(scores, far)"
    with refusal(UnsupportedError):
        run_pipeline(decoder(strange), "replace-attention-mask")
