"""`explain`: prices that add up, culprits that are found, edits that win what was promised and run as printed."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.errors import UsageError
from qdq_passes.numerics.agreement import FLOOR_DB
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import qdq_pairs

from qdqtool import api
from qdqtool.comparison.cumulative import compare_models
from qdqtool.comparison.prices.output_noise import OutputNoise
from qdqtool.comparison.prices.pricing import priced, turns
from qdqtool.comparison.prices.refit import per_channel, refitted
from qdqtool.comparison.prices.subjects import record_of, subjects_of
from qdqtool.comparison.regions import Region
from qdqtool.comparison.sides import Sides
from qdqtool.io.feeds.feeds import open_feeds
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.models.load import load
from qdqtool.record.record import NodeRecord, Record, TensorRecord, merged
from qdqtool.verbs.story.explain import explain
from tests.cases.cli_helpers import DIGITS, SAMPLES, cli, quantized_digits, write
from tests.cases.small_models import model, run

DATA = str(Path(DIGITS).with_name("test.npz"))
SAMPLED = ("--data", DATA, "--samples", "8")


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits in power-of-two int8, its ranges beside it."""
    return quantized_digits(tmp_path_factory.mktemp("explain"))


def sqnr(model: str | Path) -> float:
    return float(
        cli("compare", DIGITS, model, *SAMPLED, "--outputs-only", "--json").json["outputs"]["logits"]["sqnr_db"]
    )


def test_shapes_that_hang_on_values_are_let_be() -> None:
    """What is chosen by values is another number of values in both models; what comes before them is priced all the same."""
    random = np.random.default_rng(0)
    float_one = model(
        """g (float[1, 64] x) => (float[1, 64] y, float[n] z) <float[1] zero = {0}> {
            y = Add(x, b)  d = Sub(y, b)  c = Greater(d, zero)  k = Compress(d, c)  z = Relu(k) }""",
        weights={"b": random.normal(0, 9, (1, 64)).astype(np.float32)},
    )
    data = [{"x": random.normal(0, 1, (1, 64)).astype(np.float32)} for _ in range(4)]
    quantized = api.quantize(float_one, preset="u8w8", data=data, only=["op:Add", "op:Sub", "op:Relu"]).model
    shapes = [[len(run(m, feed)["z"]) for feed in data] for m in (float_one, quantized)]
    assert shapes[0] != shapes[1], "the example has no such shapes"
    found = priced(Sides.of(float_one, quantized), data)
    assert found.outputs["y"] > 0


@pytest.mark.product(extra=1)
@pytest.mark.parametrize(
    ("name", "preset"), [("mobilenet_block", "qnn-a8w8"), ("detector", "xint8"), ("vit_block", "8a8w")]
)
def test_prices_add_up_to_the_noise_that_compare_measures(tmp_path: Path, name: str, preset: str) -> None:
    """To the rounding of sums of float64: nothing is lost on the way back."""
    source, made = SAMPLES / f"{name}.onnx", tmp_path / "q.onnx"
    cli("quantize", source, "--preset", preset, "--data", "random:2", "-o", made, "-q")
    a, b = load(source), load(made)
    data = list(open_feeds("random:2:7", input_specs(a)))
    sides = Sides.of(a, b)
    found = priced(sides, data)
    noise = sum(
        10 ** (-output.agreement.sqnr_db / 10)
        for output in compare_models(sides.reference, b, data, tensors=[]).outputs
        if output.agreement.sqnr_db is not None
    )
    assert found.noise == pytest.approx(noise, rel=1e-6)
    assert sum(price.power for price in found.prices) == pytest.approx(found.noise, rel=1e-9)
    assert all(price.power > 0 for price in found.prices)


