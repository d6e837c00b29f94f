"""Every form of split-operators computes what its operator computes, and is made of the pieces that it names."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from qdq_passes.errors import UsageError
from qdq_passes.legalize.split_operators import FORMS, SplitOperators
from qdq_passes.pipeline.pipeline import run_pipeline

from tests.golden.numerics import differences, outputs_of
from tests.golden_messages.refusal import refusal

#: Form → opset, inputs, outputs, constants and nodes of a model that it acts on, x being of [2, 4, 6, 6] where nothing is said.
X, Y = "float[2,4,6,6] x", "float[2,4,6,6] y"
UNARY = {
    "Abs": "", "Celu:Exp": "<alpha = 0.5>", "Celu:Tanh": "<alpha = 0.5>", "Elu:Exp": "<alpha = 0.7>", "Elu:Tanh": "<alpha = 0.7>",
    "HardSigmoid": "<alpha = 0.3, beta = 0.4>", "HardSwish": "", "LeakyRelu": "<alpha = 1.5>", "Mish": "", "Neg": "", "Reciprocal": "",
    "Selu:Exp": "", "Selu:Tanh": "", "Sigmoid": "", "Softplus:Log": "", "Softsign": "", "Tanh": "", "GlobalAveragePool": "",
    "GlobalMaxPool": "", "DepthToSpace": "<blocksize = 2, mode = \"CRD\">", "SpaceToDepth": "<blocksize = 2>", "Softmax": "<axis = 1>",
    "Flatten": "<axis = 2>",
}  # fmt: skip
OTHERS = {
    "AveragePool": (17, "", "", "y = AveragePool<kernel_shape = [2, 3], strides = [2, 1]>(x)"),
    "AveragePool:Large": (17, "", "", "y = AveragePool<kernel_shape = [4, 4], pads = [1, 1, 1, 1], count_include_pad = 1>(x)"),
    "ScatterElements": (18, "float[2,3] a, float[2,1] u", "int64[2,1] i = {1, 1}", "y = ScatterElements<axis = 1>(a, i, u)"),
    "BatchNormalization": (17, "", "float[4] g = {1, 2, 3, 4}, float[4] b = {0, 1, 0, -1}, float[4] m = {0, 1, 2, 3}, float[4] v = {1, 4, 0.5, 2}",
                           "y = BatchNormalization(x, g, b, m, v)"),
    "Clip": (17, "", "float lo = {-0.5}, float hi = {1.5}", "y = Clip(x, lo, hi)"),
    "Col2Im": (18, "float[2,12,6] a", "int64[2] i = {4, 6}, int64[2] b = {2, 2}", "y = Col2Im<strides = [2, 2]>(a, i, b)"),
    "Div": (17, "", "float[4,1,1] c = {1, 3, -7, 0.1}", "y = Div(x, c)"),
    "Expand": (17, "float[2,4,1,6] a", "int64[4] s = {1, 1, 5, 1}", "y = Expand(a, s)"),
    "Expand:Pad": (17, "float[2,3,6] a", "float[1,1,6] t = {1, 2, 3, 4, 5, 6}, int64[3] s = {2, 1, 6}", "e = Expand(t, s) y = Concat<axis = 1>(e, a)"),
    "GatherElements": (17, "float[3,2,3] a", "int64[3,2,2] p = {2, 1, 0, -3, 2, 1, 0, -3, 2, 1, 0, -3}", "y = GatherElements<axis = -1>(a, p)"),
    "Gelu:Erf": (20, "", "", "y = Gelu(x)"),
    "Gelu:Tanh": (20, "", "", "y = Gelu<approximate = \"tanh\">(x)"),
    "GroupNormalization": (21, "", "float[4] g = {1, 2, 3, 4}, float[4] b = {0, 1, 0, -1}", "y = GroupNormalization<num_groups = 2>(x, g, b)"),
    "InstanceNormalization": (17, "", "float[4] g = {1, 2, 3, 4}, float[4] b = {0, 1, 0, -1}", "y = InstanceNormalization(x, g, b)"),
    "LayerNormalization": (17, "", "float[6] g = {1, 2, 3, 4, 5, 6}, float[6] b = {0, 1, 0, -1, 2, 1}", "y = LayerNormalization(x, g, b)"),
    "Max": (17, "float[6] a, float[6,1] b", "", "y = Max(x, a, b)"),
    "Min": (17, "float[6] a, float[6,1] b", "", "y = Min(x, a, b)"),
    "Mean": (17, "float[6] a, float[6,1] b", "", "y = Mean(x, a, b)"),
    "Pow": (17, "", "float e = {-1.5}", "a = Mul(x, x) y = Pow(a, e)"),
    "PRelu": (17, "", "float[4,1,1] s = {0.1, -0.5, 2, 0}", "y = PRelu(x, s)"),
    "RMSNormalization": (23, "", "float[6] g = {1, 2, 3, 4, 5, 6}", "y = RMSNormalization(x, g)"),
    "ReduceMax": (18, "", "int64[2] a = {2, 3}", "y = ReduceMax<keepdims = 0>(x, a)"),
    "ReduceSum": (17, "", "int64[2] a = {1, -1}", "y = ReduceSum<keepdims = 0>(x, a)"),
    "Softplus:Sigmoid": (17, "", "", "a = Softplus(x) b = Tanh(a) y = Mul(b, x)"),
    "Squeeze": (17, "float[2,1,3] a", "int64[1] s = {1}", "y = Squeeze(a, s)"),
    "Sub": (17, "float[6] a", "", "y = Sub(x, a)"),
    "Sum": (17, "float[6] a, float[6,1] b", "", "y = Sum(x, a, b)"),
    "Swish": (24, "", "", "y = Swish<alpha = 1.702>(x)"),
    "Tile": (17, "", "int64[4] s = {1, 2, 1, 3}", "y = Tile(x, s)"),
    "Unsqueeze": (17, "", "int64[1] s = {1}", "y = Unsqueeze(x, s)"),
}  # fmt: skip


def model_for(name: str) -> ir.Model:
    """A model of the operator that the form ``name`` writes."""
    op = name.partition(":")[0]
    opset, more, constants, nodes = OTHERS.get(name) or (22, "", "", f"y = {op}{UNARY[name]}(x)")
    inputs = ", ".join(filter(None, (X, more)))
    text = f'<ir_version: 10, opset_import: ["" : {opset}]> g ({inputs}) => (float[] y) <{constants}> {{ {nodes} }}'
    proto = onnx.parser.parse_model(text.replace("<>", ""))
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


#: onnxruntime reads opset 24 since 1.24.
SINCE = {"Swish": pytest.mark.newest}


@pytest.mark.parametrize("name", [pytest.param(name, marks=SINCE.get(name, ())) for name in FORMS])
def test_a_form_is_the_operator(name: str) -> None:
    before = model_for(name)
    after = run_pipeline(before, f"give-names,split-operators{{operators=[{name}]}}", copy=True).model
    made = {node.op_type for node in after.graph} - {"Constant"}
    assert FORMS[name].op not in made or FORMS[name].op in FORMS[name].pieces
    assert made <= set(FORMS[name].pieces)
    assert not differences(outputs_of(before), outputs_of(after), [SplitOperators.keeps])
    if FORMS[name].any_type:
        assert np.array_equal(*(next(iter(outputs_of(m).values())) for m in (before, after)))


@pytest.mark.parametrize("axes", [(1,), (0, 1), (1, 2), (-1,), (2, 3)])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_maximum_over_neighbouring_axes(axes: tuple[int, ...], keepdims: int) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 18]> g (float[2,4,6,5] x) => (float[] y)
    <int64[{len(axes)}] a = {{{", ".join(map(str, axes))}}}> {{ y = ReduceMax<keepdims = {keepdims}>(x, a) }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    before = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    after = run_pipeline(before, "give-names,split-operators{operators=[ReduceMax]}", copy=True).model
    assert "MaxPool" in {node.op_type for node in after.graph}
    assert not differences(outputs_of(before), outputs_of(after), [])


@pytest.mark.parametrize(
    ("gain", "shift", "steps"), [(1, 0, []), (2, 0, ["Mul"]), (1, 2, ["Add"]), (2, 1, ["Mul", "Add"])]
)
def test_a_gain_of_one_and_a_shift_of_zero_cost_nothing(gain: int, shift: int, steps: list[str]) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float[2,4,5,6] x) => (float[] y)
    <float[4] g = {{{", ".join([str(gain)] * 4)}}}, float[4] b = {{{", ".join([str(shift)] * 4)}}}>
    {{ y = GroupNormalization<num_groups = 2>(x, g, b) }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    before = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    after = run_pipeline(before, "give-names,split-operators{operators=[GroupNormalization]}", copy=True).model
    assert [node.op_type for node in after.graph if node.op_type in ("Mul", "Add")] == steps
    assert not differences(outputs_of(before), outputs_of(after), [SplitOperators.keeps])


def test_a_form_that_there_is_not() -> None:
    with refusal(UsageError):
        run_pipeline(model_for("Neg"), "split-operators{operators=[Elu:Sigmoid]}")
