"""The cases and what is done with them: the whole suite in chunks, or the part of it."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import onnx

from tests.dial import Dial
from tests.suites.cases import Case, collect
from tests.suites.exclusions import exclusions, matches
from tests.suites.frozen import variants
from tests.suites.harness import Examination, examine
from tests.suites.steps import Step

#: Cases of the part: of those with a known failure, of so many with an operator of their own one, and of all others.
KNOWN, OPERATORS, FURTHER = 1, 12, 5


@cache
def every_case() -> tuple[Case, ...]:
    """Every case of the package, then their variants with constants."""
    cases = collect()
    return (*cases, *variants(cases))


def kinds() -> Counter[str]:
    """Number of cases by kind; variants with constants are ``"frozen"``."""
    return Counter("frozen" if "+frozen" in case.name else case.kind for case in every_case())


@cache
def looked_at() -> tuple[Case, ...]:
    """The cases that every step is tried on: all; in the part one with a known failure, one for every twelfth operator, and five more."""
    if Dial.whole:
        return every_case()
    globs = [glob for exclusion in exclusions() for glob in exclusion.cases]
    pinned = [case for case in every_case() if any(matches(case.name, glob) for glob in globs)]
    shuffled = [case for case in every_case() if case not in pinned]
    draw = random.Random(Dial.seed)
    draw.shuffle(shuffled)
    known = draw.sample(pinned, min(KNOWN, len(pinned)))
    return (*known, *list(_of_each_operator(shuffled))[::OPERATORS], *shuffled[:FURTHER])


def _of_each_operator(cases: Iterable[Case]) -> Iterator[Case]:
    seen: set[str] = set()
    for case in cases:
        model = onnx.ModelProto.FromString(case.model)
        if not {node.op_type for node in model.graph.node} <= seen:
            seen |= {node.op_type for node in model.graph.node}
            yield case


def examine_all(cases: Collection[Case], steps: Sequence[Step]) -> list[Examination]:
    """Take ``cases`` through load → save and through ``steps``."""
    with tempfile.TemporaryDirectory() as folder:
        return [examine(case, steps, Path(folder)) for case in cases]
