"""What a form is: one way to write an operator with others; and what one is written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.build import Site
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import constant_array, float_of, integer_of


class Written(NamedTuple):
    """``value`` takes the place of what ``node`` writes, where that is not the operator itself."""

    node: ir.Node
    value: ir.Value


class Declined(Exception):
    """Raised by a form, before it makes nodes, with the reason why it does not write the operator."""


@dataclass(frozen=True)
class Given:
    """An operator, and the place before it where others are made.

    Args:
        node: the operator.
        site: makes nodes, and says the opset.
        inferred: sizes of values.
        dtype: element type of its data.
    """

    node: ir.Node
    site: Site
    inferred: Inferred
    dtype: ir.DataType

    @property
    def x(self) -> ir.Value:
        """Its first input."""
        value = self.node.inputs[0]
        assert value is not None
        return value

    @property
    def read(self) -> list[ir.Value]:
        """Its inputs, without those that are left out."""
        return [value for value in self.node.inputs if value is not None]

    def number(self, value: float) -> ir.Value:
        """``value`` as a constant without axes."""
        return self.site.constant(value, self.dtype, "number")

    def array(self, data: npt.NDArray[Any], word: str) -> ir.Value:
        """``data`` as a constant called ``<operator>_<word>``."""
        return self.site.constant(data, self.dtype, word)

    def constant(self, index: int, word: str) -> npt.NDArray[Any]:
        """The data of input ``index``, in float64; the form declines where they are computed."""
        array = constant_array(self.node.inputs[index]) if index < len(self.node.inputs) else None
        if array is None:
            raise Declined(f"its {word} is computed")
        return array.astype(np.float64)

    def times(self, value: ir.Value, factor: float) -> ir.Value:
        """``factor``·``value``; nothing is made for 1."""
        return value if factor == 1 else self.site("Mul", value, self.number(factor))

    def absolute(self, value: ir.Value) -> ir.Value:
        """max(value, −value)."""
        return self.site("Max", value, self.times(value, -1.0))

    def float_of(self, attribute: str, default: float) -> float:
        """The attribute as a number."""
        return float_of(self.node, attribute, default)

    def integer_of(self, attribute: str, default: int) -> int:
        """The attribute as an integer."""
        return integer_of(self.node, attribute, default)

    def sizes(self, value: ir.Value | None = None) -> list[int]:
        """All sizes of ``value``, of the first input by default; the form declines where one is not known."""
        found = self.inferred.sizes(self.x if value is None else value)
        if found is None:
            raise Declined("its sizes are not known; run infer-shapes or fix-shapes first")
        return found

    def rank(self) -> int:
        """Axes of the first input; the form declines where they are not known."""
        found = self.inferred.rank(self.x)
        if found is None:
            raise Declined("its rank is not known; run infer-shapes first")
        return found

    def along(self, data: npt.NDArray[Any], rank: int, word: str) -> ir.Value:
        """``data`` [C] as a constant that is broadcast along axis 1 of ``rank``."""
        return self.array(data.reshape(-1, *[1] * (rank - 2)), word)

    def moved(self, value: ir.Value, shape: Sequence[int], order: Sequence[int], result: Sequence[int]) -> ir.Value:
        """``value`` reshaped, transposed, reshaped."""
        return self.site.reshape(self.site.transpose(self.site.reshape(value, shape), *order), result)


@dataclass(frozen=True)
class Form:
    """One way to write an operator.

    Args:
        op: the operator.
        pieces: operators that it is written with.
        write: makes them; gives the value that takes the operator's place.
        by: what tells the form from another one of the operator, empty where there is one.
        any_type: also of integers.
    """

    op: str
    pieces: tuple[str, ...]
    write: Callable[[Given], ir.Value | Written]
    by: str = ""
    any_type: bool = False

    @property
    def name(self) -> str:
        """``Elu:Tanh``, or ``Mish`` where there is one form."""
        return f"{self.op}:{self.by}" if self.by else self.op
