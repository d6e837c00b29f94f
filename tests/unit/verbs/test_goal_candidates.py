"""What a search for a goal judges is what `quantize` makes; what cannot be made loses, and nothing is met by a mistake."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from qdq_passes.errors import UsageError

import qdqtool
from qdqtool import api
from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.quantization import recovery
from qdqtool.search.goal.chance import stages_of
from qdqtool.search.goal.trials import Candidate
from qdqtool.search.recipe import Recipe
from qdqtool.targets.loading import load_target
from qdqtool.verbs.goals.quantize_to_goal import quantize_to_goal
from qdqtool.verbs.work.goals import graphs
from tests.cases.cli_helpers import CALIB, DIGITS, cli
from tests.cases.packed_workers import without_processes
from tests.cases.small_models import parsed
from tests.dial import some

TEST = Path(DIGITS).with_name("test.npz")
FEW: dict[str, Any] = {"data": CALIB, "samples": 8, "eval_data": TEST}
METRICS = """
def fine(outputs, feeds): return 0.95
def half(outputs, feeds): return 0.5
def nothing(outputs, feeds): pass
def right(outputs, feeds):
    return sum(int(o["logits"].argmax() == f["labels"].ravel()[0]) for o, f in zip(outputs, feeds)) / len(feeds)
def one_class(outputs, feeds):
    found = {int(feed["labels"].ravel()[0]) == 3 for feed in feeds}
    if len(found) < 2: raise ValueError("only one class")
    return 0.9
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two convolutions and a Gemm: for what is the same of any network."""
    random = np.random.default_rng(0)
    shapes = {"v": (4, 1, 3, 3), "w": (8, 4, 3, 3), "a": (4,), "b": (8,), "g": (8, 5), "c": (5,)}
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[1,1,8,8] input) => (float[1,5] logits) {
      [first] h = Conv<pads = [1,1,1,1]>(input, v, a) [relu] i = Relu(h) [second] j = Conv(i, w, b) [act] k = Relu(j)
      [pool] l = GlobalAveragePool(k) [flat] m = Flatten(l) [fc] logits = Gemm(m, g, c) }"""
    weights = {name: random.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    path = tmp_path_factory.mktemp("small") / "small.onnx"
    onnx.save(parsed(text, weights), path)
    return path


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(METRICS)
    return path


def sought(**said: Any) -> dict[str, Any]:
    done = quantize_to_goal(DIGITS, None, **{**FEW, "target": "generic_int8", **said})
    assert done.sought is not None
    return done.sought.to_json()


@pytest.mark.product(extra=1)
@pytest.mark.parametrize(
    ("names", "in_file"),
    [(("correct_bias", "cut_ranges"), False), (("learn_rounding",), False), (("round_weights", "search_scales"), True)],
)
def test_what_is_judged_is_what_quantize_makes(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], in_file: bool, small: Path
) -> None:
    """Beside an option that has statistics of its own; statistics in memory and in a file. Of nodes and presets none is tried here."""
    for name in ("raises", "others", "last"):
        monkeypatch.setattr(graphs.GraphSubject, name, lambda *_, **__: ())
    monkeypatch.setattr(graphs, "proposals", lambda *_, **__: [Candidate.of("a cause", {name: True}) for name in names])
    monkeypatch.setattr(graphs.GraphSubject, "record", lambda *_: None)
    if in_file:
        monkeypatch.setattr(recovery, "IN_MEMORY", 0)
    said: dict[str, Any] = {"data": "random:8", "target": "qnn_htp", "smooth": 0.5}
    found = quantize_to_goal(small, None, **said, eval_data="random:4:1", goal="sqnr >= 99", budget=14).sought
    assert found is not None
    assert set(names) <= {name for one in found.trials for name in one.candidate.options}
    for one in some(found.trials, 4):
        assert one.measured.placing is not None, one.measured.reason
        made = qdqtool.quantize(small, None, **said, **one.candidate.options, hold_out=0)
        assert model_sha256(made.model) == one.measured.placing.sha256, one.candidate.text


