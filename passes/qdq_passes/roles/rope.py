"""Rotary embeddings by structure: the rotation of queries and keys, not the angles.

    halves       y = x·cos + [−x₂, x₁]·sin           Slice, Slice, Neg, Concat, Mul, Mul, Add
    pairs        y = [x₁·cos − x₂·sin, x₁·sin + x₂·cos]   Split, Mul ×4, Sub, Add, Concat

x₁, x₂ are slices of x: its halves, or its even and odd elements. Where only a part of each head turns, the slices that cut that
part out and the Concat that joins it to the rest belong to it. The computation of cosines and sines does not."""

from __future__ import annotations

from collections.abc import Sequence

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.kinds import ATTENTIONS, MOVERS, SHAPERS
from qdq_passes.graph.uses import integer_of
from qdq_passes.roles.products import part_of, root
from qdq_passes.roles.skeleton import Op, Tensor, number

#: What may stand between the cosine and the product: data movement, and Concat, which doubles it.
_AROUND = MOVERS | {"Gather"}


@dataclass(frozen=True, eq=False)
class Rotation:
    """One rotation.

    Args:
        ops: all of it.
        source: what is turned, before it is cut in parts.
        output: the result; the attention's where one operator does both.
        angles: the cosines and sines it reads.
    """

    ops: tuple[Op, ...]
    source: Tensor
    output: Tensor
    angles: tuple[Tensor, ...] = ()


def rotations_of(ops: Sequence[Op]) -> list[Rotation]:
    """Every rotation among ``ops``, in order."""
    found = []
    for op in ops:
        rotation = None
        if op.kind == "RotaryEmbedding" or (op.kind in ATTENTIONS and integer_of(op.node, "do_rotary", 0)):
            rotation = Rotation((op,), op.data[0], op.output, tuple(op.inputs[1:]))
        elif op.kind == "Concat" and len(op.data) == 2:
            rotation = _halves(op)
        elif op.kind == "Sub" and len(op.data) == 2:
            rotation = _pairs(op)
        if rotation is not None:
            found.append(rotation)
    return found


def _halves(concat: Op) -> Rotation | None:
    """x·cos + [−x₂, x₁]·sin, by its Concat."""
    inside: list[Op] = [concat]
    sources = []
    negated = 0
    for tensor in concat.data:
        tensor, ops = _through(tensor)
        inner = _negated(tensor)
        if inner is not None and tensor.maker is not None:
            negated += 1
            ops.append(tensor.maker)
            tensor = inner
        part = part_of(tensor)
        if part is None:
            return None
        sources.append(part[0])
        inside += [*ops, *part[1]]
    if negated != 1 or root(sources[0]) is not root(sources[1]):
        return None
    turned, behind = _forward(concat.output)
    for product in (r for r in turned.readers if r.kind == "Mul"):
        for end in (r for r in product.output.readers if r.kind in ("Add", "Sub")):
            other = end.other(product.output)
            straight = other.maker if other is not None else None
            if straight is None or straight.kind != "Mul":
                continue
            kept = next((t for t in straight.data if root(t) is root(sources[0])), None)
            cosine, sine = (straight.other(kept) if kept is not None else None), product.other(turned)
            if cosine is not None and sine is not None:
                ops = [*inside, *behind, product, straight, end]
                return _joined(ops, sources[0], end.output, (cosine, sine))
    return None


def _pairs(sub: Op) -> Rotation | None:
    """[x₁·cos − x₂·sin, x₁·sin + x₂·cos], by its Sub."""
    first, second = sub.data[0].maker, sub.data[1].maker
    if first is None or second is None or first.kind != "Mul" or second.kind != "Mul":
        return None
    for a in first.data:
        part_a = part_of(a)
        if part_a is None:
            continue
        for b in second.data:
            part_b = part_of(b)
            if part_b is None or b is a or root(part_a[0]) is not root(part_b[0]):
                continue
            cosine, sine = first.other(a), second.other(b)
            if cosine is None or sine is None or not (_is_angle(cosine) and _is_angle(sine)):
                continue
            for one in (r for r in b.readers if r.kind == "Mul" and r is not second):
                for add in (r for r in one.output.readers if r.kind == "Add"):
                    other = add.other(one.output)
                    two = other.maker if other is not None else None
                    if two is not None and two.kind == "Mul" and a in two.data:
                        ops = [*part_a[1], *part_b[1], first, second, one, two, sub, add]
                        return _stacked(ops, part_a[0], sub.output, add.output, (cosine, sine))
    return None


