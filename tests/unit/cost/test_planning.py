"""Plans of decoders: buckets, memory, what fits, and commands that run as they are printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes.errors import UnsupportedError, UsageError

import qdqtool
from qdqtool import api
from qdqtool.chips.loading import load_chip
from qdqtool.cost.buckets import bucket_lists, covering, preparing_ms
from qdqtool.cost.choosing import profile_for
from qdqtool.cost.memory_of_shape import memory_of, sessions_of
from qdqtool.cost.model_shape import shape_of_model
from qdqtool.cost.planning import Limits, Question, best_of, candidates
from qdqtool.cost.precisions import precisions_of
from qdqtool.cost.shapes import read_shape
from qdqtool.io.models.load import load
from qdqtool.llm.folder.manifest import read_manifest
from qdqtool.verbs.plan import Plan, duration
from tests.cases.cli_helpers import cli
from tests.cases.random_decoders import Kind, random_decoder
from tests.dial import examples
from tests.golden_messages.refusal import refusal

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "sample_models" / "tiny_llama.onnx"
LLAMA = read_shape("Llama3.2-1B")
PLACES = [("8 Elite", "genie"), ("8 Gen 3", "llm.npu"), ("Krackan", "FastFlowLM")]
TOKENS = st.integers(1, 3000)


def asked(chip: str, stack: str | None = None, **more: object) -> Question:
    known = load_chip(chip)
    return Question(
        **{"shape": LLAMA, "chip": known, "profile": profile_for(known, stack or "", decoder=True).profile, **more}
    )  # type: ignore[arg-type]


@given(TOKENS, st.dictionaries(st.sampled_from([32, 64, 128, 256, 512]), st.floats(1, 100), min_size=1))
@settings(max_examples=examples(40), deadline=None)
def test_chunks_cover_the_prompt_at_no_more_than_one_length(tokens: int, ms: dict[int, float]) -> None:
    runs = covering(tokens, ms)
    assert sum(runs) >= tokens
    taken = sum(ms[c] for c in runs)
    assert all(taken <= -(-tokens // c) * t + 1e-6 for c, t in ms.items())


def test_lists_of_buckets_and_their_preparation() -> None:
    assert bucket_lists((64, 32)) == [(32,), (64,), (32, 64)]
    assert preparing_ms("Hexagon v75", (135, 1000)) == pytest.approx(408 + 2050)
    assert preparing_ms("XDNA2", (128,)) is None


def test_memory_of_a_shape() -> None:
    """1.24 G weights in 4 bits, a head of 8, a cache of 8: 16 layers x 4096 x 2 x 8 x 64."""
    found = memory_of(LLAMA, "w4a16", context=4096, runs=(128,))
    assert found.weights == LLAMA.layers * LLAMA.layer_weights // 2
    assert found.head == LLAMA.head_weights
    assert found.cache == 16 * 4096 * 2 * 8 * 64
    assert found.total == found.session
    assert found.sessions == 1
    parts = memory_of(LLAMA, "w4a16", context=4096, runs=(128,), addressable=found.session // 2)
    assert parts.sessions > 2
    assert parts.activations == parts.sessions * found.activations


def test_sessions() -> None:
    sizes = {"layers": 8, "layer": 10, "head": 30, "activations": 5}
    assert sessions_of(**sizes, addressable=None) == (1, 115)
    assert sessions_of(**sizes, addressable=65) == (2, 65)
    assert sessions_of(**sizes, addressable=100) == (
        2,
        65,
    )  # five layers, and three beside the head: not all that would go in
    assert sessions_of(**sizes, addressable=34) == (0, 35)
    fullest = [sessions_of(**sizes, addressable=room) for room in range(36, 120)]
    assert all(bytes_ <= room for (_, bytes_), room in zip(fullest, range(36, 120), strict=True))
    counts = [sessions_of(**sizes, addressable=room)[0] for room in range(36, 120)]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize(("chip", "stack"), PLACES)
@given(data=st.data())
@settings(max_examples=examples(8), deadline=None)
def test_longer_never_takes_less(chip: str, stack: str, data: st.DataObject) -> None:
    prompts = sorted(data.draw(st.tuples(TOKENS, TOKENS)))
    contexts = sorted(data.draw(st.tuples(st.integers(512, 8192), st.integers(512, 8192))))
    short = candidates(asked(chip, stack, contexts=contexts[:1], prompts=prompts[:1], buckets=((32, 256),)))
    long = candidates(asked(chip, stack, contexts=contexts[1:], prompts=prompts[1:], buckets=((32, 256),)))
    assert len(short) == len(long) > 0
    for one, other in zip(short, long, strict=True):
        assert one.memory.total <= other.memory.total
        for figure in ("expected", "start", "end"):
            assert getattr(one, figure).ms <= getattr(other, figure).ms * (1 + 1e-9)


@pytest.mark.parametrize(("chip", "stack"), PLACES)
def test_the_best_is_on_the_front_and_within_the_limits(chip: str, stack: str) -> None:
    found = candidates(asked(chip, stack, prompts=(200, 1000)))
    best = best_of(found)
    assert best is not None
    assert any(one.front for one in found)
    limits = Limits(memory=0.9 * min(one.memory.total for one in found))
    assert best_of(candidates(asked(chip, stack, limits=limits))) is None
    assert best.first[0].ms <= best.first[1].ms
    assert (best.joules is not None) == (chip == "Krackan")


def test_what_fails_is_said() -> None:
    late = candidates(asked("8 Elite", limits=Limits(first_ms=1e-3, tokens_per_second=1e6)))
    assert {one.binds for one in late if one.fits} == {"first token, tokens a second"}
    short = candidates(asked("8 Elite", contexts=(512,), prompts=(512,)))
    assert {one.binds for one in short} == {"context: 512 + 256 tokens"}


def test_a_chip_that_nobody_measured() -> None:
    for more in ({}, {"stack": "nothing"}):
        with refusal(UsageError):
            Plan("Llama3.2-1B", chip="M3", **more).run()
    found = Plan("Llama3.2-1B", chip="X2 Elite", from_specs=True).run()
    assert found.best is not None
    assert any("carried over" in note for note in found.notes)
    assert precisions_of(asked("8 Elite", "llm.npu").profile) == ("w8a8",)


def test_the_shape_of_a_graph() -> None:
    found = shape_of_model(load(SAMPLE), "tiny")
    assert (found.layers, found.hidden, found.heads, found.kv_heads, found.head_dim) == (4, 128, 4, 2, 32)
    assert (found.ffn, found.vocab, found.ffn_mats, found.tied) == (384, 1024, 3, False)
    with pytest.raises(UnsupportedError):
        shape_of_model(load(ROOT / "sample_models" / "vit_block.onnx"), "vit")


def chip_of_small_sessions(chip: str, share: float, session: int, path: Path) -> Path:
    """The chip's file, but what a session addresses is a share of ``session`` bytes."""
    text = (ROOT / "qdqtool" / "chips" / "qualcomm" / f"{chip}.toml").read_text(encoding="utf-8")
    small = f"\\g<1>{share * session / 2**30:.9f}"
    changed, count = re.subn(r"(\[hardware\.addressable_gb\]\nvalue = )[\d.]+", small, text)
    assert count == 1
    path.write_text(changed, encoding="utf-8")
    return path


