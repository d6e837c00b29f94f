"""Forms of functions of single values: each is an identity, so that nothing but roundings differ."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import onnx_ir as ir

from qdq_passes.graph.operators.activations import BOUNDS, clip_bound
from qdq_passes.graph.uses import is_standard, readers, text_of
from qdq_passes.legalize.edit.forms import Declined, Form, Given, Written

#: Twice the exponents of Pow that are a few products: ±1/2, ±1 (but x itself), ±3/2, ±2, ±5/2, ±3.
_HALVES = frozenset({*range(-6, 7)} - {0, 2})


def _neg(at: Given) -> ir.Value:
    return at.times(at.x, -1.0)


def _abs(at: Given) -> ir.Value:
    return at.absolute(at.x)


def _reciprocal(at: Given) -> ir.Value:
    return at.site("Div", at.number(1.0), at.x)


def _pow(at: Given) -> ir.Value:
    """x^(n/2): a product of x and √x, or 1 over it."""
    exponent = at.constant(1, "exponent")
    halves = 2 * float(exponent.ravel()[0]) if exponent.size == 1 and exponent.ndim <= at.rank() else 0.0
    if halves not in _HALVES:
        raise Declined(f"its exponent is {exponent.ravel().tolist()[:3]}")
    factors = [at.x] * int(abs(halves) // 2) + ([at.site("Sqrt", at.x)] if abs(halves) % 2 else [])
    product = reduce(lambda a, b: at.site("Mul", a, b), factors)
    return product if halves > 0 else at.site("Div", at.number(1.0), product)


def _sigmoid_by_tanh(at: Given) -> ir.Value:
    """σ(x) = (1 + tanh(x/2))/2."""
    return at.site("Add", at.times(at.site("Tanh", at.times(at.x, 0.5)), 0.5), at.number(0.5))


def _tanh_by_sigmoid(at: Given) -> ir.Value:
    """tanh(x) = 2σ(2x) − 1."""
    return at.site("Add", at.times(at.site("Sigmoid", at.times(at.x, 2.0)), 2.0), at.number(-1.0))


def _swish(at: Given) -> ir.Value:
    """x·σ(αx)."""
    return at.site("Mul", at.x, at.site("Sigmoid", at.times(at.x, at.float_of("alpha", 1.0))))


def _gelu_by_erf(at: Given) -> ir.Value:
    """x/2·(1 + erf(x/√2))."""
    if text_of(at.node, "approximate", "none") != "none":
        raise Declined("is that of tanh")
    gate = at.site("Add", at.site("Erf", at.times(at.x, math.sqrt(0.5))), at.number(1.0))
    return at.times(at.site("Mul", at.x, gate), 0.5)


def _gelu_by_tanh(at: Given) -> ir.Value:
    """x/2·(1 + tanh(√(2/π)·x·(1 + 0.044715·x²)))."""
    if text_of(at.node, "approximate", "none") != "tanh":
        raise Declined("is that of erf")
    cubic = at.site("Add", at.times(at.site("Mul", at.x, at.x), 0.044715), at.number(1.0))
    inside = at.times(at.site("Mul", at.x, cubic), math.sqrt(2 / math.pi))
    return at.times(at.site("Mul", at.x, at.site("Add", at.site("Tanh", inside), at.number(1.0))), 0.5)


def _mish(at: Given) -> ir.Value:
    """x·tanh(log(1 + eˣ)) = x·(1 − r²)/(1 + r²) with r = σ(−x) = 1/(1 + eˣ)."""
    return at.site("Mul", at.x, _mish_gate(at))


def _mish_gate(at: Given) -> ir.Value:
    r = at.site("Sigmoid", at.times(at.x, -1.0))
    square = at.site("Mul", r, r)
    one = at.number(1.0)
    return at.site("Div", at.site("Sub", one, square), at.site("Add", square, one))


def _softplus_below_tanh(at: Given) -> Written:
    """tanh(log(1 + eˣ)), the gate of Mish as exporters write it."""
    users = readers(at.node.outputs[0])
    if len(users) != 1 or not is_standard(users[0][0], "Tanh") or at.node.outputs[0].is_graph_output():
        raise Declined("is read by other than one Tanh")
    return Written(users[0][0], _mish_gate(at))


def _softplus(at: Given) -> ir.Value:
    """log(1 + eˣ) = max(x, 0) + log(1 + e^−|x|), which does not overflow."""
    decaying = at.site("Exp", at.site("Min", at.x, at.times(at.x, -1.0)))
    return at.site("Add", at.site("Relu", at.x), at.site("Log", at.site("Add", decaying, at.number(1.0))))


def _softsign(at: Given) -> ir.Value:
    """x/(1 + |x|)."""
    return at.site("Div", at.x, at.site("Add", at.absolute(at.x), at.number(1.0)))


def _elu(gain: float, alpha: float, width: float, *, by_tanh: bool) -> Callable[[Given], ir.Value]:
    """gain·(max(x, 0) + α(e^(min(x, 0)/width) − 1)) with the defaults of one operator; Celu's α is both.

    e^z − 1 = 2t/(1 − t) with t = tanh(z/2), where z ≤ 0 leaves 1 − t between 1 and 2.
    """

    def write(at: Given) -> ir.Value:
        scale, steep = at.float_of("gamma", gain), at.float_of("alpha", alpha)
        stretch = steep if at.node.op_type == "Celu" else width
        negative = at.site("Min", at.x, at.number(0.0))
        if by_tanh:
            t = at.site("Tanh", at.times(negative, 0.5 / stretch))
            below = at.times(at.site("Div", t, at.site("Sub", at.number(1.0), t)), 2 * scale * steep)
        else:
            fading = at.site("Add", at.site("Exp", at.times(negative, 1 / stretch)), at.number(-1.0))
            below = at.times(fading, scale * steep)
        return at.site("Add", at.times(at.site("Relu", at.x), scale), below)

    return write


def _hard_sigmoid(at: Given) -> ir.Value:
    """min(max(αx + β, 0), 1)."""
    line = at.site("Add", at.times(at.x, at.float_of("alpha", 0.2)), at.number(at.float_of("beta", 0.5)))
    return at.site("Clip", line, at.number(0.0), at.number(1.0))


def _hard_swish(at: Given) -> ir.Value:
    """x·min(max(x + 3, 0), 6)/6."""
    inside = at.site("Clip", at.site("Add", at.x, at.number(3.0)), at.number(0.0), at.number(6.0))
    return at.times(at.site("Mul", at.x, inside), 1 / 6)


def _clip(at: Given) -> ir.Value:
    """min(max(x, low), high)."""
    bounds = [clip_bound(at.node, which) for which in BOUNDS]
    if any(isinstance(bound, str) for bound in bounds):
        raise Declined("its bounds are computed")
    value = at.x
    for bound, op_type in zip(bounds, ("Max", "Min"), strict=True):
        value = value if bound is None or isinstance(bound, str) else at.site(op_type, value, at.number(bound))
    if value is at.x:
        raise Declined("has no bounds")
    return value


def _leaky_relu(at: Given) -> ir.Value:
    """max(x, 0) − α·max(−x, 0)."""
    return _two_slopes(at, at.times(_below(at), -at.float_of("alpha", 0.01)))


def _prelu(at: Given) -> ir.Value:
    """max(x, 0) − s·max(−x, 0), s being constant or not."""
    slope = at.node.inputs[1]
    assert slope is not None
    return _two_slopes(at, at.times(at.site("Mul", _below(at), slope), -1.0))


def _below(at: Given) -> ir.Value:
    return at.site("Relu", at.times(at.x, -1.0))


def _two_slopes(at: Given, below: ir.Value) -> ir.Value:
    return at.site("Add", at.site("Relu", at.x), below)


FUNCTIONS = (
    Form("Abs", ("Max", "Mul"), _abs),
    Form("Celu", ("Add", "Exp", "Min", "Mul", "Relu"), _elu(1.0, 1.0, 1.0, by_tanh=False), "Exp"),
    Form("Celu", ("Add", "Div", "Min", "Mul", "Relu", "Sub", "Tanh"), _elu(1.0, 1.0, 1.0, by_tanh=True), "Tanh"),
    Form("Clip", ("Max", "Min"), _clip),
    Form("Elu", ("Add", "Exp", "Min", "Mul", "Relu"), _elu(1.0, 1.0, 1.0, by_tanh=False), "Exp"),
    Form("Elu", ("Add", "Div", "Min", "Mul", "Relu", "Sub", "Tanh"), _elu(1.0, 1.0, 1.0, by_tanh=True), "Tanh"),
    Form("Gelu", ("Add", "Erf", "Mul"), _gelu_by_erf, "Erf"),
    Form("Gelu", ("Add", "Mul", "Tanh"), _gelu_by_tanh, "Tanh"),
    Form("HardSigmoid", ("Add", "Clip", "Mul"), _hard_sigmoid),
    Form("HardSwish", ("Add", "Clip", "Mul"), _hard_swish),
    Form("LeakyRelu", ("Add", "Mul", "Relu"), _leaky_relu),
    Form("Mish", ("Add", "Div", "Mul", "Sigmoid", "Sub"), _mish),
    Form("Neg", ("Mul",), _neg),
    Form("Pow", ("Div", "Mul", "Sqrt"), _pow),
    Form("PRelu", ("Add", "Mul", "Relu"), _prelu),
    Form("Reciprocal", ("Div",), _reciprocal),
    Form("Selu", ("Add", "Exp", "Min", "Mul", "Relu"), _elu(1.0507010, 1.6732632, 1.0, by_tanh=False), "Exp"),
    Form("Selu", ("Add", "Div", "Min", "Mul", "Relu", "Sub", "Tanh"), _elu(1.0507010, 1.6732632, 1.0, by_tanh=True), "Tanh"),
    Form("Sigmoid", ("Add", "Mul", "Tanh"), _sigmoid_by_tanh),
    Form("Softplus", ("Add", "Div", "Mul", "Sigmoid", "Sub"), _softplus_below_tanh, "Sigmoid"),
    Form("Softplus", ("Add", "Exp", "Log", "Min", "Mul", "Relu"), _softplus, "Log"),
    Form("Softsign", ("Add", "Div", "Max", "Mul"), _softsign),
    Form("Swish", ("Mul", "Sigmoid"), _swish),
    Form("Tanh", ("Add", "Mul", "Sigmoid"), _tanh_by_sigmoid),
)  # fmt: skip
