"""emit-new-kv"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.decoder.look.flow import passed_on
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.decoder.look.updates import IN_PLACE, Growth, growth_of, way_out
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.edit import Namer, make_node, move_annotations
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import label


@dataclass(frozen=True)
class EmitNewKv(Pass):
    """Give out the new rows of the KV cache alone; whoever keeps the cache appends them and slides it.

    Graph: ``past [B, H, C-S, D], new [B, H, S, D] → Concat → present [B, H, C, D]`` →
    the same, the Concat's output under another name; ``present [B, H, S, D]`` is ``new``.
    Requires: caches that grow by a Concat.
    Keeps: names of inputs and outputs; what the attention reads, bit-exact.
    Skips: nothing. Caches in place or inside an attention are refused, with the way out.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="present holds the S new rows, not all C")

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Check every tensor of the cache, then change all."""
        namer, inferred = Namer(model), Inferred(model)
        growths = []
        for pair in decoder_io(model).pairs:
            growth = growth_of(pair)
            if isinstance(growth, str):
                raise UnsupportedError(
                    f"{growth}, so that the new rows do not stand alone", where=label(pair.update),
                    hint="take the in-place layout" if growth == IN_PLACE else way_out(pair),
                )  # fmt: skip
            growths.append((growth, inferred.sizes(growth.new, [growth.axis])))
        for growth, length in growths:
            yield _emit(growth, length[0] if length else ir.SymbolicDim("sequence"), namer)


def _emit(growth: Growth, length: int | ir.SymbolicDim, namer: Namer) -> Change:
    """Redirect the output; what stands between the Concat and it (a Transpose, a Cast) is done to the new rows as well."""
    pair, present, value = growth.pair, growth.pair.present, growth.new
    graph, name, made = present.graph, present.name or "", list[ir.Node]()
    assert graph is not None
    present.name = namer.fresh(f"{name}_all")
    for node in _path(growth):
        made.append(
            make_node(
                node.op_type, [value, *node.inputs[1:]], name=namer.fresh(f"{node.name}_new"), attributes=node.attributes,
                domain=node.domain, output=namer.fresh(f"{node.outputs[0].name}_new"), stands_for=[node],
            )
        )  # fmt: skip
        value = made[-1].outputs[0]
    is_held = value.is_graph_input() or value.is_initializer() or value.is_graph_output() or value.graph is not graph
    if is_held and not made:
        identity = namer.fresh(f"{name}_Identity")
        made.append(
            make_node("Identity", [value], name=identity, output=f"{identity}_Output", stands_for=[pair.update])
        )
        value = made[-1].outputs[0]
    graph.insert_after(pair.update, made)
    value.name, value.type = name, present.type
    if present.shape is not None:
        value.shape = ir.Shape([length if axis == pair.axis else size for axis, size in enumerate(present.shape)])
    for index, output in enumerate(graph.outputs):
        if output is present:
            graph.outputs[index] = value
    move_annotations(present, value)
    return Change("edit", name, f"the new rows alone; {pair.update.name} joins them with the past inside")


def _path(growth: Growth) -> list[ir.Node]:
    """The nodes from the Concat to the output, in order."""
    output, path, value = growth.pair.update.outputs[0], list[ir.Node](), growth.pair.present
    inside = {passed.value for passed in passed_on(output, len(growth.passed[0].axes))}
    while value is not output and value in inside:
        producer = value.producer()
        assert producer is not None
        assert producer.inputs[0] is not None
        path.append(producer)
        value = producer.inputs[0]
    return path[::-1]
