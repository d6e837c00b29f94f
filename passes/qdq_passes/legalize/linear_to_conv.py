"""linear-to-conv

Y[b, s, n] = Σ_k X[b, s, k]·W[k, n] + β[n] is a convolution by a 1×1 kernel, W'[n, k, 0, 0] = W[k, n], over
X'[b, k, 0, s] = X[b, s, k]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.build import Builder
from qdq_passes.graph.operators.linears import Linear, linear_of
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import all_graph_likes, label
from qdq_passes.legalize.edit.channels_first import ChannelsFirst, Facts, members
from qdq_passes.legalize.edit.conv_weights import ConvWeights
from qdq_passes.select.selectors import ALL, Selector, select_operators


@dataclass(frozen=True)
class LinearToConv(Pass):
    """Make a 1×1 convolution on (B, C, 1, S) of each linear layer on [B, S, C], and keep that layout between them.

    What stands between linear layers and computes element by element, or along the last axis (norms, sums, slices), computes on
    the channels-first tensors as well; the layout changes where something else reads or writes, as attentions do. Heads that are
    taken out of a linear layer, or joined before one, cost the one Transpose they had.

    Graph: ``x [B, S, K] → MatMul(W) → Add(β) → Relu → MatMul(V) → y`` →
    ``x → Unsqueeze → Transpose [B, K, 1, S] → Conv(W', β) → Relu → Conv(V') → Transpose → Squeeze → y``. [M, K] is (1, K, 1, M).
    Requires: numbers of dimensions (infer-shapes).
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: weights that are packed (unpack-matmul-nbits) or not [K, N]; a Gemm that scales; what is not [B, S, K] or [M, K], or
        is empty.

    Args:
        select: the linear layers, by their MatMul or Gemm.
        weights: ``stored``: W' is an initializer in the place of W, transposed when the model is saved, one tensor in memory at
            a time; W stays beside it where something else reads that, told in bytes. A W that is stored as [N, K] already is
            the same bytes in its file. ``computed``: W stays, and a Transpose on the graph turns it at each load.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=2.0**-14,
        why="the same K products in another order: error ≤ (K + 1)·2^-24·Σ|xw| each way; with K ≤ 2^12 and random signs about "
        "2^-18 of max|y|, 2^4 left for cancellation",
    )
    select: Selector = ALL
    weights: Literal["stored", "computed"] = "stored"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Graph by graph."""
        wanted, inferred, builder = select_operators(model, self.select), Inferred(model), Builder(model)
        facts = Facts(inferred.rank, inferred.sizes, inferred.dtype)
        weights = ConvWeights(builder, are_computed=self.weights == "computed")
        for graph in all_graph_likes(model):
            linears: list[Linear] = []
            for node in graph:
                found = linear_of(node, inferred.rank) if node in wanted else None
                if isinstance(found, str):
                    yield skip(node, found)
                elif found is not None and 0 in (inferred.sizes(found.x) or ()):
                    yield skip(node, "reads an empty tensor, which a convolution does not take")
                elif found is not None:
                    linears.append(found)
            if not linears:
                continue
            chosen = members(graph, linears, facts)
            for linear in linears:
                yield Change("replace", label(linear.node), "a 1×1 Conv on (B, C, 1, S)")
            yield from ChannelsFirst(builder, weights, facts).convert(chosen)
        for name, count in weights.copies():
            yield Change("insert", f"{name}_conv", f"{count} bytes beside {name}, which something else reads too")
