"""The value of a condition of a target file, in a bounded number of steps: whoever wrote the file, an analysis ends.

A step is one node of the syntax tree evaluated, one variable bound, or a few elements of a list made, compared or read. An
expression has `STEPS`, and `STEPS_AN_ELEMENT` more for each element of the lists of facts that it reads, each counted once: a
look through all zero points of a weight is no attack."""

from __future__ import annotations

import ast
import operator
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

#: Steps of one evaluation; the conditions that are shipped take 100 at most. 50 ms at most.
STEPS = 50_000
STEPS_AN_ELEMENT = 12
#: Elements of lists that count as a step where Python itself goes through them.
ELEMENTS_A_STEP = 8
#: Bits of an integer at most; what is in it, a float holds.
BITS = 1000

_ORDERS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_NOT_THERE = object()
_PLAIN = (bool, int, float, str, list, tuple, set)


class Evaluation:
    """Of one expression, once.

    Args:
        facts: names are its attributes.
    """

    def __init__(self, facts: object) -> None:
        self._facts = facts
        self._left = STEPS
        self._read: set[tuple[int, str]] = set()

    def value(self, node: ast.expr, local: Mapping[str, Any] = {}) -> Any:
        """The value of ``node``; ``local`` are variables of the comprehensions around.

        Raises:
            TypeError: values of types that do not go together, or an attribute of what has none.
            ValueError: as Python; numbers beyond `BITS`; the steps are used up.
        """
        self._take(1)
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return local[name] if name in local else self._of_facts(self._facts, name)
            case ast.Attribute(value=owner, attr=name):
                found = self.value(owner, local)
                return None if found is None else self._of_facts(found, name)
            case ast.BoolOp(op=op, values=values):
                return self._joined(isinstance(op, ast.And), values, local)
            case ast.UnaryOp(op=op, operand=operand):
                found = self.value(operand, local)
                return not found if isinstance(op, ast.Not) else None if found is None else -found
            case ast.BinOp(left=left, op=op, right=right):
                return computed(ARITHMETIC[type(op)], self.value(left, local), self.value(right, local))
            case ast.Compare(left=left, ops=ops, comparators=others):
                values = [self.value(n, local) for n in (left, *others)]
                return all(self._compared(op, a, b) for op, a, b in zip(ops, values, values[1:], strict=False))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self.value(test, local) else orelse, local)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return self._made([self.value(n, local) for n in elements])
            case ast.Subscript(value=owner, slice=index):
                return self._indexed(self.value(owner, local), index, local)
            case ast.Call(func=ast.Name(id=name), args=args):
                given = [self._made(self.value(n, local)) for n in args]
                if any(argument is None for argument in given):
                    return False if name in ("any", "all") else None
                return self._made(FUNCTIONS[name](*given))
            case ast.GeneratorExp(elt=element, generators=[loop]) | ast.ListComp(elt=element, generators=[loop]):
                return self._comprehended(element, loop, local)
        raise AssertionError(f"{ast.dump(node)} was not checked")

    def _take(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise ValueError(f"it takes more than {STEPS:,} steps")

    def _made(self, value: Any) -> Any:
        """``value``, with its elements, and theirs, counted."""
        if isinstance(value, list | tuple | set | str):
            self._take(elements(value, max(self._left, 0) * ELEMENTS_A_STEP + ELEMENTS_A_STEP) // ELEMENTS_A_STEP)
        return value

    def _of_facts(self, owner: object, name: str) -> Any:
        found = _NOT_THERE if isinstance(owner, _PLAIN) else getattr(owner, name, _NOT_THERE)
        if found is _NOT_THERE:
            raise TypeError(f"{_shown(owner)} has no {name}")
        if isinstance(found, list | str) and (id(owner), name) not in self._read:
            self._read.add((id(owner), name))
            self._left += STEPS_AN_ELEMENT * len(found)
        return self._made(found)

    def _joined(self, is_and: bool, nodes: list[ast.expr], local: Mapping[str, Any]) -> Any:
        found = None
        for node in nodes:
            found = self.value(node, local)
            if bool(found) != is_and:
                break
        return found

    def _comprehended(self, element: ast.expr, loop: ast.comprehension, local: Mapping[str, Any]) -> list[Any] | None:
        items = self.value(loop.iter, local)
        if items is None:
            return None
        found = []
        for item in items:
            inner = {**local, **_bound(loop.target, item)}
            self._take(len(inner))
            if all(self.value(test, inner) for test in loop.ifs):
                found.append(self.value(element, inner))
        return found

    def _indexed(self, owner: Any, index: ast.expr, local: Mapping[str, Any]) -> Any:
        if owner is None:
            return None
        if isinstance(index, ast.Slice):
            ends = [None if n is None else self.value(n, local) for n in (index.lower, index.upper, index.step)]
            return self._made(owner[slice(*ends)])
        place = self.value(index, local)
        if place is None or not -len(owner) <= place < len(owner):
            return None
        return owner[place]

    def _compared(self, op: ast.cmpop, a: Any, b: Any) -> bool:
        self._made(a), self._made(b)
        if isinstance(op, ast.Eq | ast.NotEq):
            return bool(_plain(a) == _plain(b)) != isinstance(op, ast.NotEq)
        if isinstance(op, ast.Is | ast.IsNot):
            return (a is None) != isinstance(op, ast.IsNot)
        if isinstance(op, ast.In | ast.NotIn):
            return bool(b is not None and a in b) != isinstance(op, ast.NotIn)
        return a is not None and b is not None and bool(_ORDERS[type(op)](a, b))


def computed(operation: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """``operation`` on two numbers; None where one is, and of a division by 0.

    Raises:
        TypeError: one is no number.
        ValueError: the result is beyond `BITS`.
    """
    if a is None or b is None:
        return None
    if not (isinstance(a, int | float) and isinstance(b, int | float)):
        raise TypeError(f"{_shown(a)} and {_shown(b)} are no numbers")
    if b == 0 and operation in (operator.truediv, operator.floordiv, operator.mod):
        return None
    found = operation(a, b)
    if isinstance(found, int) and found.bit_length() > BITS:
        raise ValueError(f"an integer of more than {BITS} bits")
    return found


def elements(value: Any, most: int) -> int:
    """How many elements it has, those of its elements counted; no further than ``most``."""
    if isinstance(value, str):
        return len(value)
    count, left = 0, [value]
    while left and count <= most:
        one = left.pop()
        if isinstance(one, list | tuple | set):
            count += len(one)
            if count <= most:
                left.extend(one)
    return count


def _shown(value: Any) -> str:
    text = reprlib.repr(value) if isinstance(value, _PLAIN) or value is None else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}…"


def _bound(target: ast.expr, item: Any) -> dict[str, Any]:
    """The variables of a loop's ``target`` for one item."""
    if isinstance(target, ast.Name):
        return {target.id: item}
    assert isinstance(target, ast.Tuple | ast.List)
    return {
        name: value for one, part in zip(target.elts, item, strict=True) for name, value in _bound(one, part).items()
    }


def _over(operation: Callable[[Any, Any], Any], start: int) -> Callable[[Any], Any]:
    def function(items: Any) -> Any:
        found: Any = start
        for item in items:
            if item is None:
                raise TypeError("one of the numbers is not known")
            found = computed(operation, found, item)
        return found

    return function


def _items(given: tuple[Any, ...]) -> list[Any]:
    """Arguments of min and max: one list, or several values; what is unknown is left out."""
    items = given[0] if len(given) == 1 else given
    return [item for item in items if item is not None]


def _plain(value: Any) -> Any:
    """A list for a tuple: both are written [1, 2]."""
    return list(value) if isinstance(value, tuple) else value


#: What an expression may call; of an argument that is None they give None, any and all False.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs, "all": all, "any": any, "enumerate": lambda items: list(enumerate(items)), "len": len,
    "max": lambda *a: max(_items(a), default=None), "min": lambda *a: min(_items(a), default=None),
    "prod": _over(operator.mul, 1), "set": set, "sorted": sorted, "sum": _over(operator.add, 0),
    "zip": lambda *a: list(zip(*a, strict=False)),
}  # fmt: skip
#: Those of one argument and more; the others take one.
OF_SEVERAL = ("max", "min", "zip")
