"""Parts of target files beside their rules: arithmetic, limits, engines, numbers, shifts, traps. Each lays what it finds over
what the target extends has."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar, cast, get_args, get_type_hints

from qdq_passes.core.toml_table import TomlTable
from qdq_passes.npu.traps.rule import TrapRule
from qdq_passes.npu.traps.table import ALWAYS, rules_of_targets
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.refine.look.shifts import ShiftLimits

from qdqtool.targets.cost import Confidence, Cost, Figure, Memory
from qdqtool.targets.rules import Engine
from qdqtool.targets.target import Limits, Symbolic
from qdqtool.targets.toml_values import (
    ELEMENT_TYPES,
    bounds,
    flag,
    integer,
    is_integer,
    mismatch,
    operators_of,
    some_tables,
)

EVERYWHERE = frozenset(rule.name() for rule in ALWAYS)

Numbers = TypeVar("Numbers", Memory, Cost)

#: Least and largest of the numbers of ``[arithmetic]``.
_SIZES = {"accumulator": (8, 64), "wide_accumulator": (8, 64), "segments": (1, 65536)}
#: Figures that may be 0: what is paid once. All others are speeds, sizes and factors.
_EXTRAS = ("dispatch_us", "per_group_penalty")


def arithmetic_of(root: TomlTable, base: Arithmetic) -> Arithmetic:
    """The table ``arithmetic``: the fields of `Arithmetic`."""
    hints = get_type_hints(Arithmetic)
    table = root.table("arithmetic", *hints)
    given: dict[str, Any] = {}
    for key in table.data:
        if words := get_args(hints[key]):
            given[key] = table.choice(key, words)
        elif hints[key] is bool:
            given[key] = flag(table, key, False)
        else:
            low, high = _SIZES[key]
            given[key] = integer(table, key, 0, least=low)
            if given[key] > high or (key == "segments" and given[key] & (given[key] - 1)):
                meant = "a power of two" if key == "segments" else f"{low} to {high} bits"
                raise mismatch(table, key, given[key], meant)
    return dataclasses.replace(base, **given)


def limits_of(root: TomlTable, base: Limits) -> Limits:
    """The table ``limits``."""
    table = root.table("limits", "batch", "max_rank", "symbolic")
    return Limits(
        batch=integer(table, "batch", base.batch, least=1),
        max_rank=integer(table, "max_rank", base.max_rank, least=1),
        symbolic=cast(Symbolic, table.choice("symbolic", get_args(Symbolic)))
        if "symbolic" in table.data
        else base.symbolic,
    )


def engines_of(root: TomlTable, base: tuple[Engine, ...]) -> tuple[Engine, ...]:
    """The tables ``engine``: of the same name they replace one that the target extends has, others come first."""
    found: list[Engine] = []
    for table in some_tables(root, "engine", "name", "kind", "types"):
        engine = Engine(
            name=table.text("name"),
            kind=cast(Any, table.choice("kind", ("int", "float"))),
            types=operators_of(table, "types", required=False),
        )
        if any(other.name == engine.name for other in found):
            raise table.error(f"{engine.name!r} is there twice")
        found.append(engine)
    names = {engine.name for engine in found}
    return (*found, *(engine for engine in base if engine.name not in names))


def memory_of(root: TomlTable, base: Memory) -> Memory:
    """The table ``memory``: figures."""
    table = root.table("memory", *(field.name for field in dataclasses.fields(Memory)))
    given: dict[str, Any] = {key: _figure(table, key) for key in table.data if key != "tile"}
    if "tile" in table.data:
        given["tile"] = _tile(table)
    return dataclasses.replace(base, **given)


def cost_of(root: TomlTable, base: Cost) -> Cost:
    """The table ``cost``: figures, of ``macs_per_cycle`` one by width, those of the CPU in ``cpu``."""
    fields = [field.name for field in dataclasses.fields(Cost)]
    of_cpu = [name.removeprefix("cpu_") for name in fields if name.startswith("cpu_")]
    table = root.table("cost", *(name for name in fields if not name.startswith("cpu_")), "cpu")
    given: dict[str, Any] = {key: _figure(table, key) for key in table.data if key not in ("macs_per_cycle", "cpu")}
    if "cpu" in table.data:
        below = table.table("cpu", *of_cpu)
        given |= {f"cpu_{key}": _figure(below, key) for key in below.data}
    if "macs_per_cycle" in table.data:
        below = table.table("macs_per_cycle", *base.macs_per_cycle)
        given["macs_per_cycle"] = {**base.macs_per_cycle, **{key: _figure(below, key) for key in below.data}}
    return dataclasses.replace(base, **given)


def _figure(table: TomlTable, key: str) -> Figure[float]:
    below, value = _figure_table(table, key)
    may_be_zero = key in _EXTRAS
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value < 0 or not (value or may_be_zero):
        raise mismatch(below, "value", value, "a number that is not negative" if may_be_zero else "a number above 0")
    return _of(below, float(value))


def _tile(table: TomlTable) -> Figure[tuple[int, int, int]]:
    below, value = _figure_table(table, "tile")
    if not isinstance(value, list) or len(value) != 3 or not all(is_integer(v) and v > 0 for v in value):
        raise mismatch(below, "value", value, "three integers, [rows, depth, columns]")
    return _of(below, (value[0], value[1], value[2]))


def _figure_table(table: TomlTable, key: str) -> tuple[TomlTable, Any]:
    below = table.table(key, "value", "source", "confidence")
    if "value" not in below.data:
        raise below.error("'value' is missing", hint=f'{key} = {{value = …, source = "…", confidence = "assumed"}}')
    return below, below.data["value"]


T = TypeVar("T")


def _of(below: TomlTable, value: T) -> Figure[T]:
    source = below.text("source")
    below.text("confidence")
    return Figure(
        value=value, source=source, confidence=cast(Confidence, below.choice("confidence", get_args(Confidence)))
    )


def shifts_of(root: TomlTable, base: ShiftLimits | None) -> ShiftLimits | None:
    """The table ``shifts``: numbers of bits, or [lowest, highest]; what is left out is as it is in the Vitis line."""
    if "shifts" not in root.data:
        return base
    fields: Mapping[str, object] = {field.name: field.default for field in dataclasses.fields(ShiftLimits)}
    table = root.table("shifts", *fields)
    given: dict[str, Any] = {}
    for key, value in table.data.items():
        if isinstance(fields[key], tuple):
            given[key] = bounds(table, key)
        elif is_integer(value):
            given[key] = value
        else:
            raise mismatch(table, key, value, "an integer")
    return dataclasses.replace(base or ShiftLimits(), **given)


def traps_of(root: TomlTable, base: tuple[TrapRule, ...]) -> tuple[TrapRule, ...]:
    """The list ``traps``: ids, or tables that give a rule its parameters. It replaces that of the target extends."""
    if "traps" not in root.data:
        return base
    entries = root.data["traps"]
    if not isinstance(entries, list):
        raise root.error("'traps' is no list", hint='write traps = ["clip-after-pair"]')
    found: list[TrapRule] = []
    for number, entry in enumerate(entries, start=1):
        where = f"{root.where} traps {number}"
        if not isinstance(entry, str | dict):
            raise TomlTable({}, where, ()).error("is no id of a rule", hint='as in "clip-after-pair"')
        data = {"rule": entry} if isinstance(entry, str) else entry
        word = TomlTable(data, where, ())
        if word.text("rule") in EVERYWHERE:
            raise word.error(f"{data['rule']!r} is looked for whatever the target", hint="leave it out")
        rule = rules_of_targets()[word.choice("rule", tuple(rules_of_targets()))]
        found.append(_trap(rule, data, where))
        if found.count(found[-1]) > 1:
            raise word.error(f"{rule.name()!r} is listed twice")
    return tuple(found)


def _trap(rule: type[TrapRule], data: dict[str, Any], where: str) -> TrapRule:
    """A rule with the parameters of its table; each is a list of texts, or of sizes."""
    fields = dataclasses.fields(rule)
    table = TomlTable.of(data, where=f"{where} ({rule.name()})", keys=("rule", *(field.name for field in fields)))
    given: dict[str, Any] = {}
    for field in fields:
        if field.name not in data and field.default is not dataclasses.MISSING:
            continue
        if field.name == "tile":
            given[field.name] = _sizes(table, "tile")
        elif field.name == "elements":
            given[field.name] = table.choices(field.name, ELEMENT_TYPES, required=True)
        else:
            given[field.name] = operators_of(table, field.name)
    return rule(**given)


def _sizes(table: TomlTable, key: str) -> tuple[int, ...]:
    """A list of integers above 0."""
    value = table.data.get(key)
    if value is None:
        raise table.error(f"{key!r} is missing", hint=f"as in {key} = [8, 128]")
    if not isinstance(value, list) or not value or not all(is_integer(size) and size > 0 for size in value):
        raise mismatch(table, key, value, "sizes along the last axes, as in [8, 128]")
    return tuple(value)
