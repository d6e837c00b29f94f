"""What a comparison found, as values and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qdq_passes.numerics.agreement import Agreement, SliceAgreement, worst


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The figures of one tensor.

    Args:
        name: name of the tensor in A (and B, unless an output was matched by position).
        agreement: over all samples.
        slices: per index of the axis asked for, worst first; empty when none was asked for or the tensor lacks it.
    """

    name: str
    agreement: Agreement
    slices: tuple[SliceAgreement, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: the agreement, and ``slices`` when there are any."""
        data = self.agreement.to_json()
        return {**data, "slices": [s.to_json() for s in self.slices]} if self.slices else data


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What comparing two models found.

    Args:
        outputs: the model's outputs, in its order.
        tensors: tensors inside, worst first.
        samples: feeds compared.
        warnings: what was not compared, or compared by position, and why.
    """

    outputs: tuple[Compared, ...]
    tensors: tuple[Compared, ...]
    samples: int
    warnings: tuple[str, ...] = ()

    @property
    def min_sqnr(self) -> float | None:
        """SQNR of the worst output in dB; None when every output is exact."""
        return worst([output.agreement.sqnr_db for output in self.outputs])

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: ``outputs`` by name, ``tensors`` worst first with their ``name``; ``min_sqnr, samples, warnings``."""
        return {
            "outputs": {output.name: output.to_json() for output in self.outputs},
            "tensors": [{"name": tensor.name, **tensor.to_json()} for tensor in self.tensors],
            "min_sqnr": self.min_sqnr,
            "samples": self.samples,
            "warnings": list(self.warnings),
        }
