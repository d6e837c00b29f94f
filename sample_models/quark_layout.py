"""A small int8 net laid out as AMD Quark's XINT8 quantizer writes its files, with seeded weights.

What that layout has and others lack: every DequantizeLinear of a stored weight stands first; biases are int8 with a scale of
their own; no pair inside a fused group (Conv and Relu, Clip(0, 6), LeakyRelu); MaxPool reads and writes one scale; LeakyRelu's
alpha is 26/256; Sigmoid became HardSigmoid(1/6) times 1.0001220703125; a pool of 8x8 is followed by its DPU factor; those Mul
nodes and their Constants (which have no name) stand at the end of the file, behind the nodes that read them; ten operator sets
are imported. All scales are powers of two. IR 9, opset 17, as those files are. Input `input` [N, 3, 16, 16], output `output`
[N, 10].
"""

from pathlib import Path

import numpy as np
import onnx
from _build import Attribute, floats
from onnx import TensorProto, helper, numpy_helper

OUT = Path(__file__).resolve().parent / "quark_layout.onnx"
SEED = 11
DOMAINS = (
    "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "com.microsoft", "ai.onnx.preview.training",
    "com.microsoft.experimental", "com.microsoft.nchwc", "org.pytorch.aten", "com.amd.quark",
)  # fmt: skip
HARD_SIGMOID_FACTOR = (2731 / 16384) / (1 / 6)
POOL_FACTOR = 1.0  # 8x8: 64 elements, a power of two, still written


class Layout:
    """Collects the parts of the file in the order in which that tool writes them."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(SEED)
        self.weights: list[onnx.NodeProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.appended: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def initializer(self, name: str, array: np.ndarray) -> str:
        """Add `array` and return its name."""
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def parameters(self, tensor: str, position: int) -> list[str]:
        """Scale 2^-position and zero point of `tensor`."""
        scale = self.initializer(f"{tensor}_scale", np.array(2.0**-position, np.float32))
        return [scale, self.initializer(f"{tensor}_zero_point", np.array(0, np.int8))]

    def weight(self, name: str, shape: tuple[int, ...], gain: float) -> str:
        """A stored int8 tensor of normal numbers of deviation `gain`, and the name of its dequantized value."""
        values = self.random.normal(0, gain, shape)
        position = int(np.floor(-np.log2(np.abs(values).max() / 127)))
        integers = np.clip(np.rint(values * 2.0**position), -127, 127).astype(np.int8)
        inputs = [self.initializer(f"{name}_quantized", integers), *self.parameters(name, position)]
        dequantize = helper.make_node(
            "DequantizeLinear", inputs, [f"{name}_DequantizeLinear_Output"], name=f"{name}_DequantizeLinear"
        )
        self.weights.append(dequantize)
        return dequantize.output[0]

    def node(self, op: str, inputs: list[str], output: str, name: str = "", **attributes: Attribute) -> str:
        """Add a node and return its output."""
        self.nodes.append(helper.make_node(op, inputs, [output], name=name or f"{output}_node", **attributes))
        return output

    def pair(self, tensor: str, position: int, shared: str = "", source: str = "", output: str = "") -> str:
        """A pair on `tensor`; with `shared` it reads the scale of that tensor."""
        if not shared:
            self.parameters(tensor, position)
        parameters = [f"{shared or tensor}_scale", f"{shared or tensor}_zero_point"]
        integers = f"{tensor}_QuantizeLinear_Output"
        self.node("QuantizeLinear", [source or tensor, *parameters], integers, f"{tensor}_QuantizeLinear")
        real = output or f"{tensor}_DequantizeLinear_Output"
        return self.node("DequantizeLinear", [integers, *parameters], real, f"{tensor}_DequantizeLinear")

    def conv(self, x: str, output: str, shape: tuple[int, int, int, int], group: int = 1) -> str:
        """Convolution, padding 'same'."""
        fan_in = int(np.prod(shape[1:]))
        kernel = self.weight(f"{output}_w", shape, np.sqrt(2 / fan_in))
        bias = self.weight(f"{output}_b", shape[:1], 0.1)
        pads = [shape[2] // 2] * 4
        return self.node("Conv", [x, kernel, bias], output, kernel_shape=list(shape[2:]), pads=pads, group=group)

    def multiply(self, tensor: str, factor: float) -> None:
        """The Mul that simulates the DPU: the last node now writes `<tensor>_Mul`, the Mul appended here `tensor`."""
        constant = helper.make_tensor(f"{tensor}_Scale", TensorProto.FLOAT, [], [factor])
        self.nodes[-1].output[0] = f"{tensor}_Mul"
        self.appended.append(helper.make_node("Constant", [], [f"{tensor}_Scale"], value=constant))
        self.appended.append(
            helper.make_node("Mul", [f"{tensor}_Mul", f"{tensor}_Scale"], [tensor], name=f"{tensor}_Mul")
        )


def build() -> onnx.ModelProto:
    """The model."""
    g = Layout()
    for name, value in (("low", 0.0), ("high", 6.0)):
        g.initializer(name, np.array(value, np.float32))
    x = g.pair("input", 5)
    x = r0 = g.pair(g.node("Relu", [g.conv(x, "stem", (8, 3, 3, 3))], "r0"), 5)
    x = g.pair(g.node("Clip", [g.conv(x, "depthwise", (8, 1, 3, 3), 8), "low", "high"], "relu6"), 4)
    x = g.pair(g.conv(x, "pointwise", (8, 8, 1, 1)), 4)
    x = r1 = g.pair(g.node("Relu", [g.node("Add", [r0, x], "residual")], "r1"), 4)
    left = g.pair(g.conv(r1, "left", (8, 8, 1, 1)), 4)
    right = g.conv(x, "right", (8, 8, 3, 3))
    right = g.pair(g.node("LeakyRelu", [right], "leaky", alpha=26 / 256), 4)
    x = g.pair(g.node("Concat", [left, right], "cat", axis=1), 4)
    x = g.pair(g.node("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2]), 4, shared="cat")
    g.node("HardSigmoid", [x], "gate", alpha=1 / 6)
    g.multiply("gate", HARD_SIGMOID_FACTOR)
    x = g.pair(g.node("Mul", [x, g.pair("gate", 7)], "swish"), 4)
    g.node("GlobalAveragePool", [x], "gap")
    g.multiply("gap", POOL_FACTOR)
    x = g.pair(g.node("Flatten", [g.pair("gap", 5)], "flat", axis=1), 5)
    parameters = [g.weight("fc_w", (10, 16), 0.3), g.weight("fc_b", (10,), 0.1)]
    g.node("Gemm", [x, *parameters], "output_QuantizeLinear_Input", "fc", transB=1)
    g.pair("output", 5, source="output_QuantizeLinear_Input", output="output")
    nodes, ends = [*g.weights, *g.nodes, *g.appended], ([floats("input", "N", 3, 16, 16)], [floats("output", "N", 10)])
    graph = helper.make_graph(nodes, "quark_layout", *ends, g.initializers)
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in DOMAINS)]
    return helper.make_model(graph, producer_name="sample_models", ir_version=9, opset_imports=opsets)


if __name__ == "__main__":
    OUT.write_bytes(build().SerializeToString(deterministic=True))
    print(f"{OUT.name}: {OUT.stat().st_size:,} bytes")
