"""Plans in floating point, element by element: two tensors, functions of one value, casts, choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qdq_passes.graph.uses import float_of, integer_of
from qdq_passes.npu.formulas.floats import TYPES, lookup_table
from qdq_passes.npu.formulas.functions import Function, function_of
from qdq_passes.npu.program.floats.steps import (
    FLOATS,
    Constant,
    Handler,
    Handlers,
    Made,
    Source,
    Steps,
    constant_of,
    float_type,
    type_of,
)
from qdq_passes.npu.program.operands import NotComputable, check_condition, constant_floats
from qdq_passes.npu.program.operator import floating

#: Functions that are nothing but operations of IEEE 754, and those of their attributes that a kernel needs.
_PLAIN: Mapping[str, Sequence[tuple[str, float]]] = {
    "Abs": (), "Ceil": (), "Exp": (), "Floor": (), "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)), "Neg": (), "Reciprocal": (),
    "Round": (), "Sign": (), "Softsign": (), "Sqrt": (), "ThresholdedRelu": (("alpha", 1.0),),
}  # fmt: skip
#: Operators that passes write as others, which have kernels, or take away.
_DECOMPOSED = {
    "Attention": "decompose-attention", "GroupQueryAttention": "decompose-group-query-attention",
    "MultiHeadAttention": "decompose-multi-head-attention", "Einsum": "decompose-einsum", "Dropout": "remove-identity",
    "MatMulNBits": "unpack-matmul-nbits",
}  # fmt: skip
#: Types that a Cast to a float reads.
_CAST_FROM = frozenset(
    {*FLOATS}
    | {ir.DataType[name] for name in ("BOOL", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64")}
)


def function(steps: Steps, node: ir.Node) -> list[Source]:
    """A function of one value: a formula where it has one, else a table of all 65536 numbers of a half precision.

    Raises:
        NotComputable: it is none, or has no formula in float32.
    """
    found = function_of(node, constant_floats)
    if isinstance(found, str):
        raise NotComputable(found)
    if found is None:
        way_out = f"; run {_DECOMPOSED[node.op_type]} first" if node.op_type in _DECOMPOSED else ""
        raise NotComputable(f"{node.op_type} has no kernel in floating point{way_out}")
    if found.axis is not None:
        raise NotComputable(f"{node.op_type} differs along an axis")
    x = steps.read(node, found.input)
    dtype = type_of(node, found.input)
    formula = _formula(node, found)
    if formula is not None:
        return [steps.step("FloatFunction", x, dtype=dtype, attributes=formula, like=node.inputs[found.input])]
    if steps.precision == "float32":
        raise NotComputable(f"{node.op_type} in float32 has no formula that kernels of any machine compute alike")
    precision = steps.precision
    table = Constant(
        "table", lambda: lookup_table(found, precision), ir.DataType.from_numpy(np.dtype(TYPES[precision]))
    )
    return [steps.step("FloatLookup", x, table, dtype=dtype, like=node.inputs[found.input])]


def _formula(node: ir.Node, found: Function) -> dict[str, Any] | None:
    """Attributes of a FloatFunction; None where only a table computes ``node``."""
    if found.bounds is not None:
        low, high = found.bounds
        return {"function": "Clip", "alpha": low, "beta": high}
    if node.op_type == "LeakyRelu" and found.slope is not None:
        return {"function": "LeakyRelu", "alpha": float(found.slope[0])}
    if node.op_type == "HardSwish":
        return {"function": "HardSwish", "alpha": float(np.float32(1 / 6)), "beta": 0.5}
    if node.op_type not in _PLAIN:
        return None
    return {"function": node.op_type, **{name: float_of(node, name, default) for name, default in _PLAIN[node.op_type]}}


def _binary(steps: Steps, node: ir.Node) -> list[Source]:
    return steps.write(node, "FloatElementwise", steps.read(node, 0), steps.read(node, 1), function=node.op_type)


def _pair(steps: Steps, word: str, a: Source, b: Source, dtype: ir.DataType, node: ir.Node) -> Made:
    return steps.step("FloatElementwise", a, b, dtype=dtype, attributes={"function": word}, like=node.outputs[0])


def _folded(word: str) -> Handler:
    """Any number of inputs, two at a time from the first."""

    def handler(steps: Steps, node: ir.Node) -> list[Source]:
        dtype = type_of(node)
        found = steps.read(node, 0)
        if len(node.inputs) == 1:
            return [steps.step("FloatCast", found, dtype=dtype, like=node.outputs[0])]
        for index in range(1, len(node.inputs)):
            found = _pair(steps, word, found, steps.read(node, index), dtype, node)
        return [found]

    return handler


def _pow(steps: Steps, node: ir.Node) -> list[Source]:
    exponent = constant_of(node, 1)
    power = None if exponent is None or exponent.size != 1 else float(exponent.item())
    if power == 2:
        x = steps.read(node, 0)
        return steps.write(node, "FloatElementwise", x, x, function="Mul")
    word = {3.0: "Cube", 0.5: "Sqrt", -0.5: "InverseSqrt"}.get(power or 0.0)
    if word is None:
        return function(steps, node)
    return steps.write(node, "FloatFunction", steps.read(node, 0), function=word)


def _comparison(steps: Steps, node: ir.Node) -> list[Source]:
    return [_pair(steps, node.op_type, steps.read(node, 0), steps.read(node, 1), ir.DataType.BOOL, node)]


def _is_nan(steps: Steps, node: ir.Node) -> list[Source]:
    x = steps.read(node, 0)
    return [_pair(steps, "Unordered", x, x, ir.DataType.BOOL, node)]


def _where(steps: Steps, node: ir.Node) -> list[Source]:
    condition = steps.control(node, 0)
    if condition is not None:
        check_condition(condition)
    return [
        steps.step(
            "FloatWhere",
            condition,
            steps.read(node, 1),
            steps.read(node, 2),
            dtype=type_of(node, 1),
            like=node.outputs[0],
        )
    ]


def _cast(steps: Steps, node: ir.Node) -> list[Source]:
    to = ir.DataType(integer_of(node, "to", int(ir.DataType.FLOAT)))
    if to not in FLOATS:
        raise NotComputable(f"casts to {to.name.lower()}")
    source = node.inputs[0]
    if (source is not None and source in steps.written) or (dtype := float_type(source)) in FLOATS:
        return [steps.step("FloatCast", steps.read(node, 0), dtype=to, like=node.outputs[0])]
    if dtype not in _CAST_FROM:
        raise NotComputable(f"casts from {dtype.name.lower() if dtype else 'an unknown type'}")
    return [steps.step("FloatCast", source, dtype=to, like=node.outputs[0])]


ROWS = (
    floating("FloatElementwise", (2, 2), function=str),
    floating("FloatFunction", (1, 1), function=str, alpha=float, beta=float),
    floating("FloatLookup", (2, 2)),
    floating("FloatWhere", (3, 3)),
)
#: Element by element.
ELEMENTWISE: Handlers = {
    **{("", name): _binary for name in ("Add", "Sub", "Mul", "Div", "PRelu")},
    **{("", name): _folded(word) for name, word in (("Min", "Min"), ("Max", "Max"), ("Sum", "Add"))},
    **{("", name): _comparison for name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")},
    ("", "Pow"): _pow,
    ("", "IsNaN"): _is_nan,
    ("", "Where"): _where,
    ("", "Cast"): _cast,
}
