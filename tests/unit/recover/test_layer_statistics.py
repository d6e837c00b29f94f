"""Layers as matrices: their rows times their columns are what onnxruntime computes; statistics of them, in memory and in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.graph.edit import set_constant
from qdq_passes.graph.uses import constant_array
from qdq_passes.numerics.layer_form import columns
from qdq_passes.qdq.look.weighted_layers import WeightedLayer, weighted_layer, weighted_layers

from qdqtool.calibrate.layer_sums import collect_statistics, moment_bytes
from qdqtool.calibrate.statistics import Statistics, combined, merge
from qdqtool.io.feeds.array_store import writing_arrays
from qdqtool.runtime.session import open_session
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

Array = npt.NDArray[Any]

#: name → (shape of x, shape of w, operator and attributes; x and w in their order).
#: Said of statistics without layers.
GOOD = {"kind": "statistics", "version": 1, "samples": 1, "model_sha256": "", "data_sha256": "", "layers": {}}
LAYERS = {
    "conv": ([2, 4, 6, 7], [6, 4, 3, 2], "Conv(x, w)"),
    "conv grouped": ([1, 4, 6, 7], [6, 2, 3, 3], "Conv<group: int = 2, pads: ints = [1,0,2,1]>(x, w)"),
    "conv depthwise": ([1, 4, 9, 9], [4, 1, 3, 3], "Conv<group: int = 4, strides: ints = [2,3], dilations: ints = [2,1]>(x, w)"),
    "conv same upper": ([1, 2, 7, 8], [3, 2, 4, 3], 'Conv<auto_pad: string = "SAME_UPPER", strides: ints = [2,2]>(x, w)'),
    "conv same lower": ([1, 2, 7, 8], [3, 2, 4, 3], 'Conv<auto_pad: string = "SAME_LOWER", strides: ints = [3,2]>(x, w)'),
    "conv valid": ([1, 2, 7, 8], [3, 2, 4, 3], 'Conv<auto_pad: string = "VALID">(x, w)'),
    "conv 1d": ([2, 3, 11], [4, 3, 5], "Conv<pads: ints = [2,1], dilations: ints = [2]>(x, w)"),
    "conv 3d": ([1, 2, 4, 5, 4], [3, 2, 2, 3, 2], "Conv<strides: ints = [1,2,1]>(x, w)"),
    "transposed": ([1, 4, 5, 4], [4, 3, 3, 2], "ConvTranspose(x, w)"),
    "transposed strided": (
        [2, 4, 5, 4], [4, 3, 3, 4],
        "ConvTranspose<strides: ints = [2,3], pads: ints = [1,0,1,2], output_padding: ints = [1,0]>(x, w)",
    ),
    "transposed grouped": ([1, 4, 4, 4], [4, 2, 3, 3], "ConvTranspose<group: int = 2, dilations: ints = [2,1]>(x, w)"),
    "transposed pads beyond": ([1, 2, 5, 5], [2, 3, 2, 2], "ConvTranspose<pads: ints = [2,1,1,2]>(x, w)"),
    "transposed shape": (
        [1, 2, 4, 5], [2, 3, 3, 3], "ConvTranspose<strides: ints = [2,2], output_shape: ints = [8,10]>(x, w)",
    ),
    "transposed same": (
        [1, 2, 4, 5], [2, 3, 3, 3], 'ConvTranspose<strides: ints = [2,2], auto_pad: string = "SAME_UPPER">(x, w)',
    ),
    "gemm": ([5, 3], [3, 4], "Gemm(x, w)"),
    "gemm turned": ([3, 5], [4, 3], "Gemm<transA: int = 1, transB: int = 1, alpha: float = 0.5>(x, w)"),
    "gemm of constant": ([3, 5], [4, 3], "Gemm(w, x)"),
    "gemm of constant turned": ([5, 3], [3, 4], "Gemm<transA: int = 1, transB: int = 1>(w, x)"),
    "matmul": ([2, 5, 3], [3, 4], "MatMul(x, w)"),
    "matmul of constant": ([2, 3, 5], [4, 3], "MatMul(w, x)"),
    "matmul batched": ([7, 2, 5, 3], [2, 3, 4], "MatMul(x, w)"),
    "matmul batched, shared data": ([5, 3], [2, 3, 4], "MatMul(x, w)"),
    "matmul vector": ([2, 3], [3], "MatMul(x, w)"),
    "matmul of vector": ([3], [3, 4], "MatMul(x, w)"),
}  # fmt: skip


def layer_model(shape: list[int], weight: list[int], call: str, *, seed: int = 3) -> tuple[ir.Model, Array]:
    """One layer with random weights, and data for it."""
    random = np.random.default_rng(seed)
    sizes = ",".join(map(str, shape))
    made = model(f"g (float[{sizes}] x) => (float y) <float w = {{1}}> {{ [layer] y = {call} }}")
    made.graph.outputs[0].shape = None
    set_constant(made.graph.initializers["w"], random.standard_normal(weight).astype(np.float32))
    return made, random.standard_normal(shape).astype(np.float32)


def only_layer(made: ir.Model) -> WeightedLayer:
    layer = weighted_layer(made.graph[0])
    assert isinstance(layer, WeightedLayer)
    return layer


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("strip", [1 << 22, 40])
def test_rows_times_columns(name: str, strip: int) -> None:
    """W·x over all vectors holds the same numbers as what onnxruntime computes: equal sums and sums of squares, output by output."""
    made, data = layer_model(*LAYERS[name])
    layer = only_layer(made)
    weight = constant_array(layer.stored)
    assert weight is not None
    vectors = np.concatenate(list(columns(layer.form, data, strip=strip)), axis=1).astype(np.float64)
    rows = layer.form.rows(weight).astype(np.float64)
    assert rows.shape == layer.form.sizes
    assert np.array_equal(layer.form.weight(layer.form.rows(weight)), weight)
    ours = np.einsum("grk,gnk->grn", rows, vectors) * layer.form.factor
    (theirs,) = open_session(made).run({"x": data}).values()
    if layer.form.kind == "product" and layer.form.sizes[0] > 1:
        flat = np.moveaxis(theirs, -3, 0).reshape(layer.form.sizes[0], -1, layer.form.sizes[1]).swapaxes(1, 2)
    elif layer.form.kind == "product":
        channel_last = np.swapaxes(theirs, -1, -2) if layer.form.is_first else theirs
        flat = channel_last.reshape(1, -1, layer.form.sizes[1]).swapaxes(1, 2)
    else:
        flat = np.moveaxis(theirs, 1, 0).reshape(*layer.form.sizes[:2], -1)
    assert flat.shape == ours.shape
    np.testing.assert_allclose(ours, flat, atol=1e-4)  # sums of up to 36 products of numbers up to 3: 36·9·2^-24 = 2e-5


@pytest.mark.parametrize("name", LAYERS)
def test_scaling_inputs_and_outputs(name: str) -> None:
    """`along_inputs` and `along_outputs` agree with what scaling data and result does."""
    made, data = layer_model(*LAYERS[name])
    layer = only_layer(made)
    form, weight = layer.form, constant_array(layer.stored)
    assert weight is not None
    outputs, inputs = form.channels
    (plain,) = open_session(made).run({"x": data}).values()
    random = np.random.default_rng(1)
    by = np.exp2(random.integers(-3, 4, inputs))
    scaled = data * by.reshape([-1 if i == form.data_axis(data.ndim) else 1 for i in range(data.ndim)])
    set_constant(layer.stored, (weight / form.along_inputs(by)).astype(np.float32))
    (after,) = open_session(made).run({"x": scaled.astype(np.float32)}).values()
    assert after.tobytes() == plain.tobytes()  # powers of two round nothing
    if weight.ndim > 1:
        by = np.exp2(random.integers(-3, 4, outputs))
        set_constant(layer.stored, (weight * form.along_outputs(by)).astype(np.float32))
        (after,) = open_session(made).run({"x": data}).values()
        wanted = plain * by.reshape([-1 if i == form.output_axis(plain.ndim) else 1 for i in range(plain.ndim)])
        assert after.tobytes() == wanted.astype(np.float32).tobytes()
        set_constant(layer.stored, weight)
        assert layer.form.magnitudes(weight).max() == np.abs(weight).max()


@pytest.mark.parametrize("name", LAYERS)
def test_moments(name: str) -> None:
    made, data = layer_model(*LAYERS[name])
    layer = only_layer(made)
    found = collect_statistics(made, [{"x": data}, {"x": 2 * data}]).layers["layer"]
    vectors = np.concatenate([*columns(layer.form, data), *columns(layer.form, 2 * data)], axis=1).astype(np.float64)
    assert found.mean is not None
    assert found.moment is not None
    assert found.response is not None
    assert found.absmax is not None
    assert found.count == vectors.shape[1]
    np.testing.assert_allclose(found.mean, vectors.mean(axis=1), atol=1e-6)
    wanted = np.einsum("gnk,gnl->gkl", vectors, vectors) / vectors.shape[1]
    np.testing.assert_allclose(found.moment, wanted, atol=1e-5, rtol=1e-5)
    weight = constant_array(layer.stored)
    assert weight is not None
    np.testing.assert_allclose(found.response, np.einsum("grk,gk->gr", layer.form.rows(weight), found.mean), atol=1e-6)
    axis = layer.form.data_axis(data.ndim)
    assert np.array_equal(
        found.absmax, 2 * np.abs(data).max(axis=tuple(i for i in range(data.ndim) if i != axis)).reshape(-1)
    )


TWO = """g (float[N,4] x) => (float[N,3] y, float[N,3] z) <float[4,3] v = {1,2,3,4,5,6,7,8,9,1,2,3}, float[4,3] w = {1,2,3,4,5,6,7,8,9,1,2,3}>
{ [a] y = MatMul(x, v) [b] z = MatMul(x, w) }"""


def feeds(count: int, seed: int = 0) -> list[dict[str, Array]]:
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal((5, 4)).astype(np.float32)} for _ in range(count)]


def test_layers_that_read_one_value_share_its_moment() -> None:
    found = collect_statistics(model(TWO), feeds(3))
    assert found.layers["a"].moment is found.layers["b"].moment
    assert moment_bytes(model(TWO)) == 4 * 4 * 4


def test_several_readings_give_the_same() -> None:
    made = model(
        """g (float[N,4] x) => (float[N,3] y) <float[4,4] v = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}, float[4,3] w = {1,2,3,4,5,6,7,8,9,1,2,3}>
        { [a] t = MatMul(x, v) [b] y = MatMul(t, w) }"""
    )
    ticks: list[tuple[int, int | None]] = []
    once = collect_statistics(made, feeds(3))
    often = collect_statistics(made, feeds(3), memory=1, progress=lambda done, total: ticks.append((done, total)))
    assert once.sha256 == often.sha256
    assert [done for done, _ in ticks] == [1, 2, 3, 4, 5, 6]
    parts = [collect_statistics(made, feeds(3), layers=[name]) for name in ("a", "b")]
    assert combined(*parts).sha256 == once.sha256
    with refusal(UsageError):
        collect_statistics(made, iter(feeds(3)), memory=1)


def test_files(tmp_path: Path) -> None:
    """A file written at once, one written layer by layer and the record in memory are the same; and come back."""
    made, path = model(TWO), tmp_path / "s.npz"
    found = collect_statistics(made, feeds(3))
    found.write(path)
    direct = collect_statistics(made, feeds(3), file=tmp_path / "d.npz")
    assert path.read_bytes() == (tmp_path / "d.npz").read_bytes()
    read = Statistics.read(path)
    assert read.sha256 == found.sha256 == direct.sha256
    assert (read.samples, read.model_sha256, read.data_sha256) == (3, found.model_sha256, found.data_sha256)
    assert set(read.layers) == {"a", "b"}
    one, other = found.layers["b"].arrays(), read.layers["b"].arrays()
    assert all(np.array_equal(one[field], other[field]) and one[field].dtype == other[field].dtype for field in one)
    assert len(np.load(path).files) == 4 + 1 + 1 - 1  # four arrays, the response of b equals that of a, and about
    with refusal(UsageError):
        found.write(path, overwrite=False)


def test_magnitudes_of_one_model_and_moments_of_another(tmp_path: Path) -> None:
    made = model(TWO)
    first = collect_statistics(made, feeds(3), wanted=["magnitudes"])
    assert set(first.layers["a"].arrays()) == {"absmax"}
    both = collect_statistics(made, feeds(3), wanted=["means", "moments"], before=first)
    assert set(both.layers["a"].arrays()) == {"absmax", "mean", "response", "moment"}
    stored = collect_statistics(made, feeds(3), wanted=["means", "moments"], before=first, file=tmp_path / "f.npz")
    assert stored.sha256 == both.sha256


def test_merging_is_adding_samples() -> None:
    made = model(TWO)
    whole = collect_statistics(made, feeds(5))
    parts = merge(collect_statistics(made, feeds(5)[:2]), collect_statistics(made, feeds(5)[2:]))
    assert (parts.samples, parts.data_sha256) == (5, whole.data_sha256)
    for name in ("a", "b"):
        for field, array in whole.layers[name].arrays().items():
            np.testing.assert_allclose(parts.layers[name].arrays()[field], array, rtol=1e-6, atol=1e-6)
    with refusal(UsageError):
        merge(whole, collect_statistics(made, feeds(2), layers=["a"]))


def test_bad_statistics(tmp_path: Path) -> None:
    made = model(TWO)
    with refusal(UsageError):
        collect_statistics(made, feeds(1), layers=["c"])
    with refusal(UsageError):
        collect_statistics(made, feeds(1), wanted=["medians"])  # type: ignore[list-item]
    with refusal(UsageError):
        collect_statistics(made, [])
    with refusal(UsageError):
        Statistics.read(tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"no zip")
    with refusal(ModelError):
        Statistics.read(tmp_path / "bad.npz")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with refusal(ModelError):
        Statistics.read(tmp_path / "other.npz")
    for payload in (
        {"kind": "ranges"},
        {"kind": "statistics", "version": 9},
        {"kind": "statistics", "version": 1},
        ["kind"],
        {"kind": "statistics", "version": "x"},
        {**GOOD, "layers": []},
        {**GOOD, "layers": {"a": {"size": 3}}},
        {**GOOD, "samples": "3"},
        {**GOOD, "data_sha256": "x"},
    ):
        with writing_arrays(tmp_path / "about.npz") as writer:
            writer.about(payload)  # type: ignore[arg-type]
        with refusal(ModelError):
            Statistics.read(tmp_path / "about.npz")


def test_arrays_that_are_no_statistics(tmp_path: Path) -> None:
    for array in (np.array(["a"]), np.array([np.nan])):
        with writing_arrays(tmp_path / "about.npz") as writer:
            writer.about({**GOOD, "layers": {"a": {"count": 1, "mean": writer.add(array)}}})
        with pytest.raises(ModelError, match="holds no finite numbers"):
            Statistics.read(tmp_path / "about.npz").layers["a"]


def test_what_is_no_weighted_layer() -> None:
    made = model(
        """g (float[2,2] x, float[2,2] z) => (float[2,2] y) <float[2,2] w = {1,2,3,4}, float[2,2] e = {1,2,3,4}>
        { [two] a = MatMul(x, z) [none] b = MatMul(w, e) [relu] c = Relu(a) [layer] d = MatMul(c, w) [sum] y = Add(b, d) }"""
    )
    assert [layer.name for layer in weighted_layers(made)] == ["layer"]
