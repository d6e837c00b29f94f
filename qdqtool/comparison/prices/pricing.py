"""What each rounding costs at the outputs: one float run, one quantized run, and each node alone on what both have there.

The noise e of a tensor is a sum: what the node computes otherwise, what came in by each input, what the pairs of its inputs, of
its weights and of its bias add, and what they do together. Each part has the share <part, e> / <e, e> of it, none below 0. From
the outputs backwards a tensor's price goes to its parts, what came in to the tensor before: all prices add up to the noise.

That parts of one tensor's noise are alike to what follows is assumed; what a mend wins is measured, not told by the price."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field

import numpy as np
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.numerics.agreement import alike, difference
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.reencode import real_range

from qdqtool.comparison.cumulative import activation_pairs, matched, read_for
from qdqtool.comparison.masked import may_hide, seen
from qdqtool.comparison.prices.boundary import boundary_tensors
from qdqtool.comparison.prices.output_noise import OutputNoise
from qdqtool.comparison.prices.taken import taken
from qdqtool.comparison.region_model import Cause as Side
from qdqtool.comparison.region_model import RegionModel, is_cut
from qdqtool.comparison.regions import Region
from qdqtool.comparison.sides import Sides, grouped, run_regions
from qdqtool.io.feeds.feeds import Feeds
from qdqtool.io.files.progress import Progress
from qdqtool.record.record import Cause
from qdqtool.runtime.session import Session, open_session
from qdqtool.runtime.taps import Taps

#: Values of a tensor that are kept of all samples.
KEPT = 16384
#: (cause, or "input" of what came in; the tensor of an activation, else "").
Part = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Price:
    """What one cause costs.

    Args:
        cause: what it is.
        tensor: that is rounded or clipped, for other integers or at a boundary; "" of the others.
        node: that writes the tensor, or whose weights, bias or operator it is; "" of a graph input.
        power: noise at the outputs over the signal there, summed over outputs.
    """

    cause: Cause
    tensor: str
    node: str
    power: float


@dataclass(frozen=True, kw_only=True)
class Prices:
    """The prices of a quantized model.

    Args:
        noise: measured at the outputs, noise over signal, summed over outputs.
        outputs: the same of each output.
        prices: the dearest first; they add up to ``noise``.
        samples: that were run.
        warnings: what is not known, and why.
        values: some of the values of each quantized activation in the float model.
        nodes: noise over signal of what a node writes: what it adds, and all.
    """

    noise: float
    outputs: Mapping[str, float]
    prices: tuple[Price, ...]
    samples: int
    warnings: tuple[str, ...] = ()
    values: Mapping[str, Array] = field(default_factory=dict)
    nodes: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def priced(
    sides: Sides,
    feeds: Iterable[Mapping[str, Array]],
    *,
    floats: Collection[str] = (),
    threads: int = 1,
    progress: Progress | None = None,
) -> Prices:
    """The prices of the noise at the outputs.

    Args:
        sides: the float and the quantized model.
        feeds: feeds of the float model; read once per group of regions.
        floats: names of nodes that a target does not compute on integers.
        threads: threads inside an operator.
        progress: called after each sample of each group.

    Raises:
        UsageError: there is no sample, or no output of floats.
    """
    tensors = _Tensors(sides, floats)
    groups = list(grouped(sides.recipe.model, sides.regions.regions))
    kept = feeds if len(groups) == 1 or isinstance(feeds, Feeds) else list(feeds)
    total = feeds.count if isinstance(feeds, Feeds) else None
    samples = 0
    for number, group in enumerate(groups):
        bench = _Bench.of(sides, group, tensors, is_first=not number, threads=threads)
        samples = 0
        for feed in kept:
            bench.add(feed)
            samples += 1
            if progress is not None:
                progress(samples + number * (total or 0), None if total is None else total * len(groups))
        bench.close()
    if not samples:
        raise UsageError("there is no sample to price on", hint="--data gives the samples")
    return tensors.prices(samples)


@dataclass(eq=False)
class _Noise:
    """The noise of a tensor, and what its parts have of it."""

    energy: float = 0.0
    signal: float = 0.0
    parts: dict[Part, float] = field(default_factory=dict)

    def add(self, part: Part, error: Array, of_part: Array) -> None:
        """<part, e> of one sample; what is not finite is left out."""
        with np.errstate(all="ignore"):
            product = error.astype(np.float64) * of_part.astype(np.float64)
        self.parts[part] = self.parts.get(part, 0.0) + float(np.sum(product, where=np.isfinite(product)))

    def shares(self) -> dict[Part, float]:
        """Of each part, none below 0; they add up to 1."""
        kept = {part: product for part, product in self.parts.items() if product > 0}
        total = sum(kept.values())
        return {part: product / total for part, product in kept.items()} if total > 0 else {("together", ""): 1.0}


class _Tensors:
    """The tensors between regions in both models, and the sums of their noise."""

    def __init__(self, sides: Sides, floats: Collection[str] = ()) -> None:
        self.sides = sides
        self.edges = boundary_tensors(sides.recipe.model, {*floats, *sides.history.floats})
        tested, reference = sides.recipe.model, sides.reference
        self.warnings: list[str] = list(sides.history.warnings)
        self.pairs = activation_pairs(tested)
        self.encodings = {
            name: encoding for name, pair in self.pairs.items() if (encoding := pair.encoding) is not None
        }
        self.before = {name: value.name or name for name, value in sides.regions.borders.items()}
        self.after = {name: read_for(name, self.pairs) for name in self.before}
        names = [[v.name for v in model.graph.outputs if v.name] for model in (reference, tested)]
        self.outputs = matched("outputs", names[0], names[1], self.warnings)
        inputs = [
            [v.name for v in model.graph.inputs if v.name and v.name not in model.graph.initializers]
            for model in (reference, tested)
        ]
        self.inputs = matched("inputs", inputs[0], inputs[1], self.warnings)
        self.masked = may_hide(reference)
        self.cuts = {
            name: bounds
            for name, bounds in sides.recipe.bounds.items()
            if (encoding := self.encodings.get(name)) is not None and is_cut(encoding, bounds)
        }
        self.noise: dict[tuple[str, str], _Noise] = {}
        self.ends: dict[str, _Noise] = {name: _Noise() for name in self.outputs}
        self.total = OutputNoise(self.outputs, self.seen)
        self.clipped: dict[str, list[float]] = {}
        self.values: dict[str, list[Array]] = {}

    def cut(self, name: str, before: Array) -> Array:
        """``before``, cut as the float model cuts it where the grid of its pair alone does so in this one: that is no noise."""
        low, high = self.cuts.get(name, (None, None))
        return before if low is None and high is None else np.clip(before, low, high)

    def seen(self, name: str, x: Array, y: Array) -> Array:
        """``y``, a form of the tensor, without what the float model ``x`` hides in it."""
        return seen(x, y) if name in self.masked else y

    def note_pair(self, name: str, x: Array, before: Array, after: Array) -> None:
        """How much of what the pair of a tensor does lies beyond its grid; and values of the float tensor."""
        encoding = self.encodings.get(name)
        if encoding is None or before.shape != after.shape:
            return
        kept = self.values.setdefault(name, []) if not encoding.block_size else None
        if kept is not None and sum(part.size for part in kept) < KEPT:
            kept.append(taken(self.seen(name, x, x), encoding))
        low, high = (encoding.granularity.expand(end, before.shape) for end in real_range(encoding))
        half = encoding.granularity.expand(encoding.scale_array().astype(np.float64), before.shape) / 2
        with np.errstate(all="ignore"):
            noise = np.square(after.astype(np.float64) - before)
            noise = np.where(np.isfinite(noise), noise, 0.0)
            beyond = (before < low - half) | (before > high + half)
        sums = self.clipped.setdefault(name, [0.0, 0.0])
        sums[0] += float(noise[beyond].sum())
        sums[1] += float(noise.sum())

    def joined(self, name: str, parts: Sequence[Array]) -> Array:
        """The kept ``parts`` of a tensor as one array, in which its scales lie along the axis that they have."""
        return np.concatenate(parts, axis=0 if (self.encodings[name].axis or 0) < 0 else -1)

    def note_output(self, name: str, x: Array, y: Array, before: Array | None) -> None:
        """One sample of a graph output, and of the value before its pair."""
        end = self.ends[name]
        if not self.total.add(name, x, y):
            return
        x, y = self.seen(name, x, x), self.seen(name, x, y)
        with np.errstate(all="ignore"):
            error = y.astype(np.float64) - x
            if before is None or before.shape != x.shape:
                end.add(("together", ""), error, error)
                return
            before = self.seen(name, x, before)
            end.add(("input", name), error, before.astype(np.float64) - x)
            end.add(("rounding", name), error, y.astype(np.float64) - before)

    def split(self, name: str) -> Sequence[tuple[str, float]]:
        """What the pair of a tensor does, and the share of each; that of one at a boundary is of one cause, whatever it does."""
        if name in self.edges:
            return (("boundary", 1.0),)
        beyond, whole = self.clipped.get(name, (0.0, 0.0))
        clipping = beyond / whole if whole else 0.0
        return (("clipping", clipping), ("rounding", 1 - clipping))

    def prices(self, samples: int) -> Prices:
        """From the outputs backwards."""
        outputs = self.total.powers
        if not outputs:
            raise UsageError(
                "no output of floats can be priced: none has values but 0 in the float model",
                hint="end it before: qdqtool extract --outputs NAME",
            )
        found: dict[tuple[str, str, str], float] = {}
        open_: dict[str, float] = {}
        writers = {name: region.name for region in self.sides.regions.regions for name in region.results}

        def pay(noise: _Noise, power: float, node: str) -> None:
            for (cause, tensor), share in noise.shares().items():
                if cause == "input":
                    open_[tensor] = open_.get(tensor, 0.0) + share * power
                elif cause == "rounding":
                    for what, part in self.split(tensor):
                        key = (what, tensor, writers.get(tensor, ""))
                        found[key] = found.get(key, 0.0) + part * share * power
                else:
                    key = (cause, "", node)
                    found[key] = found.get(key, 0.0) + share * power

        for name, power in outputs.items():
            pay(self.ends[name], power, writers.get(name, ""))
        for region in reversed(self.sides.regions.regions):
            for name in region.results:
                if (power := open_.pop(name, 0.0)) > 0:
                    pay(self.noise.get((region.name, name), _Noise()), power, region.name)
        for name, power in open_.items():  # of graph inputs, and of what no region writes
            found["together", "", name] = found.get(("together", "", name), 0.0) + power
        listed = [Price(cause=c, tensor=t, node=n, power=p) for (c, t, n), p in found.items() if p > 0]  # type: ignore[arg-type]
        return Prices(
            noise=sum(outputs.values()), outputs=outputs, samples=samples, warnings=tuple(self.warnings),
            prices=tuple(sorted(listed, key=lambda one: (-one.power, one.node, one.tensor, one.cause))),
            values={name: self.joined(name, parts) for name, parts in self.values.items()}, nodes=self._nodes(),
        )  # fmt: skip

    def _nodes(self) -> dict[str, tuple[float, float]]:
        sums: dict[str, list[float]] = {}
        for (node, _), noise in self.noise.items():
            came = sum(share for (cause, _), share in noise.shares().items() if cause == "input")
            own = sums.setdefault(node, [0.0, 0.0, 0.0])
            for at, more in enumerate((noise.energy * (1 - came), noise.energy, noise.signal)):
                own[at] += more
        return {node: (here / signal, whole / signal) for node, (here, whole, signal) in sums.items() if signal > 0}


def turns(regions: Sequence[Region]) -> list[frozenset[str]]:
    """The tensors that regions read, in so many sets that no region reads two of one set."""
    found: list[set[str]] = []
    rivals: dict[str, set[str]] = {}
    for region in regions:
        for name in region.reads:
            rivals.setdefault(name, set()).update(region.reads)
    for name, others in rivals.items():
        free = next((turn for turn in found if not turn & (others - {name})), None)
        if free is None:
            found.append({name})
        else:
            free.add(name)
    return [frozenset(turn) for turn in found]


@dataclass(eq=False, kw_only=True)
class _Bench:
    """Sessions on a group of regions, without pairs and with those of weights or biases alone."""

    tensors: _Tensors
    group: Sequence[Region]
    turns: Sequence[frozenset[str]]
    taps: Sequence[Taps]
    variants: dict[str, tuple[RegionModel, Session]]
    is_first: bool

    @classmethod
    def of(cls, sides: Sides, group: Sequence[Region], tensors: _Tensors, *, is_first: bool, threads: int) -> _Bench:
        recipe, wanted = sides.recipe, frozenset(region.name for region in group)
        active: dict[str, tuple[Side, ...]] = {"none": (), "weight": ("weight",), "bias": ("bias",)}
        models = {name: recipe.build(causes, wanted) for name, causes in active.items()}
        names = sorted(
            {t for made in models.values() for t in made.inputs.values()} | {t for r in group for t in r.results}
        )
        own = list(tensors.outputs) if is_first else []
        fetched = [tensors.outputs[name] for name in own]
        ends = [name for name in own if name in tensors.before]
        known = [tensors.before[n] for n in (*names, *ends)] + [tensors.after[n] for n in (*names, *ends)]
        return cls(
            tensors=tensors, group=group, turns=turns(group), is_first=is_first,
            taps=tuple(Taps(model, wanted_, threads=threads) for model, wanted_ in
                       ((sides.reference, [*names, *own]), (recipe.model, [*known, *fetched]))),
            variants={name: (made, open_session(made.model, threads=threads)) for name, made in models.items()},
        )  # fmt: skip

    def add(self, feed: Mapping[str, Array]) -> None:
        """One sample: both models whole, then each region on what they have there."""
        tensors = self.tensors
        x = {name: np.asarray(array) for name, array in self.taps[0].run(feed).items()}
        found = self.taps[1].run({tensors.inputs.get(name, name): array for name, array in feed.items()})
        before = {
            name: alike(tensors.cut(name, np.asarray(found[tensors.before[name]])), x[name])
            for name in x
            if tensors.before.get(name) in found
        }
        after = {name: alike(np.asarray(found[tensors.after[name]]), x[name]) for name in before}
        read = {name for region in self.group for name in region.reads}
        for name in sorted(read):
            tensors.note_pair(name, x[name], before[name], after[name])
        if self.is_first:
            for name, in_b in tensors.outputs.items():
                tensors.note_output(name, x[name], np.asarray(found[in_b]), before.get(name))
                if name in before and name not in read:
                    tensors.note_pair(name, x[name], before[name], after[name])
        self._regions(feed, x, before, after)

    def _regions(
        self, feed: Mapping[str, Array], x: Mapping[str, Array], before: Mapping[str, Array], after: Mapping[str, Array]
    ) -> None:
        plain = self._run("none", x, feed)
        parts: dict[tuple[str, str], list[tuple[Part, Array]]] = {key: [] for key in plain}
        for key, y in plain.items():
            parts[key].append((("operator", ""), difference(y, x[key[1]], x[key[1]])))
        for turn in self.turns:
            came = self._run("none", {n: before[n] if n in turn else x[n] for n in x if n in before}, feed)
            read = self._run("none", {n: after[n] if n in turn else x[n] for n in x if n in before}, feed)
            for region in self.group:
                for name in turn.intersection(region.reads):
                    for key in [(region.name, result) for result in region.results]:
                        parts[key].append((("input", name), difference(came[key], plain[key], x[key[1]])))
                        parts[key].append((("rounding", name), difference(read[key], came[key], x[key[1]])))
        base = self._run("none", after, feed)
        for cause in ("weight", "bias"):
            for key, y in self._run(cause, after, feed).items():
                parts[key].append(((cause, ""), difference(y, base[key], x[key[1]])))
        assumed = self.variants["none"][0].assumed
        for (writer, name), list_ in parts.items():
            self._note(writer, name, x, before, list_, is_assumed=writer in assumed)

    def _note(
        self, region: str, name: str, x: Mapping[str, Array], before: Mapping[str, Array],
        parts: list[tuple[Part, Array]], *, is_assumed: bool,
    ) -> None:  # fmt: skip
        noise = self.tensors.noise.setdefault((region, name), _Noise())
        error = self.tensors.seen(name, x[name], before[name]) - self.tensors.seen(name, x[name], x[name])
        rest = error.astype(np.float64)
        with np.errstate(all="ignore"):
            squares, signal = np.square(rest), np.square(x[name].astype(np.float64))
        noise.energy += float(np.sum(squares, where=np.isfinite(squares)))
        noise.signal += float(np.sum(signal, where=np.isfinite(signal)))
        for (cause, tensor), part in parts:
            rest = rest - part
            noise.add(("weight" if is_assumed and cause == "operator" else cause, tensor), error, part)
        noise.add(("together", ""), error, rest)

    def _run(
        self, variant: str, values: Mapping[str, Array], feed: Mapping[str, Array]
    ) -> dict[tuple[str, str], Array]:
        return run_regions(*self.variants[variant], values, feed)

    def close(self) -> None:
        """Let go of every session."""
        for taps in self.taps:
            taps.session.close()
        for _, session in self.variants.values():
            session.close()
