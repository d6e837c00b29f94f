"""How the tensors of a KV cache are updated: where new rows stand, and what else looks at the old ones."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.cache import CachePair, extra_readers
from qdq_passes.decoder.look.flow import Passed, passed_on
from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.graph.sizes import rank_or, static_sizes
from qdq_passes.graph.uses import integer_of, is_standard, label

#: Operators that write new rows into a cache that has room for them.
SCATTERS = frozenset({"ScatterElements", "ScatterND", "TensorScatter"})
#: Which pass takes the cache out of an attention.
_WAYS_OUT = {
    "GroupQueryAttention": "run decompose-group-query-attention first, or keep it in place with bind-group-query-lengths",
    "Attention": "run expose-kv-cache first",
    "MultiHeadAttention": "run expose-kv-cache first",
}
IN_PLACE = "is updated in place already"


@dataclass(frozen=True, kw_only=True)
class Growth:
    """A Concat that appends new rows to a tensor of the cache.

    Args:
        pair: the tensor of the cache.
        past: what the Concat reads of it, the past itself or its elements again (transposed, cast, dequantized).
        new: the new rows.
        axis: axis of the sequence in both, from the front.
        batch_axis: axis of the batch in both.
        passed: values from the past to the Concat, with their axes in terms of the past's.
    """

    pair: CachePair
    past: ir.Value
    new: ir.Value
    axis: int
    batch_axis: int
    passed: tuple[Passed, ...]


def growth_of(pair: CachePair) -> Growth | str:
    """How ``pair`` grows, or in words why it is no Concat of past and new rows."""
    update = pair.update
    if is_standard(update, *SCATTERS):
        return IN_PLACE
    if not is_standard(update, "Concat"):
        return f"{update.op_type} updates its cache itself"
    rank = rank_or(pair.past, 0)
    found = {passed.value: passed for passed in passed_on(pair.past, rank)}
    if len(update.inputs) != 2 or update.inputs[0] not in found or update.inputs[1] is None:
        return "joins more than the past and new rows behind it"
    at = found[update.inputs[0]]
    axis = integer_of(update, "axis", 0) % rank
    if at.axes[axis] != pair.axis:
        return "joins along another axis than the sequence"
    return Growth(
        pair=pair, past=at.value, new=update.inputs[1], axis=axis, batch_axis=at.axes.index(pair.batch_axis),
        passed=tuple(found[value] for value in _path(at.value, pair.past)),
    )  # fmt: skip


def way_out(pair: CachePair) -> str | None:
    """What to do about a `pair` that is no Concat of past and new rows; None where there is nothing."""
    return _WAYS_OUT.get(pair.update.op_type)


def _path(value: ir.Value, past: ir.Value) -> list[ir.Value]:
    """``value`` and those before it up to ``past``."""
    path = [value]
    while path[-1] is not past and (producer := path[-1].producer()) is not None and producer.inputs[0] is not None:
        path.append(producer.inputs[0])
    return path


def refuse_other_readers(pair: CachePair) -> None:
    """Refuse a past that someone else than its update reads: in place, they would see the new rows as well.

    Raises:
        UnsupportedError: the past is read twice.
    """
    others = extra_readers(pair)
    if others:
        raise UnsupportedError(
            f"reads {pair.past.name}, as {pair.update.name} does: past read twice cannot be updated in place",
            where=label(others[0]),
            hint="let it read the present, or take the slide layout, where the past stays as it is",
        )


def numbers(value: ir.Value) -> list[int]:
    """The sizes of ``value``.

    Raises:
        ModelError: one is not a number.
    """
    sizes = static_sizes(value)
    if sizes is None:
        what = "its shape is unknown" if value.shape is None else f"its shape {value.shape} is not static"
        raise ModelError(what, where=value.name, hint="run bind-decoder first")
    return sizes
