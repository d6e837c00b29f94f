"""Roles: what nodes do in a model, found by how they are connected, never by their names.

A fused operator has the role of everything it does: a GroupQueryAttention is the product of queries and keys, the softmax, the
product with the values, the cache, and with ``do_rotary`` the rotation. Casts between nodes of a role belong to it, pairs do not.
A projection is a product with a weight, or a 1x1 convolution, with the Add of its bias."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import onnx_ir as ir

from qdq_passes.roles.attention import Attention, attentions_of
from qdq_passes.roles.ends import dequantizers_of, embeddings_of, heads_of, lm_heads_of
from qdq_passes.roles.kv import kv_of
from qdq_passes.roles.mlp import Mlp, mlps_of
from qdq_passes.roles.norms import Norm, norms_of
from qdq_passes.roles.products import bias_adds
from qdq_passes.roles.rope import Rotation, rotations_of, tables_of
from qdq_passes.roles.skeleton import Op, Skeleton, skeleton_of

#: Each role, and what is looked for.
ROLES = {
    "qk_bmm": "a product of two activations whose result reaches a Softmax through scale, mask, softcap, casts and data movement "
    "only, or a fused attention",
    "softmax": "the Softmax behind a qk_bmm (that of a classifier is none), or a fused attention",
    "pv_bmm": "a product of two activations, one of which comes from such a Softmax through masks, casts and data movement only, "
    "or a fused attention",
    "norm": "LayerNormalization, RMSNormalization, BatchNormalization and the like, or a division by the root of a mean square",
    "rope": "RotaryEmbedding, or x·cos + [−x₂, x₁]·sin in halves or pairs",
    "mlp": "projection, activation, projection, added to the stream it was taken from or gated by a second projection",
    "lm_head": "a last projection before an output that is as wide as an embedding has rows; with a cache and without embeddings "
    "one that widens",
    "embedding": "a Gather of rows of a stored 2-D float table by integers, not of cosines and sines",
    "kv": "what leads from the projections of keys and values to the products that read them, cache updates included",
    "head": "the last operators with weights before an output that are in no attention and no MLP",
}


class Roles:
    """The roles in one model; each is computed when it is first asked for.

    Args:
        model: not to be changed while this is in use.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    def nodes(self, role: str) -> frozenset[ir.Node]:
        """The nodes of the main graph, of bodies and of local functions that have ``role``, one of `ROLES`."""
        if role == "embedding":
            return frozenset(self._skeleton.nodes(self._embeddings) | dequantizers_of(self._embeddings))
        return frozenset(self._skeleton.nodes(self._ops(role)))

    def _ops(self, role: str) -> Iterable[Op]:
        if role == "qk_bmm":
            return [op for attention in self.attentions for op in attention.scores]
        if role == "softmax":
            return [op for a in self.attentions for op in (a.softmax.ops if a.softmax is not None else a.results)]
        if role == "pv_bmm":
            return [op for attention in self.attentions for op in attention.sums]
        if role == "norm":
            return [op for norm in self.norms for op in norm.ops]
        if role == "rope":
            return [op for rotation in self.rotations for op in rotation.ops]
        if role == "mlp":
            return [op for mlp in self.mlps for op in mlp.ops]
        if role == "kv":
            return self._kv
        heads = self._heads
        if role == "lm_head":
            heads = lm_heads_of(heads, self._embeddings, self._skeleton.ops)
        return [op for head in heads for op in (head, *bias_adds(head))]

    @cached_property
    def attentions(self) -> list[Attention]:
        """Every attention."""
        return attentions_of(self._skeleton.ops)

    @cached_property
    def norms(self) -> list[Norm]:
        """Every norm."""
        return norms_of(self._skeleton.ops)

    @cached_property
    def rotations(self) -> list[Rotation]:
        """Every rotation of queries or keys."""
        return rotations_of(self._skeleton.ops)

    @cached_property
    def mlps(self) -> list[Mlp]:
        """Every MLP."""
        return mlps_of(self._skeleton.ops, self.norms)

    @cached_property
    def _skeleton(self) -> Skeleton:
        return skeleton_of(self._model)

    @cached_property
    def _kv(self) -> set[Op]:
        return kv_of(self._skeleton.ops, self.attentions, self.norms, self.rotations)

    @cached_property
    def _embeddings(self) -> list[Op]:
        return embeddings_of(self._skeleton.ops, tables_of(self.rotations))

    @cached_property
    def _heads(self) -> list[Op]:
        within = {op for mlp in self.mlps for op in mlp.ops} | self._kv
        results = {op for attention in self.attentions for op in attention.results}
        return heads_of(self._skeleton.ops, within, results)
