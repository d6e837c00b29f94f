"""restore-relu

With zero point z = qmin the integers stand for [0, (qmax − qmin)·s]: Q saturates at 0, so Q(x) = Q(max(x, 0)) bit for bit.
Quantizers use that to leave a Relu out of the file; once the pair is removed, nothing clamps any more. A Clip(0, b) goes
likewise, a Clip(a, b) too, and where calibration saw values at both, the range ends there: Q(x) = Q(clip(x, a, b))."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass
from qdq_passes.graph.edit import Namer
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.reencode import real_range
from qdq_passes.qdq.edit.clips import put_activation
from qdq_passes.qdq.look.pairs import encoding_of, half_pairs, is_named, qdq_pairs
from qdq_passes.qdq.look.value_ranges import Interval, begins_at_zero, whole_bounds
from qdq_passes.select.selectors import ALL, Selector, select

_NUMBERS = re.compile(r"_?[0-9]+")
#: Names that torch.onnx.export(dynamo=True) gives what is none of the module's operators.
_NUMBERED = re.compile(r"(val|getitem)(_[0-9]+)?")


@dataclass(frozen=True)
class RestoreRelu(Pass):
    """Put a Relu where a zero point does its work, so that it is still there when the pair is removed.

    Graph: ``Conv → t → Q(z = qmin) → DQ`` → ``Conv → t_Relu_Input → Relu → t → Q(z = qmin) → DQ``; behind a Conv, Add… whose
    range ends at two whole numbers a and b, as that of a Relu6 does, a ``Clip(a, b)``; before a Q that writes an integer output
    likewise.
    Requires: constant scales and zero points.
    Keeps: names of inputs and outputs; numerics bit-exact, as the Q saturates at 0, or at a and b, anyway.
    Bounds that calibration did not reach are those of most values of the same name but for its numbers: ``hardtanh_4`` ends at
    0.93, most of the other ``hardtanh`` at 6.
    Skips: values that are never below 0 (behind a Relu, a Sigmoid, another such pair, sums and products of such…), or by less
    than half a step (behind a Gelu); inputs of the graph, which were just calibrated on numbers that are not; encodings that
    reach below 0; values that bear the name which exporters give what their node writes, ``N_output_0`` of ``N``, where that of
    a Relu would be left had one been there. Bounds that are not whole, or that calibration did not reach, cannot be told: a Relu
    stands for those.

    Args:
        select: pairs, by their float value.
        by_name: believe the names of values. A quantizer to operators on integers lets what it leaves out give way to what is
            before it, whose name stays: files of QLinear operators want ``false``.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL
    by_name: bool = True

    def run(self, model: ir.Model) -> Iterator[Change]:
        """One Relu per value, for all its pairs."""
        hit = select(model, self.select)
        nodes, values = set(hit.nodes), set(hit.values)
        pairs = [pair for pair in qdq_pairs(model) if self.select.is_all or is_named(pair, nodes, values)]
        quantizers = [pair.q for pair in pairs if pair.q is not None and pair.q is not pair.dq and pair.stored is None]
        for half in half_pairs(model):
            if half.is_q and (self.select.is_all or half.node in nodes or half.node.inputs[0] in values):
                quantizers.append(half.node)
        namer, made = Namer(model), dict[ir.Value, ir.Value]()
        usual = _usual([clip for q in quantizers if (clip := self._clip(q)) is not None]) if self.by_name else {}
        ends: dict[ir.Value | None, set[Interval | None]] = {}
        for q in quantizers:
            clip = self._clip(q)
            ends.setdefault(q.inputs[0], set()).add(None if clip is None else clip.ends(usual))
        for q in quantizers:
            clip, source = self._clip(q), q.inputs[0]
            if clip is not None:
                shared = ends[source]
                yield put_activation(model, q, namer, made, next(iter(shared)) if len(shared) == 1 else None)
            elif source in made:
                yield put_activation(model, q, namer, made)

    def _clip(self, q: ir.Node) -> _Clip | None:
        """What ``q`` cuts off that is to be cut off without it; None for nothing."""
        source, encoding = q.inputs[0], encoding_of(q)
        if encoding is None or source is None or (self.by_name and _is_named_after_its_node(source)):
            return None
        bounds = whole_bounds(source, encoding)
        if bounds is None and not begins_at_zero(source, encoding):
            return None
        return _Clip(source.name or "", encoding, bounds)


@dataclass(frozen=True)
class _Clip:
    """What a QuantizeLinear cuts off.

    Args:
        name: of the float value.
        encoding: of its integers.
        bounds: the whole numbers at which its range ends; None where it begins at 0 alone.
    """

    name: str
    encoding: Encoding
    bounds: Interval | None

    @property
    def stem(self) -> str:
        """The last part of the name without its numbers."""
        return _NUMBERS.sub("", self.name.rpartition("/")[2])

    def ends(self, usual: Mapping[str, Interval]) -> Interval | None:
        """Where it cuts off, the range itself or ``usual`` bounds of the name beyond it; None where at 0 alone."""
        return self.bounds or self.within(usual.get(self.stem))

    def within(self, bounds: Interval | None) -> Interval | None:
        """``bounds`` if the range ends there or before."""
        return bounds if bounds is not None and real_range(self.encoding)[1].max() <= bounds[1] else None


def _usual(found: Sequence[_Clip]) -> dict[str, Interval]:
    """Stem of names → the bounds from 0 on of more than half of the values of such names."""
    by_stem: dict[str, list[Interval | None]] = {}
    for clip in found:
        by_stem.setdefault(clip.stem, []).append(clip.bounds)
    most = {stem: Counter(bounds).most_common(1)[0] for stem, bounds in by_stem.items() if stem}
    return {
        stem: bounds
        for stem, (bounds, count) in most.items()
        if bounds is not None and bounds[0] == 0 and 2 * count > len(by_stem[stem])
    }


def _is_named_after_its_node(value: ir.Value) -> bool:
    """Whether the producer of ``value`` always wrote it: who leaves an activation out keeps the name of what that wrote. As
    torch.onnx names values (its older exporter after the node; the other ``node_relu`` → ``relu``, and by numbers what no
    operator of the module is, as no activation is), and tf2onnx."""
    producer = value.producer()
    if producer is None or not producer.name or not value.name:
        return False
    if producer.name.startswith("node_") and _NUMBERED.fullmatch(value.name):
        return True
    index = value.index()
    return (
        value.name in (f"{producer.name}_output_{index}", f"{producer.name}:{index}")
        or producer.name == f"node_{value.name}"
    )
