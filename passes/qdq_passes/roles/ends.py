"""The two ends of a model by structure: embeddings, where integers become vectors, and heads, the last layers before outputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from qdq_passes.graph.operators.kinds import ATTENTIONS, MOVERS, SKIP_NORMS
from qdq_passes.graph.uses import integer_of
from qdq_passes.roles.kv import UPDATES
from qdq_passes.roles.products import activation_of, is_weighted, root, widths
from qdq_passes.roles.skeleton import Op, Tensor, dims

_EMBEDDINGS = frozenset({"EmbedLayerNormalization", "QEmbedLayerNormalization"})
#: Types of tables that hold numbers of their own; shorter integers stand for floats.
_PLAIN_TYPES = frozenset(
    {ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.STRING, ir.DataType.UINT32, ir.DataType.UINT64}
)
#: Fewer rows are segments of a sentence, which happen to be as many as classes.
_FEW_ROWS = 4


def embeddings_of(ops: Sequence[Op], tables: Collection[Op]) -> list[Op]:
    """Operators that look rows of a stored table of floats up by integers that depend on an input, and those whose rows are added
    to such (positions that are the same for every input); ``tables`` of cosines are none."""
    lookups = [op for op in ops if _is_lookup(op) and op not in tables]
    found = {op for op in lookups if op.data[1].live}
    found |= {op for op in ops if op.kind in _EMBEDDINGS}
    sums = {op.output for op in found}
    for op in ops:
        if op.kind in ("Add", "Sum") and any(t in sums for t in op.data):
            others = [t for t in op.data if t not in sums]
            if all((maker := root(t).maker) in lookups or not t.live for t in others):
                sums.add(op.output)
                found |= {maker for t in others if (maker := root(t).maker) is not None and maker in lookups}
    return [op for op in ops if op in found]


def _is_lookup(op: Op) -> bool:
    """Whether ``op`` gathers rows of a parameter of floats, or of integers that stand for floats."""
    if op.kind != "Gather" or len(op.data) != 2 or op.data[0].live:
        return False
    table = op.data[0]
    shape = dims(table)
    if op.node.op_type == "GatherBlockQuantized":
        return True
    if integer_of(op.node, "axis", 0) != 0 or shape is None or len(shape) != 2 or 1 in shape:
        return False
    stored = root(table).value
    dtype = None if stored is None else stored.dtype
    return table.dequantized or root(table).dequantized or op.output.dequantized or dtype not in _PLAIN_TYPES


def dequantizers_of(ops: Sequence[Op]) -> set[ir.Node]:
    """The DequantizeLinear nodes behind ``ops``, which look integers up and get floats only there."""
    found: set[ir.Node] = set()
    for op in ops:
        if op.output.dequantized and not op.data[0].dequantized:
            found |= {n for n in op.node.outputs[0].consumers() if n.op_type.endswith("DequantizeLinear")}
    return found


def heads_of(ops: Sequence[Op], within: Collection[Op], results: Collection[Op]) -> list[Op]:
    """Operators with weights that lead to an output of the model and to no other weights.

    Those of ``within`` (MLPs, keys and values) belong to a layer instead, and so does the projection of an attention's
    ``results`` that is added to a residual. A sum over a softmax with fixed weights (the expected distance of a detector's box)
    is arithmetic, not a layer.
    """
    weighted: set[Op] = set()
    for op in ops:
        if is_weighted(op) and not (op.data and _is_softmax(activation_of(op))):
            weighted.add(op)
    ahead: set[Op] = set()
    leads: set[Op] = set()
    for op in reversed(ops):
        readers = {r for t in op.outputs for r in t.readers}
        if any(r in weighted or r in ahead or r.kind in ATTENTIONS for r in readers):
            ahead.add(op)
        if any(t.is_output for t in op.outputs) or any(r in leads for r in readers):
            leads.add(op)
    return [
        op
        for op in ops
        if op in weighted and op in leads and op not in ahead and op not in within
        and not (root(activation_of(op), MOVERS).maker in results and _is_added(op))
    ]  # fmt: skip


def _is_added(op: Op) -> bool:
    """Whether what ``op`` writes is added to another activation, past bias, scale and data movement."""
    tensor = op.output
    for _ in range(6):
        for reader in tensor.readers:
            if reader.kind in SKIP_NORMS or (reader.kind in ("Add", "Sum") and len(reader.live_data()) > 1):
                return True
        onward = [
            r for r in tensor.readers if r.kind in MOVERS or (r.kind in ("Add", "Mul") and len(r.live_data()) == 1)
        ]
        if not onward:
            return False
        tensor = onward[0].output
    return False


def _is_softmax(tensor: Tensor) -> bool:
    maker = root(tensor).maker
    return maker is not None and maker.kind == "Softmax"


def lm_heads_of(heads: Sequence[Op], embeddings: Sequence[Op], ops: Sequence[Op]) -> list[Op]:
    """Those of ``heads`` that write a score for each word: as many as an embedding has rows, alone or joined by a Concat.

    Where no embedding tells the number of words, in a model that keeps a cache: those that widen.
    """
    rows = [shape[0] for op in embeddings if op.kind == "Gather" and (shape := dims(op.data[0])) is not None]
    rows += [
        shape[0]
        for op in embeddings
        if op.kind in _EMBEDDINGS
        for t in op.inputs
        if (shape := dims(t)) and len(shape) == 2
    ]
    words = {n for n in rows if n > _FEW_ROWS or len(rows) == 1}
    groups: dict[object, list[Op]] = {}
    for op in heads:
        groups.setdefault(_joint(op), []).append(op)
    found = []
    for group in groups.values():
        sizes = [widths(op)[1] or 0 for op in group]
        if sum(sizes) in words:
            found += group
        else:
            found += [op for op, size in zip(group, sizes, strict=True) if size in words]
    if not found and _keeps_cache(ops):
        found = [op for op in heads if _widens(op)]
    return found


def _joint(op: Op) -> object:
    """The Concat that joins what ``op`` and others write; ``op`` itself without one."""
    tensor = op.output
    for _ in range(4):
        if len(tensor.readers) != 1:
            return op
        reader = tensor.readers[0]
        if reader.kind == "Concat":
            return reader
        if reader.kind not in MOVERS and reader.kind != "Add":
            return op
        tensor = reader.output
    return op


def _widens(op: Op) -> bool:
    narrow, wide = widths(op)
    return narrow is not None and wide is not None and wide > narrow


def _keeps_cache(ops: Sequence[Op]) -> bool:
    """Whether keys and values go in and out: an attention with several outputs, or an update of an input that is an output."""
    for op in ops:
        if op.kind in ATTENTIONS and any(t.is_output for t in op.outputs[1:]):
            return True
        if op.kind in UPDATES and op.output.is_output and any(t.maker is None and t.live for t in op.data):
            return True
    return False
