"""What the passes that recognise an operator in its pieces do with it: one node, or a marked group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.clean.convert_opset import ConvertOpset
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.encode.edit.whole_groups import mark_group
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.annotate import PART
from qdq_passes.graph.edit import Namer, drop_unread, graph_of, make_node, new_constant, remove, replace_nodes
from qdq_passes.graph.operators.arithmetic import (
    LOOSE,
    Product,
    Sum,
    agree,
    behind,
    expand,
    outcomes,
    passes_on,
    product,
)
from qdq_passes.graph.uses import (
    FLOAT_TYPES,
    UNKNOWN_TYPE,
    dtype_of,
    graph_likes,
    integer_of,
    is_constant,
    is_standard,
    label,
    main_nodes,
    nodes_between,
    shape_readers,
    why_not_closed,
)

#: Operator → last opset at which onnxruntime runs it (1.31.1 and 1.32.0: no kernel is there behind it, and no function).
LAST_RUN = {"Swish": 24}
#: What becomes of the pieces: one operator where the opset has it and computes the same, else a group; or one of the two.
Into = Literal["auto", "operator", "group"]

#: Opset since which ONNX has the operator.
SINCE = {
    "Gelu": 20, "HardSwish": 14, "InstanceNormalization": 1, "LayerNormalization": 17, "LpNormalization": 1,
    "RMSNormalization": 23, "Swish": 24,
}  # fmt: skip

#: Relative error of a constant up to which an operator may take its place: 0.7071 for 1/√2.
CLOSE = 2.0**-16


@dataclass(frozen=True)
class Match:
    """Nodes that compute one operator together.

    Args:
        operator: the ONNX operator.
        nodes: the nodes, each after what it reads; the last one writes the output.
        x: what they compute it of.
        weight: constant that is the operator's scale.
        bias: constant that is its bias.
        operands: inputs of the operator; arrays become initializers.
        attributes: its attributes.
        differs: why the operator would compute other numbers, in words; empty when it computes the same.
    """

    operator: str
    nodes: tuple[ir.Node, ...]
    x: ir.Value
    weight: ir.Value | None = None
    bias: ir.Value | None = None
    operands: tuple[ir.Value | npt.NDArray[Any], ...] = ()
    attributes: tuple[ir.Attr, ...] = ()
    differs: str = ""


@dataclass(frozen=True)
class FusionPass(Pass):
    """A pass that recognises an operator in its pieces."""

    #: What it keeps where the operator takes their place.
    bounded: ClassVar[Keeps]
    into: Into = "auto"
    raise_opset: bool = False

    @property
    def keeps(self) -> Keeps:  # type: ignore[override]
        """Bit-exact when nothing is replaced; with another opset what `convert-opset` keeps."""
        if self.raise_opset:
            return ConvertOpset.keeps
        return EXACT if self.into == "group" else self.bounded


#: Tells of a root node what it is part of: a match, in words why it is not quite one, or None where nothing is like it.
Finder = Callable[[ir.Node], Match | str | None]


def fuse(
    model: ir.Model, roots: Collection[str], find: Finder, into: Into, *, raise_opset: bool = False
) -> Iterator[Change]:
    """Make of each match one operator or one group; bodies and local functions have operators only.

    Args:
        model: the model.
        roots: operator types that ``find`` is asked about; a model without them costs one look at each node.
        find: recognises an operator from a root node.
        into: what becomes of it.
        raise_opset: convert the model first where a match lacks nothing but the opset of its operator.
    """
    if raise_opset and into != "group":
        yield from raised(model, roots, find, into)
    namer: Namer | None = None
    for part in graph_likes(model):
        for node in [node for node in part.all_nodes() if node.op_type in roots]:
            if node.graph is None or PART.get(node) is not None:
                continue
            found = find(node)
            if isinstance(found, str):
                yield skip(node, found)
                continue
            if found is None or any(PART.get(n) is not None for n in found.nodes):
                continue
            reason = _why_no_operator(found, part.opset_imports.get("", 1), into) if into != "group" else None
            if reason == "":
                namer = namer or Namer(model)
                yield from _replace(found, namer)
            elif into == "operator" or node.graph is not model.graph:
                yield skip(found.nodes[-1], reason or "is in a body, where no groups are marked")
            else:
                because = f"{len(found.nodes)} nodes compute {found.operator} together" + (
                    f"; {reason}" if reason else ""
                )
                yield Change("annotate", mark_group(found.nodes, found.operator, found.weight, found.bias), because)


def raised(model: ir.Model, roots: Collection[str], find: Finder, into: Into) -> Iterator[Change]:
    """Convert ``model`` to the oldest opset that has the operators of all matches that lack nothing else."""
    found = (find(node) for node in main_nodes(model) if node.op_type in roots and PART.get(node) is None)
    wanted = [(m.nodes[-1], SINCE[m.operator]) for m in found if isinstance(m, Match) and not why_not_as_it_is(m)]
    opset = model.opset_imports.get("", 1)
    version = max((since for _, since in wanted), default=opset)
    if version <= opset:
        return
    try:
        yield from ConvertOpset(version=version).run(model)
    except UnsupportedError as error:
        if into == "operator":
            raise
        yield skip(wanted[0][0], f"stays in pieces: {error.message}")


def _why_no_operator(match: Match, opset: int, into: Into) -> str:
    """Why one operator cannot take the nodes' place, in words; empty when it can."""
    since, last = SINCE[match.operator], LAST_RUN.get(match.operator, opset)
    if opset < since:
        return f"{match.operator} needs opset {since}, the model has {opset}"
    if opset > last and into == "auto":
        return f"onnxruntime runs no {match.operator} of an opset above {last}, the model has {opset}"
    return why_not_as_it_is(match)


