"""Write one page of what is known of quantized models."""

from __future__ import annotations

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.render import Out, say
from qdqtool.verbs.story.report import Report
from qdqtool.verbs.work.reporting import Reported


@command_of(Report)
def report(out: Out, asked: Report) -> int:
    """Write one HTML page: what costs at the outputs and why, where nodes run, what to try next."""
    found = ran(out, asked, "pricing")
    out.result(found.to_json, lambda: _render(found))
    return 0


def _render(found: Reported) -> None:
    for model, explained in zip(found.models, found.explained, strict=True):
        noise = "exact" if explained.noise_db is None else f"{explained.noise_db:.2f} dB"
        told = next((one for one in explained.told if one.share > 0), None)
        worst = "" if told is None else f"; first to look at: {told.record.name}, {told.cause}"
        say(f"{model.label}: SQNR {noise} at the outputs{worst}")
    say(f"written: {found.written} ({len(found.page.encode()) / 1000:.0f} kB)")


command = report
