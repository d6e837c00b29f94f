"""smooth-activations"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Named, Pass, skip
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import constant_array, main_nodes
from qdq_passes.numerics.arrays import Reals
from qdq_passes.numerics.moments import LayerStatistics
from qdq_passes.recover.edit.channels import BOUND, Factors, KnownSizes, rounded, scale_channels, smoothing
from qdq_passes.recover.look.channel_flow import Flow, flow_from, largest_at
from qdq_passes.recover.look.channel_sources import Source, is_norm, source_at
from qdq_passes.recover.look.channel_steps import Sizes
from qdq_passes.select.selectors import ALL, Selector, select_nodes

LayersSeen = Mapping[str, LayerStatistics]


@dataclass(frozen=True)
class SmoothActivations(Pass):
    """Move outliers of activations into the weights that read them, where a scale per channel holds them.

    A layer reads X and computes W·X. For every s > 0, (W·diag(s))·(diag(1/s)·X) is the same; with

        s_c = max|X_c|^α / max|W_c|^(1−α)

    a channel with outliers has its magnitude shared between activation and weight (SmoothQuant, arXiv 2211.10438, equation 4).
    What makes X takes the 1/s: a norm's gain and bias, a Mul by a constant a channel, a layer before. All that reads
    X gets the same s, with the largest weights of all of them: query, key and value behind one norm; through movement (heads
    that are split and merged, repeated for grouped queries), Identity, Cast, Dropout, and the product with a gate.

    Graph: unchanged; gains, biases and weights get new data (copies, where others share them).
    Requires: statistics with the largest magnitude per channel of each layer's input.
    Keeps: inputs, outputs and their names; numerics bit-exact with ``factors=pow2`` while nothing over- or underflows, else
    within the bound.
    Skips: values that anything but such layers reads (Gelu, a residual connection, a graph output such as a cache); quantized
    weights; layers that the statistics do not have.

    Args:
        statistics: what calibration saw of each layer's input, by the layer's name; normally ``@statistics``.
        alpha: how much of an outlier goes into the weights, 0 to 1.
        select: the norms and layers whose outputs are smoothed.
        layers: also behind layers, not only behind norms and constants: value into output projection, up into down.
        factors: ``pow2`` rounds s to powers of two; ``any`` leaves it.
    """

    statistics: Named | LayersSeen
    alpha: float = 0.5
    select: Selector = ALL
    layers: bool = True
    factors: Factors = "pow2"
    bounded: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=BOUND,
        why="gain, bias and weights are rounded once, 2^-24 relative each, and the K products associate as before: error ≤ "
        "3·2^-24·Σ|w·x|; with random signs and K ≤ 2^12 about 2^-18 of max|y| a layer, 2^4 left for cancellation",
    )

    @property
    def keeps(self) -> Keeps:  # type: ignore[override]
        """Exact with powers of two."""
        return EXACT if self.factors == "pow2" else self.bounded

    def run(self, model: ir.Model) -> Iterator[Change]:
        """From every norm and layer, in the order of the graph."""
        if not 0 <= self.alpha <= 1:
            raise UsageError(
                f"alpha={self.alpha:g} is not between 0 and 1", where=self.name(), hint="0.5 shares evenly"
            )
        wanted, sizes_of, namer = select_nodes(model, self.select), KnownSizes(model), Namer(model)
        for node in main_nodes(model):
            found = self._smoothing(node, sizes_of) if node in wanted else None
            if isinstance(found, str):
                yield skip(node, found)
            elif found is not None:
                done = scale_channels(*found, namer, exact=self.factors == "pow2")
                yield from [skip(node, done)] if isinstance(done, str) else done

    def _smoothing(self, node: ir.Node, sizes_of: Sizes) -> tuple[Source, Flow, Reals] | str | None:
        source = source_at(node, sizes_of)
        if source is None or isinstance(source, str):
            return source
        if not self.layers and not is_norm(source):
            return None
        flow = flow_from(source.value, source.index, sizes_of)
        if isinstance(flow, str) or not flow.sinks:
            return flow if isinstance(flow, str) else "no layer reads it"
        scale = self._scale(source, flow)
        if isinstance(scale, str):
            return scale
        return (source, flow, scale) if np.any(scale != 1) else "its channels are smooth already"

    def _scale(self, source: Source, flow: Flow) -> Reals | str:
        assert not isinstance(self.statistics, Named)
        activations, weights = np.zeros(source.count), np.zeros(source.count)
        for sink in flow.sinks:
            seen, array = self.statistics.get(sink.layer.name), constant_array(sink.layer.stored)
            if seen is None or seen.absmax is None:
                return f"the statistics have no magnitudes of {sink.layer.name}"
            if seen.absmax.size != sink.index.size:
                return (
                    f"the statistics of {sink.layer.name} are of {seen.absmax.size} channels, it has {sink.index.size}"
                )
            assert array is not None
            each = sink.layer.form.magnitudes(array).max(axis=1).reshape(-1)
            activations = np.maximum(activations, largest_at(sink.index, source.count, seen.absmax))
            weights = np.maximum(weights, largest_at(sink.index, source.count, each))
        return rounded(smoothing(activations, weights, self.alpha), self.factors)