def why_not_as_it_is(match: Match) -> str:
    """Why the operator cannot take the nodes' place whatever the opset, in words; empty when it can."""
    return match.differs or _why_not_removable(match)


def _why_not_removable(match: Match) -> str:
    """Why one operator cannot take the nodes' place although it computes the same, in words; empty when it can."""
    for node in shape_readers(match.nodes, match.nodes[-1].outputs[0]):
        return f"{label(node)} reads the shape of a value inside"
    rank = 1 if match.x.shape is None else match.x.shape.rank()
    for value in (v for node in match.nodes for v in node.inputs if v is not None and is_constant(v)):
        if value.shape is not None and value.shape.rank() > rank and dtype_of(value) in FLOAT_TYPES:
            return f"{value.name} has more axes than {match.x.name}"
    return ""


def _replace(match: Match, namer: Namer) -> Iterator[Change]:
    last, read = match.nodes[-1], [v for node in match.nodes for v in node.inputs]
    owner, base = graph_of(last), last.outputs[0].name or last.name or match.operator
    suffixes = ("input", "weight", "bias")
    operands = [
        new_constant(owner, namer, f"{base}_{suffixes[i]}", operand, match.nodes) if isinstance(operand, np.ndarray) else operand
        for i, operand in enumerate(match.operands or (match.x,))
    ]  # fmt: skip
    name = namer.fresh(f"{last.name}_{match.operator}")
    new = make_node(
        match.operator, operands, name=name, output=namer.fresh(f"{name}_Output"), like=last.outputs[0],
        attributes=match.attributes, stands_for=match.nodes,
    )  # fmt: skip
    yield replace_nodes(match.nodes, [new], namer, f"{len(match.nodes)} nodes compute {match.operator} together")
    yield from drop_unread(read)
    shapes = {node for v in read if v is not None and (node := v.producer()) is not None and is_standard(node, "Shape")}
    yield from remove(
        [node for node in shapes if node.graph is not None and not node.outputs[0].uses()], "is no longer read"
    )


