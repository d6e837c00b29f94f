"""search-scales: no row gets worse by its own measure, on layers of every form and grid; the plan; what it gains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from qdq_passes.graph.annotate import ENCODING
from qdq_passes.graph.uses import constant_array
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.weighted_layers import WeightedLayer, weighted_layers
from qdq_passes.recover.look.rounding import Grid, quadratic_error, round_rows
from qdq_passes.recover.look.scale_search import Segments, compensating, nearest_on, search_scales

import qdqtool
from qdqtool.calibrate.layer_sums import collect_statistics
from qdqtool.verbs.planned import Planned
from tests.cases.cli_helpers import SAMPLES
from tests.cases.small_nets import small_net
from tests.unit.recover.test_layer_statistics import LAYERS, layer_model
from tests.unit.recover.test_round_weights import EVERY, grid_of

Array = npt.NDArray[Any]
STATISTICS = "{statistics=@statistics}"


def _errors(layer: WeightedLayer, weight: Array, values: Array, moment: Array) -> Array:
    return np.asarray(quadratic_error(layer.form.rows(weight), layer.form.rows(values), moment))


@pytest.mark.parametrize("rounding", ["nearest", "compensated"])
@pytest.mark.parametrize(("name", "grid"), EVERY)
@pytest.mark.product(cover=("name", "grid"), extra=2)
def test_every_layer_on_every_grid(name: str, grid: str, rounding: str) -> None:
    """With the rounding it was told of no row has a larger error than before (all of a weight together with one scale)."""
    made, data = layer_model(*LAYERS[name])
    made.opset_imports[""], made.ir_version = 21, 10
    weight = constant_array(made.graph.initializers["w"])
    assert weight is not None
    old = grid_of(grid, weight)
    ENCODING.set(made.graph.initializers["w"], old)
    statistics = {"statistics": collect_statistics(made, [{"x": data}]).layers}
    run_pipeline(made, "insert-qdq")
    moment = statistics["statistics"]["layer"].moment
    assert moment is not None
    errors = []
    for search in ("", f"search-scales{{statistics=@statistics rounding={rounding}}},"):
        tried = made.clone()
        rounds = f"round-weights{STATISTICS}" if rounding == "compensated" else "infer-shapes"
        run_pipeline(tried, f"{search}{rounds}", inputs=statistics)
        (layer,) = weighted_layers(tried)
        stored = layer.float_weight
        assert stored is not None
        assert layer.pair is not None
        new = layer.pair.encoding
        assert new is not None
        assert (new.dtype, new.zero_point, new.axis, new.block_size) == (
            old.dtype,
            old.zero_point,
            old.axis,
            old.block_size,
        )
        assert (new.position is None) == (old.position is None)
        errors.append(_errors(layer, weight, dequantize(quantize(stored, new), new), moment))
    before, after = errors if old.axis is not None else [each.sum() for each in errors]
    assert np.all(after <= before)


@given(
    data=arrays.arrays(np.float32, (12, 6), elements=st.floats(-4, 4, width=32)),
    rows=arrays.arrays(np.float32, (1, 3, 6), elements=st.floats(-4, 4, width=32)),
    is_one=st.booleans(),
    power_of_two=st.booleans(),
    compensated=st.booleans(),
)
def test_never_worse(data: Array, rows: Array, is_one: bool, power_of_two: bool, compensated: bool) -> None:
    """Whatever the inputs: rows of zeros, inputs that are always 0 or always alike; two scales a row, or one for all."""
    of = np.zeros(6, np.int64) if is_one else np.repeat([0, 1], 3)
    index = np.zeros((1, 3, 1), np.int64) if is_one else np.arange(6).reshape(1, 3, 2)
    start = np.full((1, 3, index.shape[2]), 0.5)
    grid = Grid(scale=start[..., of], zero=np.zeros(()), low=-8, high=7, dtype=np.dtype(np.float32))
    moment = (data.T.astype(np.float64) @ data / len(data))[None]
    wide = rows.astype(np.float64)
    rounding = compensating(wide, moment, damping=0.01, sweeps=1) if compensated else None
    found, before, after = search_scales(
        rows, grid, Segments(of=of, index=index, is_one=is_one), moment, rounding=rounding, power_of_two=power_of_two
    )
    chosen = Grid(scale=found[..., of], zero=np.zeros((1, 3, 6)), low=-8, high=7, dtype=grid.dtype)
    integers = (rounding or nearest_on(wide))(chosen)
    error = quadratic_error(wide, chosen.values(integers), moment).sum()
    assert error == pytest.approx(after, rel=1e-12, abs=1e-300)
    assert after <= before
    assert (found > 0).all()
    assert not power_of_two or np.array_equal(np.exp2(np.rint(np.log2(found))), found)


def test_gains_on_blocks_and_behind_compensation() -> None:
    """Gaussian rows in blocks of 16 with 4 bits at max/7, correlated inputs: 1 dB at least, half of that where compensated."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((400, 64)) @ (np.eye(64) + 0.3 * random.standard_normal((64, 64)))
    moment, rows = (vectors.T @ vectors / 400)[None], random.standard_normal((1, 16, 64))
    start = np.abs(rows.reshape(1, 16, 4, 16)).max(axis=3) / 7
    of, index = np.repeat(np.arange(4), 16), np.arange(64).reshape(1, 16, 4)
    grid = Grid(scale=start[..., of], zero=np.zeros(()), low=-8, high=7, dtype=np.dtype(np.float64))
    segments = Segments(of=of, index=index, is_one=False)
    _, before, after = search_scales(rows, grid, segments, moment)
    assert after < before * 10**-0.1
    plain = nearest_on(rows)(grid.laid_out(rows.shape))
    rounded = quadratic_error(rows, grid.values(round_rows(rows, grid, plain, moment)), moment).sum()
    _, before, after = search_scales(
        rows, grid, segments, moment, rounding=compensating(rows, moment, damping=0.01, sweeps=2)
    )
    assert before == rounded
    assert after < before * 10**-0.05


