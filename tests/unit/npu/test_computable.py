"""Why the simulator does not compute a unit, in words; and what it is lowered as."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.graph.shapes.inference import infer_shapes
from qdq_passes.npu.program.operators import FAMILIES, operator_of, why_not_computable
from qdq_passes.npu.units.units import Unit, units_of
from qdq_passes.numerics.arithmetic import Arithmetic

from tests.cases.small_models import model

#: Read by nobody unless a case does.
CONSTANTS = """float s = {0.5}, float odd = {0.3}, int8 z = {0}, int4 z4 = {0}, float[2] s2 = {0.5, 0.25}, int8[2] z2 = {0, 0},
  int8[2] c = {1, 2}, int8[2,2,1,1] w = {1, 2, 3, 4}, int8[1,2,1,1,1] deep = {1, 2}, int32[2] big = {2147483647, 1},
  float large = {4.0}, int8[2,2] m = {1, 2, 3, 4}, int8[2,1] tall = {1, 2}, int64[8] pads = {0, 0, 0, 1, 0, 0, 0, 1},
  float[4] twice = {1.0, 1.0, 2.0, 2.0}"""


@dataclass(frozen=True)
class Case:
    """A unit that writes ``t``, and why it is not computed.

    Args:
        body: nodes; ``xd`` is the input, dequantized.
        reason: in words.
        shape: of the input.
        grid: scale and zero point of input and output.
        opset: of the model.
        arithmetic: of the target.
    """

    body: str
    reason: str
    shape: str = "1,2,4,4"
    grid: str = "s, z"
    opset: int = 21
    arithmetic: Arithmetic = field(default_factory=Arithmetic)

    def unit(self) -> Unit:
        """The unit that writes what the last QuantizeLinear reads."""
        dtype = "int4" if "z4" in self.grid else "int8"
        made = model(
            f'<ir_version: 10, opset_import: ["" : {self.opset}]> g (float[{self.shape}] x) => ({dtype}[A] y) <{CONSTANTS}>'
            f"{{ xq = QuantizeLinear(x, {self.grid}) xd = DequantizeLinear(xq, {self.grid}) {self.body} "
            f"y = QuantizeLinear(t, {self.grid}) }}"
        )
        infer_shapes(made)
        (found,) = (u for u in units_of(made) if any(r.integers is made.graph.outputs[0] for r in u.results))
        return found


WEIGHT, MATRIX = "wd = DequantizeLinear(w, s, z)", "md = DequantizeLinear(m, s, z)"
CASES = {
    "narrow": Case("t = Relu(xd)", "xd is int4; the simulator computes int8, uint8, int16 and uint16", grid="s, z4"),
    "unknown operator": Case("t = CumSum(xd, z)", "CumSum has no kernel"),
    "float operand": Case("t = Add(xd, s2)", "reads s2 as a float", shape="1,2"),
    "scale per channel": Case(
        "cd = DequantizeLinear<axis: int = 0>(c, s2, z2) t = Add(xd, cd)",
        "cd is per-axis; data that flow have one scale",
        shape="1,2",
    ),
    "computed weight": Case("t = Conv(xd, xd)", "its weight is computed", shape="1,2,1,1"),
    "three axes": Case(
        "dd = DequantizeLinear(deep, s, z) t = Conv(xd, dd)",
        "has 3 spatial axes; the simulator computes 1 and 2",
        shape="1,2,2,2,2",
    ),
    "large bias": Case(
        f"{WEIGHT} bd = DequantizeLinear(big, large) t = Conv(xd, wd, bd)",
        "the bias does not fit 32 bits in units of s_x·s_w",
    ),
    "computed bias": Case(
        f"axes = Constant<value_ints: ints = [0, 2, 3]>() r = ReduceMax<keepdims: int = 0>(x, axes) "
        f"rq = QuantizeLinear(r, s, z) rd = DequantizeLinear(rq, s, z) {WEIGHT} t = Conv(xd, wd, rd)",
        "its bias rd is computed",
    ),
    "tall bias": Case(
        f"{MATRIX} td = DequantizeLinear(tall, s, z) t = Gemm(xd, md, td)",
        "its bias of shape [2, 1] is not one number per channel",
        shape="2,2",
    ),
    "alpha": Case(
        f"{MATRIX} t = Gemm<alpha: float = 0.5>(xd, md)",
        "has alpha 0.5 and beta 1; the simulator computes 1 and 1",
        shape="1,2",
    ),
    "scales along the sum": Case(
        "md = DequantizeLinear<axis: int = 0>(m, s2, z2) t = MatMul(xd, md)",
        "its weight has a scale per index of axis 0, not of axis 1",
        shape="1,2",
    ),
    "slope behind a sum": Case(
        "a = Add(xd, xd) t = LeakyRelu(a)",
        "LeakyRelu in one step with what is before it has no kernel; put a pair between",
    ),
    "slopes of unknown columns": Case(
        "sd = DequantizeLinear(c, s, z) p = MatMul(xd, xd) t = PRelu(p, sd)",
        "its slopes are one per column, and its columns are not known before the run",
        shape="2,2",
    ),
    "computed slope": Case("t = PRelu(xd, xd)", "its slope is computed"),
    "computed shape": Case("n = Shape(x) t = Reshape(xd, n)", "n, which decides its shape, is computed"),
    "pad round": Case(
        't = Pad<mode: string = "wrap">(xd, pads)',
        "pads in mode wrap; the simulator pads with a constant, by reflecting, with the edge",
    ),
    "linear resize": Case(
        't = Resize<mode: string = "linear", antialias: int = 1>(xd, , twice)',
        "smooths what it makes smaller (antialias)",
    ),
    "unknown size": Case(
        't = Resize<mode: string = "nearest">(xd, , twice)',
        "the sizes of what it resizes are not known; run infer-shapes or fix-shapes first",
        shape="1,1,H,4",
    ),
    "old softmax": Case(
        "t = Softmax<axis: int = 1>(xd)", "works along all axes from 1 on in opset 12; run convert-opset", opset=12
    ),
    "old pool": Case(
        "t = MaxPool<kernel_shape: ints = [2, 2]>(xd)",
        "MaxPool of opset 11 takes no integers; run convert-opset",
        opset=11,
    ),
    "odd multiplier": Case(
        "t = Mul(xd, xd)",
        "the multiplier 0.300000012 is not n·2^-k with |n| < 2^16",
        grid="odd, z",
        arithmetic=Arithmetic(requantize="shift"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_reasons(name: str) -> None:
    assert why_not_computable(CASES[name].unit(), CASES[name].arithmetic) == CASES[name].reason


def test_scales_of_float16() -> None:
    unit = Case("t = Relu(xd)", "").unit()
    for node in (unit.operands[0].dequantize, unit.results[0].quantize):
        assert node is not None
        node.replace_input_with(1, ir.val("half", const_value=ir.tensor(np.array(0.5, np.float16))))
    reason = why_not_computable(unit, Arithmetic())
    assert reason == "xd has a scale of float16; the simulator computes float32"


@pytest.mark.parametrize(
    ("body", "family"),
    [
        (f"{WEIGHT} t = Conv(xd, wd)", "convolutions"),
        ("t = Add(xd, xd)", "elementwise"),
        ("t = Mul(xd, odd)", "tables"),
        ("t = Identity(xd)", "movement"),
        ("t = Relu(xd)", "tables"),
        ("p = Pad(xd, pads) t = AveragePool<kernel_shape: ints = [2, 2]>(p)", "pools"),
        ("t = Pad(xd, pads)", "movement"),
        ("t = CumSum(xd, z)", None),
    ],
)
def test_families(body: str, family: str | None) -> None:
    unit = Case(body, "").unit()
    operator = operator_of(unit)
    assert (operator and operator.family) == family
    if family is not None:
        assert why_not_computable(unit, Arithmetic()) is None


def test_no_operator_is_of_two_families() -> None:
    types = [op for family in FAMILIES.values() for op in family]
    assert len(types) == len(set(types))


def test_a_requantization_is_a_table() -> None:
    unit = Case("xw = QuantizeLinear(xd, odd, z) t = DequantizeLinear(xw, odd, z)", "").unit()
    assert unit.is_requantization
    operator = operator_of(unit)
    assert operator is not None
    assert operator.family == "tables"
    assert why_not_computable(unit, Arithmetic()) is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (f"{WEIGHT} t = Conv<strides: ints = [1]>(xd, wd)", "its attributes are of different numbers of axes"),
        (f"{WEIGHT} t = Conv<pads: ints = [1, 1]>(xd, wd)", "has 2 pads for 2 axes"),
        ("cd = DequantizeLinear<axis: int = 0>(w, twice) t = Conv(xd, cd)", "its weight has 4 scales for 2 channels"),
        ("t = SpaceToDepth<blocksize: int = 3>(xd)", "blocks of 3 do not divide sizes [4, 4]"),
    ],
)
def test_broken_models_are_declined(body: str, reason: str) -> None:
    """What onnx would refuse to run has a reason too, and raises nothing."""
    made = model(
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[1,2,4,4] x) => (int8[A] y) <{CONSTANTS}>'
        f"{{ xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) {body} y = QuantizeLinear(t, s, z) }}"
    )
    (unit,) = (u for u in units_of(made) if u.results and u.core.op_type in ("Conv", "SpaceToDepth"))
    shape = unit.operands[0].value
    assert shape is not None
    shape.shape = ir.Shape([1, 2, 4, 4])
    assert why_not_computable(unit, Arithmetic()) == reason
