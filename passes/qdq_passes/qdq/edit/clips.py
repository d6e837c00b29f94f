"""Surgery where a pair clips on purpose: quantizers drop the Relu before a pair whose range begins at 0, as that clips alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.core.base import Change
from qdq_passes.graph.edit import Namer, drop_unread, graph_of, insert_after, make_node, new_constant, replace_nodes
from qdq_passes.graph.operators.activations import BOUNDS, relu_bound
from qdq_passes.graph.operators.qdq_ops import opset_at
from qdq_passes.graph.uses import dtype_of
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.reencode import real_range
from qdq_passes.qdq.look.pairs import Pair
from qdq_passes.qdq.look.value_ranges import Interval, is_clamped_at_zero

#: First opset whose Clip has its bounds as inputs.
OPSET_OF_BOUNDS = 11


def clips_at_zero(pair: Pair, old: Encoding, new: Encoding) -> bool:
    """Whether ``pair`` cut off what a node writes below 0 and with ``new`` would not."""
    return is_clamped_at_zero(pair, old) and bool(np.any(real_range(new)[0] < 0))


def put_activation(
    model: ir.Model, q: ir.Node, namer: Namer, made: dict[ir.Value, ir.Value], bounds: Interval | None = None
) -> Change:
    """Put a Relu before the QuantizeLinear ``q``: ``t → Q`` → ``t_Relu_Input → Relu → t → Q``.

    Other readers of the float value go on reading what its producer writes; a float graph output keeps its name there.

    Args:
        model: the model.
        q: the QuantizeLinear.
        namer: names of this run.
        made: float value → what its Relu writes, of this run: pairs on one value share it.
        bounds: a Clip to them in its place.
    """
    source = q.inputs[0]
    assert source is not None
    if source not in made:
        made[source] = _activation_behind(model, source, namer, bounds)
    q.replace_input_with(0, made[source])
    node = made[source].producer()
    assert node is not None
    low, high = bounds if bounds is not None and node.op_type == "Clip" else (0.0, None)
    above = "" if high is None else f" and above {high:g}"
    return Change("insert", node.name or "", f"before {q.name}, which cut off what is below {low:g}{above}")


def _activation_behind(model: ir.Model, source: ir.Value, namer: Namer, bounds: Interval | None) -> ir.Value:
    name, producer = source.name or "value", source.producer()
    assert producer is not None
    op_type = "Relu" if bounds is None else "Clip"
    node = make_node(
        op_type, [source], name=namer.fresh(f"{name}_{op_type}"), output=namer.fresh(f"{name}_{op_type}_Output"), like=source,
        stands_for=[producer],
    )  # fmt: skip
    insert_after(model, source, [node])
    if bounds is not None:
        _bound(model, node, bounds, namer)
    if not source.is_graph_output():
        source.name, node.outputs[0].name = namer.fresh(f"{name}_{op_type}_Input"), name
    return node.outputs[0]


def _bound(model: ir.Model, clip: ir.Node, bounds: Interval, namer: Namer) -> None:
    """Give ``clip`` its bounds, as attributes before opset 11, as inputs since."""
    ends = dict(zip(BOUNDS, bounds, strict=True))
    if opset_at(model, clip) < OPSET_OF_BOUNDS:
        for which, end in ends.items():
            clip.attributes[which] = ir.AttrFloat32(which, end)
        return
    dtype = (dtype_of(clip.outputs[0]) or ir.DataType.FLOAT).numpy()
    clip.resize_inputs(3)
    for index, (which, end) in enumerate(ends.items(), start=1):
        value = new_constant(graph_of(clip), namer, f"{clip.name}_{which}", np.asarray(end, dtype), [clip])
        clip.replace_input_with(index, value)


def unbound(node: ir.Node, namer: Namer, factor: npt.NDArray[Any] | None = None) -> Change:
    """Put a Relu of the same name in the place of the Clip ``node``.

    Args:
        node: the Clip to [0, b].
        namer: names of this run.
        factor: the bound of each channel is b·factor, which broadcasts to what the Clip writes: a Min keeps it. None: no bound.
    """
    bound, parameters, name = relu_bound(node), list(node.inputs[1:]), node.name or "Relu"
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
