"""What a target says: which operators an NPU takes, in which encodings, how it computes and what that costs. Values only;
`qdqtool.targets.loading` reads them from files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from functools import cached_property
from typing import Literal

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.names import kebab_case
from qdq_passes.graph.annotate import LEFT_FLOAT
from qdq_passes.graph.uses import FLOAT_TYPES
from qdq_passes.npu.traps.rule import TrapRule
from qdq_passes.npu.units.units import Unit
from qdq_passes.npu.units.verdict import NOTHING_TO_MEND, UNQUANTIZED, Boundary, Policy, Verdict, VerdictKind
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.refine.look.shifts import ShiftLimits, Violation

from qdqtool.targets import remedies
from qdqtool.targets.cost import Cost, Memory
from qdqtool.targets.device import Device
from qdqtool.targets.legalization import Binds, Legalization
from qdqtool.targets.reach import out_of_reach
from qdqtool.targets.rules import Case, Complaint, Engine, Operand, OpRule, Scheme, UnmetDemand, conversions
from qdqtool.targets.unit_facts import UnitFacts

#: Dimensions that may be symbolic.
Symbolic = Literal["none", "bound-batch", "batch", "any"]
_BINDS: dict[Symbolic, Binds] = {
    "none": "always", "bound-batch": "where-needed", "batch": "where-needed", "any": "never"
}  # fmt: skip

#: What of a language model the NPU is given.
Arrange = Literal["whole", "linear"]

#: Operators that have rules for what stands in quantized models, and are not what a quantizer quantizes.
NOT_QUANTIZED = ("*", "QuantizeLinear", "com.microsoft::QuantizeLinear")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What no operator may exceed. A shape of which nothing is known exceeds nothing: run infer-shapes first.

    Args:
        batch: most samples of the model's inputs in what flows in, of three dimensions or more; None for any.
        max_rank: most dimensions of any operand; None for any.
        symbolic: which dimensions may be symbolic: none; the first, which is bound when the model is compiled, or at run time;
            the first, but only here: verdicts hold for the model that has it bound, and a finding says that it must be; or any.
    """

    batch: int | None = None
    max_rank: int | None = None
    symbolic: Symbolic = "none"

    @property
    def binds(self) -> Binds:
        """Where quantizing for it makes a symbolic batch static."""
        return _BINDS[self.symbolic]

    def exceeded(self, facts: UnitFacts) -> tuple[str, str, str] | None:
        """(rule, reason, suggestion) of the first limit that a unit exceeds."""
        tensors = [t for t in (*facts.inputs, *facts.outputs) if t.kind != "absent" and not t.constant]
        for tensor in tensors:
            bound = {"none": 0, "bound-batch": 1, "batch": 1, "any": tensor.rank}[self.symbolic]
            if tensor.shape is not None and None in tensor.shape[bound:]:
                where = "an output" if tensor in facts.outputs else "an input"
                reason = f"{where}, {tensor.label}, has the shape {tensor.shape_text}, which is not static"
                return "static-shapes", reason, remedies.of_shape(facts.unit)
        for tensor in (*tensors, *(t for t in facts.inputs if t.constant)):
            if self.max_rank is not None and tensor.rank is not None and tensor.rank > self.max_rank:
                reason = f"{tensor.label} has {tensor.rank} dimensions, more than {self.max_rank}"
                return "max-rank", reason, remedies.of_rank(self.max_rank)
        for tensor in facts.inputs:
            if self.batch is not None and tensor.batch > self.batch and tensor.kind in ("activation", "float"):
                reason = f"its input {tensor.label} has a batch of {tensor.batch}, more than {self.batch}"
                return "batch", reason, remedies.of_batch(self.batch)
        return None


