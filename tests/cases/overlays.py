"""Models for the page of `view --overlay`: one whose Relu is left out, and one of thousands of operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from tests.cases.small_models import parsed

_CLAMPED = """
<ir_version: 10, opset_import: ["" : 21]>
clamped (float[1,1,4,4] x) => (float[1,1,4,4] y)
<float s = {0.05}, uint8 z = {0}, float[1,1,1,1] w = {0.5}>
{ [qx] xq = QuantizeLinear(x, s, z)
  [dx] xd = DequantizeLinear(xq, s, z)
  [conv] c = Conv(xd, w)
  [qc] cq = QuantizeLinear(c, s, z)
  [dc] cd = DequantizeLinear(cq, s, z)
  [last] y = Sigmoid(cd) }
"""


def clamped(path: Path) -> Path:
    """A Conv whose output has the zero point 0 of uint8: the Relu behind it was left out."""
    onnx.save(parsed(_CLAMPED), path)
    return path


def deep(path: Path, operators: int) -> Path:
    """Blocks of five operators with a branch and a way around, every value with a pair, weights stored."""
    random = np.random.default_rng(0)
    arrays: dict[str, npt.NDArray[Any]] = {"s": np.array(0.03125, np.float32), "z": np.array(0, np.int8)}
    nodes: list[onnx.NodeProto] = []

    def add(op: str, reads: list[str], name: str) -> str:
        nodes.append(onnx.helper.make_node(op, reads, [name], name=f"/{name.replace('.', '/')}"))
        return name

    def paired(value: str) -> str:
        return add(
            "DequantizeLinear", [add("QuantizeLinear", [value, "s", "z"], f"{value}_q"), "s", "z"], f"{value}_dq"
        )

    x = paired("x")
    for at in range((operators - 1) // 5):
        arrays[f"b{at}.w_q"] = random.integers(-100, 100, (4, 4, 1, 1)).astype(np.int8)
        weight = add("DequantizeLinear", [f"b{at}.w_q", "s", "z"], f"b{at}.w")
        r = paired(add("Relu", [add("Conv", [x, weight], f"b{at}.conv")], f"b{at}.relu"))
        gated = paired(add("Mul", [r, paired(add("Sigmoid", [r], f"b{at}.gate"))], f"b{at}.mul"))
        x = paired(add("Add", [gated, x], f"b{at}.add"))
    while (
        sum("QuantizeLinear" not in node.op_type and node.op_type != "DequantizeLinear" for node in nodes)
        < operators - 1
    ):
        x = add("Relu", [x], f"end{len(nodes)}")
    nodes.append(onnx.helper.make_node("Relu", [x], ["y"], name="last"))
    info = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4, 8, 8]) for name in ("x", "y")]
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "deep", info[:1], info[1:], constants)
    opset = onnx.helper.make_opsetid("", 21)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    return path
