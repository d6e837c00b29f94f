"""Targets: what the shipped ones say, what `allows` answers, own files, and one line for each kind of broken file."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from importlib.resources import files
from pathlib import Path

import jsonschema
import onnx
import onnx_ir as ir
import pytest
from qdq_passes.core import registry
from qdq_passes.encode.look.demands import QUANTIZED_OPS
from qdq_passes.errors import ModelError, QdqError, SetupError, UsageError
from qdq_passes.npu.traps.groups import ActivationWithoutPair, SiluInt16
from qdq_passes.npu.traps.memory import PaddedTiles
from qdq_passes.npu.traps.operators import UnreliableOperator
from qdq_passes.npu.traps.table import rules_of_targets
from qdq_passes.numerics.encoding import Encoding, parse_dtype
from qdq_passes.refine.look.shifts import ShiftLimits

from qdqtool.targets import TARGETS
from qdqtool.targets.loading import load_target
from qdqtool.targets.rules import OpRule, Scheme
from qdqtool.targets.target import Target
from qdqtool.targets.toml_values import ELEMENT_TYPES, STORAGE_TYPES
from tests.golden_messages.refusal import refusal

SCHEMA = json.loads(files("qdqtool.targets").joinpath("schema.json").read_text("utf-8"))
SHIPPED = tuple(TARGETS.names())
INT8 = Encoding.per_tensor(ir.DataType.INT8, 0.5)

ACME = """
description = "Acme"
version = "1"
[[op]]
types = ["Conv", "com.acme::FancyConv"]
[[op.scheme]]
activations = ["int8", "uint8"]
weights = ["int8"]
bias = ["int32"]
symmetric = ["activations", "weights"]
[[op.scheme]]
activations = ["int16"]
weights = ["int8", "int4"]
granularity = ["per-axis", "blocked"]
scales = "pow2"
[[op]]
types = ["Relu"]
scheme = [{activations = ["int8"]}]
"""


@pytest.fixture(autouse=True)
def _only_what_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_added", [])
    monkeypatch.delenv("QDQTOOL_PATH", raising=False)


def write(folder: Path, text: str, name: str = "acme.toml") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, "utf-8")
    return folder / name


@pytest.fixture
def acme(tmp_path: Path) -> Target:
    return load_target(write(tmp_path, ACME))


@pytest.mark.parametrize("name", TARGETS.names())
def test_shipped_targets_are_valid_and_name_real_operators(name: str) -> None:
    target = load_target(name)
    assert target.name == name
    assert len(target.sha256) == 64
    jsonschema.validate(tomllib.loads(TARGETS.path(name).read_text("utf-8")), SCHEMA)
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history()}
    known.add("SimplifiedLayerNormalization")  # onnxruntime's, under ONNX's domain
    assert {op for op in target.quantized_ops() if "::" not in op} <= known


def test_generic_int8_takes_what_is_quantized_by_default() -> None:
    target = load_target("generic_int8")
    assert set(QUANTIZED_OPS) <= set(target.quantized_ops())
    for op_type in QUANTIZED_OPS:
        assert target.allows(op_type, activation=INT8) is None
    assert target.allows("Conv", activation=INT8, weight=INT8, bias=INT8) is None
    assert target.allows("Conv", weight=Encoding.per_tensor(ir.DataType.INT16, 1.0)) == (
        "Conv on generic_int8: weight is int16, not int8"
    )


def test_a_file_becomes_values(acme: Target) -> None:
    assert acme.name == "acme"
    assert acme.quantized_ops() == ("Conv", "Relu", "com.acme::FancyConv")
    assert acme.rules[1] == OpRule(types=("Relu",), schemes=(Scheme(activations=(ir.DataType.INT8,)),))
    assert acme.rules[0].schemes[0].granularity == ("per-tensor",)
    assert acme.rules[0].schemes[1].scales == "pow2"


EVERY_TRAP = """traps = [
    "silu-int16",                                                              # bare
    {rule = "softmax-symmetric-output"},                                       # a table without parameters
    {rule = "unreliable-operator", types = ["CumSum"], elements = ["uint8", "float"]},
    {rule = "unreliable-operator", types = ["com.acme::Odd"]},                 # twice, with other parameters
    {rule = "activation-without-pair", producers = ["Conv", "Gemm"]},
    {rule = "padded-tiles", tile = [8, 128]},                                  # sizes
]"""


def test_traps(tmp_path: Path) -> None:
    """Bare ids and tables with parameters; every rule that needs none may be listed bare; the schema agrees."""
    text = ACME.replace('version = "1"', f'version = "1"\n{EVERY_TRAP}')
    jsonschema.validate(tomllib.loads(text), SCHEMA)
    traps = load_target(write(tmp_path, text)).traps
    assert [trap.name() for trap in traps] == [
        "silu-int16", "softmax-symmetric-output", "unreliable-operator", "unreliable-operator", "activation-without-pair",
        "padded-tiles",
    ]  # fmt: skip
    assert traps[0] == SiluInt16()
    assert traps[2:4] == (UnreliableOperator(("CumSum",), ("uint8", "float")), UnreliableOperator(("com.acme::Odd",)))
    assert traps[4] == ActivationWithoutPair(producers=("Conv", "Gemm"), activations=("Relu",))
    assert traps[5] == PaddedTiles((8, 128))
    needy = ("unreliable-operator", "float-operator", "padded-tiles", "cache-sizes")
    bare = [name for name in rules_of_targets() if name not in needy]
    text = ACME.replace('version = "1"', f'version = "1"\ntraps = {json.dumps(bare)}')
    jsonschema.validate(tomllib.loads(text), SCHEMA)
    assert [trap.name() for trap in load_target(write(tmp_path, text)).traps] == bare
    assert load_target(write(tmp_path, ACME)).traps == ()


def test_every_scheme_is_an_alternative(acme: Target) -> None:
    int16 = Encoding.per_tensor(ir.DataType.INT16, 0.25)
    per_axis = Encoding(dtype=ir.DataType.INT4, scale=(0.5, 2.0), zero_point=(0, 3), shape=(2,), axis=0)
    assert acme.allows("Conv", activation=INT8, weight=INT8) is None
    assert acme.allows("com.acme::FancyConv", activation=int16, weight=per_axis) is None
    assert (
        acme.allows("Conv", activation=int16, weight=INT8)
        == "Conv on acme: weight is per-tensor, not per-axis or blocked"
    )
    assert acme.allows("Conv") is None


@pytest.mark.parametrize(
    ("op_type", "operand", "encoding", "reason"),
    [
        ("Gemm", "activation", INT8, "acme has no rule for Gemm"),
        (
            "Relu",
            "activation",
            Encoding.per_tensor(ir.DataType.UINT8, 1.0),
            "Relu on acme: activation is uint8, not int8",
        ),
        ("Relu", "weight", INT8, "Relu on acme: takes no quantized weight"),
        ("Conv", "bias", INT8, "Conv on acme: bias is int8, not int32"),
        ("Conv", "weight", Encoding.per_tensor(ir.DataType.INT8, 1.0, 3), "weight has zero point 3, not 0 (symmetric)"),
        ("Conv", "activation", Encoding.per_tensor(ir.DataType.UINT8, 1.0, 128), None),
        ("Conv", "activation", Encoding.per_tensor(ir.DataType.UINT8, 1.0, 0), "has zero point 0, not 128 (symmetric)"),
        ("Conv", "activation", Encoding.per_tensor(ir.DataType.INT16, 0.3), "has a scale that is no power of two"),
        (
            "Relu",
            "activation",
            Encoding(dtype=ir.DataType.INT8, scale=(1.0, 2.0), zero_point=(0, 0), shape=(2,), axis=1),
            "Relu on acme: activation is per-axis, not per-tensor",
        ),
    ],
)
def test_reasons(acme: Target, op_type: str, operand: str, encoding: Encoding, reason: str | None) -> None:
    found = acme.allows(op_type, **{operand: encoding})
    assert found == reason if reason is None else reason in (found or "")


def test_a_dropped_file_is_listed_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "targets", ACME, "acme_npu.toml")
    write(tmp_path / "targets", "broken", "_draft.toml")
    write(tmp_path / "targets", "broken", ".#acme_npu.toml")
    registry.add_path(tmp_path)
    assert load_target("acme_npu").description == "Acme"
    assert load_target("acme_npu").name == "acme_npu"
    monkeypatch.setattr(registry, "_added", [])
    monkeypatch.setenv("QDQTOOL_PATH", str(tmp_path))
    assert TARGETS.names() == sorted(["acme_npu", *SHIPPED])
    write(tmp_path / "targets", ACME, "generic_int8.toml")
    with refusal(UsageError):
        load_target("generic_int8")


def test_entry_points_give_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, ACME, "chip.toml")
    write(tmp_path, f"FILE = {str(tmp_path / 'chip.toml')!r}\nNUMBER = 3\n", "acme_chip_for_test.py")
    info = tmp_path / "acme_chip_for_test-1.0.dist-info"
    write(info, "Metadata-Version: 2.1\nName: acme-chip-for-test\nVersion: 1.0\n", "METADATA")
    points = "chip = acme_chip_for_test:FILE\nnumber = acme_chip_for_test:NUMBER\n"
    write(info, f"[qdqtool.targets]\n{points}", "entry_points.txt")
    monkeypatch.syspath_prepend(tmp_path)
    assert TARGETS.names() == sorted(["chip", "number", *SHIPPED])
    assert load_target("chip").description == "Acme"
    with refusal(SetupError):
        load_target("number")


def test_names_that_are_not_there(tmp_path: Path) -> None:
    with refusal(UsageError):
        load_target("generic_int")
    with refusal(UsageError):
        load_target(tmp_path / "generic_int8.toml")
    (tmp_path / "folder.toml").mkdir()
    with refusal(UsageError):
        load_target(tmp_path / "folder.toml")


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    digest = load_target(write(tmp_path, ACME)).sha256
    reordered = ACME.replace('version = "1"\n', "").replace(
        'description = "Acme"', 'version = "1"\ndescription = "Acme"'
    )
    assert load_target(write(tmp_path, f"# a comment\r\n{reordered}")).sha256 == digest
    assert load_target(write(tmp_path, f"\ufeff{ACME}")).sha256 == digest
    assert load_target(write(tmp_path, ACME.replace('"Acme"', '"Bcme"'))).sha256 != digest


#: (what stands in ACME, what to write instead): the schema refuses each as well.
BROKEN = [
    ('version = "1"', 'version = "1"\nshifts = { cut = 3 }'),
    ('version = "1"', 'version = "1"\nshifts = { cut = [0] }'),
    ('version = "1"', 'version = "1"\nshifts = { read = true }'),
    ('version = "1"', 'version = "1"\nshifts = { read = [0, 7] }'),
    ('version = "1"', 'version = "1"\nshifts = { reed = 7 }'),
    ('description = "Acme"', ""),
    ('description = "Acme"', 'description = ""'),
    ('description = "Acme"', 'description = "a\\nb"'),
    ('version = "1"', "version = 1"),
    ('version = "1"', "version = true"),
    ('version = "1"', "version = 2020-01-01"),
    ('version = "1"', 'vresion = "1"'),
    (
        'version = "1"',
        'version = "1"\nzzz = 1',
    ),
    ('types = ["Relu"]', "types = []"),
    ('types = ["Relu"]', ""),
    ('types = ["Relu"]', 'types = "Relu"'),
    ('types = ["Relu"]', 'types = ["Relu", 1]'),
    ('types = ["Relu"]', 'types = ["Relu", "Relu"]'),
    ('types = ["Relu"]', 'types = ["op:Relu"]'),
    ('types = ["Relu"]', 'type = ["Relu"]'),
    ('scheme = [{activations = ["int8"]}]', ""),
    (
        'scheme = [{activations = ["int8"]}]',
        "scheme = []",
    ),
    ('scheme = [{activations = ["int8"]}]', "scheme = [{}]"),
    (
        'bias = ["int32"]',
        'bias = ["int31"]',
    ),
    ('bias = ["int32"]', 'bias = ["INT32"]'),
    ('bias = ["int32"]', "bias = {}"),
    ('scales = "pow2"', 'scales = "pow3"'),
    ('scales = "pow2"', "scales = true"),
    ('scales = "pow2"', "symmetric = true"),
    ('scales = "pow2"', 'symmetric = ["bias"]'),
    ('["per-axis", "blocked"]', '["per-channel"]'),
    ('version = "1"', 'version = "1"\ntraps = "silu-int16"'),
    ('version = "1"', 'version = "1"\ntraps = ["silu-int16", 1]'),
    (
        'version = "1"',
        'version = "1"\ntraps = ["silu-int8"]',
    ),
    (
        'version = "1"',
        'version = "1"\ntraps = ["bias-scale"]',
    ),
    ('version = "1"', 'version = "1"\ntraps = ["silu-int16", "silu-int16"]'),
    ('version = "1"', 'version = "1"\ntraps = [{types = ["CumSum"]}]'),
    (
        'version = "1"',
        'version = "1"\ntraps = ["unreliable-operator"]',
    ),
    (
        'version = "1"',
        'version = "1"\ntraps = [{rule = "float-operator", types = ["op:X"]}]',
    ),
    (
        'version = "1"',
        'version = "1"\ntraps = [{rule = "float-operator", types = ["X"], elements = ["int9"]}]',
    ),
    (
        'version = "1"',
        'version = "1"\ntraps = [{rule = "silu-int16", types = ["X"]}]',
    ),
    (
        'version = "1"',
        'version = "1"\ntraps = [{rule = "activation-without-pair", producer = ["X"]}]',
    ),
]


@pytest.mark.parametrize(("old", "new"), BROKEN, ids=[row[1] or f"no {row[0]}" for row in BROKEN])
def test_broken_files_give_one_line_and_the_schema_agrees(tmp_path: Path, old: str, new: str) -> None:
    assert ACME.count(old) == 1
    path = write(tmp_path, ACME.replace(old, new))
    with refusal(ModelError):
        load_target(path)
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(tomllib.loads(path.read_text("utf-8")))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\xff\xfe", id="not UTF-8"),
        pytest.param(b"", id="empty"),
        pytest.param(ACME.replace('"Relu"', '"Conv"').encode(), id="two rules"),
        pytest.param(b"shifts = { cut = [16, 0] }\n" + ACME.encode(), id="the highest first"),
        pytest.param(b'name = "other"\n' + ACME.encode(), id="another name"),
    ],
)
def test_what_a_schema_cannot_see(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "acme.toml").write_bytes(content)
    with refusal(QdqError) as caught:
        load_target(tmp_path / "acme.toml")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"description = ", "is not TOML: Invalid value"),
        (b"[[op]]\n[op]\n", "is not TOML: Cannot"),
        (b"x = " + b"[" * 100_000, "is not TOML"),
    ],
    ids=["no value", "a table twice", "deep"],
)
def test_what_is_no_toml(tmp_path: Path, content: bytes, message: str) -> None:
    """What follows are tomllib's words."""
    (tmp_path / "acme.toml").write_bytes(content)
    with pytest.raises(QdqError) as caught:
        load_target(tmp_path / "acme.toml")
    assert caught.value.exit_code == 2
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_schema_and_loader_know_the_same_words(acme: Target) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(tomllib.loads(ACME), SCHEMA)
    assert SCHEMA["$defs"]["storage_type"]["enum"] == list(STORAGE_TYPES)
    assert SCHEMA["$defs"]["elements"]["items"]["anyOf"][1]["enum"] == list(ELEMENT_TYPES[len(STORAGE_TYPES) :])
    assert sorted(SCHEMA["$defs"]["trap_id"]["enum"]) == sorted(rules_of_targets())
    assert [parse_dtype(name).name.lower() for name in STORAGE_TYPES] == list(STORAGE_TYPES)
    assert set(SCHEMA["$defs"]["scheme"]["properties"]) == set(vars(acme.rules[0].schemes[0]))
    assert set(SCHEMA["properties"]["shifts"]["properties"]) == {
        field.name for field in dataclasses.fields(ShiftLimits)
    }


def test_shifts_are_bounds_of_the_target(tmp_path: Path, acme: Target) -> None:
    assert acme.shifts is None
    (tmp_path / "mine.toml").write_text("shifts = { cut = [1, 9], read = 3 }\n" + ACME)
    assert load_target(tmp_path / "mine.toml").shifts == ShiftLimits(cut=(1, 9), read=3)
    assert load_target("vitis_xint8").shifts == ShiftLimits()
