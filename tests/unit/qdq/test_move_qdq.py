"""Edits of where pairs stand, on what ONNX text cannot write down and on files that onnxruntime's quantizer writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from qdq_passes.graph.dump import dump
from qdq_passes.graph.edit import Namer, new_constant
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.exact import Rounding, on_grid
from qdq_passes.qdq.look.pairs import qdq_pairs
from qdq_passes.select.selectors import Selector, select

from qdqtool.io.models.load import load
from tests.cases.small_models import model, parsed
from tests.golden.numerics import outputs_of

FLOAT_MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,8,8] x) => (float[N,4] y)
<float[4,3,3,3] w, float[4] b, float[4,4,1,1] v, float[16,4] g, int64[2] flat = {0, -1}, float low = {0.0}, float high = {6.0}>
{
  [conv] a = Conv<pads: ints = [1,1,1,1]>(x, w, b)
  [relu] r = Clip(a, low, high)
  [pool] p = MaxPool<kernel_shape: ints = [2,2], strides: ints = [2,2]>(r)
  [conv2] c = Conv(p, v)
  [cat] e = Concat<axis: int = 1>(p, c)
  [move] t = Transpose<perm: ints = [0,2,3,1]>(e)
  [back] f = Transpose<perm: ints = [0,3,1,2]>(t)
  [one] h, k = Split<axis: int = 1>(f)
  [add] s = Add(h, k)
  [pool2] m = MaxPool<kernel_shape: ints = [2,2], strides: ints = [2,2]>(s)
  [shape] n = Reshape(m, flat)
  [gemm] y = Gemm(n, g)
}"""


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Three random feeds."""

    def __init__(self) -> None:
        self._feeds = iter(
            [{"x": np.random.default_rng(i).normal(size=(2, 3, 8, 8)).astype(np.float32)} for i in range(3)]
        )

    def get_next(self) -> Mapping[str, npt.NDArray[Any]] | None:
        return next(self._feeds, None)


@pytest.fixture(scope="module")
def float_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network whose activations pass everything that moves values."""
    random, shapes = np.random.default_rng(0), {"w": (4, 3, 3, 3), "b": (4,), "v": (4, 4, 1, 1), "g": (16, 4)}
    proto = parsed(FLOAT_MODEL, {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()})
    path = tmp_path_factory.mktemp("float") / "model.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(proto), path)
    return path


KINDS: dict[str, dict[str, Any]] = {
    "u8s8": {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8},
    "s8s8 per channel": {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8, "per_channel": True},
    "u16s8": {
        "activation_type": QuantType.QUInt16, "weight_type": QuantType.QInt8, "extra_options": {"UseQDQContribOps": True}
    },
    "dedicated": {
        "activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8, "extra_options": {"DedicatedQDQPair": True}
    },
    "pairs on weights": {
        "activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8, "extra_options": {"AddQDQPairToWeight": True}
    },
}  # fmt: skip


@pytest.fixture(params=KINDS)
def quantized(request: pytest.FixtureRequest, float_model: Path, tmp_path: Path) -> ir.Model:
    """The network as onnxruntime's static quantizer leaves it."""
    path = tmp_path / "quantized.onnx"
    quantize_static(float_model, path, Reader(), quant_format=QuantFormat.QDQ, **KINDS[request.param])
    return load(path)


def pair_count(graph: ir.Model) -> int:
    return sum(pair.kind == "activation" for pair in qdq_pairs(graph))


@pytest.mark.parametrize(
    "pipeline",
    [
        "move-qdq", "move-qdq{direction=up}", "move-qdq{direction=up},move-qdq", "fold-qdq", "share-qdq", "dedicate-qdq",
        "dedicate-qdq,share-qdq", "infer-shapes,move-qdq{direction=up},fold-weight-qdq,fold-qdq",
    ],
)  # fmt: skip
def test_files_of_onnxruntime(quantized: ir.Model, pipeline: str) -> None:
    """Every output stays bit for bit; the quantized network has several pairs that may go."""
    before, pairs = outputs_of(quantized), pair_count(quantized)
    report = run_pipeline(quantized, pipeline, hooks=[VerifyEach()])
    after = outputs_of(quantized)
    assert {name: a.tobytes() for name, a in after.items()} == {name: a.tobytes() for name, a in before.items()}
    if "move" in pipeline:
        assert report.modified
        assert pair_count(quantized) < pairs
    if pipeline == "dedicate-qdq":
        assert pair_count(quantized) > pairs or not report.modified


class Unreadable(ir.Tensor[npt.NDArray[np.int8]]):
    """Stored integers whose data nobody may look at."""

    def numpy(self) -> npt.NDArray[np.int8]:
        raise AssertionError("was read")

    def tobytes(self) -> bytes:
        raise AssertionError("was read")