def test_what_a_grid_cuts_in_the_place_of_a_relu_costs_nothing() -> None:
    """onnxruntime's quantizer drops a Relu before uint8 from 0 on; what is left of the error is a step."""
    text = "g (float[1,8] x) => (float[1,8] y) <float s = {0.0625}, uint8 z = {0}> { %s }"
    a = model(text % "h = Neg(x)  r = Relu(h)  y = Neg(r)")
    b = model(text % "r = Neg(x)  q = QuantizeLinear(r, s, z)  d = DequantizeLinear(q, s, z)  y = Neg(d)")
    x = np.array([[-3.01, -2, -1.03, -0.5, 0.5, 1, 2, 3]], np.float32)
    found = priced(Sides.of(a, b), [{"x": x}])
    assert found.noise == pytest.approx((0.01**2 + 0.03**2) / (3.01**2 + 2**2 + 1.03**2 + 0.5**2), rel=1e-3)
    (price,) = (price for price in found.prices if price.power > 1e-9)
    assert (price.cause, price.tensor) == ("rounding", "r")


def test_an_output_that_is_no_number_is_as_bad_as_compare_has_it() -> None:
    noise = OutputNoise(["a", "b", "c"])
    x = np.array([3.0, -np.inf, 4.0], np.float32)
    assert noise.add("a", x, np.array([3.0, 7.0, 5.0], np.float32))
    assert noise.add("b", x, np.array([3.0, 0.0, np.nan], np.float32))
    assert noise.add("c", np.zeros(3, np.float32), np.ones(3, np.float32)), "without a signal it has no share"
    assert not noise.add("a", x, np.zeros(4, np.float32))
    assert not noise.add("a", np.zeros(1, np.int64), np.ones(1, np.int64))
    assert noise.powers == {"a": 1 / 25, "b": 10 ** (-FLOOR_DB / 10)}
    assert noise.total == noise.powers["b"] + 1 / 25


def test_what_several_nodes_read_has_the_price_that_it_costs_at_all_of_them() -> None:
    text = "g (float[1,2] x) => (float[1,2] y, float[1,2] z) <float s = {0.5}, int8 n = {0}> { %s }"
    weight = {"w": np.array([1.2, 2.3], np.float32)}
    stored = {"w_quantized": np.array([2, 5], np.int8)}
    a = model(text % "[one] y = Mul(x, w)  [two] z = Add(x, w)", weight)
    b = model(text % "w = DequantizeLinear(w_quantized, s, n)  [one] y = Mul(x, w)  [two] z = Add(x, w)", stored)
    sides = Sides.of(a, b)
    prices = priced(sides, [{"x": np.array([[1, 2]], np.float32)}])
    (subject,) = subjects_of(sides, prices)
    assert subject.readers == ("one", "two")
    record = record_of(sides, prices, [subject], "m", {})
    assert record.tensors[0].price == {"weight": pytest.approx(prices.noise)}
    assert sum(record.causes.values()) == pytest.approx(sum(record.noise.values()))


def test_no_region_reads_two_tensors_of_one_turn() -> None:
    def region(*reads: str) -> Region:
        return Region(name="", op="", nodes=(), results={}, reads=reads)

    found = turns([region("a", "b"), region("b", "c"), region("a", "c"), region("d")])
    assert sorted(name for turn in found for name in turn) == ["a", "b", "c", "d"]
    assert len(found) == 3


def test_what_moved_a_scale_is_told_with_its_rule(quantized: Path) -> None:
    found = cli("explain", quantized, "/head/pool_output_0", "--float", DIGITS, *SAMPLED, "--ranges",
                quantized.with_name("r.json"), "--json").json  # fmt: skip
    (told,) = found["told"]
    record = next(one for one in found["record"]["tensors"] if one["name"] == told["name"])
    assert [move["by"] for move in record["moved"]] == ["annotate-encodings", "refine-positions"]
    assert "align-pool of /head/pool" in record["moved"][1]["because"]
    assert record["moved"][0]["after"]["scale"] == 2.0**-5
    assert told["mends"][0]["kind"] == "set", "back where calibration had it"


