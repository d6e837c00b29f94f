"""Simulation: what runs where, what is compared with what, and what is said when something is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from qdq_passes.errors import SetupError, UsageError
from qdq_passes.npu.partitions.partitions import partition_for

import qdqtool
from qdqtool.io.feeds.array_store import joined, write_npz
from qdqtool.npu.library import VARIABLE, library_path
from qdqtool.npu.placement import predicted_placement, reported_placement, unexpected_placements, why_nothing_on_npu
from qdqtool.npu.simulated import Simulation
from qdqtool.runtime.node_runs import NodeRuns
from qdqtool.runtime.plugin import Assigned, open_on, register_library
from qdqtool.runtime.session import open_session
from qdqtool.targets.loading import load_target
from tests.cases.cli_helpers import CALIB, DIGITS, cli, process
from tests.cases.small_models import chain, model
from tests.golden_messages.refusal import told

Array = npt.NDArray[Any]
TARGET = "vitis_xint8"
#: A target that loses no more than the node it declines.
BY_NODE = "generic_int8"


@pytest.fixture
def library() -> str:
    """The path of the NPU's library."""
    try:
        return str(library_path())
    except SetupError as error:
        pytest.skip(error.message)


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if the library had not been built."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none.so"))


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The demo's net in power-of-two int8, for one image at a time."""
    folder = tmp_path_factory.mktemp("digits")
    cli("quantize", DIGITS, "--data", CALIB, "--samples", "32", "-o", folder / "int8.onnx")
    cli("fix-shapes", folder / "int8.onnx", "--dim", "N=1", "-o", folder / "digits.onnx")
    return str(folder / "digits.onnx")


#: Three quantized operators; Softplus is one that no target takes.
MIDDLE = """g (float[1,8] x) => (float[1,8] y) <float s = {0.0625}, int8 z = {0}> {
    xq = QuantizeLinear(x, s, z)   xd = DequantizeLinear(xq, s, z)
    a = Relu(xd)                   aq = QuantizeLinear(a, s, z)   ad = DequantizeLinear(aq, s, z)
    b = Softplus(ad)               bq = QuantizeLinear(b, s, z)   bd = DequantizeLinear(bq, s, z)
    c = Sigmoid(bd)                cq = QuantizeLinear(c, s, z)   y = DequantizeLinear(cq, s, z) }"""
X = np.linspace(-4, 4, 24, dtype=np.float32).reshape(3, 8)


def simulated(text: str = MIDDLE, **options: Any) -> Simulation:
    return qdqtool.simulate(model(text), {"x": X}, **{"target": BY_NODE, **options})


# ---------------------------------------------------------------------------------------------- without the library


def test_without_the_library_the_reference_takes_its_place(digits: str, no_library: None) -> None:
    done = cli("simulate", digits, "--target", TARGET, "--data", CALIB, "--samples", "3", "--json")
    found = done.json
    assert found["device"] == "the numpy reference"
    assert found["compared_with"].startswith("the QDQ model")
    assert found["wall_s"] is None
    assert found["placement"]["source"] == "partitioner"
    assert found["estimated_us"] > 0
    assert any("there is no library" in note for note in found["notes"])
    assert "note: there is no library" in done.err


def test_without_the_library_a_compiled_model_does_not_run(digits: str, tmp_path: Path, no_library: None) -> None:
    cli("compile", digits, "--target", TARGET, "-o", tmp_path / "c.onnx")
    told(cli("simulate", tmp_path / "c.onnx", "--data", CALIB, code=2).error)


# ------------------------------------------------------------------------------------------------------ on the NPU


