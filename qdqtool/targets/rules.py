"""Rules of a target: which encodings operators take, and what becomes of them under which conditions. Values only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Literal

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.npu.units.units import BIAS_INPUTS
from qdq_passes.npu.units.verdict import VerdictKind
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.granularity import PER_TENSOR
from qdq_passes.qdq.look.grids import middle

from qdqtool.targets.expression import Expression, Template
from qdqtool.targets.remedies import anew
from qdqtool.targets.tensor_facts import TensorFacts
from qdqtool.targets.unit_facts import UnitFacts

_KINDS: dict[Operand, str] = {"activations": "activation", "weights": "weight"}
Operand = Literal["activations", "weights", "bias"]
GranularityKind = Literal["per-tensor", "per-axis", "blocked"]
Scales = Literal["any", "pow2"]
Compute = Literal["integer", "float"]
Encodings = Mapping[Operand, Encoding]

_SINGULAR: dict[Operand, str] = {"activations": "activation", "weights": "weight", "bias": "bias"}
#: What an operand of a unit is to a scheme.
_OPERAND: dict[str, Operand] = {"activation": "activations", "weight": "weights", "constant": "weights", "bias": "bias"}


@dataclass(frozen=True, kw_only=True)
class Complaint:
    """What a scheme does not take of an operand.

    Args:
        operand: the operand.
        what: its storage type; its zero point; its granularity; its scale; that it is no integers; or all of it, as there is no
            such operand in the scheme.
        text: in words: ``weight is per-axis, not per-tensor``.
        dtype: its storage type, where that is not taken.
    """

    operand: Operand
    what: Literal["type", "zero-point", "granularity", "scale", "float", "refused"]
    text: str
    dtype: ir.DataType | None = None


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """One combination of encodings that an operator takes.

    Args:
        activations: storage types of inputs and outputs; these are per-tensor. ``FLOAT`` and ``FLOAT16`` for what is left float.
        weights: storage types of constants; none when empty.
        bias: storage types of the bias; none when empty. ``FLOAT`` takes one that is left float.
        symmetric: operands whose zero point must be the middle of their type: 0 for int8, 128 for uint8.
        granularity: of weights and bias.
        scales: ``"pow2"`` demands powers of two, of every operand.
        compute: whether the operator is then computed on integers, or in floating point.
    """

    activations: tuple[ir.DataType, ...]
    weights: tuple[ir.DataType, ...] = ()
    bias: tuple[ir.DataType, ...] = ()
    symmetric: tuple[Operand, ...] = ()
    granularity: tuple[GranularityKind, ...] = ("per-tensor",)
    scales: Scales = "any"
    compute: Compute = "integer"

    def types(self, operand: Operand) -> tuple[ir.DataType, ...]:
        """Storage types it takes for ``operand``."""
        return {"activations": self.activations, "weights": self.weights, "bias": self.bias}[operand]

    def refused_types(self, given: Encodings) -> int:
        """How many of the encodings given have a storage type it does not take."""
        return sum(encoding.dtype not in self.types(operand) for operand, encoding in given.items())

    def complaints(self, given: Encodings) -> list[Complaint]:
        """What it does not take of the encodings given; empty when it takes them all."""
        return [
            complaint
            for operand, encoding in given.items()
            for complaint in self._complaints(operand, encoding, _SINGULAR[operand])
        ]

    def complaints_of_unit(self, facts: UnitFacts) -> list[Complaint]:
        """What it does not take of a unit, each once; empty when it takes it all."""
        found: dict[str, Complaint] = {}
        for tensor in (*facts.inputs, *facts.outputs):
            if tensor.kind not in ("control", "absent"):
                found |= {complaint.text: complaint for complaint in self._complaints_of(tensor, facts)}
        return list(found.values())

    def _complaints_of(self, tensor: TensorFacts, facts: UnitFacts) -> Iterator[Complaint]:
        operand = _OPERAND.get(tensor.kind) or _operand_of_float(tensor, facts)
        word = "constant" if tensor.kind == "constant" else _SINGULAR[operand]
        if tensor.encoding is not None:
            yield from self._complaints(operand, tensor.encoding, word)
            return
        names = [_name(t) for t in self.types(operand)]
        if tensor.dtype is None or tensor.dtype not in names:
            which = "output" if tensor in facts.outputs else "input" if operand == "activations" else word
            floats = [name for name in names if name in _FLOATS] if tensor.dtype in _FLOATS else []
            is_unquantized = tensor.dtype in _FLOATS and not floats
            if is_unquantized:
                text = f"{which} is not quantized"
            else:
                text = (
                    f"{which} is {tensor.dtype or 'of unknown type'}{', not ' if floats else ''}{' or '.join(floats)}"
                )
            yield Complaint(operand=operand, what="float" if is_unquantized else "refused", text=text)

    def _complaints(self, operand: Operand, encoding: Encoding, word: str) -> Iterator[Complaint]:
        types = self.types(operand)
        if not types:
            yield Complaint(operand=operand, what="refused", text=f"takes no quantized {word}")
            return
        if encoding.dtype not in types:
            text = f"{word} is {_name(encoding.dtype)}, not {' or '.join(_name(t) for t in types)}"
            yield Complaint(operand=operand, what="type", text=text, dtype=encoding.dtype)
        center = middle(encoding.dtype)
        off = [z for z in encoding.zero_point if z != center]
        if operand in self.symmetric and off:
            text = f"{word} has zero point {off[0]}, not {center} (symmetric)"
            yield Complaint(operand=operand, what="zero-point", text=text)
        granularity = (PER_TENSOR.kind,) if operand == "activations" else self.granularity
        if encoding.granularity.kind not in granularity:
            text = f"{word} is {encoding.granularity.kind}, not {' or '.join(granularity)}"
            yield Complaint(operand=operand, what="granularity", text=text)
        if self.scales == "pow2" and encoding.position is None:
            yield Complaint(operand=operand, what="scale", text=f"{word} has a scale that is no power of two")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A verdict under a condition.

    Args:
        when: over the facts of a unit.
        verdict: what becomes of the unit when it holds.
        rule: id: ``leaky-relu-int8``.
        reason: why, in words; empty for a plain ``npu-int``.
        suggestion: the way out, commands in backticks; where it is empty, that no pass is known that mends it.
    """

    when: Expression
    verdict: VerdictKind
    rule: str
    reason: Template
    suggestion: Template


