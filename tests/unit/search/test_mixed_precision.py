"""`mixed-precision` and `quantize --recipe`: the cheapest mix that holds a bound, found, written and replayed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.precision.look.widths import boundary_crossings, mac_shares

import qdqtool
from qdqtool import api
from qdqtool.record.record import NodeRecord, Record
from qdqtool.runtime.session import open_session
from qdqtool.search.recipe import Recipe
from tests.cases import search_metrics
from tests.cases.cli_helpers import CALIB, DIGITS, SAMPLES, cli
from tests.cases.packed_workers import without_processes
from tests.cases.small_nets import small_net
from tests.golden_messages.refusal import refusal, told

DETECTOR, SCENES, JUDGED = (str(SAMPLES / n) for n in ("detector.onnx", "detector_calib.npz", "detector_test.npz"))
MAP = f"{search_metrics.__file__}:mean_average_precision"


def search(folder: Path, *more: str, name: str = "m", model: str = DIGITS, data: str = CALIB) -> dict[str, object]:
    found: dict[str, object] = cli(
        "mixed-precision", model, "--data", data, "-o", folder / f"{name}.onnx", "--recipe", folder / f"{name}.toml", "--json", *more
    ).json  # fmt: skip
    return found


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a search wrote: m.onnx, m.toml, its journal ``j``, and what it told as m.json."""
    folder = tmp_path_factory.mktemp("searched")
    found = search(folder, *SEARCH, "--resume", str(folder / "j"))
    (folder / "m.json").write_text(json.dumps(found, allow_nan=False), encoding="utf-8")
    return folder


#: What `searched` was asked.
SEARCH = ("--min-sqnr", "33", "--types", "float", "--exclude", "/pool", "--preset", "xint8", "--samples", "64")


