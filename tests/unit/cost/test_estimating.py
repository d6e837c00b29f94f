"""Estimates: published figures, units, chips that nobody measured, what widens an interval."""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes.errors import UsageError

import qdqtool
from qdqtool.api import estimate
from qdqtool.chips.chip import Chip
from qdqtool.chips.loading import load_chip
from qdqtool.cost.choosing import kinds_of, profile_for
from qdqtool.cost.counting import Count
from qdqtool.cost.decoders import Call
from qdqtool.cost.estimating import Graph, Rows, of_decoder, of_graph
from qdqtool.cost.networks import amounts_of
from qdqtool.cost.planning import Question, candidates
from qdqtool.cost.rows import Row
from qdqtool.cost.shapes import read_shape
from qdqtool.io.models.load import load
from qdqtool.verbs.estimate import precision_of
from qdqtool.verbs.generate import Generate
from qdqtool.verbs.work.chip_times import decoder_times
from tests.cases.random_decoders import HEADS, HIDDEN, INNER, VOCABULARY, random_decoder
from tests.dial import examples, sized, some
from tests.golden_messages.refusal import refusal

NETWORK = Graph(
    name="",
    amounts=amounts_of(
        [
            Count(name=f"c{k}", op="Conv", kind="dense", macs=10**8, weights=10**6, reads=10**5, writes=10**5)
            for k in range(40)
        ]
    ),
    ops=("Conv",) * 40,
)
LLAMA = read_shape("Llama3.2-1B")
ROOT = Path(__file__).parents[3] / "sample_models"
SAMPLE = ROOT / "tiny_llama.onnx"
TINY = "layers=4,hidden=128,heads=4,kv_heads=2,ffn=384,vocab=1024"
SMALL = f"layers=2,hidden={HIDDEN},heads={HEADS},kv_heads={HEADS // 2},ffn={INNER},vocab={VOCABULARY}"


def _ms(chip: Chip, stack: str, call: Call, shape: str = "Llama3.2-1B") -> float:
    choice = profile_for(chip, stack, call.precision, decoder=True, from_specs=True)
    return of_decoder(choice, read_shape(shape), call).prediction.span.ms


@pytest.mark.parametrize(("tokens", "published"), [(64, 201.087), (256, 487.811), (1024, 1010.18)])
def test_llm_npu_on_8_elite_is_as_published(tokens: int, published: float) -> None:
    found = estimate("Qwen1.5-1.8B", chip="8 Elite", stack="llm.npu", prompt=(tokens,), context=(1024,))["estimates"][0]
    assert found["low"] <= published <= found["high"]
    assert abs(found["ms"] / published - 1) <= 0.15
    assert sum(found["resources"].values()) == pytest.approx(found["ms"], rel=0.01)


STACKS = [("8 Elite", "genie"), ("krackan_xdna2", "FastFlowLM"), ("8 Gen 3", "llm.npu")]


@pytest.mark.parametrize(("chip", "stack"), STACKS)
@settings(max_examples=examples(20))
@given(tokens=st.integers(1, 4096), more=st.integers(1, 4096))
def test_more_tokens_context_and_layers_never_take_less(chip: str, stack: str, tokens: int, more: int) -> None:
    at = load_chip(chip)
    for phase in ("prefill", "decode"):
        call = Call(phase=phase, tokens=tokens, context=tokens)
        longer = Call(phase=phase, tokens=tokens + more, context=tokens + more)
        assert _ms(at, stack, longer) >= _ms(at, stack, call) * (1 - 1e-9)
    numbers = "hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=128256"
    fewer, deeper = (f"layers={n},{numbers}" for n in (8, 9))
    call = Call(phase="decode", context=tokens)
    assert _ms(at, stack, call, deeper) >= _ms(at, stack, call, fewer)


@settings(max_examples=sized(10, 4))
@given(factor=st.floats(1.01, 8))
def test_less_bandwidth_or_tops_never_help(factor: float) -> None:
    chip = load_chip("snapdragon_x2_elite")
    for key in ("bandwidth_gbs", "int8_tops"):
        less = replace(chip.hardware[key], value=chip.hardware[key].value / factor)
        slower = replace(chip, hardware={**chip.hardware, key: less})
        for phase in ("prefill", "decode"):
            call = Call(phase=phase, tokens=128, context=4096)
            assert _ms(slower, "genie", call) >= _ms(chip, "genie", call)
        of = [
            of_graph(profile_for(c, "qnn_dlc", "w8a8", decoder=False, from_specs=True), NETWORK) for c in (chip, slower)
        ]
        assert of[1].prediction.span.ms >= of[0].prediction.span.ms


