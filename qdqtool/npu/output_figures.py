"""How the outputs of several runs of one model agree, collected sample by sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import ModelError
from qdq_passes.numerics.agreement import Accumulator
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import encoding_of, is_dequantize

from qdqtool.npu.simulated import OutputFigures

#: (tested, reference) of each pair that is compared; ``base`` stands for the reference or the QDQ model.
PAIRS = (("npu", "base"), ("npu", "qdq"), ("npu", "float"), ("qdq", "float"))


class Figures:
    """Figures of one output.

    Args:
        value: the output, in a model that shows the DequantizeLinear which writes it.
    """

    def __init__(self, value: ir.Value) -> None:
        self.name = value.name or ""
        producer = value.producer()
        self._encoding = encoding_of(producer) if producer is not None and is_dequantize(producer) else None
        self._pairs: dict[str, Accumulator] = {}
        self._lsb: int | None = 0

    def add(self, runs: Mapping[str, Array]) -> None:
        """Take one sample in.

        Args:
            runs: the output in each run: ``"npu"``, ``"base"``, ``"qdq"``, ``"float"``, as far as they were made.

        Raises:
            ModelError: two of them differ in shape.
        """
        for tested, reference in PAIRS:
            if tested not in runs or reference not in runs or not _comparable(runs[tested], runs[reference]):
                continue
            try:
                self._pairs.setdefault(f"{tested}/{reference}", Accumulator()).add(runs[reference], runs[tested])
            except ModelError as error:
                error.where = f"output {self.name!r} of {tested} and {reference}"
                raise
        if "npu" in runs and "base" in runs and self._lsb is not None:
            found = _lsb(runs["base"], runs["npu"], self._encoding)
            self._lsb = None if found is None else max(self._lsb, found)

    def result(self) -> OutputFigures:
        """The figures of all samples."""
        return OutputFigures(
            name=self.name,
            max_lsb=self._lsb if "npu/base" in self._pairs else None,
            against={key: pair.result() for key, pair in self._pairs.items()},
        )


def _comparable(a: Array, b: Array) -> bool:
    """Whether both are numbers of one kind: an integer output says nothing beside a float one."""
    return (a.dtype.kind in "iub") == (b.dtype.kind in "iub")


def _lsb(x: Array, y: Array, encoding: Encoding | None) -> int | None:
    """Largest difference in integers: those of the output, or those that ``encoding`` makes of its floats."""
    if x.dtype.kind in "OSU" or not x.size:
        return 0 if np.array_equal(x, y) else None
    if x.dtype.kind in "iu":
        return int(np.abs(x.astype(np.int64) - y.astype(np.int64)).max())
    if np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
        return 0
    if encoding is None or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return None
    scale = encoding.granularity.expand(encoding.scale_array(), x.shape).astype(np.float64)
    return int(np.abs(np.rint(x / scale) - np.rint(y / scale)).max())


def by_position(names: Sequence[str], other: Sequence[str]) -> dict[str, str] | None:
    """Names → names of another model: equal ones, or by position; None where there are not as many."""
    if set(names) == set(other):
        return {name: name for name in names}
    return dict(zip(names, other, strict=True)) if len(names) == len(other) else None
