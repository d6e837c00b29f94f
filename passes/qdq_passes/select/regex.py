"""Regular expressions whose search ends: `re` where its work is small whatever the text, else all ways through the text at once.

`re` tries one way after the other: ``(a+)+$`` takes 2ⁿ steps on n letters, ``.*a.*b`` n³. Whether there is a match does not
depend on the order, so that sets of states find it in n steps (Thompson, CACM 11:6, 1968); what follows a set is looked up."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from qdq_passes.errors import UsageError

#: States of an expression at most; letters up to which one repetition in `re` is quick; steps of all searches, about 3 µs each.
STATES, SHORT, WORK = 2000, 500, 2_000_000
_PLACES = {
    "AT_BEGINNING": "^", "AT_BEGINNING_STRING": r"\A", "AT_END": "$", "AT_END_STRING": r"\Z", "AT_BOUNDARY": r"\b",
    "AT_NON_BOUNDARY": r"\B",
}  # fmt: skip
_CLASSES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w", "NOT_DIGIT": r"\D", "NOT_SPACE": r"\S", "NOT_WORD": r"\W"}

#: (pattern of one letter, False), (pattern of a place, True), or the steps to go on with.
_Step = tuple[Any, ...]


def searcher(pattern: str) -> Callable[[str], bool]:
    """Whether ``pattern`` is found in a text, as `re.search` has it.

    Raises:
        UsageError: it is no expression, or might not end; the function: it takes too long on the texts so far.
    """
    try:
        compiled, tree = re.compile(pattern), _parser.parse(pattern)
        repeats, search = _repeats(tree), _Search(tree)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"bad regular expression: {error if isinstance(error, re.error) else 'too large'}") from None
    if not search.is_able and repeats == math.inf:
        hint = "repetitions in one another go without look-around, back references and large counts; or write a glob"
        raise UsageError(f"the regular expression {pattern[:60]!r} might not end", hint=hint)

    def found(text: str) -> bool:
        if repeats == 0 or (repeats == 1 and len(text) <= SHORT):
            return compiled.search(text) is not None
        search.left -= len(text) // 10 if search.is_able else int(min(len(text) ** (repeats + 1) / 300_000, WORK))
        outcome = search(text) if search.is_able else search.left > 0 and compiled.search(text) is not None
        if search.left <= 0:
            raise UsageError(f"{pattern[:60]!r} takes too long on these names", hint="write a glob, as in */attn/*")
        return outcome

    return found


def _repeats(tree: Any) -> float:
    """Power of the length of a text that the work of `re` grows by; infinite where it is no power."""
    total = 0.0
    for op, given in tree:
        inside = sum(_repeats(part) for part in _parts(given) if isinstance(part, _parser.SubPattern))
        is_loop = "REPEAT" in str(op) and given[1] > 1
        is_endless = (is_loop and (inside or str(op) == "POSSESSIVE_REPEAT")) or "GROUPREF" in str(op)
        total += math.inf if is_endless else is_loop + inside
    return total


def _parts(given: Any) -> list[Any]:
    return [part for item in given for part in _parts(item)] if type(given) in (tuple, list) else [given]


class _Search:
    """The states of an expression, and which sets of them follow one another.

    Args:
        tree: as `re` parses it.
    """

    def __init__(self, tree: Any) -> None:
        self.left = WORK
        self._steps: list[_Step] = []
        self._known: dict[tuple[Any, ...], tuple[bool, frozenset[int]]] = {}
        self.is_able = self._emit(tree, tree.state.flags)

    def _emit(self, tree: Any, flags: int) -> bool:
        """Append what matches ``tree``; whether that is possible."""
        return len(self._steps) <= STATES and all(self._one(str(op), given, flags) for op, given in tree)

    def _one(self, name: str, given: Any, flags: int) -> bool:
        steps = self._steps
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, inner = given
            able = all(self._emit(inner, flags) for _ in range(least))
            for _ in range(1 if most is _parser.MAXREPEAT else most - least):
                begin = len(steps)
                steps.append(())
                if not (able and self._emit(inner, flags)):
                    return False
                steps.append((begin,) if most is _parser.MAXREPEAT else (len(steps) + 1,))
                steps[begin] = (begin + 1, len(steps))
            return able
        if name == "SUBPATTERN":
            return self._emit(given[3], flags & ~given[2] | given[1])
        if name == "BRANCH":
            begin, starts, ends = len(steps), [], []
            steps.append(())
            for part in given[1]:
                starts.append(len(steps))
                if not self._emit(part, flags):
                    return False
                ends.append(len(steps))
                steps.append(())
            for at in (begin, *ends):
                steps[at] = tuple(starts) if at == begin else (len(steps),)
            return True
        text = _PLACES[str(given)] if name == "AT" else _letter(name, given)
        if text:
            steps.append((re.compile(text, flags).match, name == "AT"))
        return bool(text)

    def __call__(self, text: str) -> bool:
        states: frozenset[int] = frozenset()
        for at in range(len(text) + 1):
            key = states, text[at - 1 : at] if at else None, text[at : at + 1], at >= len(text) - 1
            if key not in self._known:
                if len(self._known) > STATES:
                    self._known.clear()
                self._known[key] = self._follow(states, text, at)
            is_found, states = self._known[key]
            if is_found or self.left <= 0:
                return is_found
        return False

    def _follow(self, states: frozenset[int], text: str, at: int) -> tuple[bool, frozenset[int]]:
        """Whether a match ends before the letter at ``at``, and the states behind it."""
        todo, reached, behind = [0, *states], set[int](), set[int]()
        while todo:
            state = todo.pop()
            if state == len(self._steps):
                return True, frozenset()
            if state in reached:
                continue
            self.left -= 1
            reached.add(state)
            match self._steps[state]:
                case (test, bool() as is_place):
                    if at < len(text) + is_place and test(text, at):
                        (todo.append if is_place else behind.add)(state + 1)
                case further:
                    todo += further
        return False, frozenset(behind)


def _letter(name: str, given: Any) -> str:
    """The expression of one letter; empty where it is of something else."""
    if name in ("LITERAL", "NOT_LITERAL"):
        return f"[{'^' * (name == 'NOT_LITERAL')}{re.escape(chr(given))}]"
    if name == "RANGE":
        return f"{re.escape(chr(given[0]))}-{re.escape(chr(given[1]))}"
    if name == "CATEGORY":
        return _CLASSES[str(given).removeprefix("CATEGORY_")]
    if name == "IN":
        parts = (re.escape(chr(part)) if str(op) == "LITERAL" else _letter(str(op), part) or "^" for op, part in given)
        return f"[{''.join(parts)}]"
    return "." if name == "ANY" else ""
