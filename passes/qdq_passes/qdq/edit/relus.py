"""Surgery on a Clip to [0, b]: a Relu in its place, and where b differs from channel to channel a Min behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.core.base import Change
from qdq_passes.graph.edit import Namer, drop_unread, graph_of, make_node, new_constant, replace_nodes
from qdq_passes.graph.operators.relus import bound_of
from qdq_passes.graph.uses import dtype_of


def unbound(node: ir.Node, namer: Namer, factor: npt.NDArray[Any] | None = None) -> Change:
    """Put a Relu of the same name in the place of the Clip ``node``.

    Args:
        node: the Clip to [0, b].
        namer: names of this run.
        factor: the bound of each channel is b·factor, which broadcasts to what the Clip writes: a Min keeps it. None: no bound.
    """
    bound, parameters, name = bound_of(node), list(node.inputs[1:]), node.name or "Relu"
    assert bound is not None
    namer.release(name)
    node.name = namer.fresh(f"{name}_bounded")
    relu = make_node(
        "Relu", [node.inputs[0]], name=namer.fresh(name), output=namer.fresh(f"{name}_relu"), like=node.outputs[0],
        stands_for=[node],
    )  # fmt: skip
    made, because = [relu], "its bound is taken off"
    if factor is not None:
        dtype = (dtype_of(node.outputs[0]) or ir.DataType.FLOAT).numpy()
        value = new_constant(graph_of(node), namer, f"{name}_bounds", np.asarray(bound * factor).astype(dtype), [node])
        made.append(
            make_node(
                "Min", [relu.outputs[0], value], name=namer.fresh(f"{name}_Min"), output=namer.fresh(f"{name}_min"),
                like=node.outputs[0], stands_for=[node],
            )
        )  # fmt: skip
        because = "its bound differs from channel to channel"
    replace_nodes([node], made, namer, because)
    drop_unread(parameters)
    return Change("replace", name, because)
