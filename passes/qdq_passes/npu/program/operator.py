"""What a class says of an operator of programs: the units it takes, the plan, what it writes, what that costs.

The reference (`npu.reference.run`) says what it means, the library (`ep/kernels`) computes it: both stand apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import ClassVar, Generic, TypeVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change
from qdq_passes.graph.operators.fused_products import Products
from qdq_passes.graph.uses import is_standard
from qdq_passes.npu.program.edit import Attributes, Replacement, Source
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding

#: What is written of a unit, found before anything is changed.
P = TypeVar("P")

Names = tuple[str, ...]
#: Type of an attribute: ``int``, ``float``, ``str``, or ``list`` of whole numbers.
AttributeTypes = Mapping[str, type]


@dataclass(frozen=True)
class Row:
    """An operator of the domain ai.qdqtool, as the library declares it beside its kernel.

    Args:
        name: its name.
        inputs: how many it has, at least and at most.
        attributes: the types of its attributes.
        shared: of those, what it has in common with its like: see `arithmetic` and `floating`.
    """

    name: str
    inputs: tuple[int, int]
    attributes: AttributeTypes = field(default_factory=dict)
    shared: AttributeTypes = field(default_factory=dict)


def arithmetic(name: str, inputs: tuple[int, int], **own: type) -> Row:
    """An operator that takes an exact sum to integers, with the attributes ``own`` beside those that say how."""
    shared = {
        "mode": str, "rounding": str, "overflow": str, "zero_point_first": int, "accumulator_bits": int,
        "accumulator_overflow": str, "y_zero_point": int, "y_low": int, "y_high": int, "y_type": int, "y_scale": float,
    }  # fmt: skip
    return Row(name, inputs, own, shared)


def floating(name: str, inputs: tuple[int, int], **own: type) -> Row:
    """An operator in floating point, with the attributes ``own`` beside what it rounds to."""
    return Row(name, inputs, own, {"precision": str, "y_type": int})


@dataclass(frozen=True)
class Effort:
    """What one operator does in one inference, before any chip is asked how long it takes.

    Args:
        products: on the matrix unit; None when it multiplies no matrices.
        groups: of a convolution; 1 of everything else.
        element_ops: on the vector unit, beside requantizing what is written.
    """

    products: Products | None = None
    groups: int = 1
    element_ops: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """One operator, and what requantizes behind it.

    Args:
        name: ``"Conv"`` of ai.qdqtool, ``"::MaxPool"`` of the default domain.
        inputs: what it reads.
        attributes: what it says.
        output: encoding of the unit's output.
        written: encoding of what the operator writes, where that is another one.
        turned: for each of the first inputs, whether it is a matrix to be transposed.
        first: the input that is made before the others: initializers stand in the order in which they are made.
    """

    name: str
    inputs: Sequence[Source]
    attributes: Attributes
    output: Encoding
    written: Encoding | None = None
    turned: tuple[bool, ...] = ()
    first: int = 0


class ProgramOperator(Generic[P]):
    """One operator of programs, or one way to write it."""

    #: The pass ``lower-<family>`` writes it.
    family: ClassVar[str]
    #: When it is asked: first what takes only some units of an operator, at last what takes whatever is left.
    turn: ClassVar[int] = 1
    #: Standard operators that it takes between QDQ pairs.
    takes: ClassVar[Names] = ()
    #: The operators of ai.qdqtool that it brings in, and the standard ones that it writes.
    rows: ClassVar[tuple[Row, ...]] = ()
    standard: ClassVar[Names] = ()
    #: Operator → element operations for each element written, beside requantizing it.
    operations: ClassVar[Mapping[str, int]] = {}
    #: Others that cost what these do, of which programs have none.
    costs_like: ClassVar[Names] = ()
    #: Operators that leave the elements where they are, and do nothing.
    renaming: ClassVar[Names] = ()

    def accepts(self, unit: Unit) -> bool:
        """Whether ``unit`` is written so, if at all."""
        return is_standard(unit.core, *self.takes)

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> P:
        """What is written of ``unit``.

        Raises:
            NotComputable: no program computes it, with the reason.
        """
        raise NotImplementedError

    def write(self, plan: P, into: Replacement) -> ir.Value | Sequence[ir.Value]:
        """Write ``plan`` down as operators; returns the integers of the unit's results."""
        raise NotImplementedError

    def lower(self, unit: Unit, into: Replacement) -> Change:
        """Put operators in the place of ``unit``.

        Raises:
            NotComputable: there is no plan; nothing was changed.
        """
        return into.done(self.write(self.plan(unit, into.arithmetic), into))

    def work(self, node: ir.Node, written: int) -> Effort:
        """What ``node`` does, an operator of a unit that writes so many elements; all shapes are static."""
        return Effort(element_ops=self.operations.get(node.op_type, 0) * written)


class OneOperator(ProgramOperator[Plan]):
    """What becomes one operator."""

    def write(self, plan: Plan, into: Replacement) -> ir.Value:
        """The operator, and what requantizes behind."""
        turned, order = (
            (*plan.turned, *[False] * len(plan.inputs)),
            sorted(range(len(plan.inputs)), key=plan.first.__ne__),
        )
        made = {index: into.taken(plan.inputs[index], turned=turned[index]) for index in order}
        inputs = [made[index] for index in range(len(made))]
        written, like = plan.written or plan.output, into.unit.results[0].value if plan.written else None
        found = into.node(plan.name, inputs, dtype=written.dtype, attributes=plan.attributes, like=like)
        return into.requantized(found, written, plan.output)


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape when every dimension is known."""
    if value is None:
        return None
    shape = value.shape if value.shape is not None or value.const_value is None else value.const_value.shape
    if shape is None or not all(isinstance(d, int) for d in shape):
        return None
    return tuple(d for d in shape if isinstance(d, int))


def count(value: ir.Value | None) -> int:
    """Elements of ``value``, whose shape is static."""
    return math.prod(static_shape(value) or ())
