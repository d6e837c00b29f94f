"""Run the language model in DIR, which `split` wrote, on a prompt: text as it comes, and tokens a second."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.device_options import DEVICE_OPTIONS, device_options, show_devices
from qdqtool.cli.options import command
from qdqtool.cli.render import Out, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qdqtool.llm.run.chat import Chat, Generated


@command()
@click.argument("folder", metavar="DIR")
@click.option("--prompt", multiple=True, metavar="TEXT", help="The prompt (repeat for a batch).")
@click.option("--prompt-ids", multiple=True, metavar="1,2,3", help="The prompt as tokens (repeat for a batch).")
@click.option(
    "--interactive", is_flag=True, help="Read a prompt from each line of the input; each goes on behind the last."
)
@click.option(
    "--turn", metavar="TEXT", default="{}", show_default=True,
    help="What a line of --interactive becomes, {} its text, \\n a new line.",
)  # fmt: skip
@click.option(
    "--max-new", type=click.IntRange(min=1), metavar="N", help="New tokens at most; by default 128, or what fits."
)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 takes the most likely token.")
@click.option(
    "--top-k", type=int, default=0, show_default=True, metavar="K", help="Draw among the K most likely; 0: all."
)
@click.option(
    "--top-p", type=float, default=1.0, show_default=True, metavar="P", help="... among those that reach probability P."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Equal seeds draw equal tokens.")
@click.option("--eos", metavar="1,2", help="Tokens that end a text, instead of the model's; `none` for none.")
@click.option("--no-cache", is_flag=True, help="Run the whole text again for each token: shows what the cache buys.")
@click.option("--no-warm-up", is_flag=True, help="Start the clock at once: opening the graphs counts.")
@click.option("--no-verify", is_flag=True, help="Do not compare the files with the hashes of the manifest first.")
@device_options
@click.option("--placement", is_flag=True, help="Of a device, show where operators run, and why not on the NPU.")
@click.option("--trace", metavar="FILE", help="Of a device, write a timeline (JSON, for chrome://tracing or Perfetto).")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--threads",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Threads inside an operator; 0: onnxruntime's choice.",
)
def generate(
    out: Out, folder: str, prompt: tuple[str, ...], prompt_ids: tuple[str, ...], interactive: bool, turn: str,
    eos: str | None, no_cache: bool, no_warm_up: bool, no_verify: bool, placement: bool, trace: str | None, overwrite: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Run the language model in DIR on a prompt, token by token.

    The text goes to stdout as it comes; how long it took to stderr. Without a tokenizer.json in DIR tokens are shown as numbers.
    """
    from qdqtool.llm.run.devices import names_plain
    from qdqtool.llm.run.running import generate as run

    ends = None if eos is None else [] if eos == "none" else _ids("--eos", eos)
    common = {"eos": ends, "cache": not no_cache, **options}
    if interactive:
        if prompt or prompt_ids or out.as_json or out.json_out:
            raise click.UsageError(
                "--interactive reads its prompts, and prints text only: no --prompt, --prompt-ids, --json"
            )
        if trace is not None or placement:
            raise click.UsageError("--interactive has no --trace and no --placement")
        return _talk(out, folder, turn, verify=not no_verify, warm_up=not no_warm_up, **common)
    if placement and names_plain(options["device"], options["prefill_device"], options["decode_device"]):
        raise click.UsageError("--placement is of a device: give --device npusim --target NAME")
    given: dict[str, Any] = {"prompt": list(prompt) or None}
    given["prompt_ids"] = [_ids("--prompt-ids", text) for text in prompt_ids] or None
    is_shown = not (out.as_json or out.quiet) and len(prompt) + len(prompt_ids) == 1
    with out.progress("verifying") as tick:
        found = run(
            folder, **given, **common, warm_up=not no_warm_up, verify=not no_verify, on_text=_show if is_shown else None,
            progress=lambda done, total: tick("verifying", done, total), trace=trace, overwrite=overwrite,
        )  # fmt: skip
    if is_shown:
        say()

    def render() -> None:
        if not is_shown:
            _rows(found)
        show_devices(found, everything=placement or out.verbose)

    out.result(found.to_json(), render)
    _report(out, found)
    if trace is not None:
        out.note(f"wrote the timeline: {trace}")
    return 0


def _talk(
    out: Out, folder: str, form: str, *, verify: bool, warm_up: bool, threads: int, **options: Any
) -> int:  # fmt: skip
    """Turns until the input ends. What does not fit is told, and the next line may."""
    from qdq_passes.errors import UsageError

    from qdqtool.llm.run.chat import Chat
    from qdqtool.llm.run.generating import Sampling
    from qdqtool.llm.run.session import Session

    how = {key: options.pop(key) for key in ("temperature", "top_k", "top_p")}
    devices = {key: options.pop(key) for key in DEVICE_OPTIONS}
    seed = options.pop("seed")
    Sampling(**how, seed=seed)
    with out.progress("verifying") as tick:
        session = Session(
            folder, threads=threads, verify=verify, progress=lambda done, total: tick("verifying", done, total), **devices
        )  # fmt: skip
    chat = Chat(session)
    _ = chat.tokenizer
    out.note("a line is a prompt; /reset forgets all, /exit or the end of the input ends")
    for number, line in enumerate(_lines(out)):
        if line == "/reset":
            session.reset()
            continue
        text = form.replace("\\n", "\n").replace("{}", line)
        try:
            found = chat.turn(
                [text], sampling=Sampling(**how, seed=seed + number), warm_up=warm_up and not session.runs, on_text=_show,
                **options,
            )  # fmt: skip
        except UsageError as error:
            click.echo(f"error: {error}", err=True)
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


def _ids(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise click.UsageError(f"{option} {text!r} is no list of tokens; write 1,2,3") from None


def _show(text: str) -> None:
    """A piece of text on stdout at once. When its reader went away, the rest is dropped."""
    try:
        click.echo(text, nl=False)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _rows(found: Generated) -> None:
    """What several prompts became."""
    for row, tokens in enumerate(found.generation.tokens):
        say(" ".join(map(str, tokens)) if found.texts is None else found.texts[row])


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
