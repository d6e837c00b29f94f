"""Every unit that the simulator computes becomes operators of programs, whatever its shapes, encodings and names."""

from __future__ import annotations

import zlib

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from qdq_passes.graph.dump import dump
from qdq_passes.npu.program import DOMAIN
from qdq_passes.npu.program.operators import STANDARD
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.verification.rules import verify

from qdqtool.io.models.save import serialize
from tests.cases.lowering import TakesAll, lowered
from tests.cases.small_models import model, operators
from tests.npu.equality.random_units import CASES, Builder


def foreign(model: ir.Model) -> list[str]:
    """Operators that no program may hold."""
    return [op for op in operators(model) if op not in STANDARD and not op.startswith(f"{DOMAIN}::")]


ARITHMETICS = {
    "fixed_point": Arithmetic(),
    "shift": Arithmetic(requantize="shift"),
    "float": Arithmetic(requantize="float"),
}

QDQ = """g (float[N,2,4,4] x) => (float[N,3,4,4] y)
  <float s = {0.5}, int8 z = {0}, float sw = {0.25}, int8[3,2,1,1] w = {1, 2, 3, 4, 5, 6}>
{ xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wd = DequantizeLinear(w, sw, z) t = Conv(xd, wd) r = Relu(t)
  yq = QuantizeLinear(r, s, z) y = DequantizeLinear(yq, s, z) }"""


@pytest.mark.parametrize("mode", ARITHMETICS)
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_left_between_pairs(case: str, mode: str) -> None:
    for seed in range(3):
        builder = Builder(np.random.default_rng([zlib.crc32(case.encode()), seed]), pow2=mode == "shift")
        made = CASES[case](builder)
        done = lowered(made, TakesAll(arithmetic=ARITHMETICS[mode]))
        assert not foreign(done), f"seed {seed}: {dump(done)}"
        assert any(node.domain == DOMAIN or node.op_type == "MaxPool" for node in done.graph) or case == "movement"
        assert verify(done) == []
        onnx.checker.check_model(serialize(done), full_check=True)
        ends = [[v.name for v in (*m.graph.inputs, *m.graph.outputs)] for m in (made, done)]
        assert ends[0] == ends[1]
        untyped = [v.name for node in done.graph for v in node.outputs if v.dtype is None or v.shape is None]
        assert not untyped, f"seed {seed}: {dump(done)}"


def test_types_and_shapes_are_those_of_the_pairs() -> None:
    (conv,) = (node for node in lowered(model(QDQ)).graph if node.domain == DOMAIN)
    value = conv.outputs[0]
    assert (value.name, value.dtype, str(value.shape)) == ("yq", ir.DataType.INT8, "[N,3,4,4]")


def test_nodes_without_names() -> None:
    """As onnxruntime hands them over; what is made has names, each once."""
    bare = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {QDQ}'))
    assert not any(node.name for node in bare.graph)
    done = lowered(bare)
    assert operators(done) == ["QuantizeLinear", "ai.qdqtool::Conv", "DequantizeLinear"]
    assert verify(done) == []
    assert [node.name for node in done.graph if node.domain] == ["Conv"]


def test_both_weight_styles_give_one_program() -> None:
    """Stored integers, and a pair on the floats that they stand for."""
    pair = QDQ.replace("int8[3,2,1,1] w = {1, 2, 3, 4, 5, 6}", "float[3,2,1,1] w = {0.25, 0.5, 0.75, 1.0, 1.25, 1.5}")
    pair = pair.replace(
        "wd = DequantizeLinear(w, sw, z)", "wq = QuantizeLinear(w, sw, z) wd = DequantizeLinear(wq, sw, z)"
    )
    stored, made = lowered(model(QDQ)), lowered(model(pair))
    assert "%w_quantized: int8[3,2,1,1] = [1,2,3,4,5,6]" in dump(made)
    assert "w" not in made.graph.initializers, "the floats are read no more"
    weights = [next(n for n in m.graph if n.domain).inputs[1] for m in (stored, made)]
    arrays = [w.const_value.numpy() for w in weights if w is not None and w.const_value is not None]
    np.testing.assert_array_equal(*arrays)


def test_a_weight_that_two_read_stays_one() -> None:
    two = QDQ.replace("=> (float[N,3,4,4] y)", "=> (float[N,3,4,4] y, float[N,3,4,4] v)")
    two = two.replace("int8[3,2,1,1] w = {1, 2, 3, 4, 5, 6}", "float[3,2,1,1] w = {0.25, 0.5, 0.75, 1.0, 1.25, 1.5}")
    two = two.replace(
        "wd = DequantizeLinear(w, sw, z)",
        "wq = QuantizeLinear(w, sw, z) wd = DequantizeLinear(wq, sw, z) u = Conv(xd, wd) "
        "vq = QuantizeLinear(u, s, z) v = DequantizeLinear(vq, s, z)",
    )
    done = lowered(model(two))
    read = {node.inputs[1] for node in done.graph if node.domain}
    assert [value.name for value in read if value is not None] == ["w_quantized"]
    assert operators(done).count("ai.qdqtool::Conv") == 2


def test_ends_of_integers() -> None:
    """A graph of integers from end to end; the output is read as well, and keeps its name."""
    ends = """g (int8[4] x) => (int8[4] y, int8[4] v) <float s = {0.5}, int8 z = {0}>
    { xd = DequantizeLinear(x, s, z) t = Relu(xd) y = QuantizeLinear(t, s, z) yd = DequantizeLinear(y, s, z)
      u = Neg(yd) v = QuantizeLinear(u, s, z) }"""
    done = lowered(model(ends))
    assert operators(done) == ["ai.qdqtool::Lookup"] * 2
    assert [v.name for v in done.graph.outputs] == ["y", "v"]
    assert verify(done) == []


def test_constants_that_are_nodes() -> None:
    """Constant nodes are lifted: programs have initializers only."""
    nodes = QDQ.replace("<float s = {0.5}, int8 z = {0}, float sw = {0.25}, int8[3,2,1,1] w = {1, 2, 3, 4, 5, 6}>", "")
    nodes = nodes.replace(
        "{ xq",
        "{ s = Constant<value_float: float = 0.5>() sw = Constant<value_float: float = 0.25>() "
        "z = Constant<value = int8 {0}>() w = Constant<value = int8[3,2,1,1] {1, 2, 3, 4, 5, 6}>() xq",
    )
    done = lowered(model(nodes))
    assert operators(done) == ["QuantizeLinear", "ai.qdqtool::Conv", "DequantizeLinear"]


def test_operators_of_programs_are_known() -> None:
    wrong = model(
        '<ir_version: 10, opset_import: ["" : 21, "ai.qdqtool" : 1]> g (int8[4] x) => (int8[4] y) '
        "{ [guess] y = ai.qdqtool.Guess(x) }"
    )
    (finding,) = verify(wrong)
    assert (finding.rule, finding.where) == ("known-operators", "guess")
    assert finding.message == "there is no Guess in opset 1 of ai.qdqtool"
