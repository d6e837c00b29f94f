"""What the inputs and outputs of a decoder are for: ids, mask, positions, logits, and the pairs past → present of its KV cache.

A role is told by what an input feeds, and by its name where several would fit."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.cache import CachePair, cache_pairs, extra_readers
from qdq_passes.decoder.look.flow import SHAPE_READERS, Flow, depending_on, is_attention, is_product
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.operators.kinds import MOVERS, is_passed, kind_of
from qdq_passes.graph.sizes import rank_of, rank_or, sizes_of
from qdq_passes.graph.uses import FLOAT_TYPES, constant_array, in_order, is_constant

__all__ = ["CachePair", "DecoderIo", "decoder_io", "extra_readers"]

_INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.INT16})
_POSITIONS = re.compile(r"position|(^|[^a-z])pos([^a-z]|$)", re.IGNORECASE)
_MASK = re.compile(r"mask", re.IGNORECASE)
_IDS = re.compile(r"(^|[^a-z])ids?([^a-z]|$)|token", re.IGNORECASE)
_EMBEDS = re.compile(r"embed|hidden", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class DecoderIo:
    """The roles of a decoder's inputs and outputs.

    Args:
        ids: input, integer [batch, sequence]; or the embeddings, float [batch, sequence, width].
        mask: input, [batch, past + sequence] integer, or a float mask of rank 4; None without one.
        positions: input, integer [batch, sequence] or [sequence]; None without one.
        pairs: the cache, by layer, key before value.
        logits: output, [batch, sequence, vocabulary].
        others: inputs that have none of these roles.
        reasons: name of an input or output → why it has its role, in words; for the report.
    """

    ids: ir.Value
    mask: ir.Value | None
    positions: ir.Value | None
    pairs: tuple[CachePair, ...]
    logits: ir.Value
    others: tuple[ir.Value, ...] = ()
    reasons: tuple[tuple[str, str], ...] = ()

    @property
    def layers(self) -> int:
        """How many layers keep a cache."""
        return sum({pair.layer: pair.layers for pair in self.pairs}.values())


def decoder_io(model: ir.Model) -> DecoderIo:
    """The roles of the inputs and outputs of ``model``, which may be dynamic, static, or have its cache updated in place.

    Raises:
        UnsupportedError: it keeps no cache of keys and values, or one that is not handled; ids or logits are missing.
    """
    nodes = in_order(model.graph)
    pairs = cache_pairs(model.graph.inputs, nodes)
    if not pairs:
        raise UnsupportedError(
            "is no decoder with a KV cache: no input is carried on to an output by Concat, Scatter or attention",
            where=model.graph.name, hint="export it with past key values (use_cache, task text-generation-with-past)",
        )  # fmt: skip
    pasts = {pair.past for pair, _ in pairs}
    flow = Flow.of(nodes)
    rest = [v for v in model.graph.inputs if v not in pasts and v.name not in model.graph.initializers]
    logits, why_logits = _logits(model, {pair.present for pair, _ in pairs})
    ids, why_ids = _ids(rest, logits, model, flow)
    rest = [v for v in rest if v is not ids]
    stream = depending_on(nodes, [ids, *pasts]) - {ids, *pasts}
    uses = {value: _uses(value, stream, flow) for value in rest}
    mask, why_mask = _mask(rest, ids, uses)
    positions, why_positions = _positions([v for v in rest if v is not mask], ids, uses)
    others = tuple(v for v in rest if v is not mask and v is not positions)
    reasons = {ids: why_ids, logits: why_logits}
    reasons |= {pair.past: f"{why}, to {pair.present.name} by {pair.update.op_type}" for pair, why in pairs}
    reasons |= {value: why for value, why in ((mask, why_mask), (positions, why_positions)) if value is not None}
    reasons |= dict.fromkeys(others, "has no role of a decoder")
    order = [*model.graph.inputs, *model.graph.outputs]
    return DecoderIo(
        ids=ids, mask=mask, positions=positions, pairs=tuple(pair for pair, _ in pairs), logits=logits, others=others,
        reasons=tuple((value.name or "", reasons[value]) for value in order if value in reasons),
    )  # fmt: skip


def _logits(model: ir.Model, presents: Collection[ir.Value]) -> tuple[ir.Value, str]:
    """The widest output that is no present; a name that says so goes first."""
    outputs = [v for v in model.graph.outputs if v not in presents and v.dtype in {None, *FLOAT_TYPES}]
    named = [v for v in outputs if "logit" in (v.name or "").lower()]
    if named:
        return named[0], "logits by its name"
    widths = [(_width(v), -number) for number, v in enumerate(outputs)]
    if not outputs:
        raise UnsupportedError(
            "has no output besides its cache: logits are missing",
            where=model.graph.name,
            hint="export it with its head",
        )
    best = outputs[-max(widths)[1]]
    return best, "logits: the widest output that is no cache" if len(
        outputs
    ) > 1 else "logits: the only output that is no cache"


def _width(value: ir.Value) -> int:
    dims = sizes_of(value) or []
    return dims[-1] if dims and isinstance(dims[-1], int) else 0


def _ids(rest: Sequence[ir.Value], logits: ir.Value, model: ir.Model, flow: Flow) -> tuple[ir.Value, str]:
    """The integers that choose rows of an embedding table, or embeddings themselves."""
    found = []
    for number, value in enumerate(rest):
        rows = _table_rows(value, flow)
        if rows is not None and rank_or(value, 0) <= 2:
            name = value.name or ""
            is_position = bool(_POSITIONS.search(name)) or bool(_MASK.search(name)) or "type" in name
            found.append((not is_position, rows == _width(logits), bool(_IDS.search(name)), rows, -number, value))
    found = [f for f in found if f[0]]
    if found:
        best = max(found, key=lambda f: f[:5])
        return best[-1], f"ids: chooses rows of an embedding table of {best[3]}"
    floats = [v for v in rest if v.dtype in FLOAT_TYPES and rank_of(v) == 3]
    named = [v for v in floats if _EMBEDS.search(v.name or "")] or floats
    if len(named) == 1:
        return named[0], "ids: the embeddings themselves, the only float input of three dimensions"
    raise UnsupportedError(
        "no input chooses rows of an embedding table, and none is embeddings [batch, sequence, width]", where=model.graph.name,
        hint="ids are an integer input that feeds a Gather",
    )  # fmt: skip


def _table_rows(value: ir.Value, flow: Flow) -> int | None:
    """How many rows the float table has that ``value`` chooses from: [rows, width]; None when it chooses from none."""
    if value.dtype is not None and value.dtype not in _INTEGERS:
        return None
    steps = MOVERS | {"Add", "Clip", "Where", "Max", "Min", "Sub", "Mod", "Cast"}
    for node, index in flow.forward([value], lambda n, _: not (is_passed(n) or kind_of(n) in steps)):
        table = node.inputs[0] if kind_of(node) == "Gather" and index == 1 else None
        rows = None if table is None else _rows(table, is_packed=node.domain != "" or _is_dequantized(node, flow))
        if rows is not None:
            return rows
    return None


def _is_dequantized(node: ir.Node, flow: Flow) -> bool:
    """Whether what ``node`` chooses of integers is made floats."""
    return any(kind_of(reader) == "DequantizeLinear" and index == 0 for reader, index in flow.readers(node.outputs[0]))


def _rows(table: ir.Value, *, is_packed: bool) -> int | None:
    """Rows of a constant float matrix, tied and transposed or dequantized as it may be; 0 where unknown, None when it is none."""
    at, turned, is_float, shaped = table, False, is_packed, None
    while (maker := at.producer()) is not None and (source := maker.inputs[0] if maker.inputs else None) is not None:
        if kind_of(maker) == "Transpose":
            turned = not turned
        elif kind_of(maker) == "Reshape" and len(maker.inputs) > 1 and shaped is None:
            shaped = constant_array(maker.inputs[1])
        elif not is_passed(maker) and kind_of(maker) not in ("Reshape", "DequantizeLinear"):
            return None
        is_float = is_float or kind_of(maker) in ("DequantizeLinear", "Cast")
        at = source
    sizes = at.const_value.shape if at.const_value is not None else at.shape
    if shaped is not None and shaped.size == 2 and not turned:
        sizes = ir.Shape(shaped.ravel().tolist())
    if not is_constant(at) or sizes is None or len(sizes) != 2 or not (is_float or at.dtype in {None, *FLOAT_TYPES}):
        return None
    rows = sizes[1 if turned else 0]
    return rows if isinstance(rows, int) else 0


@dataclass(frozen=True)
class _Uses:
    """Where an input meets what depends on ids and cache: as a mask of scores, as positions, elsewhere."""

    mask: bool
    positions: bool
    elsewhere: bool


def _uses(value: ir.Value, stream: Collection[ir.Value], flow: Flow) -> _Uses:
    """What ``value`` does where it first meets the ``stream``."""
    mask = positions = elsewhere = False
    for node, index in flow.forward(
        [value], lambda n, _: any(o in stream for o in n.outputs) or kind_of(n) in SHAPE_READERS
    ):
        kind = kind_of(node)
        if kind in ("Cos", "Sin", "RotaryEmbedding") or (
            kind == "Gather" and index == 1 and is_constant(node.inputs[0])
        ):
            positions = True
        if not any(o in stream for o in node.outputs):
            continue
        if is_attention(node):
            mask = mask or index > 2
        elif kind == "Softmax" or any(kind_of(n) == "Softmax" for n, _ in flow.forward(node.outputs, _ends_scores)):
            mask = True
        elif kind not in ("RotaryEmbedding", "ScatterElements", "ScatterND", "TensorScatter"):
            elsewhere = True
    return _Uses(mask, positions, elsewhere)


def _ends_scores(node: ir.Node, _: int) -> bool:
    return is_product(node) or kind_of(node) == "Softmax" or is_attention(node)


def _mask(rest: Sequence[ir.Value], ids: ir.Value, uses: dict[ir.Value, _Uses]) -> tuple[ir.Value | None, str]:
    """By name; else what meets scores, is no position and is not of the shape of the ids."""
    named = [v for v in rest if _MASK.search(v.name or "")]
    best = [v for v in named if uses[v].mask] or named
    if best:
        return best[0], "mask by its name" + (", and it meets the scores" if uses[best[0]].mask else "")
    found = [
        v for v in rest
        if uses[v].mask and not _POSITIONS.search(v.name or "") and rank_or(v, 0) >= 2 and sizes_of(v) != sizes_of(ids)
    ]  # fmt: skip
    return (found[0], "mask: meets the scores of attention") if found else (None, "")


def _positions(rest: Sequence[ir.Value], ids: ir.Value, uses: dict[ir.Value, _Uses]) -> tuple[ir.Value | None, str]:
    """By name, ``position_ids`` before ``cache_position``; else what rotates or chooses embeddings, of the shape of the ids."""
    integers = [v for v in rest if v.dtype is None or v.dtype in _INTEGERS]
    named = [v for v in integers if _POSITIONS.search(v.name or "")]
    if named:
        best = min(
            named, key=lambda v: ("position" not in (v.name or ""), not uses[v].positions, "cache" in (v.name or ""))
        )
        return best, "positions by its name" + (
            ", and they rotate or choose embeddings" if uses[best].positions else ""
        )
    shape = (sizes_of(ids) or [])[:2]
    found = [v for v in integers if uses[v].positions and (sizes_of(v) or []) in (shape, shape[1:])]
    return (found[0], "positions: rotate keys or choose embeddings") if found else (None, "")
