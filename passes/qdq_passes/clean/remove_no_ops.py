"""remove-no-ops

No-ops: nodes whose output is one of their inputs, element for element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, bypass, drop_unread, take_over
from qdq_passes.graph.operators.qdq_ops import opset_at
from qdq_passes.graph.sizes import rank_of, sizes_of, static_sizes
from qdq_passes.graph.uses import all_nodes, constant_array, dtype_of, integers_of, is_constant, is_standard


@dataclass(frozen=True)
class RemoveNoOps(Pass):
    """Remove what changes nothing: x·1, x/1, x+0 and x−0 with a constant that is so throughout; movement that moves nothing.

    Movement is Expand, Reshape, Flatten, Tile, Slice, Pad, Split in one and Transpose to the shape and order it has, Cast and
    CastLike to the type it has, Concat, Max, Min, Mean and Sum of one value, Where with one answer for all; and an Expand to what
    all its readers broadcast to anyway.

    Graph: ``x → Relu → t → Mul(1) → u → Conv → y`` → ``x → Relu → t → Conv → y``; in bodies and functions too.
    Requires: for a constant with dimensions, the number of those of x, for one of several elements and for movement shapes, where
    symbolic sizes of one name are equal (infer-shapes).
    Keeps: inputs, outputs and their names; numerics: equal numbers, though x+0 turns −0 into +0 and its removal does not.
    Skips: a constant that adds dimensions or may broadcast x; a node that joins a graph input, an initializer or an outer
    value to a graph output, or two graph outputs: it is what makes the second name. With ``identities``, a Dropout that may
    train or whose mask is read.

    Args:
        names: whose output name stays: the producer's, or that of the removed node (of several, of the last).
        identities: remove Identity and Dropout in the same walk, as remove-identity does.
        movement: remove movement that moves nothing as well.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=2.0**-149,
        why="−0 and +0 are equal numbers: nothing differs unless a later operator tells them apart (Reciprocal); 2^-149 is the "
        "least difference of float32",
    )
    names: Literal["producer", "removed"] = "producer"
    identities: bool = False
    movement: bool = True

    def run(self, model: ir.Model) -> Iterator[Change]:
        """In the order of the graph."""
        namer = Namer(model)
        wanted = (*NEUTRAL, *(("Identity", "Dropout") if self.identities else ()))
        for node in all_nodes(model):
            source = unmoved(node) if self.movement else None
            if source is None and node.op_type == "Expand" and self.movement and self.names == "producer":
                source = node.inputs[0] if is_broadcast_anyway(node) else None
            if source is None and not is_standard(node, *wanted):
                continue
            reason = ""
            if source is None:
                source, reason = passed_on(model, node)
            reason = reason or (_why_not(node, source) if source is not None else "")
            if reason:
                yield skip(node, reason)
            elif source is not None and self.names == "removed" and not is_constant(source):
                yield from take_over(source, node, namer, "changes nothing", stand_for=False)
            elif source is not None:
                parameters = list(node.inputs)
                yield bypass(node, namer, "changes nothing", source=source)
                yield from drop_unread(parameters)


def _why_not(node: ir.Node, source: ir.Value) -> str:
    """Why the output of ``node`` cannot go: both are outputs of a graph, or nothing in it computes the source."""
    if not node.outputs[0].is_graph_output():
        return ""
    if source.is_graph_output() and source.graph is node.graph:
        return "it joins two graph outputs"
    is_computed = source.producer() is not None and source.graph is node.graph
    return "" if is_computed else "it joins a graph input, an initializer or an outer value to a graph output"


#: Operator → (its neutral constant, the inputs that may be it).
NEUTRAL = {"Add": (0, (1, 0)), "Div": (1, (1,)), "Mul": (1, (1, 0)), "Sub": (0, (1,))}

#: Operators whose output is their input where they have one alone.
JOINING = ("Concat", "Max", "Mean", "Min", "Sum")
#: Operators that may leave a tensor as it is, by its shape.
SHAPING = ("Expand", "Flatten", "Pad", "Reshape", "Slice", "Split", "Tile")


def passed_on(model: ir.Model, node: ir.Node) -> tuple[ir.Value | None, str]:
    """The input that ``node`` passes on, or None and why it does not (nothing where it is no candidate at all).

    Candidates are Identity, Dropout, and x·1, x/1, x+0, x−0 with a constant that is 1, or 0, throughout.
    """
    first = node.inputs[0] if node.inputs else None
    if is_standard(node, "Identity"):
        return first, ""
    if is_standard(node, "Dropout"):
        reason = _why_it_trains(model, node)
        return (first, "") if reason is None else (None, reason)
    if not is_standard(node, *NEUTRAL) or len(node.inputs) != 2:
        return None, ""
    neutral, places = NEUTRAL[node.op_type]
    for place in places:
        constant, x = constant_array(node.inputs[place]), node.inputs[1 - place]
        if constant is None or x is None or not constant.size or not bool((constant == neutral).all()):
            continue
        if place == 0 and "broadcast" in node.attributes:  # before opset 7 the second input is broadcast to the first
            continue
        if constant.ndim and x.shape is None:
            return None, "the number of dimensions of its input is not known (infer-shapes)"
        if x.shape is not None and constant.ndim > len(x.shape):
            return None, "its constant has more dimensions than its input"
        if not _is_broadcast(constant.shape, x):
            return None, "its input may be broadcast to its constant"
        return x, ""
    return None, ""


def _is_broadcast(shape: Sequence[int], x: ir.Value) -> bool:
    """Whether a constant of ``shape``, which has no more dimensions than ``x``, has no larger ones either."""
    if all(size == 1 for size in shape):
        return True
    dims = x.shape.dims[len(x.shape) - len(shape) :] if x.shape is not None else ()
    return all(size in (1, dim) for size, dim in zip(shape, dims, strict=True))


