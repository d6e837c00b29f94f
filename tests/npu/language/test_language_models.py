"""Language models on the simulated NPU: whatever the device, the arrangement and the schedule, the same logits to the last bit."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.npu.units.verdict import CPU

from qdqtool import api
from qdqtool.chips.loading import load_chip
from qdqtool.cost.choosing import profile_for
from qdqtool.cost.decoders import Call
from qdqtool.cost.estimating import of_decoder
from qdqtool.llm import Session
from qdqtool.llm.folder.manifest import read_manifest
from qdqtool.verbs.work.decoder_shapes import decoder_shape
from tests.cases.cli_helpers import cli
from tests.cases.tiny_decoder import VOCABULARY, Form, folder, words
from tests.golden_messages.refusal import refusal

TARGET = "generic_int8"
SHAPES = [(1, 8, 40), (1, 1, 40)]
IDS = [int(token) for token in np.random.default_rng(0).integers(0, VOCABULARY, 35)]
FORMS = {
    "scatter": Form(window=5),
    "scatter-nd": Form(scatter="ScatterND", all_logits=True),
    "slide": Form(layout="slide", window=5),
    "parts": Form(parts=2),
    "slide-parts": Form(layout="slide", parts=2, masks="graph"),
}
#: Of what there are chunks of two lengths.
LENGTHS = {"scatter-nd", "slide"}
WAYS: dict[str, dict[str, Any]] = {
    "sequential": {"device": "npusim", "schedule": "sequential"},
    "in-order": {"device": "npusim", "schedule": "in-order"},
    "out-of-order": {"device": "npusim"},
    "linear": {"device": "npusim", "arrange": "linear"},
    "linear-sequential": {"device": "npusim", "arrange": "linear", "schedule": "sequential"},
    "prefill-alone": {"prefill_device": "npusim"},
    "decode-alone": {"decode_device": "npusim", "arrange": "linear"},
}


#: A device that runs each graph whole on onnxruntime's CPU provider, and says it takes 5 µs.
MINE = """
from qdqtool.llm.run.devices import OpenedPart, Piece, Stage
from qdqtool.runtime.bound import open_file


class Mine:
    def __init__(self, options):
        pass

    def open(self, path, model, part):
        session = open_file(path, optimize=False)
        return OpenedPart(stages=(Stage(session=session, pieces=(Piece(name="all", engine="mine", us=5.0),)),))