def test_nobody_measured_that_is_said_with_the_way_out() -> None:
    chip = load_chip("snapdragon_x2_elite")
    with pytest.raises(UsageError, match="nobody measured networks on Snapdragon X2 Elite") as error:
        profile_for(chip, "qnn_dlc", "w8a8", decoder=False)
    assert "--from-specs" in str(error.value.hint)
    assert "calibrate-chip" in str(error.value.hint)
    with pytest.raises(UsageError, match="w3a3"):
        profile_for(load_chip("8 Elite"), "qnn_dlc", "w3a3", decoder=False)


def test_data_sheets_are_less_sure_than_rows() -> None:
    def at(name: str) -> float:
        choice = profile_for(load_chip(name), "qnn_dlc", "w8a8", decoder=False, from_specs=True)
        return of_graph(choice, NETWORK).prediction.span.width

    assert at("snapdragon_x2_elite") > 1.5 * at("8 Elite")


def test_what_falls_to_the_cpu_widens() -> None:
    choice = profile_for(load_chip("8 Elite"), "qnn_dlc", "w8a8", decoder=False)
    alone, with_cpu = of_graph(choice, NETWORK, on_cpu=[]), of_graph(choice, NETWORK, on_cpu=["c1"], crossings=2)
    assert with_cpu.prediction.span.ms > alone.prediction.span.ms
    assert with_cpu.prediction.span.width > 2 * alone.prediction.span.width
    assert "1 operators run on the CPU" in with_cpu.prediction.widens


def test_a_measured_network_is_answered_with_its_row() -> None:
    choice = profile_for(load_chip("8 Elite"), "qnn_dlc", "w8a8", decoder=False)
    row = choice.profile.measured[0]
    found = of_graph(choice, replace(NETWORK, name=row.model)).prediction
    assert found.span.ms == pytest.approx(row.ms)
    assert found.nearest is not None
    assert found.nearest[1] == row


def test_a_known_network_is_carried_over_from_other_places() -> None:
    chip = load_chip("8 Elite")
    choice = profile_for(chip, "qnn_dlc", "w8a8", decoder=False)
    known = choice.profile.of_model["resnet50"][0]
    left = [replace(p, measured=tuple(r for r in p.measured if r.model != "resnet50")) for p in chip.profiles[:1]]
    profile = replace(choice.profile, measured=tuple(r for r in choice.profile.measured if r.model != "resnet50"))
    found = of_graph(
        replace(choice, chip=replace(chip, profiles=tuple(left)), profile=profile), replace(NETWORK, name="resnet50")
    )
    assert abs(math.log(found.prediction.span.ms / known.ms)) < 0.25  # though NETWORK is another one


def test_rows_are_answered_in_their_units(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "kind": "llm", "model": "Llama3.2-1B", "stack": "genie", "precision": "w4a16", "phase": "decode", "seq_len": 4096,
         "ctx": 4096, "metric": "throughput", "unit": "tok/s", "value": 60.0, "chip": "Snapdragon 8 Elite"},
        {"id": 2, "kind": "graph", "model": "resnet50", "stack": "qnn_dlc", "precision": "w8a8", "metric": "latency", "unit": "ms",
         "value": 1.0, "device": "Samsung Galaxy S25"},
        {"id": 3, "kind": "graph", "model": "nobody", "stack": "qnn_dlc", "precision": "w8a8", "metric": "latency", "unit": "ms",
         "value": 1.0, "device": "Samsung Galaxy S25"},
    ]  # fmt: skip
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    out = tmp_path / "pred.json"
    warned: list[str] = []
    found = estimate(rows=tmp_path / "rows.json", output=out, warn=warned.append)
    assert json.loads(out.read_text()) == found["predictions"]
    assert list(found["failed"]) == ["3"]
    assert warned
    speed = found["predictions"]["1"]
    assert speed["low"] < speed["value"] < speed["high"]
    assert speed["value"] == pytest.approx(
        1000 / _ms(load_chip("8 Elite"), "genie", Call(phase="decode", context=4096)), rel=1e-3
    )


