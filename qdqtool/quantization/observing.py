"""Which activations a plan quantizes and needs ranges of, and the rotary angles that it leaves float."""

from __future__ import annotations

import onnx_ir as ir
from qdq_passes.encode.annotate_encodings import is_inside_group, touching
from qdq_passes.encode.look.demands import Demands
from qdq_passes.select.selectors import Selector, select_nodes

from qdqtool.quantization.decoder_passes import cache_names
from qdqtool.quantization.plan import Plan

#: What makes the angles of rotary embeddings: they reach the length of the context, and a grid over them has no step for the
#: turn of one position (0.004 rad in 16 bit at 256 positions, 1 rad in 8 bit).
ANGLES = ("before:op:Cos", "before:op:Sin")


def quantized_activations(model: ir.Model, plan: Plan, demands: Demands | None = None) -> list[ir.Value]:
    """The activations of the prepared ``model`` that ``plan`` will give an encoding, in the order in which they are demanded.

    Args:
        model: the model, the passes of ``plan.prepare`` behind it.
        plan: the plan.
        demands: what the nodes demand, where that is known.
    """
    annotate = plan.annotate
    excluded = annotate.excluded(model)
    wanted = select_nodes(model, annotate.only) - excluded
    demands = annotate.demands(model) if demands is None else demands
    isolated = excluded if annotate.isolate else set()
    return [
        v
        for v, _ in demands.items()
        if v.name
        and demands.role(v) == "activation"
        and not is_inside_group(v, demands.quantized_around(v), wanted)
        and not touching(v, isolated)
    ]


def observed_names(model: ir.Model, plan: Plan, activations: list[ir.Value] | None = None) -> list[str]:
    """The names of those whose range is to be observed: nothing said of them alone takes its place; and of the tensors of a
    decoder's cache where that is to be of integers."""
    policy = plan.annotate.policy(model)
    chosen = quantized_activations(model, plan) if activations is None else activations
    names = [v.name for v in chosen if v.name and policy.needs_range(v)]
    return list(dict.fromkeys((*names, *cache_names(model, plan.materialise))))


def without_angles(plan: Plan, model: ir.Model) -> Plan:
    """``plan``, the angles of rotary embeddings left float where ``model`` computes them of positions alone."""
    tokens = select_nodes(model, Selector.of("role:embedding", "role:mlp"), allow_empty=True)
    found = [text for text in ANGLES if _hits(model, text) and not _hits(model, text) & tokens]
    return plan.excluding(*found) if found else plan


def _hits(model: ir.Model, text: str) -> set[ir.Node]:
    return select_nodes(model, Selector.of(text), allow_empty=True)
