"""Presets: the shipped ones, their pipeline texts, own files, and one line for each kind of broken file."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from qdq_passes.core import registry
from qdq_passes.core.base import Named
from qdq_passes.encode.annotate_encodings import AnnotateEncodings
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.encoding import Encoding, parse_dtype
from qdq_passes.pipeline.option_types import field_type
from qdq_passes.pipeline.text import format_pass, parse_passes
from qdq_passes.qdq.insert_qdq import InsertQdq

from qdqtool.calibrate.observer import METHODS
from qdqtool.presets import PRESETS
from qdqtool.presets.loading import INSERT, POLICY, load_preset
from qdqtool.presets.preset import Preset
from qdqtool.targets.loading import load_target
from tests.golden_messages.refusal import refusal

SCHEMA = json.loads(files("qdqtool.presets").joinpath("schema.json").read_text("utf-8"))

MINE = """
description = "Mine"
[calibration]
method = "minmax"
[pipeline]
before = "give-names, fold-constants{what=all},fold-batch-norm"
[encodings]
activations = "uint8"
bias = "none"
scales = "any"
symmetric = false
[insert]
weights = "dq"
[selection]
ops = ["Conv", "Gemm"]
exclude = ["*/head/*", "op:Gemm & !*/last"]
"""


@pytest.fixture(autouse=True)
def _only_what_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_added", [])
    monkeypatch.delenv("QDQTOOL_PATH", raising=False)


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, "utf-8")
    return folder / name


@pytest.fixture
def mine(tmp_path: Path) -> Preset:
    return load_preset(write(tmp_path, MINE))


@pytest.mark.parametrize("name", PRESETS.names())
def test_shipped_presets_are_valid_and_their_texts_are_canonical(name: str) -> None:
    preset = load_preset(name)
    assert preset.name == name
    assert preset.description
    assert preset.method in METHODS.names()
    jsonschema.validate(tomllib.loads(PRESETS.path(name).read_text("utf-8")), SCHEMA)
    for text in preset.pipeline_text():
        assert ",".join(format_pass(p) for p in parse_passes(text)) == text


def test_xint8_is_symmetric_power_of_two_int8_with_pairs_on_weights() -> None:
    preset = load_preset("xint8")
    policy, pair = preset.annotate, Encoding.per_tensor(parse_dtype(preset.annotate.weights), 0.5)
    assert (policy.activations, policy.weights, policy.bias) == ("int8", "int8", "int8")
    assert (policy.scales, policy.symmetric, preset.insert.weights) == ("pow2", True, "qdq")
    assert preset.method == "pow2-minmse"
    for op_type in policy.ops:
        assert load_target("generic_int8").allows(op_type, activation=pair) is None


def test_a_file_becomes_passes(mine: Preset) -> None:
    assert (mine.name, mine.description, mine.method) == ("mine", "Mine", "minmax")
    assert isinstance(mine.annotate.encodings, Named)
    assert mine.annotate.weights == "int8"
    assert mine.pipeline_text() == (
        "give-names,fold-constants{what=all},fold-batch-norm",
        "annotate-encodings{encodings=@ranges activations=uint8 bias=\"none\" scales=any symmetric=false ops=[Conv,Gemm] "
        'exclude=["*/head/*","op:Gemm & !*/last"]},insert-qdq{weights=dq}',
    )  # fmt: skip


def test_requests_change_the_text(mine: Preset) -> None:
    before, after = mine.pipeline_text(
        exclude=["*/stem/*", "*/head/*"],
        only=["op:Conv"],
        isolate=True,
        weights="qdq",
        fuse_layers=False,
    )
    assert before == "give-names,fold-constants{what=all}"
    assert "encodings=@ranges " in after
    assert 'exclude=["*/head/*","op:Gemm & !*/last","*/stem/*"] only="op:Conv" isolate=true},insert-qdq' in after
    assert after.endswith("},insert-qdq")
    assert ",".join(format_pass(p) for p in parse_passes(after)) == after
    assert "exclude" not in load_preset("xint8").pipeline_text(exclude=[])[1]
    with refusal(UsageError):
        mine.pipeline_text(exclude=["re:("])


def test_explain_has_a_row_for_each_choice(mine: Preset) -> None:
    rows = dict(mine.explain())
    assert rows["activations"] == "uint8, asymmetric, float scales"
    assert rows["weights"] == "int8, symmetric, float scales, stored integers → DQ"
    assert rows["bias"] == "float"
    assert rows["quantized operators"] == "2: Conv, Gemm"
    assert rows["excluded nodes"] == "*/head/*, op:Gemm & !*/last"
    rows = dict(load_preset("xint8").explain())
    assert rows["calibration method"] == "pow2-minmse"
    assert rows["weights"] == "int8, symmetric, power-of-two scales of least squared error, float initializer → Q → DQ"
    assert rows["excluded nodes"] == "none"


VITIS = """
description = "Mine"
[calibration]
method = "pow2-minmse"
[calibration.options.pow2-minmse]
reference = true
[pipeline]
before = "sort,fuse-conv-activation"
ranged = "adjust-ranges{ranges=@ranges}"
after = "sigmoid-to-hard-sigmoid,scale-hard-sigmoid,refine-positions{ranges=@ranges}"
[insert]
weights = "WEIGHTS"
"""


def test_what_runs_around_annotation_and_insertion(tmp_path: Path) -> None:
    """Passes on the ranges and on the pairs, options of the method, constants as the method has it."""
    preset = load_preset(write(tmp_path, VITIS.replace("WEIGHTS", "qdq")))
    jsonschema.validate(tomllib.loads(VITIS.replace("WEIGHTS", "qdq")), SCHEMA)
    refine = "scale-hard-sigmoid,refine-positions{ranges=@ranges}"
    annotate = "annotate-encodings{encodings=@ranges constants=minmse}"
    assert preset.pipeline_text() == (
        "sort,fuse-conv-activation",
        f"adjust-ranges{{ranges=@ranges}},{annotate},insert-qdq,sigmoid-to-hard-sigmoid,{refine}",
    )
    assert preset.method_options == {"pow2-minmse": {"reference": True}}
    assert dict(preset.explain())["options of pow2-minmse"] == "reference = True"
    kept = preset.pipeline_text(keep_sigmoid=True, fuse_layers=False, method="minmax")
    assert kept == (
        "sort", f"adjust-ranges{{ranges=@ranges}},annotate-encodings{{encodings=@ranges}},insert-qdq,{refine}",
    )  # fmt: skip


def test_weights_are_stored_after_refinement(tmp_path: Path) -> None:
    """Refinement wants the float weights; a preset that stores them at once is taken at its word."""
    preset = load_preset(write(tmp_path, VITIS.replace("WEIGHTS", "qdq")))
    assert preset.pipeline_text(weights="dq")[1].endswith(",refine-positions{ranges=@ranges},fold-weight-qdq")
    assert "weights=dq" not in preset.pipeline_text(weights="dq")[1]
    preset = load_preset(write(tmp_path, VITIS.replace("WEIGHTS", "dq")))
    assert ",insert-qdq{weights=dq},sigmoid" in preset.pipeline_text()[1]
    assert ",insert-qdq,sigmoid" in preset.pipeline_text(weights="qdq")[1]


def test_constants_can_be_named(tmp_path: Path) -> None:
    text = VITIS.replace("WEIGHTS", "qdq") + '[encodings]\nconstants = "range"\n'
    assert "minmse" not in load_preset(write(tmp_path, text)).pipeline_text()[1]


def test_policies_of_insertion(tmp_path: Path) -> None:
    """Per-axis weights, an int32 bias, outputs that stay float, a pair per reader: text, explanation and schema."""
    text = """
