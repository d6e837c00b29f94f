"""MLPs by structure: projections, an activation, a projection back, and the residual they are added to.

    x → [MatMul] → [Gelu] → [MatMul] → Add ← the stream that x was taken from
    x → [MatMul], [MatMul → SiLU] → [Mul] → [MatMul]            gated

A 1x1 convolution is a projection; a depthwise one may stand behind the first. Without a residual only the gated form is an MLP:
any classifier of two layers looks like the plain one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.kinds import (
    ACTIVATIONS,
    ELEMENTWISE,
    EXPERTS,
    MOVERS,
    SHAPERS,
    SKIP_NORMS,
    has_activation,
)
from qdq_passes.graph.operators.qoperators import form_of, result_parameters
from qdq_passes.graph.uses import constant_array, dtype_of
from qdq_passes.numerics.encoding import integer_range
from qdq_passes.roles.norms import Norm
from qdq_passes.roles.products import activation_of, bias_adds, is_affine, is_depthwise, is_projection, root
from qdq_passes.roles.skeleton import Op, Tensor

#: What may stand between the projections.
_INSIDE = ELEMENTWISE | MOVERS | {"BatchNormalization", "Concat"}
#: Operators that are followed at most from an MLP to the residual it is added to.
_STEPS = 40


@dataclass(frozen=True, eq=False)
class Mlp:
    """An MLP.

    Args:
        ops: all of it, without the norm before and the residual behind.
        first: the projections that widen.
        last: the projection back, None for an operator that is all of it.
    """

    ops: tuple[Op, ...]
    first: tuple[Op, ...]
    last: Op | None


def mlps_of(ops: Sequence[Op], norms: Sequence[Norm]) -> list[Mlp]:
    """Every MLP among ``ops``, in order."""
    inside: dict[Op, Norm] = {op: norm for norm in norms for op in norm.ops}
    #: The one or two projections that alone make a tensor, with operators of `_INSIDE`; None: something else does too.
    origin: dict[Tensor, frozenset[Op] | None] = {}
    found = []
    for op in ops:
        if op.kind in EXPERTS:
            found.append(Mlp((op,), (op,), None))
        elif is_projection(op):
            first = origin.get(activation_of(op))
            mlp = _mlp(op, first, inside) if first else None
            if mlp is not None:
                found.append(mlp)
            origin[op.output] = frozenset({op})
        elif op.kind in _INSIDE or is_depthwise(op):
            made = _origin(op, origin)
            if made is not None:
                origin |= dict.fromkeys(op.outputs, made)
    return found


def _origin(op: Op, origin: dict[Tensor, frozenset[Op] | None]) -> frozenset[Op] | None:
    live = op.live_data()
    if is_depthwise(op):
        _, maker = _unbiased(op.data[0])
        return origin.get(op.data[0]) if maker is not None and is_projection(maker) else None
    parts = [origin.get(t) for t in live]
    if not parts or not all(parts):
        return None
    union: frozenset[Op] = frozenset().union(*(p for p in parts if p))
    return union if len(union) <= 2 else None


def _unbiased(tensor: Tensor) -> tuple[Tensor, Op | None]:
    """What makes ``tensor``, data movement, a bias and the scale of integers looked through."""
    tensor = root(tensor)
    for _ in range(2):
        maker = tensor.maker
        if maker is not None and maker.kind in ("Add", "Mul") and len(maker.live_data()) == 1:
            tensor = root(maker.live_data()[0])
    return tensor, tensor.maker


def _mlp(last: Op, first: frozenset[Op], inside: dict[Op, Norm]) -> Mlp | None:
    middle: dict[Op, None] = {}
    stack = [activation_of(last)]
    while stack:
        op = stack.pop().maker
        if op is not None and op not in first and op not in middle:
            middle[op] = None
            stack += op.live_data()
    if not any(op.kind in ACTIVATIONS or has_activation(op.node) or _is_rectified(op) for op in (*first, *middle)):
        return None
    sources = {root(activation_of(op)) for op in first}
    if len(sources) > 1:
        return None
    widening = sorted(first, key=lambda op: op.node.name or "")
    ops = (*widening, *reversed(middle), last, *bias_adds(last))
    if len(first) == 2 and any(op.kind == "Mul" and len(op.live_data()) == 2 for op in middle):
        return Mlp(ops, tuple(widening), last)
    upstream = _upstream(activation_of(widening[0]), inside)
    return Mlp(ops, tuple(widening), last) if _is_added_to(last.output, upstream, inside) else None


def _is_rectified(op: Op) -> bool:
    """Whether what ``op`` writes is quantized to the range from zero upwards, as a Relu may be left to do."""
    points = [q.inputs[2] for q in op.output.quantizers if len(q.inputs) > 2]
    form = form_of(op.node)
    parameters = result_parameters(op.node, form) if form is not None else None
    if parameters is not None:
        points.append(parameters.zero_point)
    for point in points:
        array = constant_array(point)
        dtype = dtype_of(point) if point is not None else None
        if array is not None and array.size == 1 and dtype is not None and dtype.is_integer():
            return int(array.reshape(-1)[0]) == integer_range(dtype, symmetric=False)[0]
    return False


def _upstream(tensor: Tensor, inside: dict[Op, Norm]) -> set[Tensor]:
    """The stream that ``tensor`` was taken from: itself, and what stands before norms, modulation and data movement."""
    seen: dict[Tensor, None] = {}
    queue = [tensor]
    while queue and len(seen) < _STEPS:
        tensor = queue.pop(0)
        if tensor in seen:
            continue
        seen[tensor] = None
        op = tensor.maker
        if op is None:
            continue
        norm = inside.get(op)
        if norm is not None:
            queue += [norm.source, *norm.sums]
        elif op.kind in MOVERS or is_depthwise(op):
            queue.append(op.data[0])
        elif op.kind in ("Add", "Mul") and len(seen) < _STEPS // 2:
            queue += op.live_data()
    return set(seen)


def _is_added_to(tensor: Tensor, upstream: set[Tensor], inside: dict[Op, Norm]) -> bool:
    """Whether ``tensor`` (through bias, scale, a norm, or added to a neighbour first) is added to any of ``upstream``."""
    seen = {tensor}
    queue = [tensor]
    while queue and len(seen) < _STEPS:
        tensor = queue.pop(0)
        for op, result in _ahead(tensor, inside):
            if op.kind in ("Add", "Sum", *SKIP_NORMS) and any(
                t is not tensor and t.live and (t in upstream or root(t) in upstream or root(t, MOVERS) in upstream)
                for t in op.data
            ):
                return True
            if result is not None and result not in seen:
                seen.add(result)
                queue.append(result)
    return False


def _ahead(tensor: Tensor, inside: dict[Op, Norm]) -> Iterator[tuple[Op, Tensor | None]]:
    """Who reads ``tensor``, and where its result goes on, if it may still be added to a residual."""
    for op in dict.fromkeys(tensor.readers):
        norm = inside.get(op)
        if norm is not None and op.kind not in SKIP_NORMS:
            yield op, norm.output if norm.source is tensor else None
        elif op.kind in SHAPERS or op.kind in ("Slice", "Pad", "Concat", "Add", "Mul") or is_affine(op, tensor):
            yield op, op.output
        else:
            yield op, None
