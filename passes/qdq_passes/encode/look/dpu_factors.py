"""Multiplications that only say what the DPU computes: they belong to the operator before them, and no pair stands between."""

from __future__ import annotations

import math
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.graph.operators.hard_sigmoid import is_dpu_hard_sigmoid
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.operators.windows import averaged_sizes
from qdq_passes.graph.uses import constant_array, is_standard, only_reader, readers
from qdq_passes.numerics.dpu import HARD_SIGMOID_FACTOR, mean_factor, pool_factor

#: (Mul, its constant [], its other input).
Scaling = tuple[ir.Node, npt.NDArray[Any], ir.Value]


def is_dpu_factor(node: ir.Node) -> bool:
    """Whether ``node`` is a Mul by exactly the DPU's factor of the pool, mean or hard sigmoid whose output it alone reads."""
    if not is_standard(node, "Mul") or len(node.inputs) != 2:
        return False
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        if value is None or producer is None or only_reader(value) is not node:
            continue
        factor, constants = dpu_factor(producer), [constant for _, constant, _ in scalings(value, behind_pairs=False)]
        if factor is not None and any(c.dtype.kind == "f" and c == c.dtype.type(factor) for c in constants):
            return True
    return False


def dpu_factor(node: ir.Node) -> float | None:
    """The DPU's factor of a pool, mean or hard sigmoid; None for other operators, and where it has none or the file does not
    tell what is averaged over."""
    if is_standard(node, "HardSigmoid"):
        return HARD_SIGMOID_FACTOR if is_dpu_hard_sigmoid(node) else None
    if not is_standard(node, "AveragePool", "GlobalAveragePool", "ReduceMean"):
        return None
    sizes = averaged_sizes(node)
    if sizes is None:
        return None
    return mean_factor(math.prod(sizes)) if node.op_type == "ReduceMean" else pool_factor(sizes)


def scalings(value: ir.Value, *, behind_pairs: bool = True) -> list[Scaling]:
    """Every Mul by one constant number that reads ``value``, itself or behind QDQ pairs."""
    found: list[Scaling] = []
    for node, index in readers(value):
        if behind_pairs and index == 0 and (is_quantize(node) or is_dequantize(node)):
            found += scalings(node.outputs[0])
        elif is_standard(node, "Mul") and len(node.inputs) == 2:
            constant = constant_array(node.inputs[1 - index])
            if constant is not None and constant.size == 1:
                found.append((node, constant.reshape(()), value))
    return found
