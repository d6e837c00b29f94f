"""equalize-layers"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import constant_array, main_nodes
from qdq_passes.numerics.arrays import Reals
from qdq_passes.qdq.edit.clips import unbound
from qdq_passes.recover.edit.channels import BOUND, Factors, KnownSizes, equalizing, rounded, scale_channels
from qdq_passes.recover.look.channel_flow import Flow, factors_at, flow_from, largest_at
from qdq_passes.recover.look.channel_sources import Source, is_norm, largest, source_at
from qdq_passes.recover.look.channel_steps import Sizes
from qdq_passes.select.selectors import ALL, Selector, select_nodes

#: Largest change of a factor, in powers of two, at which a sweep is the last.
SETTLED = 2.0**-6


@dataclass(frozen=True)
class EqualizeLayers(Pass):
    """Give the channels between two layers weights of equal size on both sides, so that one scale for all of them loses less.

    V makes a channel c, W reads it: y = W·f(V·x + b) with f homogeneous (Relu, LeakyRelu, pooling, movement). For every s > 0

        V'_c = V_c / s_c,  b'_c = b_c / s_c,  W'_c = W_c·s_c     leave y as it is,

    and s_c = √(max|V_c| / max|W_c|) makes both largest numbers √(max|V_c|·max|W_c|), the factors of all pairs together by sweeps
    over them, as each changes the layer of the next (cross-layer equalization, arXiv 1906.04721, equation 11). No data is
    needed. A norm before a layer is one as well: its gain is V.

    Graph: unchanged; weights, biases and gains get new data (copies, where others share them). With ``clip`` a Clip
    between two layers may become a Relu, or a Relu and a Min.
    Requires: Conv, ConvTranspose, Gemm, MatMul with float weights on both sides, or a norm and such a layer, or a Mul by a
    constant a channel and such a layer; between them nothing but what hands a scaling on.
    Keeps: inputs, outputs and their names; numerics bit-exact with ``factors=pow2`` while nothing over- or underflows, else
    within the bound; ``clip=relu`` no longer cuts off what is above the bound of a Clip.
    Skips: channels that anything else
    reads (a residual connection, a graph output, Sigmoid); quantized weights; a channel whose weights are 0 on one side.

    Args:
        select: the layers and norms whose outputs are scaled.
        factors: ``pow2`` rounds s to powers of two, which costs up to a factor of √2 on either side.
        clip: a Clip to [0, b] (Relu6) is not homogeneous. ``keep`` leaves layers with one between them alone. ``bounds`` makes a
            Relu and a Min by b/s of it, exactly. ``relu`` takes the bound off, as the paper does: right where nothing reaches it.
        norms: also behind norms.
        sweeps: at most so many sweeps over all pairs.
    """

    select: Selector = ALL
    factors: Factors = "pow2"
    clip: Literal["keep", "bounds", "relu"] = "keep"
    norms: bool = True
    sweeps: int = 40
    bounded: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=BOUND,
        why="V', b' and W' are rounded once, 2^-24 relative each, and the K products associate as before: error ≤ "
        "3·2^-24·Σ|w·x|; with random signs and K ≤ 2^12 about 2^-18 of max|y| a layer, 2^4 left for cancellation",
    )

    @property
    def keeps(self) -> Keeps:  # type: ignore[override]
        """Exact with powers of two."""
        if self.clip == "relu":
            return Keeps("changes", why="values above the bound of a Clip are no longer cut off")
        return EXACT if self.factors == "pow2" else self.bounded

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Find the pairs, settle all factors, then edit each weight once for each."""
        wanted, sizes_of, namer = select_nodes(model, self.select), KnownSizes(model), Namer(model)
        pairs = list[tuple[Source, Flow]]()
        for node in main_nodes(model):
            found = self._between(node, sizes_of) if node in wanted else None
            if isinstance(found, str):
                yield skip(node, found)
            elif found is not None:
                pairs.append(found)
        for (source, flow), scale in zip(pairs, settled(pairs, self.sweeps), strict=True):
            factor = rounded(scale, self.factors)
            if np.all(factor == 1):
                yield skip(source.node, "its channels are equal already")
                continue
            done = scale_channels(source, flow, factor, namer, exact=self.factors == "pow2")
            if isinstance(done, str):
                yield skip(source.node, done)
                continue
            yield from done
            for clip in flow.clips:
                yield unbound(clip.node, namer, 1 / factors_at(clip.index, factor) if self.clip == "bounds" else None)

    def _between(self, node: ir.Node, sizes_of: Sizes) -> tuple[Source, Flow] | str | None:
        source = source_at(node, sizes_of)
        if source is None or isinstance(source, str):
            return source
        if is_norm(source) and not self.norms:
            return None
        flow = flow_from(source.value, source.index, sizes_of, clips=self.clip != "keep")
        if isinstance(flow, str) or not flow.sinks:
            return (flow if isinstance(flow, str) else "no layer reads it") if source.layer is not None else None
        return source, flow


def settled(pairs: Sequence[tuple[Source, Flow]], sweeps: int) -> list[Reals]:
    """The factors s of each pair, [channels], once all pairs are equalized together."""
    blocks: dict[ir.Node, Reals] = {}
    outputs: dict[ir.Node, Reals] = {}
    inputs: dict[ir.Node, Reals] = {}
    for source, flow in pairs:
        for layer in [*([source.layer] if source.layer else []), *(sink.layer for sink in flow.sinks)]:
            array = constant_array(layer.stored)
            assert array is not None
            blocks[layer.node] = layer.form.magnitudes(array)
            outputs[layer.node] = np.ones(blocks[layer.node].shape[:2])
            inputs[layer.node] = np.ones((blocks[layer.node].shape[0], blocks[layer.node].shape[2]))
    scales = [np.ones(source.count) for source, _ in pairs]
    for _ in range(sweeps):
        moved = 0.0
        for number, (source, flow) in enumerate(pairs):
            before, behind = (
                _before(source, blocks, inputs) / scales[number],
                _behind(source, flow, blocks, outputs, inputs),
            )
            step = equalizing(before, behind)
            moved = max(moved, float(np.abs(np.log2(step)).max(initial=0.0)))
            scales[number] = scales[number] * step
            if source.layer is not None:
                outputs[source.node] /= step.reshape(outputs[source.node].shape)
            for sink in flow.sinks:
                inputs[sink.layer.node] *= factors_at(sink.index, step).reshape(inputs[sink.layer.node].shape)
        if moved < SETTLED:
            break
    return scales


def _before(source: Source, blocks: Mapping[ir.Node, Reals], inputs: Mapping[ir.Node, Reals]) -> Reals:
    """Largest weights that make each channel, without the factors of its own outputs."""
    if source.layer is None:
        return largest(source)
    return np.asarray((blocks[source.node] * inputs[source.node][:, None, :]).max(axis=2)).reshape(-1)


def _behind(
    source: Source,
    flow: Flow,
    blocks: Mapping[ir.Node, Reals],
    outputs: Mapping[ir.Node, Reals],
    inputs: Mapping[ir.Node, Reals],
) -> Reals:
    """Largest weights that read each channel."""
    found = np.zeros(source.count)
    for sink in flow.sinks:
        node = sink.layer.node
        each = (blocks[node] * outputs[node][:, :, None]).max(axis=1) * inputs[node]
        found = np.maximum(found, largest_at(sink.index, source.count, each.reshape(-1)))
    return found