def damaged(model: Path, tensor: str, *options: str) -> Path:
    made = model.with_name("damaged.onnx")
    cli("qdq", "set", model, "--select", f"tensor:{tensor}", *options, "-o", made, "--overwrite", "-q")
    return made


@pytest.mark.product(extra=2)
@pytest.mark.parametrize(
    ("tensor", "options", "cause"),
    [
        ("/block1/relu1_output_0", ("--scale", "0.5"), "rounding"),
        ("/block1/relu1_output_0", ("--scale", "0.0078125"), "clipping"),
        ("/stem/bn_output_0_weight", ("--scale", "0.25"), "weight"),
        ("/stem/bn_output_0_weight", ("--scale", "0.0078125"), "weight clipping"),
        ("/fuse/bn_output_0_bias", ("--scale", "0.0009765625"), "bias"),
    ],
)
def test_a_fault_is_found_and_undoing_it_wins_what_was_promised(
    quantized: Path, tensor: str, options: tuple[str, ...], cause: str
) -> None:
    """The edit is made by the printed command, and its win measured by compare: on the same samples the promise is kept."""
    bad = damaged(quantized, tensor, *options)
    assert sqnr(bad) < sqnr(quantized) - 0.5, "it costs something"
    first = cli("explain", bad, "--float", DIGITS, *SAMPLED, "--worst", "1", "--json").json["told"][0]
    assert (first["name"], first["cause"]) == (tensor, cause)
    best = first["mends"][0]
    words = shlex.split(best["command"])
    assert words[0] == "qdqtool"
    mended = bad.with_name("mended.onnx")
    cli(*(str(mended) if word == "mended.onnx" else word for word in words[1:]), "--overwrite", "-q")
    assert sqnr(mended) - sqnr(bad) == pytest.approx(best["wins_db"], abs=1e-3)
    assert best["wins_db"] > 0.5


def test_a_pair_before_a_relu_is_moved_behind_it(tmp_path: Path) -> None:
    """Down there the range ends at 0, and the target still takes the operator; what stands behind the pair already is left alone."""
    text = """g (float[1,8] x) => (float[1,8] y) <float s = {0.25}, int8 z = {0}, float t = {0.03125}> {
        [neg] h = Neg(x) %s [last] y = Neg(r) }"""
    source, made = tmp_path / "f.onnx", tmp_path / "q.onnx"
    write(source, text % "[relu] r = Relu(h)")
    pair = "[q] i = QuantizeLinear(h, s, z) [d] d = DequantizeLinear(i, s, z)"
    write(made, text % f"{pair} [relu] r = Relu(d)")
    data = tmp_path / "x.npz"
    np.savez(data, x=np.random.default_rng(0).uniform(-3, 20, (16, 8)).astype(np.float32))
    given = ("--float", source, "--data", data, "--json")
    mends = {mend["kind"]: mend for mend in cli("explain", made, "h", *given).json["told"][0]["mends"]}
    assert "move-qdq" in mends["move"]["command"]
    assert mends["move"]["wins_db"] > 6
    assert "set" not in mends, "up there no grid is better"
    words = shlex.split(mends["move"]["command"])[1:]
    words[words.index("--output") + 1] = str(tmp_path / "m.onnx")
    cli(*words, "-q")
    assert [pair.tensor for pair in qdq_pairs(load(tmp_path / "m.onnx"))] == ["r"]
    both = f"{pair} [relu] e = Relu(d) [q2] j = QuantizeLinear(e, t, z) [d2] r = DequantizeLinear(j, t, z)"
    write(made, text % both)
    assert "move" not in {mend["kind"] for mend in cli("explain", made, "h", *given).json["told"][0]["mends"]}


