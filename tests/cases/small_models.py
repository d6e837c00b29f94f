"""Models from ONNX text: how a test says what it is about, and the few questions that many tests ask of a model.

The header may be left out: IR 10, opset 21 then. Weights too long to write are given as arrays (``weights``), or are ones (`filled`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import onnx_ir as ir
from qdq_passes.graph.uses import all_nodes
from qdq_passes.roles.roles import Roles

from qdqtool.io.models.load import model_of
from qdqtool.io.models.save import serialize

Array = npt.NDArray[Any]

HEADER = '<ir_version: 10, opset_import: ["" : 21, "com.acme" : 1]>'
#: A header for com.microsoft beside the default domain, opset 23: Attention, RotaryEmbedding, RMSNormalization.
FUSED = '<ir_version: 11, opset_import: ["" : 23, "com.microsoft" : 1, "ai.onnx.preview" : 1]>'


@dataclass(frozen=True)
class Observed:
    """An observed range, as calibration hands it to `annotate-encodings`."""

    low: float
    high: float


def parsed(text: str, weights: Mapping[str, Any] | None = None) -> onnx.ModelProto:
    """The model of a graph (and functions) in ONNX text, as it is in a file, with ``weights`` as initializers of these names."""
    text, weights = text.strip(), weights or {}
    proto = onnx.parser.parse_model(text if text.startswith("<") else f"{HEADER}\n{text}")
    for info in [info for info in proto.graph.value_info if info.name in weights]:  # the text may declare their types
        proto.graph.value_info.remove(info)
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()
    )
    return proto


def model(text: str, weights: Mapping[str, Any] | None = None) -> ir.Model:
    """The same as `load` gives it."""
    return model_of(parsed(text, weights))


def filled(text: str) -> str:
    """``text`` with ones for every parameter of the main graph that has no value: ``<float[8,8] w>``."""
    return re.sub(r"\)\s*<([^<>]*)>\s*\{", lambda header: f") <{_values(header[1])}> {{", text)


def _values(parameters: str) -> str:
    parts = re.split(r",\s*(?=[a-z]\w*(?:\[[\d,]*\])? \w)", parameters.strip())
    return ", ".join(part if "=" in part else f"{part} = {_ones(part)}" for part in parts)


def _ones(declaration: str) -> str:
    dims = re.search(r"\[([\d,]*)\]", declaration)
    count = prod(map(int, dims[1].split(","))) if dims else 1
    return "{" + ",".join(["1"] * count) + "}"


def chain(*ops: str, shape: str = "1,4", start: str = "x", last: str = "y", tail: str = "") -> str:
    """Text of x → pair → op → pair → … → y in int8, every scale 0.5; nodes are called by their operator and place."""
    body, value = [f"[qx] xq = QuantizeLinear({start}, s, z)", "[dx] v = DequantizeLinear(xq, s, z)"], "v"
    for i, op in enumerate(ops):
        out = last if i == len(ops) - 1 else f"d{i}"
        body.append(f"[{op}{i}] f{i} = {op}({value})")
        body.append(f"[q{i}] i{i} = QuantizeLinear(f{i}, s, z) [dq{i}] {out} = DequantizeLinear(i{i}, s, z)")
        value = out
    return (
        f"g (float[{shape}] x) => (float[{shape}] y) <float s = {{0.5}}, int8 z = {{0}}> {{ {' '.join(body)} {tail} }}"
    )


def names_of(text: str, role: str) -> str:
    """Names of the nodes with ``role`` in the `filled` text, in the order of the file, with a blank between."""
    network = model(filled(text))
    found = Roles(network).nodes(role)
    return " ".join(node.name or node.op_type for node in all_nodes(network) if node in found)


def operators(model: ir.Model) -> list[str]:
    """Types of the nodes of the main graph, those of other domains with theirs."""
    return [f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in model.graph]


def checked(model: ir.Model) -> ir.Model:
    """``model``, after onnx.checker has looked at it."""
    onnx.checker.check_model(serialize(model), full_check=True)
    return model


def run(model: onnx.ModelProto | ir.Model, feed: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs in onnxruntime, optimization off."""
    from qdqtool.runtime.session import open_session

    return open_session(model_of(model) if isinstance(model, onnx.ModelProto) else model).run(dict(feed))
