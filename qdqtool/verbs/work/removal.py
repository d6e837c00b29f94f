"""What `qdq remove` does besides removing pairs: operators on integers first, and a word on what stays."""

from __future__ import annotations

import glob
import re
from typing import TYPE_CHECKING, Any

from qdqtool.io.files.progress import Warn, pass_on
from qdqtool.io.models.load import load
from qdqtool.verbs.pairs import Step

if TYPE_CHECKING:
    import onnx_ir as ir

    from qdqtool.verbs.work.editing import Saved

#: Nodes that a warning names.
NAMED = 3


def first_steps(model: str) -> list[Step]:
    """What to run first: ``inline-functions``, where a local function quantizes with a scale, or stored integers, that it is
    called with; ``infer-shapes``, where an operator with channels last is told no rank."""
    from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
    from qdq_passes.graph.uses import all_nodes

    graph = load(model)
    flat = [n for n in all_nodes(graph) if "channels_last" in n.attributes]
    shapes: list[Step] = (
        [("infer-shapes", {})] if any(n.inputs[0] is not None and n.inputs[0].shape is None for n in flat) else []
    )
    for function in graph.functions.values():
        given = set(function.inputs)
        for node in function.all_nodes():
            outside = node.inputs[1:] if is_quantize(node) else node.inputs if is_dequantize(node) else ()
            if any(value in given for value in outside):
                return [("inline-functions", {}), *shapes]
    return shapes


def plan(model: str, chosen: dict[str, Any], *, keep_weights: bool) -> tuple[list[Step], dict[str, Any] | None]:
    """The steps that make pairs of the selected operators on integers, or remove dynamic quantization, and what remove-qdq is to
    select behind them; None for nothing. Where only pairs are selected: no steps, and ``chosen`` as it is.

    Afterwards names of tensors select: an operator may be another one by then, as MatMul for MatMulInteger.
    """
    from qdq_passes.integers.look.dynamic_quantization import dynamic_groups
    from qdq_passes.integers.look.quantized_table import qdq_rows
    from qdq_passes.select.selectors import Selector, select

    graph = load(model)
    hit = select(graph, Selector.of(*chosen["select"]), allow_empty=True)
    nodes, values = set(hit.nodes), set(hit.values)
    groups = [g for g in dynamic_groups(graph) if {g.source, g.output} & values or not nodes.isdisjoint(g.nodes)]
    rows = [row for row in qdq_rows(graph) if row.is_hit(nodes, values, hit.named)]
    if not groups and not any(not row.is_pair for row in rows):
        return [], chosen
    going = [row for row in rows if row.is_pair or not values.isdisjoint(row.values)]
    others = [row for row in rows if not row.is_pair]
    operators = {n: None for row in others for n in row.nodes if n in hit.named or row in going}
    dynamic = [g.source.name or "" for g in groups] + [row.tensor for row in going if row.form == "dynamic"]
    pairs = [row.tensor for row in going if row.form not in ("dynamic", "nbits") or keep_weights]
    steps: list[Step] = []
    if operators:
        by_name = {"select": [f"re:^{re.escape(node.name or '')}$" for node in operators]}
        steps.append(("convert-qoperators", by_name))
        if not keep_weights and any(row.form == "nbits" for row in others):
            steps.append(("unpack-matmul-nbits", {**by_name, "weights": "float"}))
    if dynamic:
        steps.append(("remove-dynamic-quantization", {"select": _tensors(dynamic)}))
    return steps, {"select": _tensors(pairs)} if pairs else None


def _tensors(names: list[str]) -> list[str]:
    return ["tensor:" + glob.escape(name).replace("&", "\\&") for name in dict.fromkeys(names)]


def warn_of_rest(warn: Warn | None, saved: Saved, *, everything: bool, keep_weights: bool) -> None:
    """Say what stays quantized although it was to go, and why as far as the passes tell."""
    reasons: dict[str, str] = {}
    for change in saved.report.changes:
        if change.is_skip:
            reasons.setdefault(change.where, change.because)
    rest = _quantized_nodes(saved.report.model, keep_weights=keep_weights)
    told = [f"{node.name}: {reasons.get(node.name or '', f'{node.op_type} stays')}" for node in rest]
    if not everything:
        told = [text for text, node in zip(told, rest, strict=True) if (node.name or "") in reasons]
    if told:
        more = f"; and {len(told) - NAMED} more" if len(told) > NAMED else ""
        pass_on([f"still quantized: {'; '.join(told[:NAMED])}{more}"], warn)


def _quantized_nodes(model: ir.Model, *, keep_weights: bool) -> list[ir.Node]:
    """The nodes that quantize, dequantize or compute on integers; with ``keep_weights`` without those of weights alone."""
    from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_dynamic_quantize, is_quantize
    from qdq_passes.graph.operators.qoperators import form_of, is_recurrent
    from qdq_passes.graph.uses import all_nodes
    from qdq_passes.integers.convert_qoperators import NOT_CONVERTED
    from qdq_passes.integers.look.integer_ops import INTEGER_PRODUCTS
    from qdq_passes.integers.look.integer_products import is_integer_product
    from qdq_passes.integers.look.packed_weights import is_packed
    from qdq_passes.select.selectors import is_weight_of

    found = []
    for node in all_nodes(model):
        if is_quantize(node) or is_dequantize(node):
            if not (keep_weights and is_weight_of(node.outputs[0])):
                found.append(node)
        elif (
            is_dynamic_quantize(node) or form_of(node) is not None or is_integer_product(node) or is_recurrent(node)
            or (is_packed(node) and not keep_weights) or node.op_type in INTEGER_PRODUCTS or node.op_type in NOT_CONVERTED
        ):  # fmt: skip
            found.append(node)
    return found
