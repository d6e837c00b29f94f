"""Operators computed exactly: bit for bit what onnxruntime gives; nothing where a runtime may round otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from qdq_passes.graph.evaluate.exact import exact
from qdq_passes.graph.evaluate.walk import walk

from tests.cases.small_models import model

Array = npt.NDArray[Any]
RNG = np.random.default_rng(1)
X = RNG.standard_normal((2, 3, 4), np.float32)
Y = RNG.standard_normal((3, 1), np.float32)
K = RNG.integers(-9, 9, (2, 3))
J = np.array([[2], [-3]])
B = np.array([[True, False, True], [False, False, True]])


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


#: operator, attributes, inputs; opset 21 unless told.
CASES: list[tuple[str, dict[str, Any], list[Array | None]]] = [
    *[(op, {}, [X, Y]) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Greater", "LessOrEqual", "Equal", "Sum")],
    *[(op, {}, [K, J]) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Greater", "GreaterOrEqual", "Less", "Equal")],
    *[(op, {}, [B, B[:1]]) for op in ("And", "Or", "Xor", "Equal")],
    *[(op, {}, [X]) for op in ("Abs", "Neg", "Floor", "Ceil", "Sign", "Identity", "IsNaN")],
    *[(op, {}, [K]) for op in ("Abs", "Neg", "Sign", "NonZero")],
    ("Sqrt", {}, [np.abs(X)]), ("Not", {}, [B]), ("NonZero", {}, [B]), ("Pow", {}, [K, i64(2)]),
    ("Mod", {}, [K, J]), ("Mod", {"fmod": 1}, [K, J]), ("Where", {}, [B, K, J]), ("Where", {}, [B[:, :, None], X, Y]),
    ("Cast", {"to": TensorProto.FLOAT}, [K]), ("Cast", {"to": TensorProto.INT32}, [X]), ("Cast", {"to": TensorProto.BOOL}, [K]),
    ("Cast", {"to": TensorProto.FLOAT16}, [X]), ("Cast", {"to": TensorProto.INT64}, [B]),
    ("Concat", {"axis": 1}, [K, J]), ("Concat", {"axis": -1}, [K, J]),
    ("Expand", {}, [J, i64(2, 1, 5)]), ("Tile", {}, [K, i64(2, 1)]), ("Transpose", {"perm": [1, 0]}, [K]), ("Transpose", {}, [X]),
    ("Reshape", {}, [X, i64(0, -1)]), ("Reshape", {"allowzero": 1}, [X[:, :0], i64(3, 0)]), ("Flatten", {"axis": 2}, [X]),
    ("Squeeze", {}, [J, i64(1)]), ("Squeeze", {}, [J]), ("Unsqueeze", {}, [K, i64(0, -1)]),
    ("Gather", {"axis": 1}, [X, np.array([[0, -1]])]), ("Gather", {}, [K, np.array(1)]),
    ("GatherElements", {"axis": 1}, [K, np.array([[0, -1], [2, 1]])]), ("GatherND", {}, [X, np.array([[0, 1], [1, -1]])]),
    ("ScatterND", {}, [K, np.array([[0], [1]]), K[::-1].copy()]),
    ("Slice", {}, [X, i64(1, -3), i64(9, -1), i64(1, 2)]), ("Slice", {}, [X, i64(-1), i64(-99), i64(2), i64(-2)]),
    ("Slice", {}, [X, i64(3), i64(1), i64(2)]), ("Slice", {}, [X, i64(0), i64(2**63 - 1)]),
    ("Range", {}, [np.array(3), np.array(-4), np.array(-2)]), ("Range", {}, [np.array(3), np.array(3), np.array(1)]),
    ("Range", {}, [np.array(0, np.float32), np.array(5, np.float32), np.array(2, np.float32)]),
    ("ConstantOfShape", {}, [i64(2, 3)]), ("ConstantOfShape", {"value": numpy_helper.from_array(i64(7))}, [i64(2)]),
    ("ConstantOfShape", {"value": numpy_helper.from_array(i64(7))}, [i64()]),
    ("CumSum", {}, [K, np.array(1)]), ("Trilu", {}, [X, np.array(1)]), ("Trilu", {"upper": 0}, [K]),
    ("ReduceMax", {}, [X, i64(1)]), ("ReduceMin", {"keepdims": 0}, [X, i64(0, 2)]), ("ReduceSum", {}, [K]),
    ("ReduceSum", {"noop_with_empty_axes": 1}, [K]), ("ReduceProd", {"keepdims": 0}, [K, i64(0)]),
    ("Clip", {}, [X, np.array(-0.5, np.float32)]), ("Clip", {}, [K, np.array(-1), np.array(3)]),
    ("Abs", {}, [np.array(-2.5, np.float16)]), ("Add", {}, [X.astype(np.float64), Y.astype(np.float64)]),
]  # fmt: skip


def node_of(
    op: str, attributes: dict[str, Any], inputs: list[Array | None], outputs: int = 1
) -> tuple[ir.Node, onnx.ModelProto]:
    names = [f"x{k}" if array is not None else "" for k, array in enumerate(inputs)]
    node = helper.make_node(op, names, [f"y{k}" for k in range(outputs)], **attributes)
    graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name=name) for name in node.output])
    for name, array in zip(names, inputs, strict=True):
        if array is not None:
            graph.input.append(
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return ir.from_proto(proto).graph[0], proto


def _is_new(case: tuple[str, dict[str, Any], list[Array | None]]) -> bool:
    """Whether onnxruntime 1.23 fails on it: a reduction without axes that is to do nothing then ("Reduction on all axes")."""
    return "noop_with_empty_axes" in case[1]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{number}-{case[0]}", marks=[pytest.mark.newest] if _is_new(case) else [])
        for number, case in enumerate(CASES)
    ],
)
def test_bits_are_those_of_onnxruntime(case: tuple[str, dict[str, Any], list[Array | None]]) -> None:
    op, attributes, inputs = case
    node, proto = node_of(op, attributes, inputs)
    found = exact(node, inputs, 21)
    assert found is not None
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    computed = session.run(None, {f"x{k}": array for k, array in enumerate(inputs) if array is not None})[0]
    assert (found[0].dtype, found[0].shape) == (computed.dtype, computed.shape)
    assert found[0].tobytes() == computed.tobytes()


@pytest.mark.parametrize("sizes", [None, [1, 2, 1]])
def test_split(sizes: list[int] | None) -> None:
    inputs: list[Array | None] = [X, None if sizes is None else i64(*sizes)]
    attributes = {"axis": 2} if sizes else {"axis": 1, "num_outputs": 3}
    node, proto = node_of("Split", attributes, inputs if sizes else inputs[:1], outputs=3)
    found = exact(node, inputs, 21)
    assert found is not None
    feed = {"x0": X} | ({} if sizes is None else {"x1": i64(*sizes)})
    computed = ort.InferenceSession(proto.SerializeToString()).run(None, feed)
    assert [part.tobytes() for part in found] == [part.tobytes() for part in computed]


@pytest.mark.parametrize(
    ("op", "attributes", "inputs"),
    [
        ("Exp", {}, [X]), ("Cos", {}, [X]), ("Pow", {}, [X, Y]), ("ReduceSum", {}, [X, i64(0)]), ("CumSum", {}, [X, np.array(0)]),
        ("Sum", {}, [X, X, X]), ("MatMul", {}, [X, X]), ("Mod", {"fmod": 1}, [X, Y]),
        ("Cast", {"to": TensorProto.INT32}, [np.array(1e30, np.float32)]),  # out of range: every runtime differs
        ("Cast", {"to": TensorProto.INT32}, [np.array(np.nan, np.float32)]),
        ("Cast", {"to": TensorProto.STRING}, [K]), ("Cast", {"to": TensorProto.BFLOAT16}, [X]),
        ("Range", {}, [np.array(0, np.float32), np.array(1, np.float32), np.array(0.1, np.float32)]),
        ("Div", {}, [K, np.zeros_like(J)]), ("Mod", {}, [K, np.zeros_like(J)]),
        ("Gather", {}, [K, np.array(2)]), ("Reshape", {}, [X, i64(5, -1)]), ("Concat", {"axis": 0}, [K, X[0, 0]]),
        ("GatherND", {"batch_dims": 1}, [X, np.array([[0], [1]])]), ("IsInf", {"detect_negative": 0}, [X]),
    ],
)  # fmt: skip
def test_what_may_differ_is_left_alone(op: str, attributes: dict[str, Any], inputs: list[Array | None]) -> None:
    assert exact(node_of(op, attributes, inputs)[0], inputs, 21) is None


def test_old_opsets() -> None:
    """Axes and bounds as attributes; before opset 7 operators broadcast otherwise."""
    sliced = exact(node_of("Slice", {"starts": [1], "ends": [3], "axes": [2]}, [X])[0], [X], 9)
    assert sliced is not None
    assert sliced[0].tobytes() == X[:, :, 1:3].tobytes()
    squeezed = exact(node_of("Unsqueeze", {"axes": [0]}, [K])[0], [K], 11)
    assert squeezed is not None
    assert squeezed[0].shape == (1, 2, 3)
    assert exact(node_of("Add", {}, [X, Y])[0], [X, Y], 6) is None
    assert exact(node_of("Clip", {"min": 0.0}, [X])[0], [X], 10) is None


def test_what_comes_out_at_an_unknown_size_is_not_computed() -> None:
    """A Tile whose repeats do not fit the rank of its data: numpy makes 268 million elements of 16."""
    text = """g (float[16] x) => (float y) <int8[1,16] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}, int64[1] r = {16777216}>
        { t = Tile (w, r)  f = Cast <to = 1> (t)  y = Add (f, x) }"""
    assert walk(model(text), {}).computed == set()
