"""QDQ models of every operator that is computed on integers, in every width: 16 times the operator, once for each pair of types
of its input and of its output; of two operands each pair of types occurs, too. One quarter of a model has each type once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes.npu.formulas.functions import FUNCTIONS

from tests.npu.equality.random_units import Array, Builder
from tests.npu.equality.units_products import TYPES, bias, weight

DATA = ("int8", "uint8", "int16", "uint16")
#: Each holds four pairs of types, in which every type is once that of the input and once that of the output.
QUARTERS = range(len(DATA))
CONTRIB = "com.microsoft"


@dataclass
class Widths(Builder):
    """A model of one operator in all widths.

    Args:
        opset: of the model.
        x_type: type of the first input of the operator that is being made.
        other_type: of its other inputs.
        given: the graph inputs by their shapes.
    """

    opset: int = 21
    x_type: str = ""
    other_type: str = ""
    given: dict[tuple[int, ...], ir.Value] = field(default_factory=dict)

    def stored(self, value: ir.Value, dtype: str, scale: float | None = None) -> ir.Value:
        """``value`` behind a pair whose zero point lies in the middle half of the type; it holds about −4 to 4."""
        _, low, high = TYPES[dtype]
        size = 2.0 ** int(self.rng.integers(2, 4)) / (high - low + 1) if scale is None else scale
        size = size if self.pow2 or scale is not None else size * float(self.rng.uniform(0.71, 1.4))
        quarter = (high - low + 1) // 4
        s = self.constant(np.array(size, np.float32))
        z = self.constant(np.array(self.rng.integers(low + quarter, high - quarter), dtype))
        return self.node("DequantizeLinear", [self.node("QuantizeLinear", [value, s, z]), s, z])

    def x(self, *shape: int) -> ir.Value:
        """The first input."""
        return self.stored(self.float_input(*shape), self.x_type)

    def other(self, *shape: int) -> ir.Value:
        """Another input."""
        return self.stored(self.float_input(*shape), self.other_type)

    def held(self, *shape: int) -> ir.Value:
        """A constant of the type of the other inputs."""
        return self.stored(self.constant((self.rng.standard_normal(shape)).astype(np.float32)), self.other_type)

    def float_input(self, *shape: int) -> ir.Value:
        """A graph input, one for each shape."""
        if shape not in self.given:
            self.given[shape] = self.input(*shape, name=f"x{len(self.given)}", spread=1.5)
        return self.given[shape]

    def ints(self, *numbers: Any) -> ir.Value:
        """int64 constants."""
        return self.constant(np.array(numbers, np.int64))

    def in_domain(self, value: ir.Value, domain: str) -> ir.Value:
        """``value``, whose operator is of ``domain``."""
        node = value.producer()
        assert node is not None
        node.domain = domain
        return value


Form = Callable[[Widths], ir.Value]


@dataclass(frozen=True, kw_only=True)
class Case:
    """How the operator is made, and the opset and domain of the model."""

    form: Form
    opset: int = 21
    domain: str = ""


def model(
    case: Case, seed: int, *, pow2: bool, quarters: Iterable[int] = QUARTERS
) -> tuple[ir.Model, dict[str, Array]]:
    """The model of ``case`` with these ``quarters`` of the 16 pairs of types, and a feed."""
    b = Widths(np.random.default_rng(seed), pow2=pow2, opset=case.opset)
    outputs = []
    for i, source in enumerate(DATA):
        for quarter in quarters:
            j = (quarter - i) % len(DATA)
            b.x_type, b.other_type = source, DATA[(quarter + i) % len(DATA)]
            outputs.append(b.stored(case.form(b), DATA[j]))
    made = b.model(*outputs)
    made.opset_imports[""] = case.opset
    if case.domain:
        made.opset_imports[case.domain] = 1
    made.ir_version = 11 if case.opset > 23 else 10
    return made, b.feeds


def _function(op: str) -> Form:
    if op == "Clip":
        return lambda b: b.node(op, [b.x(3, 50), *(b.constant(np.array(bound, np.float32)) for bound in (-0.75, 1.25))])
    if op == "PRelu":
        return lambda b: b.node(op, [b.x(3, 50), b.held(1)])
    return lambda b: b.node(op, [b.x(3, 50)])


def _of_two(op: str) -> Form:
    return lambda b: b.node(op, [b.x(3, 50), b.other(50)])


def _reduction(op: str) -> Form:
    return lambda b: b.node(op, [b.x(2, 5, 20), b.ints(1)])


def _pool(op: str, **attributes: Any) -> Form:
    return lambda b: b.node(op, [b.x(1, 3, 9, 8)], attributes)


def _moved(op: str, *others: Any, shape: tuple[int, ...] = (1, 4, 6, 8), **attributes: Any) -> Form:
    return lambda b: b.node(
        op, [b.x(*shape), *(None if o is None else b.constant(np.array(o)) for o in others)], attributes
    )


def _norm(op: str, parameters: int, **attributes: Any) -> Form:
    shape, size = ((2, 6, 20), 6) if op in ("InstanceNormalization", "GroupNormalization") else ((2, 5, 24), 24)
    return lambda b: b.node(op, [b.x(*shape), *(b.held(size) for _ in range(parameters))], attributes)


def _matmul(b: Widths, dtype: str, block: int) -> ir.Value:
    return b.node("MatMul", [b.x(3, 40), weight(b, 40, 10, axis=0 if block else 1, dtype=dtype, block=block)[0]])


def _gemm(b: Widths, dtype: str, block: int) -> ir.Value:
    x = b.x(3, 40)
    w, scales, _ = weight(b, 10, 40, axis=1 if block else 0, dtype=dtype, block=block)
    return b.node("Gemm", [x, w, bias(b, 10, _scale_of(x), scales)], {"transB": 1})


def _conv(b: Widths, dtype: str, _: int) -> ir.Value:
    x = b.x(1, 4, 6, 7)
    w, scales, _ = weight(b, 6, 2, 3, 3, axis=0, dtype=dtype)
    return b.node("Conv", [x, w, bias(b, 6, _scale_of(x), scales)], {"group": 2, "pads": [1, 0, 1, 2]})


def _conv_transpose(b: Widths, dtype: str, _: int) -> ir.Value:
    return b.node(
        "ConvTranspose", [b.x(1, 4, 3, 4), weight(b, 4, 3, 2, 3, axis=1, dtype=dtype)[0]], {"strides": [2, 1]}
    )


def _scale_of(x: ir.Value) -> float:
    producer = x.producer()
    assert producer is not None
    scale = producer.inputs[1]
    assert scale is not None
    assert scale.const_value is not None
    return float(scale.const_value.numpy())


def _rotary(op_domain: str) -> Form:
    def form(b: Widths) -> ir.Value:
        x, cos, sin, positions = b.x(1, 2, 5, 8), b.held(9, 4), b.held(9, 4), b.ints([3, 0, 8, 2, 2])
        inputs = [x, positions, cos, sin] if op_domain else [x, cos, sin, positions]
        return b.in_domain(b.node("RotaryEmbedding", inputs), op_domain)

    return form


def _where(b: Widths) -> ir.Value:
    return b.node("Where", [b.constant(b.rng.random((3, 1, 8)) < 0.5), b.x(3, 4, 8), b.other(4, 8)])


def _softmax(b: Widths) -> ir.Value:
    return b.node("Softmax", [b.x(3, 50)], {"axis": -1})


def _split(b: Widths) -> ir.Value:
    first, second = b.node("Split", [b.x(1, 4, 6), b.ints(1, 3)], {"axis": 1}, outputs=2)
    return b.node("Concat", [b.stored(second, b.other_type), b.stored(first, b.x_type)], {"axis": 1})


_TWICE = np.array([1, 1, 2, 1.5], np.float32)

#: What is made (``<operator>`` or ``<operator> <of what>``) → how.
CASES: dict[str, Case] = {
    **{op: Case(form=_function(op), opset=24 if op == "Swish" else 22) for op in FUNCTIONS if op != "Identity"},
    "Pow": Case(form=lambda b: b.node("Pow", [b.x(3, 50), b.held(1)])),
    "QuantizeLinear": Case(form=lambda b: b.stored(b.node("Relu", [b.x(3, 50)]), b.other_type)),
    **{op: Case(form=_of_two(op)) for op in ("Add", "Sub", "Mul", "Div", "Min", "Max")},
    **{op: Case(form=_reduction(op)) for op in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")},
    "AveragePool": Case(form=_pool("AveragePool", kernel_shape=[3, 2], pads=[1, 0, 0, 1])),
    "MaxPool": Case(form=_pool("MaxPool", kernel_shape=[3, 2], strides=[2, 1])),
    "GlobalAveragePool": Case(form=_pool("GlobalAveragePool")),
    "GlobalMaxPool": Case(form=_pool("GlobalMaxPool")),
    "Softmax": Case(form=_softmax),
    "LayerNormalization": Case(form=_norm("LayerNormalization", 2)),
    "RMSNormalization": Case(form=_norm("RMSNormalization", 1), opset=23),
    "SimplifiedLayerNormalization": Case(form=_norm("SimplifiedLayerNormalization", 1)),
    "InstanceNormalization": Case(form=_norm("InstanceNormalization", 2)),
    "GroupNormalization": Case(form=_norm("GroupNormalization", 2, num_groups=3)),
    "LpNormalization": Case(form=_norm("LpNormalization", 0)),
    "RotaryEmbedding": Case(form=_rotary(""), opset=23),
    "RotaryEmbedding of com.microsoft": Case(form=_rotary(CONTRIB), domain=CONTRIB),
    "Einsum": Case(form=lambda b: b.node("Einsum", [b.x(2, 3, 4), b.other(2, 5, 4)], {"equation": "bid,bjd->bij"})),
    "MatMul": Case(form=lambda b: b.node("MatMul", [b.x(2, 3, 20), b.other(2, 20, 9)])),
    **{
        f"{op} of {dtype}": Case(form=lambda b, form=form, dtype=dtype: form(b, dtype, 0))  # type: ignore[misc]
        for op, form in (("MatMul", _matmul), ("Gemm", _gemm), ("Conv", _conv), ("ConvTranspose", _conv_transpose))
        for dtype in TYPES
    },
    **{
        f"{op} of blocked {dtype}": Case(form=lambda b, form=form, dtype=dtype: form(b, dtype, 16))  # type: ignore[misc]
        for op, form in (("MatMul", _matmul), ("Gemm", _gemm))
        for dtype in ("int4", "uint4", "int8", "uint8")
    },
    "Concat": Case(form=lambda b: b.node("Concat", [b.x(2, 3, 4), b.other(2, 2, 4)], {"axis": 1})),
    "Expand": Case(form=_moved("Expand", [3, 4, 6, 8])),
    "Flatten": Case(form=_moved("Flatten", axis=2)),
    "Gather": Case(form=_moved("Gather", [3, 0, -1], axis=1)),
    "GatherElements": Case(form=_moved("GatherElements", [[1, 0, -1], [2, 2, 0]], shape=(3, 4), axis=1)),
    "GatherND": Case(form=_moved("GatherND", [[1, 0], [2, -1]], shape=(3, 4, 5))),
    "Identity": Case(form=_moved("Identity")),
    "Pad": Case(form=_moved("Pad", [0, 0, 1, 2, 0, 1, 0, 1])),
    "Reshape": Case(form=_moved("Reshape", [0, -1, 4])),
    "Slice": Case(form=_moved("Slice", [1, 7], [4, 0], [1, 3], [1, -2])),
    "Split": Case(form=_split),
    "Squeeze": Case(form=_moved("Squeeze", [0])),
    "Tile": Case(form=_moved("Tile", [2, 1, 1, 3])),
    "Transpose": Case(form=_moved("Transpose", perm=[0, 2, 3, 1])),
    "Trilu": Case(form=_moved("Trilu", upper=0)),
    "Unsqueeze": Case(form=_moved("Unsqueeze", [1])),
    "Where": Case(form=_where),
    "ScatterElements": Case(
        form=lambda b: b.node("ScatterElements", [b.x(3, 4), b.ints([2, 0], [1, 3]), b.other(2, 2)], {"axis": 1})
    ),
    "ScatterND": Case(form=lambda b: b.node("ScatterND", [b.x(5, 4), b.ints([3], [0]), b.other(2, 4)])),
    "TensorScatter": Case(
        form=lambda b: b.node("TensorScatter", [b.x(2, 3, 6, 4), b.other(2, 3, 2, 4), b.ints(1, 4)]), opset=24
    ),
    "DepthToSpace": Case(form=_moved("DepthToSpace", blocksize=2)),
    "SpaceToDepth": Case(form=_moved("SpaceToDepth", blocksize=2)),
    "Resize": Case(form=_moved("Resize", None, _TWICE, mode="nearest")),
    "Resize of neighbours": Case(form=_moved("Resize", None, _TWICE, mode="linear")),
}
