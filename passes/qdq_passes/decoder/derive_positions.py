"""derive-positions

positions[b, s] = index[b] + s, and also = last_slot - (S - 1) + s, for s in 0…S-1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.edit import Namer, make_node, new_constant, put_first, replace_value
from qdq_passes.graph.sizes import static_sizes

#: Inputs of onnxruntime-genai's windowed decoders.
LAST_SLOT, TOTAL = "past_seq_len", "total_seq_len"
INDEX = "cache_index"


@dataclass(frozen=True)
class DerivePositions(Pass):
    """Make the positions of a static decoder on the graph, of one number a row, instead of taking them as an input.

    Graph: ``position_ids [B, S]`` → ``cache_index [B] → Reshape → Add(0…S-1)``, or ``past_seq_len [1, 1] → Cast → Add(1-S…0)``.
    Requires: static ids [B, S], and positions [B, S] as an input; ``last-slot`` takes one row.
    Keeps: names of all other inputs and outputs; numerics bit-exact for contiguous positions, which a chunk of tokens has.
    Skips: a model without positions as an input.

    Args:
        source: ``index``: int64 [B], how many tokens the cache holds; ``last-slot``: int32 [1, 1], the position of the last row
            of this run, as onnxruntime-genai's windowed decoders give it (``past_seq_len``); the graph then has the input
            ``total_seq_len`` int32 [1] as well, which it does not read.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="positions come as one number a row")
    source: Literal["index", "last-slot"] = "index"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """One input goes, one or two come."""
        io = decoder_io(model)
        if io.positions is None:
            yield skip(model.graph.name or "graph", "positions are no input")
            return
        sizes = static_sizes(io.positions)
        if sizes is None or len(sizes) != 2:
            raise UnsupportedError(
                f"positions are {io.positions.shape}, not static [batch, sequence]", where=io.positions.name,
                hint="run bind-decoder first",
            )  # fmt: skip
        batch, length = sizes
        if self.source == "last-slot" and batch != 1:
            raise UnsupportedError(
                f"one last slot for {batch} rows", where=io.positions.name, hint="use source=index, or one row"
            )
        yield self._derive(model, io.positions, batch, length)

    def _derive(self, model: ir.Model, positions: ir.Value, batch: int, length: int) -> Change:
        graph, namer, name = model.graph, Namer(model), positions.name or ""
        readers = [use.node for use in positions.uses()]
        is_index = self.source == "index"
        graph.inputs.remove(positions)
        given = _input(graph, namer, INDEX if is_index else LAST_SLOT, is_index, [batch] if is_index else [1, 1])
        if not is_index:
            _input(graph, namer, TOTAL, False, [1])
        wide = make_node(
            "Cast", [given], name=namer.fresh(f"{given.name}_cast"), output=namer.fresh(f"{given.name}_int64"),
            attributes=[ir.AttrInt64("to", ir.DataType.INT64.value)], stands_for=readers,
        )  # fmt: skip
        column = new_constant(graph, namer, f"{name}_column", np.array([batch, 1], np.int64))
        rows = make_node(
            "Reshape", [given if is_index else wide.outputs[0], column], name=namer.fresh(f"{name}_rows"),
            output=namer.fresh(f"{name}_first"), stands_for=readers,
        )  # fmt: skip
        first = 0 if is_index else 1 - length
        steps = new_constant(graph, namer, f"{name}_steps", np.arange(first, first + length, dtype=np.int64)[None])
        made = make_node(
            "Add", [rows.outputs[0], steps], name=namer.fresh(f"{name}_derived"), output=namer.fresh(f"{name}_value"),
            like=positions, stands_for=readers,
        )  # fmt: skip
        put_first(graph, [rows, made] if is_index else [wide, rows, made])
        replace_value(positions, made.outputs[0], namer)
        return Change("replace", name, f"made of {given.name}")


def _input(graph: ir.Graph, namer: Namer, wanted: str, is_wide: bool, sizes: list[int]) -> ir.Value:
    dtype = ir.DataType.INT64 if is_wide else ir.DataType.INT32
    value = ir.Value(name=namer.fresh(wanted), type=ir.TensorType(dtype), shape=ir.Shape(sizes))
    graph.inputs.append(value)
    return value
