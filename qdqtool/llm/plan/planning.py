"""From options to a plan: which shapes, in which form."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import get_args

from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.decoder.look.record import Layout
from qdq_passes.errors import UsageError
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.io.files.progress import Warn
from qdqtool.io.models.working import ModelOrPath, opened, repair
from qdqtool.llm.plan.naming import load_naming
from qdqtool.llm.plan.specializations import Specialization, read_specializations
from qdqtool.llm.plan.splitting import CLEAN, MaskForm, Scatter, SplitPlan, adapted, checked


def planned(
    *,
    prefill: Sequence[int],
    decode: Sequence[int],
    context: Sequence[int],
    batch: Sequence[int],
    specializations: str | os.PathLike[str] | Sequence[Specialization] | None,
    layout: Layout,
    scatter: Scatter,
    mask: MaskForm,
    all_logits: bool,
    decompose: bool,
    tabulate_angles: bool,
    naming: str | os.PathLike[str],
) -> SplitPlan:
    """How `split` with these options, which it describes, would go about it.

    Raises:
        UsageError: the options contradict each other, or one has a value that it does not take.
    """
    for option, value, choices in (("layout", layout, Layout), ("scatter", scatter, Scatter), ("mask", mask, MaskForm)):
        if value not in get_args(choices):
            raise UsageError(f"{option} {value!r} is unknown", hint=f"give {' or '.join(get_args(choices))}")
    if layout == "slide" and scatter != "scatter-elements":
        raise UsageError(f"{scatter} writes in place, and the layout is slide", hint="leave out --scatter or --layout")
    if isinstance(specializations, str | os.PathLike):
        shapes: Sequence[Specialization] = read_specializations(specializations)
    else:
        shapes = specializations if specializations is not None else crossed(prefill, decode, context, batch)
    names = [one.name for one in shapes]
    if len(set(names)) < len(names):
        raise UsageError(f"two specializations are called {next(n for n in names if names.count(n) > 1)!r}")
    plan = SplitPlan(
        specializations=tuple(shapes),
        layout=layout,
        scatter=scatter,
        mask=mask,
        all_logits=all_logits,
        decompose=decompose,
        tabulate_angles=tabulate_angles,
    )
    return checked(load_naming(naming).applied(plan))


#: Options of `split` that decide the pipelines.
PLANNED = tuple(inspect.signature(planned).parameters)


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
