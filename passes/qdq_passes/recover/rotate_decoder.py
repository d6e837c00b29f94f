"""rotate-decoder"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import constant_array, label, main_nodes
from qdq_passes.numerics.arrays import Array, Reals
from qdq_passes.numerics.hadamard import block_size, random_signs, rotated
from qdq_passes.qdq.edit.pairs import write_constant
from qdq_passes.recover.edit.channels import KnownSizes
from qdq_passes.recover.look.residual_stream import Place, Stream, lookup_width, stream_from

#: How far an output may differ, of its largest magnitude.
BOUND = 2.0**-12


@dataclass(frozen=True)
class RotateDecoder(Pass):
    """Rotate the residual stream of a decoder, so that no channel of what its layers read is larger than the others.

    With an orthogonal Q, here random signs and a Hadamard matrix, rows x of the stream become x·Q. The mean square stays, so do
    norms by it, once their gains γ are drawn into the layers behind them:

        table' = table·Q;   W' = diag(γ)·W of [D, N] read through Qᵀ: Qᵀ·diag(γ)·W;   V' = V·Q, b' = b·Q of what is added

    (arXiv 2404.00456, arXiv 2405.16406: R1). An outlier of size a in one of D channels is ±a/√D in each; so are weights that were
    made small for it. The cache of keys and values is what it was.

    Graph: unchanged; tables, weights and biases get new data, gains become 1 (copies, where others share them).
    Requires: float weights; a lookup in a constant table, norms by the mean square of the last axis (one operator, or spelt out),
    layers with constant weights, and sums of those.
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: a stream that anything else reads or adds to, or that is an output; LayerNormalization, which takes off the mean; tied
    embeddings; quantized weights; an odd width. Where the width is no power of two, rotates blocks of the largest one in it.

    Args:
        seed: of the random signs.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=BOUND,
        why="rotated weights are rounded once, 2^-24 relative, sums of K products associate otherwise: with random signs and "
        "K ≤ 2^12 about 2^-18 of max|y| a layer; of the 2^6 that may lie behind each other the errors at most add up",
    )
    seed: int = 0

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Stream by stream; all of one is found before anything changes."""
        sizes_of, namer, seen = KnownSizes(model), Namer(model), set[ir.Node]()
        for node in list(main_nodes(model)):
            width = lookup_width(node)
            if width is None or node in seen:
                continue
            stream = stream_from(node, sizes_of)
            if isinstance(stream, str):
                yield skip(node, stream)
                continue
            seen |= {lookup for lookup, _ in stream.tables}
            size = block_size(width)
            if size < 2:
                yield skip(node, f"its width {width} is odd")
                continue
            _rotate(stream, random_signs(width, self.seed), namer)
            parts = f"{len(stream.readers)} layers that read it, {len(stream.writers)} that add to it"
            yield Change("edit", label(node), f"a stream of {width} channels rotated in blocks of {size}: {parts}")


def _rotate(stream: Stream, signs: Reals, namer: Namer) -> None:
    for place in [*stream.tables, *stream.addends]:
        _write(place, rotated(_data(place), signs), namer)
    for layer in stream.writers:
        weight = layer.form.rows(_data((layer.node, layer.weight)))
        turned = np.swapaxes(rotated(np.swapaxes(weight, 1, 2), signs), 1, 2)
        _write((layer.node, layer.weight), layer.form.weight(turned), namer)
    for layer, gain in stream.readers:
        weight = layer.form.rows(_data((layer.node, layer.weight)))
        _write((layer.node, layer.weight), layer.form.weight(rotated(weight * gain, signs)), namer)
    for place in dict.fromkeys(stream.gains):
        _write(place, np.ones_like(_data(place)), namer)


def _data(place: Place) -> Reals:
    node, index = place
    array = constant_array(node.inputs[index])
    assert array is not None
    return array.astype(np.float64)


def _write(place: Place, data: Reals, namer: Namer) -> None:
    node, index = place
    value, old = node.inputs[index], constant_array(node.inputs[index])
    assert value is not None
    assert old is not None
    new: Array | ir.TensorProtocol = data.astype(old.dtype)
    write_constant(
        value, new if value.dtype is None else ir.tensor(data.astype(old.dtype), dtype=value.dtype), [place], namer
    )
