"""Conditions of target files: a small part of Python's expressions, checked when a file is read and evaluated without `eval`.

    op == "Conv" and any(d > 1 for d in attr.dilations) and x.dtype in ["uint16", "int16"]

There are comparisons, ``in``, ``is None``, and/or/not, + - * / // %, indices and slices, conditional expressions, lists, one-line
comprehensions and `FUNCTIONS`. Names are those of a `Vocabulary`; any other is an error that gives the nearest.

What is unknown is None: no order holds of it, computing with it gives None, and None counts as false. An index that is not there
gives None as well. Work is bounded: see `qdqtool.targets.evaluation`."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, UsageError

from qdqtool.targets.evaluation import ARITHMETIC, BITS, FUNCTIONS, OF_SEVERAL, STEPS, Evaluation, elements

#: Characters of an expression, and how deep its parts may stand in each other.
LENGTH, DEPTH = 10_000, 60

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
        where: file, table and rule that it stands in, for messages.
    """

    text: str
    tree: ast.expr
    where: str = ""

    @classmethod
    def parse(cls, text: str, vocabulary: Vocabulary, where: str = "") -> Expression:
        """An expression over ``vocabulary``.

        Raises:
            UsageError: it is no expression, or holds a name or a construct that is none of ours.
        """
        if len(text) > LENGTH:
            raise UsageError(f"{_short(text)} has more than {LENGTH:,} characters", hint="make several rules of it")
        try:
            tree = ast.parse(f"(\n{text}\n)", mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UsageError(f"{_short(text)} is no expression: {getattr(error, 'msg', error)}") from error
        if _depth(tree) > DEPTH:
            raise UsageError(f"{_short(text)} is nested deeper than {DEPTH} levels", hint="make several rules of it")
        _Check(text, vocabulary).check(tree, frozenset())
        return cls(text, tree, where)

    def __call__(self, facts: object) -> Any:
        """Its value, where names are attributes of ``facts``.

        Raises:
            ModelError: values of types that do not go together are compared or computed with, or it takes too many steps.
        """
        try:
            return Evaluation(facts).value(self.tree)
        except (TypeError, ValueError) as error:
            hint = "compare values of one type" if isinstance(error, TypeError) else "make several rules of it"
            raise ModelError(f"{_short(self.text)}: {error}", where=self.where or None, hint=hint) from error

    def word(self, facts: object) -> str:
        """Its value as text.

        Raises:
            ModelError: as when it is called; or it is no value that has one.
        """
        found = self(facts)
        try:
            if elements(found, STEPS) > STEPS:
                raise ValueError(f"a text of more than {STEPS:,} elements")
            return _word(found)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{_short(self.text)}: {error}", where=self.where or None) from error


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
    def parse(cls, text: str, vocabulary: Vocabulary, where: str = "") -> Template:
        """A template over ``vocabulary``.

        Raises:
            UsageError: as `Expression.parse`.
        """
        pieces = _BRACES.split(text)
        parts = [Expression.parse(p, vocabulary, where) if i % 2 else p for i, p in enumerate(pieces)]
        return cls(text, tuple(part for part in parts if part != ""))

    def __call__(self, facts: object) -> str:
        """The text; a shape is written 1×3×8×8, what is unknown as a question mark."""
        return "".join(part if isinstance(part, str) else part.word(facts) for part in self.parts)


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
                if not args or (len(args) > 1 and name not in OF_SEVERAL):
                    raise UsageError(f"{_short(self.text)}: {name} takes one argument, not {len(args)}")
                self._all(args, local)
                return
            case ast.GeneratorExp(elt=element, generators=[loop]) | ast.ListComp(elt=element, generators=[loop]):
                if loop.is_async:
                    raise self._foreign(node)
                self.check(loop.iter, local)
                inner = local | self._targets(loop.target)
                self._all([*loop.ifs, element], inner)
                return
            case ast.Constant(value=int(value)) if value.bit_length() > BITS:
                raise UsageError(f"{_short(self.text)}: an integer of more than {BITS} bits")
            case ast.Constant(value=bool() | int() | float() | str() | None):
                return
            case ast.Subscript(value=owner, slice=ast.Slice() as ends):
                self._all([owner, *ast.iter_child_nodes(ends)], local)
                return
            case ast.Compare(ops=ops, comparators=others):
                for op, other in zip(ops, others, strict=True):
                    is_none = isinstance(other, ast.Constant) and other.value is None
                    if isinstance(op, ast.Is | ast.IsNot) and not is_none:
                        raise self._foreign(node)
            case ast.BoolOp() | ast.IfExp() | ast.List() | ast.Tuple() | ast.Subscript():
                pass
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                pass
            case ast.BinOp(op=op) if type(op) in ARITHMETIC:
                pass
            case ast.operator() | ast.boolop() | ast.unaryop() | ast.cmpop() | ast.expr_context():
                return
            case _:
                raise self._foreign(node)
        self._all(ast.iter_child_nodes(node), local)

    def _all(self, nodes: Iterable[ast.AST], local: frozenset[str]) -> None:
        for node in nodes:
            self.check(node, local)

    def _targets(self, target: ast.expr) -> frozenset[str]:
        """Variables that a loop binds."""
        match target:
            case ast.Name(id=name):
                return frozenset({name})
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return frozenset[str]().union(*map(self._targets, parts))
        raise self._foreign(target)

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
        return UsageError(
            f"{_short(self.text)}: {shown if len(shown) <= 60 else f'{shown[:60]}…'} is not possible here",
            hint="see `qdqtool.targets.expression`",
        )


def _depth(tree: ast.AST) -> int:
    """How many nodes stand in each other; counted without a call in a call."""
    depth, level = 0, [tree]
    while level:
        depth, level = depth + 1, [below for node in level for below in ast.iter_child_nodes(node)]
    return depth


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "×".join(map(_word, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, str | int | None):
        raise TypeError("it is neither text nor a number, nor a list of them")
    return "?" if value is None else str(value)


def _short(text: str) -> str:
    words = " ".join(text.split())
    return repr(words if len(words) <= 60 else f"{words[:60]}…")
