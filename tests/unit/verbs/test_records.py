"""Each verb as a producer of the record: it says what it knows, in the form that the schema describes, and what several say of one
model goes together."""

from __future__ import annotations

import dataclasses
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.numerics.histogram import Histogram

from qdqtool import api
from qdqtool.calibrate.ranges import Ranges
from qdqtool.comparison.prices.life import lives
from qdqtool.io.models.load import load
from qdqtool.page.report_data import PageModel
from qdqtool.page.report_page import report_page
from qdqtool.record.record import CAUSES, NOTHING, NodeRecord, Record, TensorRecord, merged
from qdqtool.verbs.work.records import _histogram
from tests.cases.cli_helpers import CALIB, DIGITS, cli

SCHEMA = json.loads(files("qdqtool.record").joinpath("schema.json").read_text("utf-8"))
TARGET, CHIP, SAMPLES = "vitis_xint8", "snapdragon_8_elite", 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "q.onnx"


@pytest.fixture(scope="module")
def records(model: Path) -> dict[str, Record]:
    """What each verb knows of one model, the same samples run by those that measure."""
    made = api.quantize(
        DIGITS, model, target=TARGET, data=CALIB, samples=SAMPLES, report=model.with_name("report.json")
    )
    made.quantization.ranges.write(model.with_name("r.json"))
    given: dict[str, Any] = {"data": CALIB, "samples": SAMPLES}
    return {
        "quantize": made.record,
        "local": api.compare(DIGITS, model, mode="local", **given).record,
        "compare": api.compare(DIGITS, model, **given).record,
        "analyze": api.analyze(model, target=TARGET).record,
        "simulate": api.simulate(model, target=TARGET, float_model=DIGITS, chip=CHIP, **given).record,
    }


def known(one: TensorRecord | NodeRecord) -> dict[str, Any]:
    empty: tuple[Any, ...] = (None, "", (), {})
    values = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
    return {name: value for name, value in values.items() if all(value is not e and value != e for e in empty)}


@pytest.mark.parametrize("verb", ["quantize", "local", "compare", "analyze", "simulate"])
def test_each_keeps_to_the_schema(records: dict[str, Record], verb: str) -> None:
    record = records[verb]
    assert record != NOTHING
    data = json.loads(json.dumps(record.to_json(), allow_nan=False))
    jsonschema.validate(data, SCHEMA)
    assert Record.from_json(data) == record


@pytest.mark.usefixtures("records")
def test_prices_keep_to_the_schema_and_a_page_is_made_of_the_file(model: Path) -> None:
    file = model.with_name("explained.json")
    sampled = ("--data", CALIB, "--samples", SAMPLES, "--worst", "1")
    cli("explain", model, "--float", DIGITS, *sampled, "--json-out", file)
    jsonschema.validate(json.loads(file.read_text("utf-8"))["record"], SCHEMA)
    record = Record.read(file)
    assert sum(record.causes.values()) == pytest.approx(sum(record.noise.values()))
    direct = api.explain(str(model), CALIB, float_model=DIGITS, samples=SAMPLES, worst=1).record
    pages = [report_page([PageModel(label="q", record=one)]) for one in (record, direct)]
    assert pages[0] == pages[1]


def test_they_go_together(records: dict[str, Record]) -> None:
    """Each field comes from who knows it, and no two say different things of it."""
    who: dict[tuple[str, str], dict[str, Any]] = {}
    for verb, record in records.items():
        for one in (*record.tensors, *record.nodes):
            for field, value in known(one).items():
                who.setdefault((one.name, field), {})[verb] = value
    of_field: dict[str, set[str]] = {}
    for (_, field), told in who.items():
        of_field.setdefault(field, set()).update(told)
        assert len({json.dumps(value, default=vars, sort_keys=True) for value in told.values()}) == 1, (field, told)
    assert of_field["low"] == of_field["high"] == of_field["moved"] == of_field["clipped"] == {"quantize"}
    assert of_field["encoding"] == {"quantize", "local", "compare"}
    assert of_field["here_db"] == {"local"}
    assert of_field["whole_db"] == {"quantize", "compare"}
    assert of_field["verdict"] == of_field["device"] == {"analyze", "simulate"}
    assert of_field["bytes"] == of_field["us"] == of_field["low_us"] == of_field["limit"] == {"simulate"}

    both = merged(records.values())
    for (name, field), told in who.items():
        found = next(one for one in (*both.tensors, *both.nodes) if one.name == name and hasattr(one, field))
        assert getattr(found, field) in told.values()
    conv = next(node for node in both.nodes if node.name == "/stem/conv")
    assert (conv.device, conv.verdict) == ("DPU", "npu-int")
    assert conv.low_us is not None
    assert conv.us is not None
    assert conv.low_us < conv.us
    tensor = next(one for one in both.tensors if one.name == "/head/pool_output_0")
    assert tensor.node == "/head/pool"
    assert tensor.low is not None
    assert tensor.here_db is not None
    assert tensor.whole_db is not None
    assert tensor.here_db > tensor.whole_db
    assert [move.by for move in tensor.moved] == ["annotate-encodings", "refine-positions"]
    assert tensor.moved[-1].after == tensor.encoding
    assert records["quantize"].noise == records["compare"].noise
    assert both.whole.target == TARGET
    assert both.whole.chip
    assert both.samples == SAMPLES
    assert both.noise == records["simulate"].noise


