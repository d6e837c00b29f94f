"""Conditions of target files: a small part of Python's expressions, checked when a file is read and evaluated without `eval`.

    op == "Conv" and any(d > 1 for d in attr.dilations) and x.dtype in ["uint16", "int16"]

There are comparisons, ``in``, ``is None``, and/or/not, + - * / // %, indices and slices, conditional expressions, lists, one-line
comprehensions and `FUNCTIONS`. Names are those of a `Vocabulary`; any other is an error that gives the nearest.

What is unknown is None: no order holds of it, computing with it gives None, and None counts as false. An index that is not there
gives None as well."""

from __future__ import annotations

import ast
import difflib
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qdq_passes.errors import ModelError, UsageError

#: What an expression may call; of an argument that is None they give None, any and all False.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs, "all": all, "any": any, "enumerate": lambda items: list(enumerate(items)), "len": len,
    "max": lambda *a: max(_items(a), default=None), "min": lambda *a: min(_items(a), default=None), "prod": math.prod,
    "set": set, "sorted": sorted, "sum": sum, "zip": lambda *a: list(zip(*a, strict=False)),
}  # fmt: skip

_ORDERS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip

_BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What an expression may name.

    Args:
        names: name → the attributes it has.
        elements: attributes of what a list holds.
    """

    names: Mapping[str, Collection[str]]
    elements: Collection[str]


@dataclass(frozen=True)
class Expression:
    """A parsed condition.

    Args:
        text: as it was written.
        tree: its syntax tree, whose names are known.
    """

    text: str
    tree: ast.expr

    @classmethod
    def parse(cls, text: str, vocabulary: Vocabulary) -> Expression:
        """An expression over ``vocabulary``.

        Raises:
            UsageError: it is no expression, or holds a name or a construct that is none of ours.
        """
        try:
            tree = ast.parse(f"(\n{text}\n)", mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UsageError(f"{_short(text)} is no expression: {getattr(error, 'msg', error)}") from error
        _Check(text, vocabulary).check(tree, frozenset())
        return cls(text, tree)

    def __call__(self, facts: object) -> Any:
        """Its value, where names are attributes of ``facts``.

        Raises:
            ModelError: values of types that do not go together are compared or computed with.
        """
        try:
            return _value(self.tree, facts, {})
        except (TypeError, ValueError) as error:
            raise ModelError(f"{_short(self.text)}: {error}", hint="compare values of one type") from error


@dataclass(frozen=True)
class Template:
    """Text with expressions in braces: ``"{op} reads {x.dtype}"``.

    Args:
        text: as it was written.
        parts: texts and expressions in turn.
    """

    text: str
    parts: tuple[str | Expression, ...]

    @classmethod
    def parse(cls, text: str, vocabulary: Vocabulary) -> Template:
        """A template over ``vocabulary``.

        Raises:
            UsageError: as `Expression.parse`.
        """
        pieces = _BRACES.split(text)
        parts = [Expression.parse(p, vocabulary) if i % 2 else p for i, p in enumerate(pieces)]
        return cls(text, tuple(part for part in parts if part != ""))

    def __call__(self, facts: object) -> str:
        """The text; a shape is written 1×3×8×8, what is unknown as a question mark."""
        return "".join(part if isinstance(part, str) else _word(part(facts)) for part in self.parts)


@dataclass(frozen=True)
class _Check:
    """Looks through a syntax tree for what is not ours."""

    text: str
    vocabulary: Vocabulary

    def check(self, node: ast.AST, local: frozenset[str]) -> None:
        """Of ``node`` and all below; ``local`` are variables of the comprehensions around."""
        match node:
            case ast.Name(id=name):
                if name not in local and name not in self.vocabulary.names and name not in ("True", "False", "None"):
                    raise self._unknown("name", name, [*self.vocabulary.names, *local])
                return
            case ast.Attribute(value=value, attr=name):
                self.check(value, local)
                of_name = isinstance(value, ast.Name) and value.id not in local
                known = self.vocabulary.names[value.id] if of_name else self.vocabulary.elements  # type: ignore[attr-defined]
                if name not in known:
                    raise self._unknown("attribute", ast.unparse(node), [f"{ast.unparse(value)}.{k}" for k in known])
                return
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                if name not in FUNCTIONS:
                    raise self._unknown("function", name, list(FUNCTIONS))
                self._all(args, local)
                return
            case ast.GeneratorExp(elt=element, generators=[loop]) | ast.ListComp(elt=element, generators=[loop]):
                if loop.is_async:
                    raise self._foreign(node)
                self.check(loop.iter, local)
                inner = local | _targets(loop.target)
                self._all([*loop.ifs, element], inner)
                return
            case ast.Constant(value=bool() | int() | float() | str() | None):
                return
            case ast.Compare(ops=ops) if any(isinstance(op, ast.Is | ast.IsNot) for op in ops):
                if not (isinstance(node.comparators[0], ast.Constant) and node.comparators[0].value is None):
                    raise self._foreign(node)
            case ast.BoolOp() | ast.IfExp() | ast.List() | ast.Tuple() | ast.Subscript() | ast.Slice() | ast.Compare():
                pass
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                pass
            case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
                pass
            case ast.operator() | ast.boolop() | ast.unaryop() | ast.cmpop() | ast.expr_context():
                return
            case _:
                raise self._foreign(node)
        self._all(ast.iter_child_nodes(node), local)

    def _all(self, nodes: Iterable[ast.AST], local: frozenset[str]) -> None:
        for node in nodes:
            self.check(node, local)

    def _unknown(self, what: str, name: str, known: list[str]) -> UsageError:
        if not known:
            return UsageError(
                f"{_short(self.text)}: unknown {what} {name!r}", hint=f"{name.partition('.')[0]} has no attributes"
            )
        near = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(known))}"
        return UsageError(f"{_short(self.text)}: unknown {what} {name!r}", hint=hint)

    def _foreign(self, node: ast.AST) -> UsageError:
        shown = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
        return UsageError(f"{_short(self.text)}: {shown} is not possible here", hint="see `qdqtool.targets.expression`")


def _targets(target: ast.expr) -> frozenset[str]:
    """Variables that a loop binds."""
    return frozenset(node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _value(node: ast.expr, facts: object, local: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return local[name] if name in local else getattr(facts, name)
        case ast.Attribute(value=owner, attr=name):
            found = _value(owner, facts, local)
            return None if found is None else getattr(found, name)
        case ast.BoolOp(op=op, values=values):
            return _joined(isinstance(op, ast.And), values, facts, local)
        case ast.UnaryOp(op=op, operand=operand):
            found = _value(operand, facts, local)
            return not found if isinstance(op, ast.Not) else None if found is None else -found
        case ast.BinOp(left=left, op=op, right=right):
            return _computed(op, _value(left, facts, local), _value(right, facts, local))
        case ast.Compare(left=left, ops=ops, comparators=others):
            values = [_value(n, facts, local) for n in (left, *others)]
            return all(_compared(op, a, b) for op, a, b in zip(ops, values, values[1:], strict=False))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, facts, local) else orelse, facts, local)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value(n, facts, local) for n in elements]
        case ast.Subscript(value=owner, slice=index):
            return _indexed(_value(owner, facts, local), index, facts, local)
        case ast.Call(func=ast.Name(id=name), args=args):
            given = [_value(n, facts, local) for n in args]
            if any(argument is None for argument in given):
                return False if name in ("any", "all") else None
            return FUNCTIONS[name](*given)
        case ast.GeneratorExp(elt=element, generators=[loop]) | ast.ListComp(elt=element, generators=[loop]):
            return _comprehended(element, loop, facts, local)
    raise AssertionError(f"{ast.dump(node)} was not checked")


def _joined(is_and: bool, nodes: list[ast.expr], facts: object, local: Mapping[str, Any]) -> Any:
    found = None
    for node in nodes:
        found = _value(node, facts, local)
        if bool(found) != is_and:
            break
    return found


def _comprehended(
    element: ast.expr, loop: ast.comprehension, facts: object, local: Mapping[str, Any]
) -> list[Any] | None:
    items = _value(loop.iter, facts, local)
    if items is None:
        return None
    found = []
    for item in items:
        names = _bound(loop.target, item)
        inner = {**local, **names}
        if all(_value(test, facts, inner) for test in loop.ifs):
            found.append(_value(element, facts, inner))
    return found


def _bound(target: ast.expr, item: Any) -> dict[str, Any]:
    """The variables of a loop's ``target`` for one item."""
    if isinstance(target, ast.Name):
        return {target.id: item}
    assert isinstance(target, ast.Tuple | ast.List)
    return {
        name: value for one, part in zip(target.elts, item, strict=True) for name, value in _bound(one, part).items()
    }


