"""The residual stream of a decoder: the values that its layers read through norms and add to, and all that touches them.

    table → Gather → x₀;  x₁ = x₀ + layers(norm(x₀));  x₂ = x₁ + layers(norm(x₁)) …;  logits = head(norm(x_n))

It is followed from a lookup onwards, by what the nodes compute: sums of stream values, scalar factors, movement along other axes
than the last; what is added must come from a layer with a weight, from a table or be constant. It ends at layers, and at norms
by the mean square of the last axis,

    y = γ ∘ x/√(mean(x²) + ε)

as one operator or spelt out. A stream whose rows x are all multiplied by one orthogonal Q, x' = x·Q, has the same mean squares:
with Q in the tables, in the weights of the layers that write it, and Qᵀ in those that read it (γ drawn into them first), the
model computes the same."""

from __future__ import annotations

from dataclasses import field

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import (
    FLOAT_TYPES,
    constant_array,
    dtype_of,
    integer_of,
    integers_of,
    is_standard,
    label,
    only_reader,
    readers,
)
from qdq_passes.numerics.arrays import Reals
from qdq_passes.qdq.look.weighted_layers import WeightedLayer, weighted_layer
from qdq_passes.recover.look.channel_flow import why_fixed
from qdq_passes.recover.look.channel_steps import Sizes

#: Norms of one operator, by the mean square: of x with its gain, and of x + skip with gain and a bias of the sum.
_NORMS = ("RMSNormalization", "SimplifiedLayerNormalization")
_SKIP_NORM = "SkipSimplifiedLayerNormalization"
_MICROSOFT = "com.microsoft"
#: (node, index of an input): where a constant is read.
Place = tuple[ir.Node, int]


class _Refused(Exception):
    """Why a stream cannot be rotated."""


@dataclass(eq=False)
class Stream:
    """What touches a stream.

    Args:
        width: numbers in a row.
        tables: (lookup, index of its table [V, D]).
        addends: constants that are added to it, [D] but for axes of size 1.
        writers: layers whose outputs are added to it.
        readers: layers that read it, and the gain [D] between it and each.
        gains: gains on the way, which become 1.
    """

    width: int
    tables: list[Place] = field(default_factory=list)
    addends: list[Place] = field(default_factory=list)
    writers: list[WeightedLayer] = field(default_factory=list)
    readers: list[tuple[WeightedLayer, Reals]] = field(default_factory=list)
    gains: list[Place] = field(default_factory=list)


def lookup_width(node: ir.Node) -> int | None:
    """Width of the rows that ``node`` takes out of a constant table of floats; None where it is no such lookup."""
    if not is_standard(node, "Gather") or integer_of(node, "axis", 0) != 0:
        return None
    value, table = node.inputs[0], constant_array(node.inputs[0])
    if value is None or table is None or table.ndim != 2 or dtype_of(value) not in (*FLOAT_TYPES,):
        return None
    return int(table.shape[1]) if table.shape[1] > 1 else None


def stream_from(lookup: ir.Node, sizes_of: Sizes) -> Stream | str:
    """The stream that begins with ``lookup``; or why it cannot be rotated."""
    width = lookup_width(lookup)
    assert width is not None
    walk = _Walk(Stream(width), sizes_of)
    try:
        walk.take_in(lookup.outputs[0])
        walk.run()
    except _Refused as refused:
        return str(refused)
    return walk.stream if walk.stream.readers else "no layer reads it"


