"""A pair of its own for one reader of a tensor, so that what this reader needs of the scale costs no other reader.

``x → Q → DQ → {Concat, Conv}`` → ``x → Q → DQ → {Conv, Q' → DQ' → Concat}``; of a constant with both halves ``w → Q' → DQ'``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import label
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.precision.edit.conversions import Conversions
from qdq_passes.precision.look.boundaries import Input
from qdq_passes.qdq.edit.pairs import insert_pairs, write_encodings
from qdq_passes.qdq.look.grids import grid_text
from qdq_passes.qdq.look.pairs import Pair, dequantizers, pair_of
from qdq_passes.refine.look.position_groups import tensor_of


@dataclass(frozen=True, eq=False)
class OwnPair:
    """One reader that is to get a pair of its own.

    Args:
        node: the reader.
        index: its input.
        half: the DQ through which it reads the tensor today.
        encoding: what it is to read.
        others: the other readers, which the encoding would harm; None is a graph output.
    """

    node: ir.Node
    index: int
    half: ir.Node
    encoding: Encoding
    others: Sequence[ir.Node | None]


def can_be_split(half: ir.Node) -> bool:
    """Whether a reader of the DQ ``half`` can get a pair of its own: there is a float value to quantize, not integers alone."""
    pair = pair_of(half)
    return pair is not None and pair.q is not pair.dq and (pair.q is not None or pair.stored is None)


def insert_own_pairs(model: ir.Model, wanted: Sequence[OwnPair]) -> Iterator[Change]:
    """Give the readers of ``wanted`` their pairs; those of one activation that want the same encoding share one."""
    names = {one.half: tensor_of(one.half) for one in wanted}
    namer = Namer(model)
    conversions = Conversions(model, namer, names)
    for one in wanted:
        value, pair = one.node.inputs[one.index], pair_of(one.half)
        assert value is not None
        assert pair is not None
        if pair.q is not None and pair.stored is None and _is_alone(pair, one.node):
            write_encodings(dict.fromkeys((pair.q, pair.dq), one.encoding), namer)
            made = [Change("edit", names[one.half])]
        elif pair.stored is None and value.producer() is one.half:
            made = list(conversions.connect_to(one.node, Input(one.index, one.half, one.encoding.dtype), one.encoding))
        else:
            source = pair.stored if pair.stored is not None and value.producer() is one.half else value
            made = insert_pairs(
                model, source, one.encoding, namer, domain=one.half.domain, uses=[(one.node, one.index)]
            )
        names_of_others = [label(other) for other in one.others if other is not None]
        text = f"{names_of_others[0]} reads it too" if names_of_others else "it is an output of the graph"
        because = f"{grid_text(one.encoding)} for {label(one.node)} alone, as {text}"
        yield replace(made[0], where=names[one.half], because=because)


def _is_alone(pair: Pair, node: ir.Node) -> bool:
    """Whether ``node`` alone reads ``pair``, so that its scale can be changed where it is."""
    is_only = set(pair.output.consumers()) == {node} and not pair.output.is_graph_output()
    return pair.q is not None and dequantizers(pair.q) == [pair.dq] and is_only
