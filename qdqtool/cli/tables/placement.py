"""Tables of where a language model ran, and when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qdq_passes.errors import visible

from qdqtool.cli.render import plural, say, table

if TYPE_CHECKING:
    from qdq_passes.npu.units.verdict import PlacedUnit

    from qdqtool.llm.run.chat import Generated
    from qdqtool.llm.run.devices import GraphPlacement

#: Names of operators in one line.
NAMES = 3


def show_devices(found: Generated, *, everything: bool) -> None:
    """Where the operators of each graph ran, and the timeline of both phases."""
    if found.timeline is None:
        return
    say()
    rows = [
        (p.graph, engine, count, p.macs[engine] / 1e6, p.stages if place == 0 else None)
        for p in found.placements
        for place, (engine, count) in enumerate(p.nodes.items())
    ]
    table(("graph", "engine", "operators", "MMACs", "stages"), rows)
    shown: dict[str, str] = {}
    for placement in found.placements:
        share = placement.npu_macs_share
        if share is not None:
            say(f"{placement.graph}: {100 * share:.1f} % of the MACs on the NPU")
        for note in placement.notes:
            say(f"{placement.graph}: {note}")
        if everything:
            lines = "\n".join(map(visible, _reasons(placement)))
            say(f"    CPU  as in {shown[lines]}" if lines in shown else lines, lines=True)
            shown.setdefault(lines, placement.graph)
    _show_timeline(found.timeline)


def _reasons(placement: GraphPlacement) -> Iterator[str]:
    """Two or three lines for the operators of a kind that one rule leaves to the CPU, the most frequent first."""
    groups: dict[tuple[str, str], list[PlacedUnit]] = {}
    for unit in placement.units:
        if unit.rule:
            groups.setdefault((unit.rule, unit.op), []).append(unit)
    for (rule, op), units in sorted(groups.items(), key=lambda item: -len(item[1])):
        more = f" and {len(units) - NAMES} more" if len(units) > NAMES else ""
        yield f"    CPU  {len(units)} × {op}  [{rule}]  {', '.join(unit.name for unit in units[:NAMES])}{more}"
        yield f"        {units[0].reason}"
        if units[0].suggestion:
            yield f"        → {units[0].suggestion} (not tried)"


def _show_timeline(timeline: dict[str, Any]) -> None:
    say()
    chip = timeline.get("chip")
    place = "the target" if chip is None else f"{chip['chip']} with {chip['stack']}, {chip['precision']}"
    say(f"estimate for {place}, {timeline['schedule']}; nothing of it was measured")
    rows = [
        (
            phase["phase"], phase["runs"], engine, figures["tasks"], figures["busy_us"], 100 * figures["utilisation"],
            phase["estimated_us"], phase["in_order_us"], phase["out_of_order_us"],
        )
        for phase in timeline["phases"]
        for engine, figures in phase["engines"].items()
    ]  # fmt: skip
    table(("phase", "runs", "engine", "tasks", "busy µs", "utilisation %", "µs", "in order", "out of order"), rows)
    for phase in timeline["phases"]:
        if "low_us" in phase:
            low, us, high = (phase[key] / phase["runs"] / 1000 for key in ("low_us", "estimated_us", "high_us"))
            say(f"{phase['phase']}: about {us:.4g} ms a run, 80 % of measurements between {low:.4g} and {high:.4g}")
    for text in (*chip["widens"], *chip["notes"]) if chip else ():
        say(f"- {text}")
    walls = ", ".join(f"{phase['phase']} {phase['wall_s']:.3g} s" for phase in timeline["phases"])
    say(
        f"wall time of {plural(len(timeline['phases']), 'phase')} on this machine: {walls}; it says nothing about the target"
    )
