"""Matrix products of 4, 8 and 16 bits and in blocks: what is refused and why, and numbers at the edge of their accumulators."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.graph.shapes.inference import infer_shapes
from qdq_passes.npu.program import edit
from qdq_passes.npu.program.blocked_products import BlockedMatMul
from qdq_passes.npu.program.operands import constant_floats
from qdq_passes.npu.program.operators import why_not_computable
from qdq_passes.npu.program.products import MatMul
from qdq_passes.npu.reference.sums import matrix_product as reference_product
from qdq_passes.npu.reference.values import Stored, integers_of
from qdq_passes.npu.units.units import Unit, units_of
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding

from tests.cases.small_models import model

CONSTANTS = """float s = {0.5}, int16 z = {0}, float[2,2] blocks = {0.5, 1.0, 0.25, 2.0}, float[3,1] across = {0.5, 1.0, 2.0},
  float[2,2] huge = {3e38, 1.0, 1.0, 1.0}, float[3,2] many = {1.0, 1.0, 1.0, 1.0, 1.0, 1.0},
  int4[3,2] m = {1, -8, 3, 7, 5, 6}, int32[3,2] whole = {1, 2, 3, 4, 5, 6}, int4[1,3,2] deep = {1, 2, 3, 4, 5, 6},
  float[1,2,2] deep_blocks = {0.5, 1.0, 0.25, 2.0}, float[3] three = {1.0, 2.0, 3.0}"""


def unit(body: str) -> Unit:
    """The unit that writes ``t``; ``xd`` [5, 3] is the input, int16."""
    made = model(
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[5,3] x) => (int16[A] y) <{CONSTANTS}>'
        f"{{ xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) {body} y = QuantizeLinear(t, s, z) }}"
    )
    infer_shapes(made)
    return next(unit for unit in units_of(made) if unit.results and unit.results[0].value.name == "t")


BLOCKS = "wd = DequantizeLinear<axis: int = 0, block_size: int = 2>(m, blocks)"

REFUSED = {
    "blocks along the columns": (
        "wd = DequantizeLinear<axis: int = 1, block_size: int = 2>(m, across) t = MatMul(xd, wd)",
        "the blocks of its weight do not lie along the depth of a matrix",
    ),
    "three dimensions": (
        "wd = DequantizeLinear<axis: int = 1, block_size: int = 2>(deep, deep_blocks) t = MatMul(xd, wd)",
        "the blocks of its weight do not lie along the depth of a matrix",
    ),
    "too many scales": (
        "wd = DequantizeLinear<axis: int = 0, block_size: int = 2>(m, many) t = MatMul(xd, wd)",
        "its weight of shape [3, 2] has scales of shape [3, 2]",
    ),
    "sums beyond float32": (
        "wd = DequantizeLinear<axis: int = 0, block_size: int = 2>(m, huge) t = MatMul(xd, wd)",
        "its sums do not stay within float32",
    ),
    "a bias of another length": (
        f"{BLOCKS} t = Gemm(xd, wd, three)",
        "its bias of shape [3] is not one number per channel",
    ),
    "a bias that is computed": (
        f"b = ReduceMax<keepdims: int = 0>(x) {BLOCKS} t = Gemm(xd, wd, b)",
        "its bias is computed",
    ),
    "a slope behind blocks": (
        f"{BLOCKS} p = MatMul(xd, wd) t = LeakyRelu(p)",
        "LeakyRelu in one step with what is before it has no kernel; put a pair between",
    ),
    "a weight of 32 bits": (
        "wd = DequantizeLinear(whole, s) t = MatMul(xd, wd)",
        "wd is int32; the simulator computes int8, uint8, int16, uint16, int4 and uint4",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, reason = REFUSED[name]
    assert why_not_computable(unit(body), Arithmetic()) == reason


def test_blocks_are_scaled_by_what_the_sum_is_worth() -> None:
    plan = BlockedMatMul().plan(unit(f"{BLOCKS} t = MatMul(xd, wd)"), Arithmetic())
    stored = {source.what: source.data for source in plan.inputs if isinstance(source, edit.Stored)}
    assert stored["scale"].tolist() == [[0.25, 0.5], [0.125, 1.0]]
    assert stored["weight"].dtype == stored["zero_points"].dtype == np.int8
    assert stored["bias"].tolist() == [0.0, 0.0]


def test_floats_of_a_blocked_weight() -> None:
    """What a unit in floating point reads of it: each row times the scale of its block, the last of which is shorter."""
    weight = unit(f"{BLOCKS} t = MatMul(xd, wd)").operands[1].value
    assert weight is not None
    floats = constant_floats(weight)
    assert floats is not None
    assert floats.tolist() == [[0.5, -8.0], [1.5, 7.0], [1.25, 12.0]]


def test_16_bits_take_the_wide_accumulator() -> None:
    plan = MatMul().plan(unit("wd = DequantizeLinear(m, s) t = MatMul(xd, wd)"), Arithmetic(wide_accumulator=40))
    assert plan.attributes["accumulator_bits"] == 40


@pytest.mark.parametrize(("overflow", "wanted"), [("saturate", 1024), ("wrap", -16)])
def test_the_wide_accumulator_overflows(overflow: str, wanted: int) -> None:
    """2·32767·32767 = 2^31 − 2^17 + 2 in 24 bits, of which 2^13 are one step: 2^23 − 1, or what is left of it, 2 − 2^17."""
    encoding = Encoding.per_tensor(ir.DataType.INT16, 2.0**-6)
    a = Stored(np.array([[32767, 32767]]), encoding)
    arithmetic = Arithmetic(wide_accumulator=24, accumulator_overflow=overflow, rounding="half_even")  # type: ignore[arg-type]
    node = ir.node("MatMul", [ir.val("a"), ir.val("b")])
    total = reference_product(node, a, Stored(a.integers.T, encoding), None, arithmetic)
    output = Encoding.per_tensor(ir.DataType.INT16, 2.0)
    assert integers_of(total, output, arithmetic).tolist() == [[wanted]]
