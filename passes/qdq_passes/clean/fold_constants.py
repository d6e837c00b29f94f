"""fold-constants"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from qdq_passes.analysis.uses import DATA_MOVEMENT, FLOAT_TYPES, all_nodes, is_constant
from qdq_passes.core.base import EXACT, Change, Keeps, Pass
from qdq_passes.core.wrap import changes_of

_QDQ = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
#: Float operators that only place or pick elements, so that folding them is bit-exact.
_EXACT_ON_FLOAT = DATA_MOVEMENT | {
    "Concat",
    "ConstantOfShape",
    "Constant",
    "Shape",
    "Size",
    "Where",
    "Pad",
    "GatherElements",
    "GatherND",
}


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Compute what depends on constants only, and store the result as an initializer or Constant.

    Graph: ``Add(2, 3) → shape → Reshape`` → ``5 → shape → Reshape``.
    Requires: nothing. Q/DQ nodes are never folded: they carry the quantization.
    Keeps: inputs, outputs and their names; ``what=exact`` bit-exact (integer, bool and string arithmetic, data movement);
    ``what=all`` also float arithmetic, which onnx's reference and the runtime may round differently: within the bound.
    Skips: results larger than ``max-output`` elements, inputs larger than ``max-input``; random and control-flow operators.

    Args:
        what: ``exact`` or ``all``.
        max_input: largest input folded, elements (default of the onnxscript folder).
        max_output: largest result stored, elements (default of the onnxscript folder).
    """

    what: Literal["exact", "all"] = "exact"
    max_input: int = 8192
    max_output: int = 512 * 512

    @property
    def keeps(self) -> Keeps:  # type: ignore[override]
        """Exact, or bounded by the rounding of folded float operators."""
        if self.what == "exact":
            return EXACT
        return Keeps(
            "bounded",
            bound=2.0**-16,
            why="a folded float operator differs by its rounding, ≤ 2^-24·n relative for n accumulated terms (n ≤ 2^13, "
            "random signs: 2^-24·√n ≈ 2^-17.5), amplified ≤ 2 by the consumers",
        )

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Run onnxscript's folder; it is imported only when something is constant."""
        if not any(_reads_constants_only(node) for node in all_nodes(model)):
            return
        from onnxscript import optimizer

        logging.getLogger("onnxscript").setLevel(logging.ERROR)

        def fold(target: ir.Model) -> None:
            optimizer.fold_constants(
                target,
                onnx_shape_inference=False,
                input_size_limit=self.max_input,
                output_size_limit=self.max_output,
                should_fold=self._should_fold,
            )

        yield from changes_of(model, fold, "constant")

    def _should_fold(self, node: ir.Node) -> bool | None:
        """True, False, or None for onnxscript's own rules (its size limits)."""
        if node.op_type in _QDQ:
            return False
        if self.what == "exact" and not _is_exact(node):
            return False
        if node.op_type == "ConstantOfShape":
            return True
        return None


def _reads_constants_only(node: ir.Node) -> bool:
    return (
        node.op_type not in _QDQ
        and all(v is None or is_constant(v) for v in node.inputs)
        and node.op_type != "Constant"
    )


def _is_exact(node: ir.Node) -> bool:
    """Whether folding ``node`` cannot round: no float comes out of arithmetic."""
    if node.op_type in _EXACT_ON_FLOAT:
        return True
    types = {v.dtype for v in (*node.inputs, *node.outputs) if v is not None}
    return (
        None not in types
        and not types & FLOAT_TYPES
        and not any(t is not None and t.is_floating_point() for t in types)
    )
