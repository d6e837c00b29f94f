"""Lowering: the passes that write what the NPU computes as operators of programs, one pass a family of operators.

What an operator takes, how it is planned and written stands in its class (`qdq_passes.npu.program`); here is who asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.core.names import camel_case
from qdq_passes.errors import QdqError
from qdq_passes.graph.annotate import TARGET
from qdq_passes.npu.program.edit import Surgery
from qdq_passes.npu.program.operands import NotComputable
from qdq_passes.npu.program.operator import ProgramOperator
from qdq_passes.npu.program.operators import FAMILIES, FLOATS, operator_of
from qdq_passes.npu.units.units import Unit, units_of
from qdq_passes.npu.units.verdict import TargetRules


@dataclass(frozen=True)
class Lowering(Pass):
    """Base of the passes that lower one family of operators.

    Args:
        target: whose arithmetic is written down.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "changes", why="the target's integer arithmetic takes the place of float32 between integers"
    )
    #: What subclasses lower.
    lowers: ClassVar[str] = ""
    target: TargetRules | Named

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Unit by unit; those that run on the CPU are left alone."""
        assert not isinstance(self.target, Named)
        assigned = self._assigned(model)
        if not assigned:
            return
        surgery = Surgery(model, self.target.arithmetic)
        for unit, operator in assigned:
            try:
                yield operator.lower(unit, surgery.replace(unit))
            except NotComputable as reason:
                yield skip(unit.core, str(reason))
            except QdqError as error:  # what is stored is broken
                yield skip(unit.core, error.message)

    def _assigned(self, model: ir.Model) -> list[tuple[Unit, ProgramOperator[Any]]]:
        """The units of the family that the NPU computes; few models have all families, so nodes are looked at first."""
        types = FAMILIES.get(self.lowers, ())
        if types and not any(node.op_type in (*types, "Pad") for node in model.graph):
            return []
        placed = ((unit, TARGET.get(unit.core)) for unit in units_of(model))
        found = [
            (unit, FLOATS if placement.verdict == "npu-float" else operator_of(unit))
            for unit, placement in placed
            if placement is not None and placement.partition is not None
        ]
        return [(unit, operator) for unit, operator in found if operator is not None and operator.family == self.lowers]


def _lowering(
    family: str,
    summary: str,
    graph: str,
    *,
    requires: str = "assign-targets.",
    keeps: str = "inputs, outputs and all names; numerics become the target's.",
    skips: str = "what its annotation leaves to the CPU; what has no kernel, with the reason.",
) -> type[Lowering]:
    """The pass that lowers ``family``; the rest is its help."""
    doc = f"{summary}\n\nGraph: {graph}\nRequires: {requires}\nKeeps: {keeps}\nSkips: {skips}\n"
    return type(camel_case(f"lower-{family}"), (Lowering,), {"__doc__": doc, "__module__": __name__, "lowers": family})


#: In the order in which a model is lowered.
PASSES = {
    "lower-convolutions": _lowering(
        "convolutions",
        "Turn convolutions between QDQ pairs, with the activation behind them, into convolutions on integers.",
        """``DQ(x), DQ(w), DQ(b) → Conv → Relu → Q`` → ``x, w, b, multiplier, shift → ai.qdqtool::Conv``; ConvTranspose likewise.
Bias, multipliers and shifts are new constants ``<node>_bias``, ``<node>_multiplier``, ``<node>_shift``.""",
        requires="assign-targets; pads in numbers, or sizes that are known.",
    ),
    "lower-products": _lowering(
        "products",
        "Turn matrix products between QDQ pairs, with the activation behind them, into matrix products on integers.",
        """``DQ(a), DQ(b), DQ(c) → Gemm → Relu → Q`` → ``a, b, c, multiplier, shift → ai.qdqtool::MatMul``; MatMul likewise. A
transposed weight is turned at once, transposed data by a Transpose before. A weight with a scale per block of its depth makes
it an ai.qdqtool::BlockedMatMul. Weights of 4 bits are stored in bytes.""",
    ),
    "lower-elementwise": _lowering(
        "elementwise",
        "Turn Add, Sub, Mul and Div between QDQ pairs, with the clamp behind them, "
        "into sums, products and quotients of integers.",
        """``DQ(a), DQ(b) → Add → Relu → Q`` → ``a, b → ai.qdqtool::Add``; a Sub is an Add whose second multiplier is negative.
``DQ(a), DQ(b) → Max → Q`` → ``a → Lookup or Requantize; b → …; ai.qdqtool::Max``, without these where the encodings are one;
Min likewise, and more than two inputs two at a time.""",
    ),
    "lower-tables": _lowering(
        "tables",
        "Turn functions of one value between QDQ pairs, and what only changes encodings, into tables of 256 or 65536 integers.",
        """``DQ(x) → Sigmoid → Q`` → ``x, table [256] → ai.qdqtool::Lookup``, with [65536] where x has 16 bits; ``DQ(x) → Q``
