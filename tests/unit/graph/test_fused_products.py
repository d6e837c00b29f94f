"""Multiply-accumulates inside operators that hold several products, counted by hand; what an estimate takes of them."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from qdq_passes.graph.operators.fused_products import Products, fused_product
from qdq_passes.graph.operators.macs import macs_of
from qdq_passes.npu.units.units import units_of

from qdqtool.npu.work import PER_SCORE, Work, work_of
from tests.cases.small_models import model


def graph_of(inputs: str, outputs: str, node: str) -> ir.Model:
    """A model of one operator; contributed ones are written ``ms.Op``."""
    return model(f"g ({inputs}) => ({outputs}) {{ {node} }}")


CASES = [
    (
        "float[1,4,6,8] q, float[1,2,9,8] k, float[1,2,9,5] v", "float[1,4,6,5] y", "y = Attention(q, k, v)",
        Products(count=4, rows=6, depth=13, columns=9),
    ),
    (
        "float[2,6,32] q, float[2,3,16] k, float[2,3,16] v, float[2,2,7,8] pk, float[2,2,7,8] pv", "float[2,6,32] y",
        "y = Attention<q_num_heads: int = 4, kv_num_heads: int = 2>(q, k, v, , pk, pv)",
        Products(count=8, rows=6, depth=16, columns=10),
    ),
    ("float[3,4,5] a, float[3,5,6] b", "float[3,4,6] y", 'y = Einsum<equation: string = "bij,bjk->bik">(a, b)',
     Products(count=3, rows=4, depth=5, columns=6)),
    ("float[4,5] a, float[5,6] b", "float[4,6] y", 'y = Einsum<equation: string = "ij, jk">(a, b)',
     Products(count=1, rows=4, depth=5, columns=6)),
    ("float[2,3,4,5] a, float[2,6,4,5] b", "float[2,4,3,6] y", 'y = Einsum<equation: string = "bqhd,bkhd->bhqk">(a, b)',
     Products(count=8, rows=3, depth=5, columns=6)),
    ("float[2,3,4,5] a, float[5,6] b", "float[2,3,4,6] y", 'y = Einsum<equation: string = "...ij,jk->...ik">(a, b)',
     Products(count=1, rows=24, depth=5, columns=6)),
    ("float[9,2,4] x, float[1,24,4] w, float[1,24,8] r", "float[9,1,2,8] y", "y = GRU<hidden_size: int = 8>(x, w, r)",
     Products(count=9, rows=2, depth=12, columns=24)),
    ("float[2,9,4] x, float[2,32,4] w, float[2,32,8] r", "float[2,9,2,8] y",
     'y = LSTM<hidden_size: int = 8, layout: int = 1, direction: string = "bidirectional">(x, w, r)',
     Products(count=18, rows=2, depth=12, columns=32)),
    ("float[9,2,4] x, float[1,8,4] w, float[1,8,8] r", "float[9,1,2,8] y", "y = RNN<hidden_size: int = 8>(x, w, r)",
     Products(count=9, rows=2, depth=12, columns=8)),
    ("float[3,16,1] x", "float[3,9,2] y", "y = DFT<onesided: int = 1>(x)",
     Products(count=1, rows=3, depth=16, columns=18)),
    ("float[3,16,5,2] x", "float[3,16,5,2] y", "axis = Constant<value_int: int = 1>() y = DFT(x, , axis)",
     Products(count=1, rows=15, depth=32, columns=32)),
    ("float[2,64,1] x, float[16] w", "float[2,7,9,2] y", "step = Constant<value_int: int = 8>() y = STFT(x, step, w)",
     Products(count=1, rows=14, depth=16, columns=18)),
    ("float[2,2,3] t, int64[4] s", "float[2,5,6,2] y", "y = AffineGrid(t, s)",
     Products(count=1, rows=60, depth=3, columns=2)),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "outputs", "node", "expected"), CASES)
def test_products_are_those_counted_by_hand(inputs: str, outputs: str, node: str, expected: Products) -> None:
    graph = graph_of(inputs, outputs, node)
    unit = units_of(graph)[-1]
    assert macs_of(unit.core) == expected.macs
    work = work_of(unit)
    assert isinstance(work, Work)
    assert work.products == Products(
        count=expected.count, rows=expected.rows, depth=expected.depth, columns=expected.columns
    )


def test_scores_are_element_operations() -> None:
    (unit,) = units_of(graph_of("float[1,4,6,8] q, float[1,4,9,8] k, float[1,4,9,8] v", "float[1,4,6,8] y",
                                "y = Attention(q, k, v)"))  # fmt: skip
    work = work_of(unit)
    assert isinstance(work, Work)
    assert work.element_ops == 4 * 6 * 8 + PER_SCORE * 4 * 6 * 9


def contrib(
    op: str, attributes: dict[str, int], shapes: list[tuple[int, ...] | None], present: tuple[int, ...] | None
) -> ir.Node:
    """A node of com.microsoft with inputs of these shapes."""
    inputs = [
        None if s is None else ir.Value(name=f"v{i}", shape=ir.Shape(s), type=ir.TensorType(ir.DataType.FLOAT))
        for i, s in enumerate(shapes)
    ]
    node = ir.node(op, inputs, attributes, domain="com.microsoft", num_outputs=2 if present else 1)
    if present:
        node.outputs[1].shape = ir.Shape(present)
    return node


def test_grouped_queries_see_the_whole_cache() -> None:
    """Four heads of eight, two of keys; five queries against the sixteen slots of the cache."""
    attributes = {"num_heads": 4, "kv_num_heads": 2}
    past = (1, 2, 16, 8)
    apart = contrib("GroupQueryAttention", attributes, [(1, 5, 32), (1, 5, 16), (1, 5, 16), past, past], past)
    packed = contrib("GroupQueryAttention", attributes, [(1, 5, 64), None, None, past, past], past)
    assert macs_of(apart) == macs_of(packed) == 4 * 5 * (8 + 8) * 16
    assert macs_of(contrib("MultiHeadAttention", {"num_heads": 4}, [(1, 5, 32), (1, 7, 32), (1, 7, 32)], None)) == (
        4 * 5 * (8 + 8) * 7
    )


def test_what_is_not_known_is_none() -> None:
    three = graph_of("float[4,5] a, float[5,6] b, float[6,7] c", "float[4,7] y",
                     'y = Einsum<equation: string = "ij,jk,kl->il">(a, b, c)')  # fmt: skip
    assert macs_of(three.graph[0]) is None
    assert fused_product(graph_of("float[2] a", "float[2] y", "y = Relu(a)").graph[0], lambda value: None) is None
    assert macs_of(contrib("MultiHeadAttention", {"num_heads": 4}, [(1, 5, 4, 3, 8)], None)) is None
