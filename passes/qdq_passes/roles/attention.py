"""Attention by structure: softmax(Q·Kᵀ + mask)·V, however it is spelt.

q, k → [product] → scale, mask, softcap, reshape … → [softmax] → mask, dropout, reshape … → [product] ← v
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.kinds import ATTENTIONS, MOVERS
from qdq_passes.graph.uses import integer_of, text_of
from qdq_passes.roles.products import is_bmm, is_product, is_projection, widths
from qdq_passes.roles.skeleton import Op, Tensor, rank_of

#: What may stand between a product and the softmax: scale, mask, softcap, bias, data movement.
_BETWEEN = MOVERS | {
    "Add", "Clip", "Concat", "Div", "Max", "Min", "Mul", "Neg", "ScatterElements", "ScatterND", "Sub", "Sum", "Tanh", "Where",
}  # fmt: skip
#: Attentions of com.microsoft that read queries, keys and values as their first inputs; the others project them themselves.
_SEPARATE = frozenset(
    {
        "DecoderMaskedMultiHeadAttention", "GroupQueryAttention", "MultiHeadAttention", "PackedMultiHeadAttention",
        "PagedAttention", "SparseAttention",
    }
)  # fmt: skip
#: Products at most that make the scores of one softmax (heads, parts of a cache); more are a stream.
_PARTS = 256
#: Heads at most whose scores are mixed.
_HEADS = 64


@dataclass(frozen=True, eq=False)
class Softmax:
    """A softmax, of one operator or spelt out.

    Args:
        ops: Softmax; or Exp, ReduceSum, Div (and Sub, ReduceMax).
        source: what it reads.
        output: what it writes.
    """

    ops: tuple[Op, ...]
    source: Tensor
    output: Tensor


@dataclass(frozen=True, eq=False)
class Attention:
    """One attention.

    Args:
        scores: products of queries and keys; several where keys lie in parts.
        softmax: the softmax over them, None for a fused operator.
        sums: products with the values.
        keys: tensors of keys that the products read, or the fused operator.
        values: tensors of values likewise.
        fused: the operator that is all of it.
    """

    scores: tuple[Op, ...]
    softmax: Softmax | None
    sums: tuple[Op, ...]
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    fused: Op | None = None

    @property
    def results(self) -> list[Op]:
        """The operators that write what the attention computes."""
        return [self.fused] if self.fused is not None else list(self.sums)


def attentions_of(ops: Sequence[Op]) -> list[Attention]:
    """Every attention among ``ops``, in order."""
    softmaxes = {s.ops[-1]: s for op in ops if (s := softmax_of(op)) is not None}
    behind: dict[Tensor, frozenset[Op]] = {}
    computed: set[Tensor] = set()
    read: dict[Op, list[Op]] = {}
    sums: dict[Op, list[tuple[Op, Tensor]]] = {}
    for op in ops:
        if is_product(op) or any(_is_made(t, computed) for t in op.data):
            computed.update(op.outputs)
        if op in softmaxes:
            read[op] = [o for o in behind.get(softmaxes[op].source, ()) if is_product(o)]
            behind[op.output] = frozenset({op})
        elif is_product(op) and _may_score(op, computed):
            for k, tensor in enumerate(op.data):
                for source in behind.get(tensor, ()):
                    if source in softmaxes and _is_made(op.data[1 - k], computed):
                        sums.setdefault(source, []).append((op, op.data[1 - k]))
            behind[op.output] = frozenset({op})
        else:
            parts = [found for t in op.data if (found := behind.get(t))]
            if parts and (op.kind in _BETWEEN or _mixes_heads(op)):
                union = parts[0] if len(parts) == 1 else frozenset().union(*parts)
                if len(union) <= _PARTS:
                    behind |= dict.fromkeys(op.outputs, union)
    fused = [_fused(op) for op in ops if op.kind in ATTENTIONS]
    return [*fused, *_assemble(softmaxes, read, sums)]


def softmax_of(op: Op) -> Softmax | None:
    """The softmax whose last operator is ``op``."""
    if op.kind == "Softmax" and op.data:
        return Softmax((op,), op.data[0], op.output)
    if op.kind != "Div" or len(op.data) != 2:
        return None
    power, total = op.data[0].maker, op.data[1].maker
    if power is None or power.kind != "Exp" or total is None or total.kind != "ReduceSum":
        return None
    if total.data[0] is not op.data[0]:
        return None
    source, ops = power.data[0], (power, total, op)
    shift = source.maker
    if shift is not None and shift.kind == "Sub" and len(shift.data) == 2:
        highest = shift.data[1].maker
        if highest is not None and highest.kind == "ReduceMax" and highest.data[0] is shift.data[0]:
            return Softmax((highest, shift, *ops), shift.data[0], op.output)
    return Softmax(ops, source, op.output)


def _may_score(op: Op, computed: Collection[Tensor]) -> bool:
    """Whether ``op`` may be a product of queries and keys: of two activations, or of what was computed from parameters alone
    (learned queries), or of learned queries [.., heads, n, d] themselves and keys."""
    queries, keys = op.data
    if _is_made(queries, computed):
        return _is_made(keys, computed)
    rank = rank_of(queries)
    return keys.live and (rank is None or rank > 2)


def _is_made(tensor: Tensor, computed: Collection[Tensor]) -> bool:
    """Whether ``tensor`` is no parameter: an activation, or what a product made of parameters."""
    return tensor.live or tensor in computed


def _mixes_heads(op: Op) -> bool:
    """Whether ``op`` may mix the scores of heads (talking heads): a projection with a small square weight."""
    if not is_projection(op):
        return False
    narrow, wide = widths(op)
    return narrow is not None and narrow == wide and narrow <= _HEADS


def _assemble(
    softmaxes: dict[Op, Softmax], read: dict[Op, list[Op]], sums: dict[Op, list[tuple[Op, Tensor]]]
) -> list[Attention]:
    """Softmaxes with what feeds and what reads them; where several products do, one that others share is part of their mask."""
    counts = Counter(score for end, scores in read.items() for score in scores)
    found = []
    for end, candidates in read.items():
        softmax, ahead = softmaxes[end], sums.get(end, [])
        scores = [s for s in candidates if is_bmm(s)] or (candidates if ahead else [])
        if not scores or (not ahead and not _is_cut(softmax)):
            continue
        least = min(counts[s] for s in scores)
        scores = [s for s in scores if counts[s] == least]
        found.append(
            Attention(
                scores=tuple(scores), softmax=softmax, sums=tuple(op for op, _ in ahead),
                keys=tuple(_keys(s, softmax) for s in scores), values=tuple(value for _, value in ahead),
            )
        )  # fmt: skip
    return found


def _is_cut(softmax: Softmax) -> bool:
    """Whether the model ends at ``softmax`` and its scores look like those of heads, [.., heads, queries, keys]."""
    return softmax.output.is_output and {rank_of(softmax.source), rank_of(softmax.output)}.isdisjoint({1, 2})


def _keys(score: Op, softmax: Softmax) -> Tensor:
    """The operand of ``score`` that has the axis over which ``softmax`` goes: the second, unless the scores are transposed."""
    axis = integer_of(softmax.ops[-1].node, "axis", -1) if len(softmax.ops) == 1 else -1
    rank = rank_of(softmax.source)
    if score.kind == "Einsum":
        first, _, rest = text_of(score.node, "equation", "").replace(" ", "").partition(",")
        output = rest.partition("->")[2]
        label = output[axis] if -len(output) <= axis < len(output) else output[-1:]
        return score.data[0] if label and label in first and label not in rest.partition("->")[0] else score.data[1]
    is_transposed = axis == -2 or (rank is not None and axis == rank - 2)
    return score.data[0] if is_transposed and score.data[0].live else score.data[1]


def _fused(op: Op) -> Attention:
    """An attention of one operator, with its keys and values where it does not project them itself; packed ones are both."""
    if op.node.op_type not in _SEPARATE and op.node.domain == "com.microsoft":
        return Attention((op,), None, (op,), (), (), op)
    given = iter(op.inputs)
    tensors = [next(given) if value is not None else None for value in op.node.inputs[:3]]
    query, key, value = (*tensors, None, None, None)[:3]
    keys = [t for t in (key, query) if t is not None][:1]
    values = [t for t in (value, key, query) if t is not None][:1]
    return Attention((op,), None, (op,), tuple(keys), tuple(values), op)
