"""The skeleton of a model: its operators and who feeds whom, with everything left out that does not matter to roles.

Casts and pairs are looked through; calls of local functions are opened, once per call; bodies of If, Loop and Scan are part of
the whole. One node of a function may stand for several operators here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.kinds import data_inputs, is_passed, kind_of
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.uses import bodies_of, constant_array, in_order, integers_of

#: Operators at most: calls of functions beyond that stay closed (functions that call each other twice double at each level).
LIMIT = 100_000
#: Operators that read no data, only how much of it there is.
SHAPES = frozenset({"Shape", "Size"})


class Tensor:
    """What one operator writes and others read.

    Args:
        value: a value of the file that it stands for: what its maker writes, a parameter or an input.
        maker: the operator that writes it, None for parameters and inputs.
        live: whether it depends on an input of the model; shapes of inputs do not count.
    """

    __slots__ = ("dequantized", "is_output", "live", "maker", "quantizers", "readers", "value")

    def __init__(self, value: ir.Value | None, maker: Op | None = None, *, live: bool = False) -> None:
        self.value = value
        self.maker = maker
        self.live = live
        #: Operators that read it, each once per input; those that only ask for its shape do not count.
        self.readers: list[Op] = []
        #: Whether it is an output of the model.
        self.is_output = False
        #: Whether a DequantizeLinear makes floats of it.
        self.dequantized = False
        #: QuantizeLinear nodes that it goes through.
        self.quantizers: list[ir.Node] = []


class Op:
    """An operator of the skeleton.

    Args:
        node: the node it stands for; for kind ``Choose`` the node that holds the bodies.
        kind: the operator, whatever its domain and precision.
        inputs: every input that is given.
        data: those of them that are data, in order.
    """

    __slots__ = ("data", "inputs", "kind", "node", "outputs")

    def __init__(self, node: ir.Node, kind: str, inputs: list[Tensor], data: list[Tensor]) -> None:
        self.node = node
        self.kind = kind
        self.inputs = inputs
        self.data = data
        self.outputs: list[Tensor] = []

    @property
    def output(self) -> Tensor:
        """The first output."""
        return self.outputs[0]

    def live_data(self) -> list[Tensor]:
        """Data that depends on an input of the model."""
        return [tensor for tensor in self.data if tensor.live]

    def other(self, tensor: Tensor) -> Tensor | None:
        """The other one of two operands; None where there are not two, or ``tensor`` is both."""
        if len(self.data) != 2 or self.data[0] is self.data[1]:
            return None
        return self.data[1] if self.data[0] is tensor else self.data[0]


@dataclass(eq=False)
class Skeleton:
    """The operators of a model.

    Args:
        ops: producers first.
        passed: casts, identities and dropouts that were looked through, in order; no halves of pairs.
    """

    ops: list[Op] = field(default_factory=list)
    passed: list[ir.Node] = field(default_factory=list)

    def nodes(self, ops: Iterable[Op]) -> set[ir.Node]:
        """The nodes of ``ops``, and the casts between two of them."""
        found = {op.node for op in ops if op.kind != "Choose"}
        behind: set[ir.Node] = set()
        for node in self.passed:
            producer = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
            if producer in found or producer in behind:
                behind.add(node)
        between: set[ir.Node] = set()
        for node in reversed(self.passed):
            if node in behind and any(n in found or n in between for value in node.outputs for n in value.consumers()):
                between.add(node)
        return found | between


def skeleton_of(model: ir.Model) -> Skeleton:
    """The skeleton of ``model``."""
    builder = _Builder(model)
    env: dict[ir.Value, Tensor] = {}
    builder.run(model.graph, env, frozenset())
    for value in model.graph.outputs:
        if value in env:
            env[value].is_output = True
    return builder.skeleton


class _Builder:
    def __init__(self, model: ir.Model) -> None:
        self.functions = model.functions
        self.skeleton = Skeleton()

    def run(self, graph: ir.Graph | ir.Function, env: dict[ir.Value, Tensor], calls: frozenset[ir.Function]) -> None:
        for node in in_order(graph):
            function = self.functions.get(node.op_identifier()) if self.functions else None
            if function is not None and function not in calls and len(self.skeleton.ops) < LIMIT:
                self._open(node, function, env, calls | {function})
            elif is_passed(node) and node.inputs and node.inputs[0] is not None:
                self._pass(node, node.inputs[0], env)
            else:
                bodies = bodies_of(node)
                if bodies:
                    self._bodies(node, bodies, env, calls)
                else:
                    self._op(node, env)

    def _tensor(self, value: ir.Value, env: dict[ir.Value, Tensor]) -> Tensor:
        tensor = env.get(value)
        if tensor is None:
            is_parameter = value.const_value is not None or value.is_initializer()
            tensor = env[value] = Tensor(value, live=not is_parameter)
        return tensor

    def _add(self, op: Op, values: list[ir.Value | None], env: dict[ir.Value, Tensor], *, live: bool) -> None:
        if op.kind not in SHAPES:
            for tensor in op.inputs:
                tensor.readers.append(op)
        for value in values:
            made = Tensor(value, op, live=live)
            op.outputs.append(made)
            if value is not None:
                env[value] = made
        self.skeleton.ops.append(op)

    def _op(self, node: ir.Node, env: dict[ir.Value, Tensor]) -> None:
        kind = kind_of(node)
        if kind == "Constant":
            env[node.outputs[0]] = Tensor(node.outputs[0])
            return
        given = [self._tensor(value, env) if value is not None else None for value in node.inputs]
        data = [t for k in data_inputs(node, kind) if k < len(given) and (t := given[k]) is not None]
        inputs = [t for t in given if t is not None]
        live = kind not in SHAPES and any(t.live for t in inputs)
        self._add(Op(node, kind, inputs, data), list(node.outputs), env, live=live)

    def _pass(self, node: ir.Node, value: ir.Value, env: dict[ir.Value, Tensor]) -> None:
        tensor = self._tensor(value, env)
        if is_dequantize(node):
            tensor.dequantized = True
        elif is_quantize(node):
            tensor.quantizers.append(node)
        elif node.domain in ("", "ai.onnx") and node.op_type in ("Cast", "CastLike", "Dropout", "Identity"):
            self.skeleton.passed.append(node)
        for k, output in enumerate(node.outputs):
            env[output] = Tensor(output) if k else tensor  # beyond the first: scales, zero points, masks of dropouts

    def _open(
        self, node: ir.Node, function: ir.Function, env: dict[ir.Value, Tensor], calls: frozenset[ir.Function]
    ) -> None:
        inner: dict[ir.Value, Tensor] = {}
        for inside, given in zip(function.inputs, [*node.inputs, *[None] * len(function.inputs)], strict=False):
            inner[inside] = self._tensor(given, env) if given is not None else Tensor(inside)
        self.run(function, inner, calls)
        for outside, inside in zip(node.outputs, function.outputs, strict=False):
            env[outside] = self._tensor(inside, inner)

    def _bodies(
        self, node: ir.Node, bodies: list[ir.Graph], env: dict[ir.Value, Tensor], calls: frozenset[ir.Function]
    ) -> None:
        """Bodies of If, Loop, Scan: what they read from outside is theirs by value, what goes in or out is chosen."""
        skipped = 1 if node.op_type == "Loop" else 0  # outputs of a Loop's body begin with its condition
        for body in bodies:
            for inside, outside in zip(body.inputs, [*node.inputs, *[None] * len(body.inputs)], strict=False):
                given = [self._tensor(outside, env)] if outside is not None and inside not in env else []
                if given:
                    self._add(Op(node, "Choose", given, given), [inside], env, live=True)
            self.run(body, env, calls)
        for k, outside in enumerate(node.outputs):
            ends = [body.outputs[k + skipped] for body in bodies if k + skipped < len(body.outputs)]
            given = [self._tensor(end, env) for end in ends]
            self._add(Op(node, "Choose", given, given), [outside], env, live=any(t.live for t in given))


def dims(tensor: Tensor) -> tuple[int, ...] | None:
    """Shape of ``tensor`` where all of it is known; through a Transpose of a parameter."""
    value, maker = tensor.value, tensor.maker
    if value is not None and value.shape is not None and value.shape.is_static():
        return tuple(value.shape.numpy())
    if value is not None and value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    if value is not None and maker is None and (array := constant_array(value)) is not None:
        return tuple(array.shape)
    if maker is not None and maker.kind == "Transpose" and (inner := dims(maker.data[0])) is not None:
        perm = integers_of(maker.node, "perm") or list(reversed(range(len(inner))))
        return tuple(inner[k] for k in perm) if len(perm) == len(inner) else None
    return None


def rank_of(tensor: Tensor) -> int | None:
    """Number of dimensions of ``tensor``, as far as it is known."""
    if tensor.value is not None and tensor.value.shape is not None:
        return len(tensor.value.shape)
    shape = dims(tensor)
    return None if shape is None else len(shape)


def number(tensor: Tensor) -> float | None:
    """The number that ``tensor`` always is; None when it is no float constant of one element, or several equal ones are not."""
    if tensor.maker is not None or tensor.value is None or tensor.live:
        return None
    shape = dims(tensor)
    if shape is None or len(shape) > 8 or any(d != 1 for d in shape):
        return None
    array = constant_array(tensor.value)
    if array is None or (array.dtype.kind in "iub" and tensor.dequantized) or array.size != 1:
        return None
    return float(array.reshape(-1)[0]) if array.dtype.kind != "O" else None