device = Mine
"""


@cache
def quantized(name: str) -> Path:
    """A folder quantized to 8 bit."""
    home = Path(mkdtemp())
    source = home / "float"
    source.mkdir()
    words(source)
    shapes = [(1, 4, 40), *SHAPES] if name in LENGTHS else SHAPES
    folder(source, shapes, FORMS[name], tokenizer=("tokenizer.json",), eos_token_ids=(0,))
    text = home / "text.txt"
    text.write_text(" ".join(f"w{n}" for n in np.random.default_rng(5).integers(2, VOCABULARY, 300)), encoding="utf-8")
    api.quantize(source, home / "out", preset="8a8w", data=text, samples=4)
    return home / "out"


def through(session: Session) -> npt.NDArray[np.float32]:
    """Logits behind a prompt of several chunks, one of them padded, and behind five tokens more."""
    found = [session.prefill(IDS[:30]), *(session.decode(token) for token in IDS[30:])]
    return np.array(found)


def opened(name: str, arrange: str) -> Session:
    """A session that runs whole graphs, one after the other."""
    session = _opened(name, arrange)
    session.reset()
    return session


@cache
def _opened(name: str, arrange: str) -> Session:
    return Session(quantized(name), device="npusim", target=TARGET, schedule="sequential", arrange=arrange)


@cache
def sequential(name: str, arrange: str) -> npt.NDArray[np.float32]:
    """What it gives."""
    return through(opened(name, arrange))


@pytest.mark.product(extra=3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FORMS)
def test_every_schedule_gives_the_same_logits(name: str, way: str) -> None:
    session = Session(quantized(name), target=TARGET, threads=1, **WAYS[way])
    wanted = sequential(name, "whole")  # generic_int8 computes what the QDQ model computes: the CPU gives the same
    np.testing.assert_array_equal(through(session), wanted)
    session.reset()
    np.testing.assert_array_equal(through(session), wanted)


def test_chunks_are_in_flight_together_and_the_npu_idles_less() -> None:
    session = Session(quantized("scatter"), device="npusim", target=TARGET, arrange="linear")
    assert session.timeline is not None
    session.prefill(IDS[:30], chunks=[8, 8, 8, 8])
    (phase,) = session.timeline.phases()
    assert phase.runs == 4
    assert phase.in_order_us is not None
    assert phase.out_of_order_us is not None
    assert phase.us == phase.out_of_order_us < phase.in_order_us
    (batch,) = session.timeline.batches
    starts = batch.schedule.starts
    first = {c: min(s for s, t in zip(starts, batch.schedule.tasks, strict=True) if t.chunk == c) for c in range(4)}
    end = max(s + t.us for s, t in zip(starts, batch.schedule.tasks, strict=True) if t.chunk == 0)
    assert first[1] < end, "the second chunk begins before the first is done"


def test_the_placement_says_why() -> None:
    session = opened("scatter", "linear")
    session.warm_up(8, 2)
    assert session.placements
    for placement in session.placements:
        on_cpu = [unit for unit in placement.units if unit.engine == CPU]
        assert on_cpu
        assert all(unit.rule and unit.reason for unit in on_cpu)
        assert any(unit.rule == "arrangement" and unit.op == "Softmax" for unit in on_cpu)
        products = [unit for unit in placement.units if unit.op == "MatMul" and unit.engine != CPU]
        assert len(products) == 13, "four projections and two of the MLP in each of two layers, and the last"
        assert placement.npu_macs_share == sum(u.macs for u in products) / sum(u.macs for u in placement.units)
        assert placement.to_json()["nodes"] == placement.nodes


def test_whole_arrangement_leaves_products_of_activations_to_the_npu() -> None:
    session = opened("scatter", "whole")
    session.warm_up(8, 2)
    assert session.placements
    for placement in session.placements:
        assert placement.npu_macs_share == 1.0


@pytest.mark.product(days=3)
def test_logits_of_all_tokens_and_generation_are_the_same() -> None:
    plain = opened("scatter-nd", "whole")
    other = Session(quantized("scatter-nd"), device="npusim", target=TARGET, arrange="linear")
    np.testing.assert_array_equal(other.logits(IDS), plain.logits(IDS))
    for session in (plain, other):
        session.reset()
    assert other.generate(IDS[:20], 8, eos=()) == plain.generate(IDS[:20], 8, eos=())


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"device": "npusim"}, id="no target"),
        pytest.param({"target": TARGET}, id="no device"),
        pytest.param({"device": "npusym", "target": TARGET}, id="unknown device"),
        pytest.param({"device": "npusim", "target": TARGET, "arrange": "some"}, id="arrangement"),
        pytest.param({"device": "npusim", "target": TARGET, "schedule": "random"}, id="schedule"),
        pytest.param({"prefill_device": "cpu", "schedule": "in-order"}, id="schedule of the cpu"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, Any]) -> None:
    with refusal(UsageError):
        Session(quantized("scatter"), **options)


def test_devices_are_listed() -> None:
    found = cli("list", "devices", "--json").json["devices"]
    assert [entry["name"] for entry in found] == ["cpu", "npusim"]
    assert all(entry["summary"] for entry in found)


def test_a_device_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by its name in a folder; the runner asks for nothing but sessions."""
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices" / "device_mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.setenv("QDQTOOL_PATH", str(tmp_path))
    session = Session(quantized("scatter"), device="mine")
    np.testing.assert_array_equal(through(session), sequential("scatter", "whole"))
    assert session.timeline is not None
    assert {engine for phase in session.timeline.phases() for engine in phase.busy_us} == {"mine"}


def test_a_target_that_takes_models_whole_has_no_linear_arrangement(tmp_path: Path) -> None:
    target = tmp_path / "whole.toml"
    target.write_text(f'description = "d"\nversion = "1"\nextends = "{TARGET}"\npolicy = "whole-model"\n', "utf-8")
    session = Session(quantized("scatter"), device="npusim", target=target, arrange="linear")
    with refusal(UsageError):
        session.prefill(IDS[:3])


