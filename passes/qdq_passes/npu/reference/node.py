"""What an operator of the reference sees of its node: inputs as integers or as numbers, constants, the arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qdq_passes.npu.formulas.functions import function_of
from qdq_passes.npu.reference.values import PENDING, NotRepresentable, Pending, Stored, Value, stored, with_function
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.arrays import Array


@dataclass(frozen=True, eq=False)
class ReferenceNode:
    """A node that the NPU computes, and its inputs.

    Args:
        node: the node.
        opset: of the model.
        arithmetic: of the target.
        value: what a value is.
        constant: the numbers of a constant, None of what is computed.
    """

    node: ir.Node
    opset: int
    arithmetic: Arithmetic
    value: Callable[[ir.Value], Value]
    constant: Callable[[ir.Value], Array | None]

    def has(self, index: int) -> bool:
        """Whether input ``index`` is there."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def stored(self, index: int) -> Stored:
        """Input ``index`` as integers behind an encoding.

        Raises:
            NotRepresentable: it is left out, or there are none behind it.
        """
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        if value is None:
            raise NotRepresentable(f"it has no input {index}")
        return stored(self.value(value), value.name)

    def array(self, index: int) -> Array | None:
        """Input ``index`` as numbers (a shape, indices, a mask, a float); None where it is left out.

        Raises:
            NotRepresentable: it stays on the NPU as integers of no encoding.
        """
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        if value is None:
            return None
        found = self.value(value)
        if isinstance(found, PENDING):
            raise NotRepresentable(f"{value.name} stays on the NPU as integers of no encoding")
        return found.real() if isinstance(found, Stored) else found

    @property
    def has_a_number(self) -> bool:
        """Whether one of two inputs is one constant float that is not stored as an integer: a function of the other."""
        return len(self.node.inputs) == 2 and any(self.is_number(index) for index in (0, 1))

    def is_number(self, index: int) -> bool:
        """Whether input ``index`` is one constant float that is not stored as an integer."""
        value = self.node.inputs[index]
        found = None if value is None else self.value(value)
        return (
            isinstance(found, np.ndarray) and found.size == 1 and value is not None and self.constant(value) is not None
        )

    def function(self) -> Pending | None:
        """What the function of one value that the operator is makes of it; None where it is none.

        Raises:
            NotRepresentable: its parameters are not known, or nothing computes it in one step with what is before it.
        """
        found = function_of(self.node, self.constant)
        if isinstance(found, str):
            raise NotRepresentable(found)
        if found is None or self.node.op_type == "Identity":
            return None
        source = self.node.inputs[found.input]
        value = None if source is None else self.value(source)
        return with_function(value if isinstance(value, PENDING) else self.stored(found.input), found)
