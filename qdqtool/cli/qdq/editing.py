"""What the commands that edit pairs have in common: their options, and how their passes run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.options import allow_empty_option, load_model, model_argument, output_options, select_option, stack
from qdqtool.cli.render import Out

if TYPE_CHECKING:
    from qdqtool.cli.saving import Saved

#: A pass by name, with its options.
Step = tuple[str, Mapping[str, Any]]

record_option = click.option(
    "--record",
    metavar="FILE",
    help="Append the edit to this TOML script, which `opt -p @FILE` replays to the same bytes.",
)
findings_option = click.option(
    "--allow-findings", is_flag=True, help="Save although the model has errors that it came with."
)
edit_options = stack(model_argument, output_options, record_option, select_option, allow_empty_option, findings_option)
all_option = click.option("--all", "everything", is_flag=True, help="Everything, instead of --select.")
boundaries_option = click.option(
    "--boundaries/--no-boundaries", default=True, show_default=True,
    help="Where tensors of one width meet operators of another, insert the converting pair.",
)  # fmt: skip


def selected(
    out: Out, where: str, model: str, select: tuple[str, ...], *, everything: bool, allow_empty: bool
) -> dict[str, Any]:
    """The pass option ``select`` of ``--select`` or ``--all``.

    Raises:
        UsageError: neither or both are given.
    """
    if bool(select) == everything:
        raise click.UsageError(f"{where}: give either --select or --all")
    return optionally_selected(out, model, select, allow_empty=allow_empty)


def optionally_selected(out: Out, model: str, select: tuple[str, ...], *, allow_empty: bool) -> dict[str, Any]:
    """The pass option ``select`` of ``--select``; none given denotes everything.

    With ``allow_empty`` texts that match nothing are a warning and left out.
    """
    if not select:
        return {}
    if not allow_empty:
        return {"select": list(select)}
    from qdq_passes.errors import UsageError
    from qdq_passes.select.selectors import NONE, Selector
    from qdq_passes.select.selectors import select as evaluate

    graph, kept = load_model(model), []
    for text in select:
        try:
            evaluate(graph, Selector.of(text))
            kept.append(text)
        except UsageError as error:
            out.warn(str(error))
    return {"select": kept or list(NONE.texts)}


def run_edit(out: Out, model: str, steps: Sequence[Step], **saving: Any) -> Saved:
    """Run ``steps`` on ``model``, save, show what was done and return it; a description that the model has is written anew.

    ``saving``: the options of `edit_options`, and of `run_and_save`.
    """
    from qdq_passes.graph.uses import all_nodes, all_values
    from qdq_passes.pipeline.pipeline import Pipeline, parse_pipeline
    from qdq_passes.pipeline.text import make_pass
    from qdq_passes.qdq.edit.display import is_described

    from qdqtool.cli.saving import run_and_save, show_report
    from qdqtool.io.models.working import repair_warnings, repairs_of

    output = saving.pop("output")
    graph = load_model(model)
    repairs = repairs_of(graph)
    for text in repair_warnings(repairs):
        out.warn(text)
    last: list[Step] = [("describe-encodings", {})] if is_described([*all_nodes(graph), *all_values(graph)]) else []
    first = parse_pipeline(",".join(repairs)).passes if repairs else ()
    pipeline = Pipeline((*first, *(make_pass(name, dict(options)) for name, options in [*steps, *last])))
    saved = run_and_save(out, model, output, pipeline, **saving)
    show_report(out, saved, idle=False)
    return saved
