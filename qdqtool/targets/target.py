"""What a target says: which operators an NPU takes, and in which encodings. Values only; `loading` reads them from files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import onnx_ir as ir
from qdq_passes.analysis.shifts import ShiftLimits
from qdq_passes.core.traps.rule import TrapRule
from qdq_passes.numerics.encoding import Encoding, integer_format
from qdq_passes.numerics.granularity import PER_TENSOR

Operand = Literal["activations", "weights", "bias"]
GranularityKind = Literal["per-tensor", "per-axis", "blocked"]
Scales = Literal["any", "pow2"]
Encodings = Mapping[Operand, Encoding]

_SINGULAR: dict[Operand, str] = {"activations": "activation", "weights": "weight", "bias": "bias"}


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """One combination of encodings that an operator takes.

    Args:
        activations: storage types of inputs and outputs; these are per-tensor.
        weights: storage types of constants; none when empty.
        bias: storage types of the bias; none when empty.
        symmetric: operands whose zero point must be the middle of their type: 0 for int8, 128 for uint8.
        granularity: of weights and bias.
        scales: ``"pow2"`` demands powers of two, of every operand.
    """

    activations: tuple[ir.DataType, ...]
    weights: tuple[ir.DataType, ...] = ()
    bias: tuple[ir.DataType, ...] = ()
    symmetric: tuple[Operand, ...] = ()
    granularity: tuple[GranularityKind, ...] = ("per-tensor",)
    scales: Scales = "any"

    def types(self, operand: Operand) -> tuple[ir.DataType, ...]:
        """Storage types it takes for ``operand``."""
        return {"activations": self.activations, "weights": self.weights, "bias": self.bias}[operand]

    def refused_types(self, given: Encodings) -> int:
        """How many of the encodings given have a storage type it does not take."""
        return sum(encoding.dtype not in self.types(operand) for operand, encoding in given.items())

    def complaints(self, given: Encodings) -> list[str]:
        """What it does not take of the encodings given, in words; empty when it takes them all."""
        return [text for operand, encoding in given.items() for text in self._complaints(operand, encoding)]

    def _complaints(self, operand: Operand, encoding: Encoding) -> Iterator[str]:
        word, types = _SINGULAR[operand], self.types(operand)
        if not types:
            yield f"takes no quantized {word}"
            return
        if encoding.dtype not in types:
            yield f"{word} is {_name(encoding.dtype)}, not {' or '.join(_name(t) for t in types)}"
        middle = _middle(encoding.dtype)
        off = [z for z in encoding.zero_point if z != middle]
        if operand in self.symmetric and off:
            yield f"{word} has zero point {off[0]}, not {middle} (symmetric)"
        granularity = (PER_TENSOR.kind,) if operand == "activations" else self.granularity
        if encoding.granularity.kind not in granularity:
            yield f"{word} is {encoding.granularity.kind}, not {' or '.join(granularity)}"
        if self.scales == "pow2" and encoding.position is None:
            yield f"{word} has a scale that is no power of two"


@dataclass(frozen=True, kw_only=True)
class OpRule:
    """What operators take.

    Args:
        types: standard operators bare (``Conv``), others with their domain (``com.acme::FancyConv``).
        schemes: alternatives; one of them must take all operands.
    """

    types: tuple[str, ...]
    schemes: tuple[Scheme, ...]


@dataclass(frozen=True, kw_only=True)
class Target:
    """An NPU.

    Args:
        name: the name of its file: ``generic_int8``.
        description: one line.
        version: of the description; compiled files name it.
        rules: no operator type is in two of them.
        shifts: how far it shifts between positions; None where scales are no powers of two, or it says nothing.
        traps: what it does silently wrong or slowly; `check --target` looks for it.
        sha256: of what the file says (comments and layout do not count).
    """

    name: str
    description: str
    version: str
    rules: tuple[OpRule, ...]
    traps: tuple[TrapRule, ...]
    sha256: str
    shifts: ShiftLimits | None = None

    def quantized_ops(self) -> tuple[str, ...]:
        """Operator types that have a rule, sorted."""
        return tuple(sorted(self._schemes))

    def allows(
        self,
        op_type: str,
        *,
        activation: Encoding | None = None,
        weight: Encoding | None = None,
        bias: Encoding | None = None,
    ) -> str | None:
        """None when one scheme of the operator takes all encodings given, else the reason in words.

        An operand left None is not judged; an operator with several activations is asked once for each of their encodings.
        With several schemes the reason is that of the nearest: fewest storage types refused, then fewest complaints.
        """
        if op_type not in self._schemes:
            return f"{self.name} has no rule for {op_type}"
        operands: dict[Operand, Encoding | None] = {"activations": activation, "weights": weight, "bias": bias}
        given = {operand: encoding for operand, encoding in operands.items() if encoding is not None}
        nearest = min(self._schemes[op_type], key=lambda s: (s.refused_types(given), len(s.complaints(given))))
        complaints = nearest.complaints(given)
        return f"{op_type} on {self.name}: {'; '.join(complaints)}" if complaints else None

    @cached_property
    def _schemes(self) -> dict[str, tuple[Scheme, ...]]:
        return {op_type: rule.schemes for rule in self.rules for op_type in rule.types}


def _name(dtype: ir.DataType) -> str:
    return dtype.name.lower()


def _middle(dtype: ir.DataType) -> int:
    """The zero point of a symmetric encoding: 0, or 2^(bits-1) of an unsigned integer type."""
    if not _name(dtype).startswith("uint"):
        return 0
    _, bits = integer_format(dtype)
    return 1 << (bits - 1)
