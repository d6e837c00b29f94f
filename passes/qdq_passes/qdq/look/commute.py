"""Which operators commute with rounding: Op(F(a), F(b), …) = F(Op(a, b, …)) bit for bit, F as in `qdq.look.exact`.

- *Copies* (Reshape, Transpose, Gather, Split, Concat, Where, …): an element of the output is an element of an input. F works
  element by element, so it does not matter whether it is copied before or after; with any grid.
- *Copies or zeros* (Trilu, GridSample nearest): F(0) = 0. *Copies or constants* (Pad, Resize outside of the image): the constant
  must be on the grid, F(c) = c.
- *Order* (Max, Min, MaxPool, ReduceMax, scatter by max): F does not decrease, so F(max(a, b)) = max(F(a), F(b)), likewise min. A
  constant c among them must satisfy max(F(a), c) = max(F(a), F(c)): it is on the grid, or below it for max (then both are
  F(a)), above it for min. Relu is max(a, 0) and Clip min(max(a, low), high). A pool's window that lies in the padding alone gives
  a number that no element had; where shape and strides allow such a window, nothing is claimed. Indices of the largest are
  another matter: rounding makes elements equal. So is the largest along an axis without elements, −∞.
- Neg does not: the integer types reach one step further down than up, so −qmin is beyond their grid.

All else computes new numbers, which rounding its inputs changes; some of it (activations, sums, means) can at least be typed and
shaped with the same encoding behind it: `Crossing.is_possible`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.qdq_ops import is_quantization
from qdq_passes.graph.uses import DATA_MOVEMENT, constant_array, has_body
from qdq_passes.qdq.look.exact import Rounding, on_grid, shape_of

#: Operators whose output elements are elements of these inputs (None: all), or zeros.
COPIES: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(
        DATA_MOVEMENT | {"Compress", "Dropout", "GatherElements", "GatherND", "GridSample", "Pad", "Resize",
                         "ReverseSequence", "Trilu", "Upsample"}, (0,)
    ),
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), (0, 2)),
    "Concat": None,
    "Where": (1, 2),
}  # fmt: skip
#: Operators that choose the largest or the smallest of elements.
ORDER: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("Clip", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMin", "Relu"), (0,)),
    **dict.fromkeys(("Max", "Min"), None),
}
#: Operators that compute, element by element, on their first input.
ELEMENTWISE = frozenset(
    {
        "Abs", "Ceil", "Celu", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log",
        "Mish", "Neg", "PRelu", "Reciprocal", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt",
        "Swish", "Tanh", "ThresholdedRelu",
    }
)  # fmt: skip
#: Operators that compute on all their inputs, element by element.
ARITHMETIC = frozenset({"Add", "Div", "Mean", "Mul", "Pow", "Sub", "Sum"})
#: Operators that compute on several elements of their first input.
POOLS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalLpPool", "LpPool"})
REDUCTIONS = frozenset({"ReduceL1", "ReduceL2", "ReduceMean", "ReduceSum"})
NORMALIZATIONS = frozenset({"LogSoftmax", "LpNormalization", "LRN", "MeanVarianceNormalization", "Softmax"})
#: Of a node in a local function.
OPEN = "its attributes depend on the call of its function"
_DATA: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(ELEMENTWISE | POOLS | REDUCTIONS | NORMALIZATIONS, (0,)),
    **dict.fromkeys(ARITHMETIC, None),
    **COPIES,
    **ORDER,
}


@dataclass(frozen=True)
class Crossing:
    """How a node and a rounding get past each other.

    Args:
        data: indices of the inputs that are rounded together with the output.
        problem: why they do not commute, in words; "" when they do.
        is_possible: whether the rounding may stand on the other side although they do not commute.
        beyond: what a constant among ``data`` may be besides on the grid, see `on_grid`.
    """

    data: tuple[int, ...] = ()
    problem: str = ""
    is_possible: bool = True
    beyond: str = ""


def crossing_of(node: ir.Node, rounding: Rounding, rank: int | None) -> Crossing:
    """How ``node`` and ``rounding``, of a tensor of ``rank`` dimensions if that is known, get past each other."""
    op = node.op_type
    if is_quantization(node):
        return Crossing(problem="another pair stands there", is_possible=False)
    if op in ("Cast", "CastLike"):
        return Crossing(problem=f"{op} makes another element type", is_possible=False)
    if node.domain not in ("", "ai.onnx"):
        return Crossing(problem=f"nothing is known of {node.domain}.{op}", is_possible=False)
    if has_body(node):
        return Crossing(problem=f"{op} holds bodies", is_possible=False)
    if op in COPIES or op in ORDER:
        problem = "" if op in COPIES or rounding.is_integer else _no_order(rounding)
        if op in _CHECKS:
            open_ended = any(attribute.is_ref() for attribute in node.attributes.values())
            problem = problem or (OPEN if open_ended else _CHECKS[op](node, rounding, rank))
        beyond = {"Max": "below", "Min": "above"}.get(op, "")
        return Crossing(data_inputs(node), problem, beyond=beyond)
    if op in _DATA:
        return Crossing(data_inputs(node), f"{op} does not commute with rounding")
    return Crossing(problem=f"{op} computes new numbers, which need an encoding of their own", is_possible=False)


def data_inputs(node: ir.Node) -> tuple[int, ...]:
    """Indices of the inputs that are rounded together with the output; none of what rounding cannot get past at all."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in _DATA:
        return ()
    few = _DATA[node.op_type]
    return tuple(range(len(node.inputs))) if few is None else few


