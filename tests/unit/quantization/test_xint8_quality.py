"""What the preset xint8 promises: no less quality than xint8-compat, and a digits CNN that reads as well as the float one.

SQNR is of the logits against the float model, on images that calibration did not see, with graph optimization off. Where the
reference's arithmetic has nothing to be repaired, the two presets make the same integers and the figures are equal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool import api
from qdqtool.io.models.load import load, model_of
from qdqtool.runtime.session import open_session
from tests.bench.models import images, mobilenetv2, resnet18
from tests.cases.cli_helpers import CALIB, DEMO, DIGITS

Arrays = dict[str, npt.NDArray[np.float32]]

SIDE, SAMPLES = 64, 16


def sqnr(proto: onnx.ModelProto, calibration: Arrays, held_out: Arrays, preset: str) -> float:
    """SQNR of the only output of ``proto`` quantized with ``preset``, in dB."""
    model = model_of(proto)
    quantized = api.quantize(model, preset=preset, data=calibration).model
    (logits,) = api.compare(model, quantized, held_out, tensors=[]).outputs
    assert logits.agreement.sqnr_db is not None, "quantizing to 8 bits is never exact here"
    return logits.agreement.sqnr_db


@pytest.mark.product(days=8)
@pytest.mark.parametrize("seed", [1, 3])
@pytest.mark.parametrize("net", [resnet18, mobilenetv2])
def test_strict_is_at_least_as_good_as_the_reference(net: Callable[..., onnx.ModelProto], seed: int) -> None:
    proto = net(SIDE, seed=seed)
    calibration = {"input": images(SAMPLES, SIDE, seed=1000 + seed)}
    held_out = {"input": images(SAMPLES, SIDE, seed=2000 + seed)}
    strict, compat = (sqnr(proto, calibration, held_out, preset) for preset in ("xint8", "xint8-compat"))
    assert strict >= compat
    assert strict > 3, "the net is of no use for this test: nothing is left of its logits"


def test_strict_keeps_what_the_reference_halves() -> None:
    """Weights so small against the biases that no shift joins the two: the biases' positions move up by one. In the reference
    all biases are half of what they were then; here only those beyond the new grid, ±0.5, are cut off (b is up to 1)."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "input"
    for layer in range(3):
        shape = (8, 3 if layer == 0 else 8, 3, 3)
        arrays = {"w": rng.normal(0, 2e-4, shape), "b": rng.uniform(0.1, 1, 8)}
        weights += [onnx.numpy_helper.from_array(a.astype(np.float32), f"{n}{layer}") for n, a in arrays.items()]
        nodes.append(
            onnx.helper.make_node("Conv", [x, f"w{layer}", f"b{layer}"], [f"c{layer}"], f"conv{layer}", pads=[1] * 4)
        )
        x = f"r{layer}"
        nodes.append(onnx.helper.make_node("Relu", [f"c{layer}"], [x], f"relu{layer}"))
    value = onnx.helper.make_tensor_value_info
    ends = [[value(n, 1, [1, c, 16, 16])] for n, c in (("input", 3), (x, 8))]
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", *ends, weights),
        ir_version=8,
        opset_imports=[onnx.helper.make_opsetid("", 17)],
    )
    calibration, held_out = ({"input": images(8, 16, seed=seed)} for seed in (1, 2))
    strict, compat = (sqnr(proto, calibration, held_out, preset) for preset in ("xint8", "xint8-compat"))
    assert compat == pytest.approx(20 * np.log10(2), abs=0.1)  # y/2 for y; the weights add less than 1 %
    assert strict > compat + 1


@pytest.fixture(scope="module")
def digits() -> dict[str, tuple[float, float]]:
    """Preset → (accuracy in points, SQNR of the logits in dB) on the held-out images; the float model's SQNR is +inf."""
    with np.load(DEMO / "test.npz") as test:
        pixels, labels = test["input"], test["labels"]
    models = {preset: api.quantize(DIGITS, preset=preset, data=CALIB).model for preset in ("xint8", "xint8-compat")}
    found = {}
    for name, model in {"float": load(DIGITS), **models}.items():
        session = open_session(model)
        read = [int(session.run({"input": pixels[i : i + 1]})["logits"].argmax()) for i in range(len(pixels))]
        (logits,) = api.compare(DIGITS, model, {"input": pixels}, tensors=[]).outputs
        level = logits.agreement.sqnr_db
        found[name] = (100 * float(np.mean(read == labels)), np.inf if level is None else level)
    return found


def test_digits_are_read_as_well_as_by_the_float_model(digits: dict[str, tuple[float, float]]) -> None:
    assert digits["float"][0] > 98
    assert digits["xint8"][0] >= digits["float"][0] - 0.2


def test_digits_strict_is_at_least_as_good_as_the_reference(digits: dict[str, tuple[float, float]]) -> None:
    assert digits["xint8"][1] >= digits["xint8-compat"][1] > 25
