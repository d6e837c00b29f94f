"""`plan --analyzed`: what records say of a decoder's nodes is what the plan counts with; records of another model are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from qdq_passes.errors import UsageError

from qdqtool.cost.plan_page import PlanReport
from qdqtool.cost.predicting import FALLBACK, FALLBACK_SD
from qdqtool.io.models.load import load
from qdqtool.record.record import NodeRecord, Record, Whole, merged
from qdqtool.verbs.plan import Plan
from qdqtool.verbs.work.records import graph_record
from tests.cases.cli_helpers import SAMPLES, cli
from tests.cases.random_decoders import random_decoder

LLAMA = SAMPLES / "tiny_llama.onnx"


def planned(shape: Path, *records: Record | Path) -> PlanReport:
    return Plan(shape, chip="8 Elite", context=(64,), prompt=(20,), new=8, analyzed=records).run()


def placed(model: Path, *on_cpu: int) -> Record:
    """All nodes of ``model`` on the NPU but those at these places."""
    nodes = graph_record(load(model, weights=False)).nodes
    told = [
        NodeRecord(name=node.name, device="CPU" if at in on_cpu else "HMX", reason="too wide" if at in on_cpu else "")
        for at, node in enumerate(nodes)
    ]
    return Record(nodes=tuple(told))


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chunks of 32 tokens, a context of 64, weights and activations quantized."""
    folder = tmp_path_factory.mktemp("planned")
    cli(
        "split",
        random_decoder(folder / "small.onnx", "grouped", layers=2),
        "-o",
        folder / "split",
        "--prefill",
        "32",
        "--decode",
        "1",
        "--context",
        "64",
        "-q",
    )
    cli("quantize", folder / "split", "-o", folder / "int", "--preset", "16a8w", "--data", "random:1", "-q")
    return folder / "int"


def test_a_node_on_the_cpu_counts_as_that() -> None:
    """All times are those of published pairs with and without operators on the CPU, and the record is the graph with both."""
    plain, whole, part = planned(LLAMA), planned(LLAMA, placed(LLAMA)), planned(LLAMA, placed(LLAMA, 3))
    assert [one.end for one in whole.candidates] == [one.end for one in plain.candidates]
    for before, after in zip(plain.candidates, part.candidates, strict=True):
        if after.placement == "whole":
            assert after.end.ms == pytest.approx(before.end.ms * FALLBACK)
            assert after.first[0].ms == pytest.approx(before.first[0].ms * FALLBACK)
            assert after.end.width > before.end.width * (1 + FALLBACK_SD / 10)
        else:
            assert after.end == before.end, "decoded by the CPU anyway"
    assert any("run on the CPU by the record: 1, first" in note and "(too wide)" in note for note in part.notes)
    assert [node.device for node in part.record.nodes].count("CPU") == 1
    assert Record.from_json(part.to_json()["record"]) == part.record
    assert part.record == merged([graph_record(load(LLAMA, weights=False)), placed(LLAMA, 3)])
    assert "record" not in plain.to_json()


def test_a_graph_of_a_folder_is_told_by_its_name(split: Path) -> None:
    """A record of the decode graph says nothing of the prefill; a time of this chip and runtime comes before what is predicted."""
    record = placed(split / "decode_b1_s1_c64.onnx", 0)
    (plain,), (found,) = (
        planned(split, *given).candidates[:1] for given in ((), (replace(record, model="x/decode_b1_s1_c64.onnx"),))
    )
    assert found.first == plain.first
    assert found.end.ms == pytest.approx(plain.end.ms * FALLBACK)
    timed = replace(
        record, model="prefill_b1_s32_c64.onnx",
        whole=Whole(chip="Snapdragon 8 Elite", stack="genie", us=2000.0, low_us=1900.0, high_us=2200.0),
    )  # fmt: skip
    (timely,) = planned(split, timed).candidates[:1]
    assert (timely.first[0].ms, timely.first[0].low, timely.first[0].high) == (2.0, 1.9, 2.2)
    assert timely.end == plain.end
    other = replace(timed, whole=replace(timed.whole, stack="qnn_dlc"))
    assert planned(split, other).candidates[0].first[0].ms == pytest.approx(plain.first[0].ms * FALLBACK)


def test_what_analyze_writes_is_read(split: Path, tmp_path: Path) -> None:
    made = tmp_path / "a.json"
    cli("analyze", split / "decode_b1_s1_c64.onnx", "--target", "vitis_xint8", "--json-out", made, "-q")
    said = cli("plan", split, "--chip", "8 Elite", "--prompt", "20", "--new", "8", "--analyzed", made).out
    assert "by the record the NPU runs nothing of it" in said


def test_records_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(UsageError, match=r"the record is of another model: of its 1 nodes 0 are in .*tiny_llama.onnx"):
        planned(LLAMA, Record(nodes=(NodeRecord(name="other", device="CPU"),)))
    with pytest.raises(UsageError, match="a shape has no nodes that a record could tell of"):
        planned(Path("Llama3.2-1B"), Record())
    assert (
        "has version None" in cli("plan", LLAMA, "--chip", "8 Elite", "--analyzed", tmp_path / "r.json", code=None).err
    )
