"""What the attentions of a decoder hide, all their masks together.

They must be causal, or causal within a window; anything else is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from qdq_passes.decoder.look.flow import is_attention
from qdq_passes.decoder.look.host import Host
from qdq_passes.decoder.look.mask_rules import MaskProbes
from qdq_passes.decoder.look.scores import MaskEdge, mask_candidates, multiplies_streams
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.attributes import integer_of
from qdq_passes.graph.uses import label

#: Input of GroupQueryAttention: what is added to scores.
_GROUPED_BIAS = 10


@dataclass(frozen=True, kw_only=True)
class Masked:
    """One attention and what its masks are together.

    Args:
        core: Softmax, or an attention of one node.
        edges: its masks, that nearest to the Softmax first.
        window: keys that a query sees at most, itself included; 0 for all before it.
        padding: whether the mask input's zeros hide keys: ``honoured``, ``ignored``, or ``none`` without such an input.
        query_axis: axis of the queries in the scores, from the end; -3 where these are [batch, sequence, heads, total].
    """

    core: ir.Node
    edges: tuple[MaskEdge, ...]
    window: int
    padding: Literal["honoured", "ignored", "none"]
    query_axis: int = -2


def masked_attentions(host: Host) -> list[Masked]:
    """Every attention of the decoder with its masks; those that keep their mask to themselves (GroupQueryAttention) are left out.

    Raises:
        UnsupportedError: a mask that is neither causal nor a window, that depends on tokens, or that biases visible scores; a
            layer whose attention is not seen.
    """
    candidates = [found for node in host.nodes if (found := mask_candidates(host, node)) is not None]
    alone = [node for node in host.nodes if is_attention(node) and all(node is not core for core, _ in candidates)]
    for node in alone:
        _refuse_own_mask(node)
    values = [
        v for _, edges in candidates for edge in edges for v in edge.node.inputs if v is not None and _is_side(host, v)
    ]
    plan = MaskProbes(host, values)
    result = []
    for core, edges in candidates:
        real = tuple(edge for edge in edges if plan.spans(edge))
        if not real and not is_attention(core) and not multiplies_streams(host, core):
            continue  # a softmax over experts, or over words
        window = plan.classify(core, real)
        padding, axis = plan.padding(core, real, window), plan.query_axis(real)
        result.append(Masked(core=core, edges=real, window=window, padding=padding, query_axis=axis))
    seen = len(result) + len(alone)
    if seen < host.io.layers:
        raise UnsupportedError(
            f"{host.io.layers} layers keep a cache, and scores meet a Softmax in {seen}: not all masks are seen",
            where=host.model.graph.name, hint="attentions are MatMul, Softmax, MatMul, or one operator",
        )  # fmt: skip
    return result


def _refuse_own_mask(node: ir.Node) -> None:
    """An attention whose mask is its own must be one that hides later keys, and nothing else.

    Raises:
        UnsupportedError: it is not, or may not be.
    """
    if node.op_type != "GroupQueryAttention":
        raise UnsupportedError(
            f"{node.op_type} makes its mask itself, in a way that is not handled", where=label(node),
            hint="export the decoder with attentions of standard operators",
        )  # fmt: skip
    if len(node.inputs) > _GROUPED_BIAS and node.inputs[_GROUPED_BIAS] is not None:
        raise UnsupportedError(
            "adds a bias to its scores besides its own mask", where=label(node),
            hint="split with --decompose, or run decompose-group-query-attention first: the bias is a mask then",
        )  # fmt: skip
    if not integer_of(node, "causal", 1):
        raise UnsupportedError("sees later keys", where=label(node), hint="only causal attentions are split")


def _is_side(host: Host, value: ir.Value) -> bool:
    return value not in host.stream
