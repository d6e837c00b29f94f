"""Run MODEL over --data and write the ranges of its tensors; or merge ranges: --merge A.json B.json -o R.json."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.options import (
    allow_empty_option,
    command,
    data_options,
    image_settings,
    select_option,
    tokenizer_option,
    worker_options,
)
from qdqtool.cli.render import Out, plural, say

if TYPE_CHECKING:
    from qdqtool.calibrate.ranges import Ranges


@command()
@click.argument("model", metavar="MODEL", required=False)
@click.option("-o", "--output", metavar="FILE", required=True, help="Where to write the ranges (JSON).")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--method", default="minmax", show_default=True, metavar="NAME", help="Calibration method (`list methods`)."
)
@click.option(
    "--method-option",
    "method_options",
    multiple=True,
    metavar="K=V",
    help="Option of the method (repeat): percentile=99.99, symmetric=false, reference=true.",
)
@click.option("--statistics", is_flag=True, help="Keep a histogram of every tensor, also of methods that need none.")
@click.option(
    "--cache", metavar="DIR", help="Keep ranges here: reused for the same data, and an interrupted run goes on."
)
@click.option("--merge", "merge_files", is_flag=True, help="Merge ranges files (given instead of MODEL) into one.")
@click.argument("more", nargs=-1, metavar="[RANGES...]")
@select_option
@allow_empty_option
@data_options
@tokenizer_option
@worker_options
def calibrate(
    out: Out,
    model: str | None,
    output: str,
    overwrite: bool,
    method: str,
    method_options: tuple[str, ...],
    statistics: bool,
    cache: str | None,
    merge_files: bool,
    more: tuple[str, ...],
    select: tuple[str, ...],
    allow_empty: bool,
    data: str | None,
    samples: int | None,
    seed: int,
    tokenizer: str | None,
    jobs: int,
    cluster: str | None,
    **images: Any,
) -> None:
    """Run MODEL over --data and write the ranges of its tensors; or merge ranges: --merge A.json B.json -o R.json."""
    from qdq_passes.errors import UsageError

    from qdqtool.calibrate.ranges import Ranges, merge
    from qdqtool.cli.saving import refuse_output

    refuse_output(output, overwrite, model, data, *more)
    if model is None:
        raise UsageError("no model", hint="give MODEL --data D, or --merge A.json B.json")
    if merge_files:
        if not more:
            raise UsageError("one file to merge", hint="--merge A.json B.json -o R.json")
        found = merge(*(Ranges.read(path) for path in (model, *more)))
    else:
        if more:
            raise click.UsageError(f"unexpected arguments {' '.join(more)}")
        if data is None:
            raise UsageError("no data to calibrate on", hint="give --data; see `qdqtool calibrate --help`")
        found = _calibrate(
            out, model, data, select, allow_empty, method=method, method_options=_pairs(method_options),
            statistics=statistics, cache=cache, samples=samples, seed=seed, image=image_settings(images),
            tokenizer=tokenizer, jobs=jobs, cluster=cluster,
        )  # fmt: skip
    found.write(output, overwrite=overwrite)
    payload = {
        "output": output, "method": found.method, "samples": found.samples, "tensors": len(found.tensors),
        "ranges_sha256": found.sha256, "unobserved": list(found.unobserved),
    }  # fmt: skip
    out.result(
        payload,
        lambda: say(
            f"{plural(len(found.tensors), 'range')} over {plural(found.samples, 'sample')} ({found.method}) in {output}"
        ),
    )


def _calibrate(out: Out, model: str, data: str, texts: tuple[str, ...], allow_empty: bool, **options: Any) -> Ranges:
    from qdq_passes.errors import UsageError

    from qdqtool import api
    from qdqtool.io.models.load import load
    from qdqtool.runtime.taps import float_tensors

    graph = load(model)
    tensors = None
    if texts:
        from qdq_passes.select.selectors import Selector, select

        names = {v.name for v in select(graph, Selector.of(*texts), allow_empty=allow_empty).values}
        tensors = [name for name in float_tensors(graph) if name in names]
        if not tensors:
            raise UsageError("--select names no float value of the main graph", hint="weights need no calibration")
    options["tokenizer"] = options["tokenizer"] or os.path.dirname(model) or "."
    with out.progress("calibrating") as tick:
        return api.calibrate(
            graph, data, tensors=tensors, warn=out.warn, progress=tick, **options,
        )  # fmt: skip


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise click.UsageError(f"--method-option {text!r} is no K=V; write percentile=99.99")
        if key in found:
            raise click.UsageError(f"--method-option {key} is given twice")
        found[key] = value
    return found


command = calibrate