def test_digits_on_the_npu(digits: str, tmp_path: Path, library: str) -> None:
    trace, outputs = tmp_path / "t.json", tmp_path / "o.npz"
    done = cli(
        "simulate", digits, "--target", TARGET, "--data", CALIB, "--samples", "4", "--float", DIGITS,
        "--trace", trace, "-o", outputs, "--json",
    )  # fmt: skip
    found = done.json
    assert found["outputs"]["logits"]["max_lsb"] == 0
    assert found["outputs"]["logits"]["exact"] == 1.0
    assert found["outputs"]["logits"]["sqnr_db"]["npu/float"] > 25
    assert found["device"] == "the simulated NPU"
    assert found["compared_with"] == "the numpy reference"
    assert found["placement"]["npu_nodes"] == len(found["placement"]["nodes"]) == 19
    assert found["placement"]["cpu_nodes"] == 0
    assert isinstance(found["wall_s"], float)
    assert found["estimated_us"] == found["estimate"]["us"] > 0
    assert found["samples"] == 4
    assert found["notes"] in ([], ["placement is the partitioner's word: onnxruntime tells its own from 1.24 on"])
    assert "not a measurement" in json.loads(trace.read_text(encoding="utf-8"))["otherData"]["what"]
    with np.load(outputs) as data, np.load(CALIB) as calib:
        expected = open_session(DIGITS).run({"input": calib["input"][:4]})["logits"]
        assert (data["logits"].argmax(1) == expected.argmax(1)).all()
    plain = cli("simulate", digits, "--target", TARGET, "--data", CALIB, "--samples", "2").out
    assert "19 of 19 operators on the NPU in 1 partition, 0 on the CPU" in plain
    assert "nothing was measured" in plain


def test_the_timeline_of_a_chip(digits: str, tmp_path: Path) -> None:
    trace, chip = tmp_path / "t.json", ("--chip", "8 Elite", "--stack", "qnn_dlc")
    given = ("simulate", digits, "--target", TARGET, "--data", CALIB, "--samples", "1", "--trace", trace, *chip)
    told = cli(*given, "--json").json["chip_time"]
    found = json.loads(trace.read_text(encoding="utf-8"))
    spans = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert spans[-1]["ts"] + spans[-1]["dur"] == pytest.approx(1000 * told["ms"]) == found["otherData"]["estimated_us"]
    assert found["otherData"]["low_us"] == 1000 * told["low"]
    nodes = {node["name"]: node["ms"] for node in told["nodes"]}
    assert {e["name"]: e["dur"] for e in spans[1:]} == {e["name"]: 1000 * nodes[e["name"]] for e in spans[1:]}
    assert "Snapdragon 8 Elite with qnn_dlc, w8a8" in found["otherData"]["what"]
    other = cli(*given, "--overwrite", "--precision", "float", "--json").json["chip_time"]
    assert other["precision"] == "float"


@pytest.mark.parametrize("boundary", ["cpu", "npu"])
def test_both_boundaries_agree_with_the_reference(digits: str, library: str, boundary: Any) -> None:
    found = qdqtool.simulate(digits, CALIB, target=TARGET, samples=2, boundary=boundary)
    assert found.is_exact
    assert found.outputs[0].max_lsb == 0


def test_the_cpu_runs_what_the_npu_declines(library: str) -> None:
    found = simulated()
    assert found.samples == 3
    assert found.is_exact
    assert found.outputs[0].max_lsb == 0
    assert found.placement is not None
    where = {node.op: node for node in found.placement.nodes}
    assert where["Softplus"].device == "CPU"
    assert where["Softplus"].reason
    assert where["Relu"].partition != where["Sigmoid"].partition
    assert found.placement.partitions == 2
    assert found.estimate is not None
    assert len(found.estimate.partitions) == 2


def test_dynamic_dimensions_are_named_as_the_reason(library: str) -> None:
    found = simulated(MIDDLE.replace("[1,8]", "[1,N]"))
    assert found.placement is not None
    assert found.placement.npu_nodes == 0
    (note,) = [text for text in found.notes if "nothing runs on the NPU" in text]
    assert "fix-shapes" in note
    assert found.is_exact


def test_without_the_reference_the_qdq_model_is_the_base(library: str) -> None:
    found = simulated(reference=False)
    assert found.base.startswith("the QDQ model")
    assert set(found.seconds) == {"npu", "qdq", "float"}
    assert found.outputs[0].exact is not None


