"""The elements that a Resize to the nearest one takes, against onnxruntime: every mode, sizes, scales, some axes, regions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.npu.formulas.resize import BEFORE_OPSET_11, resize_nearest_indices

from qdqtool.io.models.load import model_of
from qdqtool.runtime.session import open_session
from tests.dial import examples
from tests.golden_messages.refusal import refusal
from tests.properties.graphs import DETERMINISTIC

SEEDS = st.integers(0, 2**32 - 1)
COORDINATES = (
    "half_pixel", "asymmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn", "align_corners", "tf_crop_and_resize",
    "half_pixel_symmetric",
)  # fmt: skip
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SCALES = (0.5, 2.0, 3.0, 1.0, 0.3, 1.5, 0.7, 2.2, 1 / 3, 1.1, 4.0)


def by_onnxruntime(
    x: np.ndarray[Any, Any], inputs: dict[str, Any], opset: int, **attributes: Any
) -> np.ndarray[Any, Any]:
    """Resize of ``x``; ``inputs`` are the others in order, None where left out."""
    names = ["" if value is None else name for name, value in inputs.items()]
    node = helper.make_node("Resize", ["x", *names], ["y"], mode="nearest", **attributes)
    constants = [numpy_helper.from_array(value, name) for name, value in inputs.items() if value is not None]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * x.ndim) for name in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    found: np.ndarray[Any, Any] = open_session(model_of(model)).run({"x": x})["y"]
    return found


def gathered(x: np.ndarray[Any, Any], indices: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """``x`` at ``indices`` per axis; 0 where one is −1."""
    for axis, chosen in enumerate(indices):
        x = np.take(x, np.maximum(chosen, 0), axis=axis)
        np.moveaxis(x, axis, 0)[chosen < 0] = 0
    return x


@pytest.mark.parametrize(("coordinates", "nearest"), list(itertools.product(COORDINATES, NEAREST)))
@settings(DETERMINISTIC, max_examples=8)
@given(seed=SEEDS)
def test_indices_are_those_of_onnxruntime(coordinates: str, nearest: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    rank = int(random.integers(1, 5))
    shape, axes = [int(v) for v in random.integers(1, 9, rank)], list(range(rank))
    attributes: dict[str, Any] = {"coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
    if random.integers(2) and coordinates != "tf_crop_and_resize":
        axes = [int(a) for a in random.permutation(rank)[: random.integers(1, rank + 1)]]
        attributes["axes"] = axes
    inputs: dict[str, Any] = {"roi": None, "scales": None, "sizes": None}
    if coordinates == "tf_crop_and_resize":
        regions = [random.uniform(-0.2, 0.3, rank), random.uniform(0.6, 1.2, rank)]
        inputs["roi"] = np.concatenate(regions).astype(np.float32)
    policy = str(random.choice(["stretch", "not_larger", "not_smaller"]))
    if random.integers(2):
        scales = random.choice(SCALES, len(axes)).astype(np.float32)
        fits = [int(scale * np.float32(shape[axis])) >= 1 for scale, axis in zip(scales, axes, strict=True)]
        inputs["scales"] = np.where(fits, scales, np.float32(1))
        policy = "stretch"
    else:
        inputs["sizes"] = random.integers(1, 17, len(axes))
        attributes["keep_aspect_ratio_policy"] = policy
    x = (1 + random.permutation(int(np.prod(shape)))).reshape(shape).astype(np.float32)

    def ours(**tie: Any) -> list[np.ndarray[Any, Any]]:
        return resize_nearest_indices(
            shape, **inputs, axes=axes, policy=policy, coordinate_mode=coordinates, nearest_mode=nearest, **tie
        )

    wanted = by_onnxruntime(x, inputs, 19, **attributes)
    found, as_before = gathered(x, ours()), gathered(x, ours(tie=np.float32(0)))
    assert found.shape == wanted.shape
    assert (found == wanted).all() or (as_before == wanted).all()


@pytest.mark.newest
def test_a_half_that_rounding_moved_is_a_half() -> None:
    """4.5 / 0.3 − 0.5 = 14.5, in float32 one unit less; what onnxruntime made of it until it was mended."""
    x = np.arange(20, dtype=np.float32)
    attributes = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
    wanted = by_onnxruntime(x, {"roi": None, "scales": None, "sizes": np.array([6])}, 19, **attributes)
    modes = {"coordinate_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
    assert resize_nearest_indices([20], sizes=[6], **modes)[0].tolist() == wanted.tolist() == [1, 5, 8, 11, 15, 18]
    assert resize_nearest_indices([20], sizes=[6], **modes, tie=np.float32(0))[0].tolist() == [1, 5, 8, 11, 14, 18]


@settings(DETERMINISTIC, max_examples=examples(20))
@given(seed=SEEDS)
def test_opset_10_has_one_mode(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = [1, 2, *(int(v) for v in random.integers(3, 9, 2))]
    scales = np.array([1, 1, *random.choice([0.5, 2, 3, 1.5, 0.7, 2.2], 2)], np.float32)
    x = random.permutation(int(np.prod(shape))).reshape(shape).astype(np.float32)
    found = resize_nearest_indices(shape, scales=scales, coordinate_mode="asymmetric", nearest_mode=BEFORE_OPSET_11)
    np.testing.assert_array_equal(gathered(x, found), by_onnxruntime(x, {"scales": scales}, 10))


def test_what_is_not_known_is_said() -> None:
    with refusal(ModelError):
        resize_nearest_indices([3, 4], sizes=[3])
    with refusal(UnsupportedError):
        resize_nearest_indices([3], sizes=[5], coordinate_mode="half")
    with refusal(UnsupportedError):
        resize_nearest_indices([3], sizes=[5], nearest_mode="round")
