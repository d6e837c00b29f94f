"""What `qdq remove` does besides removing pairs: operators on integers first, and a word on what stays."""

from __future__ import annotations

import glob
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Pass
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import copy_model
from qdq_passes.legalize.undo_dpu_edits import UndoDpuEdits
from qdq_passes.pipeline.pipeline import parse_pipeline
from qdq_passes.qdq.remove_qdq import RemoveQdq

from qdqtool.io.files.progress import Warn, pass_on
from qdqtool.io.models.load import load
from qdqtool.io.models.provenance import history
from qdqtool.verbs.pairs import Step

if TYPE_CHECKING:
    import onnx_ir as ir

    from qdqtool.verbs.work.editing import Saved

#: Nodes that a warning names.
NAMED = 3
#: Passes that `quantize` runs together and no other verb does.
QUANTIZE = {"adjust-ranges", "annotate-encodings", "insert-qdq"}
#: Passes that undo-dpu-edits takes back.
DPU_EDITS = {
    "round-leaky-relu", "scale-average-pool", "scale-hard-sigmoid", "scale-reduce-mean", "sigmoid-to-hard-sigmoid",
}  # fmt: skip
#: Families of passes that change what a float model computes, and those of them that removal takes back.
FLOAT_FAMILIES, UNDONE = {"fuse", "legalize", "recover"}, DPU_EDITS | {"undo-dpu-edits"}


def first_steps(graph: ir.Model) -> list[Step]:
    """What to run first: ``inline-functions``, where a local function quantizes with a scale, or stored integers, that it is
    called with; ``infer-shapes``, where an operator with channels last is told no rank."""
    from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
    from qdq_passes.graph.uses import all_nodes

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


def has_integer_operators(graph: ir.Model) -> bool:
    """Whether operators on integers with forms on floats are in ``graph``."""
    from qdq_passes.graph.operators.qoperators import form_of
    from qdq_passes.graph.uses import all_nodes

    return any(form_of(node) is not None for node in all_nodes(graph))


def ways_to_pairs(graph: ir.Model) -> list[str]:
    """What makes pairs, or floats that can have some, of what is quantized otherwise; nothing where all that is are pairs."""
    from qdq_passes.graph.operators.qdq_ops import is_dynamic_quantize
    from qdq_passes.graph.uses import all_nodes

    found = []
    if has_integer_operators(graph):
        found.append("operators on integers have no pairs: the passes `convert-qoperators` make them pairs")
    if any(is_dynamic_quantize(node) for node in all_nodes(graph)):
        found.append(
            "what is quantized as it runs has no scale to edit: the passes `convert-qoperators,remove-dynamic-quantization` make "
            "it float"
        )
    return found


def plan(graph: ir.Model, chosen: dict[str, Any], *, keep_weights: bool) -> tuple[list[Step], dict[str, Any] | None]:
    """The steps that make pairs of the selected operators on integers, or remove dynamic quantization, and what remove-qdq is to
    select behind them; None for nothing. Where only pairs are selected: no steps, and ``chosen`` as it is.

    Afterwards names of tensors select: an operator may be another one by then, as MatMul for MatMulInteger.
    """
    from qdq_passes.integers.look.dynamic_quantization import dynamic_groups
    from qdq_passes.integers.look.quantized_table import qdq_rows
    from qdq_passes.select.selectors import Selector, select

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


@dataclass(frozen=True)
class Past:
    """What a model's provenance tells of how it was quantized.

    Args:
        passes: that made it, the first one first; entries that are no pipeline of ours are left out.
        changed: those of them that are not noted as having changed nothing.
    """

    passes: tuple[Pass, ...]
    changed: tuple[Pass, ...]

    @classmethod
    def of(cls, graph: ir.Model) -> Past:
        """That of ``graph``."""
        found: list[Pass] = []
        changed: list[Pass] = []
        for entry in history(graph.metadata_props):
            text, idle = (entry.get("pipeline"), entry.get("idle")) if isinstance(entry, dict) else (None, None)
            with suppress(UsageError):  # a pass of another version, or of somebody's folder
                ran = parse_pipeline(text).passes if isinstance(text, str) else ()
                found += ran
                changed += [each for each in ran if not isinstance(idle, list) or type(each).name() not in idle]
        return cls(tuple(found), tuple(changed))

    @property
    def keeps_relus(self) -> bool:
        """Whether `quantize` made the pairs, which leaves every Relu where it was; pairs that went again do not count."""
        names = [type(each).name() for each in self.passes]
        gone = [i for i, each in enumerate(self.passes) if isinstance(each, RemoveQdq) and each.select.is_all]
        return set(names[gone[-1] if gone else 0 :]) >= QUANTIZE

    @property
    def has_dpu_edits(self) -> bool:
        """Whether passes ran that undo-dpu-edits takes back."""
        return any(type(each).name() in DPU_EDITS for each in self.changed)

    @property
    def others(self) -> tuple[Pass, ...]:
        """The passes that changed what the float model computes and that nothing takes back."""
        return tuple(
            each
            for each in self.changed
            if each.family() in FLOAT_FAMILIES and each.keeps.numerics == "changes" and type(each).name() not in UNDONE
        )


def warn_of_edits(warn: Warn | None, saved: Saved, model: str, *, is_wanted: bool) -> None:
    """Say what was changed in the float graph for the sake of quantization and is still there: edits for the DPU, counted on the
    result, unless they are wanted; passes of which nothing can be seen there, by their names."""
    edits = [change for change in UndoDpuEdits()(copy_model(saved.report.model)) if not change.is_skip]
    if edits and not is_wanted:
        more = f"; and {len(edits) - NAMED} more" if len(edits) > NAMED else ""
        told = "; ".join(f"{change.where}: {change.because}" for change in edits[:NAMED])
        count = "1 edit" if len(edits) == 1 else f"{len(edits)} edits"
        pass_on([f"{count} for the DPU in the float graph: {told}{more}; --undo-dpu takes them back"], warn)
    others = list(dict.fromkeys(f"{type(each).name()} ({each.keeps.why})" for each in Past.of(load(model)).others))
    if others:
        pass_on(
            [
                f"these passes may have changed what the float model computes, and nothing takes them back: {'; '.join(others)}"
            ],
            warn,
        )


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
