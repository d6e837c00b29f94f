"""``extends``: a preset that says only where it differs; circles, unknown names and faults of the other file are one line."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from qdq_passes.core import registry
from qdq_passes.errors import ModelError

from qdqtool.presets.loading import load_preset
from tests.golden_messages.refusal import refusal

SCHEMA = json.loads(files("qdqtool.presets").joinpath("schema.json").read_text("utf-8"))

BASE = """
description = "Base"
calibration.method = "minmax"
calibration.options.percentile.percentile = 99.0
[encodings]
scales = "any"
symmetric = false
per_axis = ["Conv"]
min_scale = 0.001
[insert]
weights = "dq"
[selection]
ops = ["Conv", "Gemm"]
exclude = ["*/head/*"]
"""
CHILD = """
description = "Child"
extends = "base.toml"
[encodings]
per_axis = []
weights = "int4"
[selection]
exclude = []
"""


@pytest.fixture(autouse=True)
def _only_what_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_added", [])
    monkeypatch.delenv("QDQTOOL_PATH", raising=False)


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, "utf-8")
    return folder / name


def test_what_is_not_said_is_the_others(tmp_path: Path) -> None:
    """Tables key by key, lists as a whole, an empty list takes the other's away; a file is looked for beside the one that names it."""
    base, path = write(tmp_path, "base.toml", BASE), write(tmp_path, "child.toml", CHILD)
    jsonschema.validate(tomllib.loads(CHILD), SCHEMA)
    child = load_preset(path)
    assert (child.name, child.description, child.method) == ("child", "Child", "minmax")
    assert child.method_options == {"percentile": {"percentile": 99.0}}
    policy = child.annotate
    assert (policy.scales, policy.symmetric, policy.weights, policy.min_scale) == ("any", False, "int4", 0.001)
    assert policy.per_axis == ()
    assert policy.ops == ("Conv", "Gemm")
    assert "exclude" not in child.pipeline_text()[1]
    assert child.insert.weights == "dq"
    assert load_preset(base).annotate.per_axis == ("Conv",)


def test_the_digest_covers_what_is_extended(tmp_path: Path) -> None:
    path = write(tmp_path, "child.toml", CHILD)
    write(tmp_path, "base.toml", BASE)
    before = load_preset(path).sha256
    write(tmp_path, "base.toml", "# a comment\n" + BASE)
    assert load_preset(path).sha256 == before
    write(tmp_path, "base.toml", BASE.replace("0.001", "0.002"))
    assert load_preset(path).sha256 != before


def test_names_and_chains(tmp_path: Path) -> None:
    mine = write(tmp_path, "mine.toml", 'description = "Mine"\nextends = "16a4w"\n[encodings]\nweights = "int8"\n')
    preset = load_preset(mine)
    assert (preset.method, preset.annotate.activations, preset.annotate.weights) == ("minmax", "uint16", "int8")
    assert preset.annotate.min_scale == 2.0**-20
    folder = tmp_path / "more" / "presets"
    folder.mkdir(parents=True)
    write(folder, "again.toml", 'description = "x"\nextends = "further"\n')
    write(folder, "further.toml", 'description = "y"\nextends = "a8w8"\ncalibration.method = "mse"\n')
    registry.add_path(folder.parent)
    assert load_preset("again").method == "mse"


@pytest.mark.parametrize(
    "text",
    [
        'extends = "itself.toml"',
        'extends = "round.toml"',
        'extends = "8a8ww"',
        'extends = "gone.toml"',
        "extends = 8",
        'extends = ""',
        'extends = "a8w8"\n[encodings]\nwieghts = "int8"',
        'extends = "broken.toml"',
        'extends = "a8w8"\n[encodings]\nmin_scale = -1.0',
        'extends = "xint8"\n[encodings]\nmin_scale = 0.3',
        'extends = "a8w8"\n[encodings]\nweight_types = ["Conv"]',
        'extends = "a8w8"\n[refuses]\nper_axes = "x"',
        'extends = "a8w8"\n[refuses]\nper_axis = false',
    ],
    ids=lambda text: text.replace("\n", " "),
)
def test_what_goes_wrong_is_one_line(tmp_path: Path, text: str) -> None:
    write(tmp_path, "round.toml", 'description = "x"\nextends = "itself.toml"\n')
    write(tmp_path, "broken.toml", 'description = "x"\nextends = "a8w8"\n[encodings]\nwieghts = "int8"\n')
    path = write(tmp_path, "itself.toml", f'description = "x"\n{text}\n')
    with refusal(ModelError):
        load_preset(path)


def test_a_preset_that_extends_needs_its_own_description(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.toml", 'extends = "a8w8"\n')
    with refusal(ModelError):
        load_preset(path)
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(tomllib.loads('extends = "a8w8"\n'))


def test_a_pipeline_is_extended(tmp_path: Path) -> None:
    text = 'extends = "8a8w"\ndescription = "mine"\n[pipeline]\nbefore = "split-hard-swish,@before,clip-to-relu"\nafter = "convert-bias"\n'
    (tmp_path / "mine.toml").write_text(text)
    mine, base = load_preset(tmp_path / "mine.toml"), load_preset("8a8w")
    names = [p.name() for p in base.before]
    assert [p.name() for p in mine.before] == ["split-hard-swish", *names, "clip-to-relu"]
    assert [p.name() for p in mine.after] == ["convert-bias"]
    assert mine.ranged == base.ranged
    (tmp_path / "again.toml").write_text(
        'extends = "mine.toml"\ndescription = "again"\n[pipeline]\nafter = "@after,@after"\n'
    )
    assert [p.name() for p in load_preset(tmp_path / "again.toml").after] == ["convert-bias", "convert-bias"]
