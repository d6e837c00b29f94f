"""Five tiny models, each with one feature of ONNX that tools forget.

Control flow (If, Loop), local functions, int4 weights, external data. Everything is written by hand and seeded;
`README.md` says what each model is for.
"""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from _build import OPSET, GraphBuilder, floats, save, save_external
from onnx import TensorProto, helper

HERE = Path(__file__).resolve().parent
DOMAIN = "sample"


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Weights float32 with deviation 1/sqrt(fan-in): matrices [K, M] or kernels [M, C, k, k]."""
    fan_in = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
    return np.asarray(rng.normal(0, 1, shape) / np.sqrt(fan_in), np.float32)


def if_branch() -> onnx.ModelProto:
    """An If with a Conv in each branch that reads the outer initializer `shared.weight`, as the main graph does.

    Inputs `input` [N, 3, 8, 8] and `flag` bool []; output `output` [N, 4, 8, 8]. The else-branch adds a MatMul with
    an outer weight and an initializer of its own.
    """
    rng = np.random.default_rng(31)
    g = GraphBuilder("if_branch")
    shared = g.weight("shared.weight", normal(rng, 4, 4, 3, 3))
    columns = g.weight("columns.weight", normal(rng, 8, 8))
    x = g.node("Relu", "/stem/relu", [g.conv("input", "/stem/conv", {"stem.conv.weight": normal(rng, 4, 3, 3, 3)})])
    x = g.node("Relu", "/body/relu", [g.node("Conv", "/body/conv", [x, shared], pads=[1, 1, 1, 1])])

    yes = GraphBuilder("then")
    y = yes.node("Conv", "/if/then/conv", [x, shared], pads=[1, 1, 1, 1])
    yes.node("Relu", "/if/then/relu", [y], output="then_output")
    no = GraphBuilder("else")
    y = no.node("Conv", "/if/else/conv", [x, shared], pads=[1, 1, 1, 1])
    y = no.node("MatMul", "/if/else/matmul", [y, columns])
    y = no.node("Add", "/if/else/add", [y, no.weight("else.bias", rng.normal(0, 0.1, 8).astype(np.float32))])
    no.node("Relu", "/if/else/relu", [y], output="else_output")

    branches = [b.graph([], [floats(f"{b.name}_output", "N", 4, 8, 8)]) for b in (yes, no)]
    y = g.node("If", "/if", ["flag"], then_branch=branches[0], else_branch=branches[1])
    g.node("Add", "/add", [x, y], output="output")
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    return g.model([floats("input", "N", 3, 8, 8), flag], [floats("output", "N", 4, 8, 8)])


def local_function() -> onnx.ModelProto:
    """Local functions: `LeakyMlp` calls `Linear` twice and hands its attribute `alpha` on (default 0.25).

    Input `input` [N, 16], output `output` [N, 16]. The first call gives alpha 0.1, the second takes the default.
    """
    rng = np.random.default_rng(32)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    linear = GraphBuilder("Linear")
    product = linear.node("MatMul", "/linear/matmul", ["x", "weight"])
    linear.node("Add", "/linear/add", [product, "bias"], output="y")
    mlp = GraphBuilder("LeakyMlp")
    hidden = mlp.node("Linear", "/mlp/up", ["x", "w1", "b1"], domain=DOMAIN)
    active = mlp.node("LeakyRelu", "/mlp/act", [hidden])
    mlp.nodes[-1].attribute.append(
        onnx.AttributeProto(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    )
    mlp.node("Linear", "/mlp/down", [active, "w2", "b2"], output="y", domain=DOMAIN)
    functions = [
        helper.make_function(DOMAIN, "Linear", ["x", "weight", "bias"], ["y"], linear.nodes, opsets),
        helper.make_function(
            DOMAIN, "LeakyMlp", ["x", "w1", "b1", "w2", "b2"], ["y"], mlp.nodes, opsets,
            attribute_protos=[helper.make_attribute("alpha", 0.25)],
        ),
    ]  # fmt: skip

    g = GraphBuilder("local_function")
    x = "input"
    for call, attributes in (("first", {"alpha": 0.1}), ("second", {})):
        arrays = {"w1": normal(rng, 16, 32), "b1": normal(rng, 32), "w2": normal(rng, 32, 16), "b2": normal(rng, 16)}
        weights = [g.weight(f"{call}.{name}", array) for name, array in arrays.items()]
        output = "output" if call == "second" else ""
        x = g.node("LeakyMlp", f"/{call}", [x, *weights], output=output, domain=DOMAIN, **attributes)
    return g.model([floats("input", "N", 16)], [floats("output", "N", 16)], functions)


def int4_weights() -> onnx.ModelProto:
    """Two MatMuls with blocked 4-bit weights [K, M] behind DequantizeLinear: int4, and uint4 with zero points.

    Input `input` [N, 64], output `output` [N, 16]; scales [K / block, M], block 32 and 16 rows.
    """
    rng = np.random.default_rng(33)
    g = GraphBuilder("int4_weights")
    weight, block = normal(rng, 64, 64), 32
    blocks = weight.reshape(-1, block, 64)
    scale = np.abs(blocks).max(1) / 7
    integer = np.rint(blocks / scale[:, None]).reshape(weight.shape).astype(ml_dtypes.int4)
    parts = [g.weight("fc1.weight_quantized", integer), g.weight("fc1.weight_scale", scale)]
    w = g.node("DequantizeLinear", "/fc1/weight_dq", parts, output="fc1.weight", axis=0, block_size=block)
    x = g.node("Relu", "/relu", [g.node("MatMul", "/fc1/matmul", ["input", w])])

    weight, block = normal(rng, 64, 16), 16
    blocks = weight.reshape(-1, block, 16)
    low = np.minimum(blocks.min(1), 0)
    scale = (np.maximum(blocks.max(1), 0) - low) / 15
    zero = np.rint(-low / scale)
    integer = (
        np.clip(np.rint(blocks / scale[:, None] + zero[:, None]), 0, 15).reshape(weight.shape).astype(ml_dtypes.uint4)
    )
    parts = [g.weight("fc2.weight_quantized", integer), g.weight("fc2.weight_scale", scale)]
    parts.append(g.weight("fc2.weight_zero_point", zero.astype(ml_dtypes.uint4)))
    w = g.node("DequantizeLinear", "/fc2/weight_dq", parts, output="fc2.weight", axis=0, block_size=block)
    g.node("MatMul", "/fc2/matmul", [x, w], output="output")
    return g.model([floats("input", "N", 64)], [floats("output", "N", 16)])


def external_data() -> onnx.ModelProto:
    """A three-layer perceptron [N, 64] -> [N, 10]: matrices in `external_data.onnx.data`, biases in the model."""
    rng = np.random.default_rng(34)
    g = GraphBuilder("external_data")
    x = "input"
    for index, (inputs, outputs) in enumerate(((64, 128), (128, 128), (128, 10))):
        weights = [
            g.weight(f"fc{index}.weight", normal(rng, inputs, outputs)),
            g.weight(f"fc{index}.bias", normal(rng, outputs)),
        ]
        x = g.node("Gemm", f"/fc{index}", [x, *weights], output="output" if index == 2 else "")
        if index < 2:
            x = g.node("Relu", f"/relu{index}", [x])
    return g.model([floats("input", "N", 64)], [floats("output", "N", 10)])


def loop_body() -> onnx.ModelProto:
    """A recurrent Loop: state' = tanh(state W + b), W an outer initializer, b the body's own.

    Inputs `input` [N, 16] (the first state) and `steps` int64 []; outputs `state` [N, 16] and `states` [steps, N, 16].
    """
    rng = np.random.default_rng(35)
    g = GraphBuilder("loop_body")
    outer = g.weight("cell.weight", normal(rng, 16, 16) * 2)
    going = g.weight("going", np.array(True))

    body = GraphBuilder("body")
    y = body.node("MatMul", "/loop/matmul", ["state_in", outer])
    y = body.node("Add", "/loop/add", [y, body.weight("cell.bias", rng.normal(0, 0.1, 16).astype(np.float32))])
    body.node("Tanh", "/loop/tanh", [y], output="state_out")
    body.node("Identity", "/loop/scan", ["state_out"], output="scan_out")
    body.node("Identity", "/loop/going", ["going_in"], output="going_out")
    step = helper.make_tensor_value_info("step", TensorProto.INT64, [])
    conditions = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("going_in", "going_out")]
    inside = body.graph(
        [step, conditions[0], floats("state_in", "N", 16)],
        [conditions[1], floats("state_out", "N", 16), floats("scan_out", "N", 16)],
    )

    g.nodes.append(helper.make_node("Loop", ["steps", going, "input"], ["state", "states"], name="/loop", body=inside))
    steps = helper.make_tensor_value_info("steps", TensorProto.INT64, [])
    return g.model([floats("input", "N", 16), steps], [floats("state", "N", 16), floats("states", "steps", "N", 16)])


def main() -> None:
    """Write the five models."""
    for make in (if_branch, local_function, int4_weights, loop_body):
        save(make(), HERE / f"{make.__name__}.onnx")
    save_external(external_data(), HERE / "external_data.onnx")


if __name__ == "__main__":
    main()
