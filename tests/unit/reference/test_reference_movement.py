"""Operators that move integers, in the reference against onnxruntime without optimization: tolerance 0, any scale.

Where the encoding stays, the integers do; where it changes, each is requantized once, by division in float32 as QuantizeLinear does
it. Scales are powers of two there, so that halves are ties in both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes.numerics.encoding import Encoding

from tests.cases.qdq_units import FIXED_POINT, SHIFT, Unit, pow2
from tests.properties.graphs import DETERMINISTIC
from tests.unit.reference.random_units import Random, other_grid, sizes

SEEDS = st.integers(0, 2**32 - 1)


def moved(
    random: Random, shape: list[int], op_type: str, *inputs: Any, outputs: int = 1, opset: int = 21, **attributes: Any
) -> Unit:
    """``op_type`` on one activation of ``shape``, each output stored alike or otherwise; other inputs are constants."""
    unit, grid = Unit(random, opset=opset), pow2(random)
    others = ["" if other is None else unit.constant(np.asarray(other)) for other in inputs]
    values = unit.node_of(outputs, op_type, [unit.activation(shape, grid), *others], **attributes)
    for value in values:
        unit.store(value, other_grid(grid, random))
    return unit


def reshape(r: Random) -> Unit:
    return moved(
        r, [2, 3, 4], "Reshape", np.array([[0, -1], [-1, 6], [4, 0, 2], [0, 0, 2, 2]][r.integers(4)], np.int64)
    )


def flatten(r: Random) -> Unit:
    return moved(r, [2, 3, 4 * int(r.integers(2))], "Flatten", axis=int(r.integers(-3, 4)))


def transpose(r: Random) -> Unit:
    given = {} if r.integers(3) == 0 else {"perm": [int(v) for v in r.permutation(4)]}
    return moved(r, [2, 3, 4, 5], "Transpose", **given)


def squeeze(r: Random) -> Unit:
    return moved(r, [2, 1, 3, 1], "Squeeze", np.array([[1], [3], [-1, 1], [1, 3]][r.integers(4)], np.int64))


def squeeze_of_opset_11(r: Random) -> Unit:
    return moved(r, [2, 1, 3, 1], "Squeeze", opset=11, axes=[1, 3])


def unsqueeze(r: Random) -> Unit:
    return moved(r, [2, 3], "Unsqueeze", np.array([[0], [-1], [1, 3], [4, 0, 2]][r.integers(4)], np.int64))


def gather(r: Random) -> Unit:
    indices = r.integers(-3, 3, [(), (2,), (2, 2)][r.integers(3)])
    return moved(r, [3, 4, 5], "Gather", indices, axis=int(r.integers(-3, 3)))


def expand(r: Random) -> Unit:
    return moved(r, [2, 1, 3], "Expand", np.array([[2, 4, 3], [1], [3, 2, 1, 1]][r.integers(3)], np.int64))


def tile(r: Random) -> Unit:
    return moved(r, [2, 1, 3], "Tile", np.array(sizes(r, 1, 3, 3), np.int64))


def identity(r: Random) -> Unit:
    return moved(r, [2, 3], "Identity")


def cut(r: Random) -> Unit:
    """Slice with bounds in the data, before and behind it, forwards and backwards."""
    axes = r.permutation(3)[: r.integers(1, 4)]
    starts, ends = (r.integers(-7, 8, axes.size) for _ in range(2))
    steps = r.choice([1, 2, -1, -3], axes.size)
    starts = np.where((steps > 0) & (starts >= 2), 0, starts)
    ends = np.where(r.integers(0, 4, axes.size) == 0, np.sign(steps) * np.iinfo(np.int64).max, ends)
    return moved(r, [3, 4, 5], "Slice", starts, ends, axes - 3 * int(r.integers(2)), steps)


def split(r: Random) -> Unit:
    """By sizes, evenly, and by a number of outputs that does not divide."""
    kind = r.integers(3)
    if kind == 0:
        return moved(r, [2, 6], "Split", np.array([1, 2, 3]), outputs=3, axis=-1)
    if kind == 1:
        return moved(r, [2, 6], "Split", outputs=2, axis=1, num_outputs=2)
    return moved(r, [2, 7], "Split", outputs=3, axis=1, num_outputs=3)


def pad(r: Random) -> Unit:
    """All modes of an NPU, with elements cut off, too; the constant is a number that the input can store."""
    mode = str(r.choice(["constant", "reflect", "edge"]))
    pads, axes = r.integers(-1, 3, 4), np.array([[2, 3], [-1, 1]][r.integers(2)])
    unit, grid = Unit(r), pow2(r)
    given = np.float32(grid.scale[0] * int(r.integers(-20, 20))) if r.integers(2) and mode == "constant" else None
    others = [unit.constant(pads), "" if given is None else unit.constant(given), unit.constant(axes)]
    value = unit.node("Pad", [unit.activation([1, 4, 4, 5], grid), *others], mode=mode)
    unit.store(value, other_grid(grid, r))
    return unit


def depth_to_space(r: Random) -> Unit:
    return moved(r, [2, 8, 2, 3], "DepthToSpace", blocksize=2, mode=str(r.choice(["DCR", "CRD"])))


def space_to_depth(r: Random) -> Unit:
    return moved(r, [2, 3, 4, 6], "SpaceToDepth", blocksize=2)


def resize(r: Random) -> Unit:
    """By scales or sizes, of all axes or some; every mode is tested where indices are (test_resize)."""
    modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"} if r.integers(2) else {}
    if r.integers(2):
        return moved(
            r, [1, 2, 3, 4], "Resize", None, None, np.array([1, 2, *sizes(r, 1, 9, 2)]), mode="nearest", **modes
        )
    scales = r.choice([2.0, 0.5, 3.0], 2).astype(np.float32)
    return moved(r, [1, 2, 3, 4], "Resize", None, scales, axes=[2, 3], mode="nearest", **modes)


def resize_of_opset_10(r: Random) -> Unit:
    return moved(r, [1, 2, 3, 4], "Resize", np.array([1, 1, 2, 0.5], np.float32), opset=10)


def concat(r: Random) -> Unit:
    """Inputs of several encodings, one of them constant."""
    unit, axis = Unit(r), int(r.integers(-3, 3))
    first = pow2(r)
    grids = [first, other_grid(first, r), other_grid(first, r)]
    values = [unit.activation([2, 3, 4], grid) for grid in grids[:2]]
    values.append(unit.stored(r.integers(0, 100, (2, 3, 4)), grids[2], pair=bool(r.integers(2))))
    unit.store(unit.node("Concat", values, axis=axis), other_grid(first, r))
    return unit


CASES: tuple[Callable[[Random], Unit], ...] = (
    reshape, flatten, transpose, squeeze, squeeze_of_opset_11, unsqueeze, gather, expand, tile, identity, cut, split, pad,
    depth_to_space, space_to_depth, resize, resize_of_opset_10, concat,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@settings(DETERMINISTIC, max_examples=10)
@given(seed=SEEDS)
def test_movement_is_that_of_onnxruntime(case: Callable[[Random], Unit], seed: int) -> None:
    unit = case(np.random.default_rng(seed))
    wanted = unit.onnxruntime()
    for arithmetic in (SHIFT, FIXED_POINT):
        found = unit.reference(arithmetic)
        assert [(f.dtype, f.shape) for f in found] == [(w.dtype, w.shape) for w in wanted]
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@settings(DETERMINISTIC, max_examples=10)
@given(seed=SEEDS)
def test_integers_of_one_encoding_move_as_they_are(seed: int) -> None:
    """Whatever the scale: Q(DQ(q)) = q."""
    random = np.random.default_rng(seed)
    grid = Encoding.per_tensor(
        ir.DataType.UINT8, float(np.float32(random.uniform(1e-4, 10))), int(random.integers(256))
    )
    unit = Unit(random)
    value = unit.node("Transpose", [unit.activation([3, 5], grid)])
    unit.store(value, grid)
    np.testing.assert_array_equal(unit.reference(FIXED_POINT)[0], unit.onnxruntime()[0])


def test_an_average_pool_behind_a_pad_counts_its_zeros() -> None:
    """What some exporters write for count_include_pad; no pair stands between. (0 + 4) / 2 and (2 + 0) / 2."""
    unit, grid = Unit(np.random.default_rng(0)), Encoding.per_tensor(ir.DataType.INT8, 1.0, 5)
    x = unit.activation([1, 1, 2], grid)
    unit.feeds["x0"] = np.array([[[4, 2]]], np.float32)
    padded = unit.node("Pad", [x, unit.constant(np.array([0, 0, 1, 0, 0, 1]))])
    unit.store(unit.node("AveragePool", [padded], kernel_shape=[2], strides=[2]), grid)
    assert unit.reference(SHIFT)[0].tolist() == unit.onnxruntime()[0].tolist() == [[[7, 6]]]


def test_a_factor_of_a_sigmoid_is_part_of_its_table() -> None:
    """HardSigmoid times 2731/2^14·6, as the DPU has it: one table, rounded once."""
    unit, grid = Unit(np.random.default_rng(0)), Encoding.per_tensor(ir.DataType.INT8, 2.0**-5)
    value = unit.node("HardSigmoid", [unit.activation([1, 64], grid)], alpha=1 / 6)
    unit.store(unit.node("Mul", [value, unit.constant(np.float32(2731 / 2**14 * 6))]), grid)
    np.testing.assert_array_equal(unit.reference(SHIFT)[0], unit.onnxruntime()[0])
