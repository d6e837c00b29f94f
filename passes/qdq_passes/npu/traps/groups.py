"""Traps of operators that backends fuse, and of what stands between them. Only where a target lists them: backends disagree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.findings import Level, place
from qdq_passes.graph.operators.activations import ACTIVATIONS, AVERAGE_POOLS, PRODUCERS, clip_bounds, is_relu6_or_relu1
from qdq_passes.graph.uses import is_standard
from qdq_passes.npu.traps.rule import PairView, Reading, Trap, TrapRule, in_words, selected, trap


@dataclass(frozen=True)
class PairInsideFusedLayer(TrapRule):
    """A pair between a layer and its activation: the two are no longer one layer.

    Args:
        producers: operators that take an activation with them.
        activations: those activations; of Clip only (0, 6) and (0, 1).
    """

    level: ClassVar[Level] = "note"
    producers: tuple[str, ...] = PRODUCERS
    activations: tuple[str, ...] = ACTIVATIONS

    def find(self, view: PairView) -> Iterator[Trap]:
        """The value between has one reader; a Pad before an average pool is one layer too."""
        for node in view.nodes:
            reading = _only_reading(view, node)
            if reading is None or reading.dq is None or reading.index != 0:
                continue
            follows = is_standard(node, *self.producers) and is_standard(reading.node, *self.activations)
            if follows and reading.node.op_type == "Clip":
                follows = is_relu6_or_relu1(reading.node)
            if follows or (is_standard(node, "Pad") and is_standard(reading.node, *AVERAGE_POOLS)):
                message = f"a pair stands between it and {place(node)}, which would be one layer"
                yield trap(reading.node, message, f"remove the pair: `qdqtool qdq remove {selected(node.outputs[0])}`")


@dataclass(frozen=True)
class ActivationWithoutPair(TrapRule):
    """A layer with its activation and no pair between: where the zero point behind is mid-range, it is computed in float.

    Args:
        producers: operators.
        activations: activations.
    """

    level: ClassVar[Level] = "note"
    producers: tuple[str, ...] = ("Conv",)
    activations: tuple[str, ...] = ("Relu",)

    def find(self, view: PairView) -> Iterator[Trap]:
        """Measured on HTP: 12 times slower, 98 % of the integers exact; a zero point at the end of the range absorbs the Relu."""
        for node in view.nodes:
            if not is_standard(node, *self.producers) or view.read(node, 0) is None:
                continue
            reading = _only_reading(view, node)
            if reading is None or reading.dq is not None or not is_standard(reading.node, *self.activations):
                continue
            behind = next((grid for grid in view.written(reading.node.outputs[0]) if grid.is_middle), None)
            if behind is not None:
                message = f"no pair stands between it and {place(node)}: both are computed in float"
                insert = f"`qdqtool qdq insert {selected(node.outputs[0])} {in_words(behind)}`"
                yield trap(reading.node, message, f"insert a pair between, with the scale of the one behind: {insert}")


@dataclass(frozen=True)
class ClipAfterPair(TrapRule):
    """Conv → pair → Clip(0, …), a mid-range zero point, another scale behind: what is clipped to 0 is 128 steps too low."""

    def find(self, view: PairView) -> Iterator[Trap]:
        """Measured on HTP for 8 bits; scales that are powers of two, other zero points and a Clip elsewhere are right."""
        for node in view.nodes:
            for reading in view.readings(node.outputs[0]) if is_standard(node, "Conv") else ():
                between = view.grid(reading.dq) if reading.dq is not None else None
                if between is None or reading.index != 0 or not is_standard(reading.node, "Clip"):
                    continue
                if between.bits != 8 or not between.is_middle or clip_bounds(reading.node)[0] != 0:
                    continue
                for behind in view.written(reading.node.outputs[0]):
                    if not behind.matches(between) and not (behind.is_pow2 and between.is_pow2):
                        message = f"clips {between} of {place(node)} to {behind}: values clipped to 0 come out 128 steps too low"
                        yield trap(
                            reading.node,
                            message,
                            f"take the pair between away: `qdqtool qdq remove {selected(node.outputs[0])}`",
                        )


@dataclass(frozen=True)
class SiluInt16(TrapRule):
    """Conv → pair of 16 bits → x·sigmoid(x): some outputs are off by a constant."""

    def find(self, view: PairView) -> Iterator[Trap]:
        """Measured on HTP (3.5 dB); behind a MatMul, or alone, it is right."""
        for node in view.nodes:
            if not is_standard(node, "Conv"):
                continue
            readings = [r for r in view.readings(node.outputs[0]) if r.dq is not None]
            gates = {r.node for r in readings if is_standard(r.node, "Sigmoid") and _has_bits(view, r, 16)}
            products = [r.node for r in readings if is_standard(r.node, "Mul")]
            for gate in gates:
                gated = {r.node for r in view.readings(gate.outputs[0])}
                for product in products:
                    if product in gated:
                        message = (
                            f"x·sigmoid(x) of {place(node)} in 16 bits: some outputs are off by thousands of steps"
                        )
                        wide = [
                            value
                            for value in (node.outputs[0], gate.outputs[0], product.outputs[0])
                            if any(grid.bits == 16 for grid in view.written(value))
                        ]
                        narrow = f"`qdqtool qdq convert {selected(*wide)} --dtype uint8`"
                        yield trap(product, message, f"keep it in 8 bits: {narrow}")


def _only_reading(view: PairView, node: ir.Node) -> Reading | None:
    """The one reading of the first output of ``node``; None when there are several, or it is a graph output."""
    if not node.outputs or node.outputs[0].is_graph_output():
        return None
    readings = view.readings(node.outputs[0])
    if len(readings) != 1 or (readings[0].dq is not None and readings[0].dq.outputs[0].is_graph_output()):
        return None
    return readings[0]


def _has_bits(view: PairView, reading: Reading, bits: int) -> bool:
    grid = view.grid(reading.dq) if reading.dq is not None else None
    return grid is not None and grid.bits == bits
