"""Models of operators on integers, for tests: single QLinear operators, packed weights, and what onnxruntime's quantizers make."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from qdqtool.io.models.load import model_of
from qdqtool.io.models.save import serialize
from qdqtool.runtime.session import open_session

Array = npt.NDArray[Any]
MICROSOFT = "com.microsoft"
#: dtype, ONNX type, smallest and largest integer.
TYPES: dict[str, tuple[Any, int, int, int]] = {
    "u8": (np.uint8, TensorProto.UINT8, 0, 255),
    "s8": (np.int8, TensorProto.INT8, -128, 127),
}

#: A net that touches every operator onnxruntime's QOperator format knows; ``%d`` is the opset.
NET = """<ir_version: 8, opset_import: ["" : %d]>
g (float[1,3,8,8] x) => (float[1,3] y, int64[1,1,1,1] best) {
  [conv] c = Conv<pads: ints = [1,1,1,1]>(x, w, b)  [relu] r = Relu(c)
  [maxpool] m = MaxPool<kernel_shape: ints = [2,2], strides: ints = [2,2]>(r)
  [leaky] l = LeakyRelu<alpha: float = 0.1>(m)  [sigmoid] s = Sigmoid(l)  [add] a = Add(l, s)  [mul] u = Mul(a, s)
  [concat] d = Concat<axis: int = 1>(u, l, w2)  [pool] p = AveragePool<kernel_shape: ints = [2,2], strides: ints = [2,2]>(d)
  [resize] z = Resize<mode: string = "nearest">(p, "", twice)  [trans] t = Transpose<perm: ints = [0,2,3,1]>(z)
  [pad] q = Pad(t, pads)  [argmax] e = ArgMax<axis: int = 1>(p)  [highest] best = ReduceMax(e)
  [split] s1, s2 = Split<axis: int = 3>(q, sizes)  [join] j = Concat<axis: int = 3>(s1, s2)
  [back] t2 = Transpose<perm: ints = [0,3,1,2]>(j)  [gap] g1 = GlobalAveragePool(t2)  [flatten] f = Flatten(g1)
  [gemm] g2 = Gemm<transB: int = 1>(f, gw, gb)  [mm] m1 = MatMul(g2, mw)  [softmax] y0 = Softmax<axis: int = -1>(m1)
  [where] y1 = Where(cond, y0, m1)  [reshape] y2 = Reshape(y1, shape)  [unsqueeze] y3 = Unsqueeze(y2, zero)
  [squeeze] y4 = Squeeze(y3, zero)  [gather] y = Gather<axis: int = 1>(y4, picks)
}"""
#: A net with what onnxruntime's dynamic quantization knows.
DYNAMIC_NET = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x, int64[2] ids, float[1,2,5,5] im, float[4,2,3] seq)
  => (float[2,4] y, float[1,3,3,3] z, float[4,1,2,5] h, float[2,2] k) {
  [emb] e = Gather(table, ids)  [add] a = Add(x, e)  [mm] m = MatMul(a, dw)  [bias] y = Add(m, db)
  [trans] t = Transpose<perm: ints = [1,0]>(y)  [square] k = MatMul(m, t)
  [conv] z = Conv(im, cw, cb)  [lstm] h, hn, cn = LSTM<hidden_size: int = 5>(seq, lw, lr, lb)
}"""

logging.getLogger().addFilter(lambda record: "pre-processing" not in record.getMessage())


def net(text: str, seed: int = 0) -> onnx.ModelProto:
    """The model of a text, with the weights it reads, seeded, and all shapes inferred."""
    random = np.random.default_rng(seed)

    def floats(*shape: int) -> Array:
        return random.normal(0, 0.5, shape).astype(np.float32)

    weights: dict[str, Array] = {
        "w": floats(4, 3, 3, 3), "b": floats(4), "w2": floats(1, 2, 4, 4), "twice": np.array([1, 1, 2, 2], np.float32),
        "pads": np.array([0, 1, 0, 0, 0, 0, 1, 0]), "sizes": np.array([6, 4]), "gw": floats(6, 10), "gb": floats(6),
        "mw": floats(6, 5), "cond": np.array([[True, False, True, True, False]]), "shape": np.array([1, 5]),
        "zero": np.array([0]), "picks": np.array([0, 2, 4]), "table": floats(7, 3), "dw": floats(3, 4), "db": floats(4),
        "cw": floats(3, 2, 3, 3), "cb": floats(3), "lw": floats(1, 20, 3), "lr": floats(1, 20, 5), "lb": floats(1, 40),
    }  # fmt: skip
    model = onnx.parser.parse_model(text)
    read = {name for node in model.graph.node for name in node.input}
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items() if name in read]
    model.graph.initializer.extend(tensors)
    return onnx.shape_inference.infer_shapes(model)


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        random = np.random.default_rng(1)
        feeds = [{"x": random.normal(0, 1, (1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]
        self.feeds: Iterator[dict[str, Any]] = iter(feeds)

    def get_next(self) -> dict[str, Any] | None:
        return next(self.feeds, None)


def quantized_static(path: Path, text: str = NET % 17, **options: Any) -> onnx.ModelProto:
    """The net of ``text`` in onnxruntime's QOperator format (or another ``quant_format``)."""
    chosen: dict[str, Any] = {
        "activation_type": QuantType.QUInt8,
        "weight_type": QuantType.QInt8,
        "quant_format": QuantFormat.QOperator,
    }
    chosen |= options
    extra = {"ForceQuantizeNoInputCheck": True} | chosen.pop("extra_options", {})
    quantize_static(net(text), path, _Samples(), extra_options=extra, **chosen)
    return onnx.load(path)


def quantized_dynamic(path: Path, **options: Any) -> onnx.ModelProto:
    """`DYNAMIC_NET` after onnxruntime's dynamic quantization."""
    quantize_dynamic(net(DYNAMIC_NET), path, **options)
    return onnx.load(path)


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
                stored.append(numpy_helper.from_array(random.integers(low, high + 1, shape).astype(dtype), name))
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


def run(model: onnx.ModelProto | ir.Model, feed: dict[str, Array]) -> dict[str, Array]:
    """Outputs in onnxruntime, optimization off."""
    return open_session(model_of(model) if isinstance(model, onnx.ModelProto) else model).run(feed)


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


def operators(model: ir.Model) -> list[str]:
    """Types of all nodes, with domains other than the default one."""
    return [f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in model.graph]


def checked(model: ir.Model) -> ir.Model:
    """``model``, after onnx.checker has looked at it."""
    onnx.checker.check_model(serialize(model), full_check=True)
    return model
