"""The table of what `quantize --goal` tried, and why the rest lost."""

from __future__ import annotations

from typing import Any

from qdqtool.cli.render import EXACT, plural, say, table
from qdqtool.io.files.text_table import megabytes
from qdqtool.search.goal.trials import are_told_by_weights


def render_goal(sought: dict[str, Any]) -> None:
    """Show every trial, the chosen one marked; then whether the goal is met."""
    sized = are_told_by_weights(sought["trials"])
    rows = [_row(number, trial, sought, sized) for number, trial in enumerate(sought["trials"])]
    time = ("ms",) if any(trial["ms"] is not None for trial in sought["trials"]) else ()
    table(
        ("", "tried", sought["metric"], "weights" if sized else "MACs in 8 bit", "refused", *time, "why it lost"), rows
    )
    say()
    best, figure = sought["trials"][sought["chosen"]], sought["figure"]
    floating = "" if sought["float"] is None else f", float {sought['float']:.6g}"
    reached = f"{'met' if sought['met'] else 'not met'}, {EXACT if figure is None else format(figure, '.6g')}"
    work = f"{plural(len(sought['trials']), 'trial')}, {sought['units']:.1f} quantizations' work"
    judged = plural(sought["samples"], "sample")
    judged = f"{best['samples']} of {judged}" if 0 < best["samples"] < sought["samples"] else judged
    judged = f"chosen by {judged}" + (
        f", judged on {sought['figure_samples']} others" if sought["figure_samples"] else ""
    )
    judged += " held out of --data" if sought["hold_out"] else ""
    if sought["interval"] is not None:
        reached += ", 95 % interval {:.6g} to {:.6g}".format(*sought["interval"])
    elif figure is not None:
        reached += ", 95 % interval unknown"
    say(f"{sought['goal']}: {reached} (bound {sought['bound']:.6g}{floating}); {work}, {judged}")
    if not sought["met"]:
        _render_failure(sought, best)


def _render_failure(sought: dict[str, Any], best: dict[str, Any]) -> None:
    """Why nothing is written, and what to do."""
    more = "give a larger --budget" + (f" with --resume {sought['resume']}" if sought["resume"] else "")
    if sought["max_ms"] is not None and (best["ms"] or 0) > sought["max_ms"]:
        say(
            f"failed: a run takes {best['ms']:.4g} ms, over {sought['max_ms']:.4g}; give a larger --max-ms, or another --preset"
        )
    elif best["verdict"] == "close":
        given = "judge on more with --eval-samples" if sought["capped"] else "give more as --eval-data"
        paired = (
            ", or a bound that is relative to float" if sought["float"] is None and sought["metric"] != "sqnr" else ""
        )
        say(
            "failed: it meets the bound, but so few samples do not tell that from chance, and nothing is written; "
            f"{given}{paired}"
        )
    elif not sought["reachable"]:
        say("failed: the float model does not reach it either, and nothing is written; ask for less")
    else:
        say(f"failed: nothing that was tried reaches it, and nothing is written; {more}, or another --preset")


def _row(number: int, trial: dict[str, Any], sought: dict[str, Any], sized: bool) -> tuple[object, ...]:
    figure: object = "" if trial["reason"] else EXACT if trial["figure"] is None else round(trial["figure"], 4)
    if 0 < trial["samples"] < sought["samples"]:
        figure = f"{figure} on {trial['samples']}"
    share = "" if trial["cost"] is None else f"{trial['cost']['share_8_bit']:.1%}"
    share = megabytes(trial["weight_bytes"]) if sized and share else share
    mark = "*" if number == sought["chosen"] else ""
    time = () if trial["ms"] is None else (f"{trial['ms']:.4g}",)
    return mark, f"{trial['text']} ({trial['why']})", figure, share, str(trial["refused"]), *time, trial["lost"]