def test_digits_within_a_bound_and_replayed(tmp_path: Path) -> None:
    found = search(tmp_path, "--min-sqnr", "34", "--save-ranges", str(tmp_path / "r.json"))
    chosen, pareto = found["chosen"], found["pareto"]
    assert isinstance(chosen, dict)
    assert isinstance(pareto, list)
    assert chosen["figure"] >= 34
    assert found["met"] is True
    assert chosen in pareto
    assert [p["cost"] for p in pareto] == sorted(p["cost"] for p in pareto)
    assert all(p["figure"] is None or p["figure"] < 34 for p in pareto if p["cost"] < chosen["cost"]), (
        "nothing cheaper holds"
    )
    for name, source in (("data", ("--data", CALIB)), ("ranges", ("--ranges", tmp_path / "r.json", "--data", CALIB))):
        cli("quantize", DIGITS, "--recipe", tmp_path / "m.toml", *source, "-o", tmp_path / f"{name}.onnx")
        assert (tmp_path / f"{name}.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()
    compared = api.compare(DIGITS, str(tmp_path / "m.onnx"), CALIB, samples=16, tensors=[])
    assert round(compared.min_sqnr or 0, 6) == chosen["figure"], "the search measured what was written"


@pytest.mark.extra
def test_prices_of_a_record_stand_for_a_run_of_each_node(tmp_path: Path) -> None:
    """The same is chosen, with as many fewer measurements as there are groups of nodes."""
    explained, plain = tmp_path / "explained.json", tmp_path / "q.onnx"
    cli("quantize", DIGITS, "--data", CALIB, "-o", plain)
    cli("explain", plain, "--data", CALIB, "--float", DIGITS, "--samples", "16", "--json-out", explained)
    alone = search(tmp_path, "--min-sqnr", "34", "--resume", str(tmp_path / "alone"))
    told_ = search(
        tmp_path, "--min-sqnr", "34", "--resume", str(tmp_path / "told"), "--explained", str(explained), name="t"
    )
    assert told_["chosen"] == alone["chosen"]
    counts = [len((tmp_path / name).read_text().splitlines()) for name in ("told", "alone")]
    assert counts[0] <= counts[1] - 8, "of 10 groups the figures of two are those of other points"


def test_a_record_that_tells_no_prices_of_the_model_is_refused(tmp_path: Path) -> None:
    unpriced = api.analyze(DIGITS, target="generic_int8").record
    other = Record(nodes=(NodeRecord(name="elsewhere", price={"operator": 1.0}),), noise={"y": 1.0})
    for record in (unpriced, other):
        with refusal(UsageError):
            api.mixed_precision(DIGITS, data=CALIB, min_sqnr=34.0, explained=record)
    (tmp_path / "no.json").write_text('{"record": {"version": 1, "speed": 2}}')
    with refusal(ModelError):
        api.mixed_precision(DIGITS, data=CALIB, min_sqnr=34.0, explained=tmp_path / "no.json")


@pytest.mark.product(days=4)
def test_a_bound_that_holds_already_raises_nothing(tmp_path: Path) -> None:
    found = search(tmp_path, "--min-sqnr", "20")
    assert found["chosen"]["raised"] == {}  # type: ignore[index]
    cli("quantize", DIGITS, "--data", CALIB, "-o", tmp_path / "plain.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == (tmp_path / "plain.onnx").read_bytes()


def test_jobs_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = without_processes(monkeypatch)
    net, data = small_net("quoted", tmp_path)
    for jobs in ("1", "2"):
        found = search(
            tmp_path, "--min-sqnr", "36", "--types", "float", "--jobs", jobs, name=jobs, model=str(net), data=str(data)
        )
        assert found["measured"] > 3  # type: ignore[operator]
    assert max(sent) > 1
    for suffix in ("onnx", "toml"):
        assert (tmp_path / f"1.{suffix}").read_bytes() == (tmp_path / f"2.{suffix}").read_bytes()


@pytest.mark.extra
def test_detector_is_repaired_in_8_bit(tmp_path: Path) -> None:
    found = search(tmp_path, "--eval-data", JUDGED, "--metric", MAP, "--min-metric", "0.9745", "--types", "float",
                   model=DETECTOR, data=SCENES)  # fmt: skip
    plain, chosen = found["quantized"], found["chosen"]
    assert isinstance(plain, dict)
    assert isinstance(chosen, dict)
    assert plain["figure"] < 0.7, "plain xint8 loses the scores"
    assert chosen["figure"] >= found["float"] - 0.01  # type: ignore[operator]
    assert chosen["share_8_bit"] >= 0.95
    raised = [name for names in chosen["raised"].values() for name in names]
    assert "/head/concat" in raised
    assert len(raised) <= 3, "what is not needed is lowered again"
    model = qdqtool.load(tmp_path / "m.onnx")
    assert [v.name for v in model.graph.outputs] == ["predictions"]


@pytest.mark.product(days=4)
def test_a_recipe_says_paths_as_texts(tmp_path: Path) -> None:
    file, target = tmp_path / "m.toml", tmp_path / "mine.toml"
    target.write_text('name = "mine"\ndescription = "as generic_int8"\nversion = "1"\nextends = "generic_int8"\n')
    api.mixed_precision(
        DIGITS, CALIB, preset="a8w8", min_sqnr=20, types=["float"], samples=8, target=target, recipe=file
    )
    recipe = Recipe.read(file)
    assert recipe.options["target"] == str(target)
    defaults = {"preset": None, **dict.fromkeys(recipe.options)}
    assert recipe.options_beside({"target": target}, defaults)["target"] == str(target)


@pytest.mark.product(days=4)
def test_a_target_decides_what_nodes_are_raised_to(tmp_path: Path) -> None:
    found = search(tmp_path, "--min-sqnr", "33", "--target", "generic_int8", "--preset", "a8w8")
    assert found["met"] is True
    if found["chosen"]["raised"]:  # type: ignore[index]
        assert set(found["chosen"]["raised"]) == {"float"}  # type: ignore[index]
    refused = {(r["node"], r["precision"]) for r in found["refusals"]}  # type: ignore[attr-defined]
    assert ("/stem/conv", "int16") in refused
    assert ("/stem/conv", "fp16") in refused
    told(cli("mixed-precision", DIGITS, "--data", CALIB, "--min-sqnr", "60", "--target", "generic_int8",
             "--preset", "a8w8", "--types", "int16", code=2).error)  # fmt: skip


@pytest.mark.product(days=4)
def test_a_bound_that_cannot_be_met(tmp_path: Path) -> None:
    done = cli("mixed-precision", DIGITS, "--data", CALIB, "--min-sqnr", "200", "-o", tmp_path / "m.onnx", "--json",
               "--recipe", tmp_path / "m.toml", "--types", "int16", code=1)  # fmt: skip
    found = done.json
    assert found["met"] is False
    assert "only int16 may be used" in found["limit"]
    assert found["chosen"]["figure"] == max(p["figure"] for p in found["pareto"])
    assert not (tmp_path / "m.onnx").exists()
    assert not (tmp_path / "m.toml").exists()
    done = cli("mixed-precision", DETECTOR, "--data", SCENES, "--eval-data", JUDGED, "--eval-samples", "8",
               "--metric", MAP, "--min-metric", "1.5", code=1)  # fmt: skip
    assert "failed: the bound cannot be met: the float model itself has" in done.out
    net, samples = small_net("quoted", tmp_path)
    done = cli("mixed-precision", net, "--data", samples, "--min-sqnr", "160", "--types", "float", code=1)
    assert "every node in floats, which is no quantization" in done.out


@pytest.mark.product(days=4)
def test_what_is_smoothed_is_raised_and_replayed(tmp_path: Path) -> None:
    net, data = small_net("attention", tmp_path)
    found = search(tmp_path, "--min-sqnr", "22", "--smooth", "0.5", "--types", "float", model=str(net), data=str(data))
    chosen: Any = found["chosen"]
    assert chosen["figure"] >= 22
    assert chosen["raised"]
    assert "smooth = 0.5" in (tmp_path / "m.toml").read_text()
    cli("quantize", net, "--recipe", tmp_path / "m.toml", "--data", data, "-o", tmp_path / "r.onnx")
    assert (tmp_path / "r.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()


@pytest.mark.extra
def test_outliers_in_a_vision_transformer_are_smoothed_and_raised(tmp_path: Path) -> None:
    model = qdqtool.load(SAMPLES / "vit_block.onnx")
    run_pipeline(model, "inject-outliers")
    qdqtool.save(model, tmp_path / "vit.onnx")
    found = search(tmp_path, "--min-sqnr", "25", "--smooth", "0.5", "--types", "int16,float", "--samples", "4",
                   model=str(tmp_path / "vit.onnx"), data="random:4")  # fmt: skip
    assert found["chosen"]["figure"] is None or found["chosen"]["figure"] >= 25  # type: ignore[index]
    assert found["chosen"]["share_8_bit"] >= 0.95  # type: ignore[index]
    assert "smooth = 0.5" in (tmp_path / "m.toml").read_text()
    cli(
        "quantize",
        tmp_path / "vit.onnx",
        "--recipe",
        tmp_path / "m.toml",
        "--data",
        "random:4",
        "-o",
        tmp_path / "r.onnx",
    )
    assert (tmp_path / "r.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()


@pytest.mark.product(days=4)
def test_an_interrupted_search_goes_on(searched: Path, tmp_path: Path) -> None:
    lines = (searched / "j").read_text().splitlines(keepends=True)
    (tmp_path / "j").write_text("".join(lines[: len(lines) // 2]))
    again = search(tmp_path, *SEARCH, "--resume", str(tmp_path / "j"))
    first = json.loads((searched / "m.json").read_text(encoding="utf-8"))
    paths = ("output", "recipe")
    assert {key: told for key, told in again.items() if key not in paths} == {
        key: told for key, told in first.items() if key not in paths
    }
    assert (tmp_path / "j").read_text().splitlines() == [line.rstrip("\n") for line in lines]


def test_recipe_is_read_back_and_contradictions_are_refused(searched: Path, tmp_path: Path) -> None:
    text = (searched / "m.toml").read_text()
    recipe = Recipe.read(searched / "m.toml")
    assert recipe.to_toml() == text
    assert recipe.options == {"exclude": ("/pool",), "samples": 64}
    assert recipe.preset == "xint8"
    assert recipe.nodes["float"]
    words = [
        "quantize",
        DIGITS,
        "--recipe",
        searched / "m.toml",
        "--data",
        CALIB,
        "-o",
        tmp_path / "q.onnx",
        "--overwrite",
    ]
    cli(*words, "--exclude", "/pool", "--samples", "64", "--preset", "xint8")
    assert (tmp_path / "q.onnx").read_bytes() == (searched / "m.onnx").read_bytes()
    for more in (
        ["--preset", "a8w8"],
        ["--exclude", "/concat"],
        ["--samples", "3"],
        ["--method", "minmax"],
    ):
        told(cli(*words, *more, code=2).error)
    error = cli(*words, "--float", "/concat", code=2).error
    assert "--float contradicts the recipe" in error, "it goes on with the nodes that were found"
    pipeline = cli("quantize", DIGITS, "--recipe", searched / "m.toml", "--print-pipeline").out
    assert "set-precision{" in pipeline


def test_recipe_of_something_else(searched: Path, tmp_path: Path) -> None:
    shutil.copy(searched / "m.toml", tmp_path)
    words = ["quantize", DIGITS, "--recipe", tmp_path / "m.toml", "-o", tmp_path / "q.onnx", "--overwrite", "--data"]
    with_other_data = cli(*words, "random:2").err
    assert "warning: the ranges are not those of the recipe" in with_other_data
    model = qdqtool.load(DIGITS)
    run_pipeline(model, "fold-batch-norm")
    qdqtool.save(model, tmp_path / "other.onnx")
    done = cli("quantize", tmp_path / "other.onnx", *words[2:], CALIB)
    assert "warning: the recipe is of another model" in done.err
    (tmp_path / "m.toml").write_text('format = "qdqtool.recipe"\nversion = 9\npreset = "xint8"\n')
    told(cli(*words, CALIB, code=2).error)
    (tmp_path / "m.toml").write_text("a = 1\n")
    told(cli(*words, CALIB, code=2).error)
    (tmp_path / "m.toml").write_text('format = "qdqtool.recipe"\nversion = 1\npreset = "xint8"\nflavour = 1\n')
    told(cli(*words, CALIB, code=2).error)


def test_one_bound_and_known_types() -> None:
    words = ["mixed-precision", DIGITS, "--data", CALIB]
    told(cli(*words, code=2).error)
    told(cli(*words, "--min-sqnr", "30", "--metric", "accuracy", code=2).error)
    told(cli(*words, "--min-sqnr", "30", "--types", "int4", code=2).error)


def test_json_has_no_nan_and_names_every_point(searched: Path) -> None:
    found = json.loads((searched / "m.json").read_text(encoding="utf-8"))
    assert len(found["pareto"]) > 1
    for point in found["pareto"]:
        assert {"figure", "cost", "macs", "boundary_crossings", "crossing_bytes", "share_8_bit", "raised"} <= set(point)


def collapsing_vit() -> tuple[ir.Model, list[dict[str, np.ndarray]]]:
    """A vision transformer that is below 0 dB in plain xint8, and samples of it.

    Two channels behind each norm grow by 2^9, and the logits are centered on samples that resemble each other (of their variance
    0.36 is common), so that what a collapsed network writes is further off than zeros."""
    random = np.random.default_rng(0)
    common, own = random.standard_normal((1, 3, 32, 32)), random.standard_normal((8, 3, 32, 32))
    samples = [{"input": (0.6 * common + 0.8 * each).astype(np.float32)} for each in own]
    vit = qdqtool.load(SAMPLES / "vit_block.onnx")
    session = open_session(vit)
    mean = np.mean([session.run(feed)["logits"] for feed in samples], axis=0)[0]
    run_pipeline(vit, "inject-outliers{exponent=9}")
    bias = vit.graph.initializers["head.bias"]
    assert bias.const_value is not None
    bias.const_value = ir.tensor((bias.const_value.numpy() - mean).astype(np.float32), name=bias.name)
    return vit, samples


@pytest.mark.extra
def test_a_vision_transformer_below_0_db_is_repaired_in_8_bit() -> None:
    vit, samples = collapsing_vit()
    assert qdqtool.quantize(vit, data=samples, preset="xint8").comparison.min_sqnr < 0
    edges = ["node_conv2d", "node_add_13", "node_layer_norm_4", "node_mean"]
    done = qdqtool.quantize(
        vit, data=samples, preset="xint8", smooth=0.5, round_weights=True, correct_bias=True, int16=edges
    )
    assert done.comparison.min_sqnr >= 25
    assert mac_shares(done.model)["8"] >= 0.95
    inside = [crossing for crossing in boundary_crossings(done.model) if crossing.producer not in edges]
    assert len(inside) <= 2 * 2, "two blocks; the patch embedding and the head are outside of them"
