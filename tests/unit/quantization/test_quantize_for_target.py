"""Quantizing for a target: what its file says of the pipeline, and that nothing would be compiled to float there."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError
from qdq_passes.qdq.look.pairs import qdq_pairs

import qdqtool
from qdqtool.presets.loading import load_preset
from qdqtool.quantization.plan import plan
from qdqtool.runtime.session import open_session
from qdqtool.targets import TARGETS
from qdqtool.targets.loading import load_target
from qdqtool.verbs.planned import Planned
from tests.cases.small_models import parsed
from tests.golden_messages.refusal import refusal

DEMO = files("qdqtool") / "_demo"
TARGET = """description = "a chip"
version = "1"
limits = {{symbolic = "any"}}
[quantize]
{}
[[op]]
types = ["Relu"]
[[op.scheme]]
activations = ["int8"]
"""


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("digits") / "htp.onnx"
    qdqtool.quantize(str(DEMO / "digits.onnx"), data=str(DEMO / "calib.npz"), target="qnn_htp", output=output)
    return output


def test_every_compute_node_stays_on_integers(digits: Path) -> None:
    report = qdqtool.analyze(digits, target="qnn_htp").to_json()
    computing = [n for n in report["nodes"] if n["op"] not in ("QuantizeLinear", "DequantizeLinear")]
    assert len(computing) == 18
    assert {n["verdict"] for n in computing} == {"npu-int"}


def test_a_gain_that_a_factor_shares_has_the_type_of_gains(tmp_path: Path) -> None:
    """A file of equal numbers holds them once."""
    text = """g (float[2,8] x) => (float[2,8] y) <float[8] twos = {2,2,2,2,2,2,2,2}> {
      [norm] a = LayerNormalization(x, twos) [factor] y = Mul(a, twos)
    }"""
    onnx.save(parsed(text), tmp_path / "shared.onnx")
    qdqtool.quantize(tmp_path / "shared.onnx", data="random:2", target="qnn_htp", output=tmp_path / "out.onnx")
    report = qdqtool.analyze(tmp_path / "out.onnx", target="qnn_htp").to_json()
    assert [n["verdict"] for n in report["nodes"] if n["kind"] == "compute"] == ["npu-int", "npu-int"]


def test_floats_that_are_indices_are_not_quantized(tmp_path: Path) -> None:
    """T5's buckets of distances: the logarithm of 0 has no range, and wants none."""
    text = """g (int64[1,4] i) => (float[1,4,2] y)
    <float[8,2] table = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}, float two = {2}, int64 zero = {0}> {
      [far] d = Sub(i, i) [float] f = Cast<to: int = 1>(d) [log] l = Log(f) [half] h = Div(l, two) [index] j = Cast<to: int = 7>(h)
      [least] k = Max(j, zero) [rows] y = Gather(table, k)
    }"""
    onnx.save(parsed(text), tmp_path / "buckets.onnx")
    np.savez(tmp_path / "data.npz", i=np.zeros((2, 4), np.int64))
    made = qdqtool.quantize(
        tmp_path / "buckets.onnx", data=str(tmp_path / "data.npz"), target="vitis_xint8", output=tmp_path / "out.onnx"
    )
    assert [pair.tensor for pair in qdq_pairs(made.model)] == ["table", "y"]
    report = qdqtool.analyze(tmp_path / "out.onnx", target="vitis_xint8").to_json()
    assert [n["name"] for n in report["nodes"] if n["kind"] == "compute"] == ["rows"]


def test_biases_are_int32_at_the_product_of_the_scales(digits: Path) -> None:
    pairs = [pair for pair in qdq_pairs(qdqtool.load(digits)) if pair.kind == "bias"]
    assert len(pairs) == 7
    assert {pair.encoding.dtype.name for pair in pairs if pair.encoding is not None} == {"INT32"}


def test_the_accuracy_stays(digits: Path) -> None:
    """Within half a point of float on the held-out images: 3 of 597."""
    with np.load(str(DEMO / "test.npz")) as data:
        images, labels = data["input"], data["labels"]
    found = {}
    for name, path in (("float", DEMO / "digits.onnx"), ("int8", digits)):
        (logits,) = open_session(str(path)).run({"input": images}).values()
        found[name] = float((logits.argmax(axis=1) == labels).mean())
    assert found["int8"] > found["float"] - 0.005, found


