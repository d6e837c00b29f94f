"""Target files: families, arithmetic, engines, numbers, cases; one line for each kind of broken key, and the schema agrees."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import get_type_hints

import jsonschema
import pytest
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.npu.traps.groups import SiluInt16
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.refine.look.shifts import ShiftLimits

from qdqtool.targets.cost import Cost, Figure, Memory
from qdqtool.targets.loading import ROOT_KEYS, TARGETS, load_target
from qdqtool.targets.loading_rules import CASE_KEYS, RULE_KEYS
from qdqtool.targets.rules import Engine
from qdqtool.targets.target import Limits
from tests.golden_messages.refusal import refusal

SCHEMA = json.loads(files("qdqtool.targets").joinpath("schema.json").read_text("utf-8"))

ROOT = """
description = "Acme"
version = "1"
family = "acme"
architecture = "2"
sdk = "7"
policy = "region"
boundary = "npu"
minimum_group = 3
traps = ["silu-int16"]
arithmetic = {accumulator = 24, rounding = "half_away", zero_point_first = true}
limits = {batch = 1, max_rank = 4, symbolic = "any"}
shifts = {read = 5, cut = [1, 9]}
engine = [{name = "a", kind = "int", types = ["Conv"]}, {name = "b", kind = "float"}]
memory = {tile = {value = [4, 8, 16], source = "page 3", confidence = "documented"}}
[cost]
clock_mhz = {value = 700.5, source = "bench", confidence = "measured"}
macs_per_cycle = {8 = {value = 64, source = "page 4", confidence = "documented"}}
cpu = {macs_per_us = {value = 9000, source = "page 5", confidence = "documented"}}
[[case]]
when = "x.rank > 3"
verdict = "fallback"
rule = "wide"
reason = "wide"
[[op]]
types = ["Conv", "Gemm"]
scheme = [{activations = ["int8"], weights = ["int8"]}]
[[op]]
types = ["Relu"]
scheme = [{activations = ["int8"]}]
"""

CHILD = """
extends = "acme.toml"
description = "Acme 3"
version = "2"
architecture = "3"
minimum_group = 1
traps = ["clip-after-pair"]
arithmetic = {accumulator = 32}
limits = {batch = 4}
shifts = {read = 6}
engine = [{name = "b", kind = "float", types = ["Relu"]}, {name = "c"}]
cost = {dispatch_us = {value = 9, source = "x", confidence = "assumed"}}
[[case]]
when = "x.rank > 2"
verdict = "refused"
rule = "wider"
reason = "wider"
[[op]]
types = ["Gemm"]
scheme = [{activations = ["int16"], weights = ["int8"]}]
"""


def write(folder: Path, text: str, name: str = "acme.toml") -> Path:
    (folder / name).write_text(text, "utf-8")
    return folder / name


def test_every_key_becomes_a_value(tmp_path: Path) -> None:
    jsonschema.validate(tomllib.loads(ROOT), SCHEMA)
    target = load_target(write(tmp_path, ROOT))
    assert (target.family, target.architecture, target.sdk, target.extends) == ("acme", "2", "7", "")
    assert (target.policy, target.boundary, target.minimum_group) == ("region", "npu", 3)
    assert target.arithmetic == Arithmetic(accumulator=24, rounding="half_away", zero_point_first=True)
    assert target.limits == Limits(batch=1, max_rank=4, symbolic="any")
    assert target.shifts == ShiftLimits(read=5, cut=(1, 9))
    assert target.engines == (Engine(name="a", kind="int", types=("Conv",)), Engine(name="b", kind="float"))
    assert target.memory.tile == Figure(value=(4, 8, 16), source="page 3", confidence="documented")
    assert target.cost.clock_mhz == Figure(value=700.5, source="bench", confidence="measured")
    assert target.cost.macs_per_cycle["8"].value == 64
    assert target.cost.macs_per_cycle["16"] == Cost().macs_per_cycle["16"]
    assert target.cost.dispatch_us.confidence == "assumed"
    assert target.cost.cpu_macs_per_us == Figure(value=9000.0, source="page 5", confidence="documented")
    assert target.cost.cpu_elements_per_us == Cost().cpu_elements_per_us
    assert [case.rule for case in target.cases] == ["wide"]


def test_a_family_says_only_what_differs(tmp_path: Path) -> None:
    base = load_target(write(tmp_path, ROOT))
    jsonschema.validate(tomllib.loads(CHILD), SCHEMA)
    target = load_target(write(tmp_path, CHILD, "acme3.toml"))
    assert (target.name, target.extends, target.version) == ("acme3", "acme", "2")
    assert (target.family, target.architecture, target.sdk) == ("acme", "3", "7")
    assert (target.policy, target.minimum_group) == ("region", 1)
    assert target.arithmetic == dataclasses.replace(base.arithmetic, accumulator=32)
    assert target.limits == Limits(batch=4, max_rank=4, symbolic="any")
    assert target.shifts == ShiftLimits(read=6, cut=(1, 9))
    assert [trap.name() for trap in target.traps] == ["clip-after-pair"]
    assert [(e.name, e.types) for e in target.engines] == [("b", ("Relu",)), ("c", ()), ("a", ("Conv",))]
    assert target.cost == dataclasses.replace(
        base.cost, dispatch_us=Figure(value=9.0, source="x", confidence="assumed")
    )
    assert target.memory == base.memory
    assert [case.rule for case in target.cases] == ["wider", "wide"]
    assert [rule.types for rule in target.rules] == [("Gemm",), ("Conv",), ("Relu",)]
    assert base.traps == (SiluInt16(),)


def test_the_digest_of_a_family_is_of_both_files(tmp_path: Path) -> None:
    write(tmp_path, ROOT)
    before = load_target(write(tmp_path, CHILD, "acme3.toml")).sha256
    write(tmp_path, ROOT.replace("minimum_group = 3", "minimum_group = 4"))
    assert load_target(tmp_path / "acme3.toml").sha256 != before


def test_families_that_go_round(tmp_path: Path) -> None:
    write(tmp_path, CHILD.replace("acme.toml", "b.toml"), "a.toml")
    write(tmp_path, CHILD.replace("acme.toml", "a.toml"), "b.toml")
    with refusal(ModelError):
        load_target(tmp_path / "a.toml")
    write(tmp_path, CHILD.replace("acme.toml", "qnn_htpp"), "c.toml")
    with refusal(UsageError):
        load_target(tmp_path / "c.toml")


def test_an_error_in_the_root_names_the_root(tmp_path: Path) -> None:
    write(tmp_path, ROOT.replace('"region"', '"regional"'))
    write(tmp_path, CHILD, "acme3.toml")
    with refusal(ModelError):
        load_target(tmp_path / "acme3.toml")


#: (what stands in ROOT, what to write instead).
BROKEN = [
    ('policy = "region"', "policy = 1"),
    ("minimum_group = 3", "minimum_group = 0"),
    ("minimum_group = 3", "minimum_group = true"),
    ("minimum_group = 3", 'extends = ""'),
    ("accumulator = 24", "accumulator = 65"),
    ("accumulator = 24", "accumulator = 7"),
    ("accumulator = 24", "acumulator = 24"),
    ('"half_away"', '"half_odd"'),
    ("zero_point_first = true", "zero_point_first = 1"),
    ("batch = 1", "batch = 0"),
    ('symbolic = "any"', 'symbolic = "no"'),
    ('kind = "int"', 'kind = "integer"'),
    ('name = "a", ', ""),
    ("[4, 8, 16]", "[4, 8]"),
    ("[4, 8, 16]", "4"),
    ("value = 700.5", "value = -1"),
    ("value = 700.5", 'value = "fast"'),
    ("value = 700.5, ", ""),
    ('source = "bench", ', ""),
    (', confidence = "measured"', ""),
    ('"measured"', '"guessed"'),
    ("{8 = ", "{9 = "),
    ("macs_per_us =", "mac_per_us ="),
    ("value = 9000", "value = -1"),
    ("clock_mhz =", "clock ="),
    ('verdict = "fallback"', 'verdict = "cpu"'),
    ('verdict = "fallback"', ""),
    ('rule = "wide"', 'rule = "Wide one"'),
    ('rule = "wide"', ""),
    ('reason = "wide"', ""),
    ('when = "x.rank > 3"', ""),
    ('when = "x.rank > 3"', 'when = " "'),
    ('types = ["Relu"]', 'types = ["Relu"]\notherwise = "no"'),
    ('types = ["Relu"]', 'types = ["Relu"]\nranks = [1]'),
    ('types = ["Relu"]', 'types = ["Relu"]\nconstant_inputs = [-1]'),
    ('types = ["Relu"]', 'types = ["Relu"]\nconstant_inputs = []'),
    ('scheme = [{activations = ["int8"]}]', "case = []"),
    ('scheme = [{activations = ["int8"]}]', ""),
    ('weights = ["int8"]}]', 'weights = ["int8"], compute = "int"}]'),
]  # fmt: skip

#: What the schema lets pass.
SUBTLE = [
    ('when = "x.rank > 3"', 'when = "x.rnak > 3"'),
    ('when = "x.rank > 3"', 'when = "attr.strides_ == 1"'),
    ('reason = "wide"', 'reason = "{wide}"'),
    ('reason = "wide"', 'reason = "wide"\nsuggestion = "{opp}"'),
    ('{name = "b"', '{name = "a"'),
    ('types = ["Relu"]', 'types = ["Relu"]\nranks = [4, 3]'),
    (
        'types = ["Conv", "Gemm"]',
        'types = ["Conv", "Gemm"]\nattributes = {groups = [1]}',
    ),
    (
        'types = ["Relu"]',
        'types = ["Relu"]\ncase = [{when = "attr.alpha > 1", verdict = "npu-int", rule = "a"}]',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), BROKEN, ids=[row[1] or f"no {row[0]}" for row in BROKEN])
def test_broken_keys_give_one_line_and_the_schema_agrees(tmp_path: Path, old: str, new: str) -> None:
    assert ROOT.count(old) == 1
    refused(tmp_path, ROOT.replace(old, new))
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(tomllib.loads(ROOT.replace(old, new)))


@pytest.mark.parametrize(("old", "new"), SUBTLE, ids=[row[1] for row in SUBTLE])
def test_what_a_schema_cannot_see(tmp_path: Path, old: str, new: str) -> None:
    assert ROOT.count(old) == 1
    refused(tmp_path, ROOT.replace(old, new))


def test_a_condition_that_is_no_expression(tmp_path: Path) -> None:
    """What follows are Python's words."""
    path = write(tmp_path, ROOT.replace('when = "x.rank > 3"', 'when = "x.rank >"'))
    with pytest.raises(ModelError) as caught:
        load_target(path)
    assert str(caught.value).startswith(f"{path} [[case]] 1: 'when': 'x.rank >' is no expression: ")


