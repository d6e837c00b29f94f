"""Where the host region of a decoder meets what depends on tokens, and what of it follows the size of the cache."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from qdq_passes.decoder.look.flow import SHAPE_READERS, depending_on
from qdq_passes.decoder.look.host_region import Host, Probed, Sizes, batch_of, fixed_sizes
from qdq_passes.decoder.look.scores import score_nodes
from qdq_passes.graph.operators.kinds import kind_of
from qdq_passes.graph.uses import needed_for, values_read
from qdq_passes.numerics.arrays import Array

#: Rows of a batch begin up to this much earlier than the past ends: as if padded on the left.
_EARLIER = 3
#: Inputs from 1 on say a shape, axes or bounds.
STEERED = frozenset(
    {"ConstantOfShape", "Expand", "Pad", "Range", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Tile", "Unsqueeze"}
)


def frozen_positions(host: Host, given: ir.Value | None) -> list[tuple[ir.Node, ir.Value]]:
    """Where something enters what is computed of tokens that follows the size of the cache although ``given`` stays the same.

    Raises:
        UnsupportedError: something that may do so cannot be evaluated; the node is named.
    """
    fixed = fixed_sizes(host)
    if fixed[0]:
        return []
    new = fixed[1] or 3
    pasts = [pair.past for pair in host.io.pairs]
    sources = [v for v in (host.io.mask, host.io.positions, *host.io.others) if v is not None and v is not given]
    following = depending_on(host.nodes, [*pasts, *sources], by_shape=True)
    found = [
        (node, v) for node, index in side_entries(host) if (v := node.inputs[index]) is not None and v in following
    ]
    positions = np.arange(1, 1 + new)[None] if given is not None else None
    wanted = {value for _, value in found}
    probes = [host.probe(Sizes(past=past, new=new), positions=positions, wanted=wanted) for past in (1, 2)]
    return [(node, value) for node, value in found if _differ(*(probe.array(value) for probe in probes))]


def shared_positions(host: Host, given: ir.Value) -> ir.Node | None:
    """A node that takes the positions of one row of the batch for all rows; None where each row has its own."""
    fixed = fixed_sizes(host)
    if batch_of(host) == 1:
        return None
    sizes = Sizes(batch=batch_of(host), past=fixed[0] or 4, new=fixed[1] or 3)
    rows = rows_of(sizes)
    both = host.probe(sizes, positions=rows)
    single = Sizes(past=sizes.past, new=sizes.new)
    apart = [host.probe(single, positions=row[None]) for row in rows]
    for node, index in side_entries(host):
        value = node.inputs[index]
        if value is not None and value in both.arrays and not is_by_row(value, both, apart):
            return node
    return None


def _differ(a: Array, b: Array) -> bool:
    """Whether two values differ by more than how often they repeat one number."""
    if a.size and b.size and np.all(a == a.flat[0]) and np.all(b == a.flat[0]):
        return False
    return a.shape != b.shape or not np.array_equal(a, b)


def rows_of(sizes: Sizes) -> Array:
    """Positions [batch, new], each row other than its neighbours'."""
    earlier = np.arange(sizes.batch)[:, None] * _EARLIER % (_EARLIER + 1)
    rows: Array = np.arange(sizes.past, sizes.total)[None] - np.minimum(earlier, sizes.past)
    return rows


def side_entries(host: Host) -> list[tuple[ir.Node, int]]:
    """(node, input) where values of the host region enter what depends on tokens, as data; masks of scores left out."""
    scores, live = score_nodes(host), needed_for(host.outputs)
    found = []
    for node in host.nodes:
        if node not in live or not any(v in host.stream for v in node.outputs) or node in scores:
            continue
        for index, value in enumerate(node.inputs):
            if value is not None and host.is_host(value) and not (index > 0 and kind_of(node) in STEERED):
                found.append((node, index))
    return found


def leading_to(
    host: Host, entries: Sequence[tuple[ir.Node, int]], stops: Collection[ir.Value] = ()
) -> dict[ir.Value, None]:
    """Values of the host region whose numbers reach ``entries``, not through ``stops`` nor as a shape."""
    stack = [v for node, index in entries if (v := node.inputs[index]) is not None]
    found = dict.fromkeys(stack)
    while stack:
        at = stack.pop()
        node = at.producer()
        if node is None or at in stops or kind_of(node) in SHAPE_READERS:
            continue
        for value in values_read(node):
            index = next((i for i, v in enumerate(node.inputs) if v is value), 0)
            is_shape = index > 0 and kind_of(node) in STEERED and kind_of(node) not in ("Range", "Slice")
            if host.is_host(value) and not is_shape and value not in found:
                found[value] = None
                stack.append(value)
    return found


def reaches_back(value: ir.Value, others: Collection[ir.Value]) -> bool:
    """Whether ``value`` is computed from one of ``others``, not from their shapes alone."""
    stack, seen = [value], {value}
    while stack:
        node = stack.pop().producer()
        for v in values_read(node) if node is not None and kind_of(node) not in SHAPE_READERS else ():
            if v in others:
                return True
            if v not in seen:
                seen.add(v)
                stack.append(v)
    return False


def is_by_row(value: ir.Value, both: Probed, apart: Sequence[Probed]) -> bool:
    """Whether ``value`` of all rows is, row by row, what it is of each alone."""
    wide, alone = both.arrays.get(value), [p.arrays.get(value) for p in apart]
    if wide is None or any(a is None or a.ndim != wide.ndim for a in alone):
        return False
    parts = [a for a in alone if a is not None]
    axes = [axis for axis in range(wide.ndim) if wide.shape[axis] != parts[0].shape[axis]]
    if not axes:
        return all(np.array_equal(wide, part) for part in parts)
    if len(axes) != 1 or wide.shape[axes[0]] != len(parts) * parts[0].shape[axes[0]]:
        return False
    return np.array_equal(wide, np.concatenate(parts, axis=axes[0]))
