"""Target files: TOML → `Target`, with a line that names file, table and key for whatever is wrong."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any, cast, get_args

import onnx_ir as ir
from qdq_passes.analysis.shifts import ShiftLimits
from qdq_passes.core.toml_registry import TomlFile, TomlRegistry
from qdq_passes.core.toml_table import TomlTable
from qdq_passes.core.traps.rule import TrapRule
from qdq_passes.core.traps.table import ALWAYS, OF_TARGETS
from qdq_passes.numerics.encoding import parse_dtype

from qdqtool.targets.target import GranularityKind, Operand, OpRule, Scales, Scheme, Target

TARGETS = TomlRegistry("targets", "qdqtool.targets")

#: What QuantizeLinear writes (ONNX operator changelog, opset 25), and int32, which DequantizeLinear reads as well: biases.
STORAGE_TYPES = (
    "int8", "uint8", "int16", "uint16", "int32", "int4", "uint4", "int2", "uint2",
    "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float4e2m1",
)  # fmt: skip

#: What a rule on traps may name: those, and the floats of what is not quantized.
ELEMENT_TYPES = (*STORAGE_TYPES, "float", "float16", "bfloat16")

EVERYWHERE = frozenset(rule.name() for rule in ALWAYS)

_OP_TYPE = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*::)?[A-Za-z_][A-Za-z0-9_]*")


def target_names() -> dict[str, str]:
    """Name → description of every target there is, sorted by name.

    Raises:
        UsageError: a name is defined twice.
        ModelError: one of the files is broken.
    """
    return {name: load_target(name).description for name in TARGETS.names()}


def load_target(name_or_path: str | os.PathLike[str]) -> Target:
    """The target of that name or, when it ends in ``.toml``, in that file.

    Raises:
        UsageError: there is no such name or file.
        ModelError: the file is broken; the message names file, table and key.
    """
    return _target(TARGETS.read(name_or_path))


def _target(file: TomlFile) -> Target:
    root = file.root("name", "description", "version", "traps", "shifts", "op")
    if "name" in root.data and root.text("name") != file.name:
        raise root.error(f"'name' is {root.text('name')!r}, but the file is {file.name}.toml", hint="leave it out")
    owners: dict[str, str] = {}
    rules = []
    for table in root.tables("op", "types", "scheme"):
        rule = _rule(table)
        for op_type in rule.types:
            if op_type in owners:
                raise table.error(f"{op_type!r} has a rule already", hint=f"see {owners[op_type]}")
            owners[op_type] = table.where.removeprefix(f"{file.origin} ")
        rules.append(rule)
    return Target(
        name=file.name,
        description=root.text("description"),
        version=root.text("version"),
        rules=tuple(rules),
        traps=_traps(root),
        sha256=file.sha256,
        shifts=_shifts(root) if "shifts" in root.data else None,
    )


def _shifts(root: TomlTable) -> ShiftLimits:
    """The table ``shifts``: numbers of bits, or [lowest, highest]; what is left out is as it is in the Vitis line."""
    fields = {field.name: field.default for field in dataclasses.fields(ShiftLimits)}
    table = root.table("shifts", *fields)
    given: dict[str, Any] = {}
    for key, value in table.data.items():
        pair = isinstance(fields[key], tuple)
        numbers: list[Any] = value if isinstance(value, list) else [value]
        if isinstance(value, list) != pair or len(numbers) != (2 if pair else 1) or not all(map(_is_integer, numbers)):
            raise table.error(f"{key!r} cannot be {value!r}", hint="two integers, [0, 16]" if pair else "an integer")
        if pair and numbers[0] > numbers[1]:
            raise table.error(f"{key!r} cannot be {value!r}", hint="the lowest comes first")
        given[key] = tuple(numbers) if pair else value
    return ShiftLimits(**given)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _traps(root: TomlTable) -> tuple[TrapRule, ...]:
    """The list ``traps``: ids, or tables that give a rule its parameters."""
    entries = root.data.get("traps", [])
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
        rule = OF_TARGETS[word.choice("rule", tuple(OF_TARGETS))]
        found.append(_trap(rule, data, where))
        if found.count(found[-1]) > 1:
            raise word.error(f"{rule.name()!r} is listed twice")
    return tuple(found)


def _trap(rule: type[TrapRule], data: dict[str, Any], where: str) -> TrapRule:
    """A rule with the parameters of its table; each is a list of texts."""
    fields = dataclasses.fields(rule)
    table = TomlTable.of(data, where=f"{where} ({rule.name()})", keys=("rule", *(field.name for field in fields)))
    given: dict[str, tuple[str, ...]] = {}
    for field in fields:
        if field.name not in data and field.default is not dataclasses.MISSING:
            continue
        if field.name == "elements":
            given[field.name] = table.choices(field.name, ELEMENT_TYPES, required=True)
        else:
            given[field.name] = _operators(table, field.name)
    return rule(**given)


def _operators(table: TomlTable, key: str) -> tuple[str, ...]:
    """A list of operator types."""
    types = table.texts(key, required=True)
    for op_type in types:
        if not _OP_TYPE.fullmatch(op_type):
            raise table.error(f"{op_type!r} is no operator type", hint="write Conv, or com.acme::FancyConv")
    return types


def _rule(table: TomlTable) -> OpRule:
    types = _operators(table, "types")
    keys = ("activations", "weights", "bias", "symmetric", "granularity", "scales")
    return OpRule(types=types, schemes=tuple(_scheme(t) for t in table.tables("scheme", *keys)))


def _scheme(table: TomlTable) -> Scheme:
    operands = get_args(Operand)
    symmetric = cast(tuple[Operand, ...], table.choices("symmetric", operands))
    for operand in symmetric:
        if operand not in table.data:
            raise table.error(
                f"'symmetric' names {operand!r}, of which nothing is taken", hint=f"add {operand} = [ … ]"
            )
    granularity = cast(tuple[GranularityKind, ...], table.choices("granularity", get_args(GranularityKind)))
    return Scheme(
        activations=_types(table, "activations", required=True),
        weights=_types(table, "weights"),
        bias=_types(table, "bias"),
        symmetric=symmetric,
        granularity=granularity or ("per-tensor",),
        scales=cast(Scales, table.choice("scales", get_args(Scales))),
    )


def _types(table: TomlTable, key: str, *, required: bool = False) -> tuple[ir.DataType, ...]:
    return tuple(parse_dtype(name) for name in table.choices(key, STORAGE_TYPES, required=required))