def model_of(kind: Kind | None, folder: Path) -> Path:
    """A decoder of two layers with random weights, so that it may be in two parts, or the bundled one."""
    return SAMPLE if kind is None else random_decoder(folder / f"{kind}.onnx", kind, layers=2)


def planned(model: Path, chip: str | Path, stack: str, *more: str) -> Any:
    said = ("plan", model, "--chip", chip, "--stack", stack, "--context", "128", "--prompt", "20,60", "--new", "8")
    return cli(*said, *more, "--json").json


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        pytest.param(None, PLACES[0], id="llama", marks=pytest.mark.extra),
        pytest.param("grouped", PLACES[1], id="grouped-linear", marks=pytest.mark.extra),
        pytest.param("plain", PLACES[2], id="plain-streaming"),
    ],
)
def test_printed_commands_run(
    kind: Kind | None, place: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_of(kind, tmp_path)
    monkeypatch.chdir(tmp_path)
    told = planned(path, *place, "--html", "plan.html")
    assert told["runnable"]
    page = Path("plan.html").read_text(encoding="utf-8")
    assert "<circle" in page
    assert "src=" not in page
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    split, quantize = told["commands"]
    done = subprocess.run(split, shell=True, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, split + done.stderr
    cli(*shlex.split(quantize)[1:])
    folder = Path(split.split("--output ")[1].split()[0])
    again = cli("plan", folder, "--chip", place[0], "--stack", place[1], "--prompt", "60", "--new", "8")
    assert "qdqtool quantize" in again.out


#: (chip, runtime, placement, what `generate` is told so that it runs so).
PLACEMENTS = [
    ("snapdragon_8_elite", "genie", "whole", ()),
    ("snapdragon_8_elite", "genie", "prefill", ("--decode-device", "cpu")),
    ("snapdragon_8_gen_3", "llm.npu", "linear", ("--arrange", "linear")),
    ("snapdragon_8_elite", "qnn_context_binary", "whole", ()),
]
#: One of these in every run: placements beside the first, a decoder in parts.
FEW = {("plain", "prefill", 1.0), ("normed", "linear", 0.75)}


@pytest.mark.product(extra=1)
@pytest.mark.parametrize(
    ("kind", "place", "share"),
    [
        pytest.param(
            kind, place, share, id=f"{kind or 'llama'}-{place[1]}-{place[2]}-{share}",
            marks=() if (kind, place[2], share) in FEW else pytest.mark.extra,
        )
        for kind in (None, "grouped", "normed", "plain") for place in PLACEMENTS for share in (1.0, 0.75, 0.5)
    ],
)  # fmt: skip
def test_commands_of_every_placement_run_in_parts_as_well(
    kind: Kind | None,
    place: tuple[str, str, str, tuple[str, ...]],
    share: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a session holds a share of what the whole decoder needs, the plan has parts; and what came out is generated with."""
    name, stack, placement, more = place
    path = model_of(kind, tmp_path)
    monkeypatch.chdir(tmp_path)
    chip: str | Path = name
    told = planned(path, chip, stack, "--placement", placement)
    if share < 1:
        chip = chip_of_small_sessions(name, share, told["best"]["memory"]["session"], tmp_path / "small.toml")
        told = planned(path, chip, stack, "--placement", placement)
    assert told["best"]["placement"] == placement
    count = told["best"]["memory"]["sessions"]
    assert (count > 1) == (share < 1) == ("--parts" in told["commands"][0])
    for line in told["commands"]:
        cli(*shlex.split(line)[1:])
    folder = Path(shlex.split(told["commands"][-1].split("--output ")[1])[0])
    assert {len(model.parts) for model in read_manifest(folder).models} == {count}
    assert any(" ".join(more) in note for note in told["notes"])
    if kind in (None, "grouped"):
        on = ("--device", "npusim", "--target", load_chip(chip).target or "", *more, "--chip", chip, "--stack", stack)
        cli("generate", folder, "--prompt-ids", ",".join(map(str, range(1, 30))), "--max-new", "2", *on)


def test_a_placement_that_nobody_measured() -> None:
    with refusal(UsageError):
        Plan("Llama3.2-1B", chip="Krackan", placement=("prefill",)).run()
    cli("plan", "Llama3.2-1B", "--chip", "Krackan", "--placement", "all", code=2)
    found = Plan("Llama3.2-1B", chip="8 Elite", placement=("prefill",)).run()
    assert {one.placement for one in found.candidates} == {"prefill"}


def test_a_quantized_folder_is_planned_as_it_is(tmp_path: Path) -> None:
    qdqtool.split(model_of("grouped", tmp_path), tmp_path / "float", prefill=[16], context=[64])
    qdqtool.quantize(tmp_path / "float", tmp_path / "q", preset="w8")
    asked = {"chip": "snapdragon_8_elite", "stack": "genie", "prompt": (20,), "new": 8}
    found = Plan(tmp_path / "q", placement=("prefill",), context=(512,), **asked).run()
    assert {(one.precision, one.chunks, one.context) for one in found.candidates} == {("w8", (16,), 64)}
    wanted = ("w8 was not measured", "quantized already", "--context", "--decode-device cpu")
    assert [any(text in note for note in found.notes) for text in wanted] == [True] * 4
    session = found.candidates[0].memory.session
    small = chip_of_small_sessions("snapdragon_8_elite", 0.8, session, tmp_path / "small.toml")
    notes = Plan(tmp_path / "q", **{**asked, "chip": small}).run().notes
    assert any("in 1 part," in note and "`split --parts 2`" in note for note in notes)
    assert not any("--context" in note for note in notes)


def test_fewer_parts_come_first_where_times_are_alike() -> None:
    found = [one for one in candidates(asked("8 Elite", prompts=(200,))) if one.fits]
    more = [replace(one, memory=replace(one.memory, sessions=2)) for one in found]
    assert best_of([*more, *found]) == best_of(found)


def test_a_name_without_a_model() -> None:
    shown = cli("plan", "Llama3.2-1B", "--chip", "8 Elite", "--prompt", "200,1000").out
    assert "MODEL.onnx" in shown
    assert "100 options" in shown
    found = cli("plan", "Llama3.2-1B", "--chip", "8 Elite", "--what-if", "precision,context", "--json").json
    assert [(one["precision"], one["context"]) for one in found["options"][:2]] == [("w4a16", 1024), ("w4a16", 2048)]
    assert not found["runnable"]
    assert cli("plan", "Llama3.2-1B", "--chip", "8 Elite", "--memory", "100MB", code=1).out
    assert api.plan("Llama3.2-1B", chip="Krackan").best is not None


def test_what_is_no_option() -> None:
    assert (duration("1s"), duration("800ms"), duration("2")) == (1, 0.8, 2)
    with pytest.raises(ValueError, match="no time"):
        duration("soon")
    cli("plan", "Llama3.2-1B", "--chip", "8 Elite", "--what-if", "colour", code=2)
    with refusal(UsageError):
        Plan("Llama3.2-1B", chip="8 Elite", prompt=(0,)).run()
