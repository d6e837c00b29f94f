"""The nodes of a gradient: what rules build with, and the walk backwards over the graph that calls them.

Every operator has one rule (`RULES`): from the gradients of its outputs it makes that of one input. A rule reads shapes as
numbers, those of one run: a gradient is of a graph at the shapes of its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx_ir import tape
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import has_body, is_standard, label, op_type_of, values_read
from qdq_passes.numerics.arrays import Array

#: The gradient of input ``index`` of a node, from those of its outputs (None: nothing behind depends on this one).
Rule = Callable[["Backward", ir.Node, int, Sequence[ir.Value | None]], ir.Value | None]
RULES: dict[str, Rule] = {}
_OTHER_FLOATS = frozenset(np.dtype(kind) for kind in (np.float16, np.float64, ml_dtypes.bfloat16))
#: First opset with everything that rules make: ScatterElements that adds (16), ReduceMean whose axes are an input (18).
OPSET = 18
#: Operators all of whose outputs have a gradient; of others the first alone has one.
_SEVERAL = frozenset({"Split"})
#: Where no gradient passes: what they give is counted, compared or chosen, not computed.
_ENDS = frozenset(
    {
        "And", "ArgMax", "ArgMin", "Ceil", "ConstantOfShape", "Equal", "Floor", "Greater", "GreaterOrEqual", "IsInf", "IsNaN",
        "Less", "LessOrEqual", "NonZero", "Not", "Or", "Range", "Round", "Shape", "Sign", "Size", "Xor",
    }
)  # fmt: skip


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Make a function the rule of ``operators``, written as `qdq_passes.graph.uses.op_type_of` writes them."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return register


class Looks(Protocol):
    """What an array has."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its type."""