@pytest.mark.parametrize("name", ["move-qdq", "move-qdq{direction=up}", "share-qdq", "dedicate-qdq", "fold-qdq"])
def test_large_weights_are_not_read(name: str) -> None:
    """Where integers stay as they are, their file may be as large as it likes."""
    graph = model(
        """g (float[1,2] x) => (float[1,2] y) <int8[2,2] w_quantized = {1, 2, 3, 4}, float s = {0.5}, float r = {0.5}>
        { [dq] d = DequantizeLinear(w_quantized, s) [dq2] e = DequantizeLinear(w_quantized, r)
          [m] t = MatMul(x, d) [n] u = MatMul(t, d) [o] y = MatMul(u, e) }"""
    )
    data = np.ones((2, 2), np.int8)
    value = new_constant(graph.graph, Namer(graph), "large_quantized", Unreadable(data, name="large"))
    for node in list(graph.graph)[:2]:
        node.replace_input_with(0, value)
    run_pipeline(graph, name)
    assert "w_quantized" in graph.graph.initializers
    assert value.uses()


def test_a_moved_pair_is_still_found_by_its_old_names() -> None:
    graph = model(
        """g (float[2] x) => (float[2] y) <float s = {0.5}, int8 z = {0}>
        { [q] i = QuantizeLinear(x, s, z) [dq] d = DequantizeLinear(i, s, z) [r] t = Relu(d) [n] y = Neg(t) }"""
    )
    run_pipeline(graph, "move-qdq")
    assert [node.name for node in select(graph, Selector.of("q")).nodes] == ["t_QuantizeLinear"]
    assert [node.name for node in select(graph, Selector.of("dq")).nodes] == ["t_DequantizeLinear"]


@pytest.mark.parametrize("direction", ["down", "up"])
def test_nodes_in_any_order(direction: str) -> None:
    """The order of the file is not that of the data: pairs go as far all the same."""
    nodes = [
        "[q] i = QuantizeLinear(b, s)",
        "[r] a = Relu(x)",
        "[t] b = Transpose(a)",
        "[dq] d = DequantizeLinear(i, s)",
    ]
    nodes += ["[u] e = Transpose(d)", "[v] f = Flatten(e)", "[n] y = Neg(f)"]
    texts = [" ".join(order) for order in (nodes, nodes[::-1], nodes[3:] + nodes[:3])]
    found = []
    for text in texts:
        graph = model(f"g (float[2,2] x) => (float[2,2] y) <float s = {{0.5}}> {{ {text} }}")
        run_pipeline(graph, f"move-qdq{{direction={direction}}},sort")
        found.append([pair.tensor for pair in qdq_pairs(graph)])
    assert found == [["f" if direction == "down" else "x"]] * 3


def test_empty_names_and_outputs() -> None:
    """A Split with an output that has no name, a Clip with a bound left out."""
    graph = model(
        """g (float[2,2] x) => (float[1,2] y) <float s = {0.5}, float high = {1.0}>
        { [q] i = QuantizeLinear(x, s) [dq] d = DequantizeLinear(i, s) [c] e = Clip(d, "", high)
          [p] a, b = Split<axis: int = 0, num_outputs: int = 2>(e) [n] y = Neg(a) }"""
    )
    split = graph.graph[3]
    split.outputs[1].name = ""
    run_pipeline(graph, "move-qdq", hooks=[VerifyEach()])
    assert [pair.tensor for pair in qdq_pairs(graph)] == ["a"]
    assert "QuantizeLinear(%a" in dump(graph)


@pytest.mark.parametrize(
    ("low", "scale", "good"),
    [
        (-64.0, (0.5,), True),  # -128·0.5, the least number of the grid
        (-64.5, (0.5,), False),  # beyond it
        (0.25, (0.5,), False),
        (0.5, (0.5, 0.25), True),  # on both grids
        (0.25, (0.5, 0.25), False),  # on one of them
        (-0.0, (0.5,), False),  # F(-0) = +0 has other bits
    ],
)
def test_a_number_on_the_grid(low: float, scale: tuple[float, ...], good: bool) -> None:
    per_axis = {"shape": (len(scale),), "axis": 1} if len(scale) > 1 else {}
    encoding = Encoding(dtype=ir.DataType.INT8, scale=scale, zero_point=(0,) * len(scale), **per_axis)  # type: ignore[arg-type]
    rounding = Rounding(encoding, ir.DataType.FLOAT, "", ())
    assert on_grid(np.array(low, np.float32), rounding, rank=2) == good
    assert on_grid(np.array(low, np.float32), rounding, rank=2, beyond="below") == (good or low == -64.5)
