"""What onnxruntime writes when a session is to leave a compiled model behind, and what is loaded of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as native

from qdqtool.npu.payload import read_payload
from qdqtool.runtime.provider import PROVIDER
from tests.npu.small_programs import HEADER, context_model, devices, equal, library, python, refusal, session, succeeds
from tests.npu.test_compiling import Recorder, X, attached, model, on_cpu

#: How a session is told to write one.
ENABLE, PLACE, EMBED = "ep.context_enable", "ep.context_file_path", "ep.context_embed_mode"


def dumped(folder: Path, embed: str) -> Path:
    """A compiled model that a session wrote."""
    file = folder / "compiled.onnx"
    with attached(Recorder()):
        session(model(), {ENABLE: "1", PLACE: str(file), EMBED: embed}, target="acme_npu")
    return file


def contexts(file: Path) -> list[dict[str, object]]:
    nodes = onnx.load(file).graph.node
    found = [
        {a.name: onnx.helper.get_attribute_value(a) for a in n.attribute} for n in nodes if n.op_type == "EPContext"
    ]
    assert [n.op_type for n in nodes if n.op_type != "EPContext"] == ["Softplus", "Add"]
    return found


@pytest.mark.parametrize("embed", ["0", "1"])
def test_dumped_and_loaded(tmp_path: Path, embed: str) -> None:
    file = dumped(tmp_path, embed)
    (context,) = contexts(file)
    assert (context["source"], context["main_context"], context["embed_mode"]) == (PROVIDER.encode(), 1, int(embed))
    held = context["ep_cache_context"]
    assert isinstance(held, bytes)
    data = held if embed == "1" else (tmp_path / held.decode()).read_bytes()
    assert read_payload(data)[0] == HEADER
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        {"compiled.onnx"} | ({held.decode()} if embed == "0" else set())
    )
    assert equal(session(str(file)).run(None, {"x": X}), [on_cpu(model())])


def test_nothing_to_write_is_said(tmp_path: Path) -> None:
    """Where nothing runs on the NPU, onnxruntime itself would write nothing and go on."""
    file = tmp_path / "compiled.onnx"
    text = refusal(model(), {ENABLE: "1", PLACE: str(file)}, target="generic_int8")
    assert "nothing of the model runs on generic_int8, so there is no program; 2 of 4 operators: " in text
    assert not file.exists()
    assert equal(session(model(), target="generic_int8").run(None, {"x": X}), [on_cpu(model())])


def test_it_runs_where_nothing_compiles(tmp_path: Path) -> None:
    """Another process, no compiler."""
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", on_cpu(model()))
    code = """
import sys, numpy as np, onnxruntime as ort
from pathlib import Path
folder = Path(sys.argv[1])
ort.register_execution_provider_library("npu", sys.argv[2])
options = ort.SessionOptions()
options.add_provider_for_devices([d for d in ort.get_ep_devices() if d.ep_name == "NpuSimExecutionProvider"], {})
found = ort.InferenceSession(str(folder / "compiled.onnx"), options).run(None, {"x": np.load(folder / "x.npy")})[0]
assert np.array_equal(found, np.load(folder / "y.npy"))
print("equal", "onnx" in sys.modules)
"""
    dumped(tmp_path, "0")
    assert succeeds(python(code, str(tmp_path), str(library()))).split() == ["equal", "False"]


def test_a_model_from_memory_says_where_its_files_are(tmp_path: Path) -> None:
    file = dumped(tmp_path, "0")
    assert equal(session(onnx.load(file), {PLACE: str(file)}).run(None, {"x": X}), [on_cpu(model())])


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    file = dumped(tmp_path, "0")
    next(tmp_path.glob("*.qdqnpu")).unlink()
    assert "cannot open " in refusal(str(file))


@pytest.mark.parametrize(("link", "wanted"), [
    (os.symlink, "is behind a link"), (os.link, "has several hard links"), (lambda _, path: os.mkfifo(path), "is no regular file"),
])  # fmt: skip
def test_a_file_that_is_another(tmp_path: Path, link: Callable[[Path, Path], None], wanted: str) -> None:
    """What Python refuses the provider refuses: a link, another name of the file, what is no file."""
    file = dumped(tmp_path, "0")
    (payload,) = tmp_path.glob("*.qdqnpu")
    link(payload.rename(tmp_path / "moved"), payload)
    assert wanted in refusal(str(file))


@pytest.mark.parametrize("name", ["../elsewhere.bin", "/etc/passwd", "a/../../b", "", "linked/x.bin"])
def test_no_other_files_are_read(tmp_path: Path, name: str) -> None:
    made = context_model(data=name.encode())
    made.graph.node[0].attribute[0].i = 0
    assert made.graph.node[0].attribute[0].name == "embed_mode"
    onnx.save(made, tmp_path / "m.onnx")
    (tmp_path / "linked").symlink_to(".")
    outside = f"an EPContext node names the file '{name}', which is not beside the model"
    assert ("is behind a link" if "linked" in name else outside) in refusal(str(tmp_path / "m.onnx"))


def test_the_compiler_is_asked_whether_a_program_is_fresh() -> None:
    """Only where a session names a target, and the right one: a host without one runs whatever was compiled."""
    compiler = Recorder()
    with attached(compiler):
        session(context_model())
        assert compiler.checked == []
        session(context_model(), target="acme_npu")
        assert compiler.checked == [(asdict(HEADER), "acme_npu")]
        assert "expected target other, found acme_npu" in refusal(context_model(), target="other")
        assert len(compiler.checked) == 1


def test_contexts_of_others_are_not_ours() -> None:
    made = context_model()
    next(a for a in made.graph.node[0].attribute if a.name == "source").s = b"AcmeExecutionProvider"
    with attached(Recorder()), pytest.raises(Exception, match="EPContext"):
        session(made)


def test_a_context_that_points_to_another() -> None:
    made = context_model()
    next(a for a in made.graph.node[0].attribute if a.name == "main_context").i = 0
    assert "main_context 0" in refusal(made)


def test_compiled_models_are_marked(tmp_path: Path) -> None:
    written = {p.key: p.value for p in onnx.load(dumped(tmp_path, "1")).metadata_props}
    assert written[f"ep_compatibility_info.{PROVIDER}"] == "qdqtool-npu;format=1"


def test_onnxruntime_asks_about_marks() -> None:
    kinds = native.OrtCompiledModelCompatibility
    for info, wanted in {
        "qdqtool-npu;format=1": kinds.EP_SUPPORTED_OPTIMAL,
        "qdqtool-npu;format=7": kinds.EP_UNSUPPORTED,
        "something else": kinds.EP_NOT_APPLICABLE,
    }.items():
        assert native.get_model_compatibility_for_ep_devices(devices(), info) == wanted
