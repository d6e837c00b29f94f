"""Compare the static graphs in DIR with the dynamic MODEL they were made of: teacher-forced logits; exit 1 where they differ."""

from __future__ import annotations

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.render import Out
from qdqtool.cli.tables.verification import show_verification
from qdqtool.verbs.verify import Verify


@command_of(Verify)
def verify(out: Out, asked: Verify) -> int:
    found = ran(out, asked, "verifying")
    out.result(found.to_json(), lambda: show_verification(found))
    return 0 if found.passed else 1


command = verify
