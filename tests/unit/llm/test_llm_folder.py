"""The folder of static graphs: its manifest, what damages it, and the lists of specializations."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import onnx
import pytest
from qdq_passes.errors import ModelError, QdqError, UnsupportedError, UsageError

from qdqtool.llm import Session
from qdqtool.llm.folder.manifest import Manifest, read_manifest, refuse_damaged, verify_folder, write_manifest
from qdqtool.llm.plan.specializations import Specialization, cloud_ai_form, flat_form, read_specializations
from tests.cases.tiny_decoder import Form, folder
from tests.golden_messages.refusal import refusal

SHAPES = [(1, 4, 16), (1, 1, 16)]


def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    folder(
        tmp_path, SHAPES, Form(window=3, parts=2), tokenizer=("tokenizer.json",), eos_token_ids=(0, 2), bos_token_id=1
    )
    found = read_manifest(tmp_path)
    assert found.layout == "in-place"
    assert (found.eos_token_ids, found.bos_token_id, found.pad_token_id) == ((0, 2), 1, None)
    assert [model.name for model in found.models] == ["prefill_b1_s4_c16", "decode_b1_s1_c16"]
    first = found.models[0]
    assert (first.phase, first.batch_size, first.seq_len, first.ctx_len) == ("prefill", 1, 4, 16)
    assert [part.file for part in first.parts] == ["prefill_b1_s4_c16_part0.onnx", "prefill_b1_s4_c16_part1.onnx"]
    assert "hidden0" in first.parts[0].outputs
    assert first.decoder.masks[1].window == 3
    assert set(found.files) == {"tokenizer.json", *(p.file for model in found.models for p in model.parts)}
    progress: list[tuple[int, int | None]] = []
    again = write_manifest(tmp_path, found, progress=lambda done, total: progress.append((done, total)))
    assert again == found
    assert progress == [(n + 1, 5) for n in range(5)]
    assert verify_folder(tmp_path) == []


def test_a_known_hash_is_not_computed_again(tmp_path: Path) -> None:
    manifest = read_manifest(folder(tmp_path, SHAPES[:1]))
    (tmp_path / "weights.data").write_bytes(b"1")
    written = write_manifest(tmp_path, manifest, more=["weights.data"], known={"weights.data": "ab"})
    assert written.files["weights.data"] == "ab"
    assert [finding.where for finding in verify_folder(tmp_path)] == [str(tmp_path / "weights.data")]
    with refusal(UsageError):
        write_manifest(tmp_path, manifest, more=["../weights.data"])
    with refusal(ModelError):
        write_manifest(tmp_path, manifest, more=["nothing"])


def test_a_file_that_differs_or_is_missing_is_told_before_anything_runs(tmp_path: Path) -> None:
    folder(tmp_path, SHAPES)
    decode, prefill = tmp_path / "decode_b1_s1_c16.onnx", tmp_path / "prefill_b1_s4_c16.onnx"
    decode.write_bytes(decode.read_bytes()[:-1] + b"\x00")
    (finding,) = verify_folder(tmp_path)
    assert (finding.level, finding.where) == ("error", str(decode))
    assert finding.message == "differs from what was written (SHA-256)"
    with refusal(ModelError):
        Session(tmp_path)
    Session(tmp_path, verify=False)
    prefill.unlink()
    with refusal(ModelError):
        refuse_damaged(tmp_path)
    assert [f.message for f in verify_folder(tmp_path)][1] == "is missing, the manifest lists it"
    session = Session(tmp_path, verify=False)
    with refusal(ModelError):
        session.prefill([1, 2, 3, 4], chunks=[4])


def test_weights_that_no_hash_holds(tmp_path: Path) -> None:
    """A graph that reads a data file which is not in the manifest: anyone could change it."""
    folder(tmp_path, SHAPES[:1])
    (name,) = read_manifest(tmp_path).files
    model = onnx.load(tmp_path / name)
    onnx.save(model, tmp_path / name, save_as_external_data=True, location="w.data", size_threshold=256)
    write_manifest(tmp_path, read_manifest(tmp_path))
    (finding,) = verify_folder(tmp_path)
    assert finding.where == str(tmp_path / "w.data")
    assert finding.message == f"is read by {name}, the manifest does not list it"
    write_manifest(tmp_path, read_manifest(tmp_path), more=["w.data"])
    assert verify_folder(tmp_path) == []
    assert Session(tmp_path).prefill([1]).shape == (50,)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b"])
def test_names_stay_in_the_folder(name: str, tmp_path: Path) -> None:
    folder(tmp_path, SHAPES[:1])
    path = tmp_path / "manifest.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["models"][0]["parts"][0]["file"] = name
    path.write_text(json.dumps(data), encoding="utf-8")
    with refusal(ModelError):
        read_manifest(tmp_path)


@pytest.mark.parametrize("change", [
    lambda data: data.pop("models"), lambda data: data.update(models=[]), lambda data: data["models"][0]["decoder"].pop("ids"),
    lambda data: data.update(version=9), lambda data: data.update(format="qdqtool.ranges"), lambda data: data.update(files=[]),
    lambda data: data["models"][0]["decoder"].update(seq_len=True), lambda data: data["models"][0]["decoder"].update(layout="up"),
    lambda data: data["models"][0]["decoder"]["cache"][1].update(axis={}), lambda data: data.update(source_sha256=None),
    lambda data: data["models"][0]["decoder"]["cache"][1].update(layer=2**40), lambda data: data.update(models="text"),
    lambda data: data["models"][0]["decoder"].update(batch_size=0),
], ids=[
    "without models", "no model", "decoder without ids", "newer version", "another kind", "list of files", "boolean length",
    "unknown layout", "axis", "no hash", "large layer", "text of models", "empty batch",
])  # fmt: skip
def test_a_damaged_manifest(change: Any, tmp_path: Path) -> None:
    folder(tmp_path, SHAPES[:1])
    path = tmp_path / "manifest.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")
    with refusal(ModelError):
        read_manifest(tmp_path)


def test_graphs_that_the_manifest_describes_wrongly(tmp_path: Path) -> None:
    folder(tmp_path, SHAPES[1:])
    manifest = read_manifest(tmp_path)
    path = tmp_path / "manifest.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["models"][0]["decoder"]["positions"] = "places"
    path.write_text(json.dumps(data), encoding="utf-8")
    with refusal(ModelError):
        Session(tmp_path).decode(1)
    model = onnx.load(tmp_path / "decode_b1_s1_c16.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "sequence"
    onnx.save(model, tmp_path / "decode_b1_s1_c16.onnx")
    write_manifest(tmp_path, manifest)
    with refusal(ModelError):
        Session(tmp_path).decode(1)


def test_three_forms_of_one_list(tmp_path: Path) -> None:
    wanted = [Specialization.of(1, 128, 1024), Specialization.of(1, 1, 1024), Specialization.of(4, 1, 4096)]
    ours = [{**vars(s), "phase": s.phase, "model": f"{s.name}.onnx"} for s in wanted]
    for number, document in enumerate((ours, cloud_ai_form(wanted), flat_form(wanted))):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        assert read_specializations(path) == wanted
    assert [s.name for s in wanted] == ["prefill_b1_s128_c1024", "decode_b1_s1_c1024", "decode_b4_s1_c4096"]
    assert cloud_ai_form(wanted)["specializations"][1] == {
        "name": "Decode",
        "symbols": {"batch_size": "1", "seq_len": "1", "ctx_len": "1024"},
    }


def test_equal_entries_count_once(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"specializations": [{"seq_len": 1, "ctx_len": 8}, {"seq_len": "1", "ctx_len": "8"}]}')
    assert read_specializations(path) == [Specialization.of(1, 1, 8)]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", UsageError),
        ('{"models": []}', UsageError),
        ('[{"ctx_len": 8}]', UsageError),
        ('[{"seq_len": "many", "ctx_len": 8}]', UsageError),
        ('[{"seq_len": true, "ctx_len": 8}]', UsageError),
        ('[{"seq_len": 0, "ctx_len": 8}]', UsageError),
        ('[{"seq_len": 9, "ctx_len": 8}]', UsageError),
        ('[{"seq_len": 1, "ctx_len": 8, "full_batch_size": 4}]', UnsupportedError),
        ("[3]", UsageError),
    ],
)
def test_lists_that_cannot_be_read(text: str, error: type[QdqError], tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(text, encoding="utf-8")
    with refusal(error):
        read_specializations(path)


def test_a_list_that_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text("nothing", encoding="utf-8")
    with pytest.raises(ModelError, match="is not JSON") as raised:
        read_specializations(path)
    assert str(raised.value).startswith(os.fspath(path))


def test_the_manifest_is_the_same_bytes_for_the_same_folder(tmp_path: Path) -> None:
    texts = [(folder(tmp_path / name, SHAPES) / "manifest.json").read_bytes() for name in ("a", "b")]
    assert texts[0] == texts[1]
    assert isinstance(read_manifest(tmp_path / "a"), Manifest)
