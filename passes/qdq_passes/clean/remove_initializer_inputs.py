"""remove-initializer-inputs"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.graph.edit import IR_OF_PLAIN_INITIALIZERS
from qdq_passes.integers.look.integer_ops import defaults, quantized_defaults


@dataclass(frozen=True)
class RemoveInitializerInputs(Pass):
    """Take initializers out of the graph inputs, where they are defaults that a caller may override: they become constants.

    Graph: inputs ``x, w``, initializer ``w`` → input ``x``, initializer ``w``. Up to IR version 3 every initializer had to be an
    input; such a model becomes one of IR version 4.
    Requires: nothing.
    Keeps: nodes, names, the other inputs and their order; what the model computes while no default is overridden.
    Skips: nothing.

    Args:
        quantized_only: only those that quantization takes for constants (scales, zero points, stored integers). From IR version 3
            all go nevertheless: there, being an input says nothing about an initializer.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="inputs with a default are constants, which a caller cannot override")
    quantized_only: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Drop them from the list of inputs."""
        inputs = model.graph.inputs
        is_old = (model.ir_version or IR_OF_PLAIN_INITIALIZERS) < IR_OF_PLAIN_INITIALIZERS
        found = (
            quantized_defaults(model.graph.inputs)
            if self.quantized_only and not is_old
            else defaults(model.graph.inputs)
        )
        for value in found:
            inputs.remove(value)
            yield Change("edit", value.name or "", "no input any more, a constant")
        if found and is_old:
            model.ir_version = IR_OF_PLAIN_INITIALIZERS
            yield Change("edit", "ir_version", str(IR_OF_PLAIN_INITIALIZERS))
