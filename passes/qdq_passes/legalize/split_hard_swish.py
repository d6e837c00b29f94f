"""split-hard-swish

y = x·HardSigmoid(x) with α = 1/6 and β = 1/2, as the standard writes HardSwish."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass
from qdq_passes.graph.edit import Namer, make_node, replace_nodes
from qdq_passes.select.selectors import ALL, Selector, nodes_of_types


@dataclass(frozen=True)
class SplitHardSwish(Pass):
    """Replace HardSwish by a HardSigmoid and a product, for NPUs that have those two (the DPU of the Vitis line).

    Graph: ``x → HardSwish → y`` → ``x → HardSigmoid{alpha=1/6, beta=1/2}; x, · → Mul → y``.
    Requires: nothing.
    Keeps: inputs, outputs and their names; numerics bit-exact: onnxruntime has no kernel of HardSwish, and runs these two nodes,
    the standard's definition of it.
    Skips: nothing.

    Args:
        select: the operators.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """HardSwish by HardSwish."""
        namer = Namer(model)
        for node in nodes_of_types(model, self.select, "HardSwish"):
            x, y = node.inputs[0], node.outputs[0]
            names = [namer.fresh(f"{node.name}_{kind}") for kind in ("HardSigmoid", "Mul")]
            gate = make_node(
                "HardSigmoid", [x], name=names[0], output=namer.fresh(f"{names[0]}_output"), like=y,
                attributes=[ir.AttrFloat32("alpha", float(np.float32(1 / 6))), ir.AttrFloat32("beta", 0.5)], stands_for=[node],
            )  # fmt: skip
            product = make_node(
                "Mul", [x, gate.outputs[0]], name=names[1], output=namer.fresh(f"{names[1]}_output"), like=y,
                stands_for=[node],
            )  # fmt: skip
            yield replace_nodes([node], [gate, product], namer, "x·HardSigmoid(x)")
