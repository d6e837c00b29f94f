"""Asks which nodes of a model in ONNX text have a role. Parameters need no values there: ``<float[8,8] w>`` is filled with ones."""

from __future__ import annotations

import re
from math import prod

from qdq_passes.graph.uses import all_nodes
from qdq_passes.roles.roles import Roles

from tests.cases.small_models import model

#: A header for com.microsoft beside the default domain, opset 23: Attention, RotaryEmbedding, RMSNormalization.
FUSED = '<ir_version: 11, opset_import: ["" : 23, "com.microsoft" : 1, "ai.onnx.preview" : 1]>'


def names_of(text: str, role: str) -> str:
    """Names of the nodes with ``role``, in the order of the file, with a blank between."""
    network = model(filled(text))
    found = Roles(network).nodes(role)
    return " ".join(node.name or node.op_type for node in all_nodes(network) if node in found)


def filled(text: str) -> str:
    """``text`` with a value for every parameter of the main graph that has none."""
    return re.sub(r"\)\s*<([^<>]*)>\s*\{", lambda header: f") <{_values(header[1])}> {{", text)


def _values(parameters: str) -> str:
    parts = re.split(r",\s*(?=[a-z]\w*(?:\[[\d,]*\])? \w)", parameters.strip())
    return ", ".join(part if "=" in part else f"{part} = {_ones(part)}" for part in parts)


def _ones(declaration: str) -> str:
    dims = re.search(r"\[([\d,]*)\]", declaration)
    count = prod(map(int, dims[1].split(","))) if dims else 1
    return "{" + ",".join(["1"] * count) + "}"