def test_graphs_of_rows_come_from_a_folder(tmp_path: Path) -> None:
    x = ir.Value(name="x", shape=ir.Shape([1, 64]), type=ir.TensorType(ir.DataType.FLOAT))
    w = ir.Value(name="w", const_value=ir.tensor(np.ones((64, 4096), np.float32), name="w"))
    node = ir.node("MatMul", [x, w])
    node.outputs[0].name = "y"
    model = ir.Model(ir.Graph([x], node.outputs, nodes=[node], initializers=[w], opset_imports={"": 17}), ir_version=8)
    ir.save(model, tmp_path / "mine.onnx")
    row = Row(id="1", model="mine", stack="qnn_dlc", precision="float", value=1.0, chip="Snapdragon 8 Elite")
    found, failed = Rows(nets=str(tmp_path), load=ir.load).answer([row])
    assert not failed
    assert 0.05 < found["1"]["low"] < found["1"]["value"] < found["1"]["high"] < 5


@functools.cache
def split_small() -> Path:
    """`SMALL` without a config.json: its graph, split, also in parts."""
    home = Path(tempfile.mkdtemp())
    graph = random_decoder(home / "small.onnx", "grouped", layers=2)
    for name, more in (("whole", {}), ("parts", {"parts": 2})):
        qdqtool.split(graph, home / name, prefill=[16], context=[64], **more)
    return home


@pytest.mark.product(cover=("form", ("chip", "stack")))
@pytest.mark.parametrize("form", ["graph", "whole", "parts", "one"])
@pytest.mark.parametrize(("chip", "stack"), [*STACKS, ("8 Elite", "qnn_context_binary"), ("8 Elite", "")])
def test_a_decoder_is_answered_as_its_shape(chip: str, stack: str, form: str) -> None:
    folder = split_small()
    files = {"graph": "small.onnx", "one": "whole/decode_b1_s1_c64.onnx"}
    subject = folder / files.get(form, form)
    asked = {"chip": chip, "stack": stack, "prompt": (20, 200), "context": (1024,), "chunk": 128}
    told, shape = estimate(str(subject), **asked)["estimates"], estimate(SMALL, **asked)["estimates"]
    figures = ("what", "precision", "ms", "low", "high")
    assert [[one[key] for key in figures] for one in told] == [[one[key] for key in figures] for one in shape]


def _told(subject: Path | str, stack: str = "genie", chip: str = "8 Elite", **more: object) -> list[str]:
    return [one["what"] for one in estimate(str(subject), chip=chip, stack=stack, **more)["estimates"]]


def test_a_split_folder_is_answered_by_its_own_lengths(tmp_path: Path) -> None:
    """The longest of each: of chunks 32 tokens, of contexts 100."""
    graph = random_decoder(tmp_path / "small.onnx", "grouped", layers=1)
    qdqtool.split(graph, tmp_path / "own", prefill=[8, 32], context=[64, 100], batch=[2])
    for stack in ("genie", "llm.npu"):
        assert _told(tmp_path / "own", stack) == [
            "prefill of 100 tokens, 4 chunks of 32", "one token at 100 tokens of context",
        ]  # fmt: skip
    given = {"prompt": (40,), "context": (48,), "chunk": 16}
    assert _told(tmp_path / "own", **given) == [
        "prefill of 40 tokens, 3 chunks of 16", "one token at 48 tokens of context",
    ]  # fmt: skip
    assert "2 rows" in estimate(str(tmp_path / "own"), chip="8 Elite", stack="genie")["estimates"][0]["notes"][0]
    assert _told(TINY) == ["prefill of 128 tokens, 1 chunk of 128", "one token at 1024 tokens of context"]
    assert _told(TINY, context=(64,)) == ["prefill of 64 tokens, 1 chunk of 64", "one token at 64 tokens of context"]
    assert _told(TINY, "llm.npu")[0] == "prefill of 128 tokens, 1 chunk of 256"


