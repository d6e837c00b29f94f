"""How commands that change a model load it, run a pipeline, verify and save: one way for all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from qdq_passes.pipeline.hooks import QuietHook

from qdqtool.cli.options import refuse_inputs
from qdqtool.cli.render import Out, plural, say

if TYPE_CHECKING:
    import onnx_ir as ir
    from qdq_passes.core.base import Pass
    from qdq_passes.pipeline.pipeline import Hook, Pipeline, Report

    from qdqtool.io.files.edit_script import NamedInputs, Script
    from qdqtool.io.files.progress import StageProgress
    from qdqtool.targets.target import Target


@dataclass(frozen=True)
class Saved:
    """A pipeline that ran, and what was written.

    Args:
        report: what the passes did.
        output: the model.
        files: everything written: the model, and its new data file if there is one.
    """

    report: Report
    output: str
    files: tuple[str, ...]


@dataclass
class Ticks(QuietHook):
    """Show each pass while it runs.

    Args:
        tick: the progress bar.
        total: passes in all.
    """

    tick: StageProgress
    total: int
    _done: int = 0

    def before(self, pass_: Pass, model: ir.Model) -> None:
        """Name ``pass_``."""
        self.tick(type(pass_).name(), self._done, self.total)
        self._done += 1


def refuse_output(output: str, overwrite: bool, *inputs: str | None) -> None:
    """Refuse an output that is one of ``inputs``, or that exists without ``--overwrite``; before any work is done.

    Raises:
        UsageError: either of the two, or it is a folder.
    """
    from qdqtool.io.files.atomic import refuse_existing

    refuse_inputs(output, inputs)
    refuse_existing(output, overwrite=overwrite)


def run_and_save(
    out: Out,
    source: str,
    output: str,
    pipeline: Pipeline | str,
    *,
    overwrite: bool = False,
    no_provenance: bool = False,
    inputs: NamedInputs | None = None,
    target: Target | None = None,
    hooks: Iterable[Hook] = (),
    allow_findings: bool = False,
    external: Literal["auto", "never", "always"] = "auto",
    threshold: int | None = None,
    annotations: bool | None = None,
    verify_each: bool = True,
    reproducer: str | None = None,
    record: str | None = None,
) -> Saved:
    """Load ``source``, run ``pipeline``, verify, save to ``output``; a pass that breaks leaves a reproducer.

    Args:
        out: where progress is shown.
        source: the model.
        output: where the result goes.
        pipeline: what runs.
        overwrite: whether ``output`` may be replaced.
        no_provenance: leave out the entry that says what was done.
        inputs: named inputs of the pipeline, from files; those that no pass reads are left out of the provenance.
        target: what ``@target`` is bound to.
        hooks: hooks besides those for verification and the reproducer.
        allow_findings: save although the model has errors that it came with.
        external: as for `qdqtool.io.models.save.save`, and ``threshold``, ``annotations`` too.
        verify_each: verify after every pass, so that an error names the pass.
        reproducer: folder for the reproducer; ``<output>.reproducer`` by default.
        record: edit script that the passes are appended to.

    Raises:
        UsageError: the output exists, ``record`` cannot be written, or the input has errors and neither the pipeline nor
            ``allow_findings`` deals with them.
        VerifyError: the pipeline made an error that was not there: a bug of a pass.
    """
    from qdq_passes.pipeline.hooks import VerifyEach
    from qdq_passes.pipeline.pipeline import parse_pipeline
    from qdq_passes.verification.rules import verify

    from qdqtool import api
    from qdqtool.io.files.artifacts import sha256_of_file
    from qdqtool.io.files.edit_script import append_script, refuse_append
    from qdqtool.io.models.hooks import Reproducer
    from qdqtool.io.models.save import THRESHOLD, refuse_own_data, save
    from qdqtool.runtime.session import RUNTIME, compute

    steps = parse_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
    needed, count = steps.needs(), len(steps.passes)
    read = {name: given for name, given in (inputs or {}).items() if name in needed}
    refuse_output(output, overwrite, source, record, *(given.file for given in read.values()))
    with out.progress("loading") as tick:
        model, digest = api.opened(source)
        refuse_own_data(model, output)  # a pass may let go of what lies there, and `save` would not know of it
        if record is not None:
            refuse_inputs(record, [source, *(given.file for given in read.values())])
            refuse_append(record, digest, read)
        known = verify(model, minimum="error")
        checks: list[Hook] = [Reproducer(reproducer or f"{output}.reproducer", {n: g.file for n, g in read.items()})]
        checks += [VerifyEach(known)] if verify_each else []
        bound: dict[str, Any] = {name: given.value for name, given in read.items()}
        bound |= {"target": target} if target is not None else {}
        bound |= {RUNTIME: compute} if RUNTIME in needed else {}
        report = steps.run(model, inputs=bound, hooks=[Ticks(tick, count), *checks, *hooks])
        api.refuse_errors(model, known, allow_findings=allow_findings)
        ran = ",".join(part.text for part in report.passes)
        hashes = {name: given.sha256 for name, given in read.items()}
        entry = None if no_provenance or not report.modified else api.provenance_of(ran, digest, hashes)
        tick("saving", count, count)
        files = save(
            model,
            output,
            overwrite=overwrite,
            provenance=entry,
            external=external,
            threshold=THRESHOLD if threshold is None else threshold,
            annotations=annotations,
        )
        if record is not None:
            append_script(record, steps.passes, source_sha256=digest, result_sha256=sha256_of_file(output), inputs=read)
    return Saved(report, output, (output, *files[1:]))


def show_report(out: Out, saved: Saved, *, times: bool = False, idle: bool = True) -> None:
    """Print what a pipeline did, as the command's result; ``idle``: passes too that had nothing to do."""
    report = saved.report
    payload = {
        "output": saved.output,
        "files": list(saved.files),
        "modified": report.modified,
        "passes": report.to_json(),
    }

    def render() -> None:
        for part in report.passes:
            done = [c for c in part.changes if not c.is_skip]
            if not part.changes and not (idle or out.verbose):
                continue
            skips = len(part.changes) - len(done)
            took = f"  {part.seconds * 1000:.1f} ms" if times else ""
            say(f"{part.text}: {plural(len(done), 'change')}" + (f", {skips} skipped" if skips else "") + took)
            if out.verbose:
                for change in part.changes:
                    say(f"  {change}")
        if report.passes and not report.modified:
            say("nothing to change: the model is saved as it was")
        say(f"wrote {' and '.join(saved.files)}")

    out.result(payload, render)


def stored_bytes(path: str) -> int:
    """Bytes of a model in files: its own, and the data files it refers to."""
    import onnx_ir as ir

    from qdqtool.io.files.read import holds
    from qdqtool.io.models.load import load
    from qdqtool.io.models.slots import slots

    if not holds(path, b"location"):  # the key of every reference to a data file: no need to parse
        return os.path.getsize(path)
    tensors = [slot.tensor for slot in slots(load(path))]
    files = {os.path.realpath(t.path) for t in tensors if isinstance(t, ir.ExternalTensor)}
    return sum(os.path.getsize(file) for file in [path, *files])


def script_of(text: str) -> Script:
    """``-p TEXT`` or ``-p @FILE``: pipeline text, or a TOML edit script with ``[[pass]]`` tables and ``[inputs]``."""
    from qdq_passes.pipeline.pipeline import parse_pipeline

    from qdqtool.io.files.edit_script import Script, read_script

    return read_script(text[1:]) if text.startswith("@") else Script(passes=parse_pipeline(text).passes)