@pytest.mark.parametrize("axis", [1, -2])
def test_activations_with_scales_along_an_axis_are_explained(axis: int, tmp_path: Path) -> None:
    """Two channels, one of them on a grid 16 times too coarse: the better grid gives each channel its own."""
    text = """g (float[1,2,4] x) => (float[1,2,4] y) <float[2] s = {0.5, 0.01}, int8[2] z = {0, 0}> { [neg] h = Neg(x) %s }"""
    pair = f"[q] i = QuantizeLinear<axis: int = {axis}>(h, s, z) [d] d = DequantizeLinear<axis: int = {axis}>(i, s, z)"
    source, made, data = tmp_path / "f.onnx", tmp_path / "q.onnx", tmp_path / "x.npz"
    write(source, text % "[last] y = Neg(h)")
    write(made, text % f"{pair} [last] y = Neg(d)")
    np.savez(data, x=np.random.default_rng(0).uniform(-1, 1, (16, 2, 4)).astype(np.float32) * [[4], [1]])
    (one,) = cli("explain", made, "h", "--float", source, "--data", data, "--json").json["told"]
    best = {mend["kind"]: mend for mend in one["mends"]}["set"]
    assert best["wins_db"] > 20
    words = shlex.split(best["command"])[1:]
    words[words.index("--output") + 1] = str(tmp_path / "m.onnx")
    cli(*words, "-q")
    (found,) = qdq_pairs(load(tmp_path / "m.onnx"))
    assert found.encoding is not None
    assert found.encoding.scale[0] < 0.05
    assert found.encoding.scale[1] < 0.015


@pytest.mark.product(days=3)
def test_undo_makes_the_best_edits(quantized: Path) -> None:
    bad = damaged(quantized, "/block1/relu1_output_0", "--scale", "0.5")
    mended = bad.with_name("undone.onnx")
    said = cli("explain", bad, "--float", DIGITS, *SAMPLED, "--worst", "1", "--undo", "-o", mended, "--overwrite").out
    assert f"written: {mended}" in said
    assert "--output mended.onnx" in said, "a printed command does not write over what was written"
    assert sqnr(mended) > sqnr(quantized) - 0.5
    assert qdq_pairs(load(mended)), "it is still quantized"


@pytest.mark.product(days=3)
def test_without_the_float_model_stored_weights_have_no_price(quantized: Path) -> None:
    stored = quantized.with_name("stored.onnx")
    cli("qdq", "fold", quantized, "-o", stored, "--overwrite", "-q")
    done = cli("explain", stored, *SAMPLED, "--json")
    assert "(--float)" in done.err
    assert "weight" not in done.json["record"]["causes"]
    assert done.json["record"]["causes"]["rounding"] > 0


@pytest.mark.product(days=3)
def test_a_node_that_computes_otherwise_is_told_with_what_undoes_it(tmp_path: Path) -> None:
    source, made = SAMPLES / "detector.onnx", tmp_path / "q.onnx"
    data = SAMPLES / "detector_test.npz"
    cli("quantize", source, "--preset", "xint8", "--data", SAMPLES / "detector_calib.npz", "-o", made, "-q")
    said = cli("explain", made, "--float", source, "--data", data, "--samples", "4", "--worst", "1").out
    assert "/head/box/sigmoid (HardSigmoid)" in said
    assert "undo-dpu-edits" in said


def test_a_refit_has_the_form_of_what_it_replaces() -> None:
    values = np.random.default_rng(1).normal(size=(4, 100)) * np.array([[1.0], [2], [4], [8]])
    wide = Encoding.per_tensor(ir.DataType.INT8, 1.0)
    found = refitted(values, wide)
    assert found is not None
    assert found.encoding.position is not None, "powers of two stay so"
    assert found.encoding.scale[0] == 2.0**-2
    assert found.gain == pytest.approx(1 - 1 / 16, abs=0.05), "a quarter of the step has a sixteenth of the noise"
    finer = per_channel(values, Encoding.per_tensor(ir.DataType.INT8, 0.3), 0)
    assert finer is not None
    assert finer.encoding.axis == 0
    assert finer.noise < finer.before / 4
    assert refitted(values, Encoding.per_tensor(ir.DataType.FLOAT8E4M3FN, 1.0)) is None


