"""What a run takes on a chip, for verbs that have a model and know what runs on the NPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir

    from qdqtool.verbs.groups import OnChip


def chip_time(model: ir.Model, asked: OnChip, *, on_cpu: Sequence[str], crossings: int) -> dict[str, Any] | None:
    """The time of one run as `estimate` says it; None where no chip is asked.

    Args:
        model: a copy is looked at.
        asked: chip, runtime, and whether data sheets will do.
        on_cpu: names of the operators that the NPU refuses.
        crossings: partitions that the model falls into.

    Raises:
        UsageError: there is no such chip, or nobody measured it.
        UnsupportedError: the model's sizes are not static.
    """
    if asked.chip is None:
        return None
    from qdq_passes.graph.edit import copy_model

    from qdqtool.chips.loading import load_chip
    from qdqtool.cost.choosing import profile_for
    from qdqtool.cost.estimating import Graph, of_graph
    from qdqtool.verbs.estimate import precision_of

    choice = profile_for(
        load_chip(asked.chip), asked.stack, precision_of(model), decoder=False, from_specs=asked.from_specs
    )
    return of_graph(choice, Graph.of(copy_model(model)), on_cpu=on_cpu, crossings=crossings).to_json()


def time_line(found: dict[str, Any] | Any) -> str:
    """One line of it."""
    return (
        f"{found['chip']} with {found['stack']}, {found['precision']}: about {found['ms']:.4g} ms a run, "
        f"80 % of measurements between {found['low']:.4g} and {found['high']:.4g}"
    )
