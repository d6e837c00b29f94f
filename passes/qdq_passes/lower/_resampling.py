"""How a Resize that interpolates is written down: taps and weights per axis as constants of ai.qdqtool::Resize."""

from __future__ import annotations

import numpy as np

from qdq_passes.analysis.plans.operands import zero
from qdq_passes.analysis.plans.resizing import resampling
from qdq_passes.analysis.plans.tails import Tail
from qdq_passes.core.base import Change
from qdq_passes.core.program_edit import Replacement, attributes_of
from qdq_passes.lower._lowering import Attributes, output_attributes
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic


def resampled(unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
    """``DQ(x) → Resize → Q`` → ``x, indices, weights, … → ai.qdqtool::Resize``.

    Raises:
        NotComputable: there is no plan.
    """
    plan = resampling(unit, arithmetic)
    assert plan.x.encoding is not None
    attributes: Attributes = {
        **output_attributes(plan.output, Tail(), arithmetic, sums=False),
        "x_zero_point": zero(plan.x.encoding),
        "axes": [taps.axis for taps in plan.taps],
    }
    if plan.multiplier is not None:
        attributes |= {"multiplier": int(plan.multiplier.value[0]), "shift": int(plan.multiplier.shift[0])}
    else:
        attributes |= {"scale": float(plan.product[0])}
    inputs = [into.integers(plan.x)]
    for taps in plan.taps:
        inputs.append(into.constant(f"indices_{taps.axis}", taps.indices))
        inputs.append(into.constant(f"weights_{taps.axis}", taps.integers().astype(np.int32)))
    found = into.node(
        "Resize", inputs, dtype=plan.output.dtype, attributes=attributes_of(attributes), like=unit.results[0].value
    )
    return into.done(found)