@dataclass(frozen=True, kw_only=True)
class Target:
    """An NPU. It is a `qdq_passes.npu.units.verdict.TargetRules`.

    Args:
        name: the name of its file: ``generic_int8``.
        description: one line.
        version: of the description; compiled files name it.
        rules: no operator type is in two of them.
        sha256: of what the file says, and those that it extends (comments and layout do not count).
        extends: name of the target that it was made from; empty for none.
        family, architecture, sdk: what the chip and its compiler are called; may be empty.
        cases: verdicts on operators of any rule, looked through after the rule's own.
        traps: what it does silently wrong or slowly; `check --target` looks for it.
        shifts: how far it shifts between positions; None where scales are no powers of two, or it says nothing.
        arithmetic: how it computes on integers.
        policy: what one unsupported node costs.
        boundary: where the Q and DQ of float graph inputs and outputs run.
        minimum_group: fewest compute nodes that are worth a partition.
        join_siblings: whether groups of operators that wait for the same ones are one partition; an arrangement says so, no file.
        limits: what no operator may exceed.
        engines: parts of the chip; the first of the right kind that takes an operator computes it.
        memory: sizes that an estimate of time needs.
        cost: speeds likewise.
        legalization: what quantizing for it does besides a preset.
        arrange: of a language model, whether the NPU takes what it can, or linear layers alone, with attention and norms on the
            CPU.
        device: how a model runs on it; None where nobody knows.
    """

    name: str
    description: str
    version: str
    rules: tuple[OpRule, ...]
    sha256: str
    extends: str = ""
    family: str = ""
    architecture: str = ""
    sdk: str = ""
    cases: tuple[Case, ...] = ()
    traps: tuple[TrapRule, ...] = ()
    shifts: ShiftLimits | None = None
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    policy: Policy = "node"
    boundary: Boundary = "cpu"
    minimum_group: int = 1
    join_siblings: bool = False
    limits: Limits = field(default_factory=Limits)
    engines: tuple[Engine, ...] = ()
    memory: Memory = field(default_factory=Memory)
    cost: Cost = field(default_factory=Cost)
    legalization: Legalization = field(default_factory=Legalization)
    arrange: Arrange = "whole"
    device: Device | None = None

    @property
    def has_integers(self) -> bool:
        """Whether it computes on integers at all."""
        return any(engine.kind == "int" for engine in self.engines) or not self.engines

    def quantized_ops(self, activations: ir.DataType | None = None) -> tuple[str, ...]:
        """Operator types that it computes on integers for some encodings, sorted; where it has any whose values are stored as
        ``activations``, those."""
        rules = {op: rule for op, rule in self._rules.items() if rule.schemes and op not in NOT_QUANTIZED}
        of_type = [
            op for op, rule in rules.items() if any(activations in scheme.activations for scheme in rule.schemes)
        ]
        return tuple(sorted(of_type or rules))

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
        schemes = self._schemes(op_type)
        if not schemes:
            return f"{self.name} has no rule for {op_type}"
        operands: dict[Operand, Encoding | None] = {"activations": activation, "weights": weight, "bias": bias}
        given = {operand: encoding for operand, encoding in operands.items() if encoding is not None}
        nearest = min(schemes, key=lambda s: (s.refused_types(given), len(s.complaints(given))))
        complaints = nearest.complaints(given)
        return f"{op_type} on {self.name}: {'; '.join(c.text for c in complaints)}" if complaints else None

    def judge(self, unit: Unit) -> Verdict:
        """What becomes of ``unit``: limits, the demands of the operator's rule, cases of all operators, the rule's own cases, its
        schemes; the first that says something decides.

        Raises:
            ModelError: a condition of the target file compares what cannot be compared.
        """
        return next(self._verdicts(unit))

    def broken(self, unit: Unit) -> list[Verdict]:
        """Every rule that does not take ``unit`` as it stands, the one that decides (`judge`) first; each once.

        Raises:
            ModelError: as `judge`.
        """
        found: dict[str, Verdict] = {}
        for verdict in self._verdicts(unit):
            if verdict.reason:
                found.setdefault(verdict.rule, verdict)
        return list(found.values())

    def _verdicts(self, unit: Unit) -> Iterator[Verdict]:
        """What each rule says that says something, in the order in which they are asked; one that takes it ends them."""
        facts = UnitFacts(unit, self.name)
        rule = self._rules.get(facts.op) or self._rules.get("*")
        known = rule is not None and bool(rule.schemes or rule.cases)
        if not known:
            given = rule.suggestion(facts) if rule is not None and rule.suggestion is not None else ""
            way_out = given or remedies.of_operator(facts.op, unit, self.name)
            yield self._verdict("fallback", facts, "no-rule", f"{facts.op} is not supported on {self.name}", way_out)
        exceeded = self.limits.exceeded(facts)
        if exceeded is not None:
            yield self._verdict("fallback", facts, *exceeded)
        word = kebab_case(unit.core.op_type)
        unmet = rule.unmet_demand(facts) if rule is not None else None
        if unmet is not None:
            reason = f"{facts.op} on {self.name}: {unmet.text}"
            yield self._verdict("fallback", facts, f"{word}-demand", reason, _of_demand(unmet, unit))
        in_float = False
        for case in (*self.cases, *(rule.cases if rule is not None else ())):
            if case.when(facts):
                in_float |= case.verdict == "npu-float"
                mend = case.suggestion(facts)
                if not mend and case.verdict != "npu-int":
                    mend = remedies.of_form(facts.op, unit, self.name)
                yield self._verdict(case.verdict, facts, case.rule, case.reason(facts), mend)
                if case.verdict == "npu-int":
                    return
        if rule is not None and known:
            found = self._by_schemes(rule, facts, word)
            if not (in_float and facts.quantized and found.kind == "npu-float"):  # a case said why already
                yield found

    def _by_schemes(self, rule: OpRule, facts: UnitFacts, word: str) -> Verdict:
        found = [(scheme.complaints_of_unit(facts), scheme) for scheme in rule.schemes]
        if not found:
            reason = f"{facts.op} with {_input_words(facts)} is not supported on {self.name}"
            return self._verdict(
                rule.otherwise, facts, f"{word}-types", reason, self._way_out(rule, facts, self._anew())
            )
        complaints, nearest = min(found, key=lambda pair: len(pair[0]))
        takes_floats = any(dtype in FLOAT_TYPES for s in rule.schemes for dtype in s.activations)
        if complaints and not facts.quantized and not takes_floats:
            reason = f"{facts.op} is not quantized: {facts.why_float}"
            bias_alone = all(c.operand == "bias" for c in complaints)
            mend = self._conversions(complaints, nearest) if bias_alone else facts.mend_float
            left = facts.unit.core.metadata_props.get(LEFT_FLOAT) if self.policy == "region" else None
            if left is not None and not bias_alone:
                reason = f"{facts.op} was left float when the model was quantized: {left}"
                mend = f"{NOTHING_TO_MEND}with pairs around it, what it is connected with would stay on the CPU with it"
            return self._verdict("fallback", facts, UNQUANTIZED, reason, mend)
        if complaints:
            mend = self._conversions(complaints, nearest)
            reason = self._refusal(rule, facts, complaints)
            return self._verdict(rule.otherwise, facts, f"{word}-types", reason, self._way_out(rule, facts, mend))
        behind = next((op for op in facts.tail if not self._schemes(op)), None)
        if behind is not None:
            reason = f"{behind}, which belongs to this {facts.op}, is not supported on {self.name}"
            return self._verdict("fallback", facts, "tail", reason, remedies.of_tail(facts.unit, behind, self.name))
        if nearest.compute == "float":
            return self._computed_in_float(rule, facts, word)
        violation = out_of_reach(facts.unit, self.shifts) if self.shifts is not None else None
        if violation is not None:
            reason = f"{self.name} does not shift between the positions of this {facts.op}: {_out_of_reach(violation)}"
            return self._verdict(
                "fallback", facts, violation.rule, reason, remedies.of_shift(facts.unit.core, self.name)
            )
        return self._verdict("npu-int", facts, word)

    def _computed_in_float(self, rule: OpRule, facts: UnitFacts, word: str) -> Verdict:
        """Of a unit that a scheme takes to compute it in floating point: mended by what those for integers lack. Where the
        operator has none for integers, this is how it is computed, and nothing is to be said."""
        integer = [(s.complaints_of_unit(facts), s) for s in rule.schemes if s.compute == "integer"]
        if not integer:
            return self._verdict("npu-float", facts, word)
        if not facts.quantized:
            reason, mend = f"{facts.op} is computed in floating point: {facts.why_float}", facts.mend_float
        else:
            complaints, nearest = min(integer, key=lambda pair: len(pair[0]))
            reason = f"{facts.op} with {_input_words(facts)} is computed in floating point"
            mend = self._conversions(complaints, nearest)
        return self._verdict("npu-float", facts, f"{word}-float", reason, self._way_out(rule, facts, mend))

    def _conversions(self, complaints: list[Complaint], nearest: Scheme) -> str:
        return conversions(complaints, nearest, self.name, shifts=self.shifts is not None)

    def _way_out(self, rule: OpRule, facts: UnitFacts, otherwise: str) -> str:
        """What the target file says, else what holds on any target."""
        given = rule.suggestion(facts) if rule.suggestion is not None else ""
        return given or otherwise

    def _anew(self) -> str:
        return remedies.anew(self.name)

    def _refusal(self, rule: OpRule, facts: UnitFacts, complaints: list[Complaint]) -> str:
        """In words, of a type that no scheme takes, or of what the nearest does not."""
        types = {dtype for scheme in rule.schemes for dtype in scheme.activations}
        encoding = facts.x.encoding
        if facts.x.kind == "activation" and encoding is not None and encoding.dtype not in types:
            return f"{facts.op} with {_input_words(facts)} is not supported on {self.name}"
        return f"{facts.op} on {self.name}: {'; '.join(c.text for c in complaints)}"

    def _verdict(
        self, kind: VerdictKind, facts: UnitFacts, rule: str, reason: str = "", suggestion: str = ""
    ) -> Verdict:
        engine = self._engine(kind, facts.op) if kind in ("npu-int", "npu-float") else "CPU"
        return Verdict(kind=kind, engine=engine, rule=rule, reason=reason, suggestion=suggestion)

    def _engine(self, kind: VerdictKind, op_type: str) -> str:
        of_kind = [e for e in self.engines if kind == f"npu-{e.kind}"]
        return next((e.name for e in of_kind if not e.types or op_type in e.types), "NPU")

    def _schemes(self, op_type: str) -> tuple[Scheme, ...]:
        rule = self._rules.get(op_type)
        return () if rule is None else rule.schemes

    @cached_property
    def _rules(self) -> dict[str, OpRule]:
        return {op_type: rule for rule in self.rules for op_type in rule.types}


def _input_words(facts: UnitFacts) -> str:
    """``symmetric int8 input``; of unsigned types and floats the type alone."""
    if facts.x.quantized and facts.x.signed:
        return f"{'symmetric' if facts.x.symmetric else 'asymmetric'} {facts.x.dtype} input"
    return f"{facts.x.dtype or 'such'} input"


def _of_demand(unmet: UnmetDemand, unit: Unit) -> str:
    if unmet.index is not None:
        return remedies.of_constant(unit.operands[unmet.index].value)
    if unmet.attribute:
        return remedies.of_attribute(unmet.attribute)
    return "no pass is known that mends it: reshape its input where the model is exported"


def _out_of_reach(violation: Violation) -> str:
    """What is wrong with positions; of operators that only move integers, what it takes."""
    if violation.rule.startswith("align-") and violation.wanted:
        return f"its inputs and output must stand at one, the smallest, {violation.wanted[0][1]}"
    return violation.because
