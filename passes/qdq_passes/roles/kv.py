"""Keys and values by structure: everything from the projections that make them to the products that read them.

    [MatMul] → [Add] → [Reshape] → [Transpose] → [rope] → [Concat ← past] → [Expand] → product, present

That is: projections with their bias, data movement, norm and rotation of keys, the update of the cache (Concat, Scatter or
TensorScatter with what stands before it), the repetition for grouped queries, and what leads from there to an output."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from qdq_passes.graph.operators.kinds import ATTENTIONS, ELEMENTWISE, MOVERS
from qdq_passes.roles.attention import Attention
from qdq_passes.roles.norms import Norm
from qdq_passes.roles.products import is_depthwise, is_projection, is_weighted, root
from qdq_passes.roles.rope import Rotation
from qdq_passes.roles.skeleton import Op, Tensor

#: Operators that write new keys and values into or behind old ones.
UPDATES = frozenset({"Concat", "ScatterElements", "ScatterND", "TensorScatter"})
#: What else may stand between a projection and the product.
_ON_THE_WAY = (
    (ELEMENTWISE - {"Sin"}) | MOVERS
    | {
        "AveragePool", "BatchNormalization", "Gather", "InstanceNormalization", "LayerNormalization", "LpNormalization",
        "MaxPool", "RMSNormalization", "ReduceL2", "ReduceMean", "ReduceSum", "RotaryEmbedding",
        "SimplifiedLayerNormalization",
    }
)  # fmt: skip


def kv_of(
    ops: Sequence[Op], attentions: Sequence[Attention], norms: Sequence[Norm], rotations: Sequence[Rotation]
) -> set[Op]:
    """The operators that make keys and values of ``attentions``."""
    own = {op for norm in norms for op in norm.ops} | {op for rotation in rotations for op in rotation.ops}
    angles = {t for rotation in rotations for t in rotation.angles}
    starts = [t for a in attentions for t in (*a.keys, *a.values)]
    region = _region(starts, own, angles)
    reaching = _reaching(ops, region, own)
    found = {op for a in attentions if (op := a.fused) is not None and _holds(op, a)}
    stack = [op for t in starts if (op := t.maker) is not None and op in reaching]
    seen = set(stack)
    while stack:
        op = stack.pop()
        found.add(op)
        if is_projection(op):
            continue
        makers = [
            m for t in op.data if t not in angles and (m := t.maker) is not None and m in region and m not in seen
        ]
        makers = [
            m for m in makers if m in reaching or _is_update(op, own)
        ]  # what stands before a cache is kept as well
        seen.update(makers)
        stack += makers
    return found | _presents(found)


def _region(starts: Sequence[Tensor], own: Collection[Op], angles: Collection[Tensor]) -> set[Op]:
    """What stands between ``starts`` and projections, these included; sums of two streams are left out, rotations are not."""
    region: set[Op] = set()
    stack = list(starts)
    while stack:
        op = stack.pop().maker
        if op is None or op in region or not any(t.live for t in op.outputs):
            continue
        if is_projection(op):
            region.add(op)
        elif op.kind in UPDATES or is_depthwise(op) or (op.kind in _ON_THE_WAY and not is_weighted(op)):
            if op.kind in ("Add", "Sub") and op not in own and not _is_one_stream(op):
                continue
            region.add(op)
            stack += [t for t in op.live_data() if t not in angles]
    return region


def _is_update(op: Op, own: Collection[Op]) -> bool:
    """Whether ``op`` may update a cache; the joins within rotations and norms do not."""
    return op.kind in UPDATES and op not in own


def _is_one_stream(op: Op) -> bool:
    """Whether a sum is of an activation and a parameter, or of two projections of one activation (a low-rank adapter)."""
    makers = [_before_scale(t).maker for t in op.live_data()]
    return len(makers) < 2 or all(m is not None and is_projection(m) for m in makers)


def _before_scale(tensor: Tensor) -> Tensor:
    maker = tensor.maker
    if maker is not None and maker.kind in ("Mul", "Reshape", "Transpose") and len(maker.live_data()) == 1:
        return maker.live_data()[0]
    return tensor


def _reaching(ops: Sequence[Op], region: Collection[Op], own: Collection[Op]) -> set[Op]:
    """The operators of ``region`` that a projection or the update of an input feeds."""
    found: set[Op] = set()
    for op in ops:
        if op in region and (
            is_projection(op)
            or any(t.maker in found for t in op.data)
            or (_is_update(op, own) and any(t.maker is None and t.live for t in map(root, op.data)))
        ):
            found.add(op)
    return found


def _holds(op: Op, attention: Attention) -> bool:
    """Whether a fused attention projects keys and values itself, or writes a cache."""
    return not attention.keys or any(value.name for value in op.node.outputs[1:3])


def _presents(found: Collection[Op]) -> set[Op]:
    """What alone leads from ``found`` to outputs of the model: data movement and joins."""
    ends: dict[Op, bool] = {}
    start = [r for op in found for t in op.outputs for r in t.readers if r not in found]
    for first in start:
        stack = [(first, False)]
        while stack:
            op, is_left = stack.pop()
            if is_left:
                readers = [r for t in op.outputs for r in t.readers]
                ends[op] = any(t.is_output for t in op.outputs) or (
                    bool(readers) and all(ends.get(r, False) for r in readers)
                )
            elif op not in ends and (op.kind in MOVERS or op.kind in UPDATES) and op.kind not in ATTENTIONS:
                ends[op] = False
                stack.append((op, True))
                stack += [(r, False) for t in op.outputs for r in t.readers if r not in found]
    return {op for op, is_end in ends.items() if is_end}
