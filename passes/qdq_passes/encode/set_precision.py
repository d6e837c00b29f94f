"""set-precision"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.encode.edit.precision import FLOATS, leaving, moved_from
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import PRECISION, Precision
from qdq_passes.graph.uses import has_body, is_constant, main_nodes, may_be_float
from qdq_passes.select.selectors import ALL, Selector, select


@dataclass(frozen=True)
class SetPrecision(Pass):
    """Say that some values are stored in other integers than all the rest, or that some nodes compute in floats.

    With an integer type the values that the selected nodes write get it, or the selected values themselves: with ``tensor:``
    those alone, constants too, which keep the signedness of weights; with ``in:`` and ``io:`` without constants, and with what
    they were moved from if nothing else is made of that. Of a value inside a fused group, what leaves the group gets the type.
    With a float type the selected nodes demand no encodings, as if excluded; `convert-precision` then makes them compute in
    float16 or bfloat16. Said of values, it holds for the nodes that write them.

    Graph: unchanged; values and nodes gain the annotation ``precision``, which `annotate-encodings` and `convert-precision` heed.
    Requires: nothing.
    Keeps: everything; numerics bit-exact (what is made of it is not).
    Skips: values that are no floats; nodes in bodies of If and Loop, where nothing is quantized; with ``default`` what has a
        precision.

    Args:
        select: nodes or values.
        dtype: ``int8``, ``uint8``, ``int16``, ``uint16``, or ``float`` (the model's own), ``float16``, ``bfloat16``.
        default: what was said before holds, and a selector that matches nothing says nothing: what a preset says of any model.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL
    dtype: Literal["int8", "uint8", "int16", "uint16", "float", "float16", "bfloat16"] = "uint16"
    default: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Nodes first, then values.

        Raises:
            UsageError: something else was said of a node or value before.
        """
        nodes, values = _chosen(model, self.select, allow_empty=self.default)
        main = set(main_nodes(model))
        mark = Precision(self.dtype)
        if self.dtype in FLOATS:
            nodes |= {p: None for v in values if (p := v.producer()) is not None}
            values = {}
        for node in nodes:
            if node not in main:
                yield skip(node, "is in a body, where nothing is quantized")
            elif has_body(node):
                yield skip(node, "has a body, where nothing is quantized")
            elif not (written := [v for v in node.outputs if may_be_float(v)]):
                yield skip(node, "writes no floats")
            else:
                yield from self._set(node, mark)
                if self.dtype not in FLOATS and PRECISION.get(node) == mark:
                    values |= dict.fromkeys(written)
        for value in leaving(values):
            if may_be_float(value):
                yield from self._set(value, mark)
            else:
                yield skip(value, "is no float")

    def _set(self, holder: ir.Node | ir.Value, mark: Precision) -> Iterator[Change]:
        before, where = PRECISION.get(holder), holder.name or "<unnamed>"
        if before == mark:
            return
        if before is not None and self.default:
            yield skip(where, f"is {before.dtype} already")
            return
        if before is not None:
            raise UsageError(
                f"shall be {before.dtype} and {mark.dtype}", where=where, hint="leave it out of one of the selectors"
            )
        PRECISION.set(holder, mark)
        yield Change("annotate", where, mark.dtype)


def _chosen(
    model: ir.Model, selector: Selector, *, allow_empty: bool
) -> tuple[dict[ir.Node, None], dict[ir.Value, None]]:
    """The nodes that ``selector`` names, and the values that it names by themselves."""
    nodes: dict[ir.Node, None] = {}
    values: dict[ir.Value, None] = {}
    for text in selector.texts or ("*",):
        hit = select(model, Selector.of(text), allow_empty=allow_empty or selector.is_all)
        nodes |= {node: None for node in hit.nodes if node in hit.named}
        if not hit.named:
            if "tensor:" in text:
                values |= dict.fromkeys(hit.values)
            else:
                values |= dict.fromkeys(moved_from(v for v in hit.values if not is_constant(v)))
    return nodes, values
