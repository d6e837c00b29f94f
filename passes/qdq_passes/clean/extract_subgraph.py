"""extract-subgraph"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.clean.edit.wrap import remove_unused_functions
from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.graph.edit import IR_OF_PLAIN_INITIALIZERS, RUN_SORT
from qdq_passes.graph.shapes.inference import infer_shapes, rank_that_fits
from qdq_passes.graph.uses import all_nodes, all_values, label


@dataclass(frozen=True)
class ExtractSubgraph(Pass):
    """Cut the part of the main graph between ``inputs`` and ``outputs`` out as the model.

    Graph: ``x → A → a → B → b → C → y`` with inputs=[a] outputs=[b] → ``a → B → b``.
    Requires: the types of the cut values are given or can be inferred; every path from a graph input to an output of the cut
    crosses one of ``inputs``.
    Keeps: names of all values; weights, functions that are still called, opset imports, metadata.
    Skips: nothing; unnamed inputs default to the graph inputs that the outputs depend on.

    Args:
        inputs: value names that become graph inputs; the graph's own where empty.
        outputs: value names that become graph outputs; the graph's own where empty.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="another model with other inputs and outputs")
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Rewire the graph's ends, then drop what no output needs."""
        graph = model.graph
        values = {v.name: v for v in all_values(model) if v.name and v.graph is graph}
        cut = [values[name] for name in (*self.inputs, *self.outputs) if name in values]
        if any(value.type is None or value.shape is None for value in cut):
            infer_shapes(model)
        starts = [_find(name, values) for name in self.inputs]
        ends = [_find(name, values) for name in self.outputs] or list(graph.outputs)
        for value in (*starts, *ends):
            if value.type is None:
                raise UsageError(
                    "its type is unknown, an input or output needs one",
                    where=value.name,
                    hint="run infer-shapes, or cut elsewhere",
                )
            if isinstance(value.type, ir.TensorType) and value.shape is None:
                rank = rank_that_fits(model, value)
                if rank is None:
                    hint = "give it a shape with onnx, or cut elsewhere"
                    raise UsageError("its rank is unknown, an input or output needs one", where=value.name, hint=hint)
                value.shape = ir.Shape([None] * rank)
        removed = {node: label(node) for node in all_nodes(model)}
        try:
            part = ir.convenience.extract(graph, starts or list(graph.inputs), ends)
        except ValueError as error:
            needed = str(error).rpartition(": ")[2]
            raise UsageError(
                f"the outputs also depend on {needed}", where=self.name(), hint="add a cut before it with --inputs"
            ) from error
        except RuntimeError as error:
            raise ModelError("cannot be cut, its nodes are out of order", where=graph.name, hint=RUN_SORT) from error
        if self.inputs:
            named = set(self.inputs)
        else:
            named = {v.name or "" for v in part.inputs if v.uses() or v.is_graph_output()}
            for value in [v for v in part.inputs if v.name not in named]:
                part.inputs.remove(value)
        order = {name: i for i, name in enumerate(graph.initializers)}  # onnx_ir collects them in a set
        weights = sorted(part.initializers.values(), key=lambda v: order[v.name or ""])
        part.initializers.clear()
        part.initializers.update({v.name or "": v for v in weights})
        if model.ir_version < IR_OF_PLAIN_INITIALIZERS:
            part.inputs.extend(value for value in weights if value not in part.inputs)
        part.opset_imports.update({k: v for k, v in graph.opset_imports.items() if k not in part.opset_imports})
        part.name, part.doc_string = graph.name, graph.doc_string
        part.metadata_props.update(graph.metadata_props)
        model.graph = part
        uncalled = remove_unused_functions(model)
        kept = {node.name for node in all_nodes(model)}
        for name in removed.values():
            if name not in kept:
                yield Change("remove", name, "outside of the cut")
        for identifier in uncalled:
            yield Change("remove", f"{identifier[0]}::{identifier[1]}", "function is no longer called")
        yield Change(
            "edit", part.name or "graph", f"inputs {sorted(n for n in named if n)}, outputs {[v.name for v in ends]}"
        )


def _find(name: str, values: dict[str, ir.Value]) -> ir.Value:
    if name not in values:
        near = difflib.get_close_matches(name, list(values), n=3, cutoff=0.4)
        raise UsageError(f"no value {name!r} in the main graph", hint=f"nearest: {', '.join(near)}" if near else None)
    return values[name]
