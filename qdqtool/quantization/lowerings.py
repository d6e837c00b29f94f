"""Operators that a target lacks, written with those that it has."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from qdq_passes.pipeline.pipeline import Pipeline
from qdq_passes.pipeline.text import make_pass


class Lowering(NamedTuple):
    """A pass that writes ``op`` with the operators ``pieces``."""

    op: str
    pass_name: str
    pieces: tuple[str, ...]


LOWERINGS = (
    Lowering("HardSwish", "split-hard-swish", ("HardSigmoid", "Mul")),
    Lowering("GatherND", "gather-nd-to-gather", ("Gather", "Reshape")),
)


def lowerings(taken: Collection[str]) -> Pipeline:
    """The passes for a target that computes the operators ``taken`` on integers: of each operator that is not there, where its
    pieces are."""
    wanted = [row for row in LOWERINGS if row.op not in taken and set(row.pieces) <= set(taken)]
    return Pipeline(tuple(make_pass(row.pass_name, {}) for row in wanted))
