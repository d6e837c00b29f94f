"""Rows of a batch with positions of their own: whether [batch, sequence] may take the place of what one row's positions were.

Three ways: the values themselves have an axis for the batch; they have none, and all that is computed of them broadcasts; or the
rows go one behind the other, [batch · sequence], and are set apart again where they meet tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.host_boundary import STEERED, is_by_row, rows_of
from qdq_passes.decoder.look.host_region import Host, Probed, Sizes, batch_of, fixed_sizes
from qdq_passes.decoder.look.scores import score_nodes
from qdq_passes.graph.evaluate.node import Spec
from qdq_passes.graph.operators.kinds import kind_of
from qdq_passes.numerics.arrays import Array

Entries = Sequence[tuple[ir.Node, int]]
#: Operators whose operands broadcast to the shape of what they make.
_BROADCASTING = frozenset({"Add", "Div", "Mul", "Sub", "Where"})


@dataclass(frozen=True, kw_only=True)
class Positioned:
    """A value made of positions.

    Args:
        value: what is to be derived from the input of positions.
        offset: added to the positions.
        shape: sizes at batch 1, -1 along the sequence.
        dtype: element type of the value.
        table: constant whose rows it holds, None where it holds the positions themselves.
        axis: axis of the rows in ``table``.
    """

    value: ir.Value
    offset: int = 0
    shape: tuple[int, ...]
    dtype: ir.DataType
    table: ir.Value | None = None
    axis: int = 0

    @property
    def along(self) -> int:
        """Axis of the sequence in ``value``."""
        return self.shape.index(-1)

    @property
    def can_have_rows(self) -> bool:
        """Whether it has an axis for the batch: the first, of size 1 at batch 1, before that of the sequence."""
        return self.along > 0 and set(self.shape[: self.along]) == {1} and self.can_be_flat

    @property
    def can_be_flat(self) -> bool:
        """Whether rows may stand one behind the other along its sequence."""
        others = [size for axis, size in enumerate(self.shape) if axis != self.along]
        return self.table is not None or others == [1] * len(others)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Where rows one behind the other are set apart: [.., batch · sequence, rest] → [batch, 1…, sequence, rest].

    Args:
        node: what reads it.
        index: which input.
        ones: axes of size 1 between batch and sequence.
        rest: sizes behind the sequence.
    """

    node: ir.Node
    index: int
    ones: int
    rest: tuple[int, ...]

    def shape(self, batch: int, new: int) -> tuple[int, ...]:
        """The shape of what is set apart."""
        return (batch, *[1] * self.ones, new, *self.rest)


def substitutes(chosen: Sequence[Positioned], rows: Array, found: Probed) -> dict[ir.Value, Array]:
    """What the values of ``chosen`` are for positions ``rows`` [batch, sequence], or [batch · sequence], one behind the other."""
    result = {}
    for p in chosen:
        array = rows + p.offset
        if p.table is not None:
            array = np.take(found.array(p.table), array, axis=p.axis, mode="clip")
        if rows.ndim == 1 or p.can_have_rows:
            sizes = [rows.shape[-1] if size == -1 else size for size in p.shape]
            array = array.reshape([rows.shape[0], *sizes[1:]] if rows.ndim == 2 else sizes)
        result[p.value] = array if p.table is not None else array.astype(found.arrays[p.value].dtype)
    return result


class _Rows:
    """Probes of one row and of a batch."""

    def __init__(self, host: Host) -> None:
        fixed = fixed_sizes(host)
        self.host = host
        self.sizes = Sizes(batch=batch_of(host), past=fixed[0] or 4, new=fixed[1] or 5)
        self.single = Sizes(past=self.sizes.past, new=self.sizes.new)
        self.truth, self.wide, self.rows = host.probe(self.single), host.probe(self.sizes), rows_of(self.sizes)

    def apart(self, chosen: Sequence[Positioned]) -> list[Probed]:
        """Each row alone."""
        return [
            self.host.probe(self.single, positions=row[None], replaced=substitutes(chosen, row[None], self.truth))
            for row in self.rows
        ]

    def is_true(self, value: ir.Value | None, alone: Probed) -> bool:
        """Whether ``value`` of the first row, whose positions are the true ones, is what it is without any change."""
        now, before = (p.arrays.get(value) if value is not None else None for p in (alone, self.truth))
        return now is not None and before is not None and np.array_equal(now.ravel(), before.ravel())


