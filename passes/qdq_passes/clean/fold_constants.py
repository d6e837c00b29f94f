"""fold-constants"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from qdq_passes.clean.edit.wrap import changes_of, quiet
from qdq_passes.core.base import EXACT, Change, Keeps, Pass
from qdq_passes.graph.edit import Namer, drop_unread, make_node, replace_nodes
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.graph.uses import DATA_MOVEMENT, FLOAT_TYPES, all_nodes, is_constant, is_standard

_QDQ = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
#: Float operators that only place or pick elements, so that folding them is bit-exact.
_EXACT_ON_FLOAT = DATA_MOVEMENT | {
    "Concat", "ConstantOfShape", "Constant", "GatherElements", "GatherND", "Pad", "Shape", "Size", "Where",
}  # fmt: skip
#: Operators that onnxscript's folder gets wrong: it drops CastLike's ``saturate`` and folds what is random; for the others onnx's
#: reference, which it computes with, disagrees with onnxruntime.
_SHIELDED = frozenset({"CastLike", "Bernoulli", "MaxUnpool", "Resize"})
_SHIELD = "ai.qdqtool.shield"


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Compute what depends on constants only, and store the result as an initializer or Constant.

    Graph: ``Add(2, 3) → shape → Reshape`` → ``5 → shape → Reshape``; Shape and Size of a static shape are constants too.
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
        """Fold shapes ourselves, the rest with onnxscript's folder, which is imported only when something is constant."""
        yield from _fold_shapes(model)
        if not any(_reads_constants_only(node) for node in all_nodes(model)):
            return
        from onnxscript import optimizer

        def fold(target: ir.Model) -> None:
            with _shielded(target), quiet("onnxscript"):
                optimizer.fold_constants(
                    target,
                    onnx_shape_inference=False,
                    input_size_limit=self.max_input,
                    output_size_limit=self.max_output,
                    should_fold=self._should_fold,
                )

        constants = [node.outputs[0] for node in all_nodes(model) if is_standard(node, "Constant")]
        initializers = list(model.graph.initializers.values())
        yield from changes_of(model, fold, "constant")
        yield from drop_unread([*constants, *(v for v in initializers if v.graph is model.graph)])

    def _should_fold(self, node: ir.Node) -> bool | None:
        """True, False, or None for onnxscript's own rules (its size limits)."""
        if node.op_type in _QDQ or (self.what == "exact" and not _is_exact(node)):
            return False
        return True if node.op_type == "ConstantOfShape" else None


def _fold_shapes(model: ir.Model) -> Iterator[Change]:
    """Replace Shape and Size of values with a static shape by Constants."""
    namer = Namer(model)
    for node in all_nodes(model):
        shape = static_sizes(node.inputs[0]) if is_standard(node, "Shape", "Size") and node.inputs else None
        if shape is None:
            continue
        if node.op_type == "Size":
            array = np.array(np.prod(shape, dtype=np.int64), np.int64)
        else:
            first, last = (node.attributes[k].as_int() if k in node.attributes else None for k in ("start", "end"))
            array = np.array(shape[first:last], np.int64)
        name = namer.fresh(f"{node.name}_folded")
        constant = make_node(
            "Constant", [], name=name, output=namer.fresh(f"{name}_output"), like=node.outputs[0],
            attributes=[ir.AttrTensor("value", ir.tensor(array))], stands_for=[node],
        )  # fmt: skip
        constant.outputs[0].type, constant.outputs[0].shape = ir.TensorType(ir.DataType.INT64), ir.Shape(array.shape)
        yield replace_nodes([node], [constant], namer, "the shape is static")


@contextmanager
def _shielded(model: ir.Model) -> Iterator[None]:
    """Hide operators from the folder behind a domain that is not imported: it passes those by."""
    hidden = [(n, n.domain) for n in all_nodes(model) if is_standard(n, *_SHIELDED) or _trains(n)]
    for node, _ in hidden:
        node.domain = _SHIELD
    try:
        yield
    finally:
        for node, domain in hidden:
            node.domain = domain


def _trains(node: ir.Node) -> bool:
    return is_standard(node, "Dropout") and len(node.inputs) > 2 and node.inputs[2] is not None


def _reads_constants_only(node: ir.Node) -> bool:
    constant = all(v is None or is_constant(v) for v in node.inputs)
    return constant and node.op_type not in _QDQ and node.op_type != "Constant"


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
