"""tabulate-rotary-angles

cos(p·ω), sin(p·ω) for p = 0 … C − 1 are rows of a table [C, D]."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from qdq_passes.core.base import EXACT, Change, Keeps, Named, Pass, skip
from qdq_passes.decoder.edit.position_tables import Compute, Table, compute_in_numpy, is_counted, tables
from qdq_passes.decoder.look.record import DECODER
from qdq_passes.decoder.look.rotary_angles import Angles, graph_between, rotary_angles, why_foreign, why_mixed
from qdq_passes.errors import UsageError
from qdq_passes.graph.build import Builder, Site, drop_chains
from qdq_passes.graph.edit import replace_value
from qdq_passes.graph.operators.qdq_ops import opset_at

_CLOSE = Keeps("changes", why="cosines and sines are those of numpy, which differ from a runtime's in their last bits")


@dataclass(frozen=True)
class TabulateRotaryAngles(Pass):
    """Look cosines and sines of rotary embeddings up by position: angles up to the context length fit no 16-bit float.

    Graph: ``position_ids → Cast → Mul(frequencies) → Cos → Mul(factor) → Unsqueeze`` →
    ``table [C, D], position_ids → Gather → Unsqueeze``, likewise Sin, in whatever form an exporter wrote it. The table is a new
    constant ``<value>_table``. Positions are an input, or what the graph makes of one number a row.
    Requires: static sizes (bind-decoder).
    Keeps: inputs, outputs and their names; numerics bit-exact with ``compute`` for positions below ``context``, each of which is
    computed in several orders and compared; without it cosines are numpy's.
    Skips: a Cos or Sin that follows from more than positions, through operators that ONNX does not have, or not from every
        position below ``context``; frequencies that are chosen by the longest position.

    Args:
        context: how many positions there are; 0: as the decoder's record says.
        compute: what computes the numbers: the runtime in the verbs of the tool; None: numpy.
    """

    context: int = 0
    compute: Compute | Named | None = None

    @property
    def keeps(self) -> Keeps:  # type: ignore[override]
        """Exact where the runtime computes the numbers."""
        return _CLOSE if self.compute is None else EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Input by input."""
        if self.context < 0:
            raise UsageError(f"context={self.context} is no number of positions", hint="at least 1")
        builder = Builder(model)
        for found in list(rotary_angles(model.graph)):
            if isinstance(found, Angles):
                yield from self._tabulate(model, found, builder)
            else:
                yield skip(*found)

    def _tabulate(self, model: ir.Model, angles: Angles, builder: Builder) -> Iterator[Change]:
        """The tables of ``angles``."""
        first, record = angles.trigonometry[0], DECODER.get(model.graph)
        context = self.context or (record.ctx_len if record is not None else 0)
        if not context:
            yield skip(first, "how many positions there are is not known; give context")
            return
        if not angles.starts:
            yield skip(first, f"the sizes of {angles.source.name} are not static; run bind-decoder first")
            return
        reasons = []
        for start in angles.starts:
            made = self._tables(model, angles, start, context)
            if isinstance(made, str):
                reasons.append(made)
                continue
            for value in angles.values:
                yield _look_up(value, start, made[value.name or ""], builder)
            yield from drop_chains(angles.values, "cosines and sines are in a table")
            return
        yield skip(first, reasons[0])

    def _tables(self, model: ir.Model, angles: Angles, start: ir.Value, context: int) -> dict[str, Table] | str:
        """What ``start`` tells of the angles; in words why nothing."""
        assert not isinstance(self.compute, Named)
        between = angles.between(start)
        if not between:
            return f"what is computed of {start.name} reads {angles.source.name} elsewhere"
        refused = why_mixed(between) or why_foreign([*angles.made_by(start), *between])
        if refused is not None:
            return refused
        opset, version = opset_at(model, angles.trigonometry[0]), model.ir_version or 10
        before = graph_between(angles.made_by(start), angles.source, (start,), opset, version)
        if start is not angles.source and not is_counted(ir.from_proto(before), context):
            return f"{start.name} is not {angles.source.name} and what is counted from it"
        part = ir.from_proto(graph_between(between, start, angles.values, opset, version))
        names = [value.name or "" for value in angles.values]
        return tables(part, start, names, context, self.compute or compute_in_numpy)


def _look_up(value: ir.Value, positions: ir.Value, table: Table, builder: Builder) -> Change:
    """Rows of ``table`` by ``positions`` in the place of ``value``."""
    node = value.producer()
    assert node is not None
    site = builder.at(node, base=value.name)
    dtype = value.dtype or ir.DataType.from_numpy(table.rows.dtype)
    rows = site.constant(table.rows, dtype, word="table")
    made = _laid_out(site, site("Gather", rows, positions, axis=0), positions, table)
    made.shape, made.type = ir.Shape(table.shape), ir.TensorType(dtype)
    context = len(table.rows)
    replace_value(value, made, builder.namer)
    return Change("replace", value.name or "", f"rows of a table of {context} positions, by {positions.name}")


def _laid_out(site: Site, gathered: ir.Value, positions: ir.Value, table: Table) -> ir.Value:
    """What was gathered, [positions…, rest…], in the shape of the value."""
    assert positions.shape is not None
    lengths = [int(size) for size in positions.shape if isinstance(size, int)]
    shape = [*lengths, *table.rows.shape[1:]]
    if list(table.order) != sorted(table.order):
        inner = [size for size in lengths if size != 1] + list(table.rows.shape[1:])
        if inner != shape:
            gathered = site.reshape(gathered, inner)
        gathered = site.transpose(gathered, *table.order)
        shape = [inner[place] for place in table.order]
    return gathered if shape == list(table.shape) else site.reshape(gathered, table.shape)
