"""unpack-matmul-nbits: weights against numpy at tolerance zero, products against onnxruntime's own operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from qdq_passes.graph.uses import constant_array
from qdq_passes.integers.look.integer_ops import integer_tensors
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.io.models.load import model_of
from tests.cases.integer_models import MICROSOFT, pack, packed
from tests.cases.small_models import Array, checked, operators, run

CASES: dict[str, dict[str, Any]] = {
    "4 bits": {"k": 32, "n": 5},
    "rest of a block": {"k": 40, "n": 5},
    "less than a block": {"k": 10, "n": 3, "zero": "packed"},
    "one row over": {"k": 33, "n": 4, "block": 32, "zero": "packed"},
    "zero points": {"k": 40, "n": 5, "zero": "packed"},
    "float zero points": {"k": 40, "n": 5, "zero": "float"},
    "fractions": {"k": 40, "n": 5, "zero": "fraction"},
    "8 bits": {"k": 40, "n": 5, "bits": 8},
    "8 bits, zero points": {"k": 40, "n": 5, "bits": 8, "zero": "packed"},
    "2 bits": {"k": 40, "n": 5, "bits": 2},
    "2 bits, zero points": {"k": 72, "n": 5, "bits": 2, "zero": "packed"},
    "negative scales": {"k": 40, "n": 5, "negative": True},
    "negative scales, zero points": {"k": 40, "n": 5, "negative": True, "zero": "packed"},
    "bias": {"k": 64, "n": 5, "block": 32, "bias": True},
    "float16": {"k": 40, "n": 5, "dtype": np.float16, "zero": "packed"},
}


def array_of(value: ir.Value) -> Array:
    array = constant_array(value)
    assert array is not None
    return array


@pytest.mark.newest
@pytest.mark.parametrize("weights", ["dq", "float"])
@pytest.mark.parametrize("case", CASES)
def test_weights_and_products(case: str, weights: str) -> None:
    """The weight is exact. Products of float32 are sums of K ≤ 72 in another order: K·2^-24 of Σ|w·x|, here K·max|w|·max|x|;
    onnxruntime sums float16 in float16, 2^-11 each."""
    options = CASES[case]
    source, expected = packed(**options)
    model = model_of(source)
    run_pipeline(model, f"unpack-matmul-nbits{{weights={weights}}}", hooks=[VerifyEach()])
    assert MICROSOFT not in " ".join(operators(checked(model)))
    is_stored = weights == "dq" and options.get("zero") != "fraction"
    assert ("DequantizeLinear" in operators(model)) == is_stored
    product = next(node for node in model.graph if node.op_type == "MatMul")
    weight = product.inputs[1]
    assert weight is not None
    found = (
        constant_array(weight) if not is_stored else run(_with_output(model, weight), _feed(options))[weight.name or ""]
    )
    assert found is not None
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)
    feed = _feed(options)
    before, after = run(source, feed)["y"].astype(np.float64), run(model, feed)["y"]
    step = 2.0**-11 if found.dtype == np.float16 else 2.0**-24
    largest = np.abs(expected.astype(np.float64)).max() * np.abs(feed["x"].astype(np.float64)).max()
    assert np.abs(before - after).max() <= 2 * options["k"] * step * options["k"] ** 0.5 * largest


def _feed(options: dict[str, Any]) -> dict[str, Any]:
    return {"x": np.random.default_rng(7).normal(0, 1, (3, options["k"])).astype(options.get("dtype", np.float32))}


def _with_output(model: ir.Model, value: ir.Value) -> ir.Model:
    if value not in model.graph.outputs:
        model.graph.outputs.append(value)
    return model


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("stored", ["packed", "int4", "uint4"])
def test_tables(stored: str, zero: bool) -> None:
    """GatherBlockQuantized with blocks along the last axis, its table in packed bytes or in 4-bit integers: equal to the bit."""
    random = np.random.default_rng(0)
    low = -8 if stored == "int4" else 0
    integers, scales = random.integers(low, low + 16, (6, 32)), random.uniform(0.01, 0.1, (6, 2)).astype(np.float32)
    scales[2, 1] *= -1
    default = 8 if stored == "packed" else 0
    points = random.integers(low, low + 16, (6, 2)) if zero else np.full((6, 2), default)

    def tensor(array: Array, name: str) -> onnx.TensorProto:
        if stored == "packed":
            return numpy_helper.from_array(pack(array.astype(np.uint8), 4), name)
        return helper.make_tensor(name, getattr(TensorProto, stored.upper()), array.shape, array.ravel().tolist())

    node = helper.make_node(
        "GatherBlockQuantized", ["t_Q4", "ids", "s", *(["z"] if zero else [])], ["y"], "emb", domain=MICROSOFT,
        bits=4, block_size=16, gather_axis=0, quantize_axis=1,
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("ids", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 32])],
        [tensor(integers, "t_Q4"), numpy_helper.from_array(scales, "s"), *([tensor(points, "z")] if zero else [])],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    source = helper.make_model(graph, opset_imports=imports, ir_version=10)
    model = model_of(source)
    (listed,) = integer_tensors(model)
    assert (listed.tensor, listed.form, listed.kind) == ("t", "nbits", "weight")
    run_pipeline(model, "unpack-matmul-nbits", hooks=[VerifyEach()])
    feed = {"ids": np.array([5, 0, 2])}
    expected = (integers - np.repeat(points, 16, 1)).astype(np.float32) * np.repeat(scales, 16, 1)
    assert np.array_equal(run(checked(model), feed)["y"], expected[[5, 0, 2]])
    assert np.array_equal(run(source, feed)["y"], expected[[5, 0, 2]])


def test_identity_order_is_no_order() -> None:
    """A g_idx that says k / block_size says nothing."""
    source, expected = packed(40, 5)
    source.graph.node[0].input[4] = "g_idx"
    source.graph.initializer.append(numpy_helper.from_array((np.arange(40) // 16).astype(np.int32), "g_idx"))
    model = model_of(source)
    run_pipeline(model, "unpack-matmul-nbits{weights=float}")
    (weight,) = model.graph.initializers.values()
    assert np.array_equal(array_of(weight), expected)


@pytest.mark.newest
def test_files_of_onnxruntime() -> None:
    """What onnxruntime's own 4-bit quantizer makes of a MatMul, in both of its forms: the same weights."""
    quantizer = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    random = np.random.default_rng(0)
    weight = random.normal(0, 1, (48, 6)).astype(np.float32)
    results = []
    for form in (quantizer.QuantFormat.QOperator, quantizer.QuantFormat.QDQ):
        for symmetric in (True, False):
            model = onnx.parser.parse_model(
                '<ir_version: 10, opset_import: ["" : 21]> g (float[2,48] x) => (float[2,6] y) { [mm] y = MatMul(x, w) }'
            )
            model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
            maker = quantizer.MatMulNBitsQuantizer(model, 4, 16, symmetric, quant_format=form)
            maker.process()
            edited = model_of(maker.model.model)
            run_pipeline(edited, "unpack-matmul-nbits,remove-qdq", hooks=[VerifyEach()])
            assert operators(edited) == ["MatMul"]
            (left,) = [v for v in edited.graph.initializers.values() if v.dtype == ir.DataType.FLOAT]
            results.append(array_of(left))
    assert np.array_equal(results[0], results[2])
    assert np.array_equal(results[1], results[3])
