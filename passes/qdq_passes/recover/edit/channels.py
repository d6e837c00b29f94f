"""Surgery of scaled channels: divide what makes a value by s and multiply the weights that read it, see
`recover.look.channel_flow`; and the factors s that make both easier to quantize.

Smoothing (SmoothQuant, arXiv 2211.10438):     s_c = max|u_c|^α / max|W_c|^(1−α)
Equalization (arXiv 1906.04721, equation 11):  s_c = √(max|V_c| / max|W_c|), V the weights that make u_c: both become
√(max|V_c|·max|W_c|)

Powers of two are exact: neither the factor nor any product with it is rounded, short of overflow and underflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.sizes import sizes_of
from qdq_passes.graph.uses import constant_array, label
from qdq_passes.numerics.arrays import Array, Reals
from qdq_passes.qdq.edit.pairs import write_constant
from qdq_passes.recover.look.channel_flow import Flow, factors_at
from qdq_passes.recover.look.channel_sources import Source
from qdq_passes.recover.look.channel_steps import Size


class KnownSizes:
    """Sizes of values as the file says or onnx infers: numbers, names of dynamic ones, None for what is not known."""

    def __init__(self, model: ir.Model) -> None:
        self._inferred = Inferred(model)

    def __call__(self, value: ir.Value) -> list[Size] | None:
        """Sizes of ``value``; None where not even their number is known."""
        array = constant_array(value)
        if array is not None:
            return list(array.shape)
        if value.shape is not None:
            return sizes_of(value)
        rank = self._inferred.rank(value)
        if rank is None:
            return None
        each = [self._inferred.sizes(value, [axis]) for axis in range(rank)]
        return [None if size is None else size[0] for size in each]


@dataclass(frozen=True, eq=False)
class _Edit:
    """A constant and what it is multiplied by.

    Args:
        node: reads it.
        position: index of the input.
        factor: broadcasts to it, or it to the factor.
        what: in words.
    """

    node: ir.Node
    position: int
    factor: Array
    what: str


def scale_channels(source: Source, flow: Flow, scale: Reals, namer: Namer, *, exact: bool) -> list[Change] | str:
    """Divide the channels of ``source`` by ``scale`` [count], and multiply what reads them; or why that would lose digits.

    Args:
        source: makes the channels.
        flow: what its scaling reaches.
        scale: s, positive.
        namer: names of this run.
        exact: refuse what could not be undone: a number that over- or underflows.
    """
    edits = [*_at_source(source, scale), *_behind(flow, scale)]
    made: list[Array] = []
    for edit in edits:
        old = constant_array(edit.node.inputs[edit.position])
        assert old is not None
        with np.errstate(over="ignore", under="ignore"):
            wide = old.astype(np.float64)
            new = (wide * edit.factor).astype(old.dtype)
            undone = new.astype(np.float64) / edit.factor
        if not np.array_equal(np.isfinite(new.astype(np.float64)), np.broadcast_to(np.isfinite(wide), new.shape)):
            return f"{edit.what} would overflow"
        if exact and not np.array_equal(undone, np.broadcast_to(wide, new.shape)):
            return f"{edit.what} would lose digits, its numbers are too small"
        made.append(new)
    changes = [
        Change(
            "edit", label(source.node),
            f"{np.count_nonzero(scale != 1)} of {scale.size} channels divided by {scale.min():.4g} to {scale.max():.4g}",
        )
    ]  # fmt: skip
    for edit, new in zip(edits, made, strict=True):
        value = edit.node.inputs[edit.position]
        assert value is not None
        data: Array | ir.TensorProtocol = new if value.dtype is None else ir.tensor(new, dtype=value.dtype)
        write_constant(value, data, [(edit.node, edit.position)], namer)
        if edit.node is not source.node:
            changes.append(Change("edit", label(edit.node), f"{edit.what} of {source.node.name} follows"))
    return changes


def _at_source(source: Source, scale: Reals) -> Iterator[_Edit]:
    layer, inverse = source.layer, 1 / scale
    if layer is None:
        for position, is_multiplied in source.parameters:
            array = constant_array(source.node.inputs[position])
            assert array is not None
            factor = (scale if is_multiplied else inverse).reshape(array.shape)
            yield _Edit(source.node, position, factor, f"input {position}")
        return
    yield _Edit(layer.node, layer.weight, layer.form.along_outputs(inverse), "the weight")
    if layer.node.op_type != "MatMul" and len(layer.node.inputs) > 2 and layer.node.inputs[2] is not None:
        factor = inverse.reshape(-1, 1) if layer.form.is_first else inverse
        yield _Edit(layer.node, 2, factor, "the bias")


def _behind(flow: Flow, scale: Reals) -> Iterator[_Edit]:
    for addend in flow.addends:
        array = constant_array(addend.node.inputs[addend.position])
        assert array is not None
        factor = 1 / factors_at(addend.index, scale)
        while factor.ndim > array.ndim and factor.shape[0] == 1:
            factor = factor[0]
        yield _Edit(addend.node, addend.position, factor, "the constant")
    for sink in flow.sinks:
        yield _Edit(
            sink.layer.node,
            sink.layer.weight,
            sink.layer.form.along_inputs(factors_at(sink.index, scale)),
            "the weight",
        )


#: Factors are rounded to powers of two, or are any numbers.
Factors = Literal["pow2", "any"]

#: Factors stay between 2^-24 and 2^24, beyond which a float32 sum keeps nothing of the smaller term.
LARGEST = 2.0**24

#: How far a model with factors that are no powers of two may differ, of the largest magnitude of an output.
BOUND = 2.0**-14


def smoothing(activations: Reals, weights: Reals, alpha: float) -> Reals:
    """s [c] of the largest magnitudes of activations and weights [c]; 1 where one of them is 0."""
    return _where_both(activations, weights, lambda a, w: a**alpha / w ** (1 - alpha))


def equalizing(before: Reals, behind: Reals) -> Reals:
    """s [c] of the largest magnitudes of the weights that make and that read a channel [c]; 1 where one of them is 0."""
    return _where_both(before, behind, lambda v, w: np.sqrt(v / w))


def _where_both(first: Reals, second: Reals, of: Callable[[Reals, Reals], Reals]) -> Reals:
    both = (first > 0) & (second > 0) & np.isfinite(first) & np.isfinite(second)
    found = np.ones(first.shape)
    found[both] = np.clip(of(first[both], second[both]), 1 / LARGEST, LARGEST)
    return found


def rounded(scale: Reals, factors: Factors) -> Reals:
    """``scale`` as powers of two, the nearest in log2 (halves to even), or as it is."""
    return np.exp2(np.rint(np.log2(scale))) if factors == "pow2" else scale
