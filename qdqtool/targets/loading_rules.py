"""Rules and cases of target files."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar, cast, get_args

from qdq_passes.core.toml_table import TomlTable
from qdq_passes.npu.units.verdict import VERDICT_KINDS, VerdictKind

from qdqtool.targets.expression import Expression, Template
from qdqtool.targets.rules import Case, Compute, GranularityKind, Operand, OpRule, Scales, Scheme
from qdqtool.targets.toml_values import bounds, is_integer, mismatch, operators_of, parsed, some_tables, types_of
from qdqtool.targets.unit_facts import vocabulary

RULE_KEYS = (
    "types", "case", "scheme", "ranks", "constant_inputs", "attributes", "otherwise", "suggestion",
)  # fmt: skip
CASE_KEYS = ("when", "verdict", "rule", "reason", "suggestion")
SCHEME_KEYS = ("activations", "weights", "bias", "symmetric", "granularity", "scales", "compute")

_RULE_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

T = TypeVar("T")


def rule_of(table: TomlTable) -> OpRule:
    """One ``[[op]]``."""
    types = operators_of(table, "types", star=True)
    named = tuple(op_type for op_type in types if op_type != "*")
    schemes = tuple(scheme_of(t) for t in some_tables(table, "scheme", *SCHEME_KEYS))
    cases = tuple(case_of(t, named) for t in some_tables(table, "case", *CASE_KEYS))
    if not schemes and not cases and "suggestion" not in table.data:
        raise table.error("'scheme' is missing", hint="or [[op.case]], or a 'suggestion' what to use instead")
    return OpRule(
        types=types,
        schemes=schemes,
        cases=cases,
        ranks=bounds(table, "ranks"),
        constant_inputs=_indices(table, "constant_inputs"),
        attributes=_attributes(table, named),
        otherwise=_verdict(table, "otherwise", "fallback"),
        suggestion=parsed(table, "suggestion", _template(table, named)) if "suggestion" in table.data else None,
    )


def case_of(table: TomlTable, op_types: tuple[str, ...] = ()) -> Case:
    """One ``[[op.case]]`` of a rule on ``op_types``, or a ``[[case]]`` on all operators."""
    words = vocabulary(op_types)
    verdict = _verdict(table, "verdict", None)
    rule = table.text("rule")
    if not _RULE_ID.fullmatch(rule):
        raise mismatch(table, "rule", rule, "words in lower case, as in leaky-relu-int8")
    return Case(
        when=parsed(table, "when", lambda text: Expression.parse(text, words, f"{table.where} ({rule})")),
        verdict=verdict,
        rule=rule,
        reason=parsed(table, "reason", _template(table, op_types, rule), "" if verdict == "npu-int" else None),
        suggestion=parsed(table, "suggestion", _template(table, op_types, rule), ""),
    )


def scheme_of(table: TomlTable) -> Scheme:
    """One ``[[op.scheme]]``."""
    symmetric = cast(tuple[Operand, ...], table.choices("symmetric", get_args(Operand)))
    for operand in symmetric:
        if operand not in table.data:
            raise table.error(
                f"'symmetric' names {operand!r}, of which nothing is taken", hint=f"add {operand} = [ … ]"
            )
    granularity = cast(tuple[GranularityKind, ...], table.choices("granularity", get_args(GranularityKind)))
    return Scheme(
        activations=types_of(table, "activations", required=True),
        weights=types_of(table, "weights"),
        bias=types_of(table, "bias"),
        symmetric=symmetric,
        granularity=granularity or ("per-tensor",),
        scales=cast(Scales, table.choice("scales", get_args(Scales))),
        compute=cast(Compute, table.choice("compute", get_args(Compute))),
    )


def _template(table: TomlTable, op_types: tuple[str, ...], rule: str = "") -> Callable[[str], Template]:
    words = vocabulary(op_types)
    return lambda text: Template.parse(text, words, f"{table.where} ({rule})" if rule else table.where)


def _verdict(table: TomlTable, key: str, default: VerdictKind | None) -> VerdictKind:
    if default is not None and key not in table.data:
        return default
    table.text(key)  # `choice` would take the first where it is missing
    return cast(VerdictKind, table.choice(key, VERDICT_KINDS))


def _indices(table: TomlTable, key: str) -> tuple[int, ...]:
    value = table.data.get(key, [])
    if (
        not isinstance(value, list)
        or not all(is_integer(v) and v >= 0 for v in value)
        or (key in table.data and not value)
    ):
        raise mismatch(table, key, value, "a list of indices of inputs, as in [1]")
    return tuple(value)


def _attributes(table: TomlTable, op_types: tuple[str, ...]) -> dict[str, tuple[object, ...]]:
    """``attributes = {auto_pad = ["NOTSET"]}``: lists of the values taken."""
    known = vocabulary(op_types).names["attr"]
    given = table.data.get("attributes", {})
    below = table.table("attributes", *(given if isinstance(given, dict) else ()))
    found: dict[str, tuple[object, ...]] = {}
    for name, values in below.data.items():
        if name not in known:
            raise below.error(
                f"{' and '.join(op_types)} have no attribute {name!r}", hint=f"there are {', '.join(sorted(known))}"
            )
        if not isinstance(values, list) or not values:
            raise mismatch(below, name, values, "a list of the values that are taken")
        found[name] = tuple(values)
    return found
