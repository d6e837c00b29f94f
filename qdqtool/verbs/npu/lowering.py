"""What `compile` and `lower` share: a model whose NPU parts become programs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import python_only
from qdqtool.verbs.groups import MODEL, OUTPUT_NEEDED, Path, Saving, Targeted, Warns

if TYPE_CHECKING:
    from qdq_passes.pipeline.pipeline import Hook

    from qdqtool.io.models.working import ModelOrPath
    from qdqtool.npu.compile import Lowered

#: Bytes of programs inside of one file: protobuf ends at 2 GiB.
LIMIT = 3 << 29


@dataclass(frozen=True, kw_only=True)
class Lowering(Saving, Targeted, Warns):
    """A model, where it is written, and for which NPU."""

    leads: ClassVar[tuple[type, ...]] = (Saving, Targeted)

    model: ModelOrPath = field(kw_only=False, metadata=MODEL)
    output: Path | None = field(default=None, kw_only=False, metadata=OUTPUT_NEEDED)
    hooks: Iterable[Hook] = python_only((), "Pipeline hooks.")


def lowered(asked: Lowering, *, programs: bool, embed: bool = True) -> Lowered:
    """The model with programs inside of EPContext nodes, in the file unless ``embed`` is off; or with their operators."""
    import onnx_ir as ir
    from qdq_passes.errors import UnsupportedError
    from qdq_passes.verification.rules import verify

    from qdqtool.io.models.context_files import move_payloads_out
    from qdqtool.io.models.save import refuse_own_data, save
    from qdqtool.io.models.working import opened, provenance_of, refuse_errors, repair
    from qdqtool.npu import compile as compiling
    from qdqtool.npu.compiled import refuse_compiled
    from qdqtool.npu.programs import is_context
    from qdqtool.targets.loading import load_target

    chip = load_target(asked.target)
    work, source = opened(asked.model)
    if asked.output is not None:
        refuse_own_data(work, asked.output)
    refuse_compiled(work, chip)
    repairs = repair(work, asked.warn)
    known = verify(work, minimum="error")
    make = compiling.compile if programs else compiling.lower
    done = make(work, chip, boundary=asked.boundary, hooks=asked.hooks)
    if programs and not done.parts:
        where = None if isinstance(asked.model, ir.Model) else os.fspath(asked.model)
        raise UnsupportedError(
            compiling.nothing_runs(chip.name, done.reasons), where=where, hint="see `qdqtool analyze`"
        )
    if asked.output is None:
        return done
    refuse_errors(done.model, known, allow_findings=asked.allow_findings)
    size = sum(part.bytes for part in done.parts)
    if embed and size > LIMIT:
        raise UnsupportedError(f"its programs have {size >> 20} MiB, more than a file holds", hint="pass --no-embed")
    beside = () if embed else move_payloads_out(done.model, os.fspath(asked.output), is_context)
    ran = ",".join([*repairs, compiling.preparation(asked.boundary), compiling.LOWER])
    entry = None if asked.no_provenance else provenance_of(ran, source, {"target": chip.sha256})
    files = save(
        done.model,
        asked.output,
        overwrite=asked.overwrite,
        provenance=entry,
        annotations=False,
        copy_data=asked.copy_data,
    )
    return dataclasses.replace(done, files=(os.fspath(asked.output), *files[1:], *beside))
