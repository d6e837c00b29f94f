"""Splits a dynamic decoder into static graphs: one preparation, then one pipeline per specialization."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.derive_positions import INDEX, LAST_SLOT, TOTAL
from qdq_passes.decoder.edit.slots import canonical_positions
from qdq_passes.decoder.look.host_boundary import shared_positions
from qdq_passes.decoder.look.host_region import Host
from qdq_passes.decoder.look.io import DecoderIo, decoder_io
from qdq_passes.decoder.look.logits_path import gives_one_row
from qdq_passes.decoder.look.positions import first_of_another_length, shortest_table
from qdq_passes.decoder.look.record import DECODER, CacheTensor, Decoder, Layout, MaskInput
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.uses import label
from qdq_passes.pipeline.pipeline import Hook, parse_pipeline, run_pipeline

from qdqtool.io.files.progress import StageProgress, Warn
from qdqtool.io.models.working import ModelOrPath, opened, repair
from qdqtool.llm.plan.specializations import Specialization
from qdqtool.runtime.session import RUNTIME, compute

#: Operators that quantize all tokens of a run by one scale, made of their values.
TOGETHER = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul"})
Scatter = Literal["scatter-elements", "scatter-nd", "tensor-scatter"]
MaskForm = Literal["input", "graph"]

#: Functions and merged decoders opened, constants named, detours of exporters gone: roles and masks are seen by their use.
CLEAN = "inline-functions,choose-branch,lift-constants,remove-no-ops,remove-identity,remove-unused,give-names"
#: The operator of onnxruntime that keeps its cache itself.
GROUPED = "GroupQueryAttention"
#: Names of the mask inputs; a window w has ``attention_mask_w<w>``.
MASK, WINDOW_MASK = "attention_mask", "attention_mask_w"
LAST_INDEX = "last_index"


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """How a decoder is split.

    Args:
        specializations: the shapes.
        layout: ``in-place``: the graph writes the new rows into the cache; ``slide``: the host does.
        scatter: the operator that writes in place.
        mask: the attention mask is an input, or is made on the graph from the positions.
        all_logits: logits of every position come out, not of the last one alone.
        decompose: fused attention, norms and rotary embeddings become standard operators.
        finish: pipeline that runs on each static graph last: names, and what a client wants changed.
        grouped: GroupQueryAttention keeps the cache, in place by itself.
        tabulate_angles: cosines and sines of positions are looked up in a table.
    """

    specializations: tuple[Specialization, ...]
    layout: Layout = "in-place"
    scatter: Scatter = "scatter-elements"
    mask: MaskForm = "input"
    all_logits: bool = False
    decompose: bool = False
    finish: str = ""
    grouped: bool = False
    tabulate_angles: bool = False

    @property
    def preparation(self) -> str:
        """The pipeline that runs once, on the dynamic model."""
        decompose = (
            "decompose-group-query-attention,decompose-attention,decompose-skip-layer-norm,decompose-simplified-layer-norm,"
            "decompose-rotary-embedding,"
            if self.decompose
            else ""
        )
        masks = f"replace-attention-mask{{form={self.mask} layout={self.layout}}}"
        return f"{CLEAN},{decompose}expose-kv-cache,{masks},replace-positions,remove-unused"

    def pipeline(self, one: Specialization) -> str:
        """The pipeline that makes one static graph of the prepared model."""
        batch, sequence, context = one.batch_size, one.seq_len, one.ctx_len
        update = "emit-new-kv"
        if self.layout == "in-place":
            update = "bind-group-query-lengths" if self.grouped else f"scatter-kv-cache{{operator={self.scatter}}}"
        last = "" if self.all_logits else "keep-last-logits,"
        if self.tabulate_angles:
            last += f"tabulate-rotary-angles{{context={context} compute=@{RUNTIME}}},"
        return (
            f"bind-decoder{{batch={batch} sequence={sequence} context={context}}},{update},{last}"
            f"remove-nan-guards,remove-no-ops,remove-unused{',' if self.finish else ''}{self.finish},sort"
        )

    @property
    def pipelines(self) -> dict[str, str]:
        """All of them: ``prepare`` of the dynamic model, then by name of the specialization what makes it of the prepared one.

        The text is canonical: options that have their default are left out.
        """
        texts = {"prepare": self.preparation, **{one.name: self.pipeline(one) for one in self.specializations}}
        return {name: str(parse_pipeline(text)) for name, text in texts.items()}


@dataclass(frozen=True, kw_only=True)
class StaticGraph:
    """One graph of a split.

    Args:
        specialization: its shapes.
        model: the graph.
        decoder: what its inputs and outputs are for.
    """

    specialization: Specialization
    model: ir.Model
    decoder: Decoder


@dataclass(frozen=True, kw_only=True)
class Split:
    """What `split_model` made.

    Args:
        plan: as it was carried out.
        roles: (role, name, why) of each input and output of the source.
        graphs: the graphs, in the order of the plan.
    """

    plan: SplitPlan
    roles: tuple[tuple[str, str, str], ...]
    graphs: tuple[StaticGraph, ...]


def split_model(
    model: ir.Model,
    plan: SplitPlan,
    *,
    hooks: Iterable[Hook] = (),
    progress: StageProgress | None = None,
    warn: Warn | None = None,
) -> Split:
    """The static graphs of ``model``, which is prepared in place; weights are shared and never read.

    Raises:
        UnsupportedError: it is no decoder with a cache, or holds what cannot be made static without changing the function; the
            node is named.
    """
    hooks = list(hooks)
    run_pipeline(model, CLEAN, hooks=hooks)
    io = decoder_io(model)
    roles = roles_of(io)
    plan = adapted(plan, io, warn)
    prepared = plan.preparation.removeprefix(f"{CLEAN},")
    run_pipeline(model, prepared, hooks=hooks)
    _refuse_shared_positions(model, plan)
    _refuse_short_tables(model, plan)
    if warn is not None:
        for sentence in warnings_of(model, max(one.ctx_len for one in plan.specializations)):
            warn(sentence)
    graphs = []
    for number, one in enumerate(plan.specializations):
        if progress is not None:
            progress(one.name, number, len(plan.specializations))
        static = copy_model(model)
        run_pipeline(static, plan.pipeline(one), inputs={RUNTIME: compute}, hooks=hooks)
        record = described(static, one, plan)
        _refuse_one_row(static, one, plan)
        refuse_unknown_inputs(static, record)
        DECODER.set(static.graph, record)
        graphs.append(StaticGraph(specialization=one, model=static, decoder=record))
    return Split(plan=plan, roles=roles, graphs=tuple(graphs))


def adapted(plan: SplitPlan, io: DecoderIo, warn: Warn | None = None) -> SplitPlan:
    """``plan`` for a model with these roles, whose attention may keep the cache itself."""
    keepers = [pair.update for pair in io.pairs if pair.update.op_type == GROUPED]
    if not keepers or plan.decompose:
        return plan
    several = any(one.batch_size > 1 and one.seq_len > 1 for one in plan.specializations)
    if plan.layout == "slide" or several or len(keepers) < len(io.pairs):
        why = "runs several tokens of one row only" if several else "gives out no new rows alone"
        if warn is not None:
            warn(f"{GROUPED} {why}: it is decomposed")
        return dataclasses.replace(plan, decompose=True)
    if plan.scatter != "scatter-elements" and warn is not None:
        warn(f"{GROUPED} writes its cache itself: {plan.scatter} is not used; pass --decompose to have it")
    return dataclasses.replace(plan, grouped=True)


def _refuse_shared_positions(model: ir.Model, plan: SplitPlan) -> None:
    """Rows of a batch are of different lengths: each needs positions of its own. (`replace-positions` refuses frozen ones.)"""
    rows = max(one.batch_size for one in plan.specializations)
    io = decoder_io(model)
    positions = canonical_positions(io)
    if rows == 1 or positions is None:
        return
    node = shared_positions(Host(model, io), positions)
    if node is not None:
        raise UnsupportedError(
            f"takes the positions of one row for a batch of {rows}: rows of different lengths would be wrong",
            where=label(node),
            hint="split with --batch 1, or export the decoder with an input position_ids [batch, sequence]",
        )  # fmt: skip


def _refuse_short_tables(model: ir.Model, plan: SplitPlan) -> None:
    """Positions behind the last row of a table would fail when they are reached, or be read from its end."""
    io = decoder_io(model)
    positions = canonical_positions(io)
    table = shortest_table(Host(model, io), positions) if positions is not None else None
    largest = max(one.ctx_len for one in plan.specializations)
    if table is not None and table.positions < largest:
        raise UnsupportedError(
            f"chooses among {table.positions} positions, the context has {largest}",
            where=label(table.node), hint=f"take a --context of at most {table.positions}",
        )  # fmt: skip


def _refuse_one_row(model: ir.Model, one: Specialization, plan: SplitPlan) -> None:
    """An export that takes its last token itself has no logits of the others."""
    logits = decoder_io(model).logits
    if plan.all_logits and gives_one_row(logits, one.seq_len):
        raise UnsupportedError(
            "are the logits of its last token alone",
            where=logits.name,
            hint="split without --all-logits, or export all logits",
        )


def refuse_unknown_inputs(model: ir.Model, record: Decoder) -> None:
    """An input that no record names would be fed zeros."""
    known = {record.ids, record.positions, record.index, record.last_slot, record.total, record.last_index}
    known |= {mask.name for mask in record.masks} | {tensor.past for tensor in record.cache}
    for value in model.graph.inputs:
        if value.name not in known and value.uses():
            raise UnsupportedError(
                "is an input that nothing is known to feed", where=value.name,
                hint="make it a constant, or export the decoder without it",
            )  # fmt: skip


def roles_of(io: DecoderIo) -> tuple[tuple[str, str, str], ...]:
    """(role, name, why) of every input and output, in the order of roles."""
    why = dict(io.reasons)
    rows = [("ids", io.ids), ("mask", io.mask), ("positions", io.positions), ("logits", io.logits)]
    found = [(role, value.name or "", why.get(value.name or "", "")) for role, value in rows if value is not None]
    for pair in io.pairs:
        role = f"{pair.part} of layer {pair.layer}"
        names = f"{pair.past.name} → {pair.present.name}"
        found.append((role, names, why.get(pair.past.name or "", "")))
    return tuple(found) + tuple(("other", value.name or "", why.get(value.name or "", "")) for value in io.others)


def described(model: ir.Model, one: Specialization, plan: SplitPlan) -> Decoder:
    """The record of a static graph that the pipeline of ``plan`` made."""
    io = decoder_io(model)
    inputs = [value.name or "" for value in model.graph.inputs]
    return Decoder(
        layout=plan.layout,
        phase=one.phase,
        batch_size=one.batch_size,
        seq_len=one.seq_len,
        ctx_len=one.ctx_len,
        ids=io.ids.name or "",
        logits=io.logits.name or "",
        positions=io.positions.name or "" if io.positions is not None else "",
        index=INDEX if INDEX in inputs else "",
        last_slot=LAST_SLOT if LAST_SLOT in inputs else "",
        total=TOTAL if TOTAL in inputs else "",
        last_index=LAST_INDEX if LAST_INDEX in inputs else "",
        masks=tuple(masks_of(inputs)),
        cache=tuple(
            CacheTensor(
                past=pair.past.name or "",
                present=pair.present.name or "",
                layer=pair.layer,
                part=pair.part,
                axis=pair.axis,
                layers=pair.layers,
            )
            for pair in io.pairs
        ),
    )


def masks_of(inputs: Sequence[str]) -> list[MaskInput]:
    """The masks among ``inputs``, as `replace-attention-mask` names them."""
    found = []
    for name in inputs:
        if name == MASK:
            found.append(MaskInput(name=name))
        elif name.startswith(WINDOW_MASK) and name.removeprefix(WINDOW_MASK).isdigit():
            found.append(MaskInput(name=name, window=int(name.removeprefix(WINDOW_MASK))))
    return found


def checked(plan: SplitPlan) -> SplitPlan:
    """``plan``, its pipelines parsed: a name or an option that does not exist is told before anything runs."""
    parse_pipeline(plan.preparation)
    for one in plan.specializations:
        parse_pipeline(plan.pipeline(one))
    return plan


def warnings_of(model: ir.Model, largest: int) -> Iterator[str]:
    """Sentences on a prepared decoder whose largest context is ``largest``."""
    node = next((node for node in model.graph if node.op_type in TOGETHER), None)
    if node is not None:
        yield (
            f"{label(node)} quantizes all tokens of a run by one scale: logits depend on how a prompt is cut into "
            "chunks, as they do in the dynamic model, and on padding"
        )
    io = decoder_io(model)
    first = None if io.positions is None else first_of_another_length(Host(model, io), io.positions, largest)
    if first is not None:
        yield (
            f"tokens are rotated otherwise in a run that reaches position {first}: a longer prompt in chunks differs from one "
            f"run of the dynamic model, and padding counts; a context of {first} is exact"
        )


def planned_for(model: ModelOrPath, plan: SplitPlan, *, warn: Warn | None = None) -> SplitPlan:
    """``plan`` as `split` would carry it out on ``model``: an attention that keeps its cache itself needs other passes.

    Raises:
        UnsupportedError: the model is no decoder with a cache.
    """
    work, _ = opened(model)
    repair(work, warn)
    run_pipeline(work, CLEAN)
    return adapted(plan, decoder_io(work), warn)
