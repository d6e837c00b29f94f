"""What a Resize reads and with which weights, against onnxruntime's CPU provider on floats; the weights of an NPU."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import helper
from qdq_passes.errors import UnsupportedError
from qdq_passes.npu.formulas.resize import WEIGHT_BITS, resize_taps

from qdqtool.io.models.load import model_of
from qdqtool.runtime.session import open_session
from tests.golden_messages.refusal import refusal

SHAPE = (1, 2, 5, 7)
SIZES = [(1, 2, 10, 14), (1, 2, 8, 3), (1, 2, 5, 21), (1, 2, 1, 7), (1, 2, 13, 1)]
COORDINATES = ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"]


def onnxruntime(x: np.ndarray, sizes: tuple[int, ...], **attributes: object) -> np.ndarray:
    """The Resize of onnxruntime."""
    node = helper.make_node("Resize", ["x", "", "", "s"], ["y"], **attributes)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, sizes)],
        [helper.make_tensor("s", onnx.TensorProto.INT64, [len(sizes)], sizes)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return open_session(model_of(model)).run({"x": x})["y"]


@pytest.mark.parametrize(
    ("mode", "coordinates", "sizes"), [*itertools.product(["linear", "cubic"], COORDINATES, SIZES)]
)
def test_taps_are_those_of_onnxruntime(mode: str, coordinates: str, sizes: tuple[int, ...]) -> None:
    """Within 2^-18 of the largest number: coordinates and weights are float32 there, and are summed up in float32."""
    x = np.random.default_rng(3).uniform(-1, 1, SHAPE).astype(np.float32)
    found = x.astype(np.float64)
    for taps in resize_taps(SHAPE, mode=mode, sizes=sizes, coordinate_mode=coordinates):
        weights = taps.weights.reshape(*taps.weights.shape, *[1] * (x.ndim - 1 - taps.axis))
        found = sum(np.take(found, taps.indices[:, k], taps.axis) * weights[:, k] for k in range(taps.weights.shape[1]))
    wanted = onnxruntime(x, sizes, mode=mode, coordinate_transformation_mode=coordinates)
    assert np.abs(found - wanted).max() <= 2.0**-18


@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_weights_of_an_npu_have_the_sum_one(mode: str, exclude: bool) -> None:
    for taps in resize_taps(SHAPE, mode=mode, sizes=(1, 2, 17, 4), exclude_outside=exclude):
        integers = taps.integers()
        assert (integers.sum(axis=1) == 1 << WEIGHT_BITS).all()
        # half a unit each, and what the largest takes over of the others
        assert np.abs(integers - taps.weights * 2.0**WEIGHT_BITS).max() <= 0.5 * taps.weights.shape[1]


def test_an_axis_that_stays_has_no_taps() -> None:
    assert [taps.axis for taps in resize_taps(SHAPE, mode="linear", sizes=(1, 2, 5, 14))] == [3]
    assert resize_taps(SHAPE, mode="linear", sizes=SHAPE) == []


def test_a_mode_that_is_not_known() -> None:
    with refusal(UnsupportedError):
        resize_taps(SHAPE, mode="area", sizes=(1, 2, 5, 14))
