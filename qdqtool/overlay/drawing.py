"""A model as the page draws it: nodes without their pairs, who reads what of whom, and the pairs as what stands on a line."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from qdq_passes.graph.operators.qdq_ops import is_quantization
from qdq_passes.graph.uses import has_body, label
from qdq_passes.integers.look.quantized_table import Row, qdq_rows

from qdqtool.record.record import Record, TensorRecord


def drawing_of(model: ir.Model) -> tuple[dict[str, Any], Record]:
    """The main graph of ``model`` to draw, and what its file says of quantized tensors.

    The drawing is JSON-ready: ``nodes`` in the order they run, those of inputs first and of outputs last, each with ``n`` name,
    ``op``, ``i`` [[place of the writer, tensor, is quantized]], ``w`` quantized constants that it reads, ``t`` tensors that it
    writes, ``q`` those of them with a pair, ``b`` whether it has a body.

    Args:
        model: its nodes have names.
    """
    found = _Drawing(model, [row for row in qdq_rows(model) if not row.graph])
    return {"nodes": found.nodes}, Record(tensors=tuple(found.tensors()))


class _Drawing:
    def __init__(self, model: ir.Model, rows: list[Row]) -> None:
        self._of: dict[ir.Value, Row] = {}
        for row in rows:
            for value in row.values:
                self._of.setdefault(value, row)
        self._rows = rows
        self._writer: dict[ir.Value, int] = {}
        self.nodes: list[dict[str, Any]] = []
        constants = model.graph.initializers
        for value in model.graph.inputs:
            if value.name not in constants:
                self._add(value.name or "", "input", [], [value])
        for node in model.graph:
            if not is_quantization(node) and node.op_type != "Constant":
                op = node.op_type if not node.domain else f"{node.domain}::{node.op_type}"
                self._add(label(node), op, [v for v in node.inputs if v is not None], list(node.outputs))
                if has_body(node):
                    self.nodes[-1]["b"] = 1
        for value in model.graph.outputs:
            self._add(value.name or "", "output", [value], [])

    def _add(self, name: str, op: str, reads: list[ir.Value], writes: list[ir.Value]) -> None:
        node: dict[str, Any] = {"n": name, "op": op}
        lines: dict[tuple[int, str, int], None] = {}
        weights: dict[str, None] = {}
        for value in reads:
            source, row = self._source(value)
            writer = self._writer.get(source)
            if writer is not None:
                lines[writer, row.tensor if row is not None else source.name or "", int(row is not None)] = None
            elif row is not None:
                weights[row.tensor] = None
        at = len(self.nodes)
        self._writer |= dict.fromkeys(writes, at)
        tensors = [value.name for value in writes if value.name]
        pairs = dict.fromkeys(row.tensor for value in writes if (row := self._of.get(value)) is not None)
        more = {"i": list(map(list, lines)), "w": list(weights), "t": tensors, "q": list(pairs)}
        self.nodes.append(node | {key: found for key, found in more.items() if found})

    def _source(self, value: ir.Value) -> tuple[ir.Value, Row | None]:
        """What ``value`` is before its pairs, and the pair."""
        row = self._of.get(value)
        producer = value.producer()
        while producer is not None and is_quantization(producer) and producer.inputs[0] is not None:
            row = row or self._of.get(value)
            value = producer.inputs[0]
            producer = value.producer()
        return value, row

    def tensors(self) -> list[TensorRecord]:
        """A record of each quantized tensor; the node is that which writes it, or which reads the constant."""
        found: dict[str, TensorRecord] = {}
        for row in self._rows:
            at = next((self._writer[value] for value in row.values if value in self._writer), None)
            node = self.nodes[at]["n"] if at is not None else next(iter(row.readers), "")
            encoding = None if row.encoding is None else row.encoding.to_json()
            found.setdefault(row.tensor, TensorRecord(name=row.tensor, kind=row.kind, node=node, encoding=encoding))
        return list(found.values())
