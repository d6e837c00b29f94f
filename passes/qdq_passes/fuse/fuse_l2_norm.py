"""fuse-l2-norm"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps
from qdq_passes.fuse._norms import ROOTS, SQUARE, groups_from, root_of
from qdq_passes.fuse.edit.fusion import FusionPass, Match, closed_group, fuse, why_not_float32
from qdq_passes.graph.operators.activations import clip_bound
from qdq_passes.graph.operators.arithmetic import agree, expand, outcomes, product, scalar_of, without_casts
from qdq_passes.graph.operators.reductions import has_shape_of, reduction_of
from qdq_passes.graph.uses import is_standard, only_reader

#: Largest length that LpNormalization may tell from 0 and the nodes do not: torch has 1e-12, TensorFlow √1e-12.
SHORTEST = 2.0**-19


@dataclass(frozen=True)
class FuseL2Norm(FusionPass):
    """Recognise L2 normalization in its pieces: one LpNormalization, or a group that is quantized as one.

    y = x/‖x‖, ‖x‖ = √Σx² along one axis; or with a least length: x/max(‖x‖, ε), x/(‖x‖ + ε), x/√(Σx² + ε²), x/√max(Σx², ε²),
    x·min(1/‖x‖, 1/ε). All orders and groupings count: ReduceL2, or Sqrt of ReduceSum or ReduceSumSquare; Max or Clip; Expand.

    Graph: ``x → ReduceL2, Clip, Expand, Div → y`` → ``x → LpNormalization → y``; or unchanged, its nodes annotated ``part`` and
    the values between them ``fused``.
    Requires: shapes, where an Expand is to be proven harmless.
    Keeps: inputs, outputs and their names; numerics within the bound on rows longer than 2^-9 and on rows of zeros with an ε,
    bit-exact with ``into=group``. Rows of zeros without an ε are NaN in pieces, and 0 of the operator.
    Skips: an inner value that others read or that is a graph output; the operator where ε is above 2^-19, for several axes, and
    where it would compute in another type than float32.

    Args:
        into: ``operator`` replaces the nodes, ``group`` marks them, ``auto`` replaces them where it can.
        raise_opset: first convert the model to the opset of the operator, where nothing else is in its way; what cannot be
            converted stays in pieces.
    """

    bounded: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=2.0**-9,
        why="on rows with ‖x‖ ≥ 2^-9, where ε ≤ 2^-19 shortens by 2^-10 at most; K squares added in another order, K·2^-24",
    )

    def run(self, model: ir.Model) -> Iterator[Change]:
        """From each norm."""
        yield from fuse(model, (*ROOTS, "ReduceL2"), _l2_norm, self.into, raise_opset=self.raise_opset)


@dataclass(frozen=True)
class _Length:
    """‖x‖, one a row.

    Args:
        x: of what.
        axes: along which axes.
        value: the length, or its reciprocal.
        sign: −1 for the reciprocal, else 1.
        epsilon: what it is at least, or what was added.
        expanded: whether it was expanded to a shape that is not proven to be that of x.
    """

    x: ir.Value
    axes: tuple[int, ...]
    value: ir.Value
    sign: int = 1
    epsilon: float = 0.0
    expanded: bool = False


def _l2_norm(node: ir.Node) -> Match | str | None:
    length = _length_of(node)
    if length is None:
        return None
    length = _limited(length)
    leaves = {length.x: product(x=1), length.value: product(s=length.sign)}
    found = [v for v, total in outcomes(length.value, leaves.get) if agree(total, {product(x=1, s=-1): 1.0}, 0.0)]
    group = closed_group(groups_from(length.x, list(reversed(found))))
    if group is None or isinstance(group, str):
        return group
    x, nodes = group
    differs = why_not_float32(nodes, x)
    if len(length.axes) > 1:
        differs = differs or f"LpNormalization takes one axis, not {list(length.axes)}"
    if length.epsilon > SHORTEST:
        differs = differs or f"rows shorter than {length.epsilon:.3g} come out shorter, and of LpNormalization do not"
    if length.expanded:
        differs = differs or "the shape that the length is expanded to is not known to be that of the input"
    attributes = (ir.AttrInt64("axis", length.axes[0]), ir.AttrInt64("p", 2))
    return Match("LpNormalization", tuple(nodes), x, attributes=attributes, differs=differs)


def _length_of(node: ir.Node) -> _Length | None:
    """The length that ``node`` computes; None where it computes none."""
    if is_standard(node, "ReduceL2"):
        for value in (node.outputs[0], *(user.outputs[0] for user in node.outputs[0].consumers())):
            norm = reduction_of(value)
            if norm is not None and norm.kind == "norm":
                return _Length(without_casts(norm.source), norm.axes, value)
        return None
    argument, sign = root_of(node)
    if argument is None:
        return None
    squares, least = _at_least(argument)
    total = reduction_of(squares)
    if total is None or total.kind not in ("sum", "squares") or least < 0:
        return None
    x = without_casts(total.source)
    if total.kind == "sum":
        square = total.source.producer()
        if square is None or not is_standard(square, "Mul", "Pow") or square.inputs[0] is None:
            return None
        x = without_casts(square.inputs[0])
        if not agree(expand(total.source, lambda value: product(x=1) if value is x else None), SQUARE, 0.0):
            return None
    return _Length(x, total.axes, node.outputs[0], sign, math.sqrt(least))


def _limited(length: _Length) -> _Length:
    """``length`` as what divides: kept above an ε, expanded, or inverted and kept below 1/ε."""
    while (user := only_reader(length.value)) is not None:
        value, least = _at_least(user.outputs[0])
        if length.sign > 0 and value is length.value and least >= 0:
            length = replace(length, value=user.outputs[0], epsilon=max(length.epsilon, least))
        elif is_standard(user, "Expand") and user.inputs[0] is length.value:
            expanded = length.expanded or not _is_shape_of(user.inputs[1], user.outputs[0], length.x)
            length = replace(length, value=user.outputs[0], expanded=expanded)
        elif length.sign > 0 and _is_inverse(user, length.value) and (limited := _at_most(user.outputs[0])) is not None:
            value, most = limited
            return replace(length, value=value, sign=-1, epsilon=max(length.epsilon, 1 / most))
        else:
            break
    return length


def _at_least(value: ir.Value) -> tuple[ir.Value, float]:
    """(a, ε) where ``value`` is a kept above or raised by the constant ε; ``value`` and 0 where it is neither."""
    node = value.producer()
    if node is not None and is_standard(node, "Clip") and node.inputs[0] is not None:
        low, high = clip_bound(node, "min"), clip_bound(node, "max")
        if isinstance(low, int | float) and high is None:
            return node.inputs[0], low
    if node is not None and is_standard(node, "Add", "Max") and len(node.inputs) == 2:
        for a, b in (node.inputs, tuple(reversed(node.inputs))):
            number = scalar_of(b)
            if a is not None and number is not None:
                return a, number
    return value, 0.0


def _at_most(value: ir.Value) -> tuple[ir.Value, float] | None:
    """(b, c) where the one reader of ``value`` writes b, that is ``value`` kept below the positive constant c; else None."""
    user = only_reader(value)
    if user is None:
        return None
    if is_standard(user, "Clip") and user.inputs[0] is value:
        low, most = clip_bound(user, "min"), clip_bound(user, "max")
        return (user.outputs[0], most) if low is None and isinstance(most, int | float) and most > 0 else None
    if not is_standard(user, "Min") or len(user.inputs) != 2:
        return None
    number = scalar_of(user.inputs[1] if user.inputs[0] is value else user.inputs[0])
    return (user.outputs[0], number) if number is not None and number > 0 else None


def _is_inverse(node: ir.Node, value: ir.Value) -> bool:
    """Whether ``node`` writes 1/``value``."""
    if is_standard(node, "Reciprocal"):
        return True
    return is_standard(node, "Div") and node.inputs[1] is value and scalar_of(node.inputs[0]) == 1


def _is_shape_of(shape: ir.Value | None, expanded: ir.Value, x: ir.Value) -> bool:
    """Whether ``expanded``, made with ``shape``, has the shape of ``x``."""
    node = shape.producer() if shape is not None else None
    if node is not None and is_standard(node, "Shape") and not node.attributes and node.inputs[0] is not None:
        return without_casts(node.inputs[0]) is x
    return has_shape_of(expanded, x)
