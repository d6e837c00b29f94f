"""How commands that change a model load it, run a pipeline, verify and save: one way for all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click
from qdq_passes.errors import UsageError

from qdqtool.cli.render import Out, say

if TYPE_CHECKING:
    from qdq_passes.core.pipeline import Hook, Pipeline, Report

    from qdqtool.calibrate.ranges import Ranges


def refuse_output(source: str, output: str, overwrite: bool) -> None:
    """Refuse an output that is the input, or that exists without ``--overwrite``; before any work is done.

    Raises:
        UsageError: either of the two.
    """
    if os.path.exists(output):
        if os.path.exists(source) and os.path.samefile(source, output):
            raise UsageError(
                "is the input model", where=output, hint="write to another file; the input is never overwritten"
            )
        if not overwrite:
            raise UsageError("exists", where=output, hint="pass --overwrite to replace it")


def run_and_save(
    out: Out,
    source: str,
    output: str,
    pipeline: Pipeline | str,
    *,
    overwrite: bool = False,
    no_provenance: bool = False,
    inputs: Mapping[str, Any] | None = None,
    hooks: Iterable[Hook] = (),
    allow_findings: bool = False,
    ranges: Ranges | None = None,
    external: str = "auto",
    threshold: int | None = None,
    annotations: bool | None = None,
    verify_each: bool = True,
) -> Report:
    """Load ``source``, run ``pipeline``, verify, save to ``output``; returns the pipeline's report.

    Raises:
        UsageError: the output exists, or the input has errors and neither the pipeline nor ``allow_findings`` deals with them.
        VerifyError: the pipeline made an error that was not there: a bug of a pass.
    """
    from qdq_passes.core.hooks import VerifyEach
    from qdq_passes.core.pipeline import run_pipeline
    from qdq_passes.core.verify import new_errors, verify
    from qdq_passes.errors import VerifyError

    from qdqtool import api
    from qdqtool.io.save import THRESHOLD, save

    refuse_output(source, output, overwrite)
    model, digest = api.opened(source)
    known = verify(model, minimum="error")
    hooks = [*([VerifyEach(known)] if verify_each else []), *hooks]
    report = run_pipeline(model, pipeline, inputs=inputs, hooks=hooks)
    errors = verify(model, minimum="error")
    new = new_errors(known, errors)
    if new:
        raise VerifyError(
            f"the pipeline broke the model: {new[0].message}", where=new[0].where, hint=f"rule {new[0].rule}"
        )
    if errors and not allow_findings:
        first = errors[0]
        more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise UsageError(
            f"{first.message}{more}",
            where=first.where,
            hint=f"{first.hint}, or pass --allow-findings" if first.hint else None,
        )
    entry = None if no_provenance or not report.modified else api.provenance_of(str(pipeline), digest, ranges)
    save(
        model, output, overwrite=overwrite, provenance=entry, external=external,  # type: ignore[arg-type]
        threshold=THRESHOLD if threshold is None else threshold, annotations=annotations,
    )  # fmt: skip
    return report


def show_report(out: Out, report: Report, output: str, *, times: bool = False) -> None:
    """Print what a pipeline did, as the command's result."""
    payload = {"output": output, "modified": report.modified, "passes": report.to_json()}

    def render() -> None:
        for part in report.passes:
            done = [c for c in part.changes if not c.is_skip]
            skips = len(part.changes) - len(done)
            took = f"  {part.seconds * 1000:.1f} ms" if times else ""
            say(f"{part.text}: {len(done)} changes" + (f", {skips} skipped" if skips else "") + took)
            if out.verbose:
                for change in part.changes:
                    say(f"  {change}")
        say(f"wrote {output}")

    out.result(payload, render)


def pipeline_text(text: str) -> Pipeline:
    """``-p TEXT`` or ``-p @FILE``: pipeline text, or a TOML edit script with ``[[pass]]`` tables."""
    from qdq_passes.core.pipeline import Pipeline, parse_pipeline

    if not text.startswith("@"):
        return parse_pipeline(text)
    from qdqtool.io.edit_script import read_pipeline

    return Pipeline(tuple(read_pipeline(text[1:])))


def assignments(texts: Iterable[str], what: str) -> list[str]:
    """Checked ``OLD=NEW`` texts."""
    found = list(texts)
    for text in found:
        if "=" not in text:
            raise click.UsageError(f"{what} {text!r} is no OLD=NEW pair")
    return found
