"""Graphs cut into parts: where, how large, and that they compute the same in sequence."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from qdq_passes.decoder.look.cut_points import Cut, _balanced, _fewest, chosen_cuts, cuts
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.errors import UsageError
from qdq_passes.graph.uses import in_order

from qdqtool.io.models.load import load
from qdqtool.llm.folder.manifest import read_manifest
from qdqtool.llm.run.verifying import verify_split
from qdqtool.verbs.split import split
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal
from tests.unit.llm.test_split_folder import places
from tests.unit.llm.test_split_forms import exported, tiny

__all__ = ["tiny"]  # a fixture
SHAPE: dict[str, Any] = {"prefill": (8,), "context": (40,)}
#: A fused sum and norm gives out both: two activations lead on between the layers.
WEIGHTS = {"table": (8, 4), "gamma": (4,), "wq": (4, 4), "up": (4, 4), "down": (4, 4), "head": (4, 8)}
ONES = ", ".join(f"float[{','.join(map(str, s))}] {n} = {{{','.join('1' * math.prod(s))}}}" for n, s in WEIGHTS.items())
FUSED = f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (int64[1,2] ids, float[1,1,3,4] past_k, float[1,1,3,4] past_v)
  => (float[1,2,8] logits, float[1,1,5,4] present_k, float[1,1,5,4] present_v)
<{ONES}, int64[4] split = {{1,2,1,4}}, int64[3] join = {{1,2,4}}>
{{
  x = Gather(table, ids)
  q = MatMul(x, wq) qs = Reshape(q, split) qt = Transpose<perm = [0,2,1,3]>(qs)
  present_k = Concat<axis = 2>(past_k, qt) present_v = Concat<axis = 2>(past_v, qt)
  kt = Transpose<perm = [0,1,3,2]>(present_k) s = MatMul(qt, kt) p = Softmax<axis = -1>(s) y = MatMul(p, present_v)
  yt = Transpose<perm = [0,2,1,3]>(y) a = Reshape(yt, join)
  [norm] n, mean, inv, sum = com.microsoft.SkipSimplifiedLayerNormalization(a, x, gamma)
  [up] u = MatMul(n, up) [act] r = Relu(u) [down] d = MatMul(r, down)
  [last] m, mean2, inv2, sum2 = com.microsoft.SkipSimplifiedLayerNormalization(d, sum, gamma)
  [lm] logits = MatMul(m, head)
}}"""


def cut(*sizes: int, shared: str = "") -> list[Cut]:
    return [
        Cut(values=(), reads={f"w{k}": n, **({shared: 100} if shared and k in (0, 2) else {})})
        for k, n in enumerate(sizes)
    ]


def test_parts_are_balanced() -> None:
    assert _balanced(cut(1, 2, 3, 4), 2) == (6, [2, 3])
    assert _balanced(cut(1, 2, 3, 4), 4) == (4, [0, 1, 2, 3])
    assert _balanced(cut(1, 2, 3, 4), 1) == (10, [3])
    assert _balanced(cut(1, 2, 3, 4), 5) is None
    assert _balanced(cut(1, 1, 1, shared="table"), 2) == (102, [0, 2])  # what two parts read lies in both
    assert _balanced(cut(1, 1, 1, shared="table"), 1) == (103, [2])
    assert [_fewest(cut(4, 4, 4, 4), most) for most in (None, 16, 15, 8, 7, 1)] == [1, 1, 2, 2, 4, 4]


def test_two_activations_lead_on_between_fused_layers() -> None:
    graph = model(FUSED)
    io = decoder_io(graph)
    assert [[v.name for v in place.values] for place in cuts(in_order(graph.graph), io)] == [["x"], ["m"], []]
    wide = [[v.name for v in place.values] for place in cuts(in_order(graph.graph), io, 2)]
    assert ["n", "sum"] in wide
    assert ["sum", "d"] in wide
    # bytes to y: table 128, wq 64, caches 96, split 32; behind: join 24, gamma 16, up and down 128, head 128
    assert [[v.name for v in values] for values in chosen_cuts(in_order(graph.graph), io, parts=2)] == [["x", "y"]]
    assert [[v.name for v in values] for values in chosen_cuts(in_order(graph.graph), io, max_bytes=320)] == [
        ["x", "y"]
    ]
    with refusal(UsageError):
        chosen_cuts(in_order(graph.graph), io, parts=2, max_bytes=319)
    assert chosen_cuts(in_order(graph.graph), io, max_bytes=1000) == []


