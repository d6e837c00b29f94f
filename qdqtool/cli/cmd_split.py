"""Split the decoder MODEL into static prefill and decode graphs that share one weight file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.options import command, model_argument
from qdqtool.cli.render import Out, megabytes, plural, say, table
from qdqtool.cli.verification import lengths, show_verification, tolerance_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdqtool.llm.folder.folders import SplitFolder

#: Between the two names of a tensor of the cache.
ARROW = " → "


def _numbers(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    """``"128,512"`` → (128, 512); empty for ``none``."""
    return () if text == "none" else lengths(context, parameter, text) or ()


def _bytes(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """``"4GB"`` → 4,000,000,000; plain numbers are bytes; KiB, MiB, GiB are powers of two."""
    if text is None:
        return None
    units = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
    digits = text.rstrip("bBkKmMgGiI ")
    unit = text[len(digits) :].strip().lower()
    try:
        size = int(float(digits) * units[unit])
    except (ValueError, KeyError):
        raise click.BadParameter(f"{text!r} is no size; write 4GB, 3500MiB or a number of bytes") from None
    if size < 1:
        raise click.BadParameter(f"{text!r} is no size of a part")
    return size


@command()
@model_argument
@click.option("-o", "--output", metavar="DIR", required=True, help="Folder for the graphs, the weights, the manifest.")
@click.option("--overwrite", is_flag=True, help="Replace what an earlier split wrote to DIR.")
@click.option(
    "--prefill",
    default="128",
    show_default=True,
    metavar="S,…",
    callback=_numbers,
    help="Tokens of one prefill run, one graph each; `none` for no prefill.",
)
@click.option(
    "--decode", default="1", show_default=True, metavar="S,…", callback=_numbers, help="Tokens of one decode run."
)
@click.option(
    "--context",
    default="1024",
    show_default=True,
    metavar="C,…",
    callback=_numbers,
    help="Slots of the KV cache (buckets).",
)
@click.option("--batch", default="1", show_default=True, metavar="B,…", callback=_numbers, help="Rows of one run.")
@click.option(
    "--specializations",
    metavar="FILE",
    help="Any list of (batch_size, seq_len, ctx_len) instead, as DIR/specializations.json or the two forms of Cloud AI hold it.",
)
@click.option(
    "--layout",
    type=click.Choice(["in-place", "slide"]),
    default="in-place",
    show_default=True,
    help="The graph writes new keys and values into the cache, or gives them out and the host slides the cache.",
)
@click.option(
    "--scatter",
    type=click.Choice(["scatter-elements", "scatter-nd", "tensor-scatter"]),
    default="scatter-elements",
    show_default=True,
    help="The operator that writes in place; tensor-scatter raises the model to opset 24.",
)
@click.option(
    "--mask",
    type=click.Choice(["input", "graph"]),
    default="input",
    show_default=True,
    help="The attention mask is a float input, or is made on the graph from the positions.",
)
@click.option("--all-logits", is_flag=True, help="Logits of every position come out, not of the last one alone.")
@click.option(
    "--decompose", is_flag=True, help="Fused attention, norms and rotary embeddings become standard operators."
)
@click.option(
    "--tabulate-angles",
    is_flag=True,
    help="Cosines and sines of positions from a table: angles fit no 16-bit float.",
)
@click.option(
    "--naming",
    default="exported",
    show_default=True,
    metavar="NAME",
    help="Names of inputs and outputs: exported, genai, cloud-ai, ane (`list namings`), or a TOML file.",
)
@click.option("--parts", type=click.IntRange(min=1), metavar="N", help="Cut the layers into N consecutive graphs.")
@click.option(
    "--max-part-bytes",
    metavar="SIZE",
    callback=_bytes,
    help="Cut so that weights and cache of a graph take at most SIZE, as in 4GB.",
)
@click.option("--tokenizer", metavar="FILE|DIR", help="Tokenizer to copy along; by default what lies beside MODEL.")
@click.option(
    "--prompt-lengths",
    metavar="N,…",
    callback=_numbers,
    help="State the padding that these buckets cost for prompts so long.",
)
@click.option("--verify", is_flag=True, help="Compare teacher-forced logits with MODEL; exit 1 where they differ.")
@tolerance_option
@click.option("--print-pipeline", is_flag=True, help="Print the pipelines and stop.")
def split(
    out: Out, model: str, output: str, print_pipeline: bool, verify: bool, tolerance: float, **options: Any
) -> int:
    """Split the decoder MODEL into static prefill and decode graphs that share one weight file."""
    from qdqtool import api
    from qdqtool.llm.plan.planning import PLANNED, planned, planned_for
    from qdqtool.llm.run.verifying import refuse_tolerance, verify_split

    if options["specializations"] is not None:
        _refuse_both("specializations", SHAPES)
    if print_pipeline:
        plan = planned_for(model, planned(**{key: options[key] for key in PLANNED}), warn=out.warn)
        texts = plan.pipelines
        out.result({"pipelines": texts}, lambda: table(("graph", "pipeline"), list(texts.items())))
        return 0
    refuse_tolerance(tolerance)
    with out.progress("splitting") as tick:
        done = api.split(model, output, progress=tick, warn=out.warn, **options)
    payload = done.to_json()
    checked = None
    if verify:
        with out.progress("verifying") as tick:
            checked = verify_split(
                output, model, tolerance=tolerance, progress=lambda done, total: tick("verifying", done, total)
            )
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