def test_a_target_leaves_out_and_adds_passes(tmp_path: Path) -> None:
    file = tmp_path / "chip.toml"
    file.write_text(TARGET.format('without = ["scale-average-pool"]\nbefore = "clip-to-relu"\nafter = "convert-bias"'))
    preset = load_preset("xint8")
    plain, legal = plan(preset), plan(preset, legalization=load_target(file).legalization)
    last = ["finite-masks", "remove-nan-guards"]
    assert [p.name() for p in plain.prepare.passes][-2:] == last
    names = [p.name() for p in plain.prepare.passes][:-2]
    assert [p.name() for p in legal.prepare.passes] == [*names, "clip-to-relu", *last]
    names = [p.name() for p in plain.materialise.passes if p.name() != "scale-average-pool"]
    assert [p.name() for p in legal.materialise.passes] == [
        names[0],
        "isolate-concats",
        "isolate-divisors",
        *names[1:],
        "convert-bias",
    ]


@pytest.mark.parametrize(
    "line",
    [
        'without = ["scale-average-pol"]',
        'after = "convert-bias{to=int3}"',
        'sharing = ["9"]',
        'preset = "qnn-a8w9"',
        'preset = "./none.toml"',
    ],
)
def test_a_broken_table_is_told(tmp_path: Path, line: str) -> None:
    file = tmp_path / "chip.toml"
    file.write_text(TARGET.format(line))
    with refusal(ModelError):
        load_target(file)


def test_a_quantization_ends_with_who_runs_what(digits: Path, tmp_path: Path) -> None:
    told: list[str] = []
    done = qdqtool.quantize(
        DEMO / "digits.onnx", data=str(DEMO / "calib.npz"), samples=2, target="vitis_xint8", warn=told.append,
        exclude=["op:Conv"],
    )  # fmt: skip
    placement, whole = (
        done.to_json()["placement"],
        qdqtool.analyze(done.model, target="vitis_xint8", trials=False).to_json(),
    )
    keys = (
        "target",
        "compute_nodes",
        "npu_compute_nodes",
        "npu_percent",
        "macs",
        "npu_macs",
        "npu_macs_share",
        "refusals",
    )
    assert {key: placement[key] for key in keys} == {key: whole[key] for key in keys}
    assert placement["partitions"] == len(whole["partitions"])
    assert placement["npu_macs_share"] < 0.9
    [said] = [text for text in told if text.startswith("only ")]
    assert f"({placement['npu_percent']:.1f} %)" in said
    assert placement["refusals"][0]["nodes"][0] in said
    assert placement["refusals"][0]["reason"] in said


def preset_of(*words: str) -> tuple[str, list[str]]:
    """The preset of the plan that ``words`` make, and what is warned of."""
    told: list[str] = []
    options = dict(zip(words[::2], words[1::2], strict=True))
    return Planned(**options, warn=told.append).plan().preset.name, told


@pytest.mark.parametrize("target", TARGETS.names())
def test_a_target_that_comes_along_names_its_preset(target: str) -> None:
    chosen, told = preset_of("target", target)
    assert chosen == load_target(target).legalization.preset
    assert told == []
    assert preset_of("target", target, "preset", "8a8w") == ("8a8w", [])


def test_vitis_is_assumed_and_said_once(tmp_path: Path) -> None:
    chosen, told = preset_of()
    assert chosen == "xint8"
    (said,) = told
    assert "Vitis" in said
    assert "xint8" in said
    told.clear()
    qdqtool.quantize(DEMO / "digits.onnx", data=str(DEMO / "calib.npz"), samples=2, warn=told.append)
    assert len([text for text in told if "Vitis" in text]) == 1
    (file := tmp_path / "chip.toml").write_text(TARGET.format(""))
    chosen, told = preset_of("target", str(file))
    assert chosen == "xint8"
    (said,) = told
    assert "chip names no preset" in said