def _indexed(owner: Any, index: ast.expr, facts: object, local: Mapping[str, Any]) -> Any:
    if owner is None:
        return None
    if isinstance(index, ast.Slice):
        ends = [None if n is None else _value(n, facts, local) for n in (index.lower, index.upper, index.step)]
        return owner[slice(*ends)]
    place = _value(index, facts, local)
    if place is None or not -len(owner) <= place < len(owner):
        return None
    return owner[place]


def _compared(op: ast.cmpop, a: Any, b: Any) -> bool:
    if isinstance(op, ast.Eq | ast.NotEq):
        return bool(_plain(a) == _plain(b)) != isinstance(op, ast.NotEq)
    if isinstance(op, ast.Is | ast.IsNot):
        return (a is None) != isinstance(op, ast.IsNot)
    if isinstance(op, ast.In | ast.NotIn):
        return bool(b is not None and a in b) != isinstance(op, ast.NotIn)
    return a is not None and b is not None and bool(_ORDERS[type(op)](a, b))


def _computed(op: ast.operator, a: Any, b: Any) -> Any:
    if a is None or b is None or (b == 0 and isinstance(op, ast.Div | ast.FloorDiv | ast.Mod)):
        return None
    if not (isinstance(a, int | float) and isinstance(b, int | float)):
        raise TypeError(f"{a!r} and {b!r} are no numbers")
    return _ARITHMETIC[type(op)](a, b)


def _items(given: tuple[Any, ...]) -> list[Any]:
    """Arguments of min and max: one list, or several values; what is unknown is left out."""
    items = given[0] if len(given) == 1 else given
    return [item for item in items if item is not None]


def _plain(value: Any) -> Any:
    """A list for a tuple: both are written [1, 2]."""
    return list(value) if isinstance(value, tuple) else value


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "×".join(map(_word, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return "?" if value is None else str(value)


def _short(text: str) -> str:
    words = " ".join(text.split())
    return repr(words if len(words) <= 60 else f"{words[:60]}…")
