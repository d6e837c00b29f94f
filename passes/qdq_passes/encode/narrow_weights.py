"""narrow-weights"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import constant_array
from qdq_passes.numerics.encoding import Encoding, integer_format, integer_range, is_integer_type
from qdq_passes.numerics.quantize import quantize
from qdq_passes.qdq.edit.float_values import remember_floats, remembered_floats
from qdq_passes.qdq.edit.pairs import write_constant
from qdq_passes.qdq.look.pairs import Pair, qdq_pairs
from qdq_passes.select.selectors import ALL, Selector, select_values


@dataclass(frozen=True)
class NarrowWeights(Pass):
    """Keep the integers of weights and biases within ±qmax: what would be the most negative integer becomes the next one.

    QuantizeLinear saturates at −128, the Vitis line's weights at −127, so that −w has the integers of w with the other sign; its
    search for the scale of least squared error is over ±127 too.

    Graph: ``w → Q → DQ``: the values of w that round to −128 or below become −127·scale; ``w_quantized → DQ``: −128 becomes −127.
    Requires: nothing.
    Keeps: names, encodings, values that do not saturate below; the numbers of the others change by one step at most. What floats
    were before is kept in the metadata of the tensor, for remove-qdq.
    Skips: nothing; activations, unsigned types, encodings with a zero point and constants without such a value stay as they are.

    Args:
        select: the weights and biases.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="values at the lower end of the grid move by one step")
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Pair after pair."""
        wanted, namer = select_values(model, self.select), Namer(model)
        for pair in qdq_pairs(model):
            encoding = pair.encoding
            if pair.stored is None or encoding is None or not _has_a_lowest(encoding) or pair.q is pair.dq:
                continue
            array = constant_array(pair.stored)
            if array is None or not {pair.stored, pair.output}.intersection(wanted):
                continue
            narrow, count = _narrowed(array, encoding, is_stored=pair.q is None)
            if count:
                before = remembered_floats(pair.stored, array) if pair.q is not None else None
                held = write_constant(pair.stored, _tensor(narrow, encoding, pair), [(pair.q or pair.dq, 0)], namer)
                if before is not None:
                    remember_floats(held, before)
                yield Change("edit", pair.tensor, f"{count} of {array.size} values above the most negative integer now")


def _has_a_lowest(encoding: Encoding) -> bool:
    """Whether the storage type has an integer that its negation has not, and 0 stands for 0."""
    return is_integer_type(encoding.dtype) and integer_format(encoding.dtype)[0] and encoding.is_symmetric


def _narrowed(array: npt.NDArray[Any], encoding: Encoding, *, is_stored: bool) -> tuple[npt.NDArray[Any], int]:
    """``array`` (float, or the integers themselves) without the most negative integer, and how many values changed."""
    lowest = integer_range(encoding.dtype, symmetric=False)[0]
    if not is_stored and encoding.axis is None and encoding.position is not None and array.dtype == np.float32:
        # the common case: dividing by a power of two rounds nothing, and halves go to even
        step = np.float32(encoding.scale[0])
        limit = np.float32(lowest + 0.5) * step
        if array.min(initial=0) > limit:
            return array, 0
        low = array <= limit
        array = array.copy()
        array[low] = np.float32(lowest + 1) * step
        return array, int(np.count_nonzero(low))
    found = (array if is_stored else quantize(array, encoding)).astype(np.int64) == lowest
    if is_stored:
        return np.where(found, np.int64(lowest + 1), array.astype(np.int64)), int(np.count_nonzero(found))
    scale = encoding.granularity.expand(encoding.scale_array().astype(array.dtype), array.shape)
    narrow: npt.NDArray[Any] = np.where(found, array.dtype.type(lowest + 1) * scale, array).astype(array.dtype)
    return narrow, int(np.count_nonzero(found))


def _tensor(array: npt.NDArray[Any], encoding: Encoding, pair: Pair) -> ir.TensorProtocol:
    if pair.q is not None:
        return ir.tensor(array)
    return ir.tensor(array.astype(encoding.dtype.numpy()), dtype=encoding.dtype)