def test_records_of_one_model_become_one() -> None:
    seen = Record(
        tensors=(TensorRecord(name="t", kind="activation", low=-1.0, price={"rounding": 0.5}),), noise={"y": 0.5}
    )
    placed = Record(nodes=(NodeRecord(name="n", op="Conv", verdict="npu-int", us=3.0),), model="m.onnx")
    later = Record(tensors=(TensorRecord(name="t", kind="activation", clipped=0.25),))
    found = merged([seen, placed, later])
    (tensor,) = found.tensors
    assert (tensor.low, tensor.clipped, tensor.price) == (-1.0, 0.25, {"rounding": 0.5})
    assert found.nodes[0].us == 3.0
    assert found.to_json() | {} == {
        "version": 1, "model": "m.onnx", "samples": 0, "noise": {"y": 0.5}, "causes": {"rounding": 0.5},
        "tensors": [{"name": "t", "kind": "activation", "low": -1.0, "clipped": 0.25, "price": {"rounding": 0.5}}],
        "nodes": [{"name": "n", "op": "Conv", "verdict": "npu-int", "us": 3.0}],
    }  # fmt: skip


def test_what_cannot_be_explained_is_refused(quantized: Path, tmp_path: Path) -> None:
    lines: list[tuple[tuple[Any, ...], str]] = [
        ((DIGITS, *SAMPLED), "has no QDQ pairs"),
        ((quantized, "/head/pol_output_0", "--float", DIGITS, *SAMPLED), "did you mean /head/pool_output_0"),
        ((quantized, *SAMPLED, "--undo"), "-o FILE"),
        ((quantized, *SAMPLED, "-o", tmp_path / "x.onnx"), "--undo"),
    ]
    for line, expected in lines:
        done = cli("explain", *line, code=2)
        assert expected in done.error
    with pytest.raises(UsageError):
        explain(str(quantized), "random:1", worst=1, undo=True)
    assert math.isfinite(sqnr(quantized))


def test_what_a_concat_reads_and_writes_is_edited_together(tmp_path: Path) -> None:
    """Three pairs on one grid that is too coarse: one alone wins little, all together what a finer grid has."""
    text = """g (float[1,8] x) => (float[1,16] y) <float s = {0.25}, int8 z = {0}> {
        [neg] a = Neg(x) %s [twice] b = Mul(x, x) %s [cat] c = Concat<axis = 1>(%s) %s [last] y = Neg(%s) }"""
    source, made, data = tmp_path / "f.onnx", tmp_path / "q.onnx", tmp_path / "x.npz"

    def pair(name: str) -> str:
        return f"[q{name}] i{name} = QuantizeLinear({name}, s, z) [d{name}] e{name} = DequantizeLinear(i{name}, s, z)"

    write(source, text % ("", "", "a, b", "", "c"))
    write(made, text % (pair("a"), pair("b"), "ea, eb", pair("c"), "ec"))
    np.savez(data, x=np.random.default_rng(0).uniform(-1, 1, (16, 8)).astype(np.float32))
    (one,) = cli("explain", made, "a", "--float", source, "--data", data, "--json").json["told"]
    mends = {mend["kind"]: mend for mend in one["mends"]}
    assert mends["group"]["wins_db"] > 15
    assert mends["group"]["wins_db"] > mends["set"]["wins_db"] + 10
    assert mends["group-int16"]["wins_db"] > mends["group"]["wins_db"] + 20
    words = shlex.split(mends["group"]["command"])[1:]
    words[words.index("--output") + 1] = str(tmp_path / "m.onnx")
    cli(*words, "-q")
    found = {pair.tensor: pair.encoding for pair in qdq_pairs(load(tmp_path / "m.onnx"))}
    assert found.keys() == {"a", "b", "c"}
    assert len(set(found.values())) == 1
