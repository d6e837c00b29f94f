"""unroll-recurrent

x [T, B, I], weights W [G·H, I] and R [G·H, H] of G gates, biases b and c; h₋₁ = 0 or given, per direction and step:

    RNN     h = f(xW + hR + b + c)
    GRU     z, r = f(…);  n = g(xWn + bn + (r⊙h)Rn + cn), before a reset g(xWn + bn + r⊙(hRn + cn));  h = n + z⊙(h − n)
    LSTM    i, o, f = f(… + p⊙C);  C = f⊙C + i⊙g(…);  h = o⊙h(C)"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.build import Builder, Site, drop_chains, take_place
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import constant_array, input_at, integer_of, text_of
from qdq_passes.legalize.edit.forms import Declined
from qdq_passes.select.selectors import ALL, Selector, nodes_of_types

Recurrent = Literal["GRU", "LSTM", "RNN"]
#: Operator → its gates, in the order of its weights.
GATES = {"GRU": "zrn", "LSTM": "iofc", "RNN": "h"}
#: Functions of each where none are said.
_DEFAULTS = {"GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh"), "RNN": ("Tanh",)}
#: Functions that are operators of one input, without parameters or with the same defaults.
_FUNCTIONS = ("Elu", "HardSigmoid", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
#: Opset since which Slice takes its bounds as inputs.
OLDEST = 10


@dataclass(frozen=True)
class UnrollRecurrent(Pass):
    """Write GRU, LSTM and RNN step by step with MatMul, Add, Mul, Sub, Slice, Concat and their functions.

    Each gate has weights, and with them scales, of its own. What the input gives to a gate is one product for all steps.

    Graph: ``x, W, R → GRU → y, h`` → for each gate ``x → MatMul → Add``, for each step ``→ Slice``, ``h → MatMul``, ``→ Add →
    Sigmoid → …``; ``Concat → Unsqueeze → y``. Both directions, ``linear_before_reset``, initial states, peepholes, and the
    batch first (``layout`` 1) are written too.
    Requires: the number of steps (fix-shapes), constant weights.
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: more than ``most`` steps, sequences of other lengths, ``clip``, ``input_forget``, functions with parameters, opsets
        below 10.

    Args:
        select: the operators.
        operators: the types of them that are written.
        most: steps at most; each of a GRU is about 15 nodes.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=2.0**-12,
        why="sums of K = I + H ≤ 2^10 products in another order are off by about √K·2^-24 = 2^-19 of their size; the functions "
        "do not amplify that, and it adds up over at most 2^7 steps",
    )
    select: Selector = ALL
    operators: tuple[Recurrent, ...] = ("GRU", "LSTM", "RNN")
    most: int = 128

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Node by node."""
        builder, inferred = Builder(model), Inferred(model)
        for node in nodes_of_types(model, self.select, *self.operators):
            try:
                layer = _layer(node, builder.at(node), inferred, self.most)
            except Declined as reason:
                yield skip(node, str(reason))
                continue
            read = list(node.inputs)
            yield take_place(node, layer.written(), builder.namer, f"{layer.steps} steps, each written out")
            yield from drop_chains(read)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Layer:
    """A recurrent operator.

    Args:
        node: the operator.
        site: makes nodes before it.
        dtype: element type.
        steps: how many.
        functions: of each direction.
        weights, recurrent: [D, G, H, I] and [D, G, H, H].
        biases: [D, 2, G, H].
        peepholes: [D, 3, H], zeros where there are none.
    """

    node: ir.Node
    site: Site
    dtype: ir.DataType
    steps: int
    functions: list[tuple[str, ...]]
    weights: npt.NDArray[Any]
    recurrent: npt.NDArray[Any]
    biases: npt.NDArray[Any]
    peepholes: npt.NDArray[Any]

    @property
    def is_batch_first(self) -> bool:
        """Whether the batch comes before the steps."""
        return bool(integer_of(self.node, "layout", 0))

    def written(self) -> list[ir.Value | None]:
        """What takes the place of the outputs; None for what nobody reads."""
        site, wanted = self.site, [bool(v.uses()) or v.is_graph_output() for v in self.node.outputs]
        x = self.node.inputs[0]
        assert x is not None
        x = site.transpose(x, 1, 0, 2) if self.is_batch_first else x
        directions = [self._direction(index, x) for index in range(len(self.functions))]
        made: list[ir.Value | None] = [None] * len(wanted)
        if wanted[0]:
            states = [site.unsqueeze(self._joined(found.states, 0), 1) for found in directions]
            made[0] = self._turned(self._joined(states, 1), 2, 0, 1, 3)
        for index, is_wanted in enumerate(wanted[1:], start=1):
            if is_wanted:
                ends = [found.last if index == 1 else found.cell for found in directions]
                made[index] = self._turned(self._joined([end for end in ends if end is not None], 0), 1, 0, 2)
        return made

    def _direction(self, index: int, x: ir.Value) -> _Direction:
        """The steps of direction ``index`` over ``x`` [T, B, I]."""
        found = _Direction(layer=self, index=index)
        found.last, found.cell = (self._initial(place, index) for place in (5, 6))
        for gate, name in enumerate(GATES[self.node.op_type]):
            product = self.site("MatMul", x, self.array(self.weights[index, gate].T, f"W{name}"))
            own = self.biases[index, 0, gate]
            bias = own if found.keeps_bias(name) else own + self.biases[index, 1, gate]
            found.projected[name] = self.plus(product, bias, f"b{name}")
        is_reverse = text_of(self.node, "direction", "forward") == "reverse" or index == 1
        for step in reversed(range(self.steps)) if is_reverse else range(self.steps):
            found.step(step)
        found.states = found.states[::-1] if is_reverse else found.states
        return found

    def _initial(self, place: int, index: int) -> ir.Value | None:
        """The state [1, B, H] that direction ``index`` starts from; None for zeros."""
        value = input_at(self.node, place)
        data = constant_array(value)
        if value is None or (data is not None and not data.any()):
            return None
        value = self.site.transpose(value, 1, 0, 2) if self.is_batch_first else value
        return value if len(self.functions) == 1 else self.site.slice(value, 0, index, index + 1)

    def _joined(self, values: list[ir.Value], axis: int) -> ir.Value:
        return values[0] if len(values) == 1 else self.site("Concat", *values, axis=axis)

    def _turned(self, value: ir.Value, *order: int) -> ir.Value:
        return self.site.transpose(value, *order) if self.is_batch_first else value

    def array(self, data: npt.NDArray[Any], word: str) -> ir.Value:
        """``data`` as a constant."""
        return self.site.constant(data, self.dtype, word)

    def plus(self, value: ir.Value, bias: npt.NDArray[Any], word: str) -> ir.Value:
        """``value`` + ``bias`` [H]; nothing is made for zeros."""
        return self.site("Add", value, self.array(bias, word)) if bias.any() else value


@dataclass(eq=False, kw_only=True)
class _Direction:
    """One direction of a layer, as far as its steps are written.

    Args:
        layer: the layer.
        index: of the direction.
        projected: gate → what the input gives to it in each step [T, B, H].
        states: h of each step [1, B, H], in the order of the steps.
        last, cell: h and C after the last step; None for zeros.
    """

    layer: _Layer
    index: int
    projected: dict[str, ir.Value] = field(default_factory=dict)
    states: list[ir.Value] = field(default_factory=list)
    last: ir.Value | None = None
    cell: ir.Value | None = None

    def keeps_bias(self, gate: str) -> bool:
        """Whether the bias of the recurrent product of ``gate`` stays with it, where a reset multiplies both."""
        return gate == "n" and bool(integer_of(self.layer.node, "linear_before_reset", 0))

    def step(self, step: int) -> None:
        """Write one step."""
        x = {name: self.layer.site.slice(value, 0, step, step + 1) for name, value in self.projected.items()}
        self.last = {"GRU": self._gru, "LSTM": self._lstm, "RNN": self._rnn}[self.layer.node.op_type](x)
        self.states.append(self.last)

    def _rnn(self, x: dict[str, ir.Value]) -> ir.Value:
        return self._function(0, self._gate("h", x["h"]))

    def _gru(self, x: dict[str, ir.Value]) -> ir.Value:
        site, state = self.layer.site, self.last
        update = self._function(0, self._gate("z", x["z"]))
        inside: ir.Value | None = None
        if self.keeps_bias("n"):
            bias = self.layer.biases[self.index, 1, 2]
            if state is not None:
                inside = self.layer.plus(self._product("n", state), bias, "cn")
            elif bias.any():
                inside = self.layer.array(bias, "cn")
            inside = None if inside is None else site("Mul", self._reset(x), inside)
        elif state is not None:
            inside = self._product("n", site("Mul", self._reset(x), state))
        new = self._function(1, x["n"] if inside is None else site("Add", x["n"], inside))
        if state is None:
            return site("Sub", new, site("Mul", update, new))
        return site("Add", new, site("Mul", update, site("Sub", state, new)))

    def _reset(self, x: dict[str, ir.Value]) -> ir.Value:
        return self._function(0, self._gate("r", x["r"]))

    def _lstm(self, x: dict[str, ir.Value]) -> ir.Value:
        site, cell = self.layer.site, self.cell
        new = self._function(1, self._gate("c", x["c"]))
        enter = site("Mul", self._function(0, self._gate("i", self._peep(0, x["i"], cell))), new)
        if cell is not None:
            forget = self._function(0, self._gate("f", self._peep(2, x["f"], cell)))
            enter = site("Add", site("Mul", forget, cell), enter)
        self.cell = enter
        gate = self._function(0, self._gate("o", self._peep(1, x["o"], enter)))
        return site("Mul", gate, self._function(2, enter))

    def _gate(self, name: str, x: ir.Value) -> ir.Value:
        return x if self.last is None else self.layer.site("Add", x, self._product(name, self.last))

    def _product(self, name: str, state: ir.Value) -> ir.Value:
        data = self.layer.recurrent[self.index, GATES[self.layer.node.op_type].index(name)]
        return self.layer.site("MatMul", state, self.layer.array(data.T, f"R{name}"))

    def _peep(self, place: int, x: ir.Value, cell: ir.Value | None) -> ir.Value:
        data = self.layer.peepholes[self.index, place]
        if cell is None or not data.any():
            return x
        return self.layer.site(
            "Add", x, self.layer.site("Mul", cell, self.layer.array(data, "iof"[place] + "_peephole"))
        )

    def _function(self, place: int, value: ir.Value) -> ir.Value:
        return self.layer.site(self.layer.functions[self.index][place], value)


def _layer(node: ir.Node, site: Site, inferred: Inferred, most: int) -> _Layer:
    """What is known of ``node``.

    Raises:
        Declined: it is not written out.
    """
    x = node.inputs[0]
    dtype = None if x is None else inferred.dtype(x)
    if dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE):
        raise Declined(f"is of {'an unknown type' if dtype is None else dtype.name.lower()}")
    if site.opset < OLDEST:
        raise Declined(f"is of opset {site.opset}; run convert-opset")
    for name in ("clip", "input_forget", "activation_alpha", "activation_beta"):
        if name in node.attributes and (name != "input_forget" or integer_of(node, name, 0)):
            raise Declined(f"has the attribute {name}")
    sizes = inferred.sizes(x, [integer_of(node, "layout", 0)]) if x is not None else None
    if not sizes or not sizes[0]:
        raise Declined("the number of its steps is not known; run infer-shapes or fix-shapes first")
    if sizes[0] > most:
        raise Declined(f"has {sizes[0]} steps, more than {most}")
    lengths = constant_array(input_at(node, 4))
    if input_at(node, 4) is not None and (lengths is None or (lengths != sizes[0]).any()):
        raise Declined("its sequences have lengths of their own")
    count = 2 if text_of(node, "direction", "forward") == "bidirectional" else 1
    gates = len(GATES[node.op_type])
    weights, recurrent = _constant(node, 1, "weights"), _constant(node, 2, "weights")
    hidden = recurrent.shape[-1] if recurrent.ndim == 3 else 0
    if weights.shape[:2] != (count, gates * hidden) or recurrent.shape[:2] != weights.shape[:2] or not hidden:
        raise Declined(f"its weights have the shapes {list(weights.shape)} and {list(recurrent.shape)}")
    biases = _constant(node, 3, "bias", (count, 2 * gates * hidden))
    peepholes = _constant(node, 7, "peepholes", (count, 3 * hidden))
    return _Layer(
        node=node, site=site, dtype=dtype, steps=sizes[0], functions=_functions(node, count),
        weights=weights.reshape(count, gates, hidden, -1), recurrent=recurrent.reshape(count, gates, hidden, hidden),
        biases=biases.reshape(count, 2, gates, hidden), peepholes=peepholes.reshape(count, 3, hidden),
    )  # fmt: skip


def _constant(node: ir.Node, index: int, word: str, shape: tuple[int, ...] | None = None) -> npt.NDArray[Any]:
    """The data of input ``index``, zeros of ``shape`` where it is left out."""
    value = input_at(node, index)
    if value is None and shape is not None:
        return np.zeros(shape)
    data = constant_array(value)
    if data is None:
        raise Declined(f"its {word} are computed")
    if shape is not None and data.shape != shape:
        raise Declined(f"its {word} have the shape {list(data.shape)}")
    return data


def _functions(node: ir.Node, count: int) -> list[tuple[str, ...]]:
    """The operators that each direction computes."""
    defaults, given = _DEFAULTS[node.op_type], node.attributes.get("activations")
    known = {name.lower(): name for name in _FUNCTIONS}
    names = list(defaults) * count if given is None or given.is_ref() else [name.lower() for name in given.as_strings()]
    made = [known.get(name.lower(), "") for name in names]
    if len(made) != count * len(defaults) or "" in made:
        raise Declined(f"computes {', '.join(names)}")
    return [tuple(made[place : place + len(defaults)]) for place in range(0, len(made), len(defaults))]
