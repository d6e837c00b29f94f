"""fuse-matmul-add"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, drop_unread, graph_of, make_node, new_constant, replace_nodes
from qdq_passes.graph.operators.layers import why_read_elsewhere
from qdq_passes.graph.uses import all_nodes, constant_array, is_constant, is_standard
from qdq_passes.numerics.arrays import Array

Dims = list[int | ir.SymbolicDim]


@dataclass(frozen=True)
class FuseMatmulAdd(Pass):
    """Make one Gemm of a MatMul by a constant matrix and the Add of a constant behind it, so that the sum is one bias.

    Y = XW + B with X [M, K], W [K, N], B broadcast to [M, N]  ⇒  Y = Gemm(X, Wᵀ, B), transB = 1. An X of more dimensions
    […, K] is reshaped to [M, K] before, and what comes out to […, N] behind.

    Graph: ``x → MatMul(w) → t → Add(b) → y`` → ``x → Gemm(t_weight, b) → y``, or
    ``x → Reshape → t_pre_reshape_out → Gemm(t_weight, b) → t_gemm_out → Reshape → y``. The Gemm is called ``t``.
    Requires: the number of dimensions of x (infer-shapes).
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: t has other readers or is a graph output; w no matrix of float32 or float64; a b that does not broadcast to [M, N];
    an x of unknown or less than two dimensions, or of more than two with more than one unknown size before the last.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=2.0**-14,
        why="the same K products in another order, and the sum with B is rounded or not: error ≤ (K + 1)·2^-24·Σ|xw| each way; "
        "with K ≤ 2^12 and random signs about 2^-18 of max|y|, 2^4 left for cancellation",
    )

    def run(self, model: ir.Model) -> Iterator[Change]:
        """From Add to Add."""
        namer = Namer(model)
        for add in all_nodes(model):
            matmul = _matmul_before(add)
            if matmul is None:
                continue
            constants = _constants(matmul, add)
            shape = _leading(matmul, *constants) if not isinstance(constants, str) else constants
            if isinstance(constants, str) or isinstance(shape, str):
                yield skip(add, str(shape))
            else:
                yield from _fuse(matmul, add, constants[0], shape, namer)


def _matmul_before(add: ir.Node) -> ir.Node | None:
    """The MatMul by a constant whose product ``add`` adds a constant to."""
    if not is_standard(add, "Add") or len(add.inputs) != 2:
        return None
    found = [v.producer() for v in add.inputs if v is not None and not is_constant(v)]
    matmul = found[0] if len(found) == 1 else None
    is_by_constant = matmul is not None and is_standard(matmul, "MatMul") and is_constant(matmul.inputs[1])
    return matmul if is_by_constant else None


def _constants(matmul: ir.Node, add: ir.Node) -> tuple[Array, Array] | str:
    """(weight [K, N], what is added), or why they make no Gemm."""
    reason = why_read_elsewhere(matmul.outputs[0], add)
    if reason is not None or matmul.graph is not add.graph:
        return reason or f"{matmul.name} stands in another graph"
    if {"axis", "broadcast"} & set(add.attributes):
        return "broadcasts as before opset 7"
    weight = constant_array(matmul.inputs[1])
    bias = next(array for v in add.inputs if (array := constant_array(v)) is not None)
    if weight is None or weight.ndim != 2 or 0 in weight.shape:
        return f"the constant of {matmul.name} is no matrix"
    if weight.dtype not in (np.float32, np.float64):
        return f"the constant of {matmul.name} is not float32 or float64"
    return weight, bias


def _leading(matmul: ir.Node, weight: Array, bias: Array) -> Dims | str:
    """Sizes of what ``matmul`` multiplies but for the last, of which -1 may stand for one; or why it makes no Gemm."""
    x = matmul.inputs[0]
    if x is None or x.shape is None:
        return f"the number of dimensions of what {matmul.name} reads is not known (infer-shapes)"
    if len(x.shape) < 2:
        return f"what {matmul.name} reads has {len(x.shape)} dimensions"
    dims: Dims = list(x.shape)[:-1]
    unknown = [dim for dim in dims if not isinstance(dim, int)]
    if len(dims) > 1 and (len(unknown) > 1 or 0 in dims):
        return f"what {matmul.name} reads has sizes {[str(dim) for dim in x.shape]}, of which Reshape infers one only"
    rows = math.prod(dim for dim in dims if isinstance(dim, int)) if not unknown else None
    wanted = [rows, weight.shape[1]][2 - bias.ndim :] if bias.ndim <= 2 else []
    if bias.ndim > 2 or any(have not in (1, need) for have, need in zip(bias.shape, wanted, strict=True)):
        return f"the constant {list(bias.shape)} does not broadcast to the rows of {matmul.name}"
    return dims


def _fuse(matmul: ir.Node, add: ir.Node, weight: Array, dims: Dims, namer: Namer) -> Iterator[Change]:
    graph, olds = graph_of(add), [*matmul.inputs, *add.inputs]
    bias = next(v for v in add.inputs if is_constant(v))
    base = matmul.outputs[0].name or matmul.name or "MatMul"
    namer.release(base)
    transposed = new_constant(graph, namer, f"{base}_weight", np.ascontiguousarray(weight.T), [matmul])
    if bias is not None and bias.producer() is None:
        graph.insert_after(matmul, add)  # to where the MatMul stands: nothing but a Constant can hold the Add back
    static = [dim for dim in dims if isinstance(dim, int)]
    rows = math.prod(static) if len(static) == len(dims) else ir.SymbolicDim(None)

    def node(op_type: str, x: ir.Value | None, others: list[ir.Value | None], name: str, sizes: Dims) -> ir.Node:
        is_gemm = op_type == "Gemm"
        made = make_node(
            op_type, [x, *others], name=namer.fresh(base if is_gemm else name),
            output=namer.fresh(f"{name}_out"), like=matmul.outputs[0], dtype=ir.DataType.from_numpy(weight.dtype),
            attributes=[ir.AttrInt64("transB", 1)] if is_gemm else [], stands_for=[matmul, add],
        )  # fmt: skip
        made.outputs[0].shape = ir.Shape(sizes)
        return made

    def reshape(x: ir.Value | None, what: str, to: list[int], sizes: Dims) -> ir.Node:
        shape = new_constant(graph, namer, f"{base}_{what}_reshape_in", np.array(to, np.int64), [matmul])
        return node("Reshape", x, [shape], f"{base}_{what}_reshape", sizes)

    depth, width = weight.shape
    x, before, behind = matmul.inputs[0], [], []
    if len(dims) > 1:
        before = [reshape(x, "pre", [-1, depth], [rows, depth])]
        x = before[0].outputs[0]
    gemm = node("Gemm", x, [transposed, bias], f"{base}_gemm", [rows, width])
    if len(dims) > 1:
        to = [*(dim if isinstance(dim, int) else -1 for dim in dims), width]
        behind = [reshape(gemm.outputs[0], "post", to, [*dims, width])]
    new = [*before, gemm, *behind]
    if add.outputs[0].shape is not None:
        new[-1].outputs[0].shape = add.outputs[0].shape.copy()
    yield replace_nodes([matmul, add], new, namer, "MatMul and Add are one Gemm")
    yield from drop_unread(olds)
