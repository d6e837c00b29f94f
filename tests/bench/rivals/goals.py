"""`quantize --goal` against the best that other quantizers make of five nets: `python -m tests.bench.rivals.goals [NET… TARGET…]`.

Their figures stand in `tests/data/rivals.json` (`README.md` says how they were made). Of each family the setting with the best figure
counts, picked on the test samples; the goal is that figure, in the form that follows the float model (``accuracy >= 0.997 * float``), so
that the interval is of the difference. A row is

    met      what the search chose reaches their figure, and not by chance, at no more multiply-accumulates outside of 8 bit
    reached  of what it tried something reaches their figure at no more of them: an equal figure on few samples is no proof
    below    nothing that it tried does; the best of no more of them is shown

Theirs may lie above the float model's: the best of some fifty settings on a few hundred samples does so by luck. It is asked for all the
same, and the row says by how many samples it is missed."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qdqtool.search.goal.trials import Trial
from qdqtool.verbs.goals.quantize_to_goal import quantize_to_goal
from qdqtool.verbs.work.goals.seeking import Sought
from tests.bench.rivals.judge import NETS

RIVALS = Path(__file__).parents[2] / "data" / "rivals.json"
#: Target → the family of settings that it is compared with.
TARGETS = {"vitis_xint8": "xint8", "generic_int8": "int8", "qnn_htp": "int8"}
BUDGET = 15


@dataclass(frozen=True, kw_only=True)
class Row:
    """One net on one target: figures and shares of the multiply-accumulates outside of 8 bit."""

    net: str
    target: str
    floating: float
    setting: str
    theirs: float
    their_share: float
    ours: float
    our_share: float
    said: str
    verdict: str
    trials: int
    units: float

    @property
    def holds(self) -> bool:
        """Whether theirs is reached at no higher share, within the budget."""
        return not self.verdict.startswith("below") and self.units <= BUDGET

    @property
    def text(self) -> str:
        """As a row of a table."""
        return (
            f"| {self.net} | `{self.target}` | {self.floating:.4f} | {self.theirs:.4f} ({self.setting}) | {self.their_share:.1%} | "
            f"{self.ours:.4f} (`{self.said}`) | {self.our_share:.1%} | {self.trials}, {self.units:.1f} | {self.verdict} |"
        )


def best(settings: Mapping[str, Mapping[str, float]]) -> str:
    """The setting with the best figure, of equal ones the one with the most in 8 bit."""
    return min(settings, key=lambda name: (-settings[name]["figure"], settings[name]["outside_8_bit"], name))


def rows(only: Sequence[str] = ()) -> Iterator[Row]:
    """Search for each net on each target."""
    recorded = json.loads(RIVALS.read_text(encoding="utf-8"))["nets"]
    for name, net in NETS.items():
        for target, family in TARGETS.items():
            wanted = [one for one in only if one in NETS], [one for one in only if one in TARGETS]
            if (wanted[0] and name not in wanted[0]) or (wanted[1] and target not in wanted[1]):
                continue
            setting, floating = best(recorded[name][family]), recorded[name]["float"]
            theirs = recorded[name][family][setting]
            factor = math.floor(theirs["figure"] / floating * 1e5) / 1e5  # not a hair above theirs
            goal = f"{net.metric.rpartition(':')[2]} >= {factor} * float"
            done = quantize_to_goal(
                net.model, target=target, data=str(net.calibration), eval_data=str(net.test), goal=goal, budget=BUDGET,
                metric=None if net.metric == "accuracy" else net.metric,
            )  # fmt: skip
            assert done.sought is not None
            yield judged(done.sought, name, target, setting, theirs)


def judged(sought: Sought, net: str, target: str, setting: str, theirs: Mapping[str, float]) -> Row:
    """How a search stands to ``theirs``."""
    assert sought.floating is not None

    def figure(trial: Trial) -> float:
        assert sought.floating is not None
        found = trial.measured.figure
        return sought.floating if found is None else found

    def share(trial: Trial) -> float:
        return 1 - trial.measured.cost.share_8_bit

    def is_whole(trial: Trial) -> bool:
        standing = trial.measured.standing
        return standing is not None and (standing.samples == sought.samples or standing.is_proven)

    plain = sought.trials[0]
    fair = [
        trial for trial in sought.trials
        if is_whole(trial) and share(trial) <= theirs["outside_8_bit"] + 1e-6 and not trial.unwanted(plain)
    ]  # fmt: skip
    ours = sought.chosen if sought.is_met and sought.chosen in fair else max(fair, key=figure, default=plain)
    less = (theirs["figure"] - figure(ours)) * sought.samples
    verdict = "reached" if ours in fair and less < 1e-3 else f"below by {less:.3g} of {sought.samples} samples"
    return Row(
        net=net, target=target, floating=sought.floating, setting=setting, theirs=theirs["figure"],
        their_share=theirs["outside_8_bit"], ours=figure(ours), our_share=share(ours), said=ours.candidate.text,
        verdict="met" if verdict == "reached" and ours is sought.chosen and sought.is_met else verdict,
        trials=len(sought.trials), units=sought.units,
    )  # fmt: skip


def main(*only: str) -> None:
    """Print the table."""
    print("| net | target | float | theirs | outside 8 bit | ours | outside 8 bit | trials, units | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows(only):
        print(row.text, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