def closed_group(candidates: Iterable[tuple[ir.Value, list[ir.Node]]]) -> tuple[ir.Value, list[ir.Node]] | str | None:
    """The first of ``candidates`` (input, nodes) into which nobody looks; before all others one that keeps its input's type.

    Returns:
        The candidate; why the first one is none where all are looked into; None where there are none.
    """
    reason, other = None, None
    for x, nodes in candidates:
        output = nodes[-1].outputs[0]
        why = why_not_closed(nodes, output)
        if why is not None:
            reason = reason or why
            continue
        types = types_of(nodes, x)
        if types[output] == types[x]:
            return x, nodes
        other = other or (x, nodes)
    return other or reason


def types_of(nodes: Sequence[ir.Node], x: ir.Value) -> dict[ir.Value, ir.DataType | None]:
    """Element types of ``x`` and of what ``nodes`` make of it; None where unknown."""
    types = {x: dtype_of(x)}
    for node in nodes:
        given = [types[v] for v in node.inputs if v in types]
        cast = is_standard(node, "Cast") and passes_on(node)
        written = ir.DataType(integer_of(node, "to", 0)) if cast else given[0] if given else None
        types |= dict.fromkeys(node.outputs, written or node.outputs[0].dtype)
    return types


def why_not_float32(nodes: Sequence[ir.Node], x: ir.Value) -> str:
    """Why an operator on float32 is not what ``nodes`` compute, in words; empty when it is."""
    types = types_of(nodes, x)
    if types[x] is None:
        return UNKNOWN_TYPE
    others = [t for t in dict.fromkeys(types.values()) if t != ir.DataType.FLOAT]
    return f"it computes in {others[0].name.lower() if others[0] is not None else 'an unknown type'}" if others else ""


BOUNDED = Keeps(
    "bounded",
    bound=2.0**-12,
    why="on tensors whose max|y| is 2^-2 or more; constants off by 2^-16 move y by less than 3·2^-16·max(1, |y|), most "
    "where x = −3 in HardSwish; three or four roundings of 2^-24·|x| by less",
)


def no_attributes(_: Sum) -> tuple[ir.Attr, ...]:
    """Of an operator without attributes."""
    return ()


def gate_match(
    operator: str,
    gate: ir.Value,
    argument: ir.Value,
    is_argument: Callable[[Sum, float], bool],
    results: Sequence[Sum],
    attributes: Callable[[Sum], tuple[ir.Attr, ...]] = no_attributes,
) -> Match | str | None:
    """The match of ``operator``, x times a function of x; in words why its nodes are not free; None where it is something else.

    Args:
        operator: the ONNX operator.
        gate: value of the function, g.
        argument: what the function is taken of.
        is_argument: whether a sum in x is the function's argument, within a relative tolerance of the constants.
        results: what the result may be as a sum in x and g.
        attributes: of the operator, from the argument as a sum in x.
    """
    reason = None
    for x in behind(argument):
        inside = expand(argument, _names(x))
        if inside is None or not is_argument(inside, LOOSE):
            continue
        found = {v: total for v, total in outcomes(gate, _names(x, gate)) if any(agree(total, r) for r in results)}
        groups = [nodes for v in reversed(found) if (nodes := nodes_between([x], v)) is not None]
        group = closed_group((x, nodes) for nodes in groups)
        if group is None or isinstance(group, str):
            reason = reason or group
            continue
        nodes, total = group[1], found[group[1][-1].outputs[0]]
        is_close = is_argument(inside, CLOSE) and any(agree(total, r, CLOSE) for r in results)
        differs = why_not_float32(nodes, x) or ("" if is_close else "its constants are rounded to fewer digits")
        return Match(operator, tuple(nodes), x, attributes=attributes(inside), differs=differs)
    return reason


def _names(x: ir.Value, gate: ir.Value | None = None) -> Callable[[ir.Value], Product | None]:
    """Leaves x and g."""
    names = {x: product(x=1)} | ({gate: product(g=1)} if gate is not None else {})
    return names.get