def test_statistics_that_a_candidate_before_has_among_its_own_cost_nothing(
    monkeypatch: pytest.MonkeyPatch, small: Path
) -> None:
    """Moments of what layers read have the means that biases are corrected by: 8 runs of 12 once."""
    mends = [Candidate.of("a cause", {name: True}) for name in ("search_scales", "correct_bias")]
    for name in ("raises", "others", "last"):
        monkeypatch.setattr(graphs.GraphSubject, name, lambda *_, **__: ())
    monkeypatch.setattr(graphs, "proposals", lambda *_, **__: mends)
    found = quantize_to_goal(
        small, None, data="random:8", target="generic_int8", goal="sqnr >= 99", eval_data="random:4:1", budget=15
    ).sought
    assert found is not None
    units = {trial.candidate.text: trial.units for trial in found.trials}
    assert (units["--search-scales"], units["--correct-bias"]) == (12 / 12, 4 / 12)


def test_methods_that_count_alike_are_calibrated_once(monkeypatch: pytest.MonkeyPatch, small: Path) -> None:
    """8 runs of 12 for the first of them, whose histograms serve the others: what these give is what `quantize` makes."""
    shares: list[dict[str, Any]] = [{"method": "percentile", "method_options": {"percentile": p}} for p in (99.0, 99.9)]
    mends = [Candidate.of("a cause", options) for options in (*shares, {"method": "mse"})]
    for name in ("raises", "others", "last"):
        monkeypatch.setattr(graphs.GraphSubject, name, lambda *_, **__: ())
    monkeypatch.setattr(graphs, "proposals", lambda *_, **__: mends)
    said: dict[str, Any] = {"data": "random:8", "target": "generic_int8"}
    found = quantize_to_goal(small, None, **said, eval_data="random:4:1", goal="sqnr >= 99", budget=8).sought
    assert found is not None
    assert [(trial.candidate.text, trial.units) for trial in found.trials[1:]] == [
        ("--method percentile --method-option percentile=99.0", 12 / 12),
        ("--method percentile --method-option percentile=99.9", 4 / 12),
        ("--method mse", 4 / 12),
    ]
    for one in some(found.trials[1:]):
        assert one.measured.placing is not None
        made = qdqtool.quantize(small, None, **said, **one.candidate.options, hold_out=0)
        assert model_sha256(made.model) == one.measured.placing.sha256, one.candidate.text


def test_options_of_a_method_that_are_said_stay_with_it(small: Path) -> None:
    """Other methods would not take them; and a recipe holds them."""
    method: dict[str, Any] = {"method_options": {"eps": 0.5}, "method": "moving-average"}
    said: dict[str, Any] = {
        "preset": "a8w8",
        "data": "random:4",
        "goal": "sqnr >= 99",
        "eval_data": "random:2:1",
        "budget": 10,
    }
    for more in ({}, method):
        found = quantize_to_goal(small, None, target="generic_int8", **said, **more).sought
        assert found is not None
        assert any("method" in trial.candidate.options for trial in found.trials) == (not more)


def test_a_number_of_a_recipe_may_be_said_as_text_too() -> None:
    recipe = Recipe(preset="a8w8", options={"method": "percentile", "method_options": {"percentile": 99.5}})
    assert recipe.options_beside({"method_options": {"percentile": "99.50"}}, {"method_options": None})
    with pytest.raises(UsageError, match="--method-option contradicts the recipe"):
        recipe.options_beside({"method_options": {"percentile": "99"}}, {"method_options": None})


@pytest.mark.extra
def test_a_candidate_that_does_not_go_with_what_is_said_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Presets of powers of two have one scale a weight: with scales along channels asked for they cannot be made. Of mends and nodes
    none is tried here."""
    monkeypatch.setattr(graphs, "proposals", lambda *_, **__: [])
    monkeypatch.setattr(graphs.GraphSubject, "raises", lambda *_: ())
    found = sought(goal="sqnr >= 99", eval_samples=4, budget=12, per_axis_linear=True, target="qnn_htp")
    assert any("has one scale a weight" in trial["lost"] for trial in found["trials"])


def test_a_draw_that_a_metric_cannot_take_is_no_end(own: Path) -> None:
    assert not sought(goal="auc >= 0.99", metric=f"{own}:one_class", eval_samples=40, budget=1)["met"]


@pytest.mark.product(days=3)
def test_samples_on_which_it_does_as_the_float_model_refute_nothing(monkeypatch: pytest.MonkeyPatch, own: Path) -> None:
    """On the first 64 of 160 both have all right, which is too little for a goal above the float model's figure; a metric of
    one's own does not tell which samples are hard."""
    monkeypatch.setattr(graphs.GraphSubject, "whole_units", lambda _: math.inf)  # nothing is judged again
    found = quantize_to_goal(
        DIGITS, None, **FEW, target="generic_int8", goal="right >= 1.001 * float", metric=f"{own}:right", eval_samples=160,
        budget=4,
    ).sought  # fmt: skip
    assert found is not None
    standing = found.trials[1].measured.standing
    assert standing is not None
    assert standing.common < 0
    assert standing.samples == 160


