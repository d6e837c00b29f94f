"""Arithmetic of symbolic dimensions, in a grammar of its own: integers below 2^63, names, ``+ - * // %`` and brackets.

A text outside the grammar, or beyond its bounds, is a name like any other: no part of it is computed. A minus between names needs
spaces: ``batch-size`` is a name. Sizes are at least 0 and whole, so that ⌊a + b/2⌋ = a + ⌊b/2⌋. Results are
written as sympy writes them, which exporters use: ``floor(length/2)``, ``Mod(length, 8)`` and ``N**2`` are read, too."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

#: Characters, operators and nested brackets of a text; terms of a sum; the largest power.
LENGTH, OPERATORS, DEPTH, TERMS, POWER = 256, 32, 16, 24, 8
#: Integers are smaller: onnx stores sizes in 64 bits.
END = 1 << 63

_TOKEN = re.compile(r"(\s*)([0-9]+|[^\W\d][\w.:]*(?:-\w[\w.:]*)*|//|\*\*|[-+*/%(),])\s*")
_OPERATORS = ("+", "-", "*", "/", "//", "%", "**")
#: Names and their powers in order: ``batch*length**2`` is (("batch", 1), ("length", 2)).
_Product = tuple[tuple[str, int], ...]
#: A sum: the factor of each product.
_Sum = dict[_Product, Fraction]


class _Opaque(Exception):
    """The text is none of the grammar, or beyond its bounds."""


def sum_of(text: str) -> int | str:
    """The shortest form of ``text``: a number where the names cancel; ``text`` itself where it is a name.

    >>> sum_of("2*(N + 4) - N"), sum_of("3*4"), sum_of("9**9"), sum_of("batch-size")
    ('N + 8', 12, '9**9', 'batch-size')
    """
    if text.isidentifier():
        return text
    try:
        return _written(_read(text))
    except _Opaque:
        return text


def combined(a: int | str, operator: str, b: int | str) -> int | str | None:
    """The sum, product or quotient (``+``, ``*``, ``//``) of two sizes; None where the grammar has none.

    >>> combined("N", "*", 4), combined("4*N", "//", 4), combined("N", "//", 2), combined("9**9", "*", 2)
    ('4*N', 'N', 'floor(N/2)', None)
    """
    given = [_term(size) for size in (a, b)]
    try:
        found = _apply(operator, *given)
        if any(found == term and isinstance(size, str) for size, term in zip((a, b), given, strict=True)):
            return sum_of(str(a if found == given[0] else b))
        return None if any(_is_opaque(name) for product in found for name, _ in product) else _written(found)
    except _Opaque:
        return None


def substitute_dim(text: str, new: Mapping[str, int | str]) -> int | str:
    """A symbolic dimension with names replaced; a number when nothing symbolic is left.

    >>> substitute_dim("past + length", {"past": 4}), substitute_dim("past + length", {"past": 4, "length": 8})
    ('4 + length', 12)
    """
    if text in new:
        return new[text]
    if _is_opaque(text):
        return text
    replaced = _TOKEN.sub(lambda match: match[0].replace(match[2], str(new.get(match[2], match[2]))), text)
    found = sum_of(replaced)
    return found if isinstance(found, int) and found >= 0 else replaced


def _is_opaque(text: str) -> bool:
    """Whether ``text`` is a name that is no identifier."""
    try:
        _read(text)
    except _Opaque:
        return True
    return False


def _term(size: int | str) -> _Sum:
    """``size`` as a sum; a name outside the grammar is one product."""
    try:
        return _read(str(size))
    except _Opaque:
        return {((str(size), 1),): Fraction(1)}


@lru_cache(maxsize=4096)
def _parsed(text: str) -> _Sum | None:
    """``text`` as a sum of whole products; None of a text that is none."""
    try:
        found = _Reader(text).whole()
    except _Opaque:
        return None
    return found if all(_is_whole(product, factor) for product, factor in found.items()) else None


def _read(text: str) -> _Sum:
    found = _parsed(text) if len(text) <= LENGTH else None
    if found is None:
        raise _Opaque
    return found


class _Reader:
    """A reader of one text; each method reads one level of the grammar."""

    def __init__(self, text: str) -> None:
        matches = list(_TOKEN.finditer(text))
        self._tokens = [match[2] for match in matches] + [""]
        self._at = self._depth = 0
        is_read = "".join(match[0] for match in matches) == text
        if not is_read or sum(token in _OPERATORS for token in self._tokens) > OPERATORS:
            raise _Opaque

    def whole(self) -> _Sum:
        """The sum that the text is."""
        found = self._sum()
        if self._tokens[self._at]:
            raise _Opaque
        return found

    def _next(self, *tokens: str) -> str:
        """The next token where it is one of ``tokens``, which is read; else nothing."""
        found = self._tokens[self._at]
        self._at += found in tokens
        return found if found in tokens else ""

    def _expect(self, token: str) -> None:
        if not self._next(token):
            raise _Opaque

    def _sum(self) -> _Sum:
        found = self._quotient()
        while operator := self._next("+", "-"):
            found = _apply(operator, found, self._quotient())
        return found

    def _quotient(self) -> _Sum:
        sign = 1
        while self._next("-"):
            sign = -sign
        found = _apply("*", {(): Fraction(sign)}, self._power())
        while operator := self._next("*", "/", "//", "%"):
            found = _apply(operator, found, self._power())
        return found

    def _power(self) -> _Sum:
        found = base = self._single()
        if self._next("**"):
            power = self._single()
            times = next(iter(power.values()), 0) if list(power) == [()] and list(base) != [()] else 0
            if times not in range(1, POWER + 1):
                raise _Opaque
            for _ in range(int(times) - 1):
                found = _apply("*", found, base)
        return found

    def _single(self) -> _Sum:
        token = self._tokens[self._at]
        self._at += 1
        if token[:1].isdigit():
            return _bounded({(): Fraction(token)})
        if token == "(":
            return self._inside()[0]
        if not re.match(r"\w", token):
            raise _Opaque
        if not self._next("("):
            return {((token, 1),): Fraction(1)}
        inside = self._inside()
        if token == "floor" and len(inside) == 1:
            return _floor(inside[0])
        if token == "Mod" and len(inside) == 2:
            return _apply("%", *inside)
        raise _Opaque

    def _inside(self) -> list[_Sum]:
        """What stands in the bracket that was opened, by its commas."""
        self._depth += 1
        if self._depth > DEPTH:
            raise _Opaque
        found = [self._sum()]
        while self._next(","):
            found.append(self._sum())
        self._expect(")")
        self._depth -= 1
        return found


def _apply(operator: str, a: _Sum, b: _Sum) -> _Sum:
    """``a operator b``."""
    if operator in ("+", "-"):
        found = dict(a)
        for product, factor in b.items():
            found[product] = found.get(product, Fraction()) + (factor if operator == "+" else -factor)
        return _bounded(found)
    if operator == "*":
        return _times(a, b)
    if not b:
        raise _Opaque
    found = _over(a, b)
    if operator == "/":
        return found
    if operator == "//":
        return _floor(found)
    if all(_is_whole(product, factor) for product, factor in found.items()):
        return {}
    if list(a) == list(b) == [()]:
        return _bounded({(): a[()] % b[()]})
    return _function(f"Mod({_text(a)}, {_text(b)})")


def _times(a: _Sum, b: _Sum) -> _Sum:
    if len(a) * len(b) > 4 * TERMS:
        raise _Opaque
    found: _Sum = {}
    for p, k in a.items():
        for q, factor in b.items():
            product = _product(p, q)
            found[product] = found.get(product, Fraction()) + k * factor
    return _bounded(found)


def _product(a: _Product, b: _Product) -> _Product:
    powers = dict(a)
    for name, power in b:
        powers[name] = powers.get(name, 0) + power
    return tuple(sorted(((name, power) for name, power in powers.items() if power), key=_place))


def _place(factor: tuple[str, int]) -> tuple[bool, str]:
    """The order of names in a product: functions come last."""
    return "(" in factor[0], factor[0]


def _over(a: _Sum, b: _Sum) -> _Sum:
    """a/b; a sum that does not divide ``a`` becomes a name with the power −1."""
    if len(b) > 1:
        exact = _divided(a, b)
        if exact is not None:
            return exact
        b = _function(f"({_text(b)})")
    ((product, factor),) = b.items()
    return _times(a, {tuple((name, -power) for name, power in product): 1 / factor})


def _divided(a: _Sum, b: _Sum) -> _Sum | None:
    """The sum q with q·b = a by long division; None where there is none."""
    found: _Sum = {}
    lead = _ordered({**a, **b}, b)[0]
    for _ in range(TERMS):
        if not a:
            return found
        first = _ordered({**a, **b}, a)[0]
        product = _product(first, tuple((name, -power) for name, power in lead))
        if any(power < 0 for _, power in product):
            return None
        found[product] = a[first] / b[lead]
        a = _apply("-", a, _times(b, {product: found[product]}))
    return None


def _ordered(names: _Sum, terms: _Sum) -> list[_Product]:
    """The products of ``terms`` in lexical order: the largest power of the first name of ``names`` first."""
    found = sorted({factor[0]: factor for product in names for factor in product}.values(), key=_place)
    return sorted(terms, key=lambda product: [-dict(product).get(name, 0) for name, _ in found])


def _floor(a: _Sum) -> _Sum:
    """⌊a⌋: what is whole stands outside."""
    whole = {product: factor for product, factor in a.items() if _is_whole(product, factor)}
    rest = {product: factor for product, factor in a.items() if product not in whole}
    if list(rest) == [()]:
        return _apply("+", whole, {(): Fraction(math.floor(rest[()]))})
    return _apply("+", whole, _function(f"floor({_text(rest)})")) if rest else whole


def _is_whole(product: _Product, factor: Fraction) -> bool:
    return factor.denominator == 1 and all(power > 0 for _, power in product)


def _function(text: str) -> _Sum:
    if len(text) > LENGTH:
        raise _Opaque
    return {((text, 1),): Fraction(1)}


def _bounded(a: _Sum) -> _Sum:
    """``a`` without products times 0."""
    found = {product: factor for product, factor in a.items() if factor}
    if (
        len(found) > TERMS
        or any(max(abs(factor.numerator), factor.denominator) >= END for factor in found.values())
        or any(abs(power) > POWER for product in found for _, power in product)
    ):
        raise _Opaque
    return found


def _written(a: _Sum) -> int | str:
    if not a or list(a) == [()]:
        return int(a.get((), 0))
    text = _text(a)
    if len(text) > LENGTH:
        raise _Opaque
    return text


def _text(a: _Sum) -> str:
    """``a`` as sympy writes it; the names that all products have stand before a bracket."""
    if not a:
        return "0"
    common = min(a, key=len)
    shared = tuple((name, min(dict(p).get(name, 0) for p in a)) for name, _ in common)
    shared = tuple((name, power) for name, power in shared if power > 0)
    if len(a) > 1 and shared:
        inverse = tuple((name, -power) for name, power in shared)
        size = Fraction(math.gcd(*(factor.numerator for factor in a.values())))
        inner = {_product(product, inverse): factor / size for product, factor in a.items()}
        return f"{_one(shared, size)}*({_text(inner)})"
    found = ""
    for product in _ordered(a, a):
        sign, one = "-" if a[product] < 0 else "+", _one(product, abs(a[product]))
        found += f" {sign} {one}" if found else one if sign == "+" else f"-{one}"
    return found


def _one(product: _Product, factor: Fraction) -> str:
    above, below = (
        [f"{n}**{abs(p)}" if abs(p) > 1 else n for n, p in product if (p > 0) == up] for up in (True, False)
    )
    above = [str(factor.numerator)] * (factor.numerator != 1 or not above) + above
    below = [str(factor.denominator)] * (factor.denominator != 1) + below
    divisor = f"/({'*'.join(below)})" if len(below) > 1 else f"/{below[0]}" if below else ""
    return "*".join(above) + divisor