def fits_rows(host: Host, chosen: Sequence[Positioned], entries: Entries) -> bool:
    """Whether [batch, sequence] may stand in the place of every value of ``chosen``: all that enters follows row by row."""
    probes = _Rows(host)
    if any(p.value not in probes.truth.arrays for p in chosen):
        return False
    both = host.probe(probes.sizes, positions=probes.rows, replaced=substitutes(chosen, probes.rows, probes.truth))
    apart = probes.apart(chosen)
    ends = [host.io.logits, *(pair.present for pair in host.io.pairs)]
    if any(v not in probes.wide.specs or both.specs.get(v) != probes.wide.specs[v] for v in ends):
        return False
    values = [node.inputs[index] for node, index in entries]
    return all(v is not None and probes.is_true(v, apart[0]) and is_by_row(v, both, apart) for v in values)


def spreads(host: Host, chosen: Sequence[Positioned], entries: Entries) -> list[Spread] | None:
    """Where rows one behind the other in the place of ``chosen`` are to be set apart; None where that is not the same."""
    if not chosen or not all(p.can_be_flat for p in chosen):
        return None
    probes = _Rows(host)
    if any(p.value not in probes.truth.arrays for p in chosen):
        return None
    flat = substitutes(chosen, probes.rows.ravel(), probes.truth)
    both = host.probe(probes.sizes, positions=probes.rows, replaced=flat)
    apart = [
        host.probe(probes.single, positions=row[None], replaced=substitutes(chosen, row, probes.truth))
        for row in probes.rows
    ]
    if not _steers_alike(host, both, probes.wide):
        return None
    found = []
    for node, index in entries:
        value = node.inputs[index]
        if value is None or not probes.is_true(value, apart[0]):
            return None
        if _equal_shape(both.arrays.get(value), probes.wide.arrays.get(value)) and is_by_row(value, both, apart):
            continue
        spread = _spread(node, index, apart[0].arrays[value], probes, both)
        rows = [p.arrays.get(value) for p in apart]
        if spread is None or any(r is None for r in rows):
            return None
        joined = np.concatenate([r.ravel() for r in rows if r is not None])
        if not np.array_equal(both.arrays[value].ravel(), joined):
            return None
        found.append(spread)
    return found


def _spread(node: ir.Node, index: int, alone: Array, probes: _Rows, both: Probed) -> Spread | None:
    """How input ``index`` of ``node``, ``alone`` with one row, is set apart."""
    value, output = node.inputs[index], node.outputs[0]
    wide = both.arrays.get(value) if value is not None else None
    spec = probes.wide.specs.get(output)
    if wide is None or spec is None or wide.ndim != alone.ndim or kind_of(node) not in _BROADCASTING:
        return None
    axes = [axis for axis in range(wide.ndim) if wide.shape[axis] != alone.shape[axis]]
    sizes = probes.sizes
    if len(axes) != 1 or wide.shape[axes[0]] != sizes.batch * sizes.new or set(wide.shape[: axes[0]]) - {1}:
        return None
    rest = tuple(wide.shape[axes[0] + 1 :])
    ones = len(spec.shape) - 2 - len(rest)
    if ones < 0:
        return None
    spread = Spread(node=node, index=index, ones=ones, rest=rest)
    others = [probes.wide.specs.get(v) for i, v in enumerate(node.inputs) if v is not None and i != index]
    return spread if _broadcasts(spread.shape(sizes.batch, sizes.new), others, spec) else None


def _broadcasts(shape: tuple[int, ...], others: Sequence[Spec | None], made: Spec) -> bool:
    known = [spec.shape for spec in others if spec is not None]
    try:
        return len(known) == len(others) and np.broadcast_shapes(shape, *known) == made.shape
    except ValueError:
        return False


def _steers_alike(host: Host, both: Probed, wide: Probed) -> bool:
    """Whether shapes, axes and bounds that tokens are steered by are the same in both probes."""
    return all(_equal(both.arrays.get(v), wide.arrays.get(v)) for v in _steering(host))


def _steering(host: Host) -> Iterator[ir.Value]:
    scores = score_nodes(host)
    for node in host.nodes:
        if node in scores or not any(v in host.stream for v in node.outputs):
            continue
        for index, value in enumerate(node.inputs):
            if value is not None and index > 0 and kind_of(node) in STEERED and host.is_host(value):
                yield value


def _equal_shape(a: Array | None, b: Array | None) -> bool:
    return a is not None and b is not None and a.shape == b.shape


def _equal(a: Array | None, b: Array | None) -> bool:
    return a is not None and b is not None and np.array_equal(a, b)
