"""Surgery of folding: a layer gets constants of its own, and takes over the output of the node that was folded into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from qdq_passes.core.base import Change, skip
from qdq_passes.graph.edit import Namer, drop_unread, graph_of, new_constant, take_over
from qdq_passes.graph.operators.layers import Layer, channel_constant, why_read_elsewhere
from qdq_passes.graph.uses import all_nodes, is_standard, label
from qdq_passes.numerics.arrays import Array

#: Folds a node into the layer before it: what changed, why it declines, or None where there is nothing to say.
Fold = Callable[[ir.Node], list[Change] | str | None]
#: (layer, number per output channel) → (new weight, new bias), None for what stays; or why not.
Arithmetic = Callable[[Layer, Array], tuple[Array | None, Array | None] | str]


def fold_readers(source: ir.Node, op_types: Sequence[str], fold: Fold) -> Iterator[Change]:
    """Fold what reads the output of ``source`` into it, one node after the other, until one declines.

    Args:
        source: the node that stays; its first output is followed.
        op_types: operators that are tried.
        fold: folds one of them, after which the output of ``source`` has the readers of that node.
    """
    folded = True
    while folded:
        folded, declined = False, []
        for node in dict.fromkeys(source.outputs[0].consumers()):
            outcome = fold(node) if is_standard(node, *op_types) else None
            if isinstance(outcome, str):
                declined.append(skip(node, outcome))
            elif outcome is not None:
                yield from outcome
                folded = True
                break
        if not folded:
            yield from declined


def fold_channel_constants(
    model: ir.Model, op_type: str, arithmetic: Arithmetic, *, reference: bool
) -> Iterator[Change]:
    """Fold every ``op_type`` by a constant per channel into the Conv or ConvTranspose before it; chains fold from the front.

    Args:
        model: the model.
        op_type: Add or Mul.
        arithmetic: what it makes of weight and bias.
        reference: see `channel_constant`; the layer is then called like its former output.
    """
    namer = Namer(model)
    for layer in (node for node in all_nodes(model) if is_standard(node, "Conv", "ConvTranspose")):

        def fold(node: ir.Node, layer: ir.Node = layer) -> list[Change] | str | None:
            found = channel_constant(node, layer, reference=reference)
            if found is None or isinstance(found, str):
                return found
            made = why_read_elsewhere(layer.outputs[0], node) or arithmetic(*found)
            if isinstance(made, str):
                return made
            base = node.outputs[0].name or layer.name or "folded"
            return [
                Change("edit", label(layer), f"takes over {node.name}"),
                *set_parameters(layer, namer, base, weight=made[0], bias=made[1]),
                *take_over(layer.outputs[0], node, namer, f"folded into {layer.name}", rename=reference),
            ]

        yield from fold_readers(layer, (op_type,), fold)


def set_parameters(
    layer: ir.Node, namer: Namer, base: str, *, weight: Array | None, bias: Array | None
) -> list[Change]:
    """Give ``layer`` the new constants ``<base>_weight`` and ``<base>_bias``; those that nobody reads any more go before.

    Args:
        layer: a Conv, ConvTranspose or Gemm.
        namer: names of this run.
        base: what the new names start with.
        weight: its new weight; None leaves it.
        bias: its new bias; None leaves it.
    """
    graph, new = graph_of(layer), {1: weight, 2: bias}
    layer.resize_inputs(max(3 if bias is not None else 2, len(layer.inputs)))
    olds = [value for i, value in enumerate(layer.inputs) if value is not None and new.get(i) is not None]
    for index, data in new.items():
        if data is not None:
            layer.replace_input_with(index, None)
    changes = drop_unread(olds)
    for old in olds:
        if old.graph is None and old.name:
            namer.release(old.name)
    for index, data in new.items():
        if data is not None:
            name = f"{base}_{'weight' if index == 1 else 'bias'}"
            layer.replace_input_with(index, new_constant(graph, namer, name, data, [layer]))
    return changes
