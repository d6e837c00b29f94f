"""expose-kv-cache"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.edit.dot_product import DotProduct, attention_parts, multi_head_parts
from qdq_passes.attention.edit.primitives import ATTENTION_BOUNDED, bias_of, merge_heads
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.build import Builder, Once, Site, take_place
from qdq_passes.graph.edit import drop_unread, drop_unused_domains
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import all_nodes, is_standard
from qdq_passes.select.selectors import ALL, Selector, select_operators

#: com.microsoft's attentions whose cache cannot be taken out: keys and values in one tensor, or beams; index of their past.
_REFUSED = {"Attention": 4, "DecoderMaskedSelfAttention": 4, "DecoderMaskedMultiHeadAttention": 5, "PackedAttention": 4}
#: Attributes of Attention that hold for four axes and without a past.
_KEPT = ("scale", "softcap", "softmax_precision", "left_window_size", "right_window_size")


@dataclass(frozen=True)
class ExposeKvCache(Pass):
    """Take the KV cache out of the attention: a Concat joins past and new rows, the attention reads what comes out.

    Attention of onnx stays one operator, with four axes; where it is causal, key ≤ query + past becomes its mask, as the past's
    length is no longer known inside. com.microsoft MultiHeadAttention is decomposed into standard operators.

    Graph: ``Q, K, V, mask, past_key, past_value → Attention → Y, present_key, present_value`` → ``past_key, K → Concat →
    present_key; past_value, V → Concat → present_value; Q, present_key, present_value, mask → Attention → Y``.
    Requires: number and sizes of heads.
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: attentions without a past; GroupQueryAttention, which decompose-group-query-attention writes. Keys and values in one
    tensor, and caches of beams, are refused.

    Args:
        select: the operators.
    """

    keeps: ClassVar[Keeps] = ATTENTION_BOUNDED
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Node by node; masks are made once for all that have the same lengths."""
        wanted, builder, inferred, once = select_operators(model, self.select), Builder(model), Inferred(model), Once()
        for node in all_nodes(model):
            if node not in wanted:
                continue
            _refuse(node)
            made: list[ir.Value] | str | None = None
            if is_standard(node, "Attention") and len(node.inputs) > 5 and node.inputs[4] is not None:
                made = _attention(node, builder, inferred, once)
            elif node.op_type == "MultiHeadAttention" and len(node.inputs) > 7 and node.inputs[6] is not None:
                parts = multi_head_parts(builder, node, inferred, once)
                made = parts if isinstance(parts, str) else parts.result()
            elif node.op_type == "GroupQueryAttention" and node.domain == "com.microsoft":
                made = "keeps its cache; decompose-group-query-attention takes it out"
            if isinstance(made, str):
                yield skip(node, made)
            elif made is not None:
                read = list(node.inputs)
                yield take_place(node, made, builder.namer, "the cache is joined outside of it")
                drop_unread(read)
        drop_unused_domains(model, ["com.microsoft"])


def _refuse(node: ir.Node) -> None:
    past = _REFUSED.get(node.op_type) if node.domain == "com.microsoft" else None
    if past is not None and past < len(node.inputs) and node.inputs[past] is not None:
        one = past == 4
        raise UnsupportedError(
            f"{node.op_type} keeps keys and values in one tensor" if one else f"{node.op_type} shares its cache with other beams",
            where=node.name, hint="export the decoder with a past key and a past value per layer",
        )  # fmt: skip


def _attention(node: ir.Node, builder: Builder, inferred: Inferred, once: Once) -> list[ir.Value] | str:
    """The outputs of ``node`` with Concats before a new Attention; or why that is not known to compute the same."""
    parts = attention_parts(builder, node, inferred, once)
    if isinstance(parts, str):
        return parts
    site, found, sizes = parts.site, parts.found, parts.sizes
    query, key, value = parts.heads()
    y = site("Attention", query, key, value, _mask(site, found, parts.shown_keys(), once), name="Attended")
    made = site.nodes[-1]
    for name in _KEPT:
        if name in node.attributes:
            made.attributes[name] = node.attributes[name]
    return [merge_heads(site, y, sizes.heads * sizes.value) if found.flat else y, key, value]


def _mask(site: Site, found: DotProduct, seen: ir.Value | None, once: Once) -> ir.Value | None:
    """The mask of ``found`` and what it shows by itself, in one."""
    mask = found.mask
    if mask is None or seen is None:
        return mask if seen is None else seen
    if found.is_boolean:
        return once(("both", mask, seen), lambda: site("And", mask, seen, name="Mask"))
    return once(
        ("both", mask, seen),
        lambda: site("Add", mask, bias_of(site, seen, found.dtype), name="Mask"),
    )
