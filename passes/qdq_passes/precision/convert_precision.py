"""convert-precision"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.encode.edit.precision import float_nodes
from qdq_passes.graph.annotate import PRECISION
from qdq_passes.graph.operators.float_schemas import Retyped, retyped
from qdq_passes.graph.operators.qdq_ops import is_quantization
from qdq_passes.graph.shapes.inference import element_types
from qdq_passes.graph.uses import all_graph_likes, constant_array, is_standard, main_nodes
from qdq_passes.numerics.encoding import parse_dtype
from qdq_passes.precision.edit.casts import Region, in_half
from qdq_passes.select.selectors import ALL, Selector, select_nodes


@dataclass(frozen=True)
class ConvertPrecision(Pass):
    """Let nodes compute in float16 or bfloat16: those that `set-precision` marked, or the selected ones.

    Neighbours make up one region: a Cast stands where a tensor enters or leaves it, one for all readers, and none between two of
    its nodes; initializers are converted, not cast. A mask or bound beyond what the type holds becomes its lowest or largest
    number, and that is said. onnxruntime 1.31 computes float16 on CPUs, in float32 between Casts of its own where it has no
    kernel; of bfloat16 it has next to none: such a model is for a chip.

    Graph: ``t → A → B → u`` → ``t → Cast → A → B → Cast → u``.
    Requires: known element types (infer-shapes).
    Keeps: names of inputs and outputs, and with ``io=keep`` their types; the numbers are rounded to 11 bits, or 8.
    Skips: operators that the ONNX schema of the model's opset gives no such type, those whose type an attribute says, on
        sequences, in bodies and functions, or with a body; nodes that read an initializer beyond the type; Q and DQ; all in a
        model that does not import ONNX's own operators, as Cast is one.

    Args:
        select: the nodes; with ``dtype=annotated`` those of the marked ones.
        dtype: the type; ``annotated`` is that of the annotation ``precision``, ``float`` is float32.
        io: ``convert`` makes float inputs and outputs of the graph that the nodes read and write of that type too.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="values are rounded to the shorter float")
    select: Selector = ALL
    dtype: Literal["annotated", "float16", "bfloat16", "float"] = "annotated"
    io: Literal["keep", "convert"] = "keep"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """One type after the other; a second region starts at the Casts of the first."""
        wanted = self._wanted(model)
        main = set(main_nodes(model))
        for node in wanted:
            if node not in main:
                yield skip(node, "is in a body or a function")
        for dtype in dict.fromkeys(wanted.values()):
            nodes = [node for node in main_nodes(model) if wanted.get(node) == dtype]
            values = [v for node in nodes for v in (*node.inputs, *node.outputs) if v is not None]
            types = element_types(model, [*values, *_cast_from(values)])
            held = _outputs_of_bodies(model)
            region: dict[ir.Node, Retyped] = {}
            for node in nodes:
                what = _why_not(model, node, held) or retyped(node, dtype, _opset(model, node), types)
                what = what if isinstance(what, str) else _why_not_constants(node, what, dtype) or what
                if isinstance(what, Retyped):
                    region[node] = what
                elif what:
                    yield skip(node, what)
            yield from Region(model, dtype, region, types, convert_io=self.io == "convert").convert()
        for node in wanted:
            PRECISION.clear(node)

    def _wanted(self, model: ir.Model) -> dict[ir.Node, ir.DataType]:
        selected = None if self.select.is_all else select_nodes(model, self.select)
        if self.dtype == "annotated":
            marked = {node: dtype for node, dtype in float_nodes(model).items() if dtype != "float"}
            return {n: parse_dtype(dtype) for n, dtype in marked.items() if selected is None or n in selected}
        chosen = [node for node in main_nodes(model) if selected is None or node in selected]
        if selected is not None:
            chosen += sorted(selected - set(chosen), key=lambda node: node.name or "")
        return {node: parse_dtype(self.dtype) for node in chosen if not _is_border(node)}


def _is_border(node: ir.Node) -> bool:
    """Whether ``node`` only converts: Casts and pairs."""
    is_pair = is_quantization(node)
    return is_pair or is_standard(node, "Cast", "CastLike", "Constant")


def _why_not(model: ir.Model, node: ir.Node, held: set[ir.Value]) -> str | None:
    if _is_border(node):
        return "only converts"
    if "" not in model.opset_imports:
        return "the model does not import the domain of Cast; add ai.onnx to its opset imports"
    return "a body hands on what it writes" if any(value in held for value in node.outputs) else None


def _why_not_constants(node: ir.Node, what: Retyped, dtype: ir.DataType) -> str | None:
    """Why a constant that ``node`` reads cannot be ``dtype``, None when all can."""
    for index in what.inputs:
        value = node.inputs[index]
        array = constant_array(value)
        found = in_half(array, dtype, node) if array is not None else None
        if isinstance(found, str) and value is not None:
            return f"its constant {value.name} {found}"
    return None


def _cast_from(values: list[ir.Value]) -> list[ir.Value]:
    """What those of ``values`` that a Cast writes were before."""
    casts = [p for v in values if (p := v.producer()) is not None and is_standard(p, "Cast")]
    return [cast.inputs[0] for cast in casts if cast.inputs[0] is not None]


def _outputs_of_bodies(model: ir.Model) -> set[ir.Value]:
    """Values of the main graph that a body names as its output."""
    bodies = [graph for graph in all_graph_likes(model) if graph is not model.graph]
    return {value for graph in bodies for value in graph.outputs if value.graph is model.graph}


def _opset(model: ir.Model, node: ir.Node) -> int:
    domain = "" if node.domain == "ai.onnx" else node.domain
    return model.opset_imports.get(domain, 1)
