"""Values in any order: the same numbers as in the model's own layout, without the reordering that onnxruntime puts there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from qdq_passes.errors import QdqWarning, VerifyError
from qdq_passes.pipeline.hooks import VERIFY_EACH

from qdqtool.calibrate.collect import collect
from qdqtool.io.models.load import load
from qdqtool.io.models.save import save
from qdqtool.runtime import blocked
from qdqtool.runtime.model_bytes import model_bytes
from qdqtool.runtime.taps import Taps, float_tensors
from tests.cases.small_models import model

RNG = np.random.default_rng(7)
WEIGHTS = {
    name: RNG.normal(0, 0.3, shape).astype(np.float32)
    for name, shape in {
        "w1": (16, 3, 3, 3),
        "b1": (16,),
        "w2": (24, 16, 1, 1),
        "w3": (32, 16, 3, 3),
        "w4": (32, 1, 3, 3),
    }.items()
}
FEED = {"x": RNG.normal(0, 1, (1, 3, 12, 12)).astype(np.float32)}


def network() -> ir.Model:
    """Convolutions to 16, 24 (which onnxruntime pads) and 32 channels, with pooling, an addition and a concatenation."""
    return model(
        """net (float[1,3,12,12] x) => (float[1,48,6,6] y, float[1,24,1,1] z) {
            c1 = Conv <pads = [1,1,1,1]> (x, w1, b1)
            r1 = Relu (c1)
            c2 = Conv (r1, w2)
            s2 = Sigmoid (c2)
            c3 = Conv <pads = [1,1,1,1]> (r1, w3)
            c4 = Conv <group = 32, pads = [1,1,1,1]> (c3, w4)
            a4 = Add (c3, c4)
            r4 = Relu (a4)
            z = GlobalAveragePool (s2)
            cat = Concat <axis = 1> (r1, r4)
            y = MaxPool <kernel_shape = [2,2], strides = [2,2]> (cat)
        }""",
        WEIGHTS,
    )


def refused(text: str) -> None:
    """Called where onnxruntime does not give values in blocks."""
    pytest.fail(text)


@pytest.fixture
def pays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Any size pays; the list has how many outputs each session gives in blocks."""
    counts: list[int] = []
    unblocked = blocked._without_reordering

    def counting(*args: Any) -> int:
        counts.append(unblocked(*args))
        return counts[-1]

    monkeypatch.setattr(blocked, "LEAST_VALUES", 0)
    monkeypatch.setattr(blocked, "_without_reordering", counting)
    return counts


@pytest.mark.parametrize("in_file", [False, True])
def test_the_values_are_those_of_the_own_layout(in_file: bool, pays: list[int], tmp_path: Path) -> None:
    net = network()
    if in_file:
        save(net, tmp_path / "net.onnx", external="always", threshold=0)
        net = load(tmp_path / "net.onnx")
    names = [name for name in float_tensors(net) if name != "x"]
    ordered = Taps(net, names, optimize=True).run(FEED)
    assert not pays
    found = Taps(net, names, optimize=True, any_order=refused).lend(FEED)
    assert {n: v.size for n, v in found.items()} == {n: v.size for n, v in ordered.items()}
    for name in names:
        assert np.array_equal(np.sort(found[name], axis=None), np.sort(ordered[name], axis=None)), name
    assert np.array_equal(found["y"], ordered["y"]), "a graph output is in order"
    assert len(pays) == 1


def test_ranges_are_the_same_and_small_networks_are_left_as_they_are(
    pays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = collect(network(), [FEED], "pow2-minmse")
    assert len(pays) == 1
    monkeypatch.setattr(blocked, "LEAST_VALUES", 1 << 20)
    assert collect(network(), [FEED], "pow2-minmse").to_json() == blocks.to_json()
    assert len(pays) == 1


@pytest.mark.parametrize(("method", "options"), [("minmax", {}), ("pow2-minmse", {"reference": True})])
def test_a_method_that_may_see_the_order_gets_the_models_own(
    method: str, options: dict[str, Any], pays: list[int]
) -> None:
    collect(network(), [FEED], method, options=options)
    assert not pays


def test_outputs_are_in_blocks_where_onnxruntime_convolves_so(pays: list[int], tmp_path: Path) -> None:
    """Not all processors do; the number of the others is 0, and the values are in order."""
    source = model_bytes(network(), extra_outputs=["r1", "s2", "r4"])
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = os.fspath(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(source.data, options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(tmp_path / "optimized.onnx").graph.node
    reordered = {name for node in nodes if node.op_type == "ReorderOutput" for name in node.output}
    reordered -= {name for node in nodes for name in node.input}
    Taps(network(), ["r1", "s2", "r4"], optimize=True, any_order=refused)
    assert pays == [len(reordered & {"r1", "r4"})]


@pytest.mark.parametrize("refused", ["folder", "optimized model", "both models"])
def test_what_onnxruntime_or_the_system_refuses_is_told_and_the_layout_is_the_models_own(
    refused: str, pays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, data: bytes, options: Any, **others: Any) -> None:
            is_first = bool(options.optimized_model_filepath)
            if (refused == "optimized model" and is_first) or (refused == "both models" and b"nchwc" in data):
                raise onnxruntime.capi.onnxruntime_pybind11_state.Fail(f"no room in {options.optimized_model_filepath}")
            super().__init__(data, options, **others)

    def no_folder(*args: object, **options: object) -> None:
        raise FileNotFoundError("no usable temporary directory")

    usual = collect(network(), [FEED], "pow2-minmse").to_json()
    if refused == "folder":
        monkeypatch.setattr(blocked.tempfile, "TemporaryDirectory", no_folder)
    else:
        monkeypatch.setattr(onnxruntime, "InferenceSession", Refusing)
    if pays == [0] and refused == "both models":
        pytest.skip("this processor convolves without blocks")
    with pytest.warns(QdqWarning, match="own layout, which takes longer: no ") as told:
        assert collect(network(), [FEED], "pow2-minmse").to_json() == usual
    assert len(told) == 1


@pytest.mark.parametrize("fault", ["name", "exception"])
def test_a_fault_of_the_rewriting_is_an_error(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(graph: ir.Graph, names: set[str]) -> int:
        if fault == "exception":
            raise KeyError("planted")
        graph.node(0).replace_input_with(0, ir.Value(name="nowhere"))
        return 1

    monkeypatch.setattr(blocked, "LEAST_VALUES", 0)
    monkeypatch.setattr(blocked, "_without_reordering", damage)
    with pytest.raises(VerifyError, match="planted" if fault == "exception" else "nowhere"):
        collect(network(), [FEED], "pow2-minmse")


def test_without_checks_a_fault_of_the_rewriting_only_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(graph: ir.Graph, names: set[str]) -> int:
        raise KeyError("planted")

    usual = collect(network(), [FEED], "pow2-minmse").to_json()
    monkeypatch.setattr(blocked, "LEAST_VALUES", 0)
    monkeypatch.setattr(blocked, "_without_reordering", damage)
    monkeypatch.delenv(VERIFY_EACH)
    with pytest.warns(QdqWarning, match="own layout, which takes longer: .*planted"):
        assert collect(network(), [FEED], "pow2-minmse").to_json() == usual