class Backward:
    """Makes nodes at the end of ``model``.

    Args:
        model: edited in place; what a gradient passes is float32, or integers between a pair.
        values: what each value of its main graph looks like, by name.
        others: the shape of those that look otherwise on other samples.
    """

    def __init__(
        self, model: ir.Model, values: Mapping[str, Looks], others: Mapping[str, tuple[int, ...]] | None = None
    ) -> None:
        self.model, self._values, self._others = model, values, others or {}
        self._tape, self._namer = tape.Tape(model.graph), Namer(model)

    def __call__(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """The output of a new node."""
        value = self._tape.op(op_type, inputs, attributes or None)
        return self._named(value)

    def several(self, op_type: str, count: int, *inputs: ir.Value | None, **attributes: Any) -> list[ir.Value]:
        """The outputs of a new node of ``count`` of them."""
        values = self._tape.op_multi_out(op_type, inputs, attributes or None, num_outputs=count)
        return [self._named(value) for value in values]

    def constant(self, array: Array | Sequence[int]) -> ir.Value:
        """A new constant; a list is one of int64."""
        data = np.asarray(array, np.int64) if isinstance(array, list | tuple) else np.asarray(array)
        return self._tape.initializer(ir.tensor(data, name=self._namer.fresh("gradient_constant")))

    def number(self, number: float) -> ir.Value:
        """A constant float32 of no dimensions."""
        return self.constant(np.array(number, np.float32))

    def shape(self, value: ir.Value | None) -> tuple[int, ...]:
        """The shape of a value of the forward graph."""
        assert value is not None
        if value.const_value is not None:
            return tuple(value.const_value.shape.numpy())
        return self._values[value.name or ""].shape

    def dtype(self, value: ir.Value | None) -> np.dtype[Any]:
        """The type of a value of the forward graph."""
        assert value is not None
        return (
            np.dtype(value.const_value.dtype.numpy())
            if value.const_value is not None
            else self._values[value.name or ""].dtype
        )

    def fed(self, name: str, shape: Sequence[int]) -> ir.Value:
        """A new input of float32; the model must have nothing of that name."""
        value = ir.Value(name=self._namer.fresh(name), type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
        self.model.graph.inputs.append(value)
        return value

    def reshaped(self, value: ir.Value, shape: Iterable[int]) -> ir.Value:
        """``value`` in another shape."""
        return self("Reshape", value, self.constant(list(shape)))

    def transposed(self, value: ir.Value, perm: Sequence[int]) -> ir.Value:
        """``value`` with axes in another order."""
        return self("Transpose", value, perm=list(perm))

    def total(self, value: ir.Value, axes: Sequence[int], *, keep: bool = True) -> ir.Value:
        """The sum over ``axes``."""
        return self("ReduceSum", value, self.constant(list(axes)), keepdims=int(keep))

    def mean(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """The mean over ``axes``, which stay."""
        return self("ReduceMean", value, self.constant(list(axes)))

    def where(self, condition: ir.Value, gradient: ir.Value) -> ir.Value:
        """``gradient`` where ``condition`` holds, 0 elsewhere."""
        return self("Where", condition, gradient, self.number(0.0))

    def fitted(self, gradient: ir.Value, result: Sequence[int], wanted: Sequence[int]) -> ir.Value:
        """``gradient`` of shape ``result`` summed up over the axes along which an operand of shape ``wanted`` was repeated."""
        if tuple(result) == tuple(wanted):
            return gradient
        extra = len(result) - len(wanted)
        axes = [*range(extra), *(extra + k for k, size in enumerate(wanted) if size == 1 and result[extra + k] != 1)]
        total = self.total(gradient, axes) if axes else gradient
        return self.reshaped(total, wanted) if extra else total

    def of(self, seeds: Mapping[ir.Value, ir.Value], wanted: Sequence[ir.Value]) -> dict[ir.Value, ir.Value]:
        """Gradients of ``wanted``, those that anything depends on.

        Args:
            seeds: gradients of values, which need not be outputs.
            wanted: values of the forward graph.

        Raises:
            UnsupportedError: an operator between the two has no rule.
        """
        nodes = list(self.model.graph)[: -len(self._tape.nodes) or None] if self._tape.nodes else list(self.model.graph)
        moved = _depending(nodes, wanted)
        found: dict[ir.Value, ir.Value] = dict(seeds)
        for node in reversed(nodes):
            given = [found.get(value) for value in node.outputs]
            if not any(given) or is_standard(node, *_ENDS):
                continue
            self._refuse(node, moved, given)
            if given[0] is None and node.op_type not in _SEVERAL:
                continue
            for index, value in enumerate(node.inputs):
                if value is None or value not in moved:
                    continue
                made = _rule_of(node)(self, node, index, given)
                if made is not None:
                    found[value] = self("Add", found[value], made) if value in found else made
        return {value: found[value] for value in wanted if value in found}

    def _refuse(self, node: ir.Node, moved: set[ir.Value], given: Sequence[ir.Value | None]) -> None:
        """Refuse what no rule is about.

        Raises:
            UnsupportedError: a body, another float type, an output that has no gradient, or a shape that depends on the data.
        """
        if not any(value in moved for value in values_read(node)):
            return
        if has_body(node):
            raise UnsupportedError(f"no gradient of {node.op_type} is known", where=label(node))
        if any(given[1:]) and node.op_type not in _SEVERAL:
            raise UnsupportedError("no gradient of its other outputs is known", where=label(node))
        passed = [value for value in (*node.inputs, *node.outputs) if value is not None and value in moved]
        for name in (value.name or "" for value in passed):
            if name in self._others:
                shapes = f"{list(self._values[name].shape)} and {list(self._others[name])}"
                raise UnsupportedError(
                    f"no gradient is known where shapes depend on the data: {shapes}", where=label(node)
                )
        kinds = [self._values[value.name or ""].dtype for value in passed if value.name in self._values]
        odd = next((kind for kind in kinds if kind in _OTHER_FLOATS), None)
        if odd is not None:
            raise UnsupportedError(f"no gradient in {odd} is known", where=label(node))

    def _named(self, value: ir.Value) -> ir.Value:
        value.name = self._namer.fresh("gradient")
        node = value.producer()
        assert node is not None
        node.name = node.name or self._namer.fresh("gradient_node")
        return value


def _depending(nodes: Sequence[ir.Node], wanted: Iterable[ir.Value]) -> set[ir.Value]:
    """``wanted``, and what is computed of them."""
    moved = set(wanted)
    for node in nodes:
        if not is_standard(node, *_ENDS) and any(value in moved for value in values_read(node)):
            moved.update(node.outputs)
    return moved


def _rule_of(node: ir.Node) -> Rule:
    found = RULES.get(op_type_of(node))
    if found is None:
        raise UnsupportedError(f"no gradient of {op_type_of(node)} is known", where=label(node))
    return found