@dataclass(frozen=True, kw_only=True)
class OpRule:
    """What operators take.

    Args:
        types: standard operators bare (``Conv``), others with their domain (``com.acme::FancyConv``); ``*`` for all that no other
            rule names.
        schemes: alternatives; one of them must take all operands.
        cases: looked through in order before the schemes.
        ranks: fewest and most dimensions of the first input; None for any.
        constant_inputs: indices of inputs whose data must be known.
        attributes: attribute → the values that are taken.
        otherwise: what becomes of a unit that no case and no scheme takes.
        suggestion: the way out then; where there is none, what brings the encodings to the nearest scheme.
    """

    types: tuple[str, ...]
    schemes: tuple[Scheme, ...] = ()
    cases: tuple[Case, ...] = ()
    ranks: tuple[int, int] | None = None
    constant_inputs: tuple[int, ...] = ()
    attributes: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    otherwise: VerdictKind = "fallback"
    suggestion: Template | None = None

    def unmet_demand(self, facts: UnitFacts) -> UnmetDemand | None:
        """What ``facts`` lack of ranks, constants and attribute values; None where nothing."""
        if self.ranks is not None and facts.x.rank is not None and not self.ranks[0] <= facts.x.rank <= self.ranks[1]:
            return UnmetDemand(text=f"its input has {facts.x.rank} dimensions, not {_span(self.ranks)}")
        for index in self.constant_inputs:
            if index < len(facts.inputs) and facts.inputs[index].kind != "absent" and not facts.inputs[index].constant:
                return UnmetDemand(text=f"its input {index} is computed, not a constant", index=index)
        for name, allowed in self.attributes.items():
            value = getattr(facts.attr, name)
            if value is not None and value not in allowed:
                return UnmetDemand(text=f"its {name} is {value}, not {' or '.join(map(str, allowed))}", attribute=name)
        return None


