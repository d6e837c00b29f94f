"""Surgery at boundaries of mixed precision: a pair behind a pair, which gives a tensor's integers another type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from qdq_passes.core.base import Change
from qdq_passes.graph.edit import Namer, graph_of, insert_after
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize, opset_at
from qdq_passes.graph.uses import dtype_of, label
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.reencode import change_type, rounded_to
from qdq_passes.precision.look.boundaries import Input, Width
from qdq_passes.qdq.edit.checks import check_encoding
from qdq_passes.qdq.edit.pairs import dequantize_node, parameters, quantize_node
from qdq_passes.qdq.look.grids import change_in_words
from qdq_passes.qdq.look.pairs import dequantizers, encoding_of

#: What a conversion of tensor ``t`` is called: ``t_converted``, and so its scale, zero point and nodes.
SUFFIX = "_converted"


class Conversions:
    """The conversions of one run: one per tensor and type, those that the model has included.

    Args:
        model: the model.
        namer: names of this run.
        names: float name per DequantizeLinear.
    """

    def __init__(self, model: ir.Model, namer: Namer, names: Mapping[ir.Node, str]) -> None:
        self._model, self._names, self.namer = model, names, namer
        #: The DequantizeLinear nodes that operators were connected to.
        self.made: set[ir.Node] = set()

    def check(self, one: Input, width: Width) -> None:
        """Refuse a conversion that opset or domain do not know.

        Raises:
            UnsupportedError: a type they have not.
        """
        source, (_, new) = one.dq.outputs[0], _encodings(one, width)
        tensor = ir.Value(name=source.name, type=ir.TensorType(_float_type(one.dq)), shape=source.shape)
        opset = opset_at(self._model, one.dq)
        check_encoding(tensor, new, opset, stored=False, domain=width.domain or one.dq.domain)

    def connect(self, node: ir.Node, one: Input, width: Width) -> Iterator[Change]:
        """Let ``node`` read ``one`` in the type of ``width``: through a conversion that is there, or a new one."""
        yield from self.connect_to(node, one, _encodings(one, width)[1], width.domain)

    def connect_to(self, node: ir.Node, one: Input, new: Encoding, domain: str = "") -> Iterator[Change]:
        """Let ``node`` read ``one`` in the encoding ``new``, likewise."""
        old, source, there = encoding_of(one.dq), one.dq.outputs[0], self._there(one.dq, new)
        assert old is not None
        if there is None:
            there = self._insert(one.dq, new, domain or one.dq.domain)
            yield Change("insert", there.outputs[0].name or "", change_in_words(old, new))
        node.replace_input_with(one.index, there.outputs[0])
        self.made.add(there)
        yield Change("edit", label(node), f"reads {there.outputs[0].name} for {source.name}")

    def write_as(self, quantize: ir.Node, new: Encoding) -> Change:
        """Let what ``quantize`` stores be stored as ``new`` first: a pair before it."""
        source, old = quantize.inputs[0], encoding_of(quantize)
        assert source is not None
        assert old is not None
        made = self._pair(source, new, quantize.domain, self.namer.fresh(f"{source.name}{SUFFIX}"), quantize)
        quantize.replace_input_with(0, made.outputs[0])
        return Change("insert", made.outputs[0].name or "", change_in_words(new, old))

    def _there(self, dq: ir.Node, wanted: Encoding) -> ir.Node | None:
        """A DequantizeLinear of ``wanted``: behind any that reads the integers of ``dq``, or what ``dq`` was converted from."""
        integers = dq.inputs[0]
        assert integers is not None
        q = integers.producer()
        origin = q.inputs[0].producer() if q is not None and is_quantize(q) and q.inputs[0] is not None else None
        if origin is not None and is_dequantize(origin) and encoding_of(origin) == wanted:
            return origin
        for sibling in [dq, *(user for user in integers.consumers() if is_dequantize(user))]:
            for q in sibling.outputs[0].consumers():
                if is_quantize(q) and encoding_of(q) == wanted and graph_of(q) is graph_of(sibling):
                    for there in dequantizers(q):
                        if encoding_of(there) == wanted and graph_of(there) is graph_of(q):
                            return there
        return None

    def _insert(self, dq: ir.Node, encoding: Encoding, domain: str) -> ir.Node:
        source = dq.outputs[0]
        return self._pair(source, encoding, domain, self.namer.fresh(f"{self._names.get(dq, source.name)}{SUFFIX}"), dq)

    def _pair(self, source: ir.Value, encoding: Encoding, domain: str, base: str, old: ir.Node) -> ir.Node:
        """The DequantizeLinear of a new pair on ``source``, which stands for ``old``."""
        scale, zero_point = parameters(graph_of(old), source, encoding, self.namer, base)
        q = quantize_node(source, scale, zero_point, encoding, self.namer, base=base, domain=domain, stands_for=[old])
        made = dequantize_node(
            q.outputs[0],
            scale,
            zero_point,
            encoding,
            self.namer,
            base=base,
            like=source,
            domain=domain,
            stands_for=[old],
        )
        made.outputs[0].name = base
        insert_after(self._model, source, [q, made])
        return made


def _encodings(one: Input, width: Width) -> tuple[Encoding, Encoding]:
    """What ``one`` has, and the same in the type of ``width``."""
    old = encoding_of(one.dq)
    assert old is not None
    return old, rounded_to(change_type(old, width.dtype), _float_type(one.dq).numpy())


def _float_type(dq: ir.Node) -> ir.DataType:
    scale = dq.inputs[1] if len(dq.inputs) > 1 else None
    return (dtype_of(scale) if scale is not None else None) or ir.DataType.FLOAT