def test_bytes_that_others_hold_do_not_count() -> None:
    """Of 656 bytes, 128 of the table and 128 of the head among them, a device holds the MLP alone."""
    graph = model(FUSED)
    io = decoder_io(graph)
    assert chosen_cuts(in_order(graph.graph), io, max_bytes=128, sizes={"up": 64, "down": 64}) == []
    with refusal(UsageError):
        chosen_cuts(in_order(graph.graph), io, max_bytes=127, sizes={"up": 64, "down": 128})


@pytest.mark.product(extra=1)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama_dynamo23", {"parts": 2}),
        ("llama_dynamo23", {"parts": 3, "layout": "slide", "mask": "graph"}),
        ("llama_genai_int4", {"parts": 5}),
        ("gpt2_torchscript", {"max_part_bytes": 450_000}),
    ],
    ids=str,
)
def test_parts_compute_the_same(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    done = split(exported(name), tmp_path, **SHAPE, **options)
    count = options.get("parts", 4)
    assert [len(graph.parts) for graph in done.graphs] == [count, count]
    assert verify_split(tmp_path, exported(name), lengths=[3, 17]).worst < 1e-5
    for static in read_manifest(tmp_path).models:
        given = {static.decoder.ids, *(t.past for t in static.decoder.cache), *(m.name for m in static.decoder.masks)}
        made = [set(part.outputs) for part in static.parts]
        for before, part in itertools.pairwise(static.parts):
            leads = set(part.inputs) & set(before.outputs)
            assert 1 <= len(leads) <= 2
            assert not leads & given
        caches = [{t.present for t in static.decoder.cache} & outputs for outputs in made]
        assert sum(map(len, caches)) == len(static.decoder.cache)
        limit = options.get("max_part_bytes")
        for part in static.parts if limit else ():
            graph = load(tmp_path / part.file).graph
            weights = sum(v.const_value.nbytes for v in graph.initializers.values() if v.const_value is not None)
            pasts = [v for v in graph.inputs if v.name in {t.past for t in static.decoder.cache}]
            assert weights + sum(4 * 4 * 40 * 16 for _ in pasts) <= limit


def test_weights_of_parts_are_those_of_the_whole(tiny: Path, tmp_path: Path) -> None:
    shape: dict[str, Any] = {"prefill": (4,), "context": (16,)}
    whole = split(tiny, tmp_path / "whole", **shape)
    halves = split(tiny, tmp_path / "halves", parts=2, **shape)
    assert whole.weight_bytes == halves.weight_bytes
    files = [part.file for part in halves.graphs[0].parts]
    assert files == ["prefill_b1_s4_c16_part1of2.onnx", "prefill_b1_s4_c16_part2of2.onnx"]
    pieces = [set(places(tmp_path / "halves" / file)) for file in files]
    assert pieces[0] | pieces[1] == set(places(tmp_path / "whole" / "prefill_b1_s4_c16.onnx"))
    assert all(pieces)
    for file in files:
        onnx.checker.check_model(tmp_path / "halves" / file, full_check=True)
    listed = (tmp_path / "halves" / "specializations.json").read_text(encoding="utf-8")
    assert files[1] in listed


@pytest.mark.parametrize(
    "options",
    [{"parts": 0}, {"parts": 99}, {"max_part_bytes": 100}, {"parts": 2, "max_part_bytes": 1000}],
    ids=["none", "too many", "too small", "two too small"],
)
def test_impossible_parts(options: dict[str, Any], tiny: Path, tmp_path: Path) -> None:
    with refusal(UsageError):
        split(tiny, tmp_path / "split", prefill=(4,), context=(16,), **options)
    assert not (tmp_path / "split").exists()


def test_no_cut_where_one_part_will_do(tiny: Path, tmp_path: Path) -> None:
    done = split(tiny, tmp_path, prefill=(4,), context=(16,), max_part_bytes=10**9)
    assert [[part.file for part in graph.parts] for graph in done.graphs] == [
        ["prefill_b1_s4_c16.onnx"],
        ["decode_b1_s1_c16.onnx"],
    ]
    assert isinstance(load(tmp_path / "decode_b1_s1_c16.onnx"), ir.Model)