@dataclass(frozen=True, kw_only=True)
class UnmetDemand:
    """What an operator lacks; a number of dimensions where neither an input nor an attribute is told.

    Args:
        text: in words.
        index: of the input that must be a constant.
        attribute: name of the attribute that has another value.
    """

    text: str
    index: int | None = None
    attribute: str = ""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A part of the chip that computes.

    Args:
        name: as reports call it.
        kind: whether it computes on integers or in floating point.
        types: operators it takes; any when empty.
    """

    name: str
    kind: Literal["int", "float"]
    types: tuple[str, ...] = ()


_FLOATS = (None, "float", "float16", "bfloat16", "double")


def _operand_of_float(tensor: TensorFacts, facts: UnitFacts) -> Operand:
    """What an operand that is left float is to a scheme: by its place, where its data are known."""
    if not tensor.constant:
        return "activations"
    return "bias" if BIAS_INPUTS.get(facts.unit.core.op_type) == facts.inputs.index(tensor) else "weights"


def _name(dtype: ir.DataType) -> str:
    return dtype.name.lower()


def _span(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return f"{low}" if low == high else f"{low} to {high}"


def conversions(complaints: Iterable[Complaint], scheme: Scheme, target: str, *, shifts: bool) -> str:
    """Of encodings that ``scheme``, the nearest, does not take: the commands that bring them there, and with ``shifts`` between
    positions these to where ``target`` shifts, else the region around an operator that it does not shift would be lost next."""
    found = list(complaints)
    if any(c.what == "refused" for c in found):
        return f"no pass is known that mends it here; {anew(target)}"
    each = {operand: _conversion(operand, found, scheme) for operand in _KINDS}
    bias = _bias(found, scheme)
    commands = [f"qdqtool qdq convert {options} --kinds {_KINDS[o]}" for o, options in each.items() if options]
    if each["activations"] == each["weights"] and commands:
        commands = [f"qdqtool qdq convert {each['weights']}"]
    if bias:
        commands = [*commands[:-1], (commands[-1] if commands else "qdqtool qdq convert") + bias]
    if any(c.what == "scale" for c in found):
        commands += ["qdqtool qdq set --all --round-pow2", *(["qdqtool opt -p refine-positions"] if shifts else [])]
    steps = ", then ".join(f"`{command}`" for command in commands)
    return f"convert the encodings: {steps}; or {anew(target)}" if steps else anew(target)


def _conversion(operand: Operand, complaints: list[Complaint], scheme: Scheme) -> str:
    """Options of `qdq convert` that bring ``operand`` to ``scheme``; empty when it is there."""
    own = {complaint.what: complaint for complaint in complaints if complaint.operand == operand}
    options = []
    if "type" in own:
        options.append(f"--dtype {_nearest(own['type'].dtype, scheme.types(operand)).name.lower()}")
    if "zero-point" in own or ("type" in own and operand in scheme.symmetric):
        options.append("--symmetric")
    if "granularity" in own:
        options.append(
            "--per-tensor" if operand == "activations" or "per-tensor" in scheme.granularity else "--per-axis"
        )
    return " ".join(options)


def _nearest(dtype: ir.DataType | None, types: tuple[ir.DataType, ...]) -> ir.DataType:
    """Of the same sign if there is one, the first else."""
    signed = dtype is not None and not dtype.name.startswith("U")
    return next((t for t in types if t.name.startswith("U") != signed and t.name.startswith(("U", "INT"))), types[0])


def _bias(complaints: list[Complaint], scheme: Scheme) -> str:
    if not any(c.operand == "bias" and c.what in ("type", "zero-point", "float") for c in complaints):
        return ""
    wide = ir.DataType.INT32 in scheme.bias
    return f" --bias {'int32' if wide else 'int8'}" if wide or ir.DataType.INT8 in scheme.bias else ""