likewise, and ``x → ai.qdqtool::Requantize`` where x or the output has 16 bits; ``DQ(x) → PRelu(slope [C, 1, 1]) → Q`` → ``x,
table [C, 256] → ai.qdqtool::Lookup(axis = 1)``. The table is a new constant ``<node>_table``.""",
    ),
    "lower-pools": _lowering(
        "pools",
        "Turn pools, means, sums and extremes over axes between QDQ pairs into those of integers.",
        """``DQ(x) → AveragePool → Q`` → ``x → ai.qdqtool::AveragePool``, with the Pad before it and the DPU's factor behind it;
``DQ(x) → GlobalAveragePool → Q`` → ``x → ai.qdqtool::ReduceMean``, ReduceMean likewise; ``DQ(x) → MaxPool → Q`` → ``x →
MaxPool → ai.qdqtool::Lookup``, GlobalMaxPool likewise, without the Lookup where the encodings are one; of 16 bits ``x →
ai.qdqtool::MaxPool → ai.qdqtool::Requantize``. ReduceSum becomes ``ai.qdqtool::ReduceSum``, ReduceMax and ReduceMin
``ai.qdqtool::ReduceMax`` and ``ReduceMin``, and a Lookup or Requantize as behind a MaxPool.""",
        requires="assign-targets; pads in numbers, or sizes that are known.",
    ),
    "lower-movement": _lowering(
        "movement",
        "Let operators that only move elements move integers, with a table where the encoding behind is another.",
        """``DQ(x) → Transpose → Q`` → ``x → Transpose → ai.qdqtool::Lookup``, without the Lookup where the encodings are one, and
with a Requantize in its place where one of them has 16 bits; ``DQ(a), DQ(b) → Concat → Q`` → ``a → Lookup; b → Lookup;
Concat``, Where and what scatters likewise. Resize to the nearest element becomes a Gather per axis, one that interpolates an
ai.qdqtool::Resize; DepthToSpace and SpaceToDepth become Reshape, Transpose, Reshape. A Pad writes its number as an integer of
its input. Pad on 16 bits, Where on all but uint8, and Trilu are those of ai.qdqtool: onnxruntime's CPU provider has no such
kernels.""",
        requires="assign-targets; constant shapes, pads and bounds.",
        keeps="inputs, outputs and all names; numerics become the target's, bit-exact where the encodings are one.",
    ),
    "lower-softmax": _lowering(
        "softmax",
        "Turn Softmax between QDQ pairs into a table of exponentials and one integer division.",
        """``DQ(x) → Softmax → Q`` → ``x, table [256] → ai.qdqtool::Softmax``; of 16 bits the table ends where it becomes 0. It is
a new constant ``<node>_table``.""",
    ),
    "lower-norms": _lowering(
        "norms",
        "Turn normalizations between QDQ pairs into exact sums of integers and of their squares, and float32 behind them.",
        """``DQ(x), DQ(γ), β → LayerNormalization → Q`` → ``x, gain, shift → ai.qdqtool::Norm``; RMSNormalization,
InstanceNormalization, GroupNormalization and LpNormalization likewise. Gain and shift are new float32 constants
``<node>_gain`` and ``<node>_shift``.""",
    ),
    "lower-rotary-embeddings": _lowering(
        "rotary-embeddings",
        "Turn RotaryEmbedding between QDQ pairs, that of onnx and that of com.microsoft, into sums of products of integers.",
        """``DQ(x), positions, DQ(cos), DQ(sin) → RotaryEmbedding → Q`` → ``cos, positions → Gather; sin, positions → Gather; x,
… → ai.qdqtool::RotaryEmbedding``; x [B, S, heads·size] between two Reshapes; elements that are not turned go round it,
through what requantizes them.""",
        requires="assign-targets; sizes of heads and angles.",
    ),
    "lower-einsums": _lowering(
        "einsums",
        "Turn an Einsum of two operands between QDQ pairs into a product of matrices of integers, between moves.",
        """``DQ(a), DQ(b) → Einsum("bqhd,bkhd->bhqk") → Q`` → ``a → Transpose; b → Transpose; ai.qdqtool::MatMul``, with Reshapes
where several axes are rows, columns or depth, and a Transpose behind where the result has another order. Constants are turned
at once.""",
        requires="assign-targets; sizes of axes that are put together.",
    ),
    "lower-floats": _lowering(
        "floats",
        "Turn what the NPU computes in floating point into operators that round what they read and what they write.",
        """``DQ(x), DQ(w) → MatMul → Q`` → ``DQ(x), weight → ai.qdqtool::FloatMatMul → ai.qdqtool::Quantize``; constants are
stored as numbers of the target's precision. ``x → Sigmoid`` → ``x, table [65536] → ai.qdqtool::FloatLookup``. What moves
elements stays a standard operator, behind an ``ai.qdqtool::FloatCast`` where its input is not rounded yet.""",
        keeps="inputs, outputs and all names; numerics become the target's floating point.",
        skips="what its annotation leaves to the CPU or to integers; what has no kernel, with the reason.",
    ),
}