description = "Mine"
[calibration]
method = "minmax"
[encodings]
scales = "any"
bias = "int32"
weights_symmetric = false
per_axis = ["Conv", "MatMul:-1"]
reduce_range = true
min_range = 0.0001
outputs_stay_float = ["Softmax"]
[insert]
dedicated = true
domain = "com.microsoft"
"""
    jsonschema.validate(tomllib.loads(text), SCHEMA)
    preset = load_preset(write(tmp_path, text))
    assert preset.pipeline_text()[1] == (
        "annotate-encodings{encodings=@ranges bias=int32 scales=any weights-symmetric=false "
        "per-axis=[Conv,MatMul:-1] reduce-range=true min-range=0.0001 outputs-stay-float=[Softmax]},"
        "insert-qdq{dedicated=true domain=com.microsoft}"
    )
    rows = dict(preset.explain())
    assert rows["weights"] == (
        "int8, asymmetric, one bit less, per-axis in Conv, MatMul:-1, float scales, float initializer → Q → DQ, a pair per reader"
    )
    assert rows["bias"] == "int32 at s_x·s_w, stored integers"
    assert rows["outputs that stay float"] == "Softmax"
    broken = text.replace('scales = "any"', "")
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(tomllib.loads(broken))
    with refusal(ModelError):
        load_preset(write(tmp_path, broken))


def test_a_preset_may_say_little(tmp_path: Path) -> None:
    preset = load_preset(write(tmp_path, 'description = "x"\ncalibration.method = "minmax"\n'))
    assert preset.pipeline_text() == ("", "annotate-encodings{encodings=@ranges},insert-qdq")
    assert dict(preset.explain())["passes before calibration"] == "none"


def test_a_dropped_file_is_listed_and_loaded(tmp_path: Path) -> None:
    write(tmp_path / "presets", MINE)
    registry.add_path(tmp_path)
    assert load_preset("mine").description == "Mine"
    assert load_preset("mine").method == "minmax"
    with refusal(UsageError):
        load_preset("mien")


#: (what stands in MINE, what to write instead, whether the schema sees it too)
BROKEN = [
    ('description = "Mine"', "", True),
    ('method = "minmax"', "", True),
    ('method = "minmax"', 'method = "Min Max"', True),
    ('method = "minmax"', 'mehtod = "minmax"', True),
    ("[encodings]", "[encoding]", True),
    ('activations = "uint8"', 'activatons = "uint8"', True),
    ('activations = "uint8"', 'activations = "uint7"', True),
    ('activations = "uint8"', "activations = 2020-01-01", True),
    ('activations = "uint8"', "activations = 8", True),
    ("symmetric = false", "symmetric = 0", True),
    ("symmetric = false", "isolate = true", True),
    ('scales = "any"', "", True),
    ("symmetric = false", "weights_symmetric = 1", True),
    ("symmetric = false", 'symmetric = false\nper_axis = ["Relu"]', True),
    ("symmetric = false", 'symmetric = false\nper_axis = "Conv"', True),
    ("symmetric = false", "symmetric = false\noutputs_stay_float = []", True),
    ('weights = "dq"', 'domain = "ai.onnx"', True),
    ('scales = "any"', 'scales = "pow2"', True),
    ('weights = "dq"', 'weights = "qd"', True),
    ('weights = "dq"', "scale = 1.0", True),
    ('ops = ["Conv", "Gemm"]', "ops = []", True),
    ('exclude = ["*/head/*", "op:Gemm & !*/last"]', 'exclude = "*"', True),
    ('exclude = ["*/head/*", "op:Gemm & !*/last"]', 'exclude = ["re:("]', False),
    ("[selection]", "[[selection]]", True),
    ("fold-batch-norm", "fold-batchnorm", False),
    ("{what=all}", "{waht=all}", False),
    ("{what=all}", "{what=", False),
    ('before = "give', 'before = 1 # "give', True),
]


@pytest.mark.parametrize(("old", "new", "seen"), BROKEN, ids=[row[1] or f"no {row[0]}" for row in BROKEN])
def test_broken_files_give_one_line(tmp_path: Path, old: str, new: str, seen: bool) -> None:
    assert MINE.count(old) == 1
    path = write(tmp_path, MINE.replace(old, new))
    with refusal(ModelError):
        load_preset(path)
    assert jsonschema.Draft202012Validator(SCHEMA).is_valid(tomllib.loads(path.read_text("utf-8"))) is not seen


#: Type of a field → type in the schema.
KINDS: dict[Any, str] = {bool: "boolean", float: "number", int: "integer", tuple[str, ...]: "array"}


def test_schema_and_passes_know_the_same_words() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(tomllib.loads(MINE), SCHEMA)
    encodings: dict[str, Any] = SCHEMA["properties"]["encodings"]["properties"]
    insert: dict[str, Any] = SCHEMA["properties"]["insert"]["properties"]
    assert tuple(encodings) == POLICY
    assert tuple(insert) == INSERT
    for cls, properties in ((AnnotateEncodings, encodings), (InsertQdq, insert)):
        for key, entry in properties.items():
            wanted = field_type(cls, key)
            if wanted in KINDS:
                assert entry.get("type", "array") == KINDS[wanted], key
            else:
                assert set(entry["enum"]) == set(wanted.__args__), key
