"""The kinds of faults, each a function that tries one place after the other: by chance, the mildest form of a place first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from qdq_passes.graph.edit import Namer, copy_model, own_initializer, set_constant
from qdq_passes.graph.uses import integer_of, known_array, label, only_reader, readers
from qdq_passes.npu.units.units import units_of
from qdq_passes.numerics.encoding import integer_range
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.qdq.look.pairs import Pair

from tests.bench.faults.fault import Base
from tests.bench.faults.places import (
    culprits,
    known,
    layer_weights,
    pairs_of,
    scaled,
    shuffled,
    spanning,
    with_common,
    with_encoding,
    with_integers,
)

Random = np.random.Generator


@dataclass(frozen=True, eq=False, kw_only=True)
class Planted:
    """A fault in a place, whatever it costs.

    Args:
        place: the tensor, or the layer and what of it.
        bad: the model with it.
        culprits: as of a `tests.bench.faults.fault.Fault`.
        float_model: the reference, where it is not that of the base.
        good: the model without the fault, where it is not that of the base.
    """

    place: str
    bad: ir.Model
    culprits: frozenset[str]
    float_model: ir.Model | None = None
    good: ir.Model | None = None


@dataclass(frozen=True, kw_only=True)
class FaultKind:
    """A kind of fault.

    Args:
        cause: the word for it.
        plant: where it can be, and what the model is then.
        bases: (model, preset) that it is planted in, in turn.
    """

    cause: str
    plant: Callable[[Base, Random], Iterator[Planted]]
    bases: tuple[tuple[str, str], ...]


def _rescaled(base: Base, random: Random, pairs: list[Pair], factors: tuple[float, ...]) -> Iterator[Planted]:
    for pair in shuffled(pairs, random):
        for factor in factors:
            bad = with_encoding(base.good, pair, scaled(known(pair), factor))
            yield Planted(place=pair.tensor, bad=bad, culprits=culprits(base.good, pair))


def scale_too_large(base: Base, random: Random) -> Iterator[Planted]:
    """The step of an activation is two powers of two too large."""
    yield from _rescaled(base, random, pairs_of(base.good, "activation"), (4.0,))


def scale_too_small(base: Base, random: Random) -> Iterator[Planted]:
    """The step of an activation is two powers of two too small: it clips."""
    yield from _rescaled(base, random, pairs_of(base.good, "activation"), (0.25,))


def weight_scale_too_small(base: Base, random: Random) -> Iterator[Planted]:
    """A weight is clipped to three quarters of its range, a half or a quarter; with power-of-two scales to the latter."""
    weights = layer_weights(base.good)
    milder = () if all(known(pair).position is not None for pair in weights) else (0.75,)
    yield from _rescaled(base, random, weights, (*milder, 0.5, 0.25))


def weight_scale_too_large(base: Base, random: Random) -> Iterator[Planted]:
    """The step of a weight is two to four powers of two too large."""
    yield from _rescaled(base, random, layer_weights(base.good), (4.0, 8.0, 16.0))


def saturated_bias(base: Base, random: Random) -> Iterator[Planted]:
    """The integers of a bias are clipped: those of int32 at a power of two, those of 8 bits by too small a scale."""
    for pair in shuffled(pairs_of(base.good, "bias"), random):
        encoding, names = known(pair), culprits(base.good, pair)
        for shift in (1, 2, 3):
            if pair.q is not None:
                bad = with_encoding(base.good, pair, scaled(encoding, 0.5**shift))
            else:
                integers = known_array(pair.stored)
                bound = 2 ** max(int(np.abs(integers).max()).bit_length() - shift, 1)
                bad = with_integers(base.good, pair, np.clip(integers, -bound, bound - 1), encoding)
            yield Planted(place=pair.tensor, bad=bad, culprits=names)


def forced_together(base: Base, random: Random) -> Iterator[Planted]:
    """Two tensors read one scale, that of the tensor with at least four times the range: operands of one node first."""
    pairs = pairs_of(base.good, "activation")
    couples = [
        (one, other)
        for one, other in itertools.permutations(pairs, 2)
        if known(one).dtype == known(other).dtype and known(other).scale[0] >= 4 * known(one).scale[0]
    ]
    together = [(a, b) for a, b in couples if {n for n, _ in readers(a.output)} & {n for n, _ in readers(b.output)}]
    apart = [couple for couple in couples if couple not in together]
    for small, large in [*shuffled(together, random), *shuffled(apart, random)]:
        bad = with_common(base.good, small, large)
        yield Planted(place=small.tensor, bad=bad, culprits=culprits(base.good, small))


def wrong_axis(base: Base, random: Random) -> Iterator[Planted]:
    """Scales per channel stand along the other axis of a weight, where that has as many indices, or at the wrong channels."""
    for pair in shuffled(layer_weights(base.good), random):
        encoding = known(pair)
        if encoding.axis is None or pair.q is not None:
            continue
        stored = known_array(pair.stored)
        weight, axis = dequantize(stored, encoding), 1 - encoding.axis
        order = random.permutation(len(encoding.scale))
        forms = [replace(encoding, scale=tuple(encoding.scale[i] for i in order))]
        if stored.shape[axis] == len(encoding.scale):
            forms.insert(0, replace(encoding, axis=axis))
        for new in forms:
            bad = with_integers(base.good, pair, quantize(weight, new), new)
            yield Planted(place=pair.tensor, bad=bad, culprits=culprits(base.good, pair))


def outlier_channel(base: Base, random: Random) -> Iterator[Planted]:
    """One channel of a weight, 2^5 times as large, sets the scale of all; the layer behind takes it back:
    (W_c·2^5, B_c·2^5) → Relu → V_c·2^-5 is the same function."""
    for node in shuffled([n for n in base.float_model.graph if n.op_type in ("Conv", "Gemm")], random):
        relu = only_reader(node.outputs[0])
        behind = None if relu is None or relu.op_type != "Relu" else only_reader(relu.outputs[0])
        if relu is None or behind is None or behind.op_type != node.op_type or integer_of(behind, "group", 1) != 1:
            continue
        channel = int(random.integers(known_array(node.inputs[1]).shape[_channels(node)]))
        float_model = copy_model(base.float_model)
        named, namer = {n.name: n for n in float_model.graph}, Namer(float_model)
        _multiply(named[node.name], 1, _channels(node), channel, 2.0**5, namer)
        _multiply(named[node.name], 2, 0, channel, 2.0**5, namer)
        _multiply(named[behind.name], 1, 1 - _channels(behind), channel, 2.0**-5, namer)
        bad = base.quantized(float_model)
        grown = {value.name for value in (node.inputs[1], node.outputs[0], relu.outputs[0]) if value is not None}
        pairs = [p for p in (*pairs_of(bad, "weight"), *pairs_of(bad, "activation")) if p.tensor in grown]
        yield Planted(
            place=f"{label(node)}:{channel}",
            bad=bad,
            culprits=frozenset().union(*(culprits(bad, pair) for pair in pairs)),
            float_model=float_model,
        )


def _channels(node: ir.Node) -> int:
    """The axis of the output channels of a layer's weight."""
    return 0 if node.op_type == "Conv" or integer_of(node, "transB", 0) else 1


