"""How a command shows its help: options under headings where it has many, examples, and the page of the docs that tells more."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from qdqtool.options import Use

#: Options from which they stand under headings.
MANY = 30
#: Heading of options that say none: of a command's own, and of those that every command has.
OWN, COMMON = "Options", "Every command"
#: Where the docs are: beside the package in a clone, or on the site.
CLONE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SITE = "https://qdqtool.github.io/qdqtool/"
#: The page of the tool itself.
START = "index.md"
#: Command → page in ``docs`` that tells more; of ``qdq``, ``encodings`` and ``llm`` that of the group.
PAGES = {
    "analyze": "simulated_npu.md", "calibrate": "quantizing.md", "calibrate-chip": "own_chip.md",
    "check": "editing_qdq.md", "compare": "comparing.md",
    "compile": "simulated_npu.md", "convert-opset": "writing_a_pass.md", "diff": "editing_qdq.md", "demo": "quantizing.md",
    "debug": "finding_what_hurts.md", "deploy": "deploying.md", "encodings": "quantizing.md", "estimate": "chips.md",
    "explain": "explaining.md", "report": "explaining.md",
    "externalize": "editing_qdq.md",
    "extract": "finding_what_hurts.md", "fix-shapes": "prefill_and_decode.md", "generate": "prefill_and_decode.md",
    "inspect": "editing_qdq.md", "list": "reference/catalogue.md", "llm": "prefill_and_decode.md", "lower": "npu_program.md",
    "match": "editing_qdq.md", "mixed-precision": "finding_what_hurts.md", "opt": "writing_a_pass.md",
    "plan": "deployment_plan.md", "qdq": "editing_qdq.md", "quantize": "quantizing.md", "rename": "editing_qdq.md",
    "sensitivity": "finding_what_hurts.md", "simplify": "reference/catalogue.md", "simulate": "simulated_npu.md",
    "split": "prefill_and_decode.md", "view": "overlay.md",
}  # fmt: skip


class Option(click.Option):
    """An option that says under which heading it stands.

    Args:
        section: the heading.
    """

    def __init__(self, *args: Any, section: str = OWN, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section or OWN


class Command(click.Command):
    """A command of ours.

    Attributes:
        examples: command lines, without the name of the tool.
        uses: of one that is written by hand, what becomes of the files that its options name; None: the verb says it.
    """

    examples: tuple[str, ...] = ()
    uses: Mapping[str, Use] | None = None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One list; of many options one for each heading, in the order in which they come up, what every command has last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            shown = each.get_help_record(ctx) if isinstance(each, click.Option) else None
            if shown is not None:
                sections.setdefault(each.section if isinstance(each, Option) else COMMON, []).append(shown)
        if sum(map(len, sections.values())) < MANY:
            super().format_options(ctx, formatter)
            return
        for heading in sorted(sections, key=lambda each: each == COMMON):
            with formatter.section(heading):
                formatter.write_dl(sections[heading])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples as they are typed, and the page."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}qdqtool {example}\n")
        write_page(ctx, formatter)


def write_page(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """The page that tells more of the command of ``ctx``; nothing of one that another package brings."""
    words = ctx.command_path.split()
    page = PAGES.get(words[1]) if len(words) > 1 else START
    if page is not None:
        formatter.write_paragraph()
        formatter.write(f"More: {_place(page)}\n")


def _place(page: str) -> str:
    """Where ``page`` is: a file of the clone that we run in, else on the site."""
    is_here = os.path.isfile(os.path.join(CLONE, "docs", page))
    return f"docs/{page}" if is_here else f"{SITE}{page.removesuffix('.md').removesuffix('index')}"
