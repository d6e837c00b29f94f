"""JSON artifacts, files written whole or not at all, and which onnxruntime loads what."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from qdq_passes.errors import ModelError, SetupError, UsageError

from qdqtool.io.files import atomic
from qdqtool.io.files.artifacts import canonical_json, read_json, sha256_of_json, write_json
from qdqtool.io.files.read import sha256_of_file
from qdqtool.io.models.versions import IR_VERSION, NEWEST_TRIED, OPSET, loadable_in
from qdqtool.runtime.session import load_check, version
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal


def test_round_trip_with_sorted_keys(tmp_path: Path) -> None:
    path = tmp_path / "new" / "r.json"
    write_json(path, kind="ranges", version=2, payload={"b": [1, 2.5], "a": {"z": None, "y": "é"}})
    assert path.read_text(encoding="utf-8").index('"a"') < path.read_text(encoding="utf-8").index('"b"')
    assert json.loads(path.read_bytes())["format"] == "qdqtool.ranges"
    assert read_json(path, kind="ranges", max_version=2) == {"a": {"y": "é", "z": None}, "b": [1, 2.5], "version": 2}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_nan_and_no_infinity(tmp_path: Path, number: float) -> None:
    with pytest.raises(UsageError, match="cannot be written as JSON"):
        write_json(tmp_path / "r.json", kind="ranges", version=1, payload={"x": number})
    (tmp_path / "r.json").write_text(json.dumps({"format": "qdqtool.ranges", "version": 1, "x": number}))
    with refusal(ModelError):
        read_json(tmp_path / "r.json", kind="ranges", max_version=1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '{"format": "qdqtool.report", "version": 1}',
        '{"format": "qdqtool.ranges"}',
        '{"format": "qdqtool.ranges", "version": true}',
        '{"format": "qdqtool.ranges", "version": 3}',
    ],
    ids=["empty", "list", "another kind", "no version", "odd version", "newer version"],
)
def test_bad_artifacts(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with refusal(ModelError):
        read_json(path, kind="ranges", max_version=2)


@pytest.mark.parametrize("text", ["{", "[" * 100_000], ids=["cut off", "deep"])
def test_artifacts_that_are_no_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(ModelError) as caught:
        read_json(path, kind="ranges", max_version=2)
    assert str(caught.value).startswith(f"{path}: is not JSON")
    assert "\n" not in str(caught.value)


def test_missing_artifacts(tmp_path: Path) -> None:
    (tmp_path / "ranges.json").write_text("{}")
    with refusal(ModelError):
        read_json(tmp_path / "range.json", kind="ranges", max_version=1)
    with refusal(ModelError):
        sha256_of_file(tmp_path / "none")


def test_hashes() -> None:
    assert canonical_json({"b": 1, "a": [1, 2]}) == '{"a":[1,2],"b":1}'
    assert sha256_of_json({"b": 1, "a": 2}) == sha256_of_json({"a": 2, "b": 1}) != sha256_of_json({"a": 2})


def test_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    atomic.write_whole(path, b"old")
    with refusal(UsageError):
        atomic.write_whole(path, b"new", overwrite=False)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", fail)
    for target in (path, tmp_path / "a" / "b" / "f"):
        with pytest.raises(KeyboardInterrupt):
            atomic.write_whole(target, b"new")
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"


def test_a_full_disk_is_the_environments_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(atomic.NO_ROOM[0], "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with refusal(SetupError):
        atomic.write_whole(tmp_path / "f", b"new")
    assert list(tmp_path.iterdir()) == []


def test_long_names_fit(tmp_path: Path) -> None:
    atomic.write_whole(tmp_path / ("é" * 120), b"x")
    assert (tmp_path / ("é" * 120)).read_bytes() == b"x"


@pytest.mark.parametrize(
    ("header", "releases"),
    [
        (f'ir_version: {IR_VERSION}, opset_import: ["" : {OPSET}]', ">=1.23"),
        ('ir_version: 11, opset_import: ["" : 23]', ">=1.23"),
        ('ir_version: 12, opset_import: ["" : 21]', ">=1.24"),
        ('ir_version: 10, opset_import: ["" : 25]', ">=1.24"),
        ('ir_version: 13, opset_import: ["" : 26]', ">=1.25"),
        ('ir_version: 14, opset_import: ["" : 21]', ">=1.32"),
        ('ir_version: 10, opset_import: ["" : 28]', ">=1.32"),
        ('ir_version: 15, opset_import: ["" : 21]', "none up to 1.32.0"),
        ('ir_version: 10, opset_import: ["" : 29]', "none up to 1.32.0"),
        ('ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 6]', "none up to 1.32.0"),
    ],
)
def test_which_onnxruntime_loads_it(header: str, releases: str) -> None:
    graph = model(f"<{header}> g (float[2] x) => (float[2] y) {{ y = Relu (x) }}")
    assert loadable_in(graph) == releases
    installed = _numbers(version())
    if releases.startswith(">="):
        assert (load_check(graph) is None) == (installed >= _numbers(releases[2:]))
    elif installed <= _numbers(NEWEST_TRIED):
        assert "does not read this model" in (load_check(graph) or "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])
