"""round-weights and correct-bias on layers of every form and grid: never worse than rounding to the nearest, exactly on the grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from qdq_passes.graph.annotate import ENCODING
from qdq_passes.graph.uses import constant_array
from qdq_passes.numerics.encoding import Encoding, encoding_of_weight
from qdq_passes.numerics.moments import LayerStatistics
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.pairs import qdq_pairs
from qdq_passes.qdq.look.weighted_layers import weighted_layers
from qdq_passes.recover.look.rounding import Grid, quadratic_error, round_rows

from qdqtool.calibrate.layer_sums import collect_statistics
from qdqtool.runtime.session import open_session
from tests.cases.small_models import model
from tests.unit.recover.test_layer_statistics import LAYERS, layer_model

Array = npt.NDArray[Any]


def grid_of(name: str, weight: Array) -> Encoding:
    """Encodings of the kinds that presets choose; ``blocked`` along the first axis, two numbers a block."""
    dtype = {"uint8": ir.DataType.UINT8, "int16": ir.DataType.INT16}.get(
        name, ir.DataType.INT4 if "int4" in name else ir.DataType.INT8
    )
    if name == "int4 blocked":
        blocks = (
            np.abs(np.stack([part.max(axis=0) for part in np.array_split(np.abs(weight), -(-len(weight) // 2))])) / 7
            + 0.01
        )
        scale = np.asarray(blocks, np.float32)
        return Encoding(
            dtype=dtype,
            scale=tuple(scale.ravel().tolist()),
            zero_point=(0,) * scale.size,
            shape=scale.shape,
            axis=0,
            block_size=2,
        )
    return encoding_of_weight(
        weight, 0 if "axis" in name else None, dtype=dtype, symmetric=name != "uint8", power_of_two="pow2" in name
    )


GRIDS = ["int8", "int8 pow2", "int8 axis", "uint8", "int16", "int4", "int4 axis", "int4 blocked"]


#: A vector has no scales along its first axis beside one each.
EVERY = [
    (name, grid)
    for name in LAYERS
    for grid in GRIDS
    if len(LAYERS[name][1]) > 1 or not {"axis", "blocked"} & set(grid.split())
]


@pytest.mark.product(cover=("name", "grid"), extra=4)
@pytest.mark.parametrize(("name", "grid"), EVERY)
def test_every_layer_on_every_grid(name: str, grid: str) -> None:
    """No row has a larger error than with rounding to the nearest, the weights lie on the grid, folding stores just those."""
    made, data = layer_model(*LAYERS[name])
    made.opset_imports[""], made.ir_version = 21, 10
    weight = constant_array(made.graph.initializers["w"])
    assert weight is not None
    encoding = grid_of(grid, weight)
    ENCODING.set(made.graph.initializers["w"], encoding)
    statistics = collect_statistics(made, [{"x": data}]).layers
    run_pipeline(made, "insert-qdq")
    before = weighted_layers(made)[0]
    assert before.pair is not None
    report = run_pipeline(made, "round-weights{statistics=@statistics}", inputs={"statistics": statistics})
    (layer,) = weighted_layers(made)
    rounded = layer.float_weight
    assert rounded is not None
    integers = quantize(rounded, encoding)
    assert np.array_equal(dequantize(integers, encoding), rounded) or not report.modified
    nearest = dequantize(quantize(weight, encoding), encoding)
    moment = statistics["layer"].moment
    assert moment is not None
    errors = [
        quadratic_error(layer.form.rows(weight), layer.form.rows(v), moment)
        for v in (dequantize(integers, encoding), nearest)
    ]
    assert (errors[0] <= errors[1]).all()
    pair = next(pair for pair in qdq_pairs(made) if pair.kind == "weight")
    before_fold = next(iter(open_session(made).run({"x": data}).values()))
    run_pipeline(made, "fold-weight-qdq")
    stored = next(p for p in qdq_pairs(made) if p.tensor == pair.tensor).stored
    assert stored is not None
    found = constant_array(stored)
    assert found is not None
    assert np.array_equal(found.astype(np.int64), integers.astype(np.int64))
    after_fold = next(iter(open_session(made).run({"x": data}).values()))
    assert after_fold.tobytes() == before_fold.tobytes()


@given(
    data=arrays.arrays(np.float32, (12, 5), elements=st.floats(-4, 4, width=32)),
    rows=arrays.arrays(np.float32, (1, 3, 5), elements=st.floats(-4, 4, width=32)),
    bits=st.sampled_from([1, 3, 7]),
    damping=st.sampled_from([0.0, 0.01, 1.0]),
)
def test_never_worse(data: Array, rows: Array, bits: int, damping: float) -> None:
    """Whatever the inputs: rows of zeros, inputs that are always 0 or always alike."""
    high = 2**bits - 1
    scale = np.maximum(np.abs(rows).max(), 1e-3) / high
    grid = Grid(scale=np.float32(scale), zero=np.zeros(()), low=-high, high=high, dtype=np.dtype(np.float32))
    moment = (data.T.astype(np.float64) @ data / len(data))[None]
    nearest = np.clip(np.rint(rows / np.float32(scale)), -high, high)
    found = round_rows(rows, grid, nearest, moment, damping=damping)
    assert np.array_equal(found, np.rint(found))
    assert np.abs(found).max() <= high
    assert (
        quadratic_error(rows, grid.values(found), moment) <= quadratic_error(rows, grid.values(nearest), moment)
    ).all()


def test_correlated_inputs_gain() -> None:
    """Inputs of rank 2 in 64 numbers leave 62 directions in which errors cost nothing: at least 10 dB."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((200, 2)) @ random.standard_normal((2, 64)) + 0.01 * random.standard_normal(
        (200, 64)
    )
    moment = (vectors.T @ vectors / 200)[None]
    rows = random.standard_normal((1, 8, 64)).astype(np.float32)
    grid = Grid(scale=np.float32(0.25), zero=np.zeros(()), low=-8, high=7, dtype=np.dtype(np.float32))
    nearest = np.clip(np.rint(rows / np.float32(0.25)), -8, 7)
    before = quadratic_error(rows, grid.values(nearest), moment).sum()
    plain = quadratic_error(rows, grid.values(round_rows(rows, grid, nearest, moment, sweeps=0)), moment).sum()
    swept = quadratic_error(rows, grid.values(round_rows(rows, grid, nearest, moment, sweeps=4)), moment).sum()
    assert plain < before / 10
    assert swept <= plain * 1.001  # sweeps lower the damped error


