"""Runs of Reshape and Transpose against numpy: the shortest run does what the run did, and is not longer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from qdq_passes.clean.look.atoms import Atoms, Size, moved

SIZES = (1, 2, 3, 4, 6)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int] | None]]:
    """Shapes of a source and of what each of up to five steps gives, and the orders of the Transposes among them."""
    shapes = [draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=4))]
    orders: list[list[int] | None] = []
    for turns in draw(st.lists(st.booleans(), min_size=1, max_size=5)):
        last = shapes[-1]
        if turns:
            order = draw(st.permutations(range(len(last))))
            shapes.append([last[axis] for axis in order])
            orders.append(list(order))
        else:
            shapes.append(draw(st.sampled_from(_regrouped(last))))
            orders.append(None)
    return shapes, orders


def _regrouped(shape: list[int]) -> list[list[int]]:
    """Shapes with as many elements: two axes in one, one axis in two, an axis of size 1 more or less."""
    found = [[int(np.prod(shape))], [1, *shape], [*shape, 1]]
    for k, size in enumerate(shape):
        found += [[*shape[:k], factor, size // factor, *shape[k + 1 :]] for factor in (2, 3) if size % factor == 0]
        found += [[*shape[:k], size * shape[k + 1], *shape[k + 2 :]]] if k + 1 < len(shape) else []
        found += [[*shape[:k], *shape[k + 1 :]]] if size == 1 and len(shape) > 1 else []
    return found


def carried_out(plan: Sequence[tuple[str, Sequence[Size]]], source: np.ndarray) -> np.ndarray:
    """What the steps of ``plan`` make of ``source``."""
    for kind, numbers in plan:
        whole = [int(number) for number in numbers]
        source = source.transpose(whole) if kind == "Transpose" else source.reshape(whole)
    return source


@given(runs())
def test_the_shortest_run_does_the_same(run: tuple[list[list[int]], list[list[int] | None]]) -> None:
    shapes, orders = run
    source = np.arange(np.prod(shapes[0])).reshape(shapes[0])
    wanted = source
    for shape, order in zip(shapes[1:], orders, strict=True):
        wanted = wanted.reshape(shape) if order is None else wanted.transpose(order)
    found = moved(shapes, orders)
    if isinstance(found, Atoms):
        plan = found.shortest()
        np.testing.assert_array_equal(carried_out(plan, source), wanted)
        assert len(plan) <= 3


def test_a_run_that_ends_as_it_began_is_nothing() -> None:
    found = moved([[2, 6], [2, 3, 2], [3, 2, 2], [2, 3, 2], [2, 6]], [None, [1, 0, 2], [1, 0, 2], None])
    assert isinstance(found, Atoms)
    assert found.shortest() == []


def test_a_symbol_that_is_divided_is_told() -> None:
    assert moved([["N", 4], ["M", 2], [2, "M"]], [None, [1, 0]]) == "a step divides the symbolic size N"
