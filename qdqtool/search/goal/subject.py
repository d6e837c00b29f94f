"""What a search for a goal asks of what it quantizes: a model, or a folder of graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.search.goal.trials import Candidate
from qdqtool.search.variants import Measured, Point


@dataclass(frozen=True, kw_only=True)
class Raise:
    """Nodes that could be raised, in the order in which to raise them.

    Args:
        precision: what they are raised to.
        sets: each the nodes that move together, the dearest set first.
    """

    precision: str
    sets: tuple[tuple[str, ...], ...]


class Subject(Protocol):
    """What is quantized: says what candidates there are, and what they are worth."""

    def measure(self, points: Sequence[Point]) -> Sequence[Measured]:
        """What candidates are worth, measured side by side where there are workers."""

    def whole(self, point: Point) -> Measured:
        """What a candidate is worth on all samples, though the first refuted it."""

    def whole_units(self) -> float:
        """What that takes."""

    def units(self, point: Point) -> float:
        """What measuring it takes at most, in full quantizations."""

    def writing(self, point: Point) -> float:
        """What making it once more takes, to be written."""

    def pay(self, point: Point, measured: Measured) -> float:
        """What measuring it took; what others share with it is paid now."""

    def pay_for_causes(self, point: Point) -> float:
        """What it takes to find out what the noise of a candidate is made of."""

    def mends(self, point: Point) -> Iterable[Candidate]:
        """Mends of the causes of the noise of the plain quantization, the dearest first."""

    def others(self) -> Iterable[Candidate]:
        """Other schemes in 8 bit that may suit."""

    def raises(self, best: Point) -> Iterable[Raise]:
        """What may be raised out of 8 bit beside ``best``, the cheapest precision first."""

    def along(self, point: Point, refused: Iterable[str]) -> Point:
        """``point`` with what the target takes no more beside its raised nodes raised too, but for what it ``refused`` before."""

    def last(self, *, wider: bool) -> Iterable[Candidate]:
        """What to try where nothing else helps; what takes more bits if ``wider``."""
