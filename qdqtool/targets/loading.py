"""Target files: TOML → `Target`, with a line that names file, table and key for whatever is wrong."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from pathlib import Path
from typing import Any, cast, get_args

from qdq_passes.core.toml_registry import LONGEST_FAMILY, SUFFIX, TomlFile
from qdq_passes.core.toml_table import TomlTable
from qdq_passes.npu.units.verdict import Boundary, Policy

from qdqtool.targets import TARGETS
from qdqtool.targets.device import device_of
from qdqtool.targets.legalization import legalization_of
from qdqtool.targets.loading_parts import (
    arithmetic_of,
    cost_of,
    engines_of,
    limits_of,
    memory_of,
    shifts_of,
    traps_of,
)
from qdqtool.targets.loading_rules import CASE_KEYS, RULE_KEYS, case_of, rule_of
from qdqtool.targets.rules import OpRule
from qdqtool.targets.target import Arrange, Target
from qdqtool.targets.toml_values import integer, optional_text, some_tables

ROOT_KEYS = (
    "name", "description", "version", "extends", "family", "architecture", "sdk", "policy", "boundary", "minimum_group", "traps",
    "arithmetic", "limits", "engine", "memory", "cost", "shifts", "quantize", "case", "op", "arrange", "device",
)  # fmt: skip

#: What a target is laid over that extends none.
_NOTHING = Target(name="", description="", version="", rules=(), sha256="")


def load_target(name_or_path: str | os.PathLike[str]) -> Target:
    """The target of that name or, when it ends in ``.toml``, in that file.

    Raises:
        UsageError: there is no such name or file.
        ModelError: the file is broken; the message names file, table and key.
    """
    return _target(_family(TARGETS.read(name_or_path), ()))


@functools.lru_cache(maxsize=64)
def _target(family: tuple[TomlFile, ...]) -> Target:
    """Return the target of the first file, laid over the one of the others. It is made once for the same contents."""
    file, *above = family
    root = file.root(*ROOT_KEYS)
    base = _target(tuple(above)) if above else _NOTHING
    sha256 = file.sha256 if base is _NOTHING else hashlib.sha256(f"{file.sha256}{base.sha256}".encode()).hexdigest()
    policy = cast(Policy, root.choice("policy", get_args(Policy))) if "policy" in root.data else base.policy
    limits = limits_of(root, base.limits)
    return Target(
        name=file.name,
        description=root.text("description"),
        version=root.text("version"),
        rules=_rules(root, file, base),
        sha256=sha256,
        extends=base.name,
        family=optional_text(root, "family") or base.family,
        architecture=optional_text(root, "architecture") or base.architecture,
        sdk=optional_text(root, "sdk") or base.sdk,
        cases=(*(case_of(table) for table in some_tables(root, "case", *CASE_KEYS)), *base.cases),
        traps=traps_of(root, base.traps),
        shifts=shifts_of(root, base.shifts),
        arithmetic=arithmetic_of(root, base.arithmetic),
        policy=policy,
        boundary=cast(Boundary, root.choice("boundary", get_args(Boundary)))
        if "boundary" in root.data
        else base.boundary,
        minimum_group=integer(root, "minimum_group", base.minimum_group, least=1),
        limits=limits,
        engines=engines_of(root, base.engines),
        memory=memory_of(root, base.memory),
        cost=cost_of(root, base.cost),
        legalization=dataclasses.replace(
            legalization_of(root, file, base.legalization), isolates=policy == "region", binds=limits.binds
        ),
        device=device_of(root, base.device),
        arrange=cast(Arrange, root.choice("arrange", get_args(Arrange))) if "arrange" in root.data else base.arrange,
    )


def _family(file: TomlFile, below: tuple[str, ...]) -> tuple[TomlFile, ...]:
    """Return ``file`` and those it extends, in order: each by name, or by a path from the folder of the one that names it."""
    root = file.root(*ROOT_KEYS)
    if "name" in root.data and root.text("name") != file.name:
        raise root.error(f"'name' is {root.text('name')!r}, but the file is {file.name}.toml", hint="leave it out")
    if "extends" not in root.data:
        return (file,)
    name = root.text("extends")
    wanted: Any = Path(file.origin).parent / name if name.endswith(SUFFIX) else name
    base = TARGETS.read(wanted)
    family = (*below, os.path.realpath(file.origin))
    if os.path.realpath(base.origin) in family:
        raise root.error(f"{name!r} extends this target already", hint="a family has one root")
    if len(family) >= LONGEST_FAMILY:
        raise root.error(f"{LONGEST_FAMILY} targets extend one another", hint="let it extend one nearer to the root")
    return (file, *_family(base, family))


def _rules(root: TomlTable, file: TomlFile, base: Target) -> tuple[OpRule, ...]:
    """Own rules, then those of ``base`` for operators that have none here."""
    owners: dict[str, str] = {}
    rules = []
    tables = root.tables("op", *RULE_KEYS) if base is _NOTHING else some_tables(root, "op", *RULE_KEYS)
    for table in tables:
        rule = rule_of(table)
        for op_type in rule.types:
            if op_type in owners:
                raise table.error(f"{op_type!r} has a rule already", hint=f"see {owners[op_type]}")
            owners[op_type] = table.where.removeprefix(f"{file.origin} ")
        rules.append(rule)
    for rule in base.rules:
        types = tuple(op_type for op_type in rule.types if op_type not in owners)
        if types:
            rules.append(dataclasses.replace(rule, types=types))
    return tuple(rules)
