"""Slices that quantize to constants: rounding and clipping keep order, so that a slice is one integer where q(min) = q(max).

values −0.02 … 0.03 of channel 5, on a grid with steps of 0.5 for the whole tensor: all 0"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.findings import place
from qdq_passes.encode.look.demands import DATA_OUTPUTS
from qdq_passes.graph.operators.channels import CHANNEL_OPS, output_axis
from qdq_passes.graph.uses import constant_array, is_constant, is_standard
from qdq_passes.npu.traps.rule import Trap
from qdq_passes.numerics.encoding import Encoding, is_integer_type
from qdq_passes.numerics.quantize import quantize
from qdq_passes.select.globs import literal, literal_tensor

from qdqtool.lints.context import LintContext, Slices
from qdqtool.lints.rule import Lint, first_of, grid_text

#: A slice that spans less than this share of a step was nearly constant before: next to the half step by which the other slices
#: are rounded its loss adds less than 2^-6 of their noise power.
LEAST_STEPS = 2.0**-3


@dataclass(frozen=True)
class DeadSlice(Lint):
    """A slice of a weight or an activation that quantizes to one integer though its values differ.

    Args:
        least: narrowest span of a slice that counts, in steps of the grid.
    """

    least: float = LEAST_STEPS

    def find(self, context: LintContext) -> Iterator[Trap]:
        """Weights by their output channels, activations by the axes that were observed; each tensor where it is written."""
        told: set[str] = set()
        for node in context.nodes:
            yield from self._in_weight(node, context, told)
            for value in node.outputs[: DATA_OUTPUTS.get(node.op_type)]:
                yield from self._in_activation(node, value, context)

    def _in_weight(self, node: ir.Node, context: LintContext, told: set[str]) -> Iterator[Trap]:
        value = node.inputs[1] if is_standard(node, *CHANNEL_OPS) else None
        source = context.source(value)
        if value is None or source is None or not is_constant(source):
            return
        name, grid, array = context.name(source), context.grid_read(value), constant_array(source)
        if name in told or grid is None or array is None or not np.issubdtype(array.dtype, np.floating):
            return
        axis = output_axis(node, array.ndim)
        if axis is None or grid.block_size:
            return
        told.add(name)
        flat = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1).astype(np.float64)
        if flat.shape[1] < 2:  # a channel of one number is a constant anyway
            return
        found = self._dead(Slices(axis=axis, low=flat.min(1), high=flat.max(1)), grid, array.ndim)
        if found:
            way = f"--exclude {shlex.quote(literal(place(node)))}"
            if len(grid.scale) == 1:
                way = f"a scale per channel (--per-axis-conv, --per-axis-linear), --equalize, or {way}"
            yield Trap(name, self._message("output channels", axis, found, flat.shape[0], grid), f"quantize with {way}")

    def _in_activation(self, node: ir.Node, value: ir.Value, context: LintContext) -> Iterator[Trap]:
        name, grid = context.name(value), context.grid_written(value)
        for slices in context.slices.get(name, ()) if grid is not None else ():
            assert grid is not None
            found = {i for i in self._dead(slices, grid, None) if not self._was_dead(node, i, slices, context)}
            if found:
                name_of = shlex.quote(literal_tensor(name))
                yield Trap(
                    name,
                    self._message("slices", slices.axis, sorted(found), len(slices.low), grid),
                    f"quantize with --int16 {name_of}, or with --exclude {shlex.quote(literal(place(node)))} --isolate",
                )
                return

    def _dead(self, slices: Slices, grid: Encoding, rank: int | None) -> list[int]:
        """The indices that quantize to one integer though they span at least ``least`` steps."""
        if not is_integer_type(grid.dtype) or grid.block_size:
            return []
        count = len(slices.low)
        if len(grid.scale) == 1:
            scale, plain = np.full(count, grid.scale[0]), replace(grid, shape=(), axis=None)
        else:
            if rank is None or grid.axis is None or grid.axis % rank != slices.axis:
                return []
            scale, plain = np.array(grid.scale), replace(grid, axis=0)
        with np.errstate(over="ignore"):
            low, high = (quantize(np.asarray(end, np.float32), plain) for end in (slices.low, slices.high))
        spans: npt.NDArray[np.float64] = (slices.high - slices.low) / scale
        return [int(i) for i in np.flatnonzero((low == high) & (spans >= self.least))]

    def _was_dead(self, node: ir.Node, index: int, slices: Slices, context: LintContext) -> bool:
        """Whether that slice of an input of ``node`` is dead already: an activation, a pool, an Add pass it on."""
        for value in node.inputs:
            source, grid = context.source(value), context.grid_read(value)
            if source is None or grid is None or is_standard(node, "Concat"):
                continue
            for before in context.slices.get(context.name(source), ()):
                if before.axis == slices.axis and len(before.low) == len(slices.low):
                    return index in self._dead(before, grid, None)
        return False

    def _message(self, what: str, axis: int, found: list[int], count: int, grid: Encoding) -> str:
        which = first_of([str(i) for i in found])
        return (
            f"{len(found)} of {count} {what} (axis {axis}: {which}) are one integer each on the grid, {grid_text(grid)}"
        )
