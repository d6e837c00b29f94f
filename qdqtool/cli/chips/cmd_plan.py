"""Say what a decoder takes on a chip: memory, first token, tokens a second; and the commands that make the best of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.render import Out, plural, say, table
from qdqtool.verbs.plan import NO_MODEL, Plan

if TYPE_CHECKING:
    from qdqtool.cost.plan_page import PlanReport

#: Options that are shown where nothing fits.
SHOWN = 5


@command_of(Plan)
def plan(out: Out, asked: Plan) -> int:
    """Say what a decoder takes on a chip, and the commands that make the best of it; exit 1 where nothing keeps the limits."""
    found = ran(out, asked, "planning")
    out.result(found.to_json, lambda: _render(out, asked, found))
    return 0 if found.best is not None else 1


def _render(out: Out, asked: Plan, found: PlanReport) -> None:
    question = found.asked
    say(f"{question.shape.name} on {question.chip.name}, {question.profile.stack}; answers of {question.new} tokens")
    say()
    everything = out.verbose or bool(asked.what_if)
    rows = [one for one in found.rows if everything or one.front or one == found.best]
    table(found.columns, [found.row(one) for one in rows or found.rows[:SHOWN]])
    if not everything and len(rows or found.rows[:SHOWN]) < len(found.rows):
        say(f"{plural(len(found.rows), 'option')}; -v shows all")
    say()
    if found.best is None:
        say("nothing fits and keeps the limits")
    elif found.commands:
        say("the best:" if found.is_runnable else f"the best, with your model in the place of {NO_MODEL}:")
        for line in found.commands:
            say(f"    {line}")
    if found.best is None or found.commands:
        say()
    for note in found.notes:
        say(note)
    if asked.html is not None:
        say(f"wrote {asked.html}")


command = plan
