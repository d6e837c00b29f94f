"""What a comparison found, of the outputs or of each operator, as values and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.numerics.agreement import Agreement, SliceAgreement, worst

from qdqtool.io.files.shown import Shown
from qdqtool.record.record import NOTHING, Record


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The figures of one tensor.

    Args:
        name: name of the tensor in A (and B, unless an output was matched by position).
        agreement: over all samples.
        slices: per index of the axis asked for, worst first; empty when none was asked for or the tensor lacks it.
        node: that writes it in A; of an output that is compared at another tensor, that writes this one. "" of other outputs.
        compared_at: the tensor whose figures stand here, of an output that is an order or indices; "" where they are its own.
    """

    name: str
    agreement: Agreement
    slices: tuple[SliceAgreement, ...] = ()
    node: str = ""
    compared_at: str = ""

    @property
    def text(self) -> str:
        """Its name, and where it is compared."""
        return f"{self.name} (compared at {self.compared_at})" if self.compared_at else self.name

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: the agreement, and ``node``, ``compared_at`` and ``slices`` when there are any."""
        data = self.agreement.to_json()
        data |= {"node": self.node} if self.node else {}
        data |= {"compared_at": self.compared_at} if self.compared_at else {}
        return {**data, "slices": [s.to_json() for s in self.slices]} if self.slices else data


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Shown):
    """What comparing two models found.

    Args:
        outputs: the model's outputs, in its order.
        tensors: tensors inside, worst first.
        samples: feeds compared.
        warnings: what was not compared, or compared by position, and why.
        uncompared: (output, reason) of the outputs that could not be compared.
        record: the same as a record of the tested model.
    """

    figures: ClassVar[Mapping[str, str]] = {
        "samples": "samples",
        "outputs": "outputs",
        "tensors": "tensors",
        "min_sqnr": "min_sqnr",
    }

    outputs: tuple[Compared, ...]
    tensors: tuple[Compared, ...]
    samples: int
    warnings: tuple[str, ...] = ()
    uncompared: tuple[tuple[str, str], ...] = ()
    record: Record = NOTHING

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
            "uncompared": [{"output": name, "reason": reason} for name, reason in self.uncompared],
            **self.record.as_key(),
        }


@dataclass(frozen=True, kw_only=True)
class Causes:
    """Where the noise of a node comes from, each as noise power over signal power (0.001 is 30 dB below the signal).

    With y(S) the output when only the pairs S are there, on float inputs, and N(p, q) = Σ(p − q)² / Σ y_A²:

        operator = N(y(∅), y_A)    weight = N(y(weight pairs), y(∅))    activation, output, bias likewise
        refinement = N(y(all), y_A) − N(y(all, scales as calibrated), y_A)
        rest       = N(y(all), y_A) − all of the above

    so that they add up to the node's noise. The pairs of the first line have the scales of calibration where those are known,
    else their own; ``refinement`` and ``rest`` may be negative: a scale moved for the better, two roundings that are one.

    Args:
        weight: rounding of its weights.
        activation: rounding of the activations that it reads, and of those between its nodes.
        output: rounding of what it writes.
        bias: rounding of its bias.
        refinement: what scales moved after calibration cost; None where that is not known (it is in the others then).
        operator: what it computes otherwise than the float model, in float; None where its float weights are not known (it is in
            ``weight`` then).
        rest: what they do together.
    """

    weight: float
    activation: float
    output: float
    bias: float
    refinement: float | None
    operator: float | None
    rest: float

    def to_json(self) -> dict[str, float | None]:
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class LocalNode:
    """One node of the quantized model on the inputs that the float model has there.

    Args:
        name: name of the node; of a fused group that of its first.
        op: its operator.
        nodes: the nodes that are measured together.
        tensors: what they write.
        agreement: their outputs against the float model's.
        causes: where the noise comes from; None where the signal is 0 throughout, or the noise is infinite.
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    tensors: tuple[str, ...]
    agreement: Agreement
    causes: Causes | None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "name": self.name, "op": self.op, "nodes": list(self.nodes), "tensors": list(self.tensors),
            **self.agreement.to_json(), "causes": None if self.causes is None else self.causes.to_json(),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LocalComparison:
    """What comparing node by node found.

    Args:
        nodes: worst first.
        unmatched: (node, reason) of those that have no figures of their own.
        samples: feeds compared.
        warnings: what is not known, and why.
        record: the same as a record of the tested model.
    """

    nodes: tuple[LocalNode, ...]
    unmatched: tuple[tuple[str, str], ...]
    samples: int
    warnings: tuple[str, ...] = ()
    record: Record = NOTHING

    @property
    def min_sqnr(self) -> float | None:
        """SQNR of the worst node in dB; None when every node is exact."""
        return worst([node.agreement.sqnr_db for node in self.nodes])

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: ``nodes`` worst first, ``unmatched``, ``min_sqnr, samples, warnings``."""
        return {
            "nodes": [node.to_json() for node in self.nodes],
            "unmatched": [{"name": name, "reason": reason} for name, reason in self.unmatched],
            "min_sqnr": self.min_sqnr,
            "samples": self.samples,
            "warnings": list(self.warnings),
            **self.record.as_key(),
        }
