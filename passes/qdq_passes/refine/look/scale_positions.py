"""Positions of the scales 2^-p around the operators of a QDQ graph, and a plan of how they move.

The *half* of a tensor is the Q or DQ node through which an operator sees it. Halves that read one tensor move together: a Q with
its DQs, all pairs on one value, and what data movement ties to them by the same scale initializer. Another tensor that merely
reads an equal constant (a file with deduplicated constants) stays. With ``reference`` whoever reads the same scale initializer
moves, as in the quantizer of the Vitis line."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable
from functools import cached_property

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.encode.edit.encoding_policy import Ranges
from qdq_passes.graph.operators.activations import ACTIVATIONS, AVERAGE_POOLS, PRODUCERS, is_relu6_or_relu1
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_qdq, is_quantize, is_quantize_dequantize
from qdq_passes.graph.uses import DATA_MOVEMENT, all_nodes, constant_array, is_constant, is_standard, main_nodes
from qdq_passes.numerics import pow2
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.biases import CoupledBias, coupled_biases
from qdq_passes.qdq.look.pairs import encoding_of
from qdq_passes.refine.look.position_groups import (
    PositionGroup,
    is_zero_at,
    position_groups,
    readers_of,
    stand_in,
    tensor_of,
)

#: Operators that the DPU computes with a factor: a Mul may stand between them and their pair.
_WITH_FACTOR = (*AVERAGE_POOLS, "HardSigmoid")
#: Operators without pair before them through which an input is still what an earlier DQ wrote.
_TRANSPARENT = DATA_MOVEMENT | {"Pad", "MaxPool"}


@dataclass(frozen=True, eq=False)
class Move:
    """What has become of one group of halves.

    Args:
        nodes: Q and DQ nodes that move together.
        old: their position in the file.
        new: where they go.
    """

    nodes: tuple[ir.Node, ...]
    old: int
    new: int


class Positions:
    """Positions as operators of the main graph see them; built once, then moved on paper only.

    Args:
        model: a QDQ graph; it is read and not changed.
        reference: read as the reference does, its restrictions included (see `output`, `input`).
        any_scale: halves with any per-tensor scale and zero point count, not only centered powers of two; they have encodings
            and no positions.
        ranges: what calibration saw, where that is known: what was 0 throughout adopts any position.
        apart: (operator, input) that are to have a pair of their own, a `stand_in` here.
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        reference: bool = False,
        any_scale: bool = False,
        ranges: Ranges | None = None,
        apart: Collection[tuple[ir.Node, int]] = (),
    ) -> None:
        self.reference, self._ranges, self._apart = reference, ranges or {}, frozenset(apart)
        #: (operator, input) → the half of its planned pair.
        self.own: dict[tuple[ir.Node, int], ir.Node] = {}
        #: Operator → why a half that it has was left out.
        self.notes: dict[ir.Node, str] = {}
        self._any_scale, self._nodes = any_scale, all_nodes(model)
        self._place: dict[ir.Node, int] = {node: place for place, node in enumerate(main_nodes(model))}
        self._by_type: dict[str, list[ir.Node]] = {}
        for node in self._place:
            if node.domain in ("", "ai.onnx"):
                self._by_type.setdefault(node.op_type, []).append(node)
        self._groups = position_groups(filter(is_qdq, self._nodes), by_initializer=reference)
        self._halves: dict[tuple[ir.Node, int, bool], ir.Node | None] = {}
        self._reasons: dict[PositionGroup, str | None] = {}
        self._first: dict[PositionGroup, int] = {}
        self._now: dict[PositionGroup, int] = {}
        self._zeros: dict[PositionGroup, bool] = {}

    def nodes(self, op_types: Iterable[str]) -> list[ir.Node]:
        """The operators of ``op_types``, in the order of the file."""
        lists = [self._by_type.get(op_type, []) for op_type in op_types]
        found = [node for nodes in lists for node in nodes]
        return found if sum(map(bool, lists)) < 2 else sorted(found, key=self._place.__getitem__)

    def input(self, node: ir.Node, index: int, *, beyond: bool = False) -> ir.Node | None:
        """The DQ that writes input ``index`` of ``node``, if it has a position.

        Where none does: the DQ before what stands between and only moves values; in the reference only with ``beyond`` (pools),
        but before any one operator.
        """
        key = (node, index, beyond)
        if key not in self._halves:
            half = self._known(node, self._find_input(node, index, beyond))
            self._halves[key] = self._own(node, index, half) if half and (node, index) in self._apart else half
        return self._halves[key]

    def _own(self, node: ir.Node, index: int, half: ir.Node) -> ir.Node:
        """The half of the planned pair of input ``index`` of ``node``, which starts where ``half`` is in the file."""
        if (node, index) not in self.own:
            group = stand_in(half)
            self.own[node, index] = group.nodes[0]
            self._groups[group.nodes[0]] = group
            self._first[group] = self._now[group] = self.in_file(half)
        return self.own[node, index]

    def output(self, node: ir.Node) -> ir.Node | None:
        """The first Q that reads what ``node`` writes, if it has a position: directly, or behind the factor of a pool or hard
        sigmoid and behind an activation that has no pair before it.

        In the reference only behind the operators it fuses, and never behind an activation that follows a factor: its factors
        stand last in the list of nodes, which it goes through once.
        """
        key = (node, -1, False)
        if key not in self._halves:
            self._halves[key] = self._known(node, self._find_output(node))
        return self._halves[key]

    def __getitem__(self, half: ir.Node) -> int:
        """The position of ``half`` as planned."""
        return self._now[self._groups[half]]

    def __setitem__(self, half: ir.Node, position: int) -> None:
        """Move ``half`` and all that moves with it."""
        self._now[self._groups[half]] = position

    def together(self, half: ir.Node) -> tuple[ir.Node, ...]:
        """All Q and DQ nodes that move with ``half``."""
        return self._groups[half].nodes

    def origin(self, half: ir.Node) -> ir.Node:
        """The half in the graph whose tensor ``half`` is about: another one for that of a planned pair."""
        return self._groups[half].origin or half

    def tensor(self, half: ir.Node) -> str:
        """Name of the float tensor that ``half`` is about."""
        return tensor_of(self.origin(half))

    def readers(self, half: ir.Node) -> list[ir.Node | None]:
        """The nodes that read the tensors of ``half`` and of what moves with it; None stands for a graph output."""
        return readers_of(self.together(half))

    def is_zero(self, half: ir.Node) -> bool:
        """Whether the tensors that move with ``half`` are 0 throughout, which every scale holds; never in the reference."""
        group = self._groups[self.origin(half)]
        if group not in self._zeros:
            self._zeros[group] = not self.reference and all(is_zero_at(node, self._ranges) for node in group.nodes)
        return self._zeros[group]

    def encoding(self, half: ir.Node) -> Encoding:
        """The encoding of ``half`` in the file."""
        found = encoding_of(self.origin(half))
        assert found is not None
        return found

    def encoding_at(self, half: ir.Node, position: int) -> Encoding:
        """The encoding of ``half`` with the scale 2^-position."""
        encoding = self.encoding(half)
        return dataclasses.replace(encoding, scale=(pow2.scale_of(position),))

    def in_file(self, half: ir.Node) -> int:
        """The position of ``half`` in the file."""
        return self._first[self._groups[half]]

    def why_not(self, half: ir.Node, position: int) -> str | None:
        """Why the scale of ``half`` cannot be 2^-position, in words: its float type does not hold it as a normal number."""
        for node in self.together(self.origin(half)):
            array = constant_array(node.inputs[1])
            assert array is not None
            is_normal = -pow2.MAX_EXPONENT <= position <= -pow2.MIN_EXPONENT
            with np.errstate(over="ignore", under="ignore"):
                scale = np.array(pow2.scale_of(position) if is_normal else 0.0).astype(array.dtype)
            if pow2.position_of(float(scale)) != position:
                return f"2^{-position} is no {array.dtype.name}"
        return None

    def state(self) -> dict[ir.Node, int]:
        """Every position as planned, by the first half of its tensor."""
        return {group.nodes[0]: position for group, position in self._now.items()}

    def moves(self) -> list[Move]:
        """What is elsewhere than in the file, in the order in which it was first looked at; without planned pairs."""
        moved = [group for group, first in self._first.items() if self._now[group] != first and not group.origin]
        return [Move(group.nodes, self._first[group], self._now[group]) for group in moved]

    def restart_constants(self) -> list[ir.Node]:
        """Put weights and biases back to where the file has them; the first node of each that was elsewhere."""
        moved = [group for group, first in self._first.items() if self._now[group] != first and group.is_constant]
        for group in moved:
            self._now[group] = self._first[group]
        return [group.nodes[0] for group in moved]

    @cached_property
    def coupled(self) -> list[CoupledBias]:
        """Biases at s_x·s_w, as the file has them: they follow, whatever their layer's scales become."""
        return coupled_biases(self._nodes)

    def follows(self, bias: ir.Node) -> bool:
        """Whether ``bias`` is the DQ of a bias at s_x·s_w."""
        return self.encoding(bias).dtype == ir.DataType.INT32 and bias in self._coupled_nodes

    @cached_property
    def _coupled_nodes(self) -> set[ir.Node]:
        return {one.bias.dq for one in self.coupled}

    def _known(self, node: ir.Node, half: ir.Node | None) -> ir.Node | None:
        """``half`` if it has a position; else the reason is noted at ``node``."""
        if half is None:
            return None
        if is_quantize_dequantize(half):
            self.notes.setdefault(node, f"{half.name} is a {half.op_type}; run convert-qdq-domain{{to=onnx}} first")
            return None
        group = self._groups.get(half)
        if group is None:
            self.notes.setdefault(node, f"{half.name} has no scale")
            return None
        if group not in self._reasons:
            self._reasons[group] = group.why_not(any_scale=self._any_scale)
            if self._reasons[group] is None and not self._any_scale:
                position = pow2.position_of(self.encoding(half).scale[0])
                assert position is not None
                self._first[group] = self._now[group] = position
        reason = self._reasons[group]
        if reason is not None:
            self.notes.setdefault(node, f"{tensor_of(half)} {reason}")
            return None
        return half

    def _find_input(self, node: ir.Node, index: int, beyond: bool) -> ir.Node | None:
        value, hops = node.inputs[index] if index < len(node.inputs) else None, 0
        while value is not None and (producer := value.producer()) is not None:
            if is_dequantize(producer) or is_quantize(producer) or is_quantize_dequantize(producer):
                return producer
            is_open = beyond and hops == 0 if self.reference else is_standard(producer, *_TRANSPARENT)
            if not is_open or (producer.op_type == "MaxPool" and value is not producer.outputs[0]):
                return None
            value, hops = producer.inputs[0] if producer.inputs else None, hops + 1
        return None

    def _find_output(self, node: ir.Node) -> ir.Node | None:
        value, place = node.outputs[0], self._scanned_at(node)
        while True:
            readers = sorted({use.node for use in value.uses() if use.node in self._place}, key=self._place.__getitem__)
            halves = [n for n in readers if n.inputs[0] is value and (is_quantize(n) or is_quantize_dequantize(n))]
            if halves:
                return halves[0]
            passed = [n for n in readers if self._passes(node, n, value) and self._scanned_at(n) >= place]
            if not passed:
                return None
            value, place = passed[0].outputs[0], self._scanned_at(passed[0]) + 1

    def _scanned_at(self, node: ir.Node) -> float:
        """Where the one scan of the reference meets ``node``: factors last. Without it, order does not matter."""
        if not self.reference:
            return math.inf
        return len(self._place) if factor_input(node) is not None else self._place[node]

    def _passes(self, node: ir.Node, reader: ir.Node, value: ir.Value) -> bool:
        """Whether the output of ``node``, without pair, is looked for behind ``reader``."""
        is_first = reader.inputs[0] is value
        if node.op_type in _WITH_FACTOR and is_standard(reader, "Mul"):
            return is_first if self.reference else factor_input(reader) is not None
        if not self.reference:
            return is_first and is_standard(reader, *ACTIVATIONS, *DATA_MOVEMENT)
        is_activation = is_standard(reader, *ACTIVATIONS) and (reader.op_type != "Clip" or is_relu6_or_relu1(reader))
        return is_first and is_activation and node.op_type in PRODUCERS


def factor_input(node: ir.Node) -> ir.Value | None:
    """What a Mul by one constant number without pair reads besides it: such a factor stands behind pools and hard sigmoids."""
    if not is_standard(node, "Mul") or len(node.inputs) != 2 or sum(map(is_constant, node.inputs)) != 1:
        return None
    other, constant = node.inputs if is_constant(node.inputs[1]) else node.inputs[::-1]
    array = constant_array(constant)
    return other if array is not None and array.size == 1 else None
