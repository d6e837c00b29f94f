"""Which pairs can get past which node, as plans for `qdq.edit.move`; or why not, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.evaluate.exact import rearranged_by
from qdq_passes.graph.uses import constant_array, is_standard, label
from qdq_passes.qdq.look.axes import IN_PLACE, axis_after, axis_before
from qdq_passes.qdq.look.commute import Crossing, crossing_of, data_inputs
from qdq_passes.qdq.look.exact import Rounding, exact_text, on_grid, rank_of, rounding_of, why_not_exact
from qdq_passes.qdq.look.pairs import Pair, dequantizers, is_dequantize, is_quantize, pair_of


@dataclass(frozen=True)
class Move:
    """A plan: rounding gets past ``node``.

    Args:
        node: what is crossed.
        pairs: the pairs that leave; downward by the index of the input where they arrive, upward by their number.
        axes: axis of the scales on the other side, None per-tensor; downward of the outputs (key 0), upward of each input that
            gets a pair.
        problem: why the result is only approximately the same; "" when it is bit for bit.
    """

    node: ir.Node
    pairs: dict[int, Pair]
    axes: dict[int, int | None] = field(default_factory=dict)
    problem: str = ""


def arriving(node: ir.Node) -> list[Pair]:
    """The pairs (and stored integers) whose dequantized value ``node`` reads, each once."""
    return list(dict.fromkeys(pair for value in node.inputs if (pair := _behind(value)) is not None))


def leaving(node: ir.Node) -> list[Pair]:
    """The pairs on the outputs of ``node`` that hold elements of its inputs."""
    found = [dq for value in float_outputs(node) for q in _quantizers(value) for dq in dequantizers(q)]
    return [pair for dq in found if (pair := pair_of(dq)) is not None]


def plan_down(
    node: ir.Node, pairs: Sequence[Pair], *, approximate: bool, types: dict[ir.Value, ir.DataType]
) -> Move | str:
    """How ``pairs``, some of those `arriving` at ``node``, get below it, perhaps not bit for bit; or why not."""
    at = {i: pair for i, value in enumerate(node.inputs) if (pair := _behind(value)) in pairs and pair is not None}
    sound = {i: pair for i, pair in at.items() if not why_not_exact(pair, types)}
    if not sound:
        return why_not_exact(pairs[0], types)
    data = data_inputs(node)
    if data:
        sound = {i: pair for i, pair in sound.items() if i in data}
        if not sound:
            return f"{node.op_type} takes no elements from this input"
    lead = next((pair for pair in sound.values() if pair.q is not None), next(iter(sound.values())))
    rounding, rank = _rounding(lead), rank_of(lead.source, lead.output)
    crossing = crossing_of(node, rounding, rank)
    if crossing.problem and not (approximate and crossing.is_possible):
        return _advised(crossing)
    going = {i: pair for i, pair in sound.items() if pair.q is not None}
    if not going:
        return _plan_stored(node, *next(iter(sound.items())), crossing, rounding)
    rounded = list(going)
    for index in crossing.data:
        value = node.inputs[index]
        other = going.get(index) or _behind(value)
        if value is None or (other is None and crossing.problem and constant_array(value) is not None):
            continue
        if other is not None and not why_not_exact(other, types):
            if _rounding(other) != rounding:
                return _different(lead, other)
            if index not in going and not rounding.is_idempotent:
                return f"{other.tensor} would be rounded twice, which may change it"
            rounded.append(index)
        elif not _is_on_grid(value, crossing, rounding, rank):
            return f"its other input {value.name} has no such pair"
    axis = _axis_below(node, rounding, rounded)
    return axis if isinstance(axis, str) else Move(node, going, {0: axis}, crossing.problem)


def plan_up(
    node: ir.Node, pairs: Sequence[Pair], *, approximate: bool, types: dict[ir.Value, ir.DataType]
) -> Move | str:
    """How ``pairs``, some of those `leaving` ``node``, get above it, a Q with all its DQ, perhaps not bit for bit; or why not."""
    outputs = float_outputs(node)
    moving = list(dict.fromkeys(pair.q for pair in pairs if pair.q is not None))
    pairs = [pair for q in moving for dq in dequantizers(q) if (pair := pair_of(dq)) is not None]
    reason = next((reason for pair in pairs if (reason := why_not_exact(pair, types))), "")
    if reason:
        return reason
    rounding, rank = _rounding(pairs[0]), rank_of(outputs[0], pairs[0].output)
    crossing = crossing_of(node, rounding, rank)
    if crossing.problem and not (approximate and crossing.is_possible):
        return _advised(crossing)
    reason = next((reason for value in outputs if (reason := _not_only_rounded(value, moving, pairs[0]))), "")
    if reason:
        return reason
    axes: dict[int, int | None] = {}
    for index in crossing.data:
        value = node.inputs[index]
        if value is None or (crossing.problem and constant_array(value) is not None):
            continue
        axis = _axis_above(node, rounding, index)
        if isinstance(axis, str):
            return axis
        if not _is_rounded(value, rounding, axis, types) and not _is_on_grid(value, crossing, rounding, rank):
            axes[index] = axis
    return Move(node, dict(enumerate(pairs)), axes, crossing.problem)


def float_outputs(node: ir.Node) -> list[ir.Value]:
    """The outputs that hold elements of the inputs: all of a Split, else the first."""
    return [v for v in node.outputs if v.name] if is_standard(node, "Split") else list(node.outputs[:1])


def reads_shape_only(node: ir.Node) -> bool:
    """Whether ``node`` looks at the shape of its input, not at its elements."""
    return is_standard(node, "Shape", "Size")


def _advised(crossing: Crossing) -> str:
    """The problem, and the way past it if there is one."""
    return crossing.problem + ("; allow-approximate=true moves it anyway" if crossing.is_possible else "")


def _plan_stored(node: ir.Node, index: int, pair: Pair, crossing: Crossing, rounding: Rounding) -> Move | str:
    """Stored integers get below ``node`` by being rearranged themselves, here and now."""
    stored = constant_array(pair.stored)
    if len(crossing.data) != 1 or stored is None or rearranged_by(node, stored) is None:
        return f"its integers are stored, and {node.op_type} is not computed on them"
    axis = _axis_below(node, rounding, [index])
    return axis if isinstance(axis, str) else Move(node, {index: pair}, {0: axis})


def _behind(value: ir.Value | None) -> Pair | None:
    producer = value.producer() if value is not None else None
    return pair_of(producer) if producer is not None else None


def _rounding(pair: Pair) -> Rounding:
    found = rounding_of(pair.q or pair.dq)
    assert found is not None
    return found


def _different(one: Pair, other: Pair) -> str:
    first, second = _rounding(one).encoding, _rounding(other).encoding
    return f"its inputs have different encodings: {one.tensor} {exact_text(first)}, {other.tensor} {exact_text(second)}"


def _quantizers(value: ir.Value) -> list[ir.Node]:
    return list(dict.fromkeys(use.node for use in value.uses() if use.idx == 0 and is_quantize(use.node)))


def _not_only_rounded(value: ir.Value, moving: list[ir.Node], lead: Pair) -> str:
    """Who sees ``value`` without the rounding; "" when nobody does."""
    if value.is_graph_output():
        return f"{value.name} is a graph output as float, too"
    rounding = _rounding(lead)
    for use in value.uses():
        if reads_shape_only(use.node):
            continue
        if use.idx != 0 or not is_quantize(use.node):
            return f"{value.name} is read as float by {label(use.node)}, too"
        other = rounding_of(use.node)
        if other is None or other != rounding:
            its = exact_text(other.encoding) if other is not None else "one computed at run time"
            return f"{value.name} has another encoding at {use.node.name}: {its}, not {exact_text(rounding.encoding)}"
        integers = use.node.outputs[0]
        if use.node not in moving:
            if not rounding.is_idempotent:
                return f"{value.name} would be rounded twice for {use.node.name}, which may change it"
        elif integers.is_graph_output() or any(u.idx != 0 or not is_dequantize(u.node) for u in integers.uses()):
            return f"its integers {integers.name} are read as such"
    return ""


def _is_rounded(value: ir.Value, rounding: Rounding, axis: int | None, types: dict[ir.Value, ir.DataType]) -> bool:
    """Whether ``value`` comes out of a pair (or stored integers) that rounds just so, and again would change nothing."""
    other = _behind(value)
    if other is None or why_not_exact(other, types) or not rounding.is_idempotent:
        return False
    return _rounding(other) == rounding.along(axis)


def _is_on_grid(value: ir.Value, crossing: Crossing, rounding: Rounding, rank: int | None) -> bool:
    array = constant_array(value)
    return array is not None and on_grid(array, rounding, rank=rank, beyond=crossing.beyond)


def _axis_below(node: ir.Node, rounding: Rounding, indices: list[int]) -> int | str | None:
    """Axis of the scales behind ``node``, the same from all rounded inputs."""
    axis = rounding.encoding.axis
    if axis is None or node.op_type in IN_PLACE:
        return axis
    if rounding.encoding.block_size:
        return f"{node.op_type} takes blocks of scales apart"
    found = [axis_after(node, axis, index) for index in dict.fromkeys(indices)]
    reason = next((a for a in found if isinstance(a, str)), None)
    if reason is None and len(set(found)) > 1:
        reason = "the scales of its inputs lie along different axes"
    return found[0] if reason is None else reason


def _axis_above(node: ir.Node, rounding: Rounding, index: int) -> int | str | None:
    axis = rounding.encoding.axis
    if axis is None or node.op_type in IN_PLACE:
        return axis
    if rounding.encoding.block_size:
        return f"{node.op_type} takes blocks of scales apart"
    return axis_before(node, axis, len(rounding.encoding.scale), index)
