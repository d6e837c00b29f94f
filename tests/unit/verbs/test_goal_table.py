"""`quantize --goal` where a table says what candidates are worth: none is quantized or run but the one that is written. What is
told, the journal, what is resumed, and what is written where the goal is met and where it is not."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qdqtool.search.goal.goal import Goal
from qdqtool.search.goal.standing import Fresh, Standing
from qdqtool.search.goal.subject import Raise
from qdqtool.search.goal.trials import Candidate
from qdqtool.search.precision_cost import Cost
from qdqtool.search.variants import Measured, Point
from qdqtool.verbs.work.goals import graphs, seeking
from tests.cases.cli_helpers import Result, cli, write

NET = """g (float[1,4] x) => (float[1,4] y)
  <float[4,4] w = {1,2,3,4,5,6,7,8,8,7,6,5,4,3,2,1}, float[4,4] v = {1,0,0,2,0,1,0,3,0,0,1,4,0,0,0,1}> {
    [first] h = Gemm(x, w) [last] y = Gemm(h, v) }"""
MENDS = ("correct_bias", "round_weights")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Point]:
    """What was judged, in order: the plain one has 20 dB, corrected biases add 3, rounding 2, and the second node in 16 bit 4."""
    found: list[Point] = []
    goals: list[Goal] = []

    def baseline(subject: graphs.GraphSubject, _: Point) -> None:
        goals.append(subject.goal)

    def judged(_: object, point: Point) -> Measured:
        found.append(point)
        raised = sum(len(names) for _, names in point.raised)
        options = dict(point.options)
        figure = 20.0 + 3 * ("correct_bias" in options) + 2 * ("round_weights" in options) + 4 * raised
        margin = figure - goals[-1].bound(None)
        ends = {"margin": margin, "low": margin - 0.5, "high": margin + 0.5}
        cost = Cost(macs={"8": 2 - raised, "16": raised}, crossings=0, bytes=0, total=float(raised))
        return Measured(figure=figure, cost=cost, standing=Standing(figure=figure, samples=4, **ends))

    monkeypatch.setattr(graphs, "judged", judged)
    for name, gives in (
        ("mends", [Candidate.of("a cause", {name: True}) for name in MENDS]),
        ("others", []),
        ("last", []),
        ("raises", [Raise(precision="int16", sets=(("last",),))]),
    ):
        monkeypatch.setattr(graphs.GraphSubject, name, lambda *_, gives=gives, **__: gives)
    monkeypatch.setattr(graphs.GraphSubject, "baseline", baseline)
    monkeypatch.setattr(graphs.GraphSubject, "along", lambda _, point, refused: point)
    return found


def sought(
    folder: Path, *more: str | Path, name: str = "a", code: int = 0, budget: str = "15", samples: int = 4
) -> Result:
    net = write(folder / "net.onnx", NET)
    return cli("quantize", net, "--preset", "a8w8", "--data", "random:4", "--eval-data", f"random:{samples}:3", "--goal", "sqnr >= 25",
               "--budget", budget, "-o", folder / f"{name}.onnx", *more, code=code)  # fmt: skip


def test_candidates_are_judged_in_order_until_nodes_in_16_bit_meet_it(tmp_path: Path, asked: list[Point]) -> None:
    """Mends, both together, which meet the bound by the figure and not for certain, and then the node."""
    found = sought(tmp_path, "--json", "--save-recipe", tmp_path / "a.toml").json["sought"]
    texts = [trial["text"] for trial in found["trials"]]
    assert texts[:4] == ["as it is said", "--correct-bias", "--round-weights", "--correct-bias --round-weights"]
    assert [trial["figure"] for trial in found["trials"][:4]] == [20.0, 23.0, 22.0, 25.0]
    assert len(asked) == len(texts)
    chosen = found["trials"][found["chosen"]]
    assert found["met"]
    assert chosen["nodes"] == {"int16": ["last"]}
    assert chosen["lost"] == ""
    assert all(trial["lost"] for trial in found["trials"] if trial is not chosen)
    assert "perhaps by chance" in found["trials"][3]["lost"]
    assert found["units"] <= 15
    again = ("quantize", tmp_path / "net.onnx", "--recipe", tmp_path / "a.toml", "--data", "random:4", "-q")
    cli(*again, "-o", tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "a.onnx").read_bytes()


@pytest.mark.parametrize("kept", [1, 2, 4, -1])
def test_killed_and_resumed_it_judges_what_is_left_and_finds_the_same(
    kept: int, tmp_path: Path, asked: list[Point]
) -> None:
    """After the head and so many trials, in the middle of a line; the journal ends up the same, and so does what is written."""
    found = sought(tmp_path, "--json", "--resume", tmp_path / "whole").json["sought"]
    whole = list(asked)
    lines = (tmp_path / "whole").read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + len(whole)
    (tmp_path / "j").write_bytes(b"".join(lines[:kept]) + lines[kept][:20])
    asked.clear()
    assert sought(tmp_path, "--json", "--resume", tmp_path / "j", name="b").json["sought"] == found
    assert asked == whole[len(lines[:kept]) - 1 :]
    assert (tmp_path / "j").read_bytes() == (tmp_path / "whole").read_bytes()
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_goal_that_is_missed_writes_nothing_but_what_was_tried(tmp_path: Path, asked: list[Point]) -> None:
    recipe = tmp_path / "a.toml"
    done = sought(tmp_path, "--save-recipe", recipe, "--page", tmp_path / "p.html", code=1, budget="4")
    assert "failed: nothing that was tried reaches it" in done.out
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.onnx.partial", "net.onnx", "p.html"]
    assert "not met" in (tmp_path / "p.html").read_text(encoding="utf-8")
    assert not any(point.raised for point in asked), "there was no budget for it"
    assert "interrupted or missed its goal; --resume" in sought(tmp_path, code=2).error


def test_what_is_met_at_once_is_tried_no_further(tmp_path: Path, asked: list[Point]) -> None:
    """The later goal on the command line counts."""
    found = sought(tmp_path, "--goal", "sqnr >= 19", "--json").json["sought"]
    assert (found["met"], found["chosen"], len(found["trials"]), found["bound"]) == (True, 0, 1, 19.0)
    assert asked == [Point()]
    onnx.checker.check_model(onnx.load(tmp_path / "a.onnx"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.onnx", "net.onnx"]


def test_what_meets_it_on_the_samples_it_was_chosen_by_alone_is_not_taken(
    tmp_path: Path, asked: list[Point], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one that meets it is, and the figure that is told is of the others."""
    figures = [21.0, 22.25]

    def on_others(goal: Goal, *_: object) -> Fresh:
        figure = figures.pop(0)
        return Fresh(figure=figure, floating=None, margin=figure - goal.bound(None), samples=4, interval=(20.0, 30.0))

    monkeypatch.setattr(seeking, "on_others", on_others)
    found = sought(tmp_path, "--goal", "sqnr >= 21.5", "--json", samples=8).json["sought"]
    assert not figures
    trials = {trial["text"]: trial for trial in found["trials"]}
    assert (found["met"], found["figure"], found["figure_samples"]) == (True, 22.25, 4)
    assert found["trials"][found["chosen"]] == trials["--round-weights"]
    lucky = trials["--correct-bias"]
    assert (lucky["verdict"], lucky["lost"]) == ("close", "23.0: meets it by chance (21.0 on others)")


def test_the_interval_of_too_few_samples_is_unknown(tmp_path: Path, asked: list[Point]) -> None:
    told = sought(tmp_path, "--goal", "sqnr >= 19").out
    assert "met, 20, 95 % interval unknown (bound 19)" in told
    assert "chosen by 4 samples" in told
    assert "judged on" not in told