BRAINS = """g (float[1,8] x) => (float[1,8] y) {
    a = Cast<to = 16>(x)   b = Transpose<perm = [1, 0]>(a)   c = MatMul(a, b)   d = MatMul(c, a)   y = Cast<to = 1>(d) }"""


def test_bfloat16_is_compared_with_the_reference_alone(library: str) -> None:
    """onnxruntime's CPU provider multiplies no bfloat16; the chip does."""
    found = simulated(BRAINS, target="tpu_like")
    assert found.base_is_reference
    assert found.float_model == ""
    [y] = found.outputs
    assert y.exact == 1
    assert any(note.startswith("not compared with the QDQ model") for note in found.notes)


def test_bfloat16_without_anything_to_compare_with(no_library: None) -> None:
    found = simulated(BRAINS, target="tpu_like")
    assert (found.device, found.base) == ("the numpy reference", "")


def test_a_compiled_model_against_what_it_was_made_of(digits: str, tmp_path: Path, library: str) -> None:
    compiled = tmp_path / "c.onnx"
    cli("compile", digits, "--target", TARGET, "-o", compiled)
    alone = cli("simulate", compiled, "--data", CALIB, "--samples", "2", "--json").json
    assert (alone["compared_with"], alone["target"]) == ("", TARGET)
    assert any("--against" in note for note in alone["notes"])
    assert alone["outputs"]["logits"] == {
        "max_lsb": None, "exact": None, "max_abs": None, "sqnr_db": {}, "exact_rate": {},
    }  # fmt: skip
    beside = cli(
        "simulate", compiled, "--data", CALIB, "--samples", "2", "--target", TARGET, "--against", digits, "--json"
    ).json
    assert beside["outputs"]["logits"]["max_lsb"] == 0
    assert beside["estimated_us"] > 0


def test_a_lowered_model_is_refused_with_the_way_out(digits: str, tmp_path: Path) -> None:
    cli("lower", digits, "--target", TARGET, "-o", tmp_path / "l.onnx")
    told(cli("simulate", tmp_path / "l.onnx", "--target", TARGET, "--data", CALIB, code=2).error)


def test_a_provider_that_the_user_has(digits: str, tmp_path: Path, library: str) -> None:
    """Ours, under another name, stands for that of a chip maker."""
    compiled, other = tmp_path / "c.onnx", shutil.copy(library, tmp_path / "acme.so")
    cli("compile", digits, "--target", TARGET, "-o", compiled)
    done = process(
        "simulate", compiled, "--ep-library", other, "--against", digits, "--data", CALIB, "--samples", "2",
        "--ep-option", "isa=portable", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["device"] == "NpuSimExecutionProvider"
    assert found["compared_with"].startswith("the QDQ model")
    assert found["outputs"]["logits"]["exact"] is not None
    assert found["estimated_us"] is None


def test_a_relu_that_a_zero_point_does_is_in_the_float_model(no_library: None) -> None:
    """Quantizers leave a Relu out where uint8 with zero point 0 saturates at 0; without its pair the model would be another."""
    text = """g (float[1,8] x) => (float[1,8] y) <float s = {0.0625}, uint8 z = {0}, float t = {0.03125}, int8 o = {0}> {
        xq = QuantizeLinear(x, s, o)  xd = DequantizeLinear(xq, s, o)
        a = Identity(xd)              aq = QuantizeLinear(a, s, z)     ad = DequantizeLinear(aq, s, z)
        b = Sigmoid(ad)               bq = QuantizeLinear(b, t, o)     y = DequantizeLinear(bq, t, o) }"""
    (output,) = simulated(text).outputs
    found = output.against["qdq/float"].sqnr_db
    assert found is not None
    assert found > 30


def test_min_sqnr_is_an_exit_code(digits: str, no_library: None) -> None:
    given = ("simulate", digits, "--target", TARGET, "--data", CALIB, "--samples", "2", "--float", DIGITS)
    cli(*given, "--min-sqnr", "10")
    cli(*given, "--min-sqnr", "90", code=1)


def test_the_demo_runs_on_the_npu(tmp_path: Path, library: str) -> None:
    npu = cli("demo", "-o", tmp_path / "d.onnx", "--json").json["npu"]
    assert npu["accuracy"] > 0.98
    assert (npu["max_lsb"], npu["exact"]) == (0, 1.0)
    assert npu["npu_nodes"] == npu["nodes"] == 19
    assert npu["compared_with"] == "the numpy reference"


def test_the_demo_says_that_the_library_is_missing(tmp_path: Path, no_library: None) -> None:
    assert "on the simulated NPU: not run; there is no library" in cli("demo", "-o", tmp_path / "d.onnx").out


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id="no target"),
        pytest.param(["--target", "no_such"], id="unknown target"),
        pytest.param(["--target", TARGET, "--against", DIGITS], id="no programs"),
        pytest.param(["--ep-library", "no_such.so"], id="no library"),
        pytest.param(["--ep-name", "x", "--trace", "t.json"], id="a timeline of a provider"),
        pytest.param(["--ep-name", "x", "--ep-option", "novalue"], id="no value"),
        pytest.param(["--ep-name", "x", "--ep-option", "a=1", "--ep-option", "a=2"], id="an option twice"),
        pytest.param(["--target", TARGET, "-o", DIGITS, "--overwrite"], id="the outputs are an input"),
        pytest.param(["--target", TARGET, "--trace", CALIB, "--overwrite"], id="the timeline is an input"),
    ],
)
def test_refusals(options: list[str]) -> None:
    told(cli("simulate", DIGITS, "--data", CALIB, *options, code=2).error)