def unmoved(node: ir.Node) -> ir.Value | None:
    """The input that ``node``, which moves, joins, chooses or casts, passes on as it is by its shapes, types and constants.

    Concat, Max, Min, Mean and Sum of one value; Cast and CastLike to the type it has; Expand, Reshape, Flatten, Tile, Slice
    (forwards), Pad (by nothing) and Transpose (in order) to the same shape; Split in one; Where with one answer and no broadcast;
    the Unsqueeze behind a Gather of the only element of a vector.
    """
    first, output = node.inputs[0] if node.inputs else None, node.outputs[0]
    if first is None or not is_standard(
        node, *JOINING, *SHAPING, "Cast", "CastLike", "Transpose", "Unsqueeze", "Where"
    ):
        return None
    if is_standard(node, "CastLike"):
        wanted = dtype_of(node.inputs[1]) if node.inputs[1] is not None else None
        return first if wanted is not None and dtype_of(first) == wanted else None
    if is_standard(node, "Split"):
        return first if len(node.outputs) == 1 else None
    if is_standard(node, "Unsqueeze"):
        axes = constant_array(node.inputs[1]) if len(node.inputs) > 1 else integers_of(node, "axes")
        return _only_element(first) if axes is not None and np.size(axes) == 1 else None
    if is_standard(node, *JOINING):
        return first if len(node.inputs) == 1 else None
    if is_standard(node, "Cast"):
        dtype, to = dtype_of(first), node.attributes.get("to")
        return first if dtype is not None and to is not None and not to.is_ref() and to.as_int() == dtype else None
    if is_standard(node, "Transpose"):
        order = integers_of(node, "perm")
        return first if order and order == sorted(order) else None
    if is_standard(node, "Where"):
        answers = constant_array(first)
        chosen = None if answers is None or not answers.size else node.inputs[1 if answers.reshape(-1)[0] else 2]
        is_one = answers is not None and chosen is not None and bool((answers == answers.reshape(-1)[0]).all())
        return chosen if is_one and chosen is not None and _same_shape(chosen, output) else None
    return first if _same_shape(first, output) and _keeps_places(node) else None


#: Operators whose inputs are broadcast to one shape, in every opset that has an Expand.
BROADCASTING = (
    "Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
    "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor",
)  # fmt: skip


def is_broadcast_anyway(node: ir.Node) -> bool:
    """Whether ``node`` is an Expand whose readers write the same shapes of what it expands."""
    if not is_standard(node, "Expand") or node.outputs[0].is_graph_output() or not node.outputs[0].uses():
        return False
    return all(is_standard(user, *BROADCASTING) and _writes_alike(user, node) for user in node.outputs[0].consumers())


def _writes_alike(user: ir.Node, expand: ir.Node) -> bool:
    """Whether ``user`` writes the shape it has if it reads what ``expand`` expands."""
    read = [sizes_of(expand.inputs[0] if value is expand.outputs[0] else value) for value in user.inputs]
    wanted = sizes_of(user.outputs[0])
    if wanted is None or any(sizes is None or None in sizes for sizes in (*read, wanted)):
        return False
    rows = [[*[1] * (len(wanted) - len(sizes)), *sizes] for sizes in read if sizes is not None]
    found = [{size for size in column if size != 1} or {1} for column in zip(*rows, strict=True)]
    return found == [{size} for size in wanted]


def _only_element(value: ir.Value) -> ir.Value | None:
    """The vector of one element whose element ``value`` is, taken out by a constant index; None where it is none."""
    gather = value.producer()
    if gather is None or not is_standard(gather, "Gather") or rank_of(value) not in (0, None):
        return None
    index = constant_array(gather.inputs[1])
    is_vector = static_sizes(gather.inputs[0]) == [1]
    return gather.inputs[0] if is_vector and index is not None and index.ndim == 0 else None


def _same_shape(a: ir.Value, b: ir.Value) -> bool:
    """Whether both have one shape, sizes of one name being equal."""
    shapes = [
        v.shape if v.shape is not None else v.const_value.shape if v.const_value is not None else None for v in (a, b)
    ]
    sizes = [None if shape is None else [d if isinstance(d, int) else d.value for d in shape] for shape in shapes]
    return sizes[0] is not None and sizes[0] == sizes[1] and None not in sizes[0]


def _keeps_places(node: ir.Node) -> bool:
    """Whether ``node``, whose output has the shape of its input, leaves each element where it is."""
    if is_standard(node, "Slice"):
        steps = constant_array(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else None
        return len(node.inputs) <= 4 or node.inputs[4] is None or (steps is not None and bool((steps > 0).all()))
    if is_standard(node, "Pad"):
        pads = constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
        return pads is not None and not pads.any()
    return True


def _why_it_trains(model: ir.Model, dropout: ir.Node) -> str | None:
    """Why ``dropout`` may do more than pass its input on (``is_test`` before opset 7, ``training_mode`` since opset 12)."""
    if any(mask.uses() or mask.is_graph_output() for mask in dropout.outputs[1:]):
        return "its mask is read"
    is_test = dropout.attributes.get("is_test")
    if opset_at(model, dropout) < 7 and (is_test is None or is_test.is_ref() or not is_test.as_int()):
        return "it trains: is_test is 0"
    for training_mode in (value for value in dropout.inputs[2:3] if value is not None):
        values = constant_array(training_mode)
        if values is None or values.any():
            return f"its training_mode is {'not constant' if values is None else 'true'}"
    return None
