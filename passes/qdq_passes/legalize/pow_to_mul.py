"""pow-to-mul

x² = x·x and x³ = x·x·x, in the order in which onnxruntime's Pow multiplies them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, drop_unread, make_node, replace_nodes
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import FLOAT_TYPES, constant_array
from qdq_passes.select.selectors import ALL, Selector, nodes_of_types

#: Exponent → how often x is multiplied.
_FACTORS = {2.0: 2, 3.0: 3}


@dataclass(frozen=True)
class PowToMul(Pass):
    """Replace Pow by 2 or 3 by multiplications, which every NPU has (Apple's Neural Engine has no Pow).

    Graph: ``x, 2 → Pow`` → ``x, x → Mul``; ``x, 3 → Pow`` → ``x, x → Mul; ·, x → Mul``.
    Requires: nothing.
    Keeps: inputs, outputs and all names; numerics bit-exact against onnxruntime, whose Pow multiplies for these exponents.
    Skips: other exponents; exponents that are computed, or several; a base that is no float, or that
    may have fewer dimensions than the exponent.

    Args:
        select: the operators.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Pow by Pow."""
        namer, inferred = Namer(model), Inferred(model)
        for node in nodes_of_types(model, self.select, "Pow"):
            base, exponent = node.inputs[0], node.inputs[1]
            array = constant_array(exponent)
            if array is None or array.size != 1 or float(array.ravel()[0]) not in _FACTORS:
                what = "is computed" if array is None else f"is {array.ravel().tolist()[:3]}"
                yield skip(node, f"the exponent {what}; 2 and 3 are multiplications")
                continue
            if base is None or inferred.dtype(base) not in FLOAT_TYPES:
                yield skip(node, "the base is no float")
                continue
            if array.ndim > (inferred.rank(base) or 0):
                yield skip(node, f"the exponent gives the result its {array.ndim} dimensions")
                continue
            made: list[ir.Node] = []
            product = base
            for _ in range(_FACTORS[float(array.ravel()[0])] - 1):
                name = namer.fresh(f"{node.name}_Mul")
                mul = make_node(
                    "Mul", [product, base], name=name, output=namer.fresh(f"{name}_output"), like=node.outputs[0],
                    stands_for=[node],
                )  # fmt: skip
                made.append(mul)
                product = mul.outputs[0]
            change = replace_nodes([node], made, namer, f"x to the power of {len(made) + 1}")
            drop_unread([exponent])
            yield change