def test_the_plan() -> None:
    """It stands behind the pairs and before what refines them, and knows how integers are chosen later."""
    alone = str(Planned(preset="w4-g32", search_scales=True).plan().materialise)
    assert alone.endswith("insert-qdq,search-scales{statistics=@statistics narrow=false},fold-weight-qdq")
    text = str(Planned(preset="xint8", search_scales=True, round_weights=True, correct_bias=True).plan().materialise)
    assert (
        "insert-qdq{narrow"
        not in text.partition("search-scales{statistics=@statistics rounding=compensated centred=true}")[2]
    )
    assert text.index("search-scales") < text.index("round-weights")
    assert not {"search-scales", "rotate-decoder"} & set(str(Planned(preset="w4-g32").plan().pipeline).split(","))


def test_quantize_searches() -> None:
    """A weight-only preset of per-channel int4 gains more than 1.5 dB on the ViT, data the same and others."""
    model, data = str(SAMPLES / "vit_block.onnx"), "random:16:1"
    plain, searched = (
        qdqtool.quantize(model, preset="coreml-c4w", data=data, search_scales=wanted).comparison
        for wanted in (None, True)
    )
    assert plain is not None
    assert searched is not None
    pairs = zip(searched.outputs, plain.outputs, strict=True)
    gains = [new.agreement.sqnr_db - old.agreement.sqnr_db for new, old in pairs]
    assert min(gains) > 1.5


def test_it_stands_beside_learned_rounding(tmp_path: Path) -> None:
    """Scales are searched on sums, integers learned on samples; statistics have both, so that a replay needs no data."""
    options: dict[str, Any] = {"preset": "a8w8", "search_scales": True, "learn_rounding": True, "no_provenance": True}
    net, data = small_net("gated", tmp_path)
    first = qdqtool.quantize(net, tmp_path / "first.onnx", data=data, save_statistics=tmp_path / "s.npz", **options)
    assert "search-scales{statistics=@statistics rounding=compensated" in str(first.quantization.plan.materialise)
    ranges = tmp_path / "r.json"
    first.quantization.ranges.write(ranges)
    qdqtool.quantize(net, tmp_path / "second.onnx", ranges=ranges, statistics=tmp_path / "s.npz", **options)
    assert (tmp_path / "first.onnx").read_bytes() == (tmp_path / "second.onnx").read_bytes()
