"""The other door: programs as ordinary models, their operators from `register_custom_ops_library`."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from qdqtool.npu.payload import write_payload
from tests.cases.small_models import parsed
from tests.npu.small_programs import HEADER, MIXED, RUNTIME, context_model, equal, feed, library, mixed, run

HEAD = '<ir_version: 8, opset_import: ["" : 17, "ai.qdqtool" : 1]>\n'
R = 'mode = "integer", rounding = "half_even", overflow = "saturate", y_zero_point = 3, y_type = 3'
#: Every operator with a shape of its own, chained without value_info: types and shapes must be inferred on the way.
CHAIN = (
    HEAD
    + f"""
chain (uint8[N, 4, 9, 9] x) => (int8[A, B, C, D] conv, int8[E, F, G, H] up, int8[I, J, K, L] pool, int8[O, P] mean, int8[Q, R] product)
<int32[1] m = {{1073741824}}, int32[1] s = {{36}}>
{{
  conv = ai.qdqtool.Conv <{R}, x_zero_point = 128, w_zero_points = [0], kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 0, 0],
                          dilations = [1, 1], group = 2> (x, w, zeros, m, s)
  up = ai.qdqtool.ConvTranspose <{R}, x_zero_point = 3, w_zero_points = [0], kernel_shape = [2, 2], strides = [2, 2], pads = [0, 0, 0, 0],
                                 dilations = [1, 1], group = 1, output_padding = [0, 0]> (conv, u, more_zeros, m, s)
  pool = ai.qdqtool.AveragePool <{R}, x_zero_point = 3, kernel_shape = [3, 3], strides = [2, 2], pads = [0, 0, 0, 0], ceil_mode = 1,
                                 count_include_pad = 0, dilations = [1, 1], multiplier = 1073741824, shift = 30> (up)
  mean = ai.qdqtool.ReduceMean <{R}, x_zero_point = 3, axes = [2, 3], keepdims = 0, multiplier = 1073741824, shift = 30> (pool)
  looked = ai.qdqtool.Lookup (mean, table)
  squared = ai.qdqtool.Mul <{R}, a_zero_point = 3, b_zero_point = 3, multiplier = 1073741824, shift = 34> (looked, mean)
  product = ai.qdqtool.MatMul <{R}, a_zero_point = 3, b_zero_points = [0]> (squared, v, last_zeros, m, s)
}}
"""
)


def chain() -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    shapes, sizes = {"w": (6, 2, 3, 3), "u": (6, 5, 2, 2), "v": (5, 7)}, {"zeros": 6, "more_zeros": 5, "last_zeros": 7}
    weights = {name: rng.integers(-127, 128, shape).astype(np.int8) for name, shape in shapes.items()}
    zeros = {name: np.zeros(size, np.int32) for name, size in sizes.items()}
    return parsed(CHAIN, {**weights, **zeros, "table": np.arange(-128, 128).astype(np.int8)[::-1].copy()})


def with_operators(model: onnx.ModelProto, threads: int = 1) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, threads
    options.register_custom_ops_library(str(library()))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def test_a_program_is_a_model() -> None:
    model = onnx.parser.parse_model(MIXED)
    for batch in (1, 2, 5):
        found = with_operators(model).run(None, {"x": feed(batch)})
        assert equal(found, mixed(feed(batch)))
        assert equal(found, run(context_model(), feed(batch)))


@pytest.mark.parametrize("threads", [1, 2])
def test_types_and_shapes_are_inferred(threads: int) -> None:
    session = with_operators(chain(), threads)
    shapes = {o.name: o.shape for o in session.get_outputs()}
    assert [shapes[n][1:] for n in ("conv", "up", "pool", "mean", "product")] == [
        [6, 4, 4], [5, 8, 8], [5, 4, 4], [5], [7],
    ]  # fmt: skip
    x = np.random.default_rng(2).integers(0, 256, (3, 4, 9, 9)).astype(np.uint8)
    found = session.run(None, {"x": x})
    assert [y.shape for y in found] == [(3, 6, 4, 4), (3, 5, 8, 8), (3, 5, 4, 4), (3, 5), (3, 7)]
    assert all(len(np.unique(y)) > 3 for y in found), "the numbers say nothing"
    assert equal(found, run(context_model(CHAIN, write_payload(HEADER, chain().SerializeToString())), x))


def test_a_bias_may_be_left_out() -> None:
    """onnxruntime 1.23 would crash over it, and is not told that it may."""
    model = chain()
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name.endswith("zeros"):
                node.input[index] = ""
    x = np.random.default_rng(2).integers(0, 256, (3, 4, 9, 9)).astype(np.uint8)
    if RUNTIME < 24:
        with pytest.raises(Exception, match="marked single but has an empty string"):
            with_operators(model)
    else:
        assert equal(with_operators(model).run(None, {"x": x}), with_operators(chain()).run(None, {"x": x}))
    assert equal(
        run(context_model(CHAIN, write_payload(HEADER, model.SerializeToString())), x),
        with_operators(chain()).run(None, {"x": x}),
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("shift = 34", 'shift = "34"', "attribute 'shift' is unknown, or has another type than Mul has it"),
        ("(looked, mean)", "(looked)", "Mul"),
        ("multiplier = 1073741824, shift = 34> (looked", "shift = 34> (looked", "'multiplier' is missing"),
        ("axes = [2, 3]", "axes = [2, 9]", "ReduceMean"),
    ],
)
def test_wrong_nodes_are_refused(old: str, new: str, reason: str) -> None:
    model = chain()
    text = CHAIN.replace(old, new)
    if old not in CHAIN:
        pytest.fail(f"{old} is not in the model")
    wrong = onnx.parser.parse_model(text)
    wrong.graph.initializer.extend(i for i in model.graph.initializer if i.name not in {"m", "s"})
    with pytest.raises(Exception, match=reason):
        with_operators(wrong).run(None, {"x": np.zeros((1, 4, 9, 9), np.uint8)})


def test_an_input_that_no_kernel_takes_names_the_node() -> None:
    model = onnx.parser.parse_model(
        HEAD + f"m (float[2] x) => (int8[2] y) {{ [bad] y = ai.qdqtool.Mul <{R}, a_zero_point = 0, b_zero_point = 0, "
        "multiplier = 1, shift = 0> (x, x) }"
    )
    with pytest.raises(Exception, match=r"node 'bad' \(Mul\)"):
        with_operators(model)