def test_moments_that_are_not_positive_are_damped() -> None:
    """float32 noise makes a moment slightly indefinite."""
    moment = np.full((1, 3, 3), 1.0)
    moment[0, 0, 0] -= 1e-7
    rows = np.full((1, 1, 3), 0.4, np.float32)
    grid = Grid(scale=np.ones(()), zero=np.zeros(()), low=-7, high=7, dtype=np.dtype(np.float32))
    found = round_rows(rows, grid, np.zeros((1, 1, 3)), moment, damping=0.0)
    assert found.sum() == 1


def test_narrow_leaves_out_the_most_negative_integer() -> None:
    """Sixteen numbers at −7.45 steps on inputs that are all alike: some at −8 make up for those at −7, if −8 is allowed."""
    numbers = ", ".join(["-0.93125"] * 16)
    text = f"""g (float[1,16] x) => (float[1,1] y) <float[16,1] w = {{{numbers}}}, float s = {{0.125}}, int4 z = {{0}}>
    {{ [q] i = QuantizeLinear(w, s, z) [dq] d = DequantizeLinear(i, s, z) [mul] y = MatMul(x, d) }}"""
    lowest = {}
    for narrow in ("true", "false"):
        made = model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
        statistics = {"mul": LayerStatistics(count=1, moment=np.ones((1, 16, 16), np.float32))}
        run_pipeline(
            made, f"round-weights{{statistics=@statistics narrow={narrow}}}", inputs={"statistics": statistics}
        )
        weight = constant_array(made.graph.initializers["w"])
        assert weight is not None
        lowest[narrow] = float(quantize(weight, Encoding.per_tensor(ir.DataType.INT4, 0.125)).astype(int).min())
    assert lowest == {"true": -7, "false": -8}


@pytest.mark.parametrize("name", [name for name, (_, _, call) in LAYERS.items() if "MatMul" not in call])
def test_corrected_means(name: str) -> None:
    """With a float bias the mean of every output is that of the float layer, to float32 rounding of the sums."""
    shape, sizes, call = LAYERS[name]
    made, data = layer_model(shape, sizes, call)
    made.opset_imports[""], made.ir_version = 21, 10
    data = data + np.float32(1.5)
    (wanted,) = open_session(made).run({"x": data}).values()
    weight = constant_array(made.graph.initializers["w"])
    assert weight is not None
    ENCODING.set(made.graph.initializers["w"], grid_of("int4", weight))
    statistics = collect_statistics(made, [{"x": data}]).layers
    run_pipeline(made, "insert-qdq{weights=dq}")
    layer = weighted_layers(made)[0]
    axis = layer.form.output_axis(wanted.ndim)
    others = tuple(i for i in range(wanted.ndim) if i != axis)
    off = np.abs(open_session(made).run({"x": data})["y"].mean(axis=others) - wanted.mean(axis=others)).max()
    run_pipeline(made, "correct-bias{statistics=@statistics}", inputs={"statistics": statistics})
    left = np.abs(open_session(made).run({"x": data})["y"].mean(axis=others) - wanted.mean(axis=others)).max()
    assert off > 1e-3
    assert left < 1e-4  # means of sums of up to 36 products of numbers up to 5: 36·15·2^-24·3 = 1e-4
