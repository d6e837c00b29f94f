"""`quantize` of a folder of static decoder graphs: one encoding a tensor in all graphs, a cache of integers, one folder again."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from qdq_passes.decoder.look.record import Decoder
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.graph.dump import dump
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import qdq_pairs

from qdqtool import api
from qdqtool.io.models.load import load
from qdqtool.llm import Session
from qdqtool.llm.folder.manifest import StaticModel, read_manifest, verify_folder
from qdqtool.llm.run.calibration import DECODED, Schedule, Texts, Windows, schedules
from qdqtool.quantization.calibrating import observed_names
from qdqtool.quantization.shared_tensors import share_names
from qdqtool.record.record import Record
from qdqtool.verbs.planned import Planned
from qdqtool.verbs.work.quantizing_decoders import QuantizedFolder
from tests.cases.cli_helpers import cli
from tests.cases.packed_workers import without_processes
from tests.cases.random_decoders import random_decoder
from tests.cases.small_models import model
from tests.cases.tiny_decoder import VOCABULARY, Form, folder, teacher_forced, words
from tests.dial import some
from tests.golden_messages.refusal import refusal

Array = npt.NDArray[Any]
SHAPES = [(1, 8, 16), (1, 1, 16), (1, 4, 40), (1, 8, 40), (1, 1, 40)]
#: For two contexts, both graphs of each.
FOUR = [shape for shape in SHAPES if shape[1] != 4]
TWO = SHAPES[-2:]
ONE = TWO[-1:]
#: In place, by ScatterElements, the mask an input.
FLOAT = Form()
FORMS = {
    "scatter-elements": Form(),
    "scatter-nd": Form(scatter="ScatterND", window=3),
    "slide": Form(layout="slide"),
    "slide-graph": Form(layout="slide", masks="graph", counted="index", all_logits=True),
    "parts": Form(parts=2, window=3),
}


def source(path: Path, form: Form = FLOAT, shapes: list[tuple[int, int, int]] = SHAPES) -> Path:
    """A folder of float graphs with a tokenizer, and a text beside it."""
    path.mkdir(parents=True)
    words(path)
    folder(path, shapes, form, tokenizer=("tokenizer.json",), eos_token_ids=(0,))
    random = np.random.default_rng(5)
    text = " ".join(f"w{n}" for n in random.integers(2, VOCABULARY, 300))
    (path.parent / "text.txt").write_text(text, encoding="utf-8")
    return path


def quantized(
    path: Path, form: Form = FLOAT, shapes: list[tuple[int, int, int]] = TWO, **options: Any
) -> tuple[Path, Path, QuantizedFolder]:
    """A folder, what was made of it, and its story."""
    given = source(path / "float", form, shapes)
    options = {"preset": "a16w8", "data": path / "text.txt", "samples": 8, **options}
    done = api.quantize(given, path / "out", **options)
    assert isinstance(done, QuantizedFolder)
    return given, path / "out", done


def encodings(out: Path) -> list[dict[str, object]]:
    """Of each graph: tensor → encoding."""
    parts = [part for each in read_manifest(out).models for part in each.parts]
    return [{pair.tensor: pair.encoding for pair in qdq_pairs(load(out / part.file))} for part in parts]


def test_the_report_has_a_record_of_each_graph(tmp_path: Path) -> None:
    _, out, done = quantized(tmp_path, samples=2, report=tmp_path / "report.json")
    written = json.loads((tmp_path / "report.json").read_text("utf-8"))["records"]
    parts = [part.file for each in read_manifest(out).models for part in each.parts]
    for file, found in zip(parts, encodings(out), strict=True):
        record = Record.from_json(written[file])
        assert record == done.records[file]
        told = {
            one.name: None if one.encoding is None else Encoding.from_json(dict(one.encoding)) for one in record.tensors
        }
        assert {name: told[name] for name in found} == found
        assert any(one.moved for one in record.tensors)


@pytest.mark.product(cover=("cache",))
@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
@pytest.mark.parametrize("cache", ["int8", "uint8"])
def test_graphs_share_encodings_and_an_integer_cache(form: Form, cache: str, tmp_path: Path) -> None:
    given, out, done = quantized(tmp_path, form, FOUR, kv_cache=cache)
    assert verify_folder(out) == []
    manifest = read_manifest(out)
    assert [m.name for m in manifest.models] == [m.name for m in read_manifest(given).models]
    assert manifest.quantization == {
        "preset": "a16w8", "method": "minmax", "ranges_sha256": done.ranges.sha256, "kv_cache": cache,
    }  # fmt: skip
    for first, second in itertools.pairwise(encodings(out)):
        assert all(second[name] == encoding for name, encoding in first.items() if name in second)
    records = {tuple((t.layer, t.part, t.scale, t.zero_point) for t in m.decoder.cache) for m in manifest.models}
    assert len(records) == 1
    scales = [scale for _, _, scale, _ in records.pop()]
    assert all(scales)
    assert len(set(scales)) == len(scales)  # each layer has its own
    ids = [int(token) for token in np.random.default_rng(3).integers(2, VOCABULARY, 14)]
    for context in (16, 40):
        session = Session(out, contexts=[context])
        got = [session.prefill(ids[:9]), *(session.decode(token) for token in ids[9:])]
        held = session.cache(0, "key")
        assert held.dtype == cache
        wanted = teacher_forced(ids, form.window)[8:]
        assert np.abs(np.array(got) - wanted).max() < 0.1 * np.abs(wanted).max()  # measured: 0.02 to 0.04


def test_rows_of_the_cache_stay_as_they_were_written(tmp_path: Path) -> None:
    """Past and present have one encoding: no run after the one that wrote it changes a row, and what is not written is 0."""
    for form in some([Form(), Form(layout="slide")]):
        _, out, _ = quantized(tmp_path / form.layout, form, kv_cache="uint8", samples=2)
        session = Session(out, contexts=[40])
        zero = [t.zero_point for t in read_manifest(out).models[0].decoder.cache if (t.layer, t.part) == (1, "value")]
        session.prefill([3, 5, 8, 9, 11])
        before = session.cache(1, "value")[0, :5].copy()
        for token in range(2, 12):
            session.decode(token)
        assert np.array_equal(session.cache(1, "value")[0, :5], before)
        session.reset()
        fresh = Session(out, contexts=[40])
        fresh.prefill([3])
        assert (fresh.cache(1, "value")[0, 9:] == zero[0]).all()
        assert 0 < zero[0] < 255


def test_masks_hide_by_a_bound(tmp_path: Path) -> None:
    """Scores span a few units; a grid down to -1e9 has no step for them, one down to the bound has."""
    given, out, _ = quantized(tmp_path, Form(window=3), ONE)
    found = {mask.name: mask.hidden for mask in read_manifest(out).models[0].decoder.masks}
    assert set(found.values()) == {-64.0}
    unbounded = api.quantize(
        given, tmp_path / "wide", preset="a16w8", data=tmp_path / "text.txt", samples=8, bound_masks=False
    )
    assert isinstance(unbounded, QuantizedFolder)
    ids = list(range(2, 14))
    wanted = teacher_forced(ids, 3)[-1]
    near, far = (np.abs(Session(each).prefill(ids) - wanted).max() for each in (out, tmp_path / "wide"))
    assert near < 0.05 * np.abs(wanted).max() < far


def test_no_padded_row_is_observed(tmp_path: Path) -> None:
    """Garbage behind a text must not widen ranges: every chunk that is watched is full of it."""
    for layout in ("in-place", "slide"):
        given = source(tmp_path / layout, Form(layout=layout))
        ids = [2 + k % 40 for k in range(100)]
        runs: list[tuple[str, list[int], int]] = []

        def watch(each: StaticModel, part: int, inputs: Any, runs: list[Any] = runs) -> None:
            record: Decoder = each.decoder
            assert inputs[record.last_index][0] == record.seq_len - 1
            runs.append((each.name, inputs[record.ids][0].tolist(), int(inputs[record.positions][0, 0])))

        windows = Windows(given, Texts((ids,), 6))
        assert len(windows.tasks) == 6
        for task in windows.tasks:
            windows.run(task, watch)
        texts = [ids[k:] + ids[:k] for k in range(100)]
        assert {name for name, _, _ in runs} == {m.name for m in read_manifest(given).models}
        for name, row, _ in runs:
            assert any(text[: len(row)] == row for text in texts), name
        assert {at for name, _, at in runs if "s8_c40" in name} == {0, 8, 16, 24, 32}


def test_schedules() -> None:
    one = Schedule(batch_size=1, ctx_len=20, seq_len=4, decodes=True)
    decoded = [(place, 1) for place in range(4, 4 + DECODED)]
    assert list(one.steps(0)) == [(0, 4), *decoded, (12, 4), (16, 1), (17, 1), (18, 1), (19, 1)]
    assert list(one.steps(1)) == [(0, 4), (4, 4), (8, 4), (12, 4), (16, 4)]
    assert one.tokens == 20
    alone = Schedule(batch_size=1, ctx_len=12, seq_len=5, decodes=False)
    assert list(alone.steps(0)) == list(alone.steps(1)) == [(0, 5), (5, 5)]
    steps = Schedule(batch_size=2, ctx_len=3, seq_len=1, decodes=True)
    assert list(steps.steps(0)) == list(steps.steps(1)) == [(0, 1), (1, 1), (2, 1)]


def test_every_graph_of_every_batch_is_seen(tmp_path: Path) -> None:
    shapes = [(1, 4, 12), (2, 4, 12), (2, 1, 12), (1, 1, 12)]
    given = source(tmp_path / "float", Form(), shapes)
    assert [(s.batch_size, s.seq_len, s.decodes) for s in schedules(read_manifest(given))] == [
        (1, 4, True),
        (2, 4, True),
    ]
    seen = set()
    windows = Windows(given, Texts(([3, 4, 5],), 1))
    assert windows.warning == "the text has 3 tokens, less than a window: it is repeated"
    for task in windows.tasks:
        windows.run(task, lambda each, part, inputs: seen.add(each.name))
    assert seen == {m.name for m in read_manifest(given).models}


def test_what_cannot_be(tmp_path: Path) -> None:
    given = source(tmp_path / "float", shapes=ONE)
    text, out = tmp_path / "text.txt", tmp_path / "out"
    for options in (
        {},
        {"data": "images"},
        {"data": text, "exclude": ["op:Conv"]},
        {"data": text, "samples": 0},
    ):
        with refusal(UsageError):
            api.quantize(given, out, preset="a8w8", **options)  # type: ignore[arg-type]
        assert not out.exists()
    with refusal(UsageError):
        api.quantize(given, given, preset="a8w8", data=text, overwrite=True)


def test_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = source(tmp_path / "float", shapes=ONE)

    def fail(*_: Any, **__: Any) -> None:
        raise ModelError("the disk burns")

    monkeypatch.setattr("qdqtool.llm.folder.rewriting.write_manifest", fail)
    with refusal(ModelError):
        api.quantize(given, tmp_path / "out", preset="a8w8", data=tmp_path / "text.txt", samples=3)
    assert not (tmp_path / "out").exists()


def test_overwriting(tmp_path: Path) -> None:
    given, out, _ = quantized(tmp_path, shapes=ONE, samples=3)
    first = {path.name for path in out.iterdir()}
    with refusal(UsageError):
        api.quantize(given, out, preset="a8w8", data=tmp_path / "text.txt", samples=3)
    api.quantize(given, out, preset="a8w8", data=tmp_path / "text.txt", samples=3, overwrite=True)
    assert verify_folder(out) == []
    assert {path.name for path in out.iterdir() if path.suffix != ".data"} == {n for n in first if ".data" not in n}


@pytest.mark.product(days=3)
def test_equal_bytes_and_ranges_that_serve_again(tmp_path: Path) -> None:
    given, out, done = quantized(tmp_path, kv_cache="int8", samples=4)
    done.ranges.write(tmp_path / "ranges.json")
    api.quantize(
        given, tmp_path / "again", preset="a16w8", ranges=tmp_path / "ranges.json", kv_cache="int8", bound_masks=True
    )
    for path in out.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


def test_only_weights_need_no_text(tmp_path: Path) -> None:
    _, out, done = quantized(tmp_path, preset="w4-g32", data=None, samples=None)
    assert done.ranges.samples == 0
    ids = list(range(2, 14))
    wanted = teacher_forced(ids)[-1]
    assert np.abs(Session(out).prefill(ids) - wanted).max() < 0.5 * np.abs(wanted).max()  # measured: 0.2
    assert read_manifest(out).models[0].decoder.masks[0].hidden == 0


@pytest.mark.parametrize(("head", "pairs"), [("float", []), ("int8", [VOCABULARY]), ("preset", [1])])
def test_the_last_projection(head: str, pairs: list[int], tmp_path: Path) -> None:
    _, _, done = quantized(tmp_path, shapes=ONE, lm_head=head, samples=3, preset="a8w8")
    for each in done.graphs.values():
        scales = [len(p.encoding.scale) for p in qdq_pairs(each.model) if p.tensor == "head" and p.encoding]
        assert scales == pairs


def test_names_that_count_are_told_apart() -> None:
    """t2 is the sum in one graph and the product in the other; t3 is the same, but for how it is moved."""
    first = model("g (float[2] x) => (float[2] y) { t1 = Neg(x) t2 = Add(t1, x) t3 = Abs(t2) y = Neg(t3) }")
    other = model("g (float[2] x) => (float[2] y) { t1 = Neg(x) t2 = Mul(t1, x) t3 = Abs(t1) y = Neg(t3) }")
    assert share_names({"a.onnx": first, "b.onnx": other}) == [("b.onnx", "t2", "t2_of_b"), ("b.onnx", "t3", "t3_of_b")]
    moved = model(
        "g (float[2] x) => (float[2] y) <int64[1] s = {2}> { t1 = Neg(x) r = Reshape(t1, s) t2 = Add(r, x) t3 = Abs(t2) y = Neg(t3) }"
    )
    assert share_names({"a.onnx": first, "c.onnx": moved}) == []


def test_processes_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, out, _ = quantized(tmp_path, kv_cache="int8", samples=4, preset="8a8w")
    sent = without_processes(monkeypatch)
    api.quantize(given, tmp_path / "two", preset="8a8w", data=tmp_path / "text.txt", samples=4, kv_cache="int8", jobs=2)
    assert max(sent) > 1
    for path in out.iterdir():
        assert (tmp_path / "two" / path.name).read_bytes() == path.read_bytes(), path.name


def test_recovery_is_shared(tmp_path: Path) -> None:
    """Statistics of all graphs together: weights are rounded alike everywhere, so that they are stored once."""
    cases: list[dict[str, Any]] = [
        {"round_weights": True, "preset": "w4-g32"},
        {"learn_rounding": True, "preset": "w8"},
        {"correct_bias": True, "smooth": 0.5, "preset": "8a8w"},
    ]
    for options in some(cases):
        _, out, done = quantized(
            tmp_path / str(options["preset"]), samples=6, save_statistics=tmp_path / "s.npz", overwrite=True, **options
        )
        assert len(list(out.glob("*.data"))) <= 1
        weights = [
            {n: v.const_value.tobytes() for n, v in each.model.graph.initializers.items() if n.endswith("_quantized") and v.const_value}
            for each in done.graphs.values()
        ]  # fmt: skip
        assert weights[0]
        assert all(each == weights[0] for each in weights)


@pytest.mark.product(days=3)
def test_a_printed_pipeline_replays(tmp_path: Path) -> None:
    """`opt -p` with the pipeline and the ranges makes the graph that is in the folder."""
    api.split(
        random_decoder(tmp_path / "model.onnx", "grouped", layers=1), tmp_path / "float", prefill=[8], context=[16]
    )
    out, ranges = tmp_path / "out", tmp_path / "r.json"
    done = cli(
        "quantize", tmp_path / "float", "--preset", "a8w8", "--data", "random:2", "--kv-cache", "uint8",
        "-o", out, "--save-ranges", ranges, "--json",
    ).json  # fmt: skip
    assert done["ranges_sha256"] == read_manifest(out).quantization["ranges_sha256"]
    assert done["pairs"] == sum(graph["pairs"] for graph in done["graphs"])
    assert done["quantized_nodes"] == sum(graph["quantized_nodes"] for graph in done["graphs"])
    assert set(done["excluded_nodes"]) == {name for graph in done["graphs"] for name in graph["excluded_nodes"]}
    for graph in done["graphs"]:
        path = tmp_path / f"again_{graph['model']}"
        (tmp_path / "pipeline.txt").write_text(graph["pipeline"], encoding="utf-8")
        pipeline = f"@{tmp_path / 'pipeline.txt'}"
        cli("opt", tmp_path / "float" / graph["model"], "-p", pipeline, "--ranges", ranges, "-o", path)
        assert dump(load(path)) == dump(load(out / graph["model"]))
    shown = cli(
        "quantize",
        tmp_path / "float",
        "--preset",
        "a8w8",
        "--kv-cache",
        "uint8",
        "--bound-masks",
        "--print-pipeline",
        "--json",
    )
    assert shown.json["pipelines"] == {graph["model"]: graph["pipeline"] for graph in done["graphs"]}


def test_an_attention_that_keeps_its_cache(tmp_path: Path) -> None:
    """What an operator updates by itself stays float, and says so before anything is calibrated."""
    grouped = model(GROUPED)
    step = Planned(preset="a8w8", kv_cache="int8").plan()
    with refusal(UsageError):
        observed_names(grouped, step)


GROUPED = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
g (int64[1,2] ids, float[1,2,4,8] past_k, float[1,2,4,8] past_v, int32[1] seqlens, int32 total)
  => (float[1,2,16] logits, float[1,2,4,8] present_k, float[1,2,4,8] present_v)
  <float[2,16] table = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}>
{
  [emb] e = Gather(table, ids)
  [attention] logits, present_k, present_v =
    com.microsoft.GroupQueryAttention<num_heads: int = 2, kv_num_heads: int = 2>(e, e, e, past_k, past_v, seqlens, total)
}"""


def test_a_window_sees_nothing_of_the_one_before(tmp_path: Path) -> None:
    """Slots that no token has written hold 0, in a session that has run other texts too."""
    for layout in ("in-place", "slide"):
        given = source(tmp_path / layout, Form(layout=layout))
        windows = Windows(given, Texts((list(range(2, 50)) * 3,), 6))
        firsts: list[float] = []

        def watch(each: StaticModel, part: int, inputs: Any, firsts: list[float] = firsts) -> None:
            tensor = each.decoder.cache[0]
            if int(inputs[each.decoder.positions].max()) < each.seq_len:  # the first run of a window
                firsts.append(float(np.abs(inputs[tensor.past]).max()))

        for task in windows.tasks:
            windows.run(task, watch)
        assert firsts == [0.0] * 6