def test_a_provider_that_there_is_not() -> None:
    """What follows are the providers there are in this process."""
    said = cli("simulate", DIGITS, "--data", CALIB, "--ep-name", "no_such", code=2).error
    assert said.startswith("no device of a provider 'no_such'; there is ")


def test_an_output_is_not_overwritten(digits: str, tmp_path: Path, no_library: None) -> None:
    (tmp_path / "o.npz").write_bytes(b"mine")
    given = ("simulate", digits, "--target", TARGET, "--data", CALIB, "--samples", "1", "-o", tmp_path / "o.npz")
    told(cli(*given, code=2).error)
    assert (tmp_path / "o.npz").read_bytes() == b"mine"
    cli(*given, "--overwrite")
    assert (tmp_path / "o.npz").read_bytes() != b"mine"


def test_a_library_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_bytes(b"no library")
    with pytest.raises(SetupError, match="cannot load it as a provider"):
        register_library("broken", tmp_path / "broken.so")
    with pytest.raises(UsageError, match="no device of a provider"):
        open_on(model(MIDDLE), "broken")


# -------------------------------------------------------------------------------------------------------- placement


def test_what_onnxruntime_says_is_joined_with_the_reasons() -> None:
    graph = model(MIDDLE)
    names = {node.op_type: node.name or "" for node in graph.graph}
    plan = partition_for(graph, load_target(BY_NODE))
    expected = predicted_placement(graph, plan)
    assert [node.op for node in expected.nodes] == ["Relu", "Softplus", "Sigmoid"]
    word = [
        Assigned("CPUExecutionProvider", names["Softplus"], "Softplus", 1),
        Assigned("NpuSimExecutionProvider", names["Sigmoid"], "Sigmoid", 2),
        Assigned("NpuSimExecutionProvider", names["Relu"], "Relu", 0),
        Assigned("CPUExecutionProvider", "q", "QuantizeLinear", 3),
    ]
    said = reported_placement(word, graph, plan)
    assert [(node.op, node.partition) for node in said.nodes] == [("Relu", 0), ("Softplus", None), ("Sigmoid", 1)]
    assert said.nodes[1].reason == expected.nodes[1].reason != ""
    assert unexpected_placements(said, expected) is None
    other = [Assigned("CPUExecutionProvider", entry.name, entry.op, entry.group) for entry in word]
    assert unexpected_placements(reported_placement(other, graph, plan), expected) == (
        f"onnxruntime placed otherwise than predicted: {names['Relu']}, {names['Sigmoid']}"
    )
    assert why_nothing_on_npu(said) is None
    assert "Softplus" in str(why_nothing_on_npu(reported_placement(other[:1], graph, plan)))


