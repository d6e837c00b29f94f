"""Norms by structure: one operator, or y = γ·(x − μ)/√(σ² + ε) + β spelt out.

    x → ReduceMean → Sub → Pow → ReduceMean → Add ε → Sqrt → Div → Mul γ → Add β

What is looked for is the square root of a mean square by which that same x is divided: with or without the mean taken off, by Div
or by Reciprocal and Mul, γ and β folded into the factor or behind it, or the Euclidean length (ReduceL2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.kinds import NORMS, SHAPERS, SKIP_NORMS
from qdq_passes.roles.products import is_affine, root
from qdq_passes.roles.skeleton import Op, Tensor, dims, number

_MEANS = frozenset({"GlobalAveragePool", "ReduceMean", "ReduceSum"})
#: Operators that keep a factor a factor, beside one parameter.
_SCALINGS = frozenset({"Add", "Clip", "Div", "Max", "Min", "Mul"})
#: Steps that are followed at most from a square root backwards, and from it forwards.
_STEPS = 12


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm.

    Args:
        ops: all of it.
        source: what is normalized.
        output: the result.
        sums: what a norm that adds a residual first reads and writes beside that.
    """

    ops: tuple[Op, ...]
    source: Tensor
    output: Tensor
    sums: tuple[Tensor, ...] = ()


def norms_of(ops: Sequence[Op]) -> list[Norm]:
    """Every norm of an activation among ``ops``, in order."""
    found = []
    for op in ops:
        if op.kind in NORMS:
            found.append(_single(op))
        elif op.kind in ("Sqrt", "Pow", "ReduceL2"):
            norm = _spelt_out(op)
            if norm is not None:
                found.append(norm)
    return found


def _single(op: Op) -> Norm:
    """A norm of one operator; a GroupNormalization as Reshape, InstanceNormalization, Reshape, γ, β is one as well."""
    if op.kind != "InstanceNormalization":
        sums = (*op.data, *op.outputs[1:]) if op.kind in SKIP_NORMS else ()
        return Norm((op,), op.data[0] if op.data else op.output, op.output, sums)
    output, behind = _affine(op.output)
    before = op.data[0].maker
    if behind and before is not None and before.kind == "Reshape" and len(before.output.readers) == 1:
        return Norm((before, op, *behind), before.data[0], output)
    return Norm((op, *behind), op.data[0], output)


def _spelt_out(anchor: Op) -> Norm | None:
    """The norm whose square root, or length, is ``anchor``."""
    if not anchor.data or not anchor.data[0].live:
        return None
    power = (number(anchor.data[1]) or 0.0) if anchor.kind == "Pow" and len(anchor.data) == 2 else 0.5
    if anchor.kind == "ReduceL2":
        squared, spread = anchor.data[0], [anchor]
    else:
        if anchor.kind == "Pow" and abs(power) != 0.5:
            return None
        traced = _mean_square(anchor.data[0])
        if traced is None:
            return None
        squared, spread = traced[0], [*traced[1], anchor]
    base, centres = _centre(squared, spread)
    values = {squared, base, *(sub.output for sub, _ in centres)}
    means = {mean.output for _, mean in centres}
    means |= {op.output for op in spread if op.kind in _MEANS and op.data[0] is base}
    end = _divide(anchor.output, values, means, inverse=power < 0)
    if end is None:
        return None
    output, scaling = end
    used = {t for op in scaling for t in op.data} | {t for op in spread for t in op.data}
    centring = [o for sub, mean in centres if sub.output in used for o in (mean, sub)]
    output, behind = _affine(output)
    own = dict.fromkeys([*centring, *spread, *(m for m in _makers(used) if m.output in means), *scaling, *behind])
    return Norm(tuple(own), base, output)


def _makers(tensors: Iterable[Tensor]) -> list[Op]:
    return [t.maker for t in tensors if t.maker is not None]


def _mean_square(tensor: Tensor) -> tuple[Tensor, list[Op]] | None:
    """(x, the operators between), where ``tensor`` is the mean of x² up to an offset and a factor; E[x²] − E[x]² counts too."""
    ops: list[Op] = []
    for _ in range(_STEPS):
        op = tensor.maker
        if op is None:
            return None
        ops.append(op)
        live = op.live_data()
        if op.kind == "ReduceSumSquare":
            return op.data[0], ops
        if op.kind in _MEANS:
            square = op.data[0].maker
            squared = _square(square) if square is not None else None
            return None if square is None or squared is None else (squared, [*ops, square])
        if op.kind == "Sub" and len(live) == 2:
            return _mean_square_less_squared_mean(op, ops)
        if len(live) != 1 or not (op.kind in _SCALINGS or op.kind in SHAPERS):
            return None
        tensor = live[0]
    return None


def _mean_square_less_squared_mean(op: Op, ops: list[Op]) -> tuple[Tensor, list[Op]] | None:
    mean_square, square = op.data[0].maker, op.data[1].maker
    if mean_square is None or mean_square.kind not in _MEANS or square is None:
        return None
    inner, mean = mean_square.data[0].maker, _square(square)
    squared = _square(inner) if inner is not None else None
    if inner is None or squared is None or mean is None or mean.maker is None:
        return None
    if mean.maker.kind not in _MEANS or mean.maker.data[0] is not squared:
        return None
    return squared, [*ops, mean_square, inner, square, mean.maker]


