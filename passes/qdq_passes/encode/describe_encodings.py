"""describe-encodings"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.core.base import EXACT, Change, Keeps, Pass
from qdq_passes.graph.uses import all_nodes, all_values
from qdq_passes.integers.look.described import Noted, described
from qdq_passes.qdq.edit.display import Notes, write_notes

#: IR version from which a local function holds types and descriptions of its values.
IR_OF_FUNCTION_VALUES = 10


@dataclass(frozen=True)
class DescribeEncodings(Pass):
    """Write every encoding where viewers such as Netron show it: metadata, descriptions, quantization annotations.

    Q and DQ get the metadata ``qdq.tensor, qdq.kind, qdq.dtype, qdq.scale, qdq.zero_point, qdq.position, qdq.axis,
    qdq.block_size, qdq.range``; the operators around them, and those on integers, ``qdq.input[0]``, ``qdq.output[0]``…; the
    tensors those of Q and DQ, a line in their description, and the entry in ``graph.quantization_annotation`` that names their
    scale and zero point.

    Graph: unchanged; a value inside without any type gains its element type (Netron shows nothing of it otherwise).
    Requires: nothing.
    Keeps: everything; numerics bit-exact.
    Skips: nothing. What an earlier run wrote is written anew, and taken away where there is no encoding any more.
    """

    keeps: ClassVar[Keeps] = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Collect what is to be said, then say it where it does not stand yet."""
        found, noted, mute = described(model), Noted(), _values_of_old_functions(model)
        for one in found:
            one.note(noted)
        holders: list[ir.Node | ir.Value] = [*all_nodes(model), *(v for v in all_values(model) if v not in mute)]
        written = [holder for holder in holders if write_notes(holder, noted.get(holder, Notes()))]
        new = set(written)
        for one in found:
            if not new.isdisjoint(one.holders):
                yield Change("describe", one.tensor, one.summary)
        told = {holder for one in found for holder in one.holders}
        for holder in written:
            if holder not in told:
                yield Change("describe", holder.name or "<unnamed>", "what it reads and writes")


def _values_of_old_functions(model: ir.Model) -> set[ir.Value]:
    """Values of local functions, where the file has no place for what is said about them."""
    if model.ir_version >= IR_OF_FUNCTION_VALUES:
        return set()
    functions = model.functions.values()
    return {v for f in functions for v in [*f.inputs, *(output for node in f for output in node.outputs)]}
