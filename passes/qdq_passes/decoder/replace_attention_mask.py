"""replace-attention-mask

softmax(s + m)·v: keys that m hides have weight exp(-1e9) = 0 under any mask that hides the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.decoder.edit.masks import MASK, CanonicalMasks, Form
from qdq_passes.decoder.edit.slots import free_name, position_input
from qdq_passes.decoder.look.host_region import Host, Probed, Sizes, batch_of, fixed_sizes
from qdq_passes.decoder.look.io import DecoderIo, decoder_io
from qdq_passes.decoder.look.masks import Masked, masked_attentions
from qdq_passes.decoder.look.record import Layout
from qdq_passes.decoder.look.scores import MaskEdge
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.build import Builder, drop_chains, drop_input
from qdq_passes.graph.edit import bypass, drop_unread, make_node, replace_nodes
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import FLOAT_TYPES, is_standard, label


@dataclass(frozen=True)
class ReplaceAttentionMask(Pass):
    """Replace what hides keys in a decoder, whatever an exporter made of it, by one float mask per kind that all layers share.

    Each attention's masks (Add, Sub, Where and Mul before the Softmax, or inputs and attributes of Attention) are evaluated in
    numbers under several sizes. Together they must be causal, or causal within a window.

    Graph: ``attention_mask [B, T] → Cast → GatherND → Where → Add ← scores`` → ``attention_mask [B, 1, S, T] → Add ← scores``.
    Requires: a decoder with dynamic sizes, its cache outside of its attentions.
    Keeps: names of the other inputs and of the outputs. An input of the name ``attention_mask`` that is still needed, for
    positions, is called ``padding_mask`` from then on; ``replace-positions`` removes it.
    Skips: attentions that make their mask themselves (GroupQueryAttention).

    Args:
        form: ``input``: masks are inputs float [batch, 1, sequence, total], 0 where a key is seen and -1e9 elsewhere (float16:
            -2^15), called ``attention_mask`` and ``attention_mask_w<window>``; ``graph``: they are made of positions
            [batch, sequence] alone.
        layout: for ``graph``: tokens stand ``in-place``, in the slots of their positions, or ``slide``, the last one in the last
            slot.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "changes", why="the mask comes in as one float per query and key, or of positions alone"
    )
    form: Form = "input"
    layout: Layout = "in-place"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Classify all, then rewire all."""
        io = decoder_io(model)
        host = Host(model, io)
        attentions = masked_attentions(host)
        if not attentions:
            yield skip(
                model.graph.name or "graph", "no attention takes a mask of scores; one in itself follows the positions"
            )
            return
        if self.form == "input" and all(_is_canonical(masked) for masked in attentions):
            yield skip(model.graph.name or "graph", "its masks are such inputs already")
            return
        fixed = fixed_sizes(host)
        sizes = Sizes(batch=batch_of(host), past=fixed[0] or 7, new=fixed[1] or 3)
        probed, single = host.probe(sizes), host.probe(Sizes(past=sizes.past, new=sizes.new))
        builder = Builder(model)
        yield from free_name(model, io.mask, MASK, "padding_mask", builder.namer)
        positions = position_input(model, io, builder) if self.form == "graph" else None
        masks = CanonicalMasks(builder, io, self.form, self.layout, positions)
        old: list[ir.Value | None] = []
        going = [io.mask, *(value for value in io.others if value.uses())]
        inferred = Inferred(model)
        for masked in sorted(attentions, key=lambda each: each.window):
            dtype, rank = _scores(masked, probed, inferred)
            mask = masks.of(masked.window, dtype, masked.query_axis)
            if rank == 3 and not masked.core.op_type.endswith("Attention"):
                mask = _per_head(mask, io, masked, builder)
            elif masked.edges and masked.edges[0].data >= 0:
                mask = _along_batch(mask, rank, _batch_axis(masked, probed, single), masked, builder)
            yield _rewire(masked, mask, builder, old)
        yield from drop_chains(old)
        for value in going:
            yield from drop_input(model, value)


def _is_canonical(masked: Masked) -> bool:
    """Whether the one mask of an attention is what this pass makes."""
    name = f"{MASK}_w{masked.window}" if masked.window else MASK
    if [edge.form in ("add", "operand") and edge.index != 4 for edge in masked.edges] != [True]:
        return False
    value = masked.edges[0].node.inputs[masked.edges[0].index]
    while (
        value is not None and (turned := value.producer()) is not None and is_standard(turned, "Transpose", "Unsqueeze")
    ):
        value = turned.inputs[0]
    return value is not None and value.is_graph_input() and value.name == name and value.dtype in FLOAT_TYPES


def _scores(masked: Masked, probed: Probed, inferred: Inferred) -> tuple[ir.DataType, int]:
    """Element type and rank of what a mask is added to."""
    edge = masked.edges[0] if masked.edges else None
    value = masked.core.inputs[0] if edge is None or edge.data < 0 else edge.node.inputs[edge.data]
    spec = probed.specs.get(value) if value is not None else None
    dtype = inferred.dtype(value) if value is not None else None
    dtype = dtype or (spec.dtype if spec is not None else None)
    if dtype is None:
        raise UnsupportedError(
            "the type of its scores is unknown", where=masked.core.name, hint="declare the types of what it reads"
        )
    rank = len(spec.shape) if spec is not None else inferred.rank(value) if value is not None else None
    return dtype, rank or 4


def _per_head(mask: ir.Value, io: DecoderIo, masked: Masked, builder: Builder) -> ir.Value:
    """``mask`` for scores whose batch and heads are one axis, [batch · heads, sequence, total]."""
    pair = io.pairs[0]
    sizes = [] if pair.past.shape is None else list(pair.past.shape)
    heads = next((d for a, d in enumerate(sizes) if a not in (pair.axis, pair.batch_axis) and isinstance(d, int)), None)
    node = masked.edges[0].node
    if len(sizes) != 4 or heads is None:
        raise UnsupportedError("scores of three dimensions, and the number of heads is unknown", where=node.name)
    site = builder.at(node, base=f"{node.name}_mask")
    spread = site("Expand", mask, site.constant([1, heads, 1, 1], word="shape"))
    length, total = site.dim(mask, 2), site.dim(mask, 3)
    shape = site("Concat", site.constant([-1]), site.reshape(length, [1]), site.reshape(total, [1]), axis=0)
    return site("Reshape", spread, shape)


def _batch_axis(masked: Masked, probed: Probed, single: Probed) -> int:
    """Axis of the batch in the scores: the one that differs between a batch and one row; 0 where that is not known."""
    edge = masked.edges[0]
    value = edge.node.inputs[edge.data]
    many, one = (None if value is None else found.specs.get(value) for found in (probed, single))
    if many is None or one is None or len(many.shape) != len(one.shape):
        return 0
    return next((axis for axis, (a, b) in enumerate(zip(many.shape, one.shape, strict=True)) if a != b), 0)


def _along_batch(mask: ir.Value, rank: int, axis: int, masked: Masked, builder: Builder) -> ir.Value:
    """``mask`` [B, 1, S, T] for scores of ``rank`` dimensions, groups of heads apart, whose batch lies along ``axis``."""
    if (rank, axis) == (4, 0) or rank < 4:
        return mask
    node = masked.edges[0].node
    if axis > rank - 3:
        raise UnsupportedError(f"has the batch along axis {axis} of {rank} of its scores", where=node.name)
    site = builder.at(node, base=f"{node.name}_mask")
    turned = site.transpose(mask, 1, 0, 2, 3) if axis else mask
    front = max(axis - 1, 0)
    back = range(front + 2, front + 2 + rank - 4 - front) if axis else range(1, rank - 3)
    axes = [*range(front), *back]
    return site.unsqueeze(turned, *axes) if axes else turned


def _rewire(masked: Masked, mask: ir.Value, builder: Builder, old: list[ir.Value | None]) -> Change:
    """Let ``mask`` take the place of all masks of an attention; ``old`` gathers what these read."""
    core = masked.core
    if not masked.edges or masked.edges[0].data < 0:
        _give(core, mask, old)
    else:
        adding = next((edge for edge in masked.edges if edge.form != "multiply"), masked.edges[0])
        for edge in masked.edges:
            if edge.node.graph is None:
                continue  # both operands of one node
            old += [v for i, v in enumerate(edge.node.inputs) if i != edge.data]
            if edge is adding:
                _add(edge, mask, builder)
            else:
                source = edge.node.inputs[edge.data]
                bypass(edge.node, builder.namer, "its mask is part of another", source=source)
    kind = f"a causal window of {masked.window}" if masked.window else "causal"
    pads = {"honoured": "", "ignored": "; it ignored padding", "none": ""}[masked.padding]
    return Change("replace", label(core), f"its mask is {kind}{pads}")


def _add(edge: MaskEdge, mask: ir.Value, builder: Builder) -> None:
    """``node`` as Add of the scores and ``mask``."""
    node, scores = edge.node, edge.node.inputs[edge.data]
    if is_standard(node, "Add"):
        node.replace_input_with(edge.index, mask)
        return
    new = make_node(
        "Add", [scores, mask], name=builder.namer.fresh(f"{node.name}_Add"), output=builder.namer.fresh(f"{node.name}_Sum"),
        like=node.outputs[0], stands_for=[node],
    )  # fmt: skip
    read = list(node.inputs)
    replace_nodes([node], [new], builder.namer, "a mask is added")
    drop_unread(read)


def _give(core: ir.Node, mask: ir.Value, old: list[ir.Value | None]) -> None:
    """``mask`` as the mask input of an attention of one node; what it hid by attributes, the mask hides."""
    index = 3 if is_standard(core, "Attention") else 5
    for at in (index, 4) if index == 5 else (index,):
        if at < len(core.inputs):
            old.append(core.inputs[at])
            core.replace_input_with(at, None)
    core.resize_inputs(max(len(core.inputs), index + 1))
    core.replace_input_with(index, mask)
    for name in ("is_causal", "unidirectional", "left_window_size", "right_window_size"):
        core.attributes.pop(name, None)
