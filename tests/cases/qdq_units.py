"""One operator between QuantizeLinear and DequantizeLinear, built for tests, and what onnxruntime and the reference make of it.

Scales are powers of two unless a test says otherwise: then onnxruntime's float32 holds every sum of fewer than 2^24 steps exactly,
and what it stores is the exact result rounded half to even."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from qdq_passes.npu.reference.run import run_reference
from qdq_passes.numerics.arithmetic import Arithmetic, Rounding
from qdq_passes.numerics.encoding import Encoding, integer_range
from qdq_passes.numerics.quantize import dequantize

from qdqtool.io.models.load import model_of
from qdqtool.runtime.session import open_session

Array = npt.NDArray[Any]

#: onnxruntime without optimization, in the two modes with integers.
SHIFT = Arithmetic(requantize="shift", rounding="half_even")
FIXED_POINT = Arithmetic(requantize="fixed_point", rounding="half_even")
ROUNDINGS: tuple[Rounding, ...] = ("half_up", "half_even", "half_away", "toward_zero")


@dataclass
class Unit:
    """A model while it is built: pairs around operators. Values are named by the order in which they are made."""

    random: np.random.Generator
    opset: int = 21
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    feeds: dict[str, Array] = field(default_factory=dict)
    floats: dict[str, Encoding] = field(default_factory=dict)

    def activation(self, shape: Sequence[int], encoding: Encoding) -> str:
        """A float input of a dynamic batch, quantized and dequantized; it goes a little beyond what ``encoding`` holds."""
        name = f"x{len(self.inputs)}"
        dims: list[Any] = [f"N{len(self.inputs)}", *shape[1:]] if len(shape) > 1 else list(shape)
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
        low, high = integer_range(encoding.dtype, symmetric=False)
        wanted = self.random.uniform(low - 20, high + 20, tuple(shape)) - encoding.zero_point[0]
        self.feeds[name] = (wanted * encoding.scale[0]).astype(np.float32)
        return self.pair(name, encoding)

    def constant(self, array: Array) -> str:
        """An initializer."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def stored(self, integers: Array, encoding: Encoding, *, pair: bool = False) -> str:
        """Constant integers behind a DequantizeLinear; with ``pair`` the floats behind both halves."""
        if pair:
            return self.pair(self.constant(dequantize(integers, encoding)), encoding)
        data = self.constant(integers.astype(encoding.dtype.numpy()))
        return self.node("DequantizeLinear", [data, *self.grid(encoding)], **_axis(encoding))

    def pair(self, value: str, encoding: Encoding) -> str:
        """QuantizeLinear and DequantizeLinear behind ``value``."""
        grid = self.grid(encoding)
        quantized = self.node("QuantizeLinear", [value, *grid], **_axis(encoding))
        return self.node("DequantizeLinear", [quantized, *grid], **_axis(encoding))

    def grid(self, encoding: Encoding) -> list[str]:
        """Scale and zero point as initializers."""
        return [self.constant(encoding.scale_array()), self.constant(encoding.zero_point_array())]

    def node(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """A node with one output."""
        return self.node_of(1, op_type, inputs, **attributes)[0]

    def node_of(self, count: int, op_type: str, inputs: Sequence[str], **attributes: Any) -> list[str]:
        """A node with ``count`` outputs."""
        outputs = [f"v{len(self.nodes)}_{i}" for i in range(count)]
        self.nodes.append(helper.make_node(op_type, inputs, outputs, f"n{len(self.nodes)}", **attributes))
        return outputs

    def store(self, value: str, encoding: Encoding) -> None:
        """``value`` quantized into an output of the model."""
        name = self.node("QuantizeLinear", [value, *self.grid(encoding)])
        self.outputs.append(helper.make_tensor_value_info(name, int(encoding.dtype), None))
        self.floats[value] = encoding

    def model(self) -> ir.Model:
        """What was built."""
        graph = helper.make_graph(self.nodes, "unit", self.inputs, self.outputs, self.constants)
        opsets = [helper.make_opsetid("", self.opset)]
        return model_of(helper.make_model(graph, opset_imports=opsets, ir_version=10))

    def onnxruntime(self) -> list[Array]:
        """The outputs, without optimization."""
        return list(open_session(self.model()).run(self.feeds).values())

    def floats_of_onnxruntime(self) -> list[tuple[Array, Encoding]]:
        """What onnxruntime stores, before it is quantized, with the encodings."""
        found = open_session(self.model(), extra_outputs=list(self.floats)).run(self.feeds, list(self.floats))
        return [(found[name], encoding) for name, encoding in self.floats.items()]

    def reference(self, arithmetic: Arithmetic) -> list[Array]:
        """The outputs of the reference, with every node on the NPU."""
        found = run_reference(
            self.model(), self.feeds, arithmetic, on_npu=lambda node: True, fallback=lambda node, inputs: []
        )
        return list(found.values())


def _axis(encoding: Encoding) -> dict[str, int]:
    return {} if encoding.axis is None else {"axis": encoding.axis}


def rounded(real: Array, encoding: Encoding, rounding: Rounding) -> Array:
    """Exact numbers in units of a power of two, rounded as told and saturated."""
    steps = np.asarray(real, np.float64) / encoding.scale[0]
    by_name = {
        "half_up": lambda: np.floor(steps + 0.5),
        "half_even": lambda: np.rint(steps),
        "half_away": lambda: np.copysign(np.floor(np.abs(steps) + 0.5), steps),
        "toward_zero": lambda: np.trunc(steps),
    }
    low, high = integer_range(encoding.dtype, symmetric=False)
    return np.clip(by_name[rounding]() + encoding.zero_point[0], low, high).astype(encoding.dtype.numpy())


def pow2(random: np.random.Generator, *, low: int = -7, high: int = 0, dtype: str = "") -> Encoding:
    """An 8-bit encoding with scale 2^``low`` … 2^``high`` and any zero point."""
    kind = ir.DataType[(dtype or str(random.choice(["int8", "uint8"]))).upper()]
    bottom, top = integer_range(kind, symmetric=False)
    middle = int(random.choice([0, random.integers(bottom, top + 1), (bottom + top + 1) // 2]))
    return Encoding.per_tensor(kind, 2.0 ** int(random.integers(low, high + 1)), middle)