def _square(op: Op) -> Tensor | None:
    """x, where ``op`` is x·x or x² or |x|²."""
    if op.kind == "Mul" and len(op.data) == 2 and op.data[0] is op.data[1]:
        return op.data[0]
    if op.kind == "Pow" and op.data and (len(op.data) < 2 or number(op.data[1]) in (None, 2.0)) and op.data[0].live:
        return op.data[0]
    return None


def _centre(squared: Tensor, spread: list[Op]) -> tuple[Tensor, list[tuple[Op, Op]]]:
    """(x, every (Sub, mean) of x − μ), where ``squared`` is x − μ or x, and ``spread`` makes its mean square."""
    maker = squared.maker
    base = squared
    if maker is not None and maker.kind == "Sub" and len(maker.data) == 2 and _mean_of(maker.data[1], maker.data[0]):
        base = maker.data[0]
    elif not any(op.kind in _MEANS and op.data[0] is base for op in spread):
        return base, []
    centres = []
    for reader in dict.fromkeys(base.readers):
        if reader.kind == "Sub" and len(reader.data) == 2 and reader.data[0] is base:
            mean = _mean_of(reader.data[1], base)
            if mean is not None:
                centres.append((reader, mean))
    return base, centres


def _mean_of(tensor: Tensor, base: Tensor) -> Op | None:
    """The operator that makes ``tensor``, where that is the mean of ``base``."""
    op = root(tensor).maker
    return op if op is not None and op.kind in _MEANS and op.data and op.data[0] is base else None


def _divide(
    factor: Tensor, values: set[Tensor], means: set[Tensor], *, inverse: bool
) -> tuple[Tensor, list[Op]] | None:
    """(result, operators) of dividing one of ``values`` by ``factor`` (multiplying, if that is ``inverse``), and of taking off
    one of ``means`` times the factor where that stands behind the division."""
    before: dict[Tensor, tuple[list[Op], bool]] = {factor: ([], inverse)}
    shifts: list[Op] = []
    result: tuple[Tensor, list[Op]] | None = None
    queue = [factor]
    values, means = values | set(map(root, values)), means | set(map(root, means))
    while queue and len(before) <= _STEPS:
        tensor = queue.pop(0)
        path, inverse = before[tensor]
        for op in dict.fromkeys(tensor.readers):
            other = op.other(tensor)
            base = root(other) if other is not None else None
            scales = op.kind == "Mul" if inverse else op.kind == "Div" and op.data[-1] is tensor
            if scales and base in values:
                result = result or (op.output, [*path, op])
            elif scales and base in means:
                shifts.append(op)
            elif op.output not in before and _keeps_factor(op, tensor):
                before[op.output] = [*path, op], inverse != _inverts(op, tensor)
                queue.append(op.output)
    if result is None:
        return None
    for shift in shifts:
        end = _shifted(result[0], shift)
        if end is not None:
            return end[0], [*result[1], *end[1]]
    return result


def _keeps_factor(op: Op, tensor: Tensor) -> bool:
    """Whether ``op`` makes a factor of the factor ``tensor`` and of parameters."""
    if op.kind in SHAPERS:
        return op.data[0] is tensor
    other = op.other(tensor)
    return _inverts(op, tensor) or (op.kind in _SCALINGS and tensor in op.data and (other is None or not other.live))


def _inverts(op: Op, tensor: Tensor) -> bool:
    """Whether ``op`` is 1 / ``tensor`` up to a parameter."""
    if op.kind == "Pow":
        return op.data[0] is tensor and len(op.data) == 2 and number(op.data[1]) == -1.0
    is_divisor = op.kind == "Div" and op.data[-1] is tensor and not op.data[0].live
    return op.kind == "Reciprocal" or is_divisor


def _shifted(quotient: Tensor, shift: Op) -> tuple[Tensor, list[Op]] | None:
    """(result, operators) of adding β − μ·factor to ``quotient``, where ``shift`` is μ·factor."""
    ops, tensor = [shift], shift.output
    for _ in range(3):
        for op in tensor.readers:
            other = op.other(tensor)
            if op.kind in ("Add", "Sub") and other is quotient:
                return op.output, [*ops, op]
            if op.kind == "Neg" or (op.kind in ("Add", "Sub") and other is not None and not other.live):
                ops.append(op)
                tensor = op.output
                break
        else:
            return None
    return None


def _affine(tensor: Tensor) -> tuple[Tensor, list[Op]]:
    """(result, operators) of γ and β behind ``tensor``; it itself where neither is there."""
    start, ops = tensor, list[Op]()
    for _ in range(4):
        gamma = next((r for r in tensor.readers if r.kind == "Mul" and is_affine(r, tensor)), None)
        if gamma is not None:
            break
        only = tensor.readers[0] if len(tensor.readers) == 1 and not tensor.is_output else None
        if only is None or only.kind not in SHAPERS:
            return start, []
        ops.append(only)
        tensor = only.output
    else:
        return start, []
    tensor = gamma.output
    ops.append(gamma)
    beta = next((r for r in tensor.readers if r.kind == "Add" and is_affine(r, tensor)), None)
    if beta is None or len(tensor.readers) != 1 or not _of_one_size(gamma, beta):
        return tensor, ops
    return beta.output, [*ops, beta]


def _of_one_size(gamma: Op, beta: Op) -> bool:
    """Whether the parameters of both have as many elements, as far as that is known."""
    sizes = [prod(shape) for op in (gamma, beta) for t in op.data if not t.live and (shape := dims(t)) is not None]
    return len(set(sizes)) <= 1
