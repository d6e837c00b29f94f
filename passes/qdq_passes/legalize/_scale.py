"""What the passes have in common that write down, as a Mul, what the DPU computes instead of an operator's exact result."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.core.base import Change, Pass, skip
from qdq_passes.encode.look.quantized import Operators, operators_of
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.legalize.edit.factors import ConstantForm, Factors
from qdq_passes.select.selectors import ALL, Selector


@dataclass(frozen=True)
class ScalePass(Pass, abc.ABC):
    """A pass that puts a factor behind operators."""

    #: The operators.
    op_types: ClassVar[tuple[str, ...]]
    select: Selector = ALL
    operators: Operators = "quantized"
    constant: ConstantForm = "initializer"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """A Mul behind each."""
        nodes, skips = operators_of(model, self.select, self.operators, *self.op_types)
        yield from skips
        factors = Factors(model, self.constant)
        for node in nodes:
            factor = self.factor(node, factors.inferred)
            if isinstance(factor, str):
                yield skip(node, factor)
            elif factor is not None:
                yield factors.insert(node, factor)

    @abc.abstractmethod
    def factor(self, node: ir.Node, inferred: Inferred) -> float | str | None:
        """What the DPU's result is relative to the exact one; why that is not known; None where it needs no Mul."""
