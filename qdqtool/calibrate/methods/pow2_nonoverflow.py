"""``pow2-nonoverflow``: the power-of-two range of symmetric int8 that holds every value seen."""

from __future__ import annotations

from qdq_passes.numerics import pow2
from qdq_passes.numerics.encoding import FLOAT32_TINY, integer_range

from qdqtool.calibrate.methods.minmax import Minmax
from qdqtool.calibrate.observer import Range, State, storage_type


class Pow2Nonoverflow(Minmax):
    """[−127·2^-p, 127·2^-p] with the largest p such that max(|min|, |max|) <= 127·2^-p.

    The exponent is rounded *up*, so that nothing clips; the method of this name in the Vitis line rounds to the nearest and
    clips by up to sqrt(2). A tensor that is zero, or too small for a normal float32 scale, keeps the range seen.

    ``reference`` leaves the rounding to whoever chooses the encoding: the range is what was seen, NaN being 0 and infinities
    ±3.4e38. Unlike that of ``pow2-minmse`` it does not depend on the order of the samples.
    """

    def __init__(self, *, bits: int = 8, reference: bool = False) -> None:
        super().__init__()
        self.qmax = integer_range(storage_type(bits, symmetric=True), symmetric=True)[1]
        self.reference = self.sanitizes = self.as_written = reference

    def range(self) -> Range:
        """The power-of-two range around what was seen."""
        seen = super().range()
        scale = seen.magnitude / self.qmax
        if self.reference or scale < FLOAT32_TINY:
            return seen
        scale = pow2.round_scale(scale)
        if self.qmax * scale < seen.magnitude:  # the division above was rounded down to the power of two
            scale *= 2
        return Range(-self.qmax * scale, self.qmax * scale)

    def state(self) -> State:
        """What was seen, before rounding."""
        seen = super().range()
        return {"observed": [seen.low, seen.high]}

    def restore(self, state: State, found: Range) -> None:
        """Take up what was seen."""
        low, high = state["observed"]
        self.seen = Range(low, high)