def test_single_nodes_compute_what_the_model_computes() -> None:
    text = """g (float[2,3] x, bool c) => (float[2,3] y) <float[3] w = {1, 2, 3}> {
        h = Mul(x, w)
        y = If (c) <then_branch = t () => (float[2,3] a) { a = Add(h, w) },
                    else_branch = e () => (float[2,3] b) { b = Neg(h) }> }"""
    graph = model(text)
    runs = NodeRuns(graph)
    mul, branch = list(graph.graph)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    w = np.array([1, 2, 3], np.float32)
    (h,) = runs(mul, [x, w])
    np.testing.assert_array_equal(h, x * w)
    for c, expected in ((True, h + w), (False, -h)):
        (y,) = runs(branch, [np.array(c), h, w])
        np.testing.assert_array_equal(y, expected)


def test_a_constant_may_be_read_twice() -> None:
    """As the zero points of a QLinearConv often are."""
    runs = NodeRuns(graph := model("g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}> { y = Sum(w, x, w) }"))
    w = np.array([1, 2, 3], np.float32)
    (y,) = runs(next(iter(graph.graph)), [w, w, w])
    np.testing.assert_array_equal(y, 3 * w)


def test_a_node_that_onnxruntime_does_not_have_is_named() -> None:
    graph = model("g (float[2] x) => (float[2] y) { y = com.acme.Nothing(x) }")
    with pytest.raises(Exception, match="Nothing") as caught:
        NodeRuns(graph)(graph.graph[0], [np.zeros(2, np.float32)])
    assert caught.type.__name__ == "UnsupportedError"


# ------------------------------------------------------------------------------------------------------------ files


def test_arrays_give_the_same_bytes_twice(tmp_path: Path) -> None:
    arrays = {"a": np.arange(4, dtype=np.int8), "b/c": np.ones((2, 2), np.float32)}
    for name in ("one.npz", "two.npz"):
        write_npz(tmp_path / name, arrays)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    with np.load(tmp_path / "one.npz") as data:
        assert sorted(data) == ["a", "b/c"]
        np.testing.assert_array_equal(data["b/c"], arrays["b/c"])


def test_samples_are_joined() -> None:
    ones, two = np.ones((1, 3)), np.ones((2, 3))
    found = joined({"x": [ones, two], "n": [np.array(1), np.array(2)], "odd": [ones, np.ones((1, 4))]})
    assert {name: array.shape for name, array in found.items()} == {
        "x": (3, 3), "n": (2,), "odd/0": (1, 3), "odd/1": (1, 4),
    }  # fmt: skip


def test_reasons_are_grouped_and_the_cpu_alone_is_said_first(tmp_path: Path) -> None:
    """No node of it is taken: two operators for one reason each, and nothing that was estimated."""
    (tmp_path / "chip.toml").write_text(
        'description = "c"\nversion = "1"\n[[op]]\ntypes = ["Conv"]\n[[op.scheme]]\nactivations = ["int8"]\n'
    )
    qdqtool.save(model(chain("Softplus", "Tanh", "Softplus")), tmp_path / "m.onnx")
    words = ("simulate", tmp_path / "m.onnx", "--target", tmp_path / "chip.toml", "--data", "random:1")
    done = cli(*words)
    assert done.out.startswith("the CPU was compared with itself: nothing of the model runs on the NPU\n")
    rows = [line.split() for line in done.out.splitlines() if " is not supported on chip" in line]
    assert [row[:3] for row in rows] == [["2", "Softplus", "Softplus0"], ["1", "Tanh", "Tanh1"]]
    assert "no estimate for chip: nothing runs on the NPU" in done.out
    assert " µs" not in done.out
    assert "compared with itself" in done.err
    assert len([row for row in cli(*words, "-v").out.splitlines() if row.startswith("Softplus")]) == 2
