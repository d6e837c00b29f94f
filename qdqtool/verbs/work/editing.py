"""How verbs that change a model make a pipeline, load the model, run, verify and save: one way for all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Pass
from qdq_passes.errors import UsageError
from qdq_passes.graph.uses import all_nodes, all_values
from qdq_passes.pipeline.hooks import QuietHook, VerifyEach
from qdq_passes.pipeline.pipeline import Hook, Pipeline, Report, parse_pipeline
from qdq_passes.pipeline.text import make_pass
from qdq_passes.qdq.edit.display import is_described
from qdq_passes.select.selectors import NONE, Selector, select
from qdq_passes.verification.rules import verify

from qdqtool.io.files.atomic import refuse_inputs, refuse_output
from qdqtool.io.files.edit_script import NamedInputs, append_script, refuse_append
from qdqtool.io.files.progress import StageProgress, Warn, Warned, pass_on
from qdqtool.io.files.shown import Shown
from qdqtool.io.models.hooks import Reproducer
from qdqtool.io.models.load import load
from qdqtool.io.models.save import THRESHOLD, refuse_own_data, save
from qdqtool.io.models.working import opened, provenance_of, refuse_errors, repair_warnings, repairs_of
from qdqtool.runtime.session import RUNTIME, compute
from qdqtool.targets.target import Target
from qdqtool.verbs.pairs import Step

if TYPE_CHECKING:
    from qdqtool.verbs.editing import Editing


@dataclass(frozen=True, repr=False)
class Saved(Shown, Warned):
    """A pipeline that ran, and what was written.

    Args:
        report: what the passes did.
        output: the model.
        files: everything written: the model, and its new data file if there is one.
        source: the model it was made of.
        sha256: hex SHA-256 of the written model's file; empty unless it is recorded.
    """

    figures: ClassVar[Mapping[str, str]] = {"output": "output", "changes": "report.changes"}

    report: Report
    output: str
    files: tuple[str, ...]
    source: str
    sha256: str = ""


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


def run_and_save(
    asked: Editing,
    pipeline: Pipeline | str,
    *,
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
    hashed: bool = False,
) -> Saved:
    """Load the model, run ``pipeline``, verify, save; a pass that breaks leaves a reproducer.

    Args:
        asked: the model, where the result goes, and who is told how far it is.
        pipeline: what runs.
        inputs: named inputs of the pipeline, from files; those that no pass reads are left out of the provenance.
        target: what ``@target`` is bound to.
        hooks: hooks besides those for verification and the reproducer.
        allow_findings: save although the model has errors that it came with.
        external: as for `qdqtool.io.models.save.save`, and ``threshold``, ``annotations`` too.
        verify_each: verify after every pass, so that an error names the pass.
        reproducer: folder for the reproducer; ``<output>.reproducer`` by default.
        record: edit script that the passes are appended to.
        hashed: compute the SHA-256 of the written model; `record` does so too.

    Raises:
        UsageError: the output exists, ``record`` cannot be written, or the input has errors and neither the pipeline nor
            ``allow_findings`` deals with them.
        VerifyError: the pipeline made an error that was not there: a bug of a pass.
    """
    source, output = asked.paths
    steps = parse_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
    needed = steps.needs()
    read = {name: given for name, given in (inputs or {}).items() if name in needed}
    files = [given.file for given in read.values()]
    refuse_output(output, asked.overwrite, source, record, *files)
    tick = asked.progress or (lambda stage, done, total: None)
    model, digest = opened(source)
    refuse_own_data(model, output)  # a pass may let go of what lies there, and `save` would not know of it
    if record is not None:
        refuse_inputs(record, [source, *files])
        refuse_append(record, digest, read)
    known = verify(model, minimum="error")
    checks: list[Hook] = [Reproducer(reproducer or f"{output}.reproducer", {n: g.file for n, g in read.items()})]
    checks += [VerifyEach(known)] if verify_each else []
    bound: dict[str, Any] = {name: given.value for name, given in read.items()}
    bound |= {"target": target} if target is not None else {}
    bound |= {RUNTIME: compute} if RUNTIME in needed else {}
    count = len(steps.todo(bound))
    report = steps.run(model, inputs=bound, hooks=[Ticks(tick, count), *checks, *hooks])
    refuse_errors(model, known, allow_findings=allow_findings)
    ran = ",".join(part.text for part in report.passes)
    hashes = {name: given.sha256 for name, given in read.items()}
    entry = None if asked.no_provenance or not report.modified else provenance_of(ran, digest, hashes, report.passes)
    tick("saving", count, count)
    result = hashlib.sha256() if hashed or record is not None else None
    written = save(
        model,
        output,
        overwrite=asked.overwrite,
        provenance=entry,
        external=external,
        threshold=THRESHOLD if threshold is None else threshold,
        annotations=annotations,
        copy_data=asked.copy_data,
        hasher=None if result is None else result.update,
    )
    sha256 = "" if result is None else result.hexdigest()
    if record is not None:
        append_script(record, steps.passes, source_sha256=digest, result_sha256=sha256, inputs=read)
    return Saved(report, output, (output, *written[1:]), source, sha256)


def with_repairs(model: str, steps: Sequence[Step], warn: Warn | None) -> Pipeline:
    """``steps`` behind the passes that repair ``model``; a description that it has is written anew."""
    graph = load(model)
    repairs = repairs_of(graph)
    pass_on(repair_warnings(repairs), warn)
    last: list[Step] = [("describe-encodings", {})] if is_described([*all_nodes(graph), *all_values(graph)]) else []
    first = parse_pipeline(",".join(repairs)).passes if repairs else ()
    return Pipeline((*first, *(make_pass(name, dict(options)) for name, options in [*steps, *last])))


def matching(model: str, texts: Sequence[str], warn: Warn | None) -> list[str]:
    """Those of the selectors ``texts`` that match anything; the others are told."""
    graph, kept = load(model), []
    for text in texts:
        try:
            select(graph, Selector.of(text))
            kept.append(text)
        except UsageError as error:
            pass_on([str(error)], warn)
    return kept or list(NONE.texts)
