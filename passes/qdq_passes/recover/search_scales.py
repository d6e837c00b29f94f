"""search-scales"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import readers
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.moments import LayerStatistics
from qdq_passes.numerics.quantize import quantize
from qdq_passes.qdq.edit.pairs import write_constant
from qdq_passes.qdq.edit.reencode import Edit, reencode, settled, why_not_editable
from qdq_passes.qdq.look.weighted_layers import WeightedLayer
from qdq_passes.recover.look.rounding import rounding_moment, why_unseen
from qdq_passes.recover.look.scale_search import compensating, search_scales, segments_of
from qdq_passes.recover.round_weights import grid_of, stored_weights, why_not_rounded
from qdq_passes.select.selectors import ALL, Selector, select_nodes

LayersSeen = Mapping[str, LayerStatistics]


@dataclass(frozen=True)
class SearchScales(Pass):
    """Choose the scales of weights so that what a layer computes changes least: sequential MSE, layer by layer.

    Over inputs x of second moments H = E[x·xᵀ] a row w stored as v costs E[((w − v)·x)²] = (w − v)·H·(w − v)ᵀ. Scale by scale the
    best of a dozen ratios to the one that is there is taken, while the others stay, and the one that fits the integers best
    (`qdq_passes.recover.look.scale_search` has the mathematics). No row gets a larger error than it had, measured with the
    rounding that is said here.

    Graph: unchanged; scales of weights get new numbers, and weights beyond what ``narrow`` leaves are cut off.
    Requires: pairs on float weights, inserted with ``weights=qdq``; statistics with second moments.
    Keeps: types, zero points, where scales lie, names; biases at s_x·s_w follow. Powers of two stay powers of two.
    Skips: weights of which only integers are left; that something else reads too, or layers with another grid; storage types that
    are no integers; scales that several outputs but not all share; layers that the statistics do not have.

    Args:
        statistics: what calibration saw of each layer's input, by the layer's name; normally ``@statistics``.
        select: the layers.
        rounding: how integers are chosen behind this pass: to the ``nearest``, or ``compensated`` as round-weights does it.
        damping: part of the mean of H's diagonal that is added to it while searching.
        centred: H is taken about the mean of x, for what ``correct-bias`` leaves of the error.
        narrow: integers around zero point 0 leave out the most negative one: int8 stays within ±127.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="the grids of weights change")
    statistics: Named | LayersSeen
    select: Selector = ALL
    rounding: Literal["nearest", "compensated"] = "nearest"
    damping: float = 0.01
    centred: bool = False
    narrow: bool = True

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Weight by weight; layers that share one get scales for both."""
        if not self.damping >= 0:
            raise UsageError(f"damping={self.damping:g} is negative", where=self.name(), hint="0.01 is usual")
        assert not isinstance(self.statistics, Named)
        edits, namer, within = list[Edit](), Namer(model), dict[ir.Value, Array]()
        for stored, layers in stored_weights(model, select_nodes(model, self.select)).items():
            reason = why_not_rounded(stored, layers) or why_unseen(self.statistics, layers, centred=self.centred)
            found = reason or self._searched(layers, within)
            if isinstance(found, str):
                yield skip(layers[0].node, found)
            else:
                edits.append(found)
        yield from reencode(model, edits, namer)
        for stored, values in within.items():
            data: Array | ir.TensorProtocol = values if stored.dtype is None else ir.tensor(values, dtype=stored.dtype)
            write_constant(stored, data, readers(stored), namer)

    def _searched(self, layers: Sequence[WeightedLayer], within: dict[ir.Value, Array]) -> Edit | str:
        """What the weight of ``layers`` gets; or why it keeps what it has. ``within`` gets the weight, cut off, where some of it
        lies beyond the integers that were searched, which leave out the most negative one."""
        layer, pair, weight = layers[0], layers[0].pair, layers[0].float_weight
        assert not isinstance(self.statistics, Named)
        assert weight is not None
        assert pair is not None
        assert pair.encoding is not None
        old, form = pair.encoding, layer.form
        segments = segments_of(old, form)
        if isinstance(segments, str):
            return segments
        if refused := why_not_editable(pair, changes_type=False):
            return refused
        moment = rounding_moment(self.statistics, layers, centred=self.centred)
        rows, grid = form.rows(weight), grid_of(layer, weight, old, narrow=self.narrow)
        wide = rows.astype(np.float64)
        compensated = compensating(wide, moment, damping=self.damping, sweeps=2)
        scales, before, after = search_scales(
            rows, grid, segments, moment, rounding=compensated if self.rounding == "compensated" else None,
            damping=self.damping, power_of_two=old.position is not None,
        )  # fmt: skip
        flat = np.array(old.scale, np.float64)
        flat[segments.index] = scales
        new = settled(pair, replace(old, scale=tuple(flat.tolist())))
        count = int(np.count_nonzero(np.array(new.scale) != np.array(old.scale)))
        if count and self.rounding == "nearest":
            on = grid_of(layer, weight, new, narrow=self.narrow)
            if (quantize(weight, new) < on.low).any():
                low, high = (((end - on.zero) * on.scale).astype(weight.dtype) for end in (on.low, on.high))
                within[layer.stored] = form.weight(np.clip(rows, low, high))
        if not count:
            return "its scales are the best that were found"
        gain = f"{10 * math.log10(before / after):.1f} dB less" if after > 0 else "no"
        because = f"{count} of {len(old.scale)} scales changed: {gain} error of {layer.name}"
        return Edit(pair, old, new, because)
