"""What a quantized model must reach, and what is said where it hardly does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir
from qdq_passes.errors import QdqError
from qdq_passes.numerics.agreement import worst_first
from qdq_passes.numerics.arrays import Array

from qdqtool.comparison.prices.diagnosis import diagnosis
from qdqtool.comparison.prices.pricing import priced
from qdqtool.comparison.prices.subjects import subjects_of, worst
from qdqtool.comparison.report import Compared, Comparison
from qdqtool.comparison.sides import Sides

#: SQNR of an output below which a warning says what costs it most: noise of a hundredth of the signal.
GOOD_DB = 20.0
#: Samples that this is found out on.
PRICED = 2


def missed(found: Comparison, least_db: float, of_outputs: Mapping[str, float] | None = None) -> Iterator[str]:
    """The outputs below ``least_db``, or below what ``of_outputs`` says of them, and those that could not be compared: nothing
    vouches for them."""
    single = of_outputs or {}
    for output in sorted(found.outputs, key=lambda output: worst_first(output.agreement.sqnr_db)):
        least = single.get(output.name, least_db)
        if worst_first(output.agreement.sqnr_db) < least:
            figure = f"SQNR {output.agreement.sqnr_db:.1f} dB, below the required {least:g} dB"
            yield f"output {output.text}: {figure}; `qdqtool explain` names what costs most"
    for name in sorted(single.keys() - {output.name for output in found.outputs}):
        yield f"output {name}: is none that was compared, required are {single[name]:g} dB"
    yield from (f"compare: {reason}" for _, reason in found.uncompared)


def poor(
    found: Comparison, least_db: float, floats: ir.Model, model: ir.Model, feeds: Sequence[Mapping[str, Array]]
) -> Iterator[str]:
    """A warning of the worst output that is at ``least_db`` but below `GOOD_DB`, with what costs most of it.

    Args:
        found: the comparison.
        least_db: what is required.
        floats: the float model.
        model: the quantized model.
        feeds: samples.
    """
    outputs = [one for one in found.outputs if least_db <= worst_first(one.agreement.sqnr_db) < GOOD_DB]
    if outputs:
        output = min(outputs, key=_figure)
        rest = f" (and {len(outputs) - 1} more)" if len(outputs) > 1 else ""
        yield f"output {output.text}{rest}: SQNR {_figure(output):.1f} dB; {first_cause(floats, model, feeds[:PRICED])}"


def first_cause(floats: ir.Model, model: ir.Model, feeds: Sequence[Mapping[str, Array]]) -> str:
    """What `explain` tells first: the tensor that costs most at the outputs, its share of the noise, and why."""
    try:
        sides = Sides.of(floats, model, is_moved=False)
        prices = priced(sides, feeds)
    except QdqError as error:  # of outputs that are no floats, and models without a tensor in common
        return f"what costs most is not known: {error}"
    subjects = subjects_of(sides, prices)
    first = next(iter(worst(subjects, 1)), None)
    if first is None or not prices.noise:
        return "no quantized tensor costs anything: what the operators compute differs"
    cause, why = diagnosis(first, subjects, ())
    record = first.record
    where = f"{record.kind} of {record.node}" if record.node else record.kind
    return f"{record.name} ({where}): {100 * first.power / prices.noise:.1f} % of the noise; {cause}: {why}"


def _figure(output: Compared) -> float:
    return worst_first(output.agreement.sqnr_db)
