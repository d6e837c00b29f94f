"""What can be blamed: quantized tensors with what they cost, how they lie on their grid, and what a better grid would save."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import constant_array, label
from qdq_passes.numerics.agreement import CEILING_DB
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.price import fit_of
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.qdq.look.pairs import Pair, qdq_pairs

from qdqtool.comparison.prices.pricing import Price, Prices
from qdqtool.comparison.prices.refit import Refit, refitted
from qdqtool.comparison.sides import Sides
from qdqtool.record.record import Histogram, Moved, NodeRecord, Record, TensorRecord

BINS = 64
#: Share of its price that a tensor counts with whose grid is the best there is: what fits badly is looked at first.
FITTED = 0.25


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """A quantized tensor.

    Args:
        record: what is known of it.
        pair: its first pair.
        values: of the float tensor, all of a constant; None where they are not known.
        noise: the constant's, Σ(x − Q(x))², as it is stored; 0 of activations.
        readers: of a constant: the regions that read it.
        shift: mean of Q(x) − x over its root mean square of a constant as it is stored: near 1 or −1 where all lie off alike.
    """

    record: TensorRecord
    pair: Pair
    values: Array | None
    noise: float = 0.0
    shift: float = 0.0
    readers: tuple[str, ...] = ()

    @cached_property
    def refit(self) -> Refit | None:
        """The best encoding of its form for the values; None where there is none."""
        encoding = self.pair.encoding
        return None if self.values is None or encoding is None else refitted(self.values, encoding)

    @property
    def power(self) -> float:
        """Its price."""
        return sum(self.record.price.values())

    @property
    def gain(self) -> float:
        """Share of its own noise that a better encoding of its form would save, 0..1."""
        if self.refit is None:
            return 0.0
        before = self.noise or self.refit.before
        return max(0.0, 1 - self.refit.noise / before) if before > 0 else 0.0

    @property
    def score(self) -> float:
        """By which the worst are found: what it costs, and how much of that need not be."""
        return self.power * (FITTED + (1 - FITTED) * self.gain)


def subjects_of(sides: Sides, prices: Prices) -> list[Subject]:
    """Every quantized tensor with a price, the dearest first."""
    found = [*_activations(sides, prices), *_constants(sides, prices)]
    return sorted(found, key=lambda one: (-one.power, one.record.name))


def worst(subjects: Iterable[Subject], count: int) -> list[Subject]:
    """Those of the highest scores; of ``subjects``, the dearest first, no more are looked at than can be among them."""
    found = list[Subject]()
    for one in subjects:
        if len(found) >= count and one.power <= found[count - 1].score:
            break
        found = sorted([*found, one], key=lambda each: (-each.score, each.record.name))[:count]
    return found


def record_of(
    sides: Sides, prices: Prices, subjects: Iterable[Subject], model: str, moved: Mapping[str, tuple[Moved, ...]]
) -> Record:
    """What pricing tells, and what moved encodings."""
    subjects = list(subjects)
    operators = {region.name: (region.op, tuple(region.results)) for region in sides.regions.regions}
    own: dict[str, dict[str, float]] = {}
    for price in _left(prices, subjects):
        costs = own.setdefault(price.node or price.tensor, {})
        costs[price.cause] = costs.get(price.cause, 0.0) + price.power
    nodes = []
    for name in dict.fromkeys([*operators, *own]):
        op, tensors = operators.get(name, ("", ()))
        here, whole = prices.nodes.get(name, (0.0, 0.0))
        nodes.append(
            NodeRecord(
                name=name, op=op, tensors=tensors, here_db=_db(here), whole_db=_db(whole), price=own.get(name, {})
            )
        )
    order = {pair.tensor: at for at, pair in enumerate(qdq_pairs(sides.recipe.model))}
    tensors_ = sorted((one.record for one in subjects), key=lambda record: order.get(record.name, -1))
    tensors_ = [replace(one, moved=moved.get(one.name, ())) for one in tensors_]
    return Record(
        tensors=tuple(tensors_), nodes=tuple(nodes), noise=prices.outputs, samples=prices.samples, model=model
    )


def _left(prices: Prices, subjects: Iterable[Subject]) -> Iterable[Price]:
    """The prices that no subject has: those of operators, of what comes together, and of constants without one."""
    known = {("", one.record.name) for one in subjects if one.record.kind == "activation"}
    known |= {(one.record.kind, reader) for one in subjects for reader in one.readers}
    for price in prices.prices:
        if (("", price.tensor) if price.tensor else (price.cause, price.node)) not in known:
            yield price


def _db(noise: float) -> float | None:
    return min(-10 * math.log10(noise), CEILING_DB) if noise > 0 else None


def _activations(sides: Sides, prices: Prices) -> Iterable[Subject]:
    costs: dict[str, dict[str, float]] = {}
    writers: dict[str, str] = {}
    for price in prices.prices:
        if price.tensor:
            costs.setdefault(price.tensor, {})[price.cause] = price.power
            writers[price.tensor] = price.node
    first: dict[str, Pair] = {}
    for pair in qdq_pairs(sides.recipe.model):
        if pair.kind == "activation" and pair.q is not None:
            first.setdefault(pair.tensor, pair)
    for name, pair in first.items():
        encoding, values = pair.encoding, prices.values.get(name)
        if encoding is not None:
            record = TensorRecord(
                name=name, kind="activation", node=writers.get(name, ""), price=costs.get(name, {}),
                **_seen(values, encoding), encoding=encoding.to_json(),
            )  # fmt: skip
            yield Subject(record=record, pair=pair, values=values)


def _constants(sides: Sides, prices: Prices) -> Iterable[Subject]:
    """Weights and biases; what several cost at a node goes to each by its own noise, what one costs at several adds up."""
    costs: Mapping[tuple[str, str], float] = {
        (one.node, one.cause): one.power for one in prices.prices if one.cause in ("weight", "bias")
    }
    owner = {name: region.name for region in sides.regions.regions for name in region.nodes}
    found: dict[str, Subject] = {}
    for pair in qdq_pairs(sides.recipe.model):
        readers = dict.fromkeys(owner[label(use.node)] for use in pair.output.uses() if label(use.node) in owner)
        if pair.kind == "activation" or not readers or pair.encoding is None or pair.stored is None:
            continue
        known = found.get(pair.tensor)
        found[pair.tensor] = (
            replace(known, readers=tuple(dict.fromkeys([*known.readers, *readers])))
            if known is not None
            else _constant(pair, pair.encoding, sides.recipe.constants.get(pair.tensor), tuple(readers))
        )
    shares: dict[tuple[str, str], list[float]] = {}
    for one in found.values():
        for reader in one.readers:
            shares.setdefault((reader, one.record.kind), []).append(one.noise)
    for one in found.values():
        power = 0.0
        for key in [(reader, one.record.kind) for reader in one.readers]:
            whole = sum(shares[key])
            power += costs.get(key, 0.0) * (one.noise / whole if whole > 0 else 1 / len(shares[key]))
        yield replace(one, record=replace(one.record, price={one.record.kind: power} if power else {}))


def _constant(pair: Pair, encoding: Encoding, given: ir.TensorProtocol | None, readers: tuple[str, ...]) -> Subject:
    """A weight or bias without its price; ``given`` is that of the float model."""
    own = constant_array(pair.stored) if pair.stored is not None else None
    values = None if given is None or own is None or tuple(given.shape.numpy()) != own.shape else given.numpy()
    values = own if values is None and pair.q is not None else values
    noise = shift = 0.0
    if values is not None and own is not None and own.size:
        stood = dequantize(own if pair.q is None else quantize(own, encoding), encoding)
        off = stood.astype(np.float64) - values
        noise = float(np.sum(np.square(off)))
        shift = float(np.mean(off)) / math.sqrt(noise / off.size) if noise > 0 else 0.0
    flat = None if values is None else values.astype(np.float64)
    record = TensorRecord(
        name=pair.tensor, kind=pair.kind, node=readers[0], encoding=encoding.to_json(), **_seen(flat, encoding)
    )
    return Subject(record=record, pair=pair, values=flat, noise=noise, shift=shift, readers=readers)


def _seen(values: Array | None, encoding: Encoding) -> dict[str, Any]:
    """What the values tell: their ends, a histogram, what of them is clipped, and their SQNR."""
    if values is None or not values.size or not np.isfinite(values).all():
        return {}
    low, high = float(values.min()), float(values.max())
    fit = fit_of(values.astype(np.float32), encoding)
    counts = np.histogram(values, bins=BINS, range=(low, high) if low < high else (low - 0.5, low + 0.5))[0]
    return {
        "low": low, "high": high, "clipped": fit.clipped, "sqnr_db": fit.sqnr_db,
        "histogram": Histogram(low=low, high=high, counts=tuple(int(count) for count in counts)),
    }  # fmt: skip
