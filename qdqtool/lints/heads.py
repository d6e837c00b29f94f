"""Heads: what stands behind the last layers of a model that multiply and accumulate, and what it takes to leave it float.

/box2 (Conv) → Reshape → Sigmoid → … ┐
/cls2 (Conv) → Reshape → Sigmoid ────┴ Concat → predictions        cut behind /box2 and /cls2: no MAC is lost"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir
from qdq_passes.graph.operators.macs import MULTIPLYING
from qdq_passes.graph.operators.qdq_ops import is_qdq
from qdq_passes.graph.reach import values_read
from qdq_passes.graph.uses import is_standard, label
from qdq_passes.select.selectors import literal

#: Layers that a hint names one by one; a head with more of them is rare (three scales of a detector have six).
MOST_LAYERS = 8


@dataclass(frozen=True)
class Head:
    """What is computed behind some layers.

    Args:
        layers: the last operators that multiply and accumulate, in the order of the graph.
        nodes: operators behind any of them, none of which multiplies and accumulates.
    """

    layers: tuple[ir.Node, ...]
    nodes: tuple[ir.Node, ...]

    @property
    def options(self) -> str:
        """The options of ``quantize`` that leave the head float."""
        return " ".join(f"--exclude {shlex.quote(f'after:{literal(label(layer))}')}" for layer in self.layers)

    @property
    def outputs(self) -> str:
        """The values to give ``extract --outputs`` for a model without the head."""
        return ",".join(value.name or "" for layer in self.layers for value in layer.outputs[:1])


def head_around(node: ir.Node) -> Head | None:
    """The head that ``node`` is in: behind the nearest layers before it; None where it is behind none, where a layer stands
    behind one of these, or where they are more than `MOST_LAYERS`."""
    layers = _layers_before(node)
    behind = _behind(layers)
    if not 0 < len(layers) <= MOST_LAYERS or any(is_standard(n, *MULTIPLYING) for n in behind):
        return None
    return Head(tuple(layers), tuple(behind))


def _layers_before(node: ir.Node) -> list[ir.Node]:
    found: dict[ir.Node, None] = {}
    seen, todo = {node}, [node]
    while todo:
        for value in values_read(todo.pop()):
            before = value.producer()
            if before is None or before in seen:
                continue
            seen.add(before)
            if is_standard(before, *MULTIPLYING):
                found[before] = None
            else:
                todo.append(before)
    return _in_order(found)


def _behind(layers: Iterable[ir.Node]) -> list[ir.Node]:
    found: dict[ir.Node, None] = {}
    todo = list(layers)
    while todo:
        for value in todo.pop().outputs:
            for reader in value.consumers():
                if reader not in found:
                    found[reader] = None
                    todo.append(reader)
    return [n for n in _in_order(found) if not is_qdq(n)]


def _in_order(nodes: dict[ir.Node, None]) -> list[ir.Node]:
    graph = next((n.graph for n in nodes), None)
    return [] if graph is None else [n for n in graph if n in nodes]
