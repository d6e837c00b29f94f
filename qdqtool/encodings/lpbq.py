"""LPBQ in models: scales of blocks that a DequantizeLinear makes of small integers and one float per channel, as AIMET writes
them, or constant scales that remember in their node's metadata what they were made of, as we write them."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import ModelError
from qdq_passes.graph.edit import Namer, drop_unread, graph_of, new_constant, remove
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_qdq
from qdq_passes.graph.uses import all_nodes, constant_array
from qdq_passes.numerics.documents import json_of
from qdq_passes.numerics.encoding import Encoding, integer_format, is_integer_type
from qdq_passes.numerics.quantize import dequantize
from qdq_passes.qdq.look.pairs import encoding_of

from qdqtool.encodings.entries import Lpbq

#: In ``metadata_props`` of a DequantizeLinear with blocked scales.
KEY = "qdqtool.lpbq"


def remember(dq: ir.Node, holds: Lpbq) -> None:
    """Note on ``dq`` the factors of its scales."""
    note = {"bits": holds.bits, "block_scale": holds.block_scale, "channel_scale": holds.channel_scale}
    dq.metadata_props[KEY] = json.dumps(note, sort_keys=True, separators=(",", ":"))


def remembered(dq: ir.Node, encoding: Encoding) -> Lpbq | None:
    """The factors noted on ``dq``, if they still make its ``encoding``.

    Raises:
        ModelError: the note is broken.
    """
    text = dq.metadata_props.get(KEY)
    if text is None or encoding.axis is None:
        return None
    try:
        note = json_of(text)
        found = Lpbq(
            dtype=encoding.dtype,
            bits=int(note["bits"]),
            channel_scale=tuple(float(s) for s in note["channel_scale"]),
            block_scale=tuple(int(f) for f in note["block_scale"]),
            block_size=encoding.block_size,
            shape=encoding.shape,
            axis=encoding.axis,
        )
    except ModelError:
        return None  # another shape: the scales were changed since
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"its metadata {KEY} is broken: {error}", where=dq.name, hint="remove that entry") from error
    return found if found.encoding == encoding else None


def fold_scales(model: ir.Model) -> dict[ir.Node, Lpbq]:
    """Make the computed scales of LPBQ constant, in place; returns the factors per DequantizeLinear that had them."""
    namer = Namer(model)
    found: dict[ir.Node, Lpbq] = {}
    makers: dict[ir.Node, list[ir.Node]] = {}
    for node in all_nodes(model):
        if is_qdq(node) and len(node.inputs) > 1 and node.inputs[1] is not None:
            maker = node.inputs[1].producer()
            if maker is not None and is_dequantize(maker):
                makers.setdefault(maker, []).append(node)
    for maker, nodes in makers.items():
        factors, grid = constant_array(maker.inputs[0]), encoding_of(maker)
        scale = constant_array(maker.inputs[1]) if len(maker.inputs) > 1 else None
        if factors is None or grid is None or scale is None or factors.ndim != 2 or grid.axis is None:
            continue
        if not grid.is_symmetric or grid.block_size:
            continue
        constant = new_constant(
            graph_of(maker), namer, f"{maker.outputs[0].name}_folded", dequantize(factors, grid, scale.dtype), [maker]
        )
        for node in nodes:
            node.replace_input_with(1, constant)
            encoding = encoding_of(node)
            if encoding is not None and encoding.block_size and is_integer_type(encoding.dtype):
                found[node] = Lpbq(
                    dtype=encoding.dtype,
                    bits=2 * integer_format(encoding.dtype)[1],
                    channel_scale=tuple(np.asarray(scale, np.float64).ravel().tolist()),
                    block_scale=tuple(int(f) for f in np.asarray(factors).ravel()),
                    block_size=encoding.block_size,
                    shape=tuple(factors.shape),
                    axis=encoding.axis,
                )
        if not maker.outputs[0].uses() and not maker.outputs[0].is_graph_output():
            parameters = list(maker.inputs)
            remove(maker, "its scale is constant")
            drop_unread(parameters)
    return found