def refused(folder: Path, text: str) -> None:
    path = write(folder, text)
    with refusal(ModelError):
        load_target(path)


def test_schema_and_loader_know_the_same_keys() -> None:
    properties = SCHEMA["properties"]
    assert set(properties) == set(ROOT_KEYS)
    assert set(SCHEMA["$defs"]["op"]["properties"]) == set(RULE_KEYS)
    assert set(SCHEMA["$defs"]["case"]["properties"]) == set(CASE_KEYS)
    assert set(properties["arithmetic"]["properties"]) == set(get_type_hints(Arithmetic))
    assert set(properties["limits"]["properties"]) == {f.name for f in dataclasses.fields(Limits)}
    assert set(properties["memory"]["properties"]) == {f.name for f in dataclasses.fields(Memory)}
    figures = {f.name for f in dataclasses.fields(Cost)}
    of_cpu = {name.removeprefix("cpu_") for name in figures if name.startswith("cpu_")}
    assert set(properties["cost"]["properties"]) == {n for n in figures if not n.startswith("cpu_")} | {"cpu"}
    assert set(properties["cost"]["properties"]["cpu"]["properties"]) == of_cpu
    assert set(properties["cost"]["properties"]["macs_per_cycle"]["properties"]) == set(Cost().macs_per_cycle)
    assert set(properties["engine"]["items"]["properties"]) == {f.name for f in dataclasses.fields(Engine)}


@pytest.mark.parametrize("name", TARGETS.names())
def test_shipped_numbers_have_a_source(name: str) -> None:
    target = load_target(name)
    figures = [getattr(part, field.name) for part in (target.memory, target.cost) for field in dataclasses.fields(part)]
    figures += list(target.cost.macs_per_cycle.values())
    found = [figure for figure in figures if isinstance(figure, Figure)]
    assert len(found) >= 9
    assert all(figure.source and figure.confidence for figure in found)
    assert target.engines
    floats = {"apple_ane": "float", "tpu_like": "float", "vitis_xint8": "shift"}
    assert target.arithmetic.requantize == floats.get(name, "fixed_point")
    given = tomllib.loads(TARGETS.path(name).read_text("utf-8"))
    assert "extends" in given or set(given["arithmetic"]) == set(get_type_hints(Arithmetic))
