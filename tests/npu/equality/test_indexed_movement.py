"""Standard operators inside programs that choose or scatter by computed indices and masks: the elements that onnxruntime's CPU provider
gives, and refusals of what has no place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.npu.small_programs import Array, context_model, equal, run
from tests.npu.test_movement import on_the_cpu, some

INDICES = {"int64": np.int64, "int32": np.int32}
SHAPE = (3, 4, 5)


def with_inputs(call: str, inputs: Sequence[tuple[str, str, Sequence[int]]], dtype: str, opset: int = 17) -> str:
    """A program of one node on several inputs: (name, type, shape)."""
    head = ", ".join(f"{kind}[{','.join(map(str, shape))}] {name}" for name, kind, shape in inputs)
    return (
        f'<ir_version: 8, opset_import: ["" : {opset}, "ai.qdqtool" : 1]>\n'
        f"program ({head}) => ({dtype} y0) {{ y0 = {call} }}"
    )


@pytest.mark.parametrize("kind", INDICES)
@pytest.mark.parametrize("dtype", ["int8", "int32"])
@pytest.mark.parametrize(("axis", "shape"), [(0, (2, 4, 5)), (1, (3, 7, 2)), (-1, (1, 4, 9)), (2, (3, 4, 0))])
def test_gather_elements(axis: int, shape: tuple[int, ...], dtype: str, kind: str) -> None:
    size = SHAPE[axis]
    picked = np.random.default_rng(1).integers(-size, size, shape).astype(INDICES[kind])
    text = with_inputs(f"GatherElements <axis = {axis}> (x, i)", [("x", dtype, SHAPE), ("i", kind, shape)], dtype)
    values = [some(SHAPE, dtype), picked]
    assert equal(run(context_model(text), *values), on_the_cpu(text, *values))


@pytest.mark.parametrize(
    ("batch", "shape"), [(0, (2, 2)), (0, (4, 1, 3)), (1, (3, 2)), (1, (3, 6, 1)), (2, (3, 4, 2, 1))]
)
def test_gather_nd(batch: int, shape: tuple[int, ...]) -> None:
    picked = np.stack(
        [np.random.default_rng(k).integers(-n, n, shape[:-1]) for k, n in enumerate(SHAPE[batch : batch + shape[-1]])],
        -1,
    )
    text = with_inputs(
        f"GatherND <batch_dims = {batch}> (x, i)", [("x", "uint8", SHAPE), ("i", "int64", shape)], "uint8"
    )
    values = [some(SHAPE, "uint8"), picked]
    assert equal(run(context_model(text), *values), on_the_cpu(text, *values))


@pytest.mark.parametrize("dtype", ["int8", "float"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scatter_elements(axis: int, dtype: str) -> None:
    picked = np.argsort(np.random.default_rng(axis).random(SHAPE), axis=axis).take(range(2), axis=axis)
    picked = np.where(picked % 2, picked - SHAPE[axis], picked)
    inputs = [("x", dtype, SHAPE), ("i", "int64", picked.shape), ("u", dtype, picked.shape)]
    text = with_inputs(f"ScatterElements <axis = {axis}> (x, i, u)", inputs, dtype)
    values = [some(SHAPE, dtype), picked, some(picked.shape, dtype)[::-1].copy()]
    assert equal(run(context_model(text), *values), on_the_cpu(text, *values))


@pytest.mark.parametrize("picked", [[[2], [0]], [[0, 1], [2, -1]], [[[1, 2, 3]], [[0, 0, -5]]]])
def test_scatter_nd(picked: list[list[int]]) -> None:
    indices = np.array(picked, np.int64)
    shape = (*indices.shape[:-1], *SHAPE[indices.shape[-1] :])
    inputs = [("x", "int8", SHAPE), ("i", "int64", indices.shape), ("u", "int8", shape)]
    text = with_inputs("ScatterND (x, i, u)", inputs, "int8")
    values = [some(SHAPE, "int8"), indices, some(shape, "int8")]
    assert equal(run(context_model(text), *values), on_the_cpu(text, *values))


def test_the_last_update_stays() -> None:
    text = with_inputs(
        "ScatterElements (x, i, u)", [("x", "int8", [3]), ("i", "int64", [3]), ("u", "int8", [3])], "int8"
    )
    x, u = np.array([1, 2, 3], np.int8), np.array([7, 8, 9], np.int8)
    assert equal(run(context_model(text), x, np.array([1, 1, 1]), u), [np.array([1, 9, 3], np.int8)])


@pytest.mark.newest
@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode: str) -> None:
    """onnxruntime 1.23 has no such operator."""
    inputs = [("x", "int8", (2, 3, 6, 4)), ("u", "int8", (2, 3, 2, 4)), ("i", "int64", [2])]
    text = with_inputs(f'TensorScatter <mode = "{mode}"> (x, u, i)', inputs, "int8", opset=24).replace(
        "ir_version: 8", "ir_version: 11"
    )
    start = np.array([5 if mode == "circular" else 4, 0])
    values = [some((2, 3, 6, 4), "int8"), some((2, 3, 2, 4), "int8"), start]
    assert equal(run(context_model(text), *values), on_the_cpu(text, *values))


@pytest.mark.parametrize("dtype", ["int8", "float"])
@pytest.mark.parametrize(
    ("mask", "left", "right"),
    [
        (SHAPE, SHAPE, SHAPE),
        ((5,), SHAPE, (1,)),
        ((3, 1, 1), (4, 1), (1, 5)),
        ((), (4, 5), (3, 1, 1)),
        ((4, 5), (), ()),
    ],
)
def test_where(mask: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    text = with_inputs("Where (m, x, z)", [("m", "bool", mask), ("x", dtype, left), ("z", dtype, right)], dtype)
    values: list[Array] = [np.random.default_rng(2).random(mask) < 0.5, some(left, dtype), some(right, dtype)[...] // 2]
    values = [np.asarray(value) for value in values]
    assert equal(run(context_model(text), *values), [np.where(*values)])


def test_pads_of_16_bits() -> None:
    """ai.qdqtool::Pad: what Pad is for types that onnxruntime pads."""
    own = 'ai.qdqtool.Pad <pads = [0, 1, -1, 2, 0, 1], mode = "constant"> (x, c)'
    text = with_inputs(own, [("x", "int16", SHAPE)], "int16").replace("(int16 y0)", "(int16 y0) <int16 c = {-7}>")
    x = some(SHAPE, "int8").astype(np.int16) * 100
    wanted = np.pad(x[:, :, 1:], [(0, 2), (1, 0), (0, 1)], constant_values=-7)
    assert equal(run(context_model(text), x), [wanted])


@pytest.mark.parametrize(
    ("call", "inputs", "values", "reason"),
    [
        ("GatherElements (x, i)", ["i", [2, 4, 5]], np.full((2, 4, 5), 3), "index 3 is outside an axis of 3"),
        ("GatherElements (x, i)", ["i", [2, 5, 5]], np.zeros((2, 5, 5), int), "do not fit"),
        ("GatherND (x, i)", ["i", [1, 2]], np.array([[0, -5]]), "index -5 is outside an axis of 4"),
        ("GatherND (x, i)", ["i", [1, 4]], np.zeros((1, 4), int), "name more axes than"),
        ("GatherND <batch_dims = 1> (x, i)", ["i", [2, 1]], np.zeros((2, 1), int), "differ in their first axes"),
        ("ScatterElements (x, i, x)", ["i", [2, 4, 5]], np.zeros((2, 4, 5), int), "scatters"),
        ('ScatterND <reduction = "add"> (x, i, x)', ["i", [3, 1]], np.zeros((3, 1), int), "reduces"),
        ("ScatterND (x, i, x)", ["i", [3, 1]], np.array([[0], [3], [1]]), "index 3 is outside an axis of 3"),
    ],
)
def test_refusals(call: str, inputs: list[object], values: Array, reason: str) -> None:
    name, shape = inputs
    text = with_inputs(call, [("x", "int8", SHAPE), (str(name), "int64", shape)], "int8")  # type: ignore[list-item]
    with pytest.raises(Exception, match=reason):
        run(context_model(text), some(SHAPE, "int8"), np.asarray(values, np.int64))
