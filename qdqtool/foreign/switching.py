"""Options of other tools that put passes in, leave them out, or change what they do: the pipeline of a preset with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from qdq_passes.core.base import Named, Pass
from qdq_passes.core.registry import PASSES
from qdq_passes.encode.narrow_weights import NarrowWeights
from qdq_passes.fuse.fold_batch_norm import FoldBatchNorm
from qdq_passes.fuse.fuse_conv_activation import FuseConvActivation
from qdq_passes.legalize.clip_to_relu import ClipToRelu
from qdq_passes.pipeline.text import make_pass
from qdq_passes.refine.refine_positions import STEPS, RefinePositions
from qdq_passes.refine.saturate_hard_sigmoid import SaturateHardSigmoid

from qdqtool.foreign.options import Said, under
from qdqtool.presets.preset import Preset

#: Passes on the float model that options put in, among those that they stand between in ``xint8``.
BEFORE = (
    "fold-constants", "fold-batch-norm", "fold-scale", "fold-shift", "fuse-matmul-add", "fold-pad", "fuse-layer-norm",
    "fuse-rms-norm", "fuse-instance-norm", "fuse-l2-norm", "fuse-gelu", "fuse-silu", "fuse-hard-swish", "split-to-slice",
    "batch-norm-to-conv", "clip-to-relu", "reduce-mean-to-global-pool", "split-large-pool", "explicit-conv-attributes",
    "fuse-conv-activation",
)  # fmt: skip
#: Passes that put in what the DPU computes; SimulateDPU=true asks for all but the last.
DPU = (
    "round-leaky-relu", "sigmoid-to-hard-sigmoid", "scale-hard-sigmoid", "scale-average-pool", "scale-reduce-mean",
    "round-clip-bounds",
)  # fmt: skip
#: Steps of refine-positions that exist for scales that are no powers of two.
ALIGNING = tuple(step for step in STEPS if step.startswith("align-"))
AFTER = (*DPU, "saturate-hard-sigmoid", *STEPS, "refine-positions", "narrow-weights", "fold-weight-qdq")


def passes_before(preset: Preset, said: Said) -> tuple[Pass, ...]:
    """The passes of ``preset`` on the float model, with the options ``said``."""
    passes = preset.before
    for name, runs in under(said, "before").items():
        passes = _switched(passes, name, runs, BEFORE)
    clip6, concat = said.get("clip-to-relu.clip6"), said.get("fold-batch-norm.concat")
    if clip6:
        passes = _switched(passes, ClipToRelu.name(), True, BEFORE)
    changed: list[Pass] = []
    for step in passes:
        if isinstance(step, ClipToRelu) and clip6 is not None:
            step = dataclasses.replace(step, clip6=clip6)
        if isinstance(step, FoldBatchNorm) and concat is not None:
            step = dataclasses.replace(step, concat=concat if concat == step.reference else None)
        changed.append(step)
    return _fused(changed, said)


def passes_after(preset: Preset, said: Said, *, power_of_two: bool) -> tuple[Pass, ...]:
    """The passes of ``preset`` on the pairs, with the options ``said``.

    Args:
        preset: what holds where nothing is said.
        said: what does not contradict ``power_of_two``.
        power_of_two: whether scales are powers of two; without, what only the DPU needs is left out.
    """
    if not power_of_two:
        had = preset.annotate.scales == "pow2"
        return _aligned([p for p in preset.after if not (had and _needs_powers(p))], said)
    passes = preset.after
    for name in DPU:
        passes = _switched(passes, name, _is_simulated(name, said, passes), AFTER)
    return _refined(passes, said)


def has(passes: Iterable[Pass], name: str) -> bool:
    """Whether a pass of that name is among ``passes``."""
    return any(p.name() == name for p in passes)


def _switched(passes: Sequence[Pass], name: str, runs: bool, order: Sequence[str]) -> tuple[Pass, ...]:
    """``passes`` with the pass ``name`` or without, nothing changed where that is so already."""
    if not runs:
        return tuple(p for p in passes if p.name() != name)
    if has(passes, name):
        return tuple(passes)
    return _with(passes, _made(name), order)


def _with(passes: Sequence[Pass], new: Pass, order: Sequence[str]) -> tuple[Pass, ...]:
    """``passes`` and ``new``: at the end if ``order`` ends with it, else behind the last of those that it has before, else before
    the first of the others."""
    rank = order.index(new.name())
    if rank == len(order) - 1:
        return (*passes, new)
    behind = [i for i, p in enumerate(passes) if p.name() in order[:rank]]
    ahead = [i for i, p in enumerate(passes) if p.name() in order[rank:]]
    place = behind[-1] + 1 if behind else ahead[0] if ahead else len(passes)
    return (*passes[:place], new, *passes[place:])


def _made(name: str) -> Pass:
    """The pass as it is by default; it is told the ranges where it takes them."""
    takes = any(option.name == "ranges" for option in dataclasses.fields(PASSES.load(name)))
    return make_pass(name, {"ranges": Named("ranges")} if takes else {})


def _fused(passes: Sequence[Pass], said: Said) -> tuple[Pass, ...]:
    """Which activations are one with the layer before them."""
    activations, producers = under(said, "activations"), under(said, "producers")
    if True in activations.values() and not has(passes, FuseConvActivation.name()):
        passes = _with(passes, FuseConvActivation(activations=(), pools=()), BEFORE)
    found: list[Pass] = []
    for step in passes:
        if isinstance(step, FuseConvActivation):
            step = dataclasses.replace(
                step,
                activations=_with_and_without(step.activations, activations),
                producers=_with_and_without(step.producers, producers),
            )
            if not (step.activations or step.pools):
                continue
        found.append(step)
    return tuple(found)


def _with_and_without(names: Sequence[str], said: Mapping[str, bool]) -> tuple[str, ...]:
    """``names`` as they are, or in alphabetical order where something is ``said`` that they do not say."""
    found = {name for name in names if said.get(name, True)} | {name for name, wanted in said.items() if wanted}
    return tuple(names) if found == set(names) else tuple(sorted(found))


def _is_simulated(name: str, said: Said, passes: Sequence[Pass]) -> bool:
    if said.get("dpu") is False:
        return False
    return bool(said.get(f"dpu.{name}", has(passes, name) or (said.get("dpu") is True and name != DPU[-1])))


def _refined(passes: Sequence[Pass], said: Said) -> tuple[Pass, ...]:
    """The steps that run together, and those of them that a preset has alone."""
    limits, asked = said.get("limits"), under(said, "steps")
    refine = next((p for p in passes if isinstance(p, RefinePositions)), None)
    steps = set(refine.steps if refine is not None else STEPS if limits else ())
    rest: list[Pass] = []
    for step in passes:
        name = step.name()
        if name in STEPS and (limits is False or asked.get(name) is False):
            continue
        if isinstance(step, SaturateHardSigmoid) and (limits is False or asked.get("adjust-hard-sigmoid") is False):
            continue
        if name in STEPS and getattr(step, "scales", "pow2") == "any":
            steps.add(name)
        elif step is not refine:
            rest.append(step)
    steps = {s for s in STEPS if asked.get(s, s in steps) and not has(rest, s)} if limits is not False else set()
    if not steps:
        return tuple(rest)
    base = refine or _made(RefinePositions.name())
    assert isinstance(base, RefinePositions)
    ordered = tuple(step for step in STEPS if step in steps)
    new = dataclasses.replace(base, steps=ordered, loops=said.get("refine-positions.loops", base.loops))
    return (
        tuple(new if p is refine else p for p in passes if p is refine or p in rest)
        if refine
        else _with(rest, new, AFTER)
    )


def _aligned(passes: Sequence[Pass], said: Said) -> tuple[Pass, ...]:
    """The alignments that are said, each a pass of its own."""
    found = tuple(passes)
    for name in ALIGNING:
        runs = said.get(f"steps.{name}")
        if runs is None:
            continue
        found = _switched(found, name, False, AFTER) if not runs else found
        if runs and not has(found, name):
            found = _with(found, make_pass(name, {"scales": "any"}), AFTER)
    return found


def _needs_powers(step: Pass) -> bool:
    """Whether it is about powers of two, or about the unit that needs them."""
    if step.name() in STEPS:
        return getattr(step, "scales", "pow2") != "any"
    return step.name() in DPU or isinstance(step, SaturateHardSigmoid | RefinePositions | NarrowWeights)
