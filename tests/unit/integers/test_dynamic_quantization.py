"""insert- and remove-dynamic-quantization: numbers against numpy, and the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.graph.dump import dump
from qdq_passes.integers.look.dynamic_quantization import dynamic_groups
from qdq_passes.integers.look.integer_ops import integer_tensors
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.io.models.load import model_of
from tests.cases.integer_models import feed_of
from tests.cases.quantized_files import DYNAMIC_NET, net, quantized_dynamic
from tests.cases.small_models import checked, model, operators, run

ROWS = (
    "g (float[3,4] x) => (float[3,4] y) <float[4,4] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}> { [mm] y = MatMul(x, w) }"
)
#: A row of zeros, a row of tiny numbers, a row with an outlier.
X = np.array([[0, 0, 0, 0], [1e-30, -2e-30, 3e-30, 1.5e-30], [0.1, -0.2, 100.0, 0.3]], np.float32)


def test_per_tensor_numbers() -> None:
    """DynamicQuantizeLinear's definition, float32 throughout: the identity weight shows the quantized values."""
    graph = model(ROWS)
    run_pipeline(graph, "insert-dynamic-quantization", hooks=[VerifyEach()])
    low, high = min(X.min(), np.float32(0)), max(X.max(), np.float32(0))
    scale = (high - low) / np.float32(255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    expected = (np.clip(np.rint(X / scale) + zero, 0, 255) - zero) * scale
    assert np.array_equal(run(checked(graph), {"x": X})["y"], expected.astype(np.float32))


@pytest.mark.parametrize(("dtype", "epsilon"), [("float", 2.0**-126), ("float16", 2.0**-14), ("double", 2.0**-1022)])
@pytest.mark.parametrize("opset", [13, 21])
def test_per_token_numbers(dtype: str, epsilon: float, opset: int) -> None:
    """Every step rounds to the type once: max|x| / 127, x / s, the product; zeros stay zeros, an outlier hurts its own row only."""
    numpy_type: Any = {"float": np.float32, "float16": np.float16, "double": np.float64}[dtype]
    identity = np.eye(4, dtype=numpy_type).ravel()
    numbers = identity.view(np.uint16) if dtype == "float16" else identity
    text = f"{', '.join(str(v) for v in numbers)}"
    graph = model(
        f'<ir_version: 8, opset_import: ["" : {opset}]>'
        f"g ({dtype}[3,4] x) => ({dtype}[3,4] y) <{dtype}[4,4] w = {{{text}}}> {{ [mm] y = MatMul(x, w) }}"
    )
    run_pipeline(graph, "insert-dynamic-quantization{granularity=per-token}", hooks=[VerifyEach()])
    x = X.astype(numpy_type)
    scale = np.maximum(np.abs(x).max(-1, keepdims=True) / numpy_type(127), numpy_type(epsilon))
    expected = np.clip(np.rint(x / scale), -127, 127) * scale
    found = run(checked(graph), {"x": x})["y"]
    assert found.dtype == numpy_type
    assert np.array_equal(found, expected.astype(numpy_type))
    assert np.abs(found[2] - x[2]).max() <= float(scale[2, 0]) * 0.51
    assert not found[0].any()


@pytest.mark.parametrize("granularity", ["per-tensor", "per-token"])
@pytest.mark.parametrize("readers", ["linear", "all"])
def test_there_and_back(granularity: str, readers: str) -> None:
    """remove∘insert is the identity, to the last name; every group is listed; a second insertion finds nothing to do."""
    graph = model_of(net(DYNAMIC_NET))
    before = dump(graph)
    text = f"insert-dynamic-quantization{{granularity={granularity} readers={readers}}}"
    report = run_pipeline(graph, text, hooks=[VerifyEach()])
    inserted = [change.where for change in report.changes if change.kind == "insert"]
    assert {"linear": ["a"], "all": ["a", "m"]}[readers] == [name for name in inserted if name in ("a", "m")]
    groups = dynamic_groups(graph)
    assert [group.source.name for group in groups] == sorted(inserted, key=[g.source.name for g in groups].index)
    assert {group.spread for group in groups} == {granularity}
    assert {t.tensor for t in integer_tensors(graph) if t.form == "dynamic"} == set(inserted)
    run(checked(graph), feed_of(net(DYNAMIC_NET)))
    middle = dump(graph)
    assert not run_pipeline(graph, text).modified
    assert dump(graph) == middle
    run_pipeline(graph, "remove-dynamic-quantization", hooks=[VerifyEach()])
    assert dump(graph) == before


def test_names_do_not_matter() -> None:
    """The nodes are recognised by structure: names and provenance of files of other tools are others, or none."""
    graph = model(ROWS)
    before = [node.op_type for node in graph.graph]
    run_pipeline(graph, "insert-dynamic-quantization{granularity=per-token}")
    for k, node in enumerate(graph.graph):
        node.name = f"n{k}"
        node.metadata_props.clear()
        node.meta.clear()
        for value in node.outputs:
            if not value.is_graph_output():
                value.name = f"v{k}"
    run_pipeline(graph, "remove-dynamic-quantization")
    assert [node.op_type for node in graph.graph] == before


def test_what_onnxruntime_quantizes(tmp_path: Path) -> None:
    """Ours and onnxruntime's dynamic quantization pick the same activations: inputs of MatMul and Conv with stored weights. (An LSTM
    it quantizes inside of its own operator.)"""
    theirs = model_of(quantized_dynamic(tmp_path / "q.onnx"))
    ours = model_of(net(DYNAMIC_NET))
    run_pipeline(ours, "insert-dynamic-quantization")
    assert quantized(theirs) == quantized(ours) == {"a", "im"}
    run_pipeline(theirs, "convert-qoperators,remove-dynamic-quantization", hooks=[VerifyEach()])
    assert not any("Dynamic" in op for op in operators(theirs))


def quantized(graph: ir.Model) -> set[str | None]:
    return {node.inputs[0].name for node in graph.graph if node.op_type == "DynamicQuantizeLinear" and node.inputs[0]}


def test_what_was_moved_goes_too() -> None:
    """Integers of a DynamicQuantizeLinear that are transposed before the product: nothing dynamic is left of them."""
    graph = model(
        """g (float[2,2] a, float[2,2] b) => (float[2,2] y) { [qa] i, s, z = DynamicQuantizeLinear(a)
        [qb] j, t, u = DynamicQuantizeLinear(b) [trans] k = Transpose(j) [mm] p = MatMulInteger(i, k, z, u)
        [cast] c = Cast<to: int = 1>(p) [both] f = Mul(s, t) [scale] y = Mul(c, f) }"""
    )
    feed = feed_of_two()
    before = run(graph, feed)["y"]
    run_pipeline(graph, "convert-qoperators", hooks=[VerifyEach()])
    # two products per sum, in float32 instead of int32
    assert np.abs(run(graph, feed)["y"] - before).max() <= 4 * 2.0**-24 * np.abs(before).max()
    run_pipeline(graph, "remove-dynamic-quantization", hooks=[VerifyEach()])
    assert operators(graph) == ["Transpose", "MatMul"]


def feed_of_two() -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {name: random.normal(0, 1, (2, 2)).astype(np.float32) for name in "ab"}
