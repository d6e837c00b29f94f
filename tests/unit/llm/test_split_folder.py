"""The folder that `split` writes: one weight file, a manifest at the end, nothing left of before; tokenizers, names, lists of shapes."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, UnsupportedError, UsageError

from qdqtool.io.models.load import load
from qdqtool.llm import Session
from qdqtool.llm.folder import folders
from qdqtool.llm.folder.decoder_config import decoder_config_of
from qdqtool.llm.folder.manifest import read_manifest, verify_folder
from qdqtool.llm.plan import NAMINGS
from qdqtool.llm.plan.naming import load_naming
from qdqtool.llm.plan.specializations import Specialization
from qdqtool.llm.plan.splitting import refuse_unknown_inputs
from qdqtool.llm.run.verifying import verify_split
from qdqtool.verbs.split import split
from tests.cases.cli_helpers import environment
from tests.cases.small_decoders import CAUSAL, IDS, LEARNED, MASK, POSITIONS, decoder
from tests.golden_messages.refusal import refusal
from tests.unit.llm.test_split_forms import exported, tiny

__all__ = ["tiny"]  # a fixture
SHAPE: dict[str, Any] = {"prefill": (4,), "context": (16,)}


def places(path: Path) -> dict[str, tuple[str, int, int]]:
    """Name of each weight in a file → (file, offset, length)."""
    found = {}
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        entry = {e.key: e.value for e in tensor.external_data}
        if entry:
            found[tensor.name] = (entry["location"], int(entry["offset"]), int(entry["length"]))
    return found


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_no_weight_twice(tmp_path: Path) -> None:
    source = exported("llama_dynamo_anon")
    done = split(source, tmp_path / "split", prefill=(4, 8), context=(16, 32))
    (weights,) = (tmp_path / "split").glob("*.data")
    assert weights.name == f"weights.{hashlib.sha256(weights.read_bytes()).hexdigest()[:8]}.data"
    graphs = [places(tmp_path / "split" / part.file) for graph in done.graphs for part in graph.parts]
    assert len(graphs) == 6
    shared = set.intersection(*(set(graph) for graph in graphs))
    assert len(shared) >= 15  # the table, and 7 weights of each of 2 layers
    for name in shared:
        assert len({graph[name] for graph in graphs}) == 1
    spans = sorted({place for graph in graphs for place in graph.values()}, key=lambda place: place[1])
    for (_, offset, length), (_, following, _) in itertools.pairwise(spans):
        assert offset + length <= following
    original = (source.parent / "model.onnx.data").stat().st_size
    assert (
        done.weight_bytes == weights.stat().st_size < original * 1.01 + 8 * 4096
    )  # from a page on where they are that long
    for path in (tmp_path / "split").glob("*.onnx"):
        assert path.stat().st_size < source.stat().st_size  # which has its weights outside too


def test_equal_bytes(tiny: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        split(tiny, tmp_path / name, parts=2, **SHAPE)
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_what_is_listed(tiny: Path, tmp_path: Path) -> None:
    done = split(tiny, tmp_path, **SHAPE)
    there = set(content(tmp_path))
    assert set(done.files) == there
    assert set(read_manifest(tmp_path).files) == there - {"manifest.json"}
    assert read_manifest(tmp_path).source_sha256 == hashlib.sha256(tiny.read_bytes()).hexdigest()
    shape = {"batch_size": 1, "ctx_len": 16}
    assert json.loads((tmp_path / "specializations.json").read_text(encoding="utf-8")) == [
        {"name": "prefill_b1_s4_c16", "phase": "prefill", "seq_len": 4, "model": "prefill_b1_s4_c16.onnx", **shape},
        {"name": "decode_b1_s1_c16", "phase": "decode", "seq_len": 1, "model": "decode_b1_s1_c16.onnx", **shape},
    ]


def test_folders_in_the_way(tiny: Path, tmp_path: Path) -> None:
    with refusal(UsageError):
        split(tiny, tiny, **SHAPE)
    (tmp_path / "notes.txt").write_text("mine")
    with refusal(UsageError):
        split(tiny, tmp_path, overwrite=True, **SHAPE)
    split(tiny, tmp_path / "split", **SHAPE)
    before = content(tmp_path / "split")
    with refusal(UsageError):
        split(tiny, tmp_path / "split", prefill=(8,), context=(16,))
    assert content(tmp_path / "split") == before


@pytest.mark.parametrize("name", ["cloud_ai/precious", "../outside/precious", "."])
def test_a_strangers_folder_reaches_nothing_outside(name: str, tiny: Path, tmp_path: Path) -> None:
    """A manifest that lists a file behind a link, or outside: replacing the folder deletes nothing there, and writes nothing."""
    folder, outside = tmp_path / "split", tmp_path / "outside"
    split(tiny, folder, **SHAPE)
    outside.mkdir()
    (outside / "precious").write_text("mine")
    (folder / "cloud_ai").symlink_to(outside)
    with refusal(ModelError):
        split(tiny, folder, naming="cloud-ai", overwrite=True, **SHAPE)
    manifest = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(manifest.replace('"files": {', f'"files": {{"{name}": "",'))
    with refusal(ModelError):
        split(tiny, folder, overwrite=True, **SHAPE)
    assert content(outside) == {"precious": b"mine"}


def test_overwriting_takes_away_what_is_stale(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "split"
    split(tiny, folder, naming="cloud-ai", **SHAPE)
    (folder / "mine.txt").write_text("not of a split")
    split(exported("llama_dynamo23"), folder, prefill=(8,), context=(16,), overwrite=True)
    names = {"prefill_b1_s8_c16.onnx", "decode_b1_s1_c16.onnx", "manifest.json", "specializations.json", "mine.txt"}
    there = set(content(folder))
    assert {name for name in there if not name.endswith(".data")} == names
    assert len(there) == len(names) + 1
    assert verify_folder(folder) == []
    assert verify_split(folder, exported("llama_dynamo23"), lengths=[9]).passed


def test_a_split_that_fails_leaves_nothing(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise OSError("disk is gone")

    monkeypatch.setattr(folders, "write_manifest", fail)
    with pytest.raises(OSError, match="disk is gone"):
        split(tiny, tmp_path / "split", naming="cloud-ai", **SHAPE)
    assert not (tmp_path / "split").exists()
    monkeypatch.undo()
    split(tiny, tmp_path / "split", **SHAPE)
    before = read_manifest(tmp_path / "split")
    monkeypatch.setattr(folders, "write_manifest", fail)
    with pytest.raises(OSError, match="disk is gone"):
        split(exported("llama_dynamo23"), tmp_path / "split", overwrite=True, **SHAPE)
    assert read_manifest(tmp_path / "split") == before
    with refusal(ModelError):
        Session(tmp_path / "split")


KILLED = """
import os, signal, sys
from qdqtool.verbs.split import split
from qdqtool.llm.folder import folders
folders.write_manifest = lambda *arguments, **more: os.kill(os.getpid(), signal.SIGKILL)
split(sys.argv[1], sys.argv[2], prefill=(4,), context=(16,))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 on this system")
@pytest.mark.product(days=4)
def test_a_split_that_is_killed_leaves_no_manifest(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "split"
    done = subprocess.run([sys.executable, "-c", KILLED, str(tiny), str(folder)], env=environment(), check=False)
    assert done.returncode == -signal.SIGKILL
    assert (folder / "decode_b1_s1_c16.onnx").exists()
    with refusal(ModelError):
        Session(folder)


@pytest.mark.parametrize("form", ["ours", "cloud", "flat"])
def test_shapes_from_a_file(form: str, tiny: Path, tmp_path: Path) -> None:
    symbols = [
        {"batch_size": "1", "seq_len": "4", "ctx_len": "16"},
        {"batch_size": "2", "seq_len": "1", "ctx_len": "8"},
    ]
    documents: dict[str, Any] = {
        "ours": [{key: int(value) for key, value in one.items()} for one in symbols],
        "cloud": {"specializations": [{"name": "any", "symbols": one} for one in symbols]},
        "flat": {"specializations": symbols},
    }
    path = tmp_path / "shapes.json"
    path.write_text(json.dumps(documents[form]), encoding="utf-8")
    done = split(tiny, tmp_path / "split", specializations=path)
    wanted = (Specialization.of(1, 4, 16), Specialization.of(2, 1, 8))
    assert done.plan.specializations == wanted
    again = split(tiny, tmp_path / "again", specializations=tmp_path / "split" / "specializations.json")
    assert again.plan.specializations == wanted
    assert content(tmp_path / "again") == content(tmp_path / "split")


def names_of(folder: Path) -> tuple[list[str], list[str]]:
    graph = onnx.load(folder / "prefill_b1_s4_c16.onnx", load_external_data=False).graph
    return [value.name for value in graph.input], [value.name for value in graph.output]


NAMES = {
    "exported": (["input_ids", "past_key_values.1.key", "position_ids", "attention_mask", "last_index"], ["logits", "present.1.value"]),
    "genai": (["input_ids", "past_key_values.1.key", "past_seq_len", "total_seq_len"], ["logits", "present.1.value"]),
    "cloud-ai": (["input_ids", "position_ids", "past_key.1", "past_value.0"], ["logits", "past_key.1_RetainedState"]),
    "ane": (["inputIds", "positionIds", "keyCache", "valueCache"], ["logits", "keyCache_out", "valueCache_out"]),
}  # fmt: skip
FILES = {
    "genai": {"genai_config.json"},
    "cloud-ai": {"cloud_ai/specializations.json", "cloud_ai/specializations_flat.json"},
}


def test_every_naming_is_tested() -> None:
    assert set(NAMINGS.names()) == set(NAMES)


@pytest.mark.parametrize("naming", NAMES)
def test_namings(naming: str, tiny: Path, tmp_path: Path) -> None:
    split(tiny, tmp_path, naming=naming, **SHAPE)
    inputs, outputs = names_of(tmp_path)
    assert set(NAMES[naming][0]) <= set(inputs)
    assert set(NAMES[naming][1]) <= set(outputs)
    graphs = {"prefill_b1_s4_c16.onnx", "decode_b1_s1_c16.onnx", "manifest.json", "specializations.json"}
    there = {name for name in content(tmp_path) if not name.endswith(".data")}
    assert there == graphs | FILES.get(naming, set())
    assert set(read_manifest(tmp_path).files) >= FILES.get(naming, set())
    assert verify_split(tmp_path, tiny).worst < 1e-5
    assert len(Session(tmp_path).generate([1, 2, 3, 4, 5], 4)) == 4


def test_files_of_cloud_ai(tiny: Path, tmp_path: Path) -> None:
    split(tiny, tmp_path, naming="cloud-ai", **SHAPE)
    shapes = [{"batch_size": "1", "seq_len": n, "ctx_len": "16"} for n in ("4", "1")]
    new, old = (json.loads((tmp_path / "cloud_ai" / f"specializations{x}.json").read_text()) for x in ("", "_flat"))
    assert new == {
        "specializations": [{"name": n, "symbols": s} for n, s in zip(("Prefill", "Decode"), shapes, strict=True)]
    }
    assert old == {"specializations": shapes}


def test_a_naming_of_ones_own(tiny: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('description = "mine"\nlayout = ["slide"]\n[names]\nids = "tokens"\npast = "kv_{layer}_{part}"\n')
    with refusal(UsageError):
        split(tiny, tmp_path / "split", naming=mine, **SHAPE)
    split(tiny, tmp_path / "split", naming=mine, layout="slide", **SHAPE)
    assert {"tokens", "kv_0_key", "kv_1_value"} <= set(names_of(tmp_path / "split")[0])
    assert verify_split(tmp_path / "split", tiny, lengths=[7]).passed
    mine.write_text('description = "mine"\nfile = []\n')
    with refusal(ModelError):
        load_naming(mine)


@pytest.mark.parametrize(
    "options",
    [{"context": (16, 32)}, {"prefill": ()}, {"batch": (2,)}, {"parts": 2}],
    ids=lambda options: next(iter(options)),
)
def test_what_genai_has_no_place_for(options: dict[str, Any], tiny: Path, tmp_path: Path) -> None:
    with refusal(UsageError):
        split(tiny, tmp_path / "split", naming="genai", **(SHAPE | options))
    assert not (tmp_path / "split").exists()


def test_configuration_of_genai(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "config.json").write_text(
        '{"eos_token_id": [4, 7], "bos_token_id": 2, "pad_token_id": 9, "text_config": {"hidden_size": 48, "n_head": 6}}'
    )
    split(tiny, tmp_path / "split", naming="genai", tokenizer=tmp_path / "tokens", **SHAPE)
    model = json.loads((tmp_path / "split" / "genai_config.json").read_text())["model"]
    assert (model["eos_token_id"], model["bos_token_id"], model["pad_token_id"]) == ([4, 7], 2, 9)
    assert (model["vocab_size"], model["context_length"], model["type"]) == (50, 16, "decoder-pipeline")
    decoder_part = model["decoder"]
    assert (decoder_part["head_size"], decoder_part["num_key_value_heads"], decoder_part["num_hidden_layers"]) == (
        8,
        2,
        2,
    )
    assert (decoder_part["hidden_size"], decoder_part["num_attention_heads"]) == (48, 6)
    stages = [(name, stage) for entry in decoder_part["pipeline"] for name, stage in entry.items()]
    assert [(name, stage["run_on_prompt"]) for name, stage in stages] == [("prefill", True), ("decode", False)]
    for _, stage in stages:
        graph = onnx.load(tmp_path / "split" / stage["filename"], load_external_data=False).graph
        assert stage["inputs"] == [value.name for value in graph.input]
        assert stage["outputs"] == [value.name for value in graph.output]


TOKENIZER = json.dumps({"added_tokens": [{"id": 5, "content": "</s>"}, {"id": 6, "content": "<x>"}]})


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"generation_config.json": {"eos_token_id": [1, 2]}, "config.json": {"eos_token_id": 3}}, (1, 2)),
        ({"genai_config.json": {"model": {"eos_token_id": 4}}, "config.json": {"eos_token_id": 3}}, (4,)),
        ({"config.json": {"eos_token_id": 3}}, (3,)),
        ({"config.json": {"eos_token_id": None}, "tokenizer_config.json": {"eos_token": "</s>"}}, (5,)),
        ({"tokenizer_config.json": {"eos_token": {"content": "<x>"}}}, (6,)),
        ({"tokenizer_config.json": {"eos_token": "unheard"}}, ()),
        ({"config.json": []}, ()),
        ({}, ()),
    ],
)
def test_where_the_end_stands(files: dict[str, Any], wanted: tuple[int, ...], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(TOKENIZER, encoding="utf-8")
    for name, data in files.items():
        (tmp_path / name).write_text(json.dumps(data), encoding="utf-8")
    found = decoder_config_of(tmp_path / "model.onnx")
    assert found.eos_token_ids == wanted
    assert {os.path.basename(path) for path in found.files} == {"tokenizer.json", *files} - {"genai_config.json"}


def test_the_tokenizer_goes_along(tiny: Path, tmp_path: Path) -> None:
    source, other = tmp_path / "source", tmp_path / "other"
    for folder, text in ((source, "1"), (other, "2")):
        folder.mkdir()
        (folder / "tokenizer.json").write_text(text)
        (folder / "generation_config.json").write_text('{"eos_token_id": 0}')
    (source / "model.onnx").write_bytes(tiny.read_bytes())
    for number, tokenizer in enumerate((None, other, other / "tokenizer.json")):
        split(source / "model.onnx", tmp_path / str(number), tokenizer=tokenizer, **SHAPE)
        manifest = read_manifest(tmp_path / str(number))
        assert manifest.tokenizer == ("tokenizer.json", "generation_config.json")
        assert {"tokenizer.json", "generation_config.json"} <= set(manifest.files)
        assert manifest.eos_token_ids == (0,)
        assert (tmp_path / str(number) / "tokenizer.json").read_text() == ("1" if tokenizer is None else "2")
    (other / "tokenizer.json").unlink()
    (other / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"generation_config\.json: is not JSON"):
        split(tiny, tmp_path / "broken", tokenizer=other, **SHAPE)


def test_what_would_be_wrong_without_a_sound_is_refused(tmp_path: Path) -> None:
    """An input that nothing feeds, positions without a row in their table, and a mask of another rule."""
    scaled = LEARNED.replace("x = Add", "sum = Add") + " x = Mul(sum, scale)"
    with refusal(UnsupportedError):
        split(decoder(positions=scaled, inputs=f"{IDS}, {MASK}, {POSITIONS}, float[1] scale"), tmp_path / "a", **SHAPE)
    with refusal(UnsupportedError):
        split(decoder(), tmp_path / "b", prefill=(4,), context=(65, 8))
    split(decoder(), tmp_path / "c", prefill=(4,), context=(64,))
    halved = CAUSAL + "[bias] bias = Where(is_causal, half, lowest) [mask] masked = Add(scores, bias)"
    with pytest.raises(UnsupportedError):
        split(decoder(mask=halved), tmp_path / "d", **SHAPE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]


def test_an_input_that_no_record_names(tiny: Path, tmp_path: Path) -> None:
    """Zeros would be fed; one that nobody reads does no harm."""
    split(tiny, tmp_path, **SHAPE)
    graph = load(tmp_path / "decode_b1_s1_c16.onnx")
    record = read_manifest(tmp_path).models[1].decoder
    graph.graph.inputs.append(ir.Value(name="unread"))
    refuse_unknown_inputs(graph, record)
    with refusal(UnsupportedError):
        refuse_unknown_inputs(graph, dataclasses.replace(record, masks=()))
