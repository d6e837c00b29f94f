"""Split the decoder MODEL into static prefill and decode graphs that share one weight file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click
from qdq_passes._lazy_dataclass import dataclass

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.render import Out, megabytes, plural, say, table
from qdqtool.cli.tables.verification import show_verification
from qdqtool.options import LAST, option
from qdqtool.verbs.groups import Tolerance
from qdqtool.verbs.split import Split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdqtool.llm.folder.folders import SplitFolder

#: Between the two names of a tensor of the cache.
ARROW = " → "


@dataclass(frozen=True, kw_only=True)
class SplitCommand(Split, Tolerance):
    """`Split` as a command."""

    verify: bool = option(
        False, "Compare teacher-forced logits with MODEL; exit 1 where they differ.", before="tolerance"
    )
    print_pipeline: bool = option(False, "Print the pipelines and stop.", before=LAST)


@command_of(SplitCommand)
def split(out: Out, asked: SplitCommand) -> int:
    from qdqtool.llm.plan.splitting import planned_for
    from qdqtool.llm.run.verifying import refuse_tolerance, verify_split

    if asked.specializations is not None:
        _refuse_both("specializations", SHAPES)
    if asked.print_pipeline:
        texts = planned_for(asked.model, asked.plan(), warn=out.warn).pipelines
        out.result({"pipelines": texts}, lambda: table(("graph", "pipeline"), list(texts.items())))
        return 0
    refuse_tolerance(asked.tolerance)
    done = ran(out, asked, "splitting")
    payload = done.to_json()
    checked = None
    if asked.verify:
        with out.progress("verifying") as tick:
            checked = verify_split(
                asked.output, asked.model, tolerance=asked.tolerance,
                progress=lambda done, total: tick("verifying", done, total),
            )  # fmt: skip
        payload["verification"] = checked.to_json()
    out.result(payload, lambda: _render(out, done))
    if checked is None:
        return 0
    if not (out.as_json or out.quiet):
        show_verification(checked)
    return 0 if checked.passed else 1


def _refuse_both(name: str, others: Iterable[str]) -> None:
    """Refuse options that a file's list of shapes takes the place of.

    Raises:
        click.UsageError: one of ``others`` was given beside ``name``.
    """
    context = click.get_current_context()
    for other in others:
        if context.get_parameter_source(other) == click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} lists the shapes: leave out --{other}")


#: Options that say the shapes, where no file does.
SHAPES = ("prefill", "decode", "context", "batch")


def _render(out: Out, done: SplitFolder) -> None:
    if out.verbose:
        table(("role", "name", "because"), list(done.roles))
    else:
        table(("role", "name"), _short(done.roles))
    say()
    rows = []
    for graph in done.graphs:
        one = graph.specialization
        nodes = " + ".join(str(part.nodes) for part in graph.parts)
        rows.append(
            (one.name, str(one.batch_size), str(one.seq_len), str(one.ctx_len), nodes, plural(len(graph.parts), "part"))
        )
    table(("graph", "rows", "tokens", "slots", "nodes", "files"), rows)
    if done.padding:
        say()
        table(
            ("prompts padded to", "padded ÷ real tokens", "tokens computed"),
            [(row.strategy, f"{row.waste:.3f}", str(row.padded)) for row in done.padding],
        )
    say(f"wrote {plural(len(done.files), 'file')} to {done.folder}, weights {megabytes(done.weight_bytes)}")


def _short(roles: Sequence[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """(role, name) of each input and output; of the cache its first and its last tensor."""
    cache = [(role, name) for role, name, _ in roles if ARROW in name]
    short = [(role, name) for role, name, _ in roles if ARROW not in name]
    left_out = [("…", f"{len(cache) - 2} more")] if len(cache) > 2 else []
    return [*short, *cache[:1], *left_out, *cache[1:][-1:]]


command = split
