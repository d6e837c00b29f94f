"""The public verbs: compile a model for a target, or lower it to look at."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable

import onnx_ir as ir
from qdq_passes.errors import UnsupportedError
from qdq_passes.npu.units.verdict import Boundary
from qdq_passes.pipeline.pipeline import Hook
from qdq_passes.verification.rules import verify

from qdqtool.io.files.atomic import refuse_existing
from qdqtool.io.files.progress import Warn
from qdqtool.io.models.context_files import move_payloads_out
from qdqtool.io.models.save import refuse_own_data, save
from qdqtool.io.models.working import ModelOrPath, opened, provenance_of, refuse_errors, repair
from qdqtool.npu import compile as compiling
from qdqtool.npu.compile import Lowered, nothing_runs
from qdqtool.npu.compiled import refuse_compiled
from qdqtool.npu.programs import is_context
from qdqtool.targets.loading import load_target

#: Bytes of programs inside of one file: protobuf ends at 2 GiB.
LIMIT = 3 << 29


def compile(
    model: ModelOrPath,
    output: str | os.PathLike[str] | None = None,
    *,
    target: str | os.PathLike[str],
    boundary: Boundary | None = None,
    embed: bool = True,
    allow_findings: bool = False,
    overwrite: bool = False,
    no_provenance: bool = False,
    hooks: Iterable[Hook] = (),
    warn: Warn | None = None,
) -> Lowered:
    """Compile a QDQ model ahead of time: each part that the NPU of ``target`` computes becomes a program inside of an EPContext
    node, which the library of the simulated NPU runs, without Python.

    Args:
        model: path, or a model in memory (which stays as it is).
        output: where to write the result; None leaves it in memory.
        target: name or file of the target.
        boundary: ``"npu"`` gives the QuantizeLinear of float inputs and the DequantizeLinear of float outputs to the NPU,
            ``"cpu"`` to the CPU; what the target says where None.
        embed: programs lie in the model; else each in a file beside it.
        allow_findings: save although the model has errors that it came with.
        overwrite: replace an existing ``output``.
        no_provenance: leave out the metadata entry.
        hooks: pipeline hooks.
        warn: called with each warning.

    Raises:
        UnsupportedError: nothing of the model runs on the target: there is no program to write.
        QdqError: bad model or target; see each class's exit code.
    """
    return _made(
        model, output, target, boundary=boundary, programs=True, embed=embed, allow_findings=allow_findings,
        overwrite=overwrite, no_provenance=no_provenance, hooks=hooks, warn=warn,
    )  # fmt: skip


def lower(
    model: ModelOrPath,
    output: str | os.PathLike[str] | None = None,
    *,
    target: str | os.PathLike[str],
    boundary: Boundary | None = None,
    allow_findings: bool = False,
    overwrite: bool = False,
    no_provenance: bool = False,
    hooks: Iterable[Hook] = (),
    warn: Warn | None = None,
) -> Lowered:
    """Lower a QDQ model: what the NPU of ``target`` computes becomes integer operators of ai.qdqtool, in an ordinary model, to
    look at, or to run on onnxruntime's CPU provider with our library of custom operators. Arguments as `compile`."""
    return _made(
        model, output, target, boundary=boundary, programs=False, embed=True, allow_findings=allow_findings,
        overwrite=overwrite, no_provenance=no_provenance, hooks=hooks, warn=warn,
    )  # fmt: skip


def _made(
    model: ModelOrPath,
    output: str | os.PathLike[str] | None,
    target: str | os.PathLike[str],
    *,
    boundary: Boundary | None,
    programs: bool,
    embed: bool,
    allow_findings: bool,
    overwrite: bool,
    no_provenance: bool,
    hooks: Iterable[Hook],
    warn: Warn | None,
) -> Lowered:
    if output is not None:
        refuse_existing(os.fspath(output), overwrite=overwrite)
    chip = load_target(target)
    work, source = opened(model)
    if output is not None:
        refuse_own_data(work, output)
    refuse_compiled(work, chip)
    repairs = repair(work, warn)
    known = verify(work, minimum="error")
    make = compiling.compile if programs else compiling.lower
    done = make(work, chip, boundary=boundary, hooks=hooks)
    if programs and not done.parts:
        where = None if isinstance(model, ir.Model) else os.fspath(model)
        raise UnsupportedError(nothing_runs(chip.name, done.reasons), where=where, hint="see `qdqtool analyze`")
    if output is None:
        return done
    refuse_errors(done.model, known, allow_findings=allow_findings)
    size = sum(part.bytes for part in done.parts)
    if embed and size > LIMIT:
        raise UnsupportedError(f"its programs have {size >> 20} MiB, more than a file holds", hint="pass --no-embed")
    beside = () if embed else move_payloads_out(done.model, os.fspath(output), is_context)
    ran = ",".join([*repairs, compiling.preparation(boundary), compiling.LOWER])
    entry = None if no_provenance else provenance_of(ran, source, {"target": chip.sha256})
    files = save(done.model, output, overwrite=overwrite, provenance=entry, annotations=False)
    return dataclasses.replace(done, files=(os.fspath(output), *files[1:], *beside))
