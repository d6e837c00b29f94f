"""fold-pad"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import drop_unread, inherit, remove
from qdq_passes.graph.operators.layers import why_read_elsewhere
from qdq_passes.graph.operators.pads import AUTO_PAD, added_pads, own_pads, padding_of, windows_start_inside
from qdq_passes.graph.operators.qdq_ops import opset_at
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.graph.uses import all_nodes, integer_of, integers_of, is_standard, label
from qdq_passes.qdq.look.biases import constant_shape
from qdq_passes.qdq.look.value_ranges import proven_range

READERS = ("Conv", "AveragePool", "MaxPool")


@dataclass(frozen=True)
class FoldPad(Pass):
    """Fold a Pad with zeros into the pads of the Conv, AveragePool or MaxPool behind it.

    A Conv and an AveragePool that counts its pads see the zeros as before; a MaxPool pads with −∞ instead, which is the same
    where no element is negative.

    Graph: ``x → Pad(1) → t → Conv(pads=0) → y`` → ``x → Conv(pads=1) → y``; an AveragePool gets ``count_include_pad`` = 1.
    Requires: constant pads and value.
    Keeps: inputs, outputs and their names; numerics within the bound, unless ``max-pool`` or ``count-pads`` says otherwise.
    Skips: t has other readers or is a graph output; pads of batch or channels, negative ones, other values than zero, other
    modes; a reader with ``auto_pad``; a pool whose pads would be as large as its window, which is invalid, or whose ceil_mode
    may put a window into the pads; a MaxPool of what may be negative, with dilations, or whose indices are read; an AveragePool
    that does not count its own pads.

    Args:
        max_pool: fold into every MaxPool, although windows whose elements are all negative give another result then.
        count_pads: fold into an AveragePool that does not count its own pads, although it counts them then.
    """

    max_pool: bool = False
    count_pads: bool = False

    @property
    def keeps(self) -> Keeps:  # type: ignore[override]
        """Bounded, unless an option lets the function change."""
        if self.max_pool or self.count_pads:
            return Keeps(
                "changes", why="at the border a MaxPool takes −∞ for 0, or an AveragePool divides by more elements"
            )
        return Keeps(
            "bounded",
            bound=2.0**-18,
            why="the same sums, in which the products with zeros may be left out: K terms in another order, with K ≤ 2^12 and "
            "random signs √K·2^-24 = 2^-18 of max|y|",
        )

    def run(self, model: ir.Model) -> Iterator[Change]:
        """From reader to reader; several Pads in a row fold from the back."""
        for node in all_nodes(model):
            while (pad := _pad_before(node)) is not None:
                pads = self._pads(model, node, pad)
                if isinstance(pads, str):
                    yield skip(pad, pads)
                    break
                yield from _fold(pad, node, pads)

    def _pads(self, model: ir.Model, node: ir.Node, pad: ir.Node) -> list[int] | str:
        """The pads of ``node`` when ``pad`` is folded into it, or why it is not."""
        kernel = _kernel(node)
        reason = why_read_elsewhere(pad.outputs[0], node)
        if reason is not None or kernel is None:
            return reason or f"the kernel of {node.name} is not known"
        padding, own = padding_of(pad, len(kernel) + 2), own_pads(node, len(kernel))
        if isinstance(padding, str) or isinstance(own, str):
            return padding if isinstance(padding, str) else str(own)
        pads = added_pads(padding, own)
        if isinstance(pads, str) or node.op_type == "Conv" or padding.is_nothing:
            return pads
        if any(have >= size for have, size in zip(pads, kernel * 2, strict=True)):
            return f"the pads of {node.name} would be as large as its window"
        if integer_of(node, "ceil_mode", 0):
            shape = static_sizes(pad.inputs[0])
            if shape is None or not windows_start_inside(node, shape[2:], pads):
                return f"{node.name} has ceil_mode, and a window that starts in the pads"
        return self._why_not_average(model, node, own) or self._why_not_max(node, pad) or pads

    def _why_not_average(self, model: ir.Model, pool: ir.Node, own: list[int]) -> str | None:
        if pool.op_type != "AveragePool":
            return None
        if opset_at(model, pool) < 7:
            return f"{pool.name} cannot count its pads before opset 7"
        if any(own) and not integer_of(pool, "count_include_pad", 0) and not self.count_pads:
            return f"{pool.name} does not count its own pads"
        return None

    def _why_not_max(self, pool: ir.Node, pad: ir.Node) -> str | None:
        if pool.op_type != "MaxPool":
            return None
        if any(value.name and (value.uses() or value.is_graph_output()) for value in pool.outputs[1:]):
            return f"the indices of {pool.name} are read"
        if self.max_pool:
            return None
        if proven_range(pad.inputs[0])[0] < 0:
            return f"{pool.name} takes the largest element, which may be negative (max-pool=true folds it all the same)"
        return f"{pool.name} has dilations" if any(step != 1 for step in integers_of(pool, "dilations")) else None


def _pad_before(node: ir.Node) -> ir.Node | None:
    """The Pad whose output ``node``, one of `READERS`, convolves or pools."""
    source = node.inputs[0] if is_standard(node, *READERS) and node.inputs else None
    pad = source.producer() if source is not None else None
    return pad if pad is not None and is_standard(pad, "Pad") else None


def _kernel(node: ir.Node) -> tuple[int, ...] | None:
    """Sizes of the window along the spatial axes."""
    given = tuple(integers_of(node, "kernel_shape"))
    weight = node.inputs[1] if not given and len(node.inputs) > 1 else None
    shape = static_sizes(weight) or constant_shape(weight)
    return given or (tuple(shape[2:]) if shape is not None else None)


def _fold(pad: ir.Node, node: ir.Node, pads: list[int]) -> Iterator[Change]:
    parameters = list(pad.inputs)
    node.replace_input_with(0, pad.inputs[0])
    node.attributes.pop(AUTO_PAD, None)
    if node.op_type == "AveragePool" and pads != integers_of(node, "pads"):
        node.attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 1)
    node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    inherit(node, [node, pad])
    yield Change("edit", label(node), f"pads {pads}, takes over {pad.name}")
    yield from remove(pad, f"folded into {node.name}")
    yield from drop_unread(parameters)