def _multiply(node: ir.Node, index: int, axis: int, channel: int, factor: float, namer: Namer) -> None:
    if index >= len(node.inputs) or node.inputs[index] is None:
        return
    value = own_initializer(node, index, namer)
    made = known_array(value).copy()
    made[(slice(None),) * axis + (channel,)] *= np.float32(factor)
    set_constant(value, made)


def wrong_boundary(base: Base, random: Random) -> Iterator[Planted]:
    """x → float node → y: the pair that its neighbour keeps on x or y has the encoding of the other side."""
    for unit in shuffled([unit for unit in units_of(base.float_model) if unit.is_compute], random):
        names = [label(node) for node in unit.nodes]
        good = base.quantized(base.float_model, *names)
        found = {pair.tensor: pair for pair in pairs_of(good, "activation")}
        x, y = (found.get(v.name or "") if v is not None else None for v in (unit.core.inputs[0], unit.last.outputs[0]))
        if x is None or y is None or known(x).dtype != known(y).dtype or known(x) == known(y):
            continue
        for here, other in ((x, y), (y, x)):
            bad = with_encoding(good, here, known(other))
            place = f"{names[0]}:{here.tensor}"
            yield Planted(place=place, bad=bad, culprits=culprits(good, here, *names), good=good)


def excluded_neighbour(base: Base, random: Random) -> Iterator[Planted]:
    """x → layer → t → Relu: a channel lies far below 0, which the Relu cuts off. The layer is left float, and the pair on t, which
    stands for that alone, has the range of t, as it has from who looks at t alone."""
    layers = [unit for unit in units_of(base.float_model) if unit.tail and unit.last.op_type in ("Clip", "Relu")]
    for unit in shuffled([unit for unit in layers if len(unit.core.inputs) == 3], random):
        t = unit.last.inputs[0]
        assert t is not None
        values, name = base.seen(base.float_model, t.name or ""), t.name or ""
        channel = int(random.integers(known_array(unit.core.inputs[2]).size))
        for times in (4.0, 16.0, 64.0):
            float_model = copy_model(base.float_model)
            core = next(node for node in float_model.graph if node.name == unit.core.name)
            _lower(core, channel, times * float(np.abs(values).max()), Namer(float_model))
            excluded = base.quantized(float_model, label(core))
            pair = next((pair for pair in pairs_of(excluded, "activation") if pair.tensor == name), None)
            if pair is None:
                break
            bad = with_encoding(excluded, pair, spanning(known(pair), base.seen(float_model, name)))
            yield Planted(
                place=name,
                bad=bad,
                culprits=culprits(excluded, pair, *map(label, unit.nodes)),
                float_model=float_model,
                good=base.quantized(float_model),
            )


