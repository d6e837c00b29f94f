"""Make a folder for an NPU of the float MODEL: clean, quantize, check, analyze, compare, simulate; exit 1 below a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.render import Out, say, table
from qdqtool.verbs.deploy import Deploy

if TYPE_CHECKING:
    from qdqtool.verbs.work.deployment import Deployment


@command_of(Deploy)
def deploy(out: Out, asked: Deploy) -> int:
    found = ran(out, asked, "deploying")
    for step, seconds in found.seconds.items():
        out.detail(f"{step}: {seconds:.1f} s")
    out.result(found.to_json, lambda: _render(found))
    return 1 if found.missed else 0


def _render(found: Deployment) -> None:
    for section in found.sections:
        if section.title:
            say(section.title)
        if section.columns:
            table(section.columns, section.rows)
        say()
    say(f"wrote {found.folder}")


command = deploy