@pytest.mark.product(days=3)
def test_a_target_file_may_say_the_arrangement(tmp_path: Path) -> None:
    target = tmp_path / "linear.toml"
    target.write_text(f'description = "d"\nversion = "1"\nextends = "{TARGET}"\narrange = "linear"\n', "utf-8")
    session = Session(quantized("scatter"), device="npusim", target=target)
    np.testing.assert_array_equal(through(session), sequential("scatter", "linear"))
    assert any(unit.rule == "arrangement" for unit in session.placements[0].units)


def test_a_target_file_with_no_such_arrangement(tmp_path: Path) -> None:
    target = tmp_path / "odd.toml"
    target.write_text(f'description = "d"\nversion = "1"\nextends = "{TARGET}"\narrange = "odd"\n', "utf-8")
    with refusal(ModelError):
        Session(quantized("scatter"), device="npusim", target=target)


@pytest.mark.product(days=3)
def test_a_node_that_fails_in_a_stage_is_an_error_and_the_session_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(quantized("scatter"), device="npusim", target=TARGET, arrange="linear")
    session.warm_up(30, 2)
    step = next(step for name, step in session._graphs.steps.items() if "s8" in name)

    def fail(number: int) -> None:
        raise ModelError("a node fails", where=f"stage {number}")

    with monkeypatch.context() as patch:
        patch.setattr(step, "run_stage", fail)
        with refusal(ModelError):
            session.prefill(IDS[:30])
    session.reset()
    np.testing.assert_array_equal(through(session), sequential("scatter", "linear"))


