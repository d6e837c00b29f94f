"""Shapes of contributed operators: what onnxruntime computes has them, and onnx itself stays as it was."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper
from qdq_passes.graph.shapes.contrib_call import broadcast, product, quotient, total
from qdq_passes.graph.shapes.contrib_shapes import MICROSOFT, RULES, contrib_types, known_to_onnx
from qdq_passes.graph.shapes.inference import infer_shapes

from qdqtool.io.models.load import model_of
from tests.cases.small_models import model

Array = npt.NDArray[Any]
RNG = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


def nbits(bits: int = 4) -> dict[str, Array]:
    packed = RNG.integers(0, 256, (12, 2, 16 * bits // 8), np.uint8)
    return {"x": floats(2, 3, 32), "w": packed, "s": floats(12 * 2)}


HEADS = {"q": floats(1, 3, 16), "k": floats(1, 3, 8), "v": floats(1, 3, 8)}
CACHE = {"pk": floats(1, 1, 5, 8), "pv": floats(1, 1, 5, 8)}
OLD = {"pk": floats(2, 2, 5, 4), "pv": floats(2, 2, 5, 4)}
LENGTHS = {"lengths": np.array([7], np.int32), "total": np.array([8], np.int32)}
TABLES = {"p": np.zeros((2, 3), np.int64), "cos": floats(9, 2), "sin": floats(9, 2)}

#: operator, domain, attributes, inputs (None: left out), outputs.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Array | None], int]] = {
    "grouped": ("GroupQueryAttention", {"num_heads": 2, "kv_num_heads": 1}, {**HEADS, **CACHE, **LENGTHS}, 3),
    "packed": (
        "GroupQueryAttention", {"num_heads": 2, "kv_num_heads": 1},
        {"q": floats(1, 3, 32), "_1": None, "_2": None, **CACHE, **LENGTHS}, 3,
    ),
    "shared": (
        "GroupQueryAttention", {"num_heads": 2, "kv_num_heads": 1},
        {**HEADS, "pk": floats(1, 1, 8, 8), "pv": floats(1, 1, 8, 8), **LENGTHS}, 3,
    ),
    "heads": ("MultiHeadAttention", {"num_heads": 2}, {"q": floats(2, 3, 8), "k": floats(2, 6, 8), "v": floats(2, 6, 12)}, 1),
    "cached": (
        "MultiHeadAttention", {"num_heads": 2},
        {"q": floats(2, 3, 8), "k": floats(2, 3, 8), "v": floats(2, 3, 8), "_3": None, "_4": None, "_5": None, **OLD}, 3,
    ),
    "attention": (
        "Attention", {"num_heads": 2, "unidirectional": 1},
        {"x": floats(2, 3, 8), "w": floats(8, 24), "b": floats(24), "_3": None, "past": floats(2, 2, 2, 5, 4)}, 2,
    ),
    "nbits": ("MatMulNBits", {"K": 32, "N": 12, "bits": 4, "block_size": 16}, {**nbits()}, 1),
    "rotary": ("RotaryEmbedding", {}, {"x": floats(2, 3, 8), **TABLES}, 1),
    "rotary4": ("RotaryEmbedding", {}, {"x": floats(2, 2, 3, 4), **TABLES}, 1),
    "skip": ("SkipLayerNormalization", {}, {"x": floats(2, 3, 8), "skip": floats(2, 3, 8), "g": floats(8)}, 4),
    "simple skip": ("SkipSimplifiedLayerNormalization", {}, {"x": floats(2, 3, 8), "skip": floats(2, 3, 8), "g": floats(8)}, 4),
    "fast": ("FastGelu", {}, {"x": floats(2, 3, 8)}, 1),
    "quick": ("QuickGelu", {}, {"x": floats(2, 3, 8)}, 1),
    "bias": ("BiasGelu", {}, {"x": floats(2, 3, 8), "b": floats(8)}, 1),
    "fused": ("FusedMatMul", {"transB": 1}, {"a": floats(2, 1, 3, 4), "b": floats(5, 6, 4)}, 1),
    "fused A": ("FusedMatMul", {"transA": 1, "alpha": 0.5}, {"a": floats(2, 4, 3), "b": floats(2, 4, 6)}, 1),
    "fused batch": ("FusedMatMul", {"transBatchA": 1}, {"a": floats(3, 2, 4), "b": floats(2, 4, 6)}, 1),
    "dequantize": ("DequantizeLinear", {}, {"x": np.ones((2, 3), np.uint16), "s": np.array(0.5, np.float32)}, 1),
    "quantize": (
        "QuantizeLinear", {}, {"x": floats(2, 3), "s": np.array(0.5, np.float32), "z": np.array(3, np.int16)}, 1,
    ),
    "dynamic": (
        "DynamicQuantizeMatMul", {}, {"a": floats(2, 3, 4), "b": np.ones((4, 5), np.int8), "s": np.array(0.5, np.float32)}, 1,
    ),
    "words": (
        "GatherBlockQuantized", {"gather_axis": 0, "quantize_axis": 1, "block_size": 16},
        {"data": RNG.integers(0, 256, (9, 16), np.uint8), "ids": np.array([[1, 2, 3]]), "s": floats(9, 2)}, 1,
    ),
}  # fmt: skip


def one_node(name: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    op_type, attributes, inputs, outputs = CASES[name]
    given = {key: array for key, array in inputs.items() if array is not None}
    names = [key if array is not None else "" for key, array in inputs.items()]
    written = [f"y{number}" for number in range(outputs)]
    if op_type.startswith("Skip"):
        written[1] = written[2] = ""  # onnxruntime's CPU kernel writes neither mean nor deviation
    node = helper.make_node(op_type, names, written, domain=MICROSOFT, **attributes)
    types = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for k, a in given.items()
    ]
    made = [onnx.ValueInfoProto(name=name) for name in written if name]
    graph = helper.make_graph([node], "g", types, made)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), given


def ran(proto: onnx.ModelProto, feed: dict[str, Array]) -> dict[str, Array]:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_shapes_are_those_that_onnxruntime_computes(name: str) -> None:
    proto, feed = one_node(name)
    found = model_of(proto)
    node = found.graph[0]
    types = {v: helper.make_tensor_type_proto(int(v.dtype or 1), feed[v.name or ""].shape) for v in found.graph.inputs}
    arrays = {v: feed[v.name or ""] for v in found.graph.inputs if feed[v.name or ""].size <= 4}
    walked = contrib_types(node, types, arrays)
    computed = ran(proto, feed)
    for value in node.outputs:
        if value.name:
            tensor = walked[value].tensor_type
            sizes = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
            assert sizes == list(computed[value.name].shape), value.name
            assert ir.DataType(tensor.elem_type).numpy() == computed[value.name].dtype


@pytest.mark.parametrize("name", CASES)
def test_onnx_infers_the_same(name: str) -> None:
    proto, feed = one_node(name)
    for key, array in feed.items():
        if array.size <= 4:  # what a size may be read from is a constant
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, key))
    kept = [v for v in proto.graph.input if feed[v.name].size > 4]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    found = model_of(proto)
    infer_shapes(found)
    computed = ran(proto, {v.name: feed[v.name] for v in kept})
    for value in found.graph.outputs:
        assert value.shape is not None
        assert list(value.shape) == list(computed[value.name or ""].shape)


def test_every_operator_says_something() -> None:
    """With one unknown operand nothing raises."""
    for domain, rules in RULES.items():
        for op_type in rules:
            for count in (1, 9):
                values = [ir.val(f"x{k}", ir.DataType.FLOAT) for k in range(count)]
                node = ir.node(op_type, values, domain=domain, num_outputs=3)
                unknown = {v: onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=1)) for v in values}
                assert set(contrib_types(node, unknown, {})) <= set(node.outputs)


NORM = '<ir_version: 10, opset_import: ["" : 21]> g (float[N,4] x, float[4] s) => (float[N,4] y) { t = SimplifiedLayerNormalization(x, s) y = Relu(t) }'


def test_the_checker_is_as_before() -> None:
    """A schema is known while onnx infers; then it is refused as it was, and inference alone knows nothing."""
    proto = onnx.parser.parse_model(NORM)
    graph = model(NORM)
    infer_shapes(graph)
    assert str(graph.graph[0].outputs[0].shape) == "[N,4]"
    with pytest.raises(onnx.checker.ValidationError, match="No Op registered for SimplifiedLayerNormalization"):
        onnx.checker.check_model(proto)
    assert not onnx.defs.has("SimplifiedLayerNormalization")
    with known_to_onnx([("", "SimplifiedLayerNormalization")]):
        assert onnx.defs.has("SimplifiedLayerNormalization")
    assert not onnx.defs.has("SimplifiedLayerNormalization")


def test_a_schema_of_somebody_else_stays() -> None:
    theirs = onnx.defs.OpSchema("FastGelu", MICROSOFT, 1)
    onnx.defs.register_schema(theirs)
    try:
        with known_to_onnx([(MICROSOFT, "FastGelu")]):
            assert onnx.defs.get_schema("FastGelu", 1, MICROSOFT).inputs == []
        assert onnx.defs.has("FastGelu", MICROSOFT)
    finally:
        onnx.defs.deregister_schema("FastGelu", 1, MICROSOFT)


def test_threads_take_turns() -> None:
    results: list[str] = []

    def infer() -> None:
        for _ in range(20):
            graph = model(NORM)
            infer_shapes(graph)
            results.append(str(graph.graph[0].outputs[0].shape))

    threads = [threading.Thread(target=infer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["[N,4]"] * 80


def test_sizes() -> None:
    assert (product(2, 3), product(2, None), product("N", 2)) == (6, None, None)
    assert (quotient(6, 3), quotient(7, 3), quotient("N", 3), quotient(6, 0)) == (2, None, None, None)
    assert (total(2, 3), total(0, "N"), total("N", 0), total("N", 1)) == (5, "N", "N", None)
    assert broadcast(("B", 1, 3), (4, "S", 1)) == (4, "S", 3)
    assert broadcast((None,), ("N",)) == (None,)
