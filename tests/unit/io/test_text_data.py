"""Texts as --data of a decoder that is one dynamic graph, integers at the ends of any model, and who refuses what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.decoder.look.record import DECODER
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.select.selectors import Selector, select_nodes

from qdqtool import api
from qdqtool.io.models.load import load
from qdqtool.io.models.save import save
from qdqtool.llm.folder.manifest import read_manifest
from qdqtool.llm.run.decoder_feeds import TextFeeds
from qdqtool.quantization.calibrating import without_angles
from qdqtool.runtime.session import open_session
from qdqtool.verbs.planned import Planned
from qdqtool.verbs.work.texts import is_text, with_texts
from tests.cases.cli_helpers import DIGITS, SAMPLES, cli
from tests.cases.small_models import model
from tests.cases.tiny_decoder import VOCABULARY, dynamic, folder, words
from tests.golden_messages.refusal import refusal, told


@pytest.fixture
def decoder(tmp_path: Path) -> Path:
    """A dynamic decoder with its tokenizer beside it, and text.txt."""
    found = dynamic(tmp_path / "m.onnx")
    words(tmp_path)
    random = np.random.default_rng(5)
    text = " ".join(f"w{n}" for n in random.integers(2, VOCABULARY, 200))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    return Path(found)


def test_feeds_of_a_text(decoder: Path) -> None:
    graph = load(decoder)
    feeds = TextFeeds(graph, decoder.parent / "text.txt", decoder.parent, samples=5, window=20)
    found = list(feeds)
    assert len(feeds) == len(found) == 5
    ids = [
        next(a for n, a in feed.items() if "ids" in n and a.shape[1] in (1, 20) and "position" not in n)
        for feed in found
    ]
    assert [a.shape for a in ids] == [(1, 20), (1, 1), (1, 20), (1, 1), (1, 20)]
    pasts = [[a.shape[2] for n, a in sorted(feed.items()) if "past" in n] for feed in found]
    assert {tuple(set(p)) for p in pasts[::2]} == {(0,)}
    assert {tuple(set(p)) for p in pasts[1::2]} == {(20,)}
    again = list(feeds)
    assert all(np.array_equal(a[n], b[n]) for a, b in zip(found, again, strict=True) for n in a)
    session = open_session(graph)
    for feed in found:
        assert all(np.isfinite(array).all() for array in session.run(feed).values())


def test_quantize_calibrate_and_compare_take_a_text(decoder: Path, tmp_path: Path) -> None:
    text, out = str(tmp_path / "text.txt"), str(tmp_path / "q.onnx")
    done = cli("quantize", str(decoder), "--preset", "a16w8", "--data", text, "--samples", "4", "-o", out, "--json")
    assert done.code == 0
    assert done.json["samples"] == 4
    assert done.json["sqnr_db"] > 15  # measured: 22; weights of 16 columns in 8 bit per tensor
    assert "bound-attention-mask" in done.json["pipeline"]
    ranges = str(tmp_path / "r.json")
    assert cli("calibrate", str(decoder), "--data", text, "--samples", "4", "-o", ranges).code == 0
    assert api.calibrate(decoder, text, samples=4).sha256 == cli(
        "calibrate", str(decoder), "--data", text, "--samples", "4", "-o", ranges, "--overwrite", "--json"
    ).json["ranges_sha256"]  # fmt: skip


def test_the_tokenizer_may_lie_elsewhere(decoder: Path, tmp_path: Path) -> None:
    """`compare` and `check` take a text too, with the tokenizer beside the model unless said."""
    away = tmp_path / "away"
    away.mkdir()
    (decoder.parent / "tokenizer.json").rename(away / "tokenizer.json")
    text = ["--data", decoder.parent / "text.txt", "--samples", "1"]
    for command in (["compare", decoder, decoder, "--outputs-only"], ["check", decoder, "--no-runtime"]):
        told(cli(*command, *text, code=2).error)
        cli(*command, *text, "--tokenizer", away)


def test_what_is_no_text_for(decoder: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    assert is_text(text)
    assert not is_text("random:3")
    assert not is_text(tmp_path / "none.txt")
    assert with_texts("random:3", load(decoder), decoder) == "random:3"
    with refusal(UnsupportedError):
        api.quantize(DIGITS, preset="a8w8", data=text, tokenizer=tmp_path)
    with refusal(UsageError):
        api.quantize(decoder, preset="a8w8", data=text, tokenizer=SAMPLES / "text")
    (tmp_path / "short.txt").write_text("w3", encoding="utf-8")
    with refusal(UsageError):
        api.quantize(decoder, preset="a8w8", data=tmp_path / "short.txt")
    one = folder(tmp_path / "split", [(1, 1, 16)])
    graph = load(next(one.glob("*.onnx")))
    DECODER.set(graph.graph, read_manifest(one).models[0].decoder)
    with refusal(UnsupportedError):
        api.quantize(graph, preset="a8w8", data=text, tokenizer=tmp_path)


def test_angles_stay_float() -> None:
    """Positions times frequencies reach the length of the context; what reads the cosine is quantized."""
    graph = load(SAMPLES / "tiny_llama.onnx")
    plan = without_angles(Planned(preset="a8w8").plan(), graph)
    assert plan.annotate.exclude == Selector(("before:op:Cos", "before:op:Sin"))
    kinds = {node.op_type for node in select_nodes(graph, plan.annotate.exclude)}
    assert "MatMul" not in kinds or "Gather" not in kinds
    assert not kinds & {"Softmax", "Sigmoid"}
    assert without_angles(plan, load(DIGITS)).annotate.exclude == plan.annotate.exclude


MIXED = """g (float[2,4] x) => (float[2,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}> { t = MatMul(x, w) y = Relu(t) }"""


def test_integer_io(tmp_path: Path) -> None:
    path, data = _written(tmp_path), tmp_path / "d.npz"
    np.savez(data, x=np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 2, 4))
    out = str(tmp_path / "q.onnx")
    done = cli("quantize", path, "--preset", "a8w8", "--data", str(data), "--integer-io", "-o", out, "--json")
    assert done.code == 0
    found = load(out)
    assert [v.dtype for v in (*found.graph.inputs, *found.graph.outputs)] == [ir.DataType.INT8, ir.DataType.INT8]
    assert [v.name for v in (*found.graph.inputs, *found.graph.outputs)] == ["x", "y"]
    pairs = cli("quantize", path, "--preset", "a8w8", "--data", str(data), "--float-io", "-o", str(tmp_path / "f.onnx"))
    assert pairs.code == 0
    sample = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    floats = open_session(
        load(tmp_path / "f.onnx"), extra_outputs=["y_QuantizeLinear_Output", "x_QuantizeLinear_Output"]
    )
    wanted = floats.run({"x": sample}, ["x_QuantizeLinear_Output", "y_QuantizeLinear_Output"])
    got = open_session(found).run({"x": wanted["x_QuantizeLinear_Output"]})["y"]
    assert np.array_equal(got, wanted["y_QuantizeLinear_Output"])


def _written(tmp_path: Path) -> str:
    path = tmp_path / "m.onnx"
    save(model(MIXED), path)
    return str(path)
