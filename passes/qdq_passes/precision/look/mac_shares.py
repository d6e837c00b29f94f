"""What of a quantized model is computed in how many bits, and how often its values change between 8 bit and anything else.

A multiply-accumulate is as wide as its widest operand: int4 weights times uint8 activations are 8 bit, times uint16 activations
16 bit; with integer weights alone, float activations, it is float. The bias does not count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from qdq_passes.graph.operators.macs import MULTIPLYING, macs_of
from qdq_passes.graph.uses import SHARING, all_nodes, is_standard, label
from qdq_passes.precision.look.operand_widths import EIGHT, OperandWidths

#: Bits of the widest operand, at most → the share that it counts for.
SHARES = {4: "4", 8: "8", 16: "16"}


@dataclass(frozen=True)
class Crossing:
    """A tensor that occurs in 8 bit or less and in something wider.

    Args:
        tensor: what its producer writes.
        producer: name of the node that computes it.
        readers: names of the nodes that compute with it.
        widths: bits that occur, ascending; 64 for floats.
    """

    tensor: str
    producer: str
    readers: tuple[str, ...]
    widths: tuple[int, ...]


def mac_counts(model: ir.Model) -> dict[str, int]:
    """Multiply-accumulates of one inference by the width of their widest operand: ``4``, ``8``, ``16`` and ``float``.

    Conv, ConvTranspose, Gemm and MatMul count, in bodies and functions too; a dimension that is not known counts as 1, a product
    of unknown shape nothing.
    """
    widths = OperandWidths(model)
    counts = dict.fromkeys((*SHARES.values(), "float"), 0)
    for node in all_nodes(model):
        if is_standard(node, *MULTIPLYING):
            bits = widths.of_product(node)
            counts[next((name for most, name in SHARES.items() if bits <= most), "float")] += macs_of(node) or 0
    return counts


def mac_shares(model: ir.Model) -> dict[str, float]:
    """`mac_counts` as shares of their sum, 0 to 1; all 0 where nothing is multiplied."""
    return shares_of(mac_counts(model))


def shares_of(counts: Mapping[str, int]) -> dict[str, float]:
    """Counts as shares of their sum; all 0 where that is 0."""
    total = sum(counts.values())
    return {name: count / total if total else 0.0 for name, count in counts.items()}


def boundary_crossings(model: ir.Model) -> list[Crossing]:
    """The tensors at which ``model`` changes between 8 bit and anything else, each once, in the order of the graph.

    A tensor is followed from the operator that computes it, through pairs, Casts and what only moves values, to those that
    compute with it. It is a crossing where up to 8 bit and more both occur: as widths that these operators compute in
    (`OperandWidths.of_operator`), or as types of the pairs and Casts on the way. Graph inputs are computed by none, and with
    what is only a graph output nothing computes.
    """
    widths = OperandWidths(model)
    found = []
    for node in all_nodes(model):
        own = widths.of_operator(node) if widths.computes(node) else None
        for value in node.outputs if own is not None else ():
            readers, on_the_way = _behind(widths, value)
            occurring = {own, *on_the_way, *(widths.of_operator(reader) for reader in readers)} - {None}
            bits = tuple(sorted(width for width in occurring if width is not None))
            if readers and bits[0] <= EIGHT < bits[-1]:
                names = tuple(label(reader) for reader in readers)
                found.append(Crossing(value.name or "", label(node), names, bits))
    return found


def _behind(widths: OperandWidths, value: ir.Value) -> tuple[list[ir.Node], set[int]]:
    """The nodes that compute with ``value`` in the end, and the widths that it is given on the ways to them."""
    readers: dict[ir.Node, None] = {}
    given: set[int] = set()
    for node in value.consumers():
        if widths.computes(node):
            readers |= dict.fromkeys([node] if any(v is value for v in widths.operands(node)) else [])
        elif widths.is_pair(node) or is_standard(node, "Cast", *SHARING):
            for output in node.outputs if is_standard(node, *SHARING) else node.outputs[:1]:
                beyond, more = _behind(widths, output)
                width = widths.given_by(node)
                readers |= dict.fromkeys(beyond)
                given |= {*more, *([width] if width is not None and beyond else [])}
    return list(readers), given
