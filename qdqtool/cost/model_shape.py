"""The shape of a decoder from its graph: caches tell the heads of keys, products with weights the rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.sizes import size_at, sizes_of
from qdq_passes.graph.uses import integer_of
from qdq_passes.roles.mlp import mlps_of
from qdq_passes.roles.norms import norms_of
from qdq_passes.roles.products import is_projection, root, weight_of, widths
from qdq_passes.roles.skeleton import Op, skeleton_of

from qdqtool.cost.shapes import DecoderShape

HINT = "give the shape: a name, or a config.json beside the model"


def shape_of_model(model: ir.Model, name: str) -> DecoderShape:
    """The shape of a decoder, dynamic or static, whose caches are [batch, kv heads, slots, head size].

        a layer's projections outside the MLP: hidden · head_dim · (2 heads + 2 kv_heads) weights; the MLP's: mats · hidden · ffn

    Raises:
        UnsupportedError: it is no decoder with a cache, or its numbers do not go together (several widths of layers, experts).
    """
    io = decoder_io(model)
    past = sizes_of(io.pairs[0].past) or []
    kv_heads, head_dim = (past[1], past[3]) if len(past) == 4 else (None, None)
    if not isinstance(head_dim, int):
        head_dim = _told_by_attention(io.pairs[0].update)
    if not isinstance(kv_heads, int) or not isinstance(head_dim, int) or io.pairs[0].axis != 2:
        raise UnsupportedError("its caches are not [batch, heads, slots, head size]", where=name, hint=HINT)
    ops = skeleton_of(model).ops  # of products those that read one channel are the angles of positions
    sizes = {op: (a, b) for op in ops if is_projection(op) and (a := widths(op)[0] or 0) > 1 and (b := widths(op)[1])}
    vocab = (sizes_of(io.logits) or [None])[-1]
    wide = [op for op, (_, out) in sizes.items() if out == vocab or not isinstance(vocab, int)]
    head = max(wide, key=lambda op: sizes[op][1], default=None)
    mlps = [mlp for mlp in mlps_of(ops, norms_of(ops)) if mlp.last in sizes and mlp.first]
    if head is None or not mlps:
        raise UnsupportedError("its head or its MLPs are not found", where=name, hint=HINT)
    hidden, words = sizes[head]
    inside = {op for mlp in mlps for op in (*mlp.first, mlp.last)}
    ffn = {sizes[mlp.last][0] for mlp in mlps if mlp.last is not None}
    rest = sum(a * b for op, (a, b) in sizes.items() if op is not head and op not in inside)
    heads, odd = divmod(rest, 2 * hidden * head_dim * io.layers)
    heads -= kv_heads
    if len(mlps) != io.layers or len(ffn) != 1 or odd or heads < 1 or heads % kv_heads:
        raise UnsupportedError("its layers are not alike", where=name, hint=HINT)
    width = ffn.pop()
    mats = sum(a * b for op, (a, b) in sizes.items() if op in inside) // (hidden * width * io.layers)
    return DecoderShape(
        name=name, layers=io.layers, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, ffn=width,
        vocab=words, ffn_mats=max(2, mats), tied=_is_tied(head, ops, sizes),
    )  # fmt: skip


def _told_by_attention(node: ir.Node) -> int | None:
    """The head size of an operator that is attention as a whole and says its heads, where the cache's has no number."""
    heads = integer_of(node, "num_heads", 0)
    width = size_at(node.outputs[0], -1, rank=3) if heads else None
    return None if width is None else width // heads


def _is_tied(head: Op, ops: Sequence[Op], others: Collection[Op]) -> bool:
    """Whether the head's weight is also what words are looked up in."""
    weight = weight_of(head)
    tables = (op.data[0] for op in ops if op.kind == "Gather" and op not in others and not op.data[0].live)
    return weight is not None and any(root(table).value is root(weight).value for table in tables)
