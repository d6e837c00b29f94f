"""Advice that is tried: where a verdict knows no way out, the tool's own passes are run on a copy, and what helps is told.

A pass helps a group of operators where none of them is left on the CPU behind it, and fewer operators are there than before: one
that puts other operators in their place which are not taken either does not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import onnx_ir as ir
from qdq_passes.errors import QdqError
from qdq_passes.graph.annotate import TARGET
from qdq_passes.graph.edit import copy_model
from qdq_passes.npu.partitions.partitions import partition_for, placements
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.npu.figures import node_reports
from qdqtool.npu.report import Analysis
from qdqtool.npu.shares import NodeReport, Refusal
from qdqtool.targets.target import Target

#: How a suggestion begins that knows no way out.
NO_WAY = "no pass is known that "
#: What is tried, each by itself, as `opt -p` takes it.
TRIED = (
    "infer-shapes,fold-constants{what=all},remove-no-ops{identities=true},fold-constants{what=all},remove-unused,infer-shapes",
    "merge-reshapes,merge-transposes,merge-slices", "remove-nan-guards", "reduce-mean-to-global-pool", "pow-to-mul",
    "batch-norm-to-conv", "split-to-slice", "split-hard-swish", "split-large-pool", "decompose-einsum", "unpack-matmul-nbits",
    "decompose-attention,decompose-multi-head-attention,decompose-group-query-attention,decompose-rotary-embedding,"
    "decompose-skip-layer-norm,decompose-simplified-layer-norm",
)  # fmt: skip


def ways_tried(
    model: ir.Model, target: Target, nodes: Sequence[NodeReport], refusals: Iterable[Refusal]
) -> dict[str, str]:
    """Name of an operator that no way out is known of → what is to be said instead, once all of `TRIED` were tried on a copy.

    Args:
        model: prepared as `analyze` does; stays as it is.
        target: the target.
        nodes: who runs what.
        refusals: what keeps operators off the NPU.
    """
    opened = [refusal for refusal in refusals if refusal.suggestion.startswith(NO_WAY)]
    before, said, work = _on_cpu(nodes), dict[str, str](), None
    for passes in TRIED if opened else ():
        work = copy_model(model) if work is None else work
        try:
            if not run_pipeline(work, passes).modified:
                continue
            after = _on_cpu(_placed(work, target))
        except QdqError:  # a pass that declines loudly here is no way out
            after = before
        for refusal in opened:
            if after.isdisjoint(refusal.nodes) and len(after) < len(before):
                way = f"`qdqtool opt -p {passes}` takes {'it' if len(refusal.nodes) == 1 else 'them'} away, tried on a copy"
                said |= dict.fromkeys(refusal.nodes, way)
        opened = [refusal for refusal in opened if refusal.nodes[0] not in said]
        work = None
        if not opened:
            break
    own = {node.name: node.placement.suggestion for node in nodes}
    tried = f"; tried without success: {len(TRIED)} pipelines of passes, of folding, merging and taking operators apart"
    for refusal in opened:
        said |= {name: own[name] + tried for name in refusal.nodes}
    return said


def _placed(model: ir.Model, target: Target) -> tuple[NodeReport, ...]:
    run_pipeline(model, "give-names,infer-shapes")
    found = partition_for(model, target, simulated=False)
    return node_reports(placements(model, found), found)


def _on_cpu(nodes: Iterable[NodeReport]) -> set[str]:
    return {node.name for node in nodes if node.is_compute and not node.is_npu}


def with_trials(found: Analysis, target: Target) -> Analysis:
    """``found`` with what trials say in place of suggestions that know no way out, also for what runs on the CPU with them."""
    said = ways_tried(found.model, target, found.nodes, found.refusals)
    if not said:
        return found
    of = {refusal.suggestion: said[refusal.nodes[0]] for refusal in found.refusals if refusal.nodes[0] in said}
    ways = {
        node.name: said.get(node.name) or of.get(node.placement.suggestion) for node in found.nodes if not node.is_npu
    }
    for node in found.model.graph.all_nodes():
        placement, way = TARGET.get(node), ways.get(node.name or "")
        if placement is not None and way is not None:
            TARGET.set(node, replace(placement, suggestion=way))
    return replace(
        found,
        nodes=tuple(_advised(node, ways.get(node.name)) for node in found.nodes),
        refusals=tuple(replace(r, suggestion=said.get(r.nodes[0], r.suggestion)) for r in found.refusals),
        rules=tuple(replace(r, suggestion=ways.get(r.nodes[0]) or r.suggestion) for r in found.rules),
        repairs=tuple(replace(r, suggestion=ways.get(r.nodes[0]) or r.suggestion) for r in found.repairs),
    )


def _advised(node: NodeReport, way: str | None) -> NodeReport:
    return node if way is None else replace(node, placement=replace(node.placement, suggestion=way))
