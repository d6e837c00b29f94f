"""Options of a simulation: those of the provider, the ones that would check nothing, and names for our own provider."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from qdq_passes.errors import ModelError, QdqError, SetupError, UsageError

from qdqtool.npu.library import library_path
from qdqtool.runtime.provider import open_session
from tests.cases.cli_helpers import cli, write
from tests.golden_messages.refusal import refusal, told
from tests.unit.npu.test_jit import CHIP
from tests.unit.npu.test_simulate import BY_NODE, MIDDLE, TARGET, simulated

#: Two engines of a chip that has several: one for products, one for the rest.
CONV = """g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float s = {0.5}, int8 z = {0}, int8[2,2,1,1] w = {1, 2, 3, 4}>
{ xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wd = DequantizeLinear(w, s, z)
  [conv] a = Conv(xd, wd) aq = QuantizeLinear(a, s, z) ad = DequantizeLinear(aq, s, z)
  [relu] r = Relu(ad) rq = QuantizeLinear(r, s, z) rd = DequantizeLinear(rq, s, z)
  [pool] p = MaxPool<kernel_shape=[1,1]>(rd) pq = QuantizeLinear(p, s, z) y = DequantizeLinear(pq, s, z) }"""


@pytest.fixture
def library() -> str:
    """The path of the NPU's library."""
    try:
        return str(library_path())
    except SetupError as error:
        pytest.skip(error.message)


@pytest.fixture
def source(tmp_path: Path) -> str:
    """Three quantized operators, the second of which no target takes."""
    return write(tmp_path / "m.onnx", MIDDLE)


@pytest.mark.parametrize("named", ["library", "name", "both", "neither"])
def test_our_own_provider_is_the_simulated_npu_however_it_is_named(library: str, source: str, named: str) -> None:
    """A QDQ model runs on it too, and the target may stand among its options."""
    given = ["--ep-library", library] if named in ("library", "both") else []
    given += ["--ep-name", "NpuSimExecutionProvider"] if named in ("name", "both") else []
    options = ["--ep-option", f"target={BY_NODE}", "--ep-option", "boundary=npu", "--ep-option", "isa=portable"]
    found = cli("simulate", source, "--data", "random:2", *given, *options, "--json").json
    assert (found["device"], found["target"]) == ("the simulated NPU", BY_NODE)
    assert found["compared_with"] == "the numpy reference"
    assert found["outputs"]["y"]["max_lsb"] == 0
    assert found["placement"]["partitions"] == 2
    told(cli("simulate", source, "--data", "random:2", *given, code=2).error)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"isa": "abacus"}, id="isa"),
        pytest.param({"speed": "9"}, id="speed"),
        pytest.param({"boundary": "both"}, id="boundary"),
        pytest.param({"target": TARGET}, id="target"),
    ],
)
def test_options_of_the_simulated_npu_are_not_dropped(library: str, options: dict[str, str]) -> None:
    with refusal(QdqError):
        simulated(ep_options=options)


def test_another_library_than_the_registered_one_is_refused(library: str, tmp_path: Path) -> None:
    simulated()
    other = tmp_path / Path(library).name
    with refusal(UsageError):
        simulated(ep_library=other)
    shutil.copy(library, other)
    with pytest.raises(UsageError, match="register it once"):
        simulated(ep_library=other)


@pytest.fixture
def compiled(source: str, tmp_path: Path) -> str:
    """`source`, compiled."""
    made = tmp_path / "c.onnx"
    cli("compile", source, "--target", BY_NODE, "-o", made)
    return str(made)


def test_min_sqnr_without_a_float_model_is_no_check(source: str, compiled: str, library: str) -> None:
    given = ("simulate", compiled, "--data", "random:2", "--min-sqnr", "5")
    told(cli(*given, code=2).error)
    cli(*given, "--against", source)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace('"1"', '"2"'), id="version"),
        pytest.param(lambda text: text + 'policy = "region"\n', id="content"),
    ],
)
def test_a_stale_program_does_not_run(source: str, library: str, tmp_path: Path, change: Callable[[str], str]) -> None:
    chip, made = tmp_path / "chip.toml", str(tmp_path / "c.onnx")
    chip.write_text(CHIP, encoding="utf-8")
    cli("compile", source, "--target", chip, "-o", made)
    given = ("simulate", made, "--data", "random:1", "--target", chip)
    cli(*given)
    open_session(made, {"target": str(chip)})
    chip.write_text(change(CHIP), encoding="utf-8")
    for more in ((), ("--against", source)):
        told(cli(*given, *more, code=2).error)
    with refusal(ModelError):
        open_session(made, {"target": str(chip)})
    open_session(made)


def test_a_batch_that_is_to_be_bound_is_a_note(library: str) -> None:
    """The figures hold for a model that has it bound."""
    notes = simulated(MIDDLE.replace("[1,8] x", "[N,8] x"), target="qnn_htp").notes
    assert any(
        "qnn_htp takes static shapes alone" in note and "`qdqtool fix-shapes --dim N=1`" in note for note in notes
    )
    assert not any("static shapes" in note for note in simulated(target="qnn_htp").notes)


def test_operators_run_on_their_own_engines(library: str, tmp_path: Path) -> None:
    """Not on that of most of their partition; as `analyze` says."""
    model = write(tmp_path / "conv.onnx", CONV)
    placed = cli("simulate", model, "--data", "random:1", "--target", "qnn_htp", "--json").json["placement"]
    engines = {node["op"]: node["device"] for node in placed["nodes"]}
    assert engines == {"Conv": "HMX", "Relu": "HVX", "MaxPool": "HVX"}
    nodes = cli("analyze", model, "--target", "qnn_htp", "--json").json["nodes"]
    assert engines == {node["op"]: node["device"] for node in nodes if "Linear" not in node["op"]}


def test_a_compiled_model_has_its_boundary(source: str, compiled: str, library: str) -> None:
    given = ("simulate", compiled, "--data", "random:2", "--boundary", "npu")
    told(cli(*given, code=2).error)
    cli(*given, "--against", source, "--target", BY_NODE)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--min-sqnr", "nan"], id="min-sqnr"),
        pytest.param(["--trace", "one.file", "-o", "./one.file"], id="one file for both"),
        pytest.param(["--ep-option", "boundary=both"], id="boundary"),
        pytest.param(["--ep-option", "target=generic_int8"], id="target"),
    ],
)
def test_refusals(source: str, options: list[str]) -> None:
    told(cli("simulate", source, "--data", "random:1", "--target", TARGET, *options, code=2).error)