@pytest.mark.product(extra=1)
@pytest.mark.parametrize("target", ["generic_int8", "qnn_htp", "vitis_xint8"])
def test_mends_are_judged_by_workers(target: str, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side, with the same result: what they are sent has a name in its module. Of nodes and presets none is tried here."""
    mends = [Candidate.of("a cause", {name: True}) for name in ("correct_bias", "round_weights")]
    for name in ("raises", "others", "last"):
        monkeypatch.setattr(graphs.GraphSubject, name, lambda *_, **__: ())
    monkeypatch.setattr(graphs, "proposals", lambda *_, **__: mends)
    monkeypatch.setattr(graphs.GraphSubject, "record", lambda *_: None)
    said: dict[str, Any] = {
        "goal": "sqnr >= 99",
        "target": target,
        "eval_data": "random:2:1",
        "budget": 9,
        "data": "random:2",
    }
    alone = quantize_to_goal(small, None, **said).sought
    sent = without_processes(monkeypatch)
    together = quantize_to_goal(small, None, **said, jobs=2).sought
    assert alone is not None
    assert together is not None
    assert alone.to_json() == together.to_json()
    assert max(sent) > 1


@pytest.mark.extra
def test_mends_are_judged_by_processes() -> None:
    said: dict[str, Any] = {"goal": "sqnr >= 60", "eval_samples": 2, "budget": 4, "samples": 2}
    assert sought(**said) == sought(**said, jobs=2)


def test_a_float_model_that_has_nothing_right_is_no_measure() -> None:
    with pytest.raises(UsageError, match="the float model's accuracy is 0: nothing of it can be lost"):
        quantize_to_goal(DIGITS, None, data=CALIB, eval_data=f"{__file__}:wrong", goal="accuracy >= 0.9 * float")


def wrong() -> Any:
    """Samples whose labels are none."""
    with np.load(TEST) as data:
        yield from ({"input": array[None], "labels": np.array([-1])} for array in data["input"][:4])


@pytest.mark.product(days=3)
def test_of_many_samples_the_hardest_refute_what_misses_the_goal() -> None:
    """64 of 160, 8 of which are calibrated on; the nearest is judged on all in the end, and no node raised where nothing helps."""
    done = quantize_to_goal(
        DIGITS, None, **FEW, target="generic_int8", goal="top1 >= 1.001 * float", eval_samples=160, budget=5
    ).sought
    assert done is not None
    assert {trial.samples for trial in done.trials} == {64, 160}
    assert min(trial.units for trial in done.trials) == 72 / 168
    for trial in done.trials:
        standing = trial.measured.standing
        assert standing is not None
        assert standing.is_proven == (trial.samples == 64)
    assert not done.chosen.is_proven


def test_samples_are_judged_on_in_stages() -> None:
    assert list(stages_of(128)) == [128]
    assert list(stages_of(129)) == [64, 129]
    assert list(stages_of(600)) == [64, 128, 256, 600]


def test_one_sample_says_nothing_of_others() -> None:
    found = sought(goal="accuracy >= 0.99 * float", eval_samples=1, budget=3)
    assert (found["met"], found["trials"][found["chosen"]]["verdict"]) == (False, "close")


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"goal": "x <= 60", "metric": "sqnr"}, "of sqnr the higher is better; write >="),
        ({"goal": "p >= 10", "metric": "perplexity"}, "of perplexity the lower is better; write <="),
    ],
)
def test_which_way_is_better_is_known_whatever_it_is_called(said: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        sought(**said)


def test_a_metric_of_another_name_judges_as_that_does() -> None:
    assert sought(goal="top1 >= 0.5", metric="top1", eval_samples=16)["met"]


def test_a_metric_that_gives_nothing_is_not_exact(own: Path) -> None:
    with pytest.raises(UsageError, match="the metric gives NoneType; return one number"):
        sought(goal="m >= 0.8", metric=f"{own}:nothing", eval_samples=4)


def test_figures_of_another_metric_are_not_gone_on_with(own: Path, tmp_path: Path) -> None:
    assert sought(goal="m >= 0.9", metric=f"{own}:fine", eval_samples=4, resume=tmp_path / "tried")["met"]
    with pytest.raises(UsageError, match="holds results of another goal, metric, preset, target, chip or options"):
        sought(goal="m >= 0.9", metric=f"{own}:half", eval_samples=4, resume=tmp_path / "tried")


class Reader:
    """Samples one after another, as onnxruntime's quantizer takes them."""

    def __init__(self) -> None:
        self.arrays = list(np.load(CALIB)["input"][:6])

    def get_next(self) -> dict[str, Any] | None:
        return {"input": self.arrays.pop()[None]} if self.arrays else None


def test_data_that_can_be_read_once_are_held() -> None:
    done = quantize_to_goal(DIGITS, None, target="generic_int8", data=Reader(), goal="sqnr >= 10")
    assert done.sought is not None
    assert (done.quantization.ranges.samples, done.sought.samples) == (3, 3)


def test_a_recipe_of_a_target_in_a_file_is_written_and_nothing_is_left(tmp_path: Path) -> None:
    """Also where the search went on with what an interrupted one left beside the output."""
    mine = tmp_path / "mine.toml"
    mine.write_text(
        f'extends = "generic_int8"\nversion = "{load_target("generic_int8").version}"\ndescription = "mine"\n'
    )
    before = {**FEW, "target": mine, "goal": "sqnr >= 10", "save_recipe": tmp_path / "r.toml"}
    done = quantize_to_goal(DIGITS, tmp_path / "a.onnx", **before, resume=tmp_path / "a.onnx.partial")
    assert done.sought is not None
    assert done.sought.is_met
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.onnx", "mine.toml", "r.toml"]


@pytest.mark.extra
def test_what_takes_too_long_is_told_as_that(tmp_path: Path) -> None:
    done = cli("quantize", DIGITS, "--target", "qnn_htp", "--data", CALIB, "--samples", "8", "--goal", "sqnr >= 10", "--budget", "1",
               "--chip", "8-gen-2", "--max-ms", "0.00001", "--save-ranges", tmp_path / "r.json", "-o", tmp_path / "a.onnx",
               code=1)  # fmt: skip
    assert "failed: a run takes 0.2" in done.out
    assert "over 1e-05; give a larger --max-ms" in done.out
    assert not (tmp_path / "r.json").exists()


def test_a_group_that_a_target_would_split_stays(tmp_path: Path) -> None:
    """A Concat of a Relu and a Sigmoid costs its region on the DPU; apart from them the output of a fused Conv would be read, of which
    nothing was observed."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.normal(size=(8, inputs, 3, 3)).astype(np.float32) / 8, name)
        for name, inputs in (("u", 8), ("v", 8), ("w", 16))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "u"], ["a"], "first", pads=[1] * 4), helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["x", "v"], ["c"], "second", pads=[1] * 4), helper.make_node("Sigmoid", ["c"], ["d"], "sigmoid"),
        helper.make_node("Concat", ["b", "d"], ["e"], "both", axis=1),
        helper.make_node("Conv", ["e", "w"], ["y"], "last", pads=[1] * 4),
    ]  # fmt: skip
    shape = [1, 8, 16, 16]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)], weights,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    made = qdqtool.quantize(tmp_path / "m.onnx", None, target="vitis_xint8", data="random:4")
    assert made.quantization.quantized_nodes >= 3


@pytest.mark.product(days=3)
def test_what_a_target_takes_no_more_beside_raised_nodes_is_raised_with_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What stands alone between layers that are left float is too little for a partition. Of mends and presets none is tried."""
    monkeypatch.setattr(graphs.GraphSubject, "others", lambda *_: ())
    monkeypatch.setattr(graphs, "proposals", lambda *_, **__: ())
    done = quantize_to_goal(
        DIGITS, tmp_path / "a.onnx", **{**FEW, "target": "vitis_xint8", "goal": "sqnr >= 34", "eval_samples": 4}
    ).sought
    assert done is not None
    assert done.is_met
    assert any(trial.candidate.why.endswith("1 beside them") for trial in done.trials)
    assert not any(trial.unwanted(done.trials[0]) for trial in done.trials)
    placed = api.analyze(tmp_path / "a.onnx", target="vitis_xint8").to_json()
    on_cpu = {node["name"] for node in placed["nodes"] if node["kind"] == "compute" and node["device"] == "CPU"}
    assert on_cpu
    assert on_cpu <= {*dict(done.chosen.candidate.point.raised)["float"]}
