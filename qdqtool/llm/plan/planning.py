"""From options to a plan: which shapes there are, and how a model wants its plan changed."""

from __future__ import annotations

from collections.abc import Sequence

from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.errors import UsageError
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.io.files.progress import Warn
from qdqtool.io.models.working import ModelOrPath, opened, repair
from qdqtool.llm.plan.specializations import Specialization
from qdqtool.llm.plan.splitting import CLEAN, SplitPlan, adapted


def planned_for(model: ModelOrPath, plan: SplitPlan, *, warn: Warn | None = None) -> SplitPlan:
    """``plan`` as `split` would carry it out on ``model``: an attention that keeps its cache itself needs other passes.

    Raises:
        UnsupportedError: the model is no decoder with a cache.
    """
    work, _ = opened(model)
    repair(work, warn)
    run_pipeline(work, CLEAN)
    return adapted(plan, decoder_io(work), warn)


def crossed(
    prefill: Sequence[int], decode: Sequence[int], context: Sequence[int], batch: Sequence[int] = (1,)
) -> list[Specialization]:
    """Every length at every context and batch size; a prefill longer than a context goes with the larger ones.

    Raises:
        UsageError: no context holds a length, a decode run has several tokens, or there is nothing to make.
    """
    if any(length != 1 for length in decode):
        raise UsageError(
            f"a run of {next(n for n in decode if n != 1)} tokens is no decode step",
            hint=f"give --decode 1, and --prefill {','.join(map(str, sorted({*prefill, *decode} - {1})))}",
        )
    lengths = sorted({*prefill, *decode}, reverse=True)
    if not lengths or not context:
        raise UsageError("no specialization", hint="give --prefill, --decode and --context")
    if lengths[0] > max(context):
        raise UsageError(f"no context holds {lengths[0]} tokens of one run", hint=f"the largest is {max(context)}")
    return [
        Specialization.of(rows, length, size)
        for rows in sorted(set(batch))
        for size in sorted(set(context))
        for length in lengths
        if length <= size
    ]
