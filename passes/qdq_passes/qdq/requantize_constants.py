"""requantize-constants"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import constant_array
from qdq_passes.numerics.quantize import quantize
from qdq_passes.qdq.edit.pairs import Use, write_constant
from qdq_passes.qdq.edit.reencode import targets
from qdq_passes.qdq.look.pairs import Pair
from qdq_passes.select.selectors import ALL, Selector


@dataclass(frozen=True)
class RequantizeConstants(Pass):
    """Quantize stored weights and biases anew from their float values, on the encodings that they have now.

    Graph: unchanged but for stored integers.
    Requires: constant scales; the float tensors by the names of the pairs, in the same shapes.
    Keeps: names, encodings.
    Skips: tensors of which ``floats`` has no value, or one of another shape; float weights under a pair, which need none.

    Args:
        floats: tensor name → float data; normally ``@float``.
        select: pairs, by their float value or by their DequantizeLinear.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="stored integers become those of other float values")
    floats: Named | Mapping[str, ir.TensorProtocol]
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """One stored tensor after the other."""
        assert not isinstance(self.floats, Named)
        namer = Namer(model)
        for pair in targets(model, self.select):
            if not isinstance(pair, Pair) or pair.q is not None or pair.stored is None or pair.encoding is None:
                continue
            tensor, own = self.floats.get(pair.tensor), constant_array(pair.stored)
            if tensor is None or own is None:
                yield skip(pair.tensor, "no float values are given")
                continue
            if tuple(tensor.shape.numpy()) != own.shape:
                given = "x".join(map(str, tensor.shape.numpy()))
                yield skip(pair.tensor, f"the float values are {given}, the integers {'x'.join(map(str, own.shape))}")
                continue
            integers = quantize(tensor.numpy(), pair.encoding)
            changed = int(np.count_nonzero(integers != own))
            if changed:
                use: Use = (pair.dq, 0)
                write_constant(pair.stored, ir.tensor(integers, dtype=pair.encoding.dtype), [use], namer)
                yield Change("edit", pair.tensor, f"{changed} of {own.size} integers quantized anew")