def test_noise_is_that_of_the_commands(records: dict[str, Record], model: Path) -> None:
    whole = cli("compare", DIGITS, model, "--data", CALIB, "--samples", SAMPLES, "--json").json
    assert -10 * np.log10(records["compare"].noise["logits"]) == pytest.approx(whole["outputs"]["logits"]["sqnr_db"])
    told = {tensor["name"]: tensor["sqnr_db"] for tensor in whole["tensors"]}
    inside = {one.name: one.whole_db for one in records["compare"].tensors if one.name != "logits"}
    assert inside == {name: db for name, db in told.items() if name in inside}
    assert Record.from_json(whole["record"]) == records["compare"]
    local = cli("compare", DIGITS, model, "--data", CALIB, "--samples", SAMPLES, "--mode", "local", "--json").json
    told = {node["tensors"][0]: node["sqnr_db"] for node in local["nodes"]}
    assert {one.name: one.here_db for one in records["local"].tensors} == told
    run = cli(
        "simulate", model, "--target", TARGET, "--data", CALIB, "--samples", SAMPLES, "--float", DIGITS, "--json"
    ).json
    db = run["outputs"]["logits"]["sqnr_db"]["npu/float"]
    assert -10 * np.log10(records["simulate"].noise["logits"]) == pytest.approx(db)


def test_moves_are_those_that_the_history_tells(records: dict[str, Record], model: Path) -> None:
    """`quantize` looks on while its passes run, `explain` runs them again."""
    told, unknown = lives(load(DIGITS), load(model), Ranges.read(model.with_name("r.json")))
    assert not unknown
    assert {one.name: one.moved for one in records["quantize"].tensors} == told


def test_the_report_of_quantize_has_it(records: dict[str, Record], model: Path) -> None:
    """With the histograms, which are kept for it."""
    data = json.loads(model.with_name("report.json").read_text("utf-8"))["record"]
    jsonschema.validate(data, SCHEMA)
    found = Record.from_json(data)
    assert found == records["quantize"]
    seen = [one.histogram for one in found.tensors if one.kind == "activation"]
    assert all(histogram is not None and sum(histogram.counts) > 0 for histogram in seen)


def test_what_stays_float_and_why(tmp_path: Path) -> None:
    made = api.quantize(
        DIGITS, tmp_path / "q.onnx", preset="xint8", data=CALIB, exclude=["/head/fc"], allow_empty=True
    ).record
    nodes = {node.name: node.excluded for node in made.nodes}
    assert nodes == {"/head/fc": "named by --exclude"}
    tensors = {one.name: one for one in made.tensors}
    assert tensors["/head/flatten_output_0"].kept.endswith("excluded /head/fc touches it, kept for /head/flatten")
    assert "head.fc.weight" not in tensors


def test_without_the_float_model_simulate_knows_no_noise(model: Path, records: dict[str, Record]) -> None:
    """What it is compared with then has rounded weights."""
    found = api.simulate(model, target=TARGET, data=CALIB, samples=2).record
    assert not found.noise
    assert not found.samples
    assert found.whole.us is None
    assert {node.name for node in found.nodes} == {node.name for node in records["simulate"].nodes}


def test_a_tensor_without_a_pair_is_its_nodes(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[N,4] x) => (float[N,4] y)
        { [first] a = Relu(x) [second] b = Exp(a) [third] y = Sigmoid(b) }"""
    plain = ir.from_onnx_text(text)
    pairs = ir.from_onnx_text(
        text.replace(
            "{ [first] a = Relu(x)",
            """
        <float s = {0.5}, int8 z = {0}>
        { [first] r = Relu(x) [q] i = QuantizeLinear(r, s, z) [d] a = DequantizeLinear(i, s, z)""",
        )
    )
    feeds = [{"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}]
    found = api.compare(plain, pairs, feeds).record
    second = next(node for node in found.nodes if node.name == "second")
    assert second.whole_db is not None
    assert not second.here_db
    assert found.noise["y"] == pytest.approx(10 ** (-_node(found, "third") / 10))


def _node(record: Record, name: str) -> float:
    found = next(node.whole_db for node in record.nodes if node.name == name)
    assert found is not None
    return found


def test_placement_is_told_by_one(records: dict[str, Record]) -> None:
    """What ran on the CPU is in no partition, whatever a target promised."""
    promised = Record(nodes=(NodeRecord(name="a", verdict="npu-int", rule="conv", device="DPU", partition=0, bytes=4),))
    ran = Record(nodes=(NodeRecord(name="a", verdict="fallback", device="CPU", reason="too large"),))
    assert merged([promised, ran]).nodes == (
        NodeRecord(name="a", verdict="fallback", device="CPU", reason="too large", bytes=4),
    )


def test_prices_stay_with_their_noise() -> None:
    priced = Record(
        tensors=(TensorRecord(name="x", kind="activation", price={"rounding": 0.25}),), noise={"y": 0.25}, samples=2
    )
    measured = Record(tensors=(TensorRecord(name="x", kind="activation", whole_db=3.0),), noise={"y": 0.5}, samples=8)
    found = merged([priced, measured])
    assert (found.noise, found.samples, found.causes) == ({"y": 0.25}, 2, {"rounding": 0.25})
    assert found.tensors[0].whole_db == 3.0
    again = merged(
        [found, dataclasses.replace(priced, tensors=(), nodes=(NodeRecord(name="n", price={"operator": 1.0}),))]
    )
    assert again.causes == {"operator": 1.0}
    assert set(CAUSES) >= set(again.causes)


@pytest.mark.parametrize("value", [0.0, 3.4e38, -3.4e38])
def test_a_histogram_of_one_value(value: float) -> None:
    """Edges beside a large number are no other numbers unless they stand far from it."""
    seen = Histogram()
    seen.count(np.full(5, value, np.float32))
    made = _histogram(seen)
    assert (sum(made.counts), made.low, made.high) == (5, np.float32(value), np.float32(value))
