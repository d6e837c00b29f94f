"""The form of networks: what a graph's run takes, from what its nodes do.

    layer        (MAC time³ + weight time³ + activation time³)^⅓ of convolutions, products with weights; and per element written
    grouped      more for groups narrower than 64 channels
    depthwise    by multiply-accumulates; products of MatMul by theirs
    the rest     by elements: moves, elementwise, functions, gates, windows of pools
    all          by the number of operators, and a constant

The coefficients are logarithms of milliseconds a unit, so that none is negative: more work never takes less time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from qdq_passes._lazy_dataclass import dataclass

from qdqtool.cost.counting import Count
from qdqtool.cost.fitting import Array

#: Channels of a group that fill the matrix unit.
FULL_GROUP = 64

#: Coefficient → resource, unit that it is milliseconds of, and what it is milliseconds of.
COEFFICIENTS: Mapping[str, tuple[str, float, str]] = {
    "mac": ("MAC", 1e9, "10⁹ multiply-accumulates of layers"),
    "weight": ("weights", 1e6, "10⁶ weights"),
    "activation": ("memory", 1e6, "10⁶ elements that layers read and write"),
    "written": ("memory", 1e6, "10⁶ elements that layers write"),
    "depthwise": ("MAC", 9e6, "9·10⁶ multiply-accumulates of depthwise convolutions"),
    "grouped": ("MAC", 1e9, "10⁹ multiply-accumulates that narrow groups waste"),
    "product": ("MAC", 1e9, "10⁹ multiply-accumulates of MatMul and attention"),
    "move": ("memory", 1e6, "10⁶ elements that are moved"),
    "elementwise": ("vector", 1e6, "10⁶ elements that are added, multiplied, …"),
    "function": ("vector", 1e6, "10⁶ elements of norms, softmax, GELU"),
    "gate": ("vector", 1e6, "10⁶ elements of Sigmoid and SiLU"),
    "pool": ("vector", 1e6, "10⁶ elements that windows of pools read"),
    "operators": ("dispatch", 1e2, "100 operators"),
    "constant": ("dispatch", 1.0, "one run"),
}
NAMES = tuple(COEFFICIENTS)
RESOURCES = tuple(dict.fromkeys(resource for resource, _, _ in COEFFICIENTS.values()))
#: The coefficients of a layer's norm; the others count alone.
_LAYER = 3
_UNITS = np.array([unit for _, unit, _ in COEFFICIENTS.values()])
_KINDS = {"move": "move", "elementwise": "elementwise", "function": "function", "pool": "pool"}
_GATES = frozenset({"Sigmoid", "Swish"})


@dataclass(frozen=True, eq=False)
class Amounts:
    """What a graph does, in the units of the coefficients.

    Args:
        names: of its nodes.
        layers: [nodes, 3], of MAC, weight and activation; 0 of nodes that are none.
        others: [nodes, coefficients − 3].
        constant: what a run has once [coefficients − 3].
    """

    names: tuple[str, ...]
    layers: Array
    others: Array
    constant: Array

    @property
    def totals(self) -> Array:
        """Sums [coefficients], the norm taken for a sum."""
        return np.concatenate([self.layers.sum(0), self.others.sum(0) + self.constant])


def amounts_of(counts: Sequence[Count], batch: int = 1) -> Amounts:
    """What the nodes ``counts`` do in one run of ``batch`` inputs at once: weights are read once."""
    rows = np.zeros((len(counts), len(NAMES)))
    for row, count in zip(rows, counts, strict=True):
        for name, amount in _of(count):
            row[NAMES.index(name)] += amount * (1 if name in ("weight", "operators") else batch)
    rows /= _UNITS
    constant = np.zeros(len(NAMES) - _LAYER)
    constant[-1] = 1.0
    return Amounts(tuple(count.name for count in counts), rows[:, :_LAYER], rows[:, _LAYER:], constant)


def _of(count: Count) -> Iterable[tuple[str, float]]:
    yield "operators", 1
    if count.kind in ("dense", "grouped"):
        yield "mac", count.macs
        yield "weight", count.weights
        yield "activation", count.reads + count.writes
        yield "written", count.writes
    if count.kind == "grouped":
        yield "grouped", count.macs * (max(FULL_GROUP / count.width, 1) - 1)
    elif count.kind == "depthwise":
        yield "depthwise", count.macs
    elif count.kind == "product" or (count.kind == "dense" and count.op == "MatMul"):
        yield "product", count.macs
    elif count.kind in _KINDS:
        yield "gate" if count.op in _GATES else _KINDS[count.kind], count.writes


def log_ms(theta: Array, amounts: Amounts) -> tuple[float, Array]:
    """The logarithm of the milliseconds of one run, and its derivatives.

    Args:
        theta: coefficients [n], logarithms.
        amounts: what the graph does.
    """
    logs, slopes = log_ms_at(theta[None], amounts)
    return float(logs[0]), slopes[0]


def log_ms_at(thetas: Array, amounts: Amounts) -> tuple[Array, Array]:
    """The same under several coefficients at once.

    Args:
        thetas: [rows, n].
        amounts: what the graph does.

    Returns:
        [rows], [rows, n].
    """
    speeds = np.exp(thetas)
    powers = (amounts.layers[amounts.layers.any(1)][None] * speeds[:, None, :_LAYER]) ** 3
    sums = powers.sum(2)
    shares = (powers * np.cbrt(np.where(sums > 0, sums, 1.0))[:, :, None] ** -2).sum(1)
    parts = np.hstack([shares, (amounts.others.sum(0) + amounts.constant) * speeds[:, _LAYER:]])
    total = parts.sum(1)
    return np.log(total), parts / total[:, None]


def node_ms(theta: Array, amounts: Amounts) -> Array:
    """Milliseconds of each node by coefficient [nodes + 1, n]; the last row is what the run has once."""
    speed = np.exp(theta)
    powers = (amounts.layers * speed[:_LAYER]) ** 3
    sums = powers.sum(1, keepdims=True)
    layers = powers * np.cbrt(np.where(sums > 0, sums, 1.0)) ** -2
    nodes = np.hstack([layers, amounts.others * speed[_LAYER:]])
    once = np.concatenate([np.zeros(_LAYER), amounts.constant * speed[_LAYER:]])
    return np.vstack([nodes, once])
