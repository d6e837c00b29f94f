"""Local comparison: each node of the quantized model on the inputs that the float model has there, so that no error comes from
before; and which of its roundings the error is of.

All regions stand side by side in one model (a few, where weights are large), once per set of pairs that is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.numerics.agreement import Accumulator, worst_first
from qdq_passes.numerics.arrays import Array

from qdqtool.calibrate.ranges import Ranges
from qdqtool.comparison.masked import may_hide, seen
from qdqtool.comparison.region_model import CAUSES, Cause, Recipe, RegionModel
from qdqtool.comparison.regions import Region
from qdqtool.comparison.replaying import Replayed
from qdqtool.comparison.report import Causes, LocalComparison, LocalNode
from qdqtool.comparison.sides import Sides, grouped, prepared_otherwise, run_regions
from qdqtool.io.feeds.feeds import Feeds
from qdqtool.io.files.progress import Progress
from qdqtool.runtime.session import Session, open_session
from qdqtool.runtime.taps import Taps


def compare_local(
    a: ir.Model,
    b: ir.Model,
    feeds: Iterable[Mapping[str, Array]],
    *,
    ranges: Ranges | None = None,
    inputs: Mapping[str, Any] | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> LocalComparison:
    """Compare every node of the quantized ``b`` with the float ``a``, on the float inputs; neither is changed.

    Args:
        a: float model.
        b: quantized model; where it carries the pipeline that made it, ``a`` is prepared alike.
        feeds: feeds of ``a``; read once per group of regions.
        ranges: the ranges that ``b`` was quantized with: what moving its scales cost is told apart then.
        inputs: other named inputs of the pipeline that made ``b``.
        threads: threads inside an operator.
        progress: called after each sample of each group.

    Raises:
        UsageError: the models have no tensor in common, or there is no sample.
    """
    sides = Sides.of(a, b, ranges, inputs)
    history, recipe, found, reference = sides.history, sides.recipe, sides.regions, sides.reference
    warnings = list(history.warnings)
    groups = list(grouped(recipe.model, found.regions))
    kept = feeds if len(groups) == 1 or isinstance(feeds, Feeds) else list(feeds)
    nodes, samples = list[LocalNode](), 0
    total = feeds.count if isinstance(feeds, Feeds) else None
    for number, group in enumerate(groups):
        bench = _Bench.of(recipe, group, reference, history, threads)
        samples = 0
        for feed in kept:
            if not samples and not number and history.is_prepared:
                warnings += prepared_otherwise(a, reference, feed, threads)
            bench.add(feed)
            samples += 1
            if progress is not None:
                whole = None if total is None else total * len(groups)
                progress(samples + number * (total or 0), whole)
        bench.close()
        nodes += bench.nodes()
    if not samples:
        raise UsageError("there is no sample to compare on", hint="--data gives the samples")
    return LocalComparison(
        nodes=tuple(sorted(nodes, key=lambda n: (worst_first(n.agreement.sqnr_db), n.name))),
        unmatched=tuple(found.unmatched),
        samples=samples,
        warnings=tuple(warnings),
    )


@dataclass(eq=False)
class _Sums:
    """What one region adds up to."""

    region: Region
    agreement: Accumulator = field(default_factory=Accumulator)
    signal: float = 0.0
    noise: dict[str, float] = field(default_factory=dict)

    def add(self, cause: str, y: Array, reference: Array) -> None:
        """Σ(y − reference)² over what is finite in both; infinite where ``y`` alone is not."""
        x = reference.astype(np.float64)
        counted = np.isfinite(x)
        with np.errstate(all="ignore"):
            difference = np.where(counted, y.astype(np.float64) - x, 0.0)
            power = float(np.sum(difference * difference))
        self.noise[cause] = self.noise.get(cause, 0.0) + (power if np.isfinite(power) else np.inf)

    def node(self, *, is_assumed: bool, moved_is_known: bool) -> LocalNode:
        """The figures of everything added so far."""
        return LocalNode(
            name=self.region.name, op=self.region.op, nodes=self.region.nodes, tensors=tuple(self.region.results),
            agreement=self.agreement.result(), causes=self._causes(is_assumed, moved_is_known),
        )  # fmt: skip

    def _causes(self, is_assumed: bool, moved_is_known: bool) -> Causes | None:
        if self.signal == 0 or not np.isfinite(sum(self.noise.values())):
            return None
        share = {cause: noise / self.signal for cause, noise in self.noise.items()}
        operator = share["operator"]
        weight = share["weight"] + (operator if is_assumed else 0.0)
        refinement = share["all"] - share.get("calibrated", share["all"]) if moved_is_known else None
        single = weight + share["activation"] + share["output"] + share["bias"] + (0.0 if is_assumed else operator)
        return Causes(
            weight=weight, activation=share["activation"], output=share["output"], bias=share["bias"],
            refinement=refinement, operator=None if is_assumed else operator,
            rest=share["all"] - single - (refinement or 0.0),
        )  # fmt: skip


@dataclass(eq=False, kw_only=True)
class _Bench:
    """Sessions on a group of regions, one per set of pairs, and the sums of each region."""

    taps: Taps
    variants: dict[str, tuple[RegionModel, Session]]
    sums: list[_Sums]
    moved_is_known: bool
    masked: frozenset[str]

    @classmethod
    def of(cls, recipe: Recipe, group: list[Region], reference: ir.Model, history: Replayed, threads: int) -> _Bench:
        wanted = frozenset(region.name for region in group)
        is_moved = bool(recipe.moved)
        chosen: dict[str, tuple[tuple[Cause, ...], bool]] = {
            "none": ((), False), **{cause: ((cause,), is_moved) for cause in CAUSES}, "all": (CAUSES, False),
        }  # fmt: skip
        if is_moved:
            chosen["calibrated"] = (CAUSES, True)
        models = {name: recipe.build(active, wanted, moved=moved) for name, (active, moved) in chosen.items()}
        variants = {name: (made, open_session(made.model, threads=threads)) for name, made in models.items()}
        read = {tensor for made in models.values() for tensor in made.inputs.values()}
        written = {tensor for region in group for tensor in region.results}
        return cls(
            taps=Taps(reference, sorted(read | written), threads=threads),
            variants=variants,
            sums=[_Sums(region) for region in group],
            moved_is_known=history.moved is not None,
            masked=may_hide(reference),
        )

    def add(self, feed: Mapping[str, Array]) -> None:
        """Run one sample through every variant; of each only the tensors of one are kept at a time, beside the float ones."""
        values = self.taps.run(feed)
        plain = self._run("none", values, feed)
        for sums in self.sums:
            for tensor in sums.region.results:
                x = self._seen(values, tensor, values[tensor])
                with np.errstate(all="ignore"):
                    sums.signal += float(
                        np.sum(np.square(x.astype(np.float64), where=np.isfinite(x), out=np.zeros(x.shape)))
                    )
                sums.add("operator", self._seen(values, tensor, plain[sums.region.name, tensor]), x)
        for variant in self.variants:
            if variant == "none":
                continue
            found = self._run(variant, values, feed)
            for sums in self.sums:
                for tensor in sums.region.results:
                    y = self._seen(values, tensor, found[sums.region.name, tensor])
                    whole = variant in ("all", "calibrated")
                    base = self._seen(values, tensor, values[tensor] if whole else plain[sums.region.name, tensor])
                    sums.add(variant, y, base)
                    if variant == "all":
                        sums.agreement.add(base, y)

    def _seen(self, values: Mapping[str, Array], tensor: str, y: Array) -> Array:
        """``y``, one form of ``tensor``, without what the float model hides in it."""
        return seen(np.asarray(values[tensor]), np.asarray(y)) if tensor in self.masked else np.asarray(y)

    def _run(
        self, variant: str, values: Mapping[str, Array], feed: Mapping[str, Array]
    ) -> dict[tuple[str, str], Array]:
        return run_regions(*self.variants[variant], values, feed)

    def close(self) -> None:
        """Let go of every session."""
        self.taps.session.close()
        for _, session in self.variants.values():
            session.close()

    def nodes(self) -> list[LocalNode]:
        """The figures of each region."""
        assumed = self.variants["none"][0].assumed
        return [s.node(is_assumed=s.region.name in assumed, moved_is_known=self.moved_is_known) for s in self.sums]
