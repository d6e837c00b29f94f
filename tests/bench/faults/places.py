"""Places where a fault can be planted: pairs of a quantized model, who answers for them, and other encodings for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import onnx_ir as ir
from qdq_passes.graph.edit import Namer, copy_model
from qdq_passes.graph.uses import label, readers
from qdq_passes.npu.units.units import units_of
from qdq_passes.numerics.encoding import Encoding, encoding_of_range
from qdq_passes.qdq.edit.pairs import requantize, write_encodings
from qdq_passes.qdq.edit.reencode import Edit, reencode, targets
from qdq_passes.qdq.look.grids import middle
from qdq_passes.qdq.look.pairs import Kind, Pair
from qdq_passes.select.selectors import ALL

T = TypeVar("T")


def pairs_of(model: ir.Model, kind: Kind) -> list[Pair]:
    """The pairs of ``kind`` in the main graph whose encoding is known; of activations one a tensor."""
    found: dict[str, Pair] = {}
    for target in targets(model, ALL):
        if not isinstance(target, Pair) or target.kind != kind or target.dq.graph is not model.graph:
            continue
        if target.encoding is not None and (kind != "activation" or target.q is not None):
            found.setdefault(target.tensor, target)
    return list(found.values())


def layer_weights(model: ir.Model) -> list[Pair]:
    """The pairs on weights that one Conv, Gemm or MatMul alone reads."""
    found = []
    for pair in pairs_of(model, "weight"):
        uses = readers(pair.output)
        if len(uses) == 1 and uses[0][0].op_type in ("Conv", "Gemm", "MatMul") and uses[0][1] == 1:
            found.append(pair)
    return found


def known(pair: Pair) -> Encoding:
    """The encoding of a pair that `pairs_of` gave."""
    assert pair.encoding is not None
    return pair.encoding


def with_encoding(model: ir.Model, pair: Pair, new: Encoding) -> ir.Model:
    """A copy of ``model`` with the encoding ``new`` at ``pair``; biases at s_x·s_w follow."""
    copy = copy_model(model)
    there = same_pair(copy, pair)
    assert any(not change.is_skip for change in reencode(copy, [Edit(there, known(there), new)], Namer(copy)))
    return copy


def with_integers(model: ir.Model, pair: Pair, integers: np.ndarray, new: Encoding) -> ir.Model:
    """A copy of ``model`` with other stored integers and encoding at ``pair``, and nothing that follows."""
    copy = copy_model(model)
    there, namer = same_pair(copy, pair), Namer(copy)
    requantize(there, new, namer, integers=integers)
    write_encodings({there.dq: new}, namer)
    return copy


def with_common(model: ir.Model, small: Pair, large: Pair) -> ir.Model:
    """A copy of ``model`` in which ``small`` reads the scale and zero point of ``large``; biases at s_x·s_w follow."""
    copy = with_encoding(model, small, known(large))
    one, other = same_pair(copy, small), same_pair(copy, large)
    assert one.q is not None
    for node in {one.q: None, **{use.node: None for use in one.q.outputs[0].uses()}}:
        for index in (1, 2):
            node.replace_input_with(index, other.dq.inputs[index])
    return copy


def same_pair(model: ir.Model, pair: Pair) -> Pair:
    """What ``pair`` is in a copy."""
    return next(t for t in targets(model, ALL) if isinstance(t, Pair) and t.dq.name == pair.dq.name)


def scaled(encoding: Encoding, factor: float) -> Encoding:
    """``encoding`` with steps ``factor`` times as large."""
    return replace(encoding, scale=tuple(scale * factor for scale in encoding.scale))


def spanning(encoding: Encoding, values: np.ndarray) -> Encoding:
    """``encoding`` over the whole range of ``values``: symmetric, and of powers of two, where it is."""
    made = encoding_of_range(
        float(values.min()), float(values.max()), dtype=encoding.dtype, power_of_two=encoding.position is not None,
        symmetric=encoding.zero_point[0] == middle(encoding.dtype),
    )  # fmt: skip
    return replace(encoding, scale=made.scale, zero_point=made.zero_point)


def culprits(model: ir.Model, pair: Pair, *more: str) -> frozenset[str]:
    """The names that count as ``pair``: tensor, Q, DQ, and the layer with its activation that writes an activation or reads what
    is stored or an input of the graph."""
    source = pair.source
    writer = None if source is None else source.producer()
    nodes = [writer] if writer is not None and pair.kind == "activation" else [n for n, _ in readers(pair.output)]
    held = [value.name for value in (source, pair.output) if value is not None and value.name]
    own = [pair.tensor, *held, *(label(node) for node in (pair.q, pair.dq) if node is not None)]
    return frozenset([*own, *layer_names(model, nodes), *more])


def layer_names(model: ir.Model, nodes: Iterable[ir.Node]) -> list[str]:
    """Names of ``nodes`` and of what is computed in one step with them."""
    wanted = set(nodes)
    units = [unit.nodes for unit in units_of(model) if wanted & set(unit.nodes)]
    return sorted({label(node) for group in (*units, wanted) for node in group})


def shuffled(found: Sequence[T], random: np.random.Generator) -> list[T]:
    """``found`` in an order by chance."""
    return [found[index] for index in random.permutation(len(found))]