class _Walk:
    def __init__(self, stream: Stream, sizes_of: Sizes) -> None:
        self.stream, self._sizes_of = stream, sizes_of
        self._known: dict[ir.Value, None] = {}
        self._todo: list[ir.Value] = []
        self._norms: set[ir.Node] = set()  # of one operator, seen already

    def run(self) -> None:
        """Follow what was taken in to its ends."""
        while self._todo:
            value = self._todo.pop(0)
            if value.is_graph_output():
                raise _Refused(f"{value.name} is an output of the graph")
            uses = [use for use in readers(value) if use[0] not in self._norms]
            if other := next((node for node, _ in uses if node.graph is not value.graph), None):
                raise _Refused(f"{label(other)} reads it in a body")
            own = set[ir.Node]()
            for node, _ in uses:
                if (norm := self._spelt_out(value, node)) is not None:
                    own |= norm[0]
                    self._follow(norm[1], np.ones(self.stream.width))
            for node, position in dict.fromkeys((node, position) for node, position in uses if node not in own):
                self._read(node, position)

    def take_in(self, value: ir.Value | None) -> None:
        """``value`` belongs to the stream: so does what makes it."""
        if value is None or value in self._known:
            return
        node = value.producer()
        if node is None or value.graph is None:
            raise _Refused(f"{value.name} is added, an input or a constant that is no row")
        self._known[value] = None
        self._todo.append(value)
        layer = weighted_layer(node)
        if isinstance(layer, WeightedLayer):
            self.stream.writers.append(self._checked(layer, layer.form.sizes[1]))
            if node.op_type == "Gemm" and len(node.inputs) > 2 and node.inputs[2] is not None:
                self._add(node, 2)
        elif lookup_width(node) == self.stream.width:
            if any(lookup_width(reader) is None for reader, _ in readers(node.inputs[0])):  # type: ignore[arg-type]
                raise _Refused(f"the table of {label(node)} is the weight of a layer too: the embedding is tied")
            self.stream.tables.append((node, 0))
        elif is_standard(node, "Add") and len(node.inputs) == 2:
            for index in (0, 1):
                self._take_in_or_add(node, index)
        elif _is_norm(node) and value is _sum_of(node):
            self._take_in_sum(node)
        elif self._is_step(node):
            self.take_in(node.inputs[1 if _scalar_at(node) == 0 else 0])
        else:
            raise _Refused(f"{label(node)} adds to it, and is no layer with a weight")

    def _take_in_or_add(self, node: ir.Node, index: int) -> None:
        if constant_array(node.inputs[index]) is not None:
            self._add(node, index)
        else:
            self.take_in(node.inputs[index])

    def _take_in_sum(self, node: ir.Node) -> None:
        """What a norm adds up first: x and skip, and a bias."""
        for index in (0, 1):
            self._take_in_or_add(node, index)
        if len(node.inputs) > 3 and node.inputs[3] is not None:
            self._add(node, 3)

    def _add(self, node: ir.Node, index: int) -> None:
        array = constant_array(node.inputs[index])
        if array is None or array.ndim == 0 or array.shape[-1] != self.stream.width:
            raise _Refused(f"{label(node)} adds what is not one number a channel")
        if (node, index) not in self.stream.addends:
            self.stream.addends.append((node, index))

    def _read(self, node: ir.Node, position: int) -> None:
        """Follow one reader of a stream value."""
        layer = weighted_layer(node)
        if isinstance(layer, WeightedLayer) and layer.data == position:
            self._end(layer, np.ones(self.stream.width))
        elif is_standard(node, "Add") and len(node.inputs) == 2:
            self.take_in(node.outputs[0])
        elif _is_norm(node) and position <= int(node.op_type == _SKIP_NORM):
            self._norm(node)
        elif self._is_step(node):
            self.take_in(node.outputs[0])
        else:
            raise _Refused(f"{label(node)} reads it, and is neither a layer nor a norm by the mean square")

    def _norm(self, node: ir.Node) -> None:
        """Follow a norm of one operator, which may add up first."""
        if node in self._norms:
            return
        self._norms.add(node)
        is_skip = node.op_type == _SKIP_NORM
        if is_skip:
            self._take_in_sum(node)
            self.take_in(_sum_of(node))
        elif integer_of(node, "axis", -1) not in (-1, self._rank(node.inputs[0]) - 1):
            raise _Refused(f"{label(node)} normalizes over several axes")
        if any(out.uses() or out.is_graph_output() for out in node.outputs[1:3]):
            raise _Refused(f"others read what {label(node)} normalizes by")
        self._follow(node.outputs[0], self._gain(node, 2 if is_skip else 1))

    def _gain(self, node: ir.Node, index: int) -> Reals:
        """The gain that is input ``index`` of ``node``; it is to become 1."""
        array = constant_array(node.inputs[index])
        if array is None or array.size not in (1, self.stream.width) or (array.ndim and array.shape[-1] != array.size):
            raise _Refused(f"the gain of {label(node)} is not one constant a channel")
        self.stream.gains.append((node, index))
        return np.broadcast_to(array.astype(np.float64).reshape(-1), self.stream.width)

    def _follow(self, value: ir.Value, gain: Reals) -> None:
        """From a normalized value to the layers that read it."""
        if value.is_graph_output():
            raise _Refused(f"{value.name} is an output of the graph")
        for node, position in readers(value):
            layer = weighted_layer(node)
            if isinstance(layer, WeightedLayer) and layer.data == position and node.graph is value.graph:
                self._end(layer, gain)
            elif node.graph is value.graph and is_standard(node, "Mul") and self._is_gain(node, 1 - position):
                self._follow(node.outputs[0], gain * self._gain(node, 1 - position))
            elif node.graph is value.graph and self._is_step(node):
                self._follow(node.outputs[0], gain)
            else:
                raise _Refused(f"{label(node)} reads what is normalized, and is no layer with a weight")

    def _is_gain(self, node: ir.Node, index: int) -> bool:
        array = constant_array(node.inputs[index])
        return array is not None and array.size == self.stream.width and array.shape[-1] == array.size

    def _end(self, layer: WeightedLayer, gain: Reals) -> None:
        self.stream.readers.append((self._checked(layer, layer.form.sizes[2]), gain))

    def _checked(self, layer: WeightedLayer, channels: int) -> WeightedLayer:
        form = layer.form
        if reason := why_fixed(layer):
            raise _Refused(reason)
        if form.kind != "product" or len(form.shape) != 2 or layer.weight != 1 or form.across:
            raise _Refused(f"{label(layer.node)} is no product with a matrix along the last axis")
        if channels != self.stream.width:
            raise _Refused(f"{label(layer.node)} has {channels} channels, not {self.stream.width}")
        return layer

    def _rank(self, value: ir.Value | None) -> int:
        sizes = self._sizes_of(value) if value is not None else None
        if sizes is None:
            raise _Refused(f"the number of axes of {value.name if value else ''} is not known; run infer-shapes first")
        return len(sizes)

    def _is_step(self, node: ir.Node) -> bool:
        """Whether ``node`` hands rows on: another type, a scalar factor, some of the rows."""
        if is_standard(node, "Cast"):
            return dtype_of(node.outputs[0]) in (*FLOAT_TYPES,)
        if is_standard(node, "Mul", "Div"):
            scalar = _scalar_at(node)
            return scalar is not None and not (node.op_type == "Div" and scalar == 0)
        if is_standard(node, "Gather") and constant_array(node.inputs[0]) is None:
            rank = self._rank(node.inputs[0])
            return integer_of(node, "axis", 0) % rank != rank - 1
        if is_standard(node, "Slice") and len(node.inputs) > 3:
            axes, rank = constant_array(node.inputs[3]), self._rank(node.inputs[0])
            return axes is not None and all(int(axis) % rank != rank - 1 for axis in axes.ravel())
        return is_standard(node, "Identity")

    def _spelt_out(self, value: ir.Value, node: ir.Node) -> tuple[set[ir.Node], ir.Value] | None:
        """(the readers of ``value`` in it, x/√(mean(x²) + ε)) of the norm of ``value`` that begins with the square ``node``."""
        if not _is_square(node, value):
            return None
        mean = only_reader(node.outputs[0])
        if mean is None or not is_standard(mean, "ReduceMean") or not integer_of(mean, "keepdims", 1):
            return None
        axes = integers_of(mean, "axes") or [int(n) for n in _numbers(mean, 1)]
        if len(axes) != 1 or axes[0] % (rank := self._rank(value)) != rank - 1:
            return None
        step, factor, is_root, is_inverse = only_reader(mean.outputs[0]), mean.outputs[0], False, False
        while step is not None and (kind := _factor_step(step, factor)) is not None:
            is_root, is_inverse = is_root or "root" in kind, is_inverse != ("inverse" in kind)
            factor = step.outputs[0]
            step = only_reader(factor)
        wanted = "Mul" if is_inverse else "Div"
        if step is None or not is_root or not is_standard(step, wanted) or value not in step.inputs:
            return None
        if wanted == "Div" and step.inputs[0] is not value:
            return None
        return {node, step}, step.outputs[0]