def _lower(node: ir.Node, channel: int, by: float, namer: Namer) -> None:
    value = own_initializer(node, 2, namer)
    made = known_array(value).copy()
    made[channel] -= np.float32(by)
    set_constant(value, made)


def wrong_zero_point(base: Base, random: Random) -> Iterator[Planted]:
    """The zero point is off by several steps: of an activation one end of the range is cut off, of stored integers, which stay,
    all values are shifted."""
    stored = [pair for pair in layer_weights(base.good) if pair.q is None]
    for pair in shuffled([*pairs_of(base.good, "activation"), *stored], random):
        encoding, integers = known(pair), None if pair.q is not None else known_array(pair.stored)
        low, high = integer_range(encoding.dtype, symmetric=False)
        for steps, sign in itertools.product((4, 8, 16, 32, 48), shuffled([-1, 1], random)):
            zeros = tuple(int(zero) + sign * steps for zero in encoding.zero_point)
            if not low <= min(zeros) <= max(zeros) <= high:
                continue
            new = replace(encoding, zero_point=zeros)
            bad = (
                with_encoding(base.good, pair, new)
                if integers is None
                else with_integers(base.good, pair, integers, new)
            )
            yield Planted(place=pair.tensor, bad=bad, culprits=culprits(base.good, pair))


#: By name. Three bases each at least, of power-of-two scales and others, per tensor and per channel where the kind allows.
KINDS: Mapping[str, FaultKind] = {
    "scale-too-large": FaultKind(
        cause="rounding", plant=scale_too_large,
        bases=(("digits", "xint8"), ("mobilenet_block", "u8w8"), ("vit_block", "a8w8")),
    ),
    "scale-too-small": FaultKind(
        cause="clipping", plant=scale_too_small,
        bases=(("detector", "xint8"), ("vit_block", "8a8w"), ("digits", "a8w8")),
    ),
    "weight-scale-too-small": FaultKind(
        cause="weight clipping", plant=weight_scale_too_small,
        bases=(("mobilenet_block", "u8w8"), ("digits", "xint8"), ("vit_block", "a8w8")),
    ),
    "weight-scale-too-large": FaultKind(
        cause="weight", plant=weight_scale_too_large,
        bases=(("vit_block", "8a8w"), ("detector", "vint8"), ("digits", "a8w8")),
    ),
    "saturated-bias": FaultKind(
        cause="bias", plant=saturated_bias,
        bases=(("digits", "xint8"), ("mobilenet_block", "u8w8"), ("external_data", "a8w8")),
    ),
    "forced-together": FaultKind(
        cause="shared", plant=forced_together,
        bases=(("vit_block", "a8w8"), ("detector", "u8w8"), ("vit_block", "xint8")),
    ),
    "wrong-axis": FaultKind(
        cause="axis", plant=wrong_axis,
        bases=(("digits", "u8w8"), ("detector", "8a8w"), ("mobilenet_block", "u8w8")),
    ),
    "outlier-channel": FaultKind(
        cause="outlier", plant=outlier_channel,
        bases=(("digits", "xint8"), ("detector", "a8w8"), ("external_data", "vint8")),
    ),
    "wrong-boundary": FaultKind(
        cause="another's grid", plant=wrong_boundary,
        bases=(("vit_block", "xint8"), ("digits", "8a8w"), ("detector", "a8w8")),
    ),
    "wrong-zero-point": FaultKind(
        cause="zero point", plant=wrong_zero_point,
        bases=(("vit_block", "u8w8"), ("digits", "8a8w"), ("mobilenet_block", "a8w8")),
    ),
    "excluded-neighbour": FaultKind(
        cause="boundary", plant=excluded_neighbour,
        bases=(("digits", "u8w8"), ("mobilenet_block", "u8w8"), ("detector", "8a8w")),
    ),
}  # fmt: skip
