"""The files of one command appear together, or each is as it was before; what is written passes `check` where the input did."""

from __future__ import annotations

import errno
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import qdqtool
from qdqtool.io.files import atomic
from qdqtool.io.files.atomic import Outputs, together, write_whole
from tests.cases.cli_helpers import DIGITS, accepted, cli


def names(folder: Path) -> dict[str, bytes]:
    """Name of each file, hidden ones too → content."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError(errno.ENOSPC, "full")])
def test_what_a_command_that_fails_has_put_is_taken_back(
    error: BaseException | type[BaseException], tmp_path: Path
) -> None:
    """Data files of a model among it; other files stay."""
    old, new, data, cache = (tmp_path / name for name in ("o.onnx", "r.json", "o.12345678.data", "cache"))
    old.write_bytes(b"old")
    with pytest.raises(BaseException), together([str(old), str(new)]):  # noqa: PT011, PT012, B017
        for path in (old, new, data, cache, old):
            write_whole(path, b"new")
        write_whole(tmp_path / "other", b"")  # what is kept aside is not taken for stale
        raise error
    assert names(tmp_path) == {"o.onnx": b"old", "cache": b"new", "other": b""}
    assert Outputs.current is None


def test_what_a_command_has_put_stays(tmp_path: Path) -> None:
    (tmp_path / "o").write_bytes(b"old")
    with together([str(tmp_path / "o")]):
        write_whole(tmp_path / "o", b"new")
    assert names(tmp_path) == {"o": b"new"}


@pytest.mark.parametrize("second", ["--report", "--json-out"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_report_that_cannot_be_written(
    second: str, overwrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_as = atomic.HiddenFile.keep_as

    def full(hidden: atomic.HiddenFile, path: str) -> None:
        if path.endswith(".json"):
            raise OSError(errno.ENOSPC, "full")
        keep_as(hidden, path)

    monkeypatch.setattr(atomic.HiddenFile, "keep_as", full)
    before = {"o.onnx": b"old", "r.json": b"old"} if overwrite else {}
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    given = ["--data", "random:1", "-o", tmp_path / "o.onnx", second, tmp_path / "r.json", *["--overwrite"] * overwrite]
    found = cli("quantize", DIGITS, "--preset", "xint8", *given, code=3)
    assert names(tmp_path) == before
    assert "no room left on the disk" in found.err


def test_a_reader_of_stdout_that_is_gone_costs_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("qdqtool.cli.tables.saving.say", gone)
    cli("opt", DIGITS, "-p", "sort", "-o", tmp_path / "o.onnx", code=None)
    assert list(names(tmp_path)) == ["o.onnx"]


def saved(path: Path, *nodes: onnx.NodeProto, output: list[object] | None, **more: object) -> Path:
    """A model with the input x [2, 6] and the output y."""
    V = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [V("x", TensorProto.FLOAT, [2, 6]), V("s", TensorProto.INT64, ["k"])], [V("y", 1, output)]
    )
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10, **more), path)
    return path


def test_extract_gives_the_only_rank_that_fits(tmp_path: Path) -> None:
    node = helper.make_node
    model = saved(tmp_path / "m.onnx", node("Reshape", ["x", "s"], ["r"]), node("Relu", ["r"], ["y"]), output=["a", 3])
    cli("extract", model, "--outputs", "r", "-o", tmp_path / "o.onnx")
    accepted(tmp_path / "o.onnx")
    assert [str(v.shape) for v in qdqtool.load(tmp_path / "o.onnx").graph.outputs] == ["[None,None]"]
    accepted(tmp_path / "o.onnx")


def test_extract_refuses_a_rank_that_nothing_tells(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = (node("Reshape", ["x", "s"], ["r"]), node("ReduceSum", ["r"], ["y"], keepdims=0))
    model = saved(tmp_path / "m.onnx", *nodes, output=[])
    assert "rank is unknown" in cli("extract", model, "--outputs", "r", "-o", tmp_path / "o.onnx", code=2).error


def test_externalize_leaves_what_shapes_follow_from(tmp_path: Path) -> None:
    """Their integers, and the scales of a Resize, lie in the model file; weights do not."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2,6] x) => (float[1,1,4,6] y)
        <int64[4] s = {1,1,2,6}, float[4] f = {1,1,2,1}, float[6] w = {1,2,3,4,5,6}, int32[1] axes = {0}> {
          [n1] b = Add(x, w) [n2] r = Reshape(b, s) [n3] y = Resize(r, , f) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    cli("externalize", tmp_path / "m.onnx", "--threshold", "0", "-o", tmp_path / "o.onnx")
    stored = onnx.load(tmp_path / "o.onnx", load_external_data=False).graph.initializer
    assert {t.name for t in stored if t.data_location == TensorProto.EXTERNAL} == {"w", "axes"}
    accepted(tmp_path / "o.onnx")


def test_a_function_of_the_empty_domain(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 21)]
    function = helper.make_function("", "Relu", ["a"], ["b"], [helper.make_node("Abs", ["a"], ["b"])], opsets)
    model = saved(tmp_path / "m.onnx", helper.make_node("Relu", ["x"], ["y"]), output=[2, 6], functions=[function])
    accepted(model)
    cli("opt", model, "-p", "sort", "-o", tmp_path / "o.onnx")
    accepted(tmp_path / "o.onnx")
