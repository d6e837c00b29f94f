"""Models of operators on integers: single QLinear operators, and MatMulNBits with its packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

from tests.cases.small_models import Array

MICROSOFT = "com.microsoft"
#: Largest int8 weight by which onnxruntime multiplies uint8 exactly on every processor: 2·255·64 < 2^15. With AVX2 and without VNNI it
#: adds two products in 16 bits, and larger ones saturate.
SAFE = 64
#: dtype, ONNX type, smallest and largest integer.
TYPES: dict[str, tuple[Any, int, int, int]] = {
    "u8": (np.uint8, TensorProto.UINT8, 0, 255),
    "s8": (np.int8, TensorProto.INT8, -128, 127),
}


@dataclass
class Operator:
    """One operator on integers, with seeded scales and weights.

    Args:
        op_type: the operator.
        shapes: shapes of its quantized operands; the first are inputs ``x0``, ``x1``….
        kind: ``"u8"`` or ``"s8"``.
        weight: type of the second operand, which then is stored; None for an input.
        axis: axis of the weight along which it has scales.
        bias: shape of an int32 bias.
        domain: domain of the operator.
        attributes: its attributes.
        seed: of all random numbers.
    """

    op_type: str
    shapes: Sequence[tuple[int, ...]]
    kind: str = "u8"
    weight: str | None = None
    axis: int | None = None
    bias: tuple[int, ...] | None = None
    domain: str = MICROSOFT
    attributes: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def model(self) -> onnx.ModelProto:
        """The model."""
        random = np.random.default_rng(self.seed)
        inputs, stored, triples = [], [], []
        for k, shape in enumerate(self.shapes):
            is_weight = k == 1 and self.weight is not None
            dtype, code, low, high = TYPES[self.weight if is_weight and self.weight else self.kind]
            name = f"w{k}" if is_weight else f"x{k}"
            if is_weight:
                ends = (-SAFE, SAFE) if self.weight == "s8" else (low, high)
                stored.append(numpy_helper.from_array(random.integers(ends[0], ends[1] + 1, shape).astype(dtype), name))
            else:
                inputs.append(helper.make_tensor_value_info(name, code, shape))
            count = () if self.axis is None or not is_weight else (shape[self.axis],)
            zero = (low + high + 1) // 2 if is_weight else random.integers(low, high + 1)
            stored.append(numpy_helper.from_array(np.asarray(random.uniform(0.01, 0.1, count), np.float32), f"s{k}"))
            stored.append(numpy_helper.from_array(np.full(count, zero, dtype), f"z{k}"))
            triples += [name, f"s{k}", f"z{k}"]
        dtype, code, low, high = TYPES[self.kind]
        is_product = self.weight is not None or self.op_type == "QLinearMatMul"
        step = 2.0**-9 if self.op_type == "QLinearSoftmax" else 0.5 if is_product else 0.05
        stored.append(numpy_helper.from_array(np.asarray(step, np.float32), "sy"))
        stored.append(numpy_helper.from_array(np.asarray((low + high + 1) // 2, dtype), "zy"))
        bias = [] if self.bias is None else ["bias"]
        if self.bias is not None:
            stored.append(numpy_helper.from_array(random.integers(-500, 500, self.bias).astype(np.int32), "bias"))
        if self.op_type == "QLinearConcat":
            names = ["sy", "zy", *triples]
        elif self.op_type == "QLinearWhere":
            inputs.insert(0, helper.make_tensor_value_info("cond", TensorProto.BOOL, self.shapes[0]))
            names = ["cond", *triples, "sy", "zy"]
        elif self.op_type == "QGemm":
            names = [*triples, *(bias or [""]), "sy", "zy"]
        else:
            names = [*triples, "sy", "zy", *bias]
        node = helper.make_node(
            self.op_type, names, ["y_quantized"], "node_quant", domain=self.domain, **self.attributes
        )
        graph = helper.make_graph(
            [node], "g", inputs, [helper.make_tensor_value_info("y_quantized", code, None)], stored
        )
        imports = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def feed_of(model: onnx.ModelProto, seed: int = 0) -> dict[str, Array]:
    """Seeded values for the inputs: integers over the whole of their type, floats about ±2, indices 0 to 3."""
    random, feed = np.random.default_rng(seed), {}
    for value in model.graph.input:
        shape = [d.dim_value or 2 for d in value.type.tensor_type.shape.dim]
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        if dtype in (np.uint8, np.int8):
            info = np.iinfo(dtype)
            feed[value.name] = random.integers(info.min, info.max + 1, shape).astype(dtype)
        elif dtype.kind == "b":
            feed[value.name] = random.integers(0, 2, shape).astype(bool)
        else:
            feed[value.name] = (
                random.normal(0, 1, shape) if dtype.kind == "f" else random.integers(0, 4, shape)
            ).astype(dtype)
    return feed


def packed(
    k: int,
    n: int,
    *,
    bits: int = 4,
    block: int = 16,
    zero: str = "",
    bias: bool = False,
    negative: bool = False,
    dtype: Any = np.float32,
    seed: int = 0,
) -> tuple[onnx.ModelProto, Array]:
    """(model, weight): a MatMulNBits and the weight [K, N] it stands for, worked out from the unpacked integers.

    ``zero`` is ``""``, ``"packed"``, ``"float"`` or ``"fraction"``.
    """
    random, blocks, per = np.random.default_rng(seed), -(-k // block), 8 // bits
    integers = random.integers(0, 2**bits, (n, blocks * block)).astype(np.uint8)
    scales = random.uniform(0.01, 0.1, (n, blocks)).astype(dtype)
    scales *= dtype(1) if not negative else np.where(random.integers(0, 2, scales.shape), -1, 1).astype(dtype)
    points = np.full((n, blocks), 2.0 ** (bits - 1))
    tensors = {"w": pack(integers, bits).reshape(n, blocks, -1), "s": scales}
    if zero:
        points = random.integers(0, 2**bits, (n, blocks)).astype(np.float64) + (0.5 if zero == "fraction" else 0)
        full = np.zeros((n, -(-blocks // per) * per), np.uint8)
        full[:, :blocks] = points
        tensors["z"] = pack(full, bits) if zero == "packed" else points.astype(dtype)
    if bias:
        tensors["b"] = random.normal(0, 1, n).astype(dtype)
    names = ["x", "w", "s", "z" if zero else "", "", "b" if bias else ""]
    node = helper.make_node("MatMulNBits", names, ["y"], "mm", domain=MICROSOFT, K=k, N=n, bits=bits, block_size=block)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ends = [helper.make_tensor_value_info(name, code, [3, d]) for name, d in (("x", k), ("y", n))]
    graph = helper.make_graph(
        [node], "g", ends[:1], ends[1:], [numpy_helper.from_array(a, name) for name, a in tensors.items()]
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    weight = (integers.reshape(n, blocks, block).astype(np.float32) - points[..., None].astype(np.float32)) * scales[
        ..., None
    ].astype(np.float32)
    return helper.make_model(graph, opset_imports=imports, ir_version=10), weight.reshape(n, -1)[:, :k].T.astype(dtype)


def pack(integers: Array, bits: int) -> Array:
    """Bytes [..., n·bits / 8] of integers [..., n], low bits first."""
    per = 8 // bits
    found = np.zeros((*integers.shape[:-1], integers.shape[-1] // per), np.uint8)
    for k in range(per):
        found |= (integers[..., k::per] << (bits * k)).astype(np.uint8)
    return found
