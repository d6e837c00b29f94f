"""`verify` finds what is wrong in one graph and names the layer; `check` and `generate` refuse a byte that flipped."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from qdq_passes.decoder.look.record import MaskInput
from qdq_passes.errors import UsageError

from qdqtool.io.models.load import load
from qdqtool.llm.folder.manifest import StaticModel, read_manifest, write_manifest
from qdqtool.llm.run.verifying import boundary_lengths, verify_split
from qdqtool.verbs.split import split
from tests.cases.cli_helpers import cli
from tests.golden_messages.refusal import refusal, told
from tests.unit.llm.test_split_forms import exported, tiny

__all__ = ["tiny"]  # a fixture
PREFILL, DECODE = "prefill_b1_s4_c32.onnx", "decode_b1_s1_c32.onnx"


@pytest.fixture(scope="module")
def whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "split"
    split(tiny, folder, prefill=(4,), context=(32,))
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(whole, tmp_path / "split"))


def edit(folder: Path, file: str, change: Callable[[onnx.ModelProto], None]) -> None:
    """Change a graph, and its hash in the manifest."""
    model = onnx.load(folder / file)
    change(model)
    onnx.save(model, folder / file)
    manifest = read_manifest(folder)
    write_manifest(folder, manifest, more=list(manifest.files))


def weight(name: str) -> Callable[[onnx.ModelProto], None]:
    """A change of one number of a weight by half of its largest."""

    def change(model: onnx.ModelProto) -> None:
        (tensor,) = (t for t in model.graph.initializer if t.name == name)
        array = onnx.numpy_helper.to_array(tensor).copy()
        array.flat[0] += np.abs(array).max() / 2
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))

    return change


def shifted(model: onnx.ModelProto) -> None:
    """Positions one too far, where the table of positions is read."""
    (node,) = (n for n in model.graph.node if n.op_type == "Gather" and n.input[0] == "places")
    given = node.input[1]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1, np.int64), "one_too_far"))
    node.input[1] = "shifted_positions"
    at = list(model.graph.node).index(node)
    model.graph.node.insert(
        at, onnx.helper.make_node("Add", [given, "one_too_far"], ["shifted_positions"], name="shift")
    )


@pytest.mark.parametrize(
    ("file", "change", "layer", "prompts"),
    [
        (PREFILL, weight("key1"), 1, {3, 4, 5, 8, 17}),
        (DECODE, weight("value1"), 1, set(boundary_lengths(4))),
        (PREFILL, weight("out0"), 1, {3, 4, 5, 8, 17}),
        (DECODE, weight("key0"), 0, set(boundary_lengths(4))),
        (DECODE, weight("head"), None, set(boundary_lengths(4))),
        (PREFILL, shifted, 0, {3, 4, 5, 8, 17}),
        (DECODE, shifted, 0, set(boundary_lengths(4))),
    ],
)
def test_an_error_in_one_graph(
    file: str, change: Callable[[onnx.ModelProto], None], layer: int | None, prompts: set[int], folder: Path, tiny: Path
) -> None:
    edit(folder, file, change)
    found = verify_split(folder, tiny)
    wrong = [case for case in found.cases if case.difference > found.tolerance]
    assert not found.passed
    assert {case.prompt for case in wrong} == prompts
    assert {case.layer for case in wrong} == {layer}


def rewritten(folder: Path, change: Callable[[StaticModel], StaticModel]) -> None:
    manifest = read_manifest(folder)
    models = tuple(change(model) for model in manifest.models)
    write_manifest(folder, dataclasses.replace(manifest, models=models), more=list(manifest.files))


def test_a_mask_of_another_rule(folder: Path, tiny: Path) -> None:
    """A window where there is none: keys of the first layer are of single tokens, those of the second of what the first saw."""
    masks = (MaskInput(name="attention_mask", window=2),)
    rewritten(folder, lambda m: dataclasses.replace(m, decoder=dataclasses.replace(m.decoder, masks=masks)))
    found = verify_split(folder, tiny, lengths=[1, 8], decoded=3)
    assert [case.layer for case in found.cases] == [1, 1]
    assert found.cases[0].token == 3 or found.cases[0].token == 2


def test_the_layer_in_a_state_of_several(tiny: Path, tmp_path: Path) -> None:
    split(tiny, tmp_path, prefill=(4,), context=(32,), naming="ane")
    graph = load(tmp_path / DECODE).graph
    (name,) = (name for name in graph.initializers if "value1" in name)
    edit(tmp_path, DECODE, weight(name))
    assert {case.layer for case in verify_split(tmp_path, tiny).cases} == {1}


def test_numbers_that_are_none(folder: Path, tiny: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        (tensor,) = (t for t in model.graph.initializer if t.name == "head")
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.full((16, 50), np.nan, np.float32), "head"))

    edit(folder, DECODE, change)
    found = verify_split(folder, tiny, lengths=[4])
    assert not found.passed
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["difference"] > 1


def test_of_another_model(folder: Path, tiny: Path) -> None:
    with refusal(UsageError):
        verify_split(folder, exported("llama_dynamo23"))
    with refusal(UsageError):
        verify_split(folder, tiny, lengths=[33])
    for tolerance in (-1.0, float("nan"), float("inf")):
        with refusal(UsageError):
            verify_split(folder, tiny, tolerance=tolerance)


def test_command(folder: Path, tiny: Path) -> None:
    done = cli("llm", "verify", folder, tiny, "--lengths", "5", "--decoded", "2")
    assert done.out.splitlines()[0].split() == ["rows", "slots", "chunk", "prompt", "decoded", "difference"]
    assert done.out.splitlines()[1].split()[:5] == ["1", "32", "4", "5", "2"]
    assert "equal: at most" in done.out
    edit(folder, PREFILL, weight("key1"))
    done = cli("llm", "verify", folder, tiny, "--lengths", "5", code=1)
    assert "the cache of layer 1 is the first that differs" in done.out
    assert "DIFFERENT: at most" in done.out
    found = cli("llm", "verify", folder, tiny, "--lengths", "5", "--json", code=1).json
    assert found["passed"] is False
    assert found["cases"][0] | {"difference": 0, "token": 0} == {
        "prompt": 5, "chunk": 4, "decoded": 8, "context": 32, "batch_size": 1, "layer": 1, "difference": 0, "token": 0,
    }  # fmt: skip
    assert cli("llm", "verify", folder, tiny, "--tolerance", "10").code == 0
    told(cli("llm", "verify", tiny, folder, code=2).error)
    told(cli("llm", "verify", folder, tiny, "--lengths", "0", code=2).error)
    told(cli("llm", "verify", folder, tiny, "--seed", "-1", code=2).error)


@pytest.mark.parametrize("name", [DECODE, "specializations.json", "weights"])
def test_a_flipped_byte(name: str, folder: Path) -> None:
    path = next(p for p in folder.iterdir() if p.name.startswith(name))
    assert cli("check", folder).code == 0
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    (finding,) = cli("check", folder, "--json", code=1).json["findings"]
    assert (finding["rule"], finding["where"]) == ("folder-manifest", str(path))
    assert "differs from what was written (SHA-256)" in cli("check", folder, code=1).out
    refused = cli("generate", folder, "--prompt-ids", "1,2", "--max-new", "2", code=None)
    assert refused.code != 0
    assert f"{path}: differs from what was written" in refused.error


def test_check_goes_on_graph_by_graph(folder: Path) -> None:
    """The hashes are right, and a graph is broken: the finding says in which."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.node[0].op_type = "Unheard"

    edit(folder, DECODE, change)
    found = cli("check", folder, "--json", "--no-runtime", code=1).json
    errors = [f for f in found["findings"] if f["level"] == "error"]
    assert errors
    assert all(f["where"].startswith(f"{DECODE}: ") for f in errors)
    assert found["onnxruntime"] is None
    told(cli("check", folder.parent, code=2).error)
