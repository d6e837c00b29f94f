"""What the readers of a tensor keep of it: a Relu or Clip cuts off the rest, so that no difference there matters."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
from qdq_passes.graph.operators.activations import cuts_off_at
from qdq_passes.graph.operators.qdq_ops import is_qdq
from qdq_passes.graph.uses import is_standard, main_nodes

Interval = tuple[float, float]


def kept_by_readers(model: ir.Model) -> dict[str, Interval]:
    """Tensor → the values between which all its readers tell it apart, where these are Relus and Clips, also behind pairs, and
    nobody else sees it."""
    found: dict[str, Interval] = {}
    for value in (value for node in main_nodes(model) for value in node.outputs if value.name and not is_qdq(node)):
        ends = [None if reader is None else cuts_off_at(reader) for reader in _readers(value)]
        known = [end for end in ends if end is not None]
        if value.name and known and len(known) == len(ends):
            found[value.name] = (min(low for low, _ in known), max(high for _, high in known))
    return found


def _readers(value: ir.Value) -> Iterator[ir.Node | None]:
    """The Relus and Clips that read ``value``, also behind pairs; None for whoever else sees it."""
    if value.is_graph_output():
        yield None
    for use in value.uses():
        if is_qdq(use.node) and use.idx == 0:
            yield from _readers(use.node.outputs[0])
        else:
            yield use.node if is_standard(use.node, "Relu", "Clip") and use.idx == 0 else None
