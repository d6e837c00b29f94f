"""Activations in their pieces: x times a function of x, however the product and the function's argument are grouped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from qdq_passes.core.base import Keeps
from qdq_passes.fuse.edit.fusion import CLOSE, Match, closed_group, why_not_float32
from qdq_passes.graph.closures import nodes_between
from qdq_passes.graph.operators.arithmetic import LOOSE, Product, Sum, agree, behind, expand, outcomes, product

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
