"""Open a model for a verb, as a copy to edit, and finish it: no new errors in it, and an entry that says what was done."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir
from qdq_passes.core.findings import Finding, broken_by
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import copy_model
from qdq_passes.integers.look.integer_ops import quantized_defaults
from qdq_passes.pipeline.pipeline import PassReport, parse_pipeline, run_pipeline
from qdq_passes.verification.rules import new_errors, verify

from qdqtool.io.files.progress import Warn
from qdqtool.io.models.load import load
from qdqtool.io.models.provenance import Provenance

ModelOrPath = ir.Model | str | os.PathLike[str]


#: Rule of the verifier → the pass that repairs what it finds.
REPAIRS = {"topological-order": "sort", "unique-node-names": "give-names"}
#: The pass that lets quantization have its constants.
CONSTANTS = "remove-initializer-inputs{quantized-only=true}"


def provenance_of(
    pipeline: str, source_sha256: str, inputs: Mapping[str, str] | None = None, passes: Iterable[PassReport] = ()
) -> Provenance:
    """The provenance entry of a pipeline run: text and hashes only (``inputs``: of the named inputs), so that equal work gives
    equal bytes; with the reports of ``passes`` also which of them had nothing to change."""
    model = [("model", source_sha256)] if source_sha256 else []
    return Provenance(pipeline=pipeline, inputs=(*model, *(inputs or {}).items()), idle=_idle(passes))


def _idle(passes: Iterable[PassReport]) -> tuple[str, ...]:
    """Names of ``passes`` that may change what a model computes and did not, each once, in order."""
    modified: dict[str, bool] = {}
    for report in passes:
        (each,) = parse_pipeline(report.text).passes
        if each.keeps.numerics == "changes":
            name = type(each).name()
            modified[name] = modified.get(name, False) or report.modified
    return tuple(name for name, is_modified in modified.items() if not is_modified)


def opened(model: ModelOrPath, *, weights: bool = True) -> tuple[ir.Model, str]:
    """A model to edit and the SHA-256 of its file; a model in memory is cloned, so that the caller's stays as it is. Without
    ``weights`` it may lack files of external data, as `load` does."""
    if isinstance(model, ir.Model):
        return copy_model(model), ""
    digest = hashlib.sha256()
    return load(model, weights=weights, hasher=digest.update), digest.hexdigest()


def repairs_of(model: ir.Model) -> list[str]:
    """The passes that repair what other tools leave behind and what no edit could be saved with: disorder, names given twice;
    and what no edit could be made on: stored integers and scales that are inputs with a default."""
    rules = {finding.rule for finding in verify(model, minimum="error")}
    repairs = [name for rule, name in REPAIRS.items() if rule in rules]
    return [*repairs, CONSTANTS] if quantized_defaults(model.graph.inputs) else repairs


def repair_warnings(repairs: Sequence[str]) -> list[str]:
    """What to say of `repairs_of` a model."""
    errors = [name for name in repairs if name != CONSTANTS]
    texts = [f"the model has errors, and is repaired first: {', '.join(errors)}"] if errors else []
    if CONSTANTS in repairs:
        texts.append(f"stored integers or scales are inputs with a default; they become constants first: {CONSTANTS}")
    return texts


def repair(model: ir.Model, warn: Warn | None = None) -> list[str]:
    """Run `repairs_of` ``model`` on it, and say so; the passes that ran."""
    names = repairs_of(model)
    if names:
        run_pipeline(model, ",".join(names))
        if warn is not None:
            for text in repair_warnings(names):
                warn(text)
    return names


def refuse_errors(model: ir.Model, known: Sequence[Finding], *, allow_findings: bool) -> None:
    """Refuse to save a model with errors: new ones always, those it came with (``known``) unless ``allow_findings``.

    Raises:
        VerifyError: a pass made an error that was not there.
        UsageError: the model came with an error, and nothing repaired it.
    """
    errors = verify(model, minimum="error")
    for finding in new_errors(known, errors):
        raise broken_by(finding, known, model, "the pipeline")
    if errors and not allow_findings:
        first = errors[0]
        more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise UsageError(
            f"{first.message}{more}",
            where=first.where,
            hint=f"{first.hint}, or pass --allow-findings"
            if first.hint
            else "pass --allow-findings to save it as it is",
        )
