"""What a small file may cost: memory and work are bounded, the refusal names the place and the way out."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from qdq_passes import run_pipeline
from qdq_passes.core import budget
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.graph.shapes.propagation import by_onnx

import qdqtool
from qdqtool.io.feeds.feeds import open_feeds
from qdqtool.io.feeds.spec import InputSpec
from qdqtool.io.feeds.stored_array import arrays_in
from qdqtool.runtime.session import open_session
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

HEAD = '<ir_version: 10, opset_import: ["" : 17, "my" : 1]>'


def doubled(start: str, count: int) -> str:
    return " ".join(
        f"[c{i}] d{i} = Concat<axis=0>({p}, {p})"
        for i, p in enumerate([start, *(f"d{k}" for k in range(count))][:count])
    )


@pytest.fixture(autouse=True)
def nothing_was_brought() -> None:
    budget.forget()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that a test reaches in no time."""
    monkeypatch.setenv(budget.VARIABLE, str(64 << 20))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "body",
    [
        f"{doubled('x', 36)} [last] y = ReduceSum(d35)",
        "[tile] t = Tile(x, n) [last] y = ReduceSum(t)",
        "[hidden] n2 = Mul(n, k) [range] r = Expand(x, n2) [last] y = ReduceSum(r)",
        "[pad] p = Pad(x, far) [last] y = ReduceSum(p)",
    ],
    ids=["concats", "tile", "expand", "pad"],
)
def test_what_a_node_asks_for(body: str) -> None:
    constants = "int64[2] n = {16384, 16384}, int64[2] k = {2, 1}, int64[4] far = {0, 0, 0, 4294967296}"
    session = open_session(model(f"{HEAD} g (float[1,1] x) => (float[N,M] y) <{constants}> {{ {body} }}"))
    with refusal(ModelError):
        session.run({"x": np.ones((1, 1), np.float32)})


def test_a_session_of_larger_data_is_made_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made before anybody knew how large they are."""
    monkeypatch.setenv(budget.VARIABLE, str(1 << 20))
    session = open_session(model(f"{HEAD} g (float[N] x) => (float[N] y) {{ y = Neg(x) }}"))
    feed = {"x": np.ones(1 << 20, np.float32)}
    with pytest.raises(ModelError, match="asks for 4 MiB"):
        session.run(feed)
    monkeypatch.setenv(budget.VARIABLE, str(64 << 20))
    assert session.run(feed)["y"][0] == -1


def test_functions_that_call_each_other_twice(tmp_path: Path) -> None:
    """40 of them are 2^40 nodes."""
    calls = ["Relu", *(f"my.F{i}" for i in range(39))]
    functions = "\n".join(
        f'<domain: "my", opset_import: ["" : 17, "my" : 1]> F{i} (a) => (c) {{ b = {f}(a) c = {f}(b) }}'
        for i, f in enumerate(calls)
    )
    text = f"{HEAD} g (float[4] x) => (float[4] y) {{ y = my.F39(x) }}\n{functions}"
    onnx.save(onnx.parser.parse_model(text), tmp_path / "f.onnx")
    with refusal(ModelError):
        qdqtool.load(tmp_path / "f.onnx")


@pytest.mark.usefixtures("small")
def test_shapes_of_a_vector_that_doubles() -> None:
    """onnx would propagate each of its 2^36 integers."""
    body = f"{doubled('k', 36)} [r] y = Reshape(x, d35)"
    given = model(f"{HEAD} g (float[1,4] x) => (float[N] y) <int64[2] k = {{1, 4}}> {{ {body} }}")
    run_pipeline(given, "infer-shapes")
    assert given.graph.node(0).outputs[0].shape == [4]


@pytest.mark.usefixtures("small")
def test_random_numbers_of_an_enormous_input() -> None:
    feeds = open_feeds("random:1", [InputSpec("x", np.dtype(np.float32), (1 << 20, 1 << 20))])
    with refusal(ModelError):
        next(iter(feeds))


@pytest.mark.parametrize("text", ["16G", "-1", "1e9"])
def test_a_bound_that_is_no_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(budget.VARIABLE, text)
    with refusal(UsageError):
        budget.allowed()


def test_what_is_allowed_grows_with_what_is_brought() -> None:
    budget.brought(model=1 << 30, feed=1 << 20)
    budget.brought(model=1, feed=2)
    assert budget.allowed() == (1 << 30) + (1 << 37) + (1 << 26)
    assert budget.size(3 << 29) == "1.5 GiB"


def test_an_archive_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "d.npz", **{f"x{i}": np.zeros(3) for i in range(20)})
    opened = []

    class Counted(zipfile.ZipFile):
        def __init__(self, *args: Any, **options: Any) -> None:
            opened.append(args)
            super().__init__(*args, **options)

    monkeypatch.setattr("zipfile.ZipFile", Counted)
    assert len(arrays_in(tmp_path / "d.npz")) == 20
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("shape", "fortran"),
    [((1, 1 << 40), False), ((1 << 20, 1 << 20), True), ((0, 1 << 62), False), ((-3, 1 << 40), False)],
)
def test_arrays_that_are_too_large_to_hold(shape: tuple[int, ...], fortran: bool, tmp_path: Path) -> None:
    with open(tmp_path / "d.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"shape": shape, "fortran_order": fortran, "descr": "<f4"})
    with pytest.raises(
        ModelError, match=r"d\.npy: (an array in it, read at once, would take [48] TiB|cannot be read as)"
    ):
        np.asarray(arrays_in(tmp_path / "d.npy")["data"])


def test_a_loop_that_never_ends(tmp_path: Path) -> None:
    text = """g (float[2] x) => (float[2] y) <int64 n = {%d}, bool c = {1}> { [loop] y = Loop (n, c, x) <body = b
        (int64 i, bool k, float[2] v) => (bool l, float[2] w) { l = Identity (k)  w = Neg (v) }> }"""
    open_session(model(text % 3))
    with refusal(ModelError):
        open_session(model(text % (1 << 62)))


def test_random_feeds_and_tensors_that_are_fetched_count() -> None:
    budget.brought(drawn=1 << 20)
    assert budget.allowed() == budget.LEAST + (1 << 26)
    assert budget.allowed(tensors=100) == 2 * budget.LEAST, "the model says how large a random feed is"
    budget.brought(feed=1 << 20)
    assert budget.allowed(tensors=100) == budget.LEAST + 100 * (1 << 26)


@pytest.mark.parametrize("where", ["", 'y = f.F (x) } <domain: "f", opset_import: ["" : 17]> F (x) => (y) { '])
def test_only_short_vectors_are_propagated(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    infer = onnx.shape_inference.infer_shapes
    monkeypatch.setattr(
        onnx.shape_inference, "infer_shapes", lambda *a, **k: asked.append(k.get("data_prop", False)) or infer(*a, **k)
    )
    text = f'<ir_version: 10, opset_import: ["" : 17, "f" : 1]> g (int64[4] x) => (int64[N] y) {{ {where}{doubled("x", 30)} y = Neg (d29) }}'
    by_onnx(onnx.parser.parse_model(text).SerializeToString())
    assert True not in asked
    by_onnx(
        onnx.parser.parse_model(
            text.replace(doubled("x", 30), doubled("x", 3)).replace("d29", "d2")
        ).SerializeToString()
    )
    assert (True in asked) == (not where)