@pytest.mark.parametrize("chunk", [32, 256])
def test_chunks_are_those_of_a_plan(chunk: int) -> None:
    chip, lengths = load_chip("8 Gen 3"), {"prompts": (1000,), "contexts": (2048,)}
    choice = profile_for(chip, "llm.npu", decoder=True)
    asked = Question(shape=LLAMA, chip=chip, profile=choice.profile, buckets=((chunk,),), **lengths)
    planned = candidates(asked)[0].first[0].to_json()
    found = estimate(
        "Llama3.2-1B", chip="8 Gen 3", stack="llm.npu", precision="w8a8", prompt=(1000,), context=(2048,), chunk=chunk
    )
    assert {key: found["estimates"][0][key] for key in planned} == planned


def test_a_graph_of_a_split_folder_is_the_folder() -> None:
    """A part of a decoder is none: it has some of the layers, or no head."""
    folder = split_small() / "parts"
    files = sorted(folder.glob("*.onnx"))
    assert len(files) == 4
    for stack in some(["genie", ""]):
        whole = estimate(str(folder), chip="8 Elite", stack=stack)["estimates"]
        assert all(estimate(str(file), chip="8 Elite", stack=stack)["estimates"] == whole for file in files)


def test_options_without_what_they_are_of() -> None:
    with refusal(UsageError):
        estimate(TINY, chip="8 Elite", stack="genie", precision="nonsense")
    with refusal(UsageError):
        decoder_times(
            split_small() / "whole", Generate(split_small() / "whole", prompt="a", stack="genie"), ("decode",)
        )


def test_what_is_of_other_models_is_said() -> None:
    told = estimate("Llama3.2-1B", chip="Krackan", chunk=32, target="generic_int8", batch=3, precision="w4a16")
    notes = told["estimates"][0]["notes"]
    assert [any(text in note for note in notes) for text in ("prompts as they are", "--target", "3 rows", "w4a16")] == [
        True
    ] * 4
    assert not estimate("Llama3.2-1B", chip="Krackan", precision="w4")["estimates"][0]["notes"]
    network = estimate(str(ROOT / "vit_block.onnx"), chip="8 Elite", stack="qnn_dlc", prompt=(5,), chunk=2)
    assert any("--prompt and --chunk" in note for note in network["estimates"][0]["notes"])


def test_what_was_not_measured_of_a_model_is_said() -> None:
    prefill, decode = estimate("Qwen1.5-1.8B", chip="8 Elite", stack="llm.npu", precision="w8a8")["estimates"]
    assert (prefill["widens"], decode["widens"]) == ([], ["of Qwen1.5-1.8B no decode was measured here"])


def test_a_decoder_on_a_chip_that_nobody_measured() -> None:
    assert kinds_of(load_chip("X2 Elite"), "") == {"network"}
    graph, shape = (_told(one, "", "X2 Elite", from_specs=True) for one in (SAMPLE, TINY))
    assert graph == shape


def test_no_weight_of_a_decoder_is_read(tmp_path: Path) -> None:
    shutil.copytree(split_small() / "parts", tmp_path / "parts")
    for data in (tmp_path / "parts").glob("*.data"):
        data.unlink()
    assert estimate(str(tmp_path / "parts"), chip="8 Elite", stack="genie")["estimates"]


def test_a_quantized_decoder_tells_its_precision(tmp_path: Path) -> None:
    packed = ROOT / "int4_weights.onnx"
    assert precision_of(load(packed)) == "w4"
    qdqtool.quantize(split_small() / "parts", tmp_path / "q", preset="w4-g32", lm_head="int8")
    assert estimate(str(tmp_path / "q"), chip="8 Elite", stack="genie")["estimates"][0]["precision"] == "w4"


@pytest.mark.parametrize(
    ("subject", "stack"), [("vit_block.onnx", "genie"), ("vit_block.onnx", "llm.npu"), (".", "genie"), (".", "")]
)
def test_what_is_no_decoder_is_refused_with_the_way_out(subject: str, stack: str) -> None:
    with refusal(UsageError):
        estimate(os.path.join("sample_models", subject), chip="8 Elite", stack=stack)
    assert kinds_of(load_chip("8 Elite"), "qnn_context_binary") == {"network", "decoder"}
    assert kinds_of(load_chip("8 Elite"), "qnn_dlc") == {"network"}


def test_the_same_question_has_the_same_answer() -> None:
    first, second = (json.dumps(estimate("Qwen3-8B", chip="8 Elite", stack="genie", context=(2048,))) for _ in range(2))
    assert first == second