def test_a_preset_may_lie_beside_its_target_and_is_inherited(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "a8w8"\ndescription = "mine"\n')
    (tmp_path / "chip.toml").write_text(TARGET.format('preset = "mine.toml"\nwithout = ["scale-average-pool"]'))
    below = tmp_path / "below"
    below.mkdir()
    (below / "next.toml").write_text(
        'description = "next"\nversion = "1"\nextends = "../chip.toml"\n[quantize]\nafter = "convert-bias"\n'
    )
    found = load_target(below / "next.toml").legalization
    assert preset_of("target", str(below / "next.toml")) == ("mine", [])
    assert (found.without, str(found.after)) == (("scale-average-pool",), "convert-bias")


def test_weights_alone_are_those_of_the_preset() -> None:
    """A target says what it takes, a preset of weights alone which are stored: no gains of norms, no constants of sums."""
    assert set(Planned(target="apple_ane").plan().annotate.ops) == {"Conv", "ConvTranspose", "Gemm", "MatMul"}


@pytest.mark.parametrize("line", ['sharing = ["Conf"]', 'sharing = ["Relu", "FancyConv"]'])
def test_an_operator_that_there_is_not_is_told(tmp_path: Path, line: str) -> None:
    file = tmp_path / "chip.toml"
    file.write_text(TARGET.format(line))
    with refusal(ModelError):
        load_target(file)
    file.write_text(TARGET.format('sharing = ["com.acme::FancyConv"]'))
    assert load_target(file).legalization.sharing == ("com.acme::FancyConv",)


@pytest.mark.parametrize(("bind_batch", "batch"), [(True, 1), (False, "N")])
def test_a_batch_on_which_shapes_hang_is_bound(tmp_path: Path, bind_batch: bool, batch: int | str) -> None:
    """And said, once; what the chip's compiler binds by itself stays."""
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,2,3] x) => (float[N,4,2] y) <int64[1] start = {0}, int64[1] one = {1}, int64[2] rest = {1, 1},
                                            float[2,2] w = {0.5, 1.0, -1.0, 0.25}, float[1,1,2] token = {0.5, 2.0}>
    {
      [turn] t = Transpose<perm = [0, 2, 1]>(x)
      [product] p = MatMul(t, w)
      [relu] r = Relu(p)
      [shape] s = Shape(r)
      [batch] b = Slice(s, start, one)
      [times] d = Concat<axis = 0>(b, rest)
      [tokens] c = Tile(token, d)
      [join] y = Concat<axis = 1>(c, r)
    }""")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(2, 2, 3)).astype(np.float32))
    told: list[str] = []
    output = tmp_path / "int8.onnx"
    qdqtool.quantize(
        model, output, target="vitis_xint8", data=str(tmp_path / "x.npz"), bind_batch=bind_batch, warn=told.append
    )
    assert str(qdqtool.load(output).graph.inputs[0].shape[0]) == str(batch)
    assert [text for text in told if "is bound to 1" in text] == [
        "x: its batch N is bound to 1: the target computes with static shapes; --no-bind-batch leaves it symbolic"
    ] * bind_batch


def test_what_was_left_float_is_told_so(tmp_path: Path) -> None:
    """Not to be quantized for the target, as it was."""
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 21]>
    g (float[1,1,8,8] x) => (float[1,1,1,1] y) <float[1,1,1,1] w = {0.5}, float[1,1,1,1] v = {1.5}>
    {
      [conv] c = Conv(x, w)
      [relu] r = Relu(c)
      [pool] p = GlobalAveragePool(r)
      [sqrt] s = Sqrt(p)
      [last] y = Conv(s, v)
    }""")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(2, 1, 8, 8)).astype(np.float32))
    output = tmp_path / "int8.onnx"
    qdqtool.quantize(model, output, target="vitis_xint8", data=str(tmp_path / "x.npz"))
    found = {node.name: node.placement for node in qdqtool.analyze(output, target="vitis_xint8").nodes}
    assert found["sqrt"].suggestion.startswith("no pass is known that replaces this Sqrt")
    assert found["last"].reason == (
        "Conv was left float when the model was quantized: behind sqrt (Sqrt), which the target does not take"
    )
    assert found["last"].suggestion.startswith("nothing to mend: ")