def _is_norm(node: ir.Node) -> bool:
    is_skip = node.op_type == _SKIP_NORM and node.domain == _MICROSOFT
    return is_skip or (node.op_type in _NORMS and node.domain in ("", "ai.onnx", _MICROSOFT))


def _sum_of(node: ir.Node) -> ir.Value | None:
    """What a norm that adds first hands on."""
    is_read = len(node.outputs) > 3 and (node.outputs[3].uses() or node.outputs[3].is_graph_output())
    return node.outputs[3] if is_read else None


def _numbers(node: ir.Node, index: int) -> list[float]:
    array = constant_array(node.inputs[index]) if index < len(node.inputs) else None
    return [] if array is None else [float(n) for n in array.ravel()]


def _scalar_at(node: ir.Node) -> int | None:
    """Index of the input of a product that is one constant number."""
    return next((index for index in (0, 1) if len(_numbers(node, index)) == 1), None)


def _is_square(node: ir.Node, value: ir.Value) -> bool:
    if is_standard(node, "Pow"):
        return node.inputs[0] is value and _numbers(node, 1) == [2.0]
    return is_standard(node, "Mul") and node.inputs[0] is value and node.inputs[1] is value


def _factor_step(node: ir.Node, value: ir.Value) -> tuple[str, ...] | None:
    """What ``node`` makes of the mean square ``value`` on its way to a factor: ("root", "inverse"), or nothing of both."""
    if is_standard(node, "Sqrt"):
        return ("root",)
    if is_standard(node, "Reciprocal"):
        return ("inverse",)
    if is_standard(node, "Pow") and node.inputs[0] is value:
        power = _numbers(node, 1)
        return ("root",) if power == [0.5] else ("root", "inverse") if power == [-0.5] else None
    if is_standard(node, "Add") and _scalar_at(node) is not None:
        return ()
    if is_standard(node, "Div") and node.inputs[1] is value and _scalar_at(node) == 0:
        return ("inverse",)
    return None
