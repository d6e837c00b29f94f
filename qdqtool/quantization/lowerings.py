"""Operators that a target has, fused and at an opset that knows them; operators that it lacks, written with those that it has."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from qdq_passes.core.base import Pass
from qdq_passes.fuse.edit.fusion import SINCE, FusionPass
from qdq_passes.fuse.fuse_rms_norm import FuseRmsNorm
from qdq_passes.legalize.split_operators import FORMS
from qdq_passes.pipeline.pipeline import Pipeline
from qdq_passes.pipeline.text import make_pass


class Lowering(NamedTuple):
    """A pass that writes ``op`` with the operators ``pieces``; where it writes ``some`` alone, forms may write the others. A pass
    of several rows takes the operators as an option."""

    op: str
    pass_name: str
    pieces: tuple[str, ...]
    some: bool = False


#: Passes of their own; of other operators the forms of `split-operators`.
LOWERINGS = (
    Lowering("Attention", "decompose-attention", ("Add", "MatMul", "Mul", "Softmax")),
    Lowering("Einsum", "decompose-einsum", ("MatMul", "Reshape", "Transpose")),
    Lowering(
        "GRU", "unroll-recurrent", ("Add", "Concat", "MatMul", "Mul", "Sigmoid", "Slice", "Sub", "Tanh", "Unsqueeze")
    ),
    Lowering("GatherND", "gather-nd-to-gather", ("Gather", "Reshape")),
    Lowering("HardSwish", "split-hard-swish", ("HardSigmoid", "Mul")),
    Lowering("LSTM", "unroll-recurrent", ("Add", "Concat", "MatMul", "Mul", "Sigmoid", "Slice", "Tanh", "Unsqueeze")),
    Lowering("Pow", "pow-to-mul", ("Mul",), some=True),
    Lowering("RNN", "unroll-recurrent", ("Add", "Concat", "MatMul", "Slice", "Tanh", "Unsqueeze")),
    Lowering("ReduceMean", "reduce-mean-to-global-pool", ("GlobalAveragePool",)),
    Lowering("RotaryEmbedding", "decompose-rotary-embedding", ("Add", "Concat", "Mul", "Slice", "Sub")),
    Lowering("Split", "split-to-slice", ("Slice",)),
)

#: Newest opset that a model is brought to for an operator: behind it operators are new that providers of NPUs do not know
#: (measured: MaxPool of opset 22 is computed in floating point on qnn_htp).
NEWEST = 21


class Fusion(NamedTuple):
    """A pass that makes one ``op`` of ``pieces``, or marks those to be quantized as one; without pieces they are never quantized
    one by one: 8 bits do not hold the sum of squares of a norm."""

    pass_name: str
    op: str
    pieces: tuple[str, ...]


FUSIONS = (
    Fusion("fuse-gelu", "Gelu", ("Add", "Div", "Erf", "Mul")),
    Fusion("fuse-hard-swish", "HardSwish", ("HardSigmoid", "Mul")),
    Fusion("fuse-l2-norm", "LpNormalization", ("Clip", "Div", "Expand", "ReduceL2")),
    Fusion("fuse-layer-norm", "LayerNormalization", ()),
    Fusion("fuse-rms-norm", "RMSNormalization", ()),
    Fusion("fuse-silu", "Swish", ("Mul", "Sigmoid")),
)


def fused_for(pipeline: Pipeline, taken: Collection[str]) -> Pipeline:
    """``pipeline`` with its fusions as a target wants them that computes the operators ``taken`` on integers.

    For an operator that it takes the model is brought to a newer opset. Nodes that are quantized as one have no pairs between
    them, so that no target computes them on integers: where it takes the pieces, and the operator is not taken or needs an opset
    that is too new, each of them is quantized.
    """
    rows = {row.pass_name: row for row in FUSIONS}
    return Pipeline(tuple(made for p in pipeline.passes if (made := _fused(p, rows.get(p.name()), taken)) is not None))


def _fused(fusion: Pass, row: Fusion | None, taken: Collection[str]) -> Pass | None:
    if row is None or not isinstance(fusion, FusionPass):
        return fusion
    is_reached = row.op in taken and SINCE[row.op] <= NEWEST
    if row.pieces and not is_reached and set(row.pieces) <= set(taken):
        return None
    if isinstance(fusion, FuseRmsNorm) and row.op not in taken and set(FORMS[row.op].pieces) <= set(taken):
        return replace(fusion, layer_norm=True, raise_opset=True)
    return replace(fusion, raise_opset=is_reached)


def lowerings(taken: Collection[str]) -> Pipeline:
    """The passes for a target that computes the operators ``taken`` on integers: of each operator that is not there, where its
    pieces are."""
    found = set(taken)
    rows = [row for row in LOWERINGS if row.op not in found and found.issuperset(row.pieces)]
    done = found | {row.op for row in rows if not row.some}
    forms = [form.name for form in FORMS.values() if form.op not in done and found.issuperset(form.pieces)]
    passes = [
        _pass_of(name, [row.op for row in rows if row.pass_name == name])
        for name in {row.pass_name: None for row in rows}
    ]
    if forms:
        passes.append(make_pass("split-operators", {"operators": forms}))
    return Pipeline((*passes, make_pass("infer-shapes", {})) if passes else ())


def _pass_of(name: str, ops: list[str]) -> Pass:
    """The pass of rows that write ``ops``."""
    is_whole = len(ops) == sum(row.pass_name == name for row in LOWERINGS)
    return make_pass(name, {} if is_whole else {"operators": ops})
