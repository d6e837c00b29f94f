"""What a run of Reshape and Transpose does, as factors of sizes that keep together; and the shortest run that does the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import gcd, prod

from qdq_passes._lazy_dataclass import dataclass

#: A size: a number, or the name of a symbolic one.
Size = int | str
#: One axis: its atoms, each by its place in the source.
Axis = list[int]


@dataclass(frozen=True)
class Atoms:
    """What a run does: factors of the sizes of its source (none is 1), numbered in the order of the source.

    Args:
        sizes: place → size of the atom.
        source: the shape of the source.
        result: the shape of the result.
        into: of each axis of the source, its atoms.
        out: of each axis of the result, its atoms.
    """

    sizes: Sequence[Size]
    source: Sequence[Size]
    result: Sequence[Size]
    into: Sequence[Axis]
    out: Sequence[Axis]

    def shortest(self) -> list[tuple[str, list[Size]]]:
        """The shortest run that does the same: (Reshape, shape) and (Transpose, order) in turn."""
        places = [place for axis in self.out for place in axis]
        if places == sorted(places):
            return [] if list(self.source) == list(self.result) else [("Reshape", list(self.result))]
        return self._turned() or self._reshaped_first() or self._reshaped_last() or self._reshaped_twice(places)

    def _turned(self) -> list[tuple[str, list[Size]]]:
        """One Transpose: the axes of the result are those of the source; those of size 1 come in their order."""
        if len(self.into) != len(self.out):
            return []
        ones = [k for k, axis in enumerate(self.into) if not axis]
        whole = {tuple(axis): k for k, axis in enumerate(self.into) if axis}
        order: list[Size] = []
        for axis in self.out:
            if (axis and tuple(axis) not in whole) or (not axis and not ones):
                return []
            order.append(whole[tuple(axis)] if axis else ones.pop(0))
        return [("Transpose", order)]

    def _reshaped_first(self) -> list[tuple[str, list[Size]]]:
        """A Reshape to the axes of the result in the order of the source, then a Transpose."""
        if not all(_follow(axis) for axis in self.out):
            return []
        order = sorted(range(len(self.out)), key=lambda k: (self.out[k][:1], k))  # those of size 1 first
        back = [order.index(k) for k in range(len(order))]
        return [("Reshape", [self.result[k] for k in order]), ("Transpose", list(back))]

    def _reshaped_last(self) -> list[tuple[str, list[Size]]]:
        """A Transpose of the axes of the source, then a Reshape."""
        rank = {place: k for k, place in enumerate(place for axis in self.out for place in axis)}
        if not all(_follow([rank[place] for place in axis]) for axis in self.into):
            return []
        order = sorted(range(len(self.into)), key=lambda k: ([rank[p] for p in self.into[k][:1]], k))
        return [("Transpose", list(order)), ("Reshape", list(self.result))]

    def _reshaped_twice(self, places: list[int]) -> list[tuple[str, list[Size]]]:
        """All atoms apart, but for those that follow one another in source and result."""
        runs: list[Axis] = []
        for place in places:
            if runs and runs[-1][-1] + 1 == place:
                runs[-1].append(place)
            else:
                runs.append([place])
        inner = sorted(runs)
        order: list[Size] = [inner.index(run) for run in runs]
        shape = [_product([self.sizes[place] for place in run]) for run in inner]
        return [("Reshape", shape), ("Transpose", order), ("Reshape", list(self.result))]


def moved(shapes: Sequence[Sequence[Size]], orders: Sequence[Sequence[int] | None]) -> Atoms | str:
    """What the steps between ``shapes`` do; in words why it cannot be said.

    Args:
        shapes: of the source and of what each step gives; none has a size of 0.
        orders: of each step the order of a Transpose, None for what only changes the shape.
    """
    turns = [
        None if order is None or _keeps(order, shape) else order for order, shape in zip(orders, shapes, strict=False)
    ]
    if not any(turns):
        return Atoms((), shapes[0], shapes[-1], (), ())
    sizes: dict[int, Size] = {}
    axes: list[Axis] = []
    for size in shapes[0]:
        axes.append([] if size == 1 else [len(sizes)])
        if size != 1:
            sizes[len(sizes)] = size
    into = [list(axis) for axis in axes]
    for k, (shape, order) in enumerate(zip(shapes[1:], turns, strict=True)):
        if order is not None:
            axes = [axes[axis] for axis in order]
        elif k + 1 == len(turns) or turns[k + 1] is not None:  # of steps that only change the shape the last counts
            found = _grouped([place for axis in axes for place in axis], shape, sizes, [into, axes])
            if isinstance(found, str):
                return found
            axes = found
    return _numbered(sizes, shapes, into, axes)


def _keeps(order: Sequence[int], shape: Sequence[Size]) -> bool:
    """Whether a Transpose of ``shape`` by ``order`` only moves axes of size 1."""
    kept = [axis for axis in order if shape[axis] != 1]
    return kept == sorted(kept)


def _product(sizes: Sequence[Size]) -> Size:
    named = [size for size in sizes if isinstance(size, str)]
    numbers = prod(size for size in sizes if isinstance(size, int))
    return numbers if not named else "·".join([str(numbers), *named])


def _grouped(
    line: list[int], shape: Sequence[Size], sizes: dict[int, Size], holders: list[list[Axis]]
) -> list[Axis] | str:
    """The atoms of ``line`` as axes of ``shape``; where an axis ends within an atom, the atom is split in all ``holders``."""
    axes: list[Axis] = []
    rest = list(line)
    for size in shape:
        axis: Axis = []
        left: Size = size
        while left != 1:
            if not rest:
                return "its sizes do not fit"
            atom = sizes[rest[0]]
            if atom == left:
                left = 1
            elif isinstance(atom, str) or isinstance(left, str):
                return f"a step divides the symbolic size {atom if isinstance(atom, str) else left}"
            elif left % atom == 0:
                left //= atom
            elif (part := gcd(atom, left)) == left:
                _split(rest[0], part, sizes, [*holders, axes, [rest]])
                left = 1
            else:
                return f"a step takes {left} of {atom} elements, which are no rows"
            axis.append(rest.pop(0))
        axes.append(axis)
    return axes if not rest else "its sizes do not fit"


def _split(place: int, part: int, sizes: dict[int, Size], holders: list[list[Axis]]) -> None:
    """Let the atom ``place`` be its first factor, ``part``, and a new one behind it the rest."""
    whole = sizes[place]
    assert isinstance(whole, int)
    new = len(sizes)
    sizes[place], sizes[new] = part, whole // part
    for axis in (axis for holder in holders for axis in holder if place in axis):
        axis.insert(axis.index(place) + 1, new)


def _numbered(sizes: dict[int, Size], shapes: Sequence[Sequence[Size]], into: list[Axis], out: list[Axis]) -> Atoms:
    """The atoms numbered by their places in the source."""
    line = [atom for axis in into for atom in axis]
    place = {atom: k for k, atom in enumerate(line)}
    return Atoms(
        [sizes[atom] for atom in line], shapes[0], shapes[-1],
        [[place[atom] for atom in axis] for axis in into], [[place[atom] for atom in axis] for axis in out],
    )  # fmt: skip


def _follow(places: list[int]) -> bool:
    return all(b == a + 1 for a, b in pairwise(places))
