"""Arrangements of a language model: which of its operators an NPU is given at all, before its target is asked.

In the linear arrangement (llm.npu, arXiv 2407.05858) it gets the projections, the MLP and what stands between layers; attention
and norms run on the CPU:

    norm CPU | q k v NPU | rotation, cache, scores, softmax, sums CPU | o, residual NPU | norm CPU | MLP, residual NPU

q, k and v, which read the same norm, are one partition."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir
from qdq_passes.errors import UsageError
from qdq_passes.graph.uses import main_nodes
from qdq_passes.npu.units.units import Unit
from qdq_passes.npu.units.verdict import Verdict
from qdq_passes.qdq.look.weighted_layers import WeightedLayer, weighted_layer
from qdq_passes.roles.roles import Roles

from qdqtool.targets.target import Target

#: Rule of what the arrangement leaves to the CPU.
ARRANGEMENT = "arrangement"
#: Linear layers with packed weights, of com.microsoft.
_PACKED = frozenset({"MatMulNBits", "MatMulBnb4"})
_PRODUCTS = ("qk_bmm", "softmax", "pv_bmm")
_WAY_OUT = "`--arrange whole` leaves it to the target"


@dataclass(frozen=True, kw_only=True)
class ArrangedTarget(Target):
    """A target that is not asked about some nodes.

    Args:
        on_cpu: name of a node → what it is part of.
    """

    on_cpu: Mapping[str, str] = field(default_factory=dict)

    def judge(self, unit: Unit) -> Verdict:
        """As `Target.judge`; what the arrangement leaves to the CPU is a fallback, unless the target refuses it itself."""
        found = super().judge(unit)
        part = self.on_cpu.get(unit.core.name or "")
        if part is None or not found.is_npu:
            return found
        reason = f"is part of {part}, which the linear arrangement leaves to the CPU"
        return Verdict(kind="fallback", engine="CPU", rule=ARRANGEMENT, reason=reason, suggestion=_WAY_OUT)


def linear_arrangement(model: ir.Model, target: Target) -> ArrangedTarget:
    """``target`` for ``model``, with its attention and norms on the CPU; the projections q, k and v of a layer, which read the
    same norm, are one partition.

    Args:
        model: its nodes have names.
        target: the target.

    Raises:
        UsageError: the target takes whole models or none.
    """
    if target.policy == "whole-model":
        raise UsageError(
            f"{target.name} takes a model whole or not at all",
            hint="leave out --arrange linear, or take another target",
        )
    roles = Roles(model)
    attention = _reached([node for role in _PRODUCTS for node in roles.nodes(role)], _read)
    attention |= _reached(roles.nodes("pv_bmm"), _readers)
    attention |= {node for role in ("rope", "kv") for node in roles.nodes(role) if not is_linear(node)}
    norms = roles.nodes("norm")
    parts = {
        node.name or "": "a norm" if node in norms else "attention"
        for node in main_nodes(model)
        if node in attention or node in norms
    }
    given = {item.name: getattr(target, item.name) for item in dataclasses.fields(Target)}
    return ArrangedTarget(**{**given, "join_siblings": True}, on_cpu=parts)


def _reached(starts: Iterable[ir.Node], beside: Callable[[ir.Node], Iterable[ir.Node]]) -> set[ir.Node]:
    """``starts`` and what is ``beside`` them, up to linear layers."""
    found = {node for node in starts if not is_linear(node)}
    waiting = list(found)
    while waiting:
        for node in beside(waiting.pop()):
            if node not in found and not is_linear(node):
                found.add(node)
                waiting.append(node)
    return found


def is_linear(node: ir.Node) -> bool:
    """Whether ``node`` multiplies with a stored weight."""
    return isinstance(weighted_layer(node), WeightedLayer) or node.op_type in _PACKED


def _read(node: ir.Node) -> Iterable[ir.Node]:
    return [producer for value in node.inputs if value is not None and (producer := value.producer()) is not None]


def _readers(node: ir.Node) -> Iterable[ir.Node]:
    return [use.node for value in node.outputs for use in value.uses()]
