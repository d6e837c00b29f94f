"""Where masks meet scores: the way from each Softmax up to the products of queries and keys.

products → scale, softcap → [Add ← mask] → [Where ← causal buffer] → … → Softmax"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.flow import is_attention, is_product
from qdq_passes.decoder.look.host_region import Host
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.operators.kinds import data_inputs, kind_of
from qdq_passes.graph.uses import label, values_read

#: Inputs that say a shape, axes or bounds; not data.
_STEERED = frozenset({"Expand", "Pad", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Tile", "TopK", "Unsqueeze"})
#: Input of onnx's Attention: how many keys of each row hold tokens.
_LENGTHS = 6
Form = Literal["add", "subtract", "where", "multiply", "operand"]


@dataclass(frozen=True, kw_only=True)
class MaskEdge:
    """Where a mask meets the scores.

    Args:
        node: the node that applies it.
        index: input of ``node`` that is the mask; for Where the condition.
        form: how it is applied; ``operand`` where ``node`` is an attention itself.
        data: input of ``node`` that is the scores; -1 for an attention.
    """

    node: ir.Node
    index: int
    form: Form
    data: int


def mask_candidates(host: Host, node: ir.Node) -> tuple[ir.Node, list[MaskEdge]] | None:
    """``node`` as an attention, with all operands that may be masks; None when it is none.

    Raises:
        UnsupportedError: what hides keys is more than masks.
    """
    if node.op_type == "Attention" and node.domain in ("", "ai.onnx"):
        given = len(node.inputs) > 3 and node.inputs[3] is not None
        if len(node.inputs) > _LENGTHS and node.inputs[_LENGTHS] is not None:
            raise UnsupportedError(
                "is told how many keys hold tokens: its cache is updated in place already", where=label(node),
                hint="take the decoder whose cache grows",
            )  # fmt: skip
        return node, [MaskEdge(node=node, index=3, form="operand", data=-1)] if given else []
    if node.op_type == "MultiHeadAttention":
        indices = [i for i in (5, 4) if i < len(node.inputs) and node.inputs[i] is not None]
        return node, [MaskEdge(node=node, index=i, form="operand", data=-1) for i in indices]
    source = node.inputs[0] if kind_of(node) == "Softmax" and node.inputs else None
    if source is None or source not in host.stream:
        return None
    return node, list(_edges(host, source))


def _edges(host: Host, source: ir.Value) -> Iterator[MaskEdge]:
    """Operands from the side on the way from ``source`` up to products, nearest first.

    Raises:
        UnsupportedError: one lies before a Tanh, which would bound what it hides.
    """
    queue, seen = [(source, False)], {source}
    for value, is_capped in queue:
        node = value.producer()
        if node is None or is_product(node) or is_attention(node):
            continue
        streams = [i for i, v in enumerate(node.inputs) if v is not None and v in host.stream]
        for index in range(len(node.inputs)):
            edge = _edge(host, node, index, streams)
            if edge is not None:
                if is_capped and edge.form != "multiply":
                    raise UnsupportedError(
                        "a mask is applied before the Tanh that caps the scores: it would hide nothing", where=node.name
                    )
                yield edge
        for index in streams:
            found = node.inputs[index]
            if found is not None and found not in seen:
                seen.add(found)
                if len(streams) > 1 and not _comes_of_products(found):
                    raise UnsupportedError(
                        f"{found.name} meets the scores and depends on tokens", where=label(node),
                        hint="masks made of ids or of the content of the cache cannot be replaced",
                    )  # fmt: skip
                queue.append((found, is_capped or kind_of(node) == "Tanh"))


def _edge(host: Host, node: ir.Node, index: int, streams: Sequence[int]) -> MaskEdge | None:
    """Input ``index`` of ``node`` as an operand that may hide scores."""
    value, kind = node.inputs[index], kind_of(node)
    if value is None or value in host.stream or kind in _STEERED or not streams:
        return None
    if kind == "Where":
        return MaskEdge(node=node, index=0, form="where", data=streams[0]) if index == 0 and len(streams) == 1 else None
    forms: dict[str, Form] = {"Add": "add", "Sum": "add", "Mul": "multiply", "Div": "multiply"}
    form = "subtract" if kind == "Sub" and index == 1 else forms.get(kind)
    return None if form is None else MaskEdge(node=node, index=index, form=form, data=streams[0])


def _comes_of_products(value: ir.Value) -> bool:
    """Whether a product stands anywhere before ``value``."""
    stack, seen = [value], {value}
    while stack:
        node = stack.pop().producer()
        if node is None:
            continue
        if is_product(node) or is_attention(node):
            return True
        new = [v for v in values_read(node) if v not in seen]
        seen.update(new)
        stack += new
    return False


def score_nodes(host: Host) -> set[ir.Node]:
    """The nodes on the way from products to each Softmax, and attentions of one node: where masks meet scores."""
    found: set[ir.Node] = {node for node in host.nodes if is_attention(node)}
    stack = [v for node in host.nodes if kind_of(node) == "Softmax" for v in node.inputs[:1] if v is not None]
    while stack:
        node = stack.pop().producer()
        if node is None or node in found or is_product(node):
            continue
        found.add(node)
        stack += [v for v in node.inputs if v is not None and v in host.stream]
    return found


def multiplies_streams(host: Host, core: ir.Node) -> bool:
    """Whether the scores that ``core`` reads are a product of two things that depend on tokens."""
    stack, seen = [v for v in core.inputs[:1] if v is not None], set(core.inputs[:1])
    while stack:
        node = stack.pop().producer()
        if node is None:
            continue
        if is_product(node):
            if all(
                (v := node.inputs[i]) is not None and v in host.stream for i in data_inputs(node, kind_of(node))[:2]
            ):
                return True
            continue
        new = [v for v in node.inputs if v is not None and v not in seen and v in host.stream]
        seen.update(new)
        stack += new
    return False
