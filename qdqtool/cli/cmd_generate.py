"""Run the language model in DIR, which `split` wrote, on a prompt: text as it comes, and tokens a second."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.render import Out, say, tell
from qdqtool.cli.tables.placement import show_devices
from qdqtool.options import option
from qdqtool.verbs.generate import Generate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qdqtool.llm.run.chat import Chat, Generated


@dataclass(frozen=True, kw_only=True)
class GenerateCommand(Generate):
    """`Generate` as a command."""

    interactive: bool = option(
        False, "Read a prompt from each line of the input; each goes on behind the last.", before="max_new"
    )
    turn: str = option(
        "{}",
        "What a line of --interactive becomes, {} its text, \\n a new line.",
        value="TEXT",
        shown=True,
        before="max_new",
    )
    placement: bool = option(False, "Of a device, show where operators run, and why not on the NPU.", before="trace")


@command_of(GenerateCommand)
def generate(out: Out, asked: GenerateCommand) -> int:
    prompts = [*(asked.prompt or ()), *(asked.prompt_ids or ())]
    if asked.interactive:
        if prompts or out.as_json or out.json_out:
            raise click.UsageError(
                "--interactive reads its prompts, and prints text only: no --prompt, --prompt-ids, --json"
            )
        if asked.trace is not None or asked.placement or asked.chip is not None:
            raise click.UsageError("--interactive has no --trace, no --placement and no --chip: give --prompt")
        return _talk(out, asked)
    if asked.placement and not asked.is_on_device:
        raise click.UsageError("--placement is of a device: give --device npusim --target NAME")
    is_shown = not (out.as_json or out.quiet) and len(prompts) == 1
    found = ran(out, replace(asked, on_text=partial(say, lines=True, end="") if is_shown else None), "verifying")
    if is_shown:
        say()

    def render() -> None:
        if not is_shown:
            _rows(found)
        show_devices(found, everything=asked.placement or out.verbose)

    out.result(found.to_json(), render)
    _report(out, found)
    if asked.trace is not None:
        out.note(f"wrote the timeline: {asked.trace}")
    return 0


def _talk(out: Out, asked: GenerateCommand) -> int:
    """Turns until the input ends. What does not fit is told, and the next line may."""
    from qdqtool.llm.run.chat import Chat

    asked.sampling(asked.seed)
    with out.progress("verifying") as tick:
        session = replace(asked, progress=lambda done, total: tick("verifying", done, total)).session()
    chat = Chat(session)
    _ = chat.tokenizer
    out.note("a line is a prompt; /reset forgets all, /exit or the end of the input ends")
    for number, line in enumerate(_lines(out)):
        if line == "/reset":
            session.reset()
            continue
        text = asked.turn.replace("\\n", "\n").replace("{}", line)
        try:
            found = chat.turn(
                [text], max_new=asked.max_new, sampling=asked.sampling(asked.seed + number), eos=asked.eos,
                cache=asked.cache, warm_up=asked.warm_up and not session.runs, on_text=partial(say, lines=True, end=""),
            )  # fmt: skip
        except UsageError as error:
            tell(f"error: {error}")
            continue
        say()
        _report(out, found, chat)
    return 0


def _lines(out: Out) -> Iterator[str]:
    while True:
        if not out.quiet and sys.stdin.isatty():
            click.echo("> ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line or line.strip() == "/exit":
            return
        if line.strip():
            yield line.rstrip("\n")


def _rows(found: Generated) -> None:
    """What several prompts became."""
    for row, tokens in enumerate(found.generation.tokens):
        say(" ".join(map(str, tokens)) if found.texts is None else found.texts[row], lines=True)


def _report(out: Out, found: Generated, chat: Chat | None = None) -> None:
    """How long it took, on stderr."""
    run = found.generation
    parts = [_speed(f"{run.prompt_tokens} prompt tokens", run.prefill_s, run.prefill_tokens_per_s)]
    parts.append(_speed(f"{run.new_tokens} new", run.decode_s, run.decode_tokens_per_s))
    if found.warm_up_s is not None:
        parts.append(f"warm-up {found.warm_up_s:.2f} s")
    if not run.cached:
        parts.append("no cache: the whole text again for each token")
    used = f", {chat.session.length} of {chat.session.context} tokens used" if chat is not None else ""
    out.note("; ".join(parts) + used)
    names = ", ".join(f"{name} × {count}" for name, count in sorted(run.runs.items()))
    out.detail(f"ran {names}; {run.padded_tokens} tokens computed beyond the text; context {run.context}")


def _speed(what: str, seconds: float, rate: float | None) -> str:
    return f"{what} in {seconds:.3g} s" + (f" ({rate:,.1f} a second)" if rate is not None else "")


command = generate
