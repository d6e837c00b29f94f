"""What a small file may cost: memory and work are bounded, the refusal names the place and the way out."""

from __future__ import annotations

import gc
import weakref
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import pytest
from qdq_passes import run_pipeline
from qdq_passes.core import budget
from qdq_passes.errors import ModelError, UsageError

from qdqtool.io.feeds.feeds import open_feeds
from qdqtool.io.feeds.spec import InputSpec
from qdqtool.io.feeds.stored_array import arrays_in
from qdqtool.io.models.load import load
from qdqtool.runtime.session import open_session
from tests.cases.small_models import model, parsed
from tests.golden_messages.refusal import refusal

HEAD = '<ir_version: 10, opset_import: ["" : 17, "my" : 1]> g'


def doubled(start: str, count: int) -> str:
    """Nodes that make ``d{count}`` of ``start``, 2^count times as long."""
    body = " ".join(f"[c{i}] d{i} = Concat<axis=0>(d{i - 1}, d{i - 1})" for i in range(1, count + 1))
    return body.replace("d0", start)


@pytest.fixture(autouse=True)
def nothing_was_brought() -> None:
    budget.forget()


@pytest.mark.parametrize("body", [f"{doubled('x', 36)} y = ReduceSum(d36)", "m = Mul(n, n) [e] r = Expand(x, m) y = ReduceSum(r)"])  # fmt: skip
def test_what_a_node_asks_for(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(budget.VARIABLE, str(64 << 20))
    session = open_session(model(f"{HEAD} (float[1,1] x) => (float[N,M] y) <int64[2] n = {{128, 128}}> {{ {body} }}"))
    with refusal(ModelError):
        session.run({"x": np.ones((1, 1), np.float32)})


def test_a_session_of_larger_data_is_made_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made before anybody knew how large they are."""
    monkeypatch.setenv(budget.VARIABLE, str(1 << 20))
    session = open_session(model(f"{HEAD} (float[N] x) => (float[N] y) {{ y = Neg(x) }}"))
    feed = {"x": np.ones(1 << 20, np.float32)}
    with pytest.raises(ModelError, match="asks for 4 MiB"):
        session.run(feed)
    monkeypatch.setenv(budget.VARIABLE, str(64 << 20))
    assert session.run(feed)["y"][0] == -1


def test_functions_that_call_each_other_twice() -> None:
    """40 of them are 2^40 nodes."""
    head = '<domain: "my", opset_import: ["" : 17, "my" : 1]>'
    functions = "\n".join(f"{head} F{i} (a) => (c) {{ b = my.F{i - 1}(a) c = my.F{i - 1}(b) }}" for i in range(1, 41))
    with refusal(ModelError):
        model(f"{HEAD} (float[4] x) => (float[4] y) {{ y = my.F40(x) }}\n{functions}")


@pytest.mark.parametrize(("count", "within", "asked"), [
    (20, "", False), (2, "", True), (2, 'y = my.F (x) } <domain: "my", opset_import: ["" : 17]> F (x) => (y) {', False),
])  # fmt: skip
def test_only_short_vectors_are_propagated(count: int, within: str, asked: bool) -> None:
    """How long they are in a function is not known."""
    given = model(f"{HEAD} (int64[4] x) => (int64[N] y) {{ {within} {doubled('x', count)} y = Neg (d{count}) }}")
    with mock.patch("onnx.shape_inference.infer_shapes", wraps=onnx.shape_inference.infer_shapes) as infer:
        run_pipeline(given, "infer-shapes")
    assert any(call.kwargs.get("data_prop") for call in infer.call_args_list) == asked


def test_random_numbers_of_an_enormous_input() -> None:
    with refusal(ModelError):
        next(iter(open_feeds("random:1", [InputSpec("x", np.dtype(np.float32), (1 << 20, 1 << 20))])))


@pytest.mark.parametrize("text", ["16G", "²", "9" * 19])
def test_a_bound_that_is_no_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(budget.VARIABLE, text)
    with refusal(UsageError):
        budget.allowed()


def test_what_is_allowed_grows_with_what_is_brought() -> None:
    budget.brought(drawn=1 << 20)
    assert budget.allowed() == budget.LEAST + (1 << 26)
    assert budget.allowed(tensors=100) == 2 * budget.LEAST, "the model says how large a random feed is"
    budget.brought(model=1 << 30, feed=1 << 20)
    budget.brought(model=1, feed=2)
    assert budget.allowed(tensors=100) == budget.LEAST + (1 << 37) + 100 * (1 << 26)


def test_an_archive_is_opened_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **{f"x{i}": np.zeros(3) for i in range(20)})
    with mock.patch("zipfile.ZipFile", wraps=zipfile.ZipFile) as opened:
        assert len(arrays_in(tmp_path / "d.npz")) == 20
    assert opened.call_count == 1


@pytest.mark.parametrize(("shape", "fortran"), [((1, 1 << 40), False), ((1 << 20, 1 << 20), True), ((0, 1 << 62), False)])  # fmt: skip
def test_arrays_that_are_too_large_to_hold(shape: tuple[int, ...], fortran: bool, tmp_path: Path) -> None:
    with open(tmp_path / "d.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"shape": shape, "fortran_order": fortran, "descr": "<f4"})
    with pytest.raises(ModelError, match=r"d\.npy: (an array in it, read at once, would take 4 TiB|cannot be read as)"):
        np.asarray(arrays_in(tmp_path / "d.npy")["data"])


def test_a_loop_that_never_ends() -> None:
    text = """g (float[2] x) => (float[2] y) <int64 n = {%d}, bool c = {1}> { [loop] y = Loop (n, c, x) <body = b
        (int64 i, bool k, float[2] v) => (bool l, float[2] w) { l = Identity (k)  w = Neg (v) }> }"""
    open_session(model(text % 3))
    with refusal(ModelError):
        open_session(model(text % (1 << 62)))


@pytest.mark.parametrize("is_on", [True, False])
def test_collecting_goes_on_where_it_went_on_before(is_on: bool, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    (gc.enable if is_on else gc.disable)()
    try:
        with pytest.raises(ModelError, match=r"m\.onnx"):
            load(tmp_path / "m.onnx")
        assert gc.isenabled() == is_on
        with budget.uncollected():
            assert not gc.isenabled()
    finally:
        gc.enable()


def test_models_that_were_let_go_of_are_collected_at_the_next_load(tmp_path: Path) -> None:
    """A model is full of cycles: without that a loop of loads would hold on to all of them."""
    path = tmp_path / "m.onnx"
    onnx.save(parsed("g (float[2] x) => (float[2] y) { y = Relu (x) }"), path)
    dropped = [weakref.ref(load(path)) for _ in range(3)]
    load(path)
    assert [ref() for ref in dropped] == [None] * 3
