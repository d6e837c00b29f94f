"""Edits that follow a `StaticWalk`: constants become initializers, constant branches open, shapes are written down.

What stays dynamic is refused, with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from qdq_passes.core.base import Change
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.edit import Namer, drop_unread, hand_over, replace_value
from qdq_passes.graph.evaluate.walk import LARGEST_RESULT, StaticWalk
from qdq_passes.graph.reach import values_read
from qdq_passes.graph.uses import bodies_of, constant_array, is_constant, is_standard, label

#: Operators that make a shape or a constant of one: none of them is left in a static graph.
MAKERS = ("ConstantOfShape", "NonZero", "Range", "Shape", "Size")


def fold_walked(model: ir.Model, walked: StaticWalk) -> Iterator[Change]:
    """Put initializers in place of what ``walked`` computed, under the names of the values."""
    graph, namer = model.graph, Namer(model)
    made = []
    for value, array in walked.arrays.items():
        tensor = ir.tensor(array, name=value.name)
        new = ir.Value(
            name=value.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
        )
        if value.is_graph_output():
            new.name = namer.fresh(f"{value.name}_constant")
            graph.register_initializer(new)
            replace_value(value, new, namer)
        else:
            value.replace_all_uses_with(new)
            made.append(new)
    read: dict[ir.Value, None] = {}
    for node in reversed([node for node in walked.nodes if node in walked.computed]):
        read.update(dict.fromkeys(v for v in node.inputs if v is not None and v.producer() is None))
        graph.remove(node, safe=True)
        yield Change("remove", label(node), "is constant")
    for new in made:
        graph.register_initializer(new)
        yield Change("insert", new.name or "", f"initializer, {new.shape}")
    yield from drop_unread(read)


def open_branches(model: ir.Model, walked: StaticWalk) -> Iterator[Change]:
    """Replace each If of the main graph whose condition ``walked`` computed by the nodes of the branch that runs."""
    for node in walked.nodes:
        condition = node.inputs[0] if is_standard(node, "If") and node.inputs else None
        array = None if condition is None else walked.arrays.get(condition)
        if array is None and condition is not None:
            array = constant_array(condition)
        if array is None or array.size != 1:
            continue
        name = "then_branch" if bool(array.reshape(())) else "else_branch"
        yield Change("replace", node.name or "If", f"its condition is constant: {name}")
        open_branch(model, node, name)


def open_branch(model: ir.Model, node: ir.Node, name: str) -> None:
    """Put the nodes of the branch ``name`` where ``node``, an If, stands; names stay where no other value or node has them."""
    branch = node.attributes[name].as_graph()
    outputs, inner, stored = list(branch.outputs), list(branch), list(branch.initializers.values())
    branch.outputs.clear()
    for one in inner:
        branch.remove(one)
    branch.initializers.clear()
    node.attributes.clear()  # the other branch goes, with its names
    namer = Namer(model)
    for value in (*stored, *(v for one in inner for v in one.outputs)):
        value.name = namer.fresh(value.name) if value.name else value.name
    for one in inner:
        one.name = namer.fresh(label(one))
    for value in stored:
        model.graph.register_initializer(value)
    model.graph.insert_before(node, inner)
    for old, new in zip(node.outputs, outputs, strict=True):
        hand_over(old, new, namer)
    model.graph.remove(node, safe=True)


def write_shapes(model: ir.Model, walked: StaticWalk) -> None:
    """Types and shapes of the values of the main graph as ``walked`` found them; bodies know none any more."""
    for node in model.graph:
        for value in node.outputs:
            sizes, dtype = walked.shape(value), walked.dtype(value)
            if dtype is not None:
                value.type = ir.TensorType(dtype)
            value.shape = None if sizes is None else ir.Shape(sizes)
        for body in bodies_of(node):
            for inner in body.all_nodes():
                for value in inner.outputs:
                    value.shape = None


def refuse_dynamic(model: ir.Model, walked: StaticWalk) -> None:
    """Refuse the first node of the main graph whose shape is not static, or that makes a shape.

    Raises:
        UnsupportedError: names the node and what makes it dynamic.
    """
    for node in walked.nodes:
        if node.graph is not model.graph:
            continue
        shapeless = any(value.name and walked.shape(value) is None for value in node.outputs)
        if shapeless or is_standard(node, *MAKERS):
            reason, hint = _why_dynamic(model, node, walked)
            raise UnsupportedError(f"{node.op_type} stays dynamic: {reason}", where=node.name, hint=hint)


def _why_dynamic(model: ir.Model, node: ir.Node, walked: StaticWalk) -> tuple[str, str]:
    """In words why nothing static is known of ``node``, and what to do."""
    if node.op_identifier() in model.functions:
        return "it calls a local function", "run inline-functions first"
    if any(v is not None and walked.shape(v) is None for v in node.inputs):
        return "an input of it has no static shape", "look at it with inspect"
    if all(value is None or is_constant(value) for value in node.inputs):
        return (
            f"its result is no constant that can be computed here, or has over {LARGEST_RESULT} elements",
            "fold it before",
        )
    roots = _inputs_behind(model, [v for v in values_read(node) if not is_constant(v)])
    if is_standard(node, *MAKERS) or is_standard(
        node, "Compress", "Unique", "Loop", "If", "Scan", "Resize", "Reshape", "Expand"
    ):
        return (
            f"its shape follows from what {' and '.join(roots) or 'its inputs'} holds",
            "export experts that run over all tokens"
            if is_standard(node, "NonZero", "Compress", "Unique")
            else "export it with static shapes",
        )
    if node.domain in ("", "ai.onnx"):
        sizes = [str(list(walked.shape(value) or [])).replace(" ", "") for value in node.inputs if value is not None]
        return (
            f"inputs of {' and '.join(sizes)} do not fit",
            "an input of the model has other sizes than its role tells",
        )
    return f"no shape function is known for {node.domain}::{node.op_type}", "decompose or inline it first"


def _inputs_behind(model: ir.Model, values: list[ir.Value]) -> list[str]:
    """Names of the graph inputs that ``values`` are computed from."""
    seen, stack = set(values), list(values)
    while stack:
        producer = stack.pop().producer()
        for value in values_read(producer) if producer is not None else ():
            if value not in seen:
                seen.add(value)
                stack.append(value)
    return [value.name or "" for value in model.graph.inputs if value in seen]
