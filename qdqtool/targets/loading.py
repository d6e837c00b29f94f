"""Target files: TOML → `Target`, with a line that names file, table and key for whatever is wrong."""

from __future__ import annotations

import os
import re
from typing import cast, get_args

import onnx_ir as ir
from qdq_passes.core.toml_registry import TomlFile, TomlRegistry
from qdq_passes.core.toml_table import TomlTable
from qdq_passes.numerics.encoding import parse_dtype

from qdqtool.targets.target import GranularityKind, Operand, OpRule, Scales, Scheme, Target

TARGETS = TomlRegistry("targets", "qdqtool.targets")

#: What QuantizeLinear writes (ONNX operator changelog, opset 25), and int32, which DequantizeLinear reads as well: biases.
STORAGE_TYPES = (
    "int8", "uint8", "int16", "uint16", "int32", "int4", "uint4", "int2", "uint2",
    "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float4e2m1",
)  # fmt: skip

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
    root = file.root("name", "description", "version", "op")
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
        sha256=file.sha256,
    )


def _rule(table: TomlTable) -> OpRule:
    types = table.texts("types", required=True)
    for op_type in types:
        if not _OP_TYPE.fullmatch(op_type):
            raise table.error(f"{op_type!r} is no operator type", hint="write Conv, or com.acme::FancyConv")
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