def _stacked(ops: list[Op], source: Tensor, real: Tensor, imaginary: Tensor, angles: tuple[Tensor, ...]) -> Rotation:
    """The rotation with the operators that lay both halves side by side."""
    ends: list[tuple[Op, list[Op]]] = []
    for tensor in (real, imaginary):
        for reader in tensor.readers:
            if reader.kind == "Concat":
                ends.append((reader, []))
            elif reader.kind in SHAPERS:
                ends += [(r, [reader]) for r in reader.output.readers if r.kind == "Concat"]
    concats = [op for op, _ in ends]
    joint = next((op for op in concats if concats.count(op) == 2 and len(op.data) == 2), None)
    if joint is None:
        return Rotation(tuple(dict.fromkeys(ops)), source, imaginary, angles)
    shapers = [o for op, before in ends if op is joint for o in before]
    output, behind = _forward(joint.output) if shapers else (joint.output, [])
    return _joined([*ops, *shapers, joint, *behind], source, output, angles)


def _joined(ops: list[Op], source: Tensor, output: Tensor, angles: tuple[Tensor, ...]) -> Rotation:
    """The rotation with the slices before and the Concat behind, where only a part of each head turns."""
    whole = part_of(source)
    if whole is not None:
        for concat in (r for r in output.readers if r.kind == "Concat" and len(r.data) == 2):
            rest = next((t for t in concat.data if t is not output), None)
            part = part_of(rest) if rest is not None else None
            if part is not None and root(part[0]) is root(whole[0]):
                ops = [*whole[1], *part[1], *ops, concat]
                return Rotation(tuple(dict.fromkeys(ops)), whole[0], concat.output, angles)
    return Rotation(tuple(dict.fromkeys(ops)), source, output, angles)


def _through(tensor: Tensor) -> tuple[Tensor, list[Op]]:
    """(what stands before the operators of data movement that make ``tensor``, those operators)."""
    ops = []
    while tensor.maker is not None and tensor.maker.kind in SHAPERS and tensor.maker.data:
        ops.append(tensor.maker)
        tensor = tensor.maker.data[0]
    return tensor, ops


def _forward(tensor: Tensor) -> tuple[Tensor, list[Op]]:
    """(what operators of data movement make of ``tensor``, those operators), as long as one alone reads it."""
    ops = []
    while len(tensor.readers) == 1 and tensor.readers[0].kind in SHAPERS and tensor.readers[0].data[0] is tensor:
        ops.append(tensor.readers[0])
        tensor = tensor.readers[0].output
    return tensor, ops


def _negated(tensor: Tensor) -> Tensor | None:
    """x, where ``tensor`` is −x."""
    op = tensor.maker
    if op is None:
        return None
    if op.kind == "Neg":
        return op.data[0]
    if op.kind == "Mul" and len(op.data) == 2:
        return next((op.data[1 - k] for k in (0, 1) if number(op.data[k]) == -1.0), None)
    return None


def _is_angle(tensor: Tensor) -> bool:
    """Whether ``tensor`` comes from Cos or Sin, a stored table or an input of the model, by data movement and fixed factors."""
    for _ in range(20):
        op = tensor.maker
        if op is None or not tensor.live or op.kind in ("Cos", "Sin"):
            return True
        if op.kind == "Gather":
            return not op.data[0].live or _is_angle(op.data[0])
        live = op.live_data()
        if not live or not (op.kind in _AROUND or op.kind == "Concat" or (op.kind == "Mul" and len(live) == 1)):
            return False
        tensor = live[0]
    return False


def tables_of(rotations: Sequence[Rotation]) -> set[Op]:
    """Operators that look the cosines and sines of ``rotations`` up in a table."""
    found: set[Op] = set()
    seen: set[Tensor] = set()
    stack = [angle for rotation in rotations for angle in rotation.angles]
    while stack:
        tensor = stack.pop()
        op = tensor.maker
        if tensor in seen or op is None:
            continue
        seen.add(tensor)
        if op.kind == "Gather":
            found.add(op)
        elif op.kind in MOVERS or op.kind in ("Concat", "Mul", "Neg", "Cos", "Sin"):
            stack += op.data
    return found