def test_the_commands_tell_placement_and_timeline(tmp_path: Path) -> None:
    path = str(quantized("scatter"))
    words_ = ",".join(map(str, IDS[:20]))
    device = ["--device", "npusim", "--target", TARGET, "--arrange", "linear"]
    trace = tmp_path / "trace.json"
    done = cli("generate", path, "--prompt-ids", words_, "--max-new", "4", *device, "--trace", str(trace), "--json")
    told = json.loads(done.out)
    assert [p["phase"] for p in told["timeline"]["phases"]] == ["prefill", "decode"]
    assert told["timeline"]["schedule"] == "out-of-order"
    assert all(unit["reason"] for graph in told["placement"] for unit in graph["on_cpu"])
    rows = {event["args"]["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "M"}
    assert {"estimate: CPU", "estimate: NPU", "simulation of NPU"} <= rows
    again = cli("generate", path, "--prompt-ids", words_, *device, "--trace", str(trace), code=2)
    assert "--overwrite" in again.err
    shown = cli("generate", path, "--prompt-ids", words_, "--max-new", "2", *device, "--placement")
    assert "of the MACs on the NPU" in shown.out
    assert "[arrangement]" in shown.out
    assert "out of order" in shown.out
    plain = cli("generate", path, "--prompt-ids", words_, "--trace", str(tmp_path / "other.json"), code=2)
    assert "a timeline is of a device" in plain.err
    assert "is of a device" in cli("generate", path, "--prompt-ids", words_, "--placement", code=2).err
    cpu = ["generate", path, "--prompt-ids", words_, "--device", "cpu"]
    assert "a timeline is of a device" in cli(*cpu, "--trace", str(tmp_path / "no.json"), code=2).err
    assert "is of a device" in cli(*cpu, "--placement", code=2).err
    own = str(quantized("scatter") / "manifest.json")
    over = cli("generate", path, "--prompt-ids", words_, *device, "--trace", own, "--overwrite", code=2)
    assert "belongs to" in over.err


@pytest.mark.product(days=3)
@pytest.mark.parametrize(
    ("chip", "stack", "more"),
    [("8 Elite", "genie", ()), ("8 Gen 3", "llm.npu", ("--arrange", "linear"))],
    ids=["static", "pipelined"],
)
def test_the_schedule_of_a_chip_takes_what_estimate_says(
    chip: str, stack: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    path, trace = quantized("scatter"), tmp_path / "trace.json"
    on = ("--chip", chip, "--stack", stack)
    ids, count = IDS[:24], 4
    told = cli(
        "generate", path, "--prompt-ids", ",".join(map(str, ids)), "--max-new", count, "--device", "npusim", "--target", TARGET,
        *more, *on, "--trace", trace, "--json",
    ).json  # fmt: skip
    phases = {phase["phase"]: phase for phase in told["timeline"]["phases"]}
    graphs = {model.phase: model for model in read_manifest(path).models if model.name in told["runs"]}
    chunk, context = graphs["prefill"].seq_len, graphs["decode"].ctx_len
    choice = profile_for(load_chip(chip), stack, told["timeline"]["chip"]["precision"], decoder=True)
    shape = decoder_shape(str(path))

    def ms(phase: Any, tokens: int, held: int) -> float:
        call = Call(phase=phase, tokens=tokens, context=held, precision=choice.precision, chunk=chunk)
        return of_decoder(choice, shape, call).prediction.span.ms

    held = [context] * (count - 1) if stack == "genie" else [len(ids) + n for n in range(1, count)]
    assert phases["prefill"]["estimated_us"] == pytest.approx(1000 * ms("prefill", len(ids), context))
    assert phases["decode"]["estimated_us"] == pytest.approx(1000 * sum(ms("decode", 1, each) for each in held))
    for phase in phases.values():
        assert phase["low_us"] < phase["estimated_us"] < phase["high_us"]
        assert phase["estimated_us"] == pytest.approx(phase["out_of_order_us"])
    written = json.loads(trace.read_text(encoding="utf-8"))
    spans = [event for event in written["traceEvents"] if event["ph"] == "X" and event["pid"] == 1]
    total = sum(phase["estimated_us"] for phase in phases.values())
    assert max(event["ts"] + event["dur"] for event in spans) == pytest.approx(total)
    assert all(event["args"]["low_us"] <= event["dur"] <= event["args"]["high_us"] for event in spans)
    assert choice.chip.name in written["otherData"]["what"]


@pytest.mark.product(days=3)
def test_a_chip_of_a_part_of_the_phases() -> None:
    ids = ",".join(map(str, IDS[:20]))
    given = ("generate", quantized("scatter"), "--prompt-ids", ids, "--max-new", "2", "--chip", "8 Elite")
    some = cli(*given, "--prefill-device", "npusim", "--target", TARGET, "--json").json["timeline"]["phases"]
    assert ["low_us" in phase for phase in some] == [True, False]
    shown = cli(*given, "--device", "npusim", "--target", TARGET).out
    assert "Snapdragon 8 Elite with genie, w" in shown
    assert "prefill: about" in shown
    assert "80 % of measurements between" in shown
    assert "--device npusim" in cli(*given, code=2).err
    assert "calibrate-chip" in cli(*given[:-1], "M3", "--device", "npusim", "--target", TARGET, code=2).err


def test_what_the_times_of_a_chip_leave_out_is_said(tmp_path: Path) -> None:
    words(tmp_path)
    folder(tmp_path, [(2, 4, 40), (2, 1, 40)], FORMS["scatter"], tokenizer=("tokenizer.json",), eos_token_ids=(0,))
    given = (
        "generate",
        tmp_path,
        "--prompt-ids",
        "3,4,5",
        "--prompt-ids",
        "3,4,6",
        "--max-new",
        "2",
        "--chip",
        "8 Gen 3",
    )
    on = ("--stack", "llm.npu", "--device", "npusim", "--target", TARGET)
    notes = cli(*given, *on, "--json").json["timeline"]["chip"]["notes"]
    assert [text in " ".join(notes) for text in ("of one row: 2 rows", "llm.npu decodes on the CPU")] == [True, True]
    shown = cli(*given, *on, "--decode-device", "cpu").out
    assert "- the times are of one row: 2 rows" in shown
    assert "decodes on the CPU" not in shown


@pytest.mark.product(days=3)
def test_perplexity_is_the_same_on_the_device(tmp_path: Path) -> None:
    text = quantized("scatter-nd").parent / "text.txt"
    args = ["llm", "perplexity", str(quantized("scatter-nd")), "--data", str(text), "--max-tokens", "60", "--json"]
    found = [json.loads(cli(*args, *more).out) for more in ([], ["--device", "npusim", "--target", TARGET])]
    assert found[0]["perplexity"] == found[1]["perplexity"]


def test_a_dynamic_model_runs_on_no_device() -> None:
    done = cli(
        "llm", "perplexity", "model.onnx", "--data", "text.txt", "--device", "npusim", "--target", TARGET, code=2
    )
    assert "static graphs" in done.err
    alone = cli("llm", "perplexity", "model.onnx", "--data", "text.txt", "--schedule", "in-order", code=2)
    assert "static graphs" in alone.err