def _no_order(rounding: Rounding) -> str:
    return f"{rounding.encoding.dtype.name.lower()} has a -0"


def _clip(node: ir.Node, rounding: Rounding, rank: int | None) -> str:
    for index, name, beyond in ((1, "min", "below"), (2, "max", "above")):
        problem = _constant_problem(node, index, name, rounding, rank, beyond)
        if problem:
            return problem
    return ""


def _pad(node: ir.Node, rounding: Rounding, rank: int | None) -> str:
    if _text(node, "mode", "constant") != "constant":
        return ""
    return _constant_problem(node, 2, "value", rounding, rank)


def _resize(node: ir.Node, rounding: Rounding, rank: int | None) -> str:
    mode = _text(node, "mode", "nearest")
    if mode != "nearest":
        return f"{node.op_type} computes new numbers in its mode {mode}"
    if _text(node, "coordinate_transformation_mode", "") != "tf_crop_and_resize":
        return ""
    return _constant_problem(node, len(node.inputs), "extrapolation_value", rounding, rank)


def _grid_sample(node: ir.Node, rounding: Rounding, rank: int | None) -> str:
    mode = _text(node, "mode", "linear")
    return "" if mode == "nearest" else f"GridSample computes new numbers in its mode {mode}"


def _dropout(node: ir.Node, rounding: Rounding, rank: int | None) -> str:
    given = node.inputs[2] if len(node.inputs) > 2 else None
    trains = constant_array(given)
    return "" if given is None or (trains is not None and not trains.any()) else "Dropout may train"


def _scatter(node: ir.Node, rounding: Rounding, rank: int | None) -> str:
    reduction = _text(node, "reduction", "none")
    if reduction in ("max", "min"):
        return "" if rounding.is_integer else _no_order(rounding)
    return "" if reduction == "none" else f"{node.op_type} computes new numbers with its reduction {reduction}"


def _reduce(node: ir.Node, rounding: Rounding, rank: int | None) -> str:
    """The largest of no element at all is -inf: each reduced axis must be known to have elements."""
    shape, given = shape_of(node.inputs[0]), node.inputs[1] if len(node.inputs) > 1 else None
    array = constant_array(given)
    axes = _ints(node, "axes", []) if given is None else None if array is None else [int(i) for i in np.ravel(array)]
    if not axes and given is not None and array is not None and _ints(node, "noop_with_empty_axes", [0])[0]:
        return ""
    if shape is None or axes is None:
        return "it may choose from no element at all; run infer-shapes first"
    reduced = [shape[axis] for axis in axes] if axes else list(shape)
    return "" if all(isinstance(d, int) and d > 0 for d in reduced) else "it may choose from no element at all"


def _max_pool(node: ir.Node, rounding: Rounding, rank: int | None) -> str:
    """A window holds an element where pads are smaller than it; rounding the output size up may add one behind the end."""
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return "its Indices are read, and rounding makes elements equal"
    kernel, auto = _ints(node, "kernel_shape", []), _text(node, "auto_pad", "NOTSET")
    count, ceil = len(kernel), bool(_ints(node, "ceil_mode", [0])[0])
    strides, dilations = _ints(node, "strides", [1] * count), _ints(node, "dilations", [1] * count)
    pads = _ints(node, "pads", [0] * 2 * count) if auto == "NOTSET" else [0] * 2 * count
    for i, size in enumerate(kernel):
        begin, end, step = pads[i], pads[count + i], strides[i]
        if auto.startswith("SAME") or begin or end:
            sound = dilations[i] == 1 and begin < size and (end + step <= size if ceil else end < size)
        else:
            sound = not ceil or step <= (size - 1) * dilations[i] + 1
        if not sound:
            return "a window of it may lie in the padding alone"
    return ""


def _constant_problem(
    node: ir.Node, index: int, name: str, rounding: Rounding, rank: int | None, beyond: str = ""
) -> str:
    """Why the constant in input ``index``, or attribute ``name`` of older opsets, keeps F from commuting; "" if it does not."""
    given = node.inputs[index] if index < len(node.inputs) else None
    if given is None and name not in node.attributes:
        return ""
    if given is not None:
        number = constant_array(given)
        shown = f"its {'constant' if name == 'value' else name} {given.name}"
        if number is None:
            return f"{shown} is computed"
    else:
        number = np.array(node.attributes[name].as_float(), rounding.float_type.numpy())
        shown = f"its {name} {float(number):g}"
    return "" if on_grid(number, rounding, rank=rank, beyond=beyond) else f"{shown} is not on the grid"


def _text(node: ir.Node, name: str, default: str) -> str:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_string()


def _ints(node: ir.Node, name: str, default: list[int]) -> list[int]:
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    return [attribute.as_int()] if attribute.type == ir.AttributeType.INT else list(attribute.as_ints())


_CHECKS: dict[str, Callable[[ir.Node, Rounding, int | None], str]] = {
    "Clip": _clip,
    "Dropout": _dropout,
    "GridSample": _grid_sample,
    "MaxPool": _max_pool,
    "Pad": _pad,
    "ReduceMax": _reduce,
    "ReduceMin": _reduce,
    "Resize": _resize,
    "Scatter": _scatter,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    "Upsample": _resize,
}
