"""Elementwise arithmetic read as one sum of products, in whatever order and grouping an exporter wrote it.

``x · 0.5 · (1 + e)``, ``(x + x · e) / 2`` and ``0.5x + x · (e / 2)`` are all ``{x: 0.5, e·x: 0.5}``. Where to stop is the
caller's choice: leaves are named values such as x and e."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from qdq_passes.graph.uses import FLOAT_TYPES, constant_array, dtype_of, integer_of, is_constant, is_standard

#: Factors of a product: (name, exponent), sorted by name, none with exponent 0; () is the number 1.
Product = tuple[tuple[str, int], ...]
#: Products and their coefficients.
Sum = Mapping[Product, float]
#: The product that a value stands for, where expansion stops; None where it goes on.
Leaves = Callable[[ir.Value], Product | None]

ONE: Product = ()
#: Operators that are expanded. Cast between float types and Identity are no arithmetic, and let everything through.
ARITHMETIC = ("Add", "Cast", "Div", "Identity", "Mul", "Neg", "Pow", "Reciprocal", "Sub")
#: Products in a sum, nodes in a row and values behind one another that are looked at; what is longer is nothing we know.
MOST_PRODUCTS, DEEPEST, FARTHEST = 12, 14, 24
#: Relative error of a constant that still counts as the one that is meant: exporters write √2 as float32, as float16
#: (half a unit in the last place, 2^-11) or with four digits (0.7071 is off by 2^-16, 0.1667 by 2^-12).
LOOSE = 2.0**-10


def product(**exponents: int) -> Product:
    """``product(x=1, s=-1)`` is x/s."""
    return tuple(sorted((name, exponent) for name, exponent in exponents.items() if exponent))


def expand(value: ir.Value, leaves: Leaves) -> Sum | None:
    """``value`` as a sum of products of leaves; None where something else is in it.

    Args:
        value: the value.
        leaves: names the values at which to stop; constants of one element are coefficients unless it names them.
    """
    return _expand(value, leaves, {}, DEEPEST)


def outcomes(start: ir.Value, leaves: Leaves) -> list[tuple[ir.Value, Sum]]:
    """What arithmetic makes of ``start`` and leaves alone, with its sum; nearest first, in the graph of ``start``'s readers."""
    found: dict[ir.Value, Sum] = {}
    seen: set[ir.Node] = set()
    level = [start]
    while level and len(seen) < FARTHEST:
        users = [user for value in level for user in value.consumers() if user not in seen]
        level = []
        for user in dict.fromkeys(users):
            seen.add(user)
            total = expand(user.outputs[0], leaves) if is_standard(user, *ARITHMETIC) else None
            if total is not None:
                found[user.outputs[0]] = total
                level.append(user.outputs[0])
    return list(found.items())


def behind(value: ir.Value) -> list[ir.Value]:
    """``value`` and what arithmetic makes it of, constants apart; nearest first."""
    found, level = {value: None}, [value]
    while level and len(found) < FARTHEST:
        nodes = [node for v in level if (node := v.producer()) is not None and is_standard(node, *ARITHMETIC)]
        values = [v for node in nodes for v in node.inputs if v is not None and not is_constant(v)]
        level = [v for v in dict.fromkeys(values) if v not in found]
        found |= dict.fromkeys(level)
    return list(found)


def agree(found: Sum | None, wanted: Sum, tolerance: float = LOOSE) -> bool:
    """Whether two sums have the same products with coefficients that differ by at most ``tolerance``, relatively."""
    if found is None:
        return False
    found = {term: c for term, c in found.items() if c != 0}
    return found.keys() == wanted.keys() and all(abs(found[t] - c) <= tolerance * abs(c) for t, c in wanted.items())


def scalar_of(value: ir.Value | None) -> float | None:
    """The one element of a constant of numbers; None where ``value`` is none, or has more."""
    if value is None or not is_constant(value) or (value.const_value is not None and value.const_value.size != 1):
        return None
    array = constant_array(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 and array.dtype.kind != "O" else None


def without_casts(value: ir.Value) -> ir.Value:
    """``value`` before the Casts between float types, and Identities, that it comes out of."""
    while (node := value.producer()) is not None and passes_on(node) and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def passes_on(node: ir.Node) -> bool:
    """Whether ``node`` is an Identity or a Cast from one float type to another."""
    if is_standard(node, "Identity"):
        return True
    if not is_standard(node, "Cast") or node.inputs[0] is None or integer_of(node, "to", 0) not in FLOAT_TYPES:
        return False
    return dtype_of(node.inputs[0]) in FLOAT_TYPES


def _expand(value: ir.Value | None, leaves: Leaves, known: dict[ir.Value, Sum | None], depth: int) -> Sum | None:
    if value is None or depth == 0:
        return None
    if value not in known:
        known[value] = None  # a graph with a cycle ends here
        leaf, number = leaves(value), None
        if leaf is None:
            number = scalar_of(value)
        if leaf is not None:
            known[value] = {leaf: 1.0}
        elif number is not None:
            known[value] = {ONE: number}
        else:
            known[value] = _computed(value, leaves, known, depth)
    return known[value]


def _computed(value: ir.Value, leaves: Leaves, known: dict[ir.Value, Sum | None], depth: int) -> Sum | None:
    node = value.producer()
    if node is None or not is_standard(node, *ARITHMETIC) or (node.op_type == "Cast" and not passes_on(node)):
        return None
    sums = [_expand(v, leaves, known, depth - 1) for v in node.inputs]
    first, second = (*sums, None)[:2]
    if first is None or (len(sums) > 1 and second is None):
        return None
    if node.op_type in ("Cast", "Identity"):
        return first
    if node.op_type == "Neg":
        return _scaled(first, -1.0)
    if node.op_type == "Reciprocal":
        return _inverse(first)
    assert second is not None
    if node.op_type == "Add":
        return _added(first, second)
    if node.op_type == "Sub":
        return _added(first, _scaled(second, -1.0))
    if node.op_type == "Mul":
        return _multiplied(first, second)
    if node.op_type == "Div":
        return _multiplied(first, _inverse(second))
    return _power(first, second)


def _scaled(total: Sum, factor: float) -> Sum:
    return {term: factor * c for term, c in total.items()}


def _added(a: Sum, b: Sum) -> Sum | None:
    total = dict(a)
    for term, c in b.items():
        total[term] = total.get(term, 0.0) + c
    return total if len(total) <= MOST_PRODUCTS else None


def _multiplied(a: Sum, b: Sum | None) -> Sum | None:
    if b is None:
        return None
    total: dict[Product, float] = {}
    for left, c in a.items():
        for right, d in b.items():
            exponents = dict(left)
            for name, exponent in right:
                exponents[name] = exponents.get(name, 0) + exponent
            term = product(**exponents)
            total[term] = total.get(term, 0.0) + c * d
    return total if len(total) <= MOST_PRODUCTS else None


def _inverse(total: Sum) -> Sum | None:
    """1/``total``; None for a sum of several products."""
    if len(total) != 1:
        return None
    ((term, c),) = total.items()
    return {tuple((name, -exponent) for name, exponent in term): 1 / c} if c else None


def _power(base: Sum, exponent: Sum) -> Sum | None:
    """``base`` to a constant whole power of 1 to 4."""
    power = exponent.get(ONE) if exponent.keys() == {ONE} else None
    if power not in (1.0, 2.0, 3.0, 4.0):
        return None
    total: Sum | None = base
    for _ in range(int(power) - 1):
        total = _multiplied(total, base) if total is not None else None
    return total
