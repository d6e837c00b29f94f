"""Networks of the shapes of ResNet-18 and MobileNetV2 with seeded weights, and images to calibrate them on. numpy and onnx only.

The weights are random, the statistics are not: every BatchNormalization holds the mean and variance that its input has on seeded
images (`settle`), and its gains are log-normal per channel, so that activations stay in range through the depth of the net and
channels differ as they do in trained nets.

    python -m tests.bench.models resnet18 FOLDER        writes FOLDER/resnet18.onnx and FOLDER/calib.npz
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Floats = npt.NDArray[np.float32]

IR_VERSION, OPSET = 8, 17
CLASSES, SIDE, SAMPLES = 1000, 224, 64
EPSILON, LEAST = 1e-5, 0.05
#: (channels, stride) of the stages of ResNet-18, two blocks each; first convolution and pool come before.
RESNET18 = ((64, 1), (128, 2), (256, 2), (512, 2))
#: (expansion, channels, blocks, stride) of the stages of MobileNetV2.
MOBILENETV2 = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip


def images(count: int, side: int = SIDE, *, seed: int = 0) -> Floats:
    """Noise with the spectrum of photographs, amplitude ~ 1/frequency, each with a brightness, contrast and tint of its own.

    Returns:
        float32 [count, 3, side, side] of mean 0 and deviation 1 over all.
    """
    rng = np.random.default_rng(seed)
    rows, columns = np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :]
    spectrum = 1 / np.maximum(np.hypot(rows, columns), 1 / side)
    found = np.empty((count, 3, side, side), np.float32)
    for image in found:  # one at a time: the transforms are float64
        grey, tint = rng.normal(size=(1, side, side)), rng.normal(size=(3, side, side))
        smooth = np.fft.irfft2(np.fft.rfft2(grey + 0.4 * tint) * spectrum, s=(side, side))
        smooth /= smooth.std()
        image[:] = smooth * rng.uniform(0.5, 1.5) + rng.normal(0, 0.4) + rng.normal(0, 0.2, (3, 1, 1))
    found -= found.mean(dtype=np.float64).astype(np.float32)
    found /= found.std(dtype=np.float64).astype(np.float32)
    return found


class Net:
    """Layers in order, with weights drawn from one generator: He-normal kernels, log-normal gains, small shifts.

    Args:
        side: height and width of the input.
        seed: of the weights.
    """

    def __init__(self, name: str, side: int, seed: int) -> None:
        self.name, self.side = name, side
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, Floats] = {}
        self._channels = {"input": 3}

    def channels(self, x: str) -> int:
        """Channels of the value ``x``."""
        return self._channels[x]

    def node(self, op: str, name: str, *inputs: str, **attributes: object) -> str:
        """A node with one output as wide as its first input; the output's name."""
        output = f"{name}_output_0"
        self._nodes.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        self._channels[output] = self._channels[inputs[0]]
        return output

    def conv(self, x: str, name: str, channels: int, kernel: int, *, stride: int = 1, group: int = 1) -> str:
        """Convolution with padding 'same', no bias, and BatchNormalization."""
        shape = (channels, self.channels(x) // group, kernel, kernel)
        deviation = np.sqrt(2 / np.prod(shape[1:]))
        weight = self._weight(f"{name}.weight", self._rng.normal(0, deviation, shape))
        y = self.node(
            "Conv", f"/{name}/conv", x, weight,
            kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4, strides=[stride] * 2, dilations=[1, 1], group=group,
        )  # fmt: skip
        self._channels[y] = channels
        statistics = [
            self._weight(f"{name}.bn.gain", np.exp(self._rng.normal(-0.3, 0.3, channels))),
            self._weight(f"{name}.bn.shift", self._rng.normal(0.1, 0.3, channels)),
            self._weight(f"{name}.bn.mean", np.zeros(channels)),
            self._weight(f"{name}.bn.var", np.ones(channels)),
        ]
        return self.node("BatchNormalization", f"/{name}/bn", y, *statistics, epsilon=EPSILON)

    def relu6(self, x: str, name: str) -> str:
        """Clip(0, 6), as exporters write it."""
        low, high = self._weight("relu6.low", np.array(0)), self._weight("relu6.high", np.array(6))
        return self.node("Clip", f"/{name}/relu6", x, low, high)

    def head(self, x: str, classes: int = CLASSES) -> onnx.ModelProto:
        """Global average pool and classifier; the model, its statistics settled."""
        x = self.node("Flatten", "/flatten", self.node("GlobalAveragePool", "/pool", x), axis=1)
        wide = self.channels(x)
        weight = self._weight("fc.weight", self._rng.normal(0, np.sqrt(1 / wide), (classes, wide)))
        bias = self._weight("fc.bias", self._rng.normal(0, 0.1, classes))
        self._nodes.append(helper.make_node("Gemm", [x, weight, bias], ["logits"], name="/fc", transB=1))
        shapes = {"input": [1, 3, self.side, self.side], "logits": [1, classes]}
        x_info, y_info = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items())
        stored = [numpy_helper.from_array(array, name) for name, array in self._weights.items()]
        graph = helper.make_graph(self._nodes, self.name, [x_info], [y_info], stored)
        opset = [helper.make_opsetid("", OPSET)]
        return settle(helper.make_model(graph, producer_name="tests.bench", ir_version=IR_VERSION, opset_imports=opset))

    def _weight(self, name: str, array: npt.NDArray[np.float64]) -> str:
        self._weights[name] = array.astype(np.float32)
        return name


def resnet18(side: int = SIDE, *, seed: int = 18) -> onnx.ModelProto:
    """ResNet-18: input [1, 3, side, side], logits [1, 1000], 11.7 million parameters."""
    net = Net("resnet18", side, seed)
    x = net.node("Relu", "/stem/relu", net.conv("input", "stem", 64, 7, stride=2))
    x = net.node("MaxPool", "/stem/pool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    for stage, (channels, first) in enumerate(RESNET18):
        for block in range(2):
            name, stride = f"layer{stage}.{block}", first if block == 0 else 1
            y = net.node("Relu", f"/{name}/relu0", net.conv(x, f"{name}.conv0", channels, 3, stride=stride))
            y = net.conv(y, f"{name}.conv1", channels, 3)
            if channels != net.channels(x):
                x = net.conv(x, f"{name}.downsample", channels, 1, stride=stride)
            x = net.node("Relu", f"/{name}/relu1", net.node("Add", f"/{name}/add", y, x))
    return net.head(x)


def mobilenetv2(side: int = SIDE, *, seed: int = 2) -> onnx.ModelProto:
    """MobileNetV2: input [1, 3, side, side], logits [1, 1000], 3.5 million parameters."""
    net = Net("mobilenetv2", side, seed)
    x = net.relu6(net.conv("input", "stem", 32, 3, stride=2), "stem")
    for stage, (expansion, channels, blocks, first) in enumerate(MOBILENETV2):
        for block in range(blocks):
            name, stride, wide = f"stage{stage}.{block}", first if block == 0 else 1, expansion * net.channels(x)
            y = x
            if expansion != 1:
                y = net.relu6(net.conv(y, f"{name}.expand", wide, 1), f"{name}.expand")
            y = net.relu6(net.conv(y, f"{name}.depthwise", wide, 3, stride=stride, group=wide), f"{name}.depthwise")
            y = net.conv(y, f"{name}.project", channels, 1)
            x = net.node("Add", f"/{name}/add", x, y) if stride == 1 and channels == net.channels(x) else y
    return net.head(net.relu6(net.conv(x, "last", 1280, 1), "last"))


def settle(model: onnx.ModelProto, *, pixels: int = 1 << 18, seed: int = 99) -> onnx.ModelProto:
    """``model`` with the mean and variance in each BatchNormalization that its input has on some images; logits of deviation 2.

    One run: a copy normalizes with the statistics of its own batch, and gives them out. They are rounded to four digits, so that
    another processor's last bit seldom shows.

    Args:
        model: changed in place, and returned.
        pixels: how many to look at, at least: sides of 32 are 1 pixel in the last layers.
        seed: of the images.
    """
    import onnxruntime

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    shape = copy.graph.input[0].type.tensor_type.shape.dim
    shape[0].dim_param = "N"
    copy.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "N"
    nodes = [part for node in copy.graph.node for part in _measuring(node)]
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    names = [name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:5]]
    copy.graph.output.extend(onnx.ValueInfoProto(name=f"{name}.seen") for name in names)
    for tensor in [t for t in copy.graph.initializer if t.name in names]:
        copy.graph.initializer.remove(tensor)
    side = shape[2].dim_value
    session = onnxruntime.InferenceSession(copy.SerializeToString(), providers=["CPUExecutionProvider"])
    logits, *seen = session.run(None, {"input": images(-(-pixels // side**2), side, seed=seed)})
    found = {
        name: np.array([float(f"{x:.4g}") for x in array.ravel()]) for name, array in zip(names, seen, strict=True)
    }
    gain = float(f"{2 / logits.std():.4g}")
    for tensor in model.graph.initializer:
        if tensor.name in found:
            tensor.CopyFrom(numpy_helper.from_array(found[tensor.name].astype(np.float32), tensor.name))
        elif tensor.name.startswith("fc."):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(gain), tensor.name))
    return model


def _measuring(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """BatchNormalization over its own batch as single operators, mean and variance as ``<name>.seen`` [1, C, 1, 1].

    Channels that hardly move get `LEAST` of the mean variance: dividing by their own would blow up whatever moves them later.
    """
    if node.op_type != "BatchNormalization":
        return [node]
    x, gain, shift, mean, var = node.input
    p = node.name

    def make(op: str, inputs: list[str], output: str, **attributes: object) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [output], name=f"{p}/{output}", **attributes)

    axes = {"axes": [0, 2, 3], "keepdims": 1}
    spread = [f"{p}.axes", f"{p}.gain", f"{p}.shift"]
    return [
        helper.make_node("Constant", [], [spread[0]], name=f"{p}/axes", value_ints=[1, 2]),
        helper.make_node("Constant", [], [f"{p}.least"], name=f"{p}/least", value_float=LEAST),
        make("Unsqueeze", [gain, spread[0]], spread[1]),
        make("Unsqueeze", [shift, spread[0]], spread[2]),
        make("ReduceMean", [x], f"{mean}.seen", **axes),
        make("Sub", [x, f"{mean}.seen"], f"{p}.centred"),
        make("Mul", [f"{p}.centred", f"{p}.centred"], f"{p}.squares"),
        make("ReduceMean", [f"{p}.squares"], f"{p}.variance", **axes),
        make("ReduceMean", [f"{p}.variance"], f"{p}.typical"),
        make("Mul", [f"{p}.typical", f"{p}.least"], f"{p}.floor"),
        make("Max", [f"{p}.variance", f"{p}.floor"], f"{var}.seen"),
        make("Sqrt", [f"{var}.seen"], f"{p}.deviation"),
        make("Div", [f"{p}.centred", f"{p}.deviation"], f"{p}.normal"),
        make("Mul", [f"{p}.normal", spread[1]], f"{p}.scaled"),
        make("Add", [f"{p}.scaled", spread[2]], node.output[0]),
    ]


def fold(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` with each BatchNormalization in the convolution before it, as exporters write nets for inference.

    W' = W·g/s, b' = β − μ·g/s with s = sqrt(σ² + ε), in float64.
    """
    weights = {t.name: t for t in model.graph.initializer}
    makers = {node.output[0]: node for node in model.graph.node}
    for norm in [n for n in model.graph.node if n.op_type == "BatchNormalization"]:
        conv = makers[norm.input[0]]
        gain, shift, mean, var = (numpy_helper.to_array(weights[name]).astype(np.float64) for name in norm.input[1:])
        factor = gain / np.sqrt(var + EPSILON)
        kernel = numpy_helper.to_array(weights[conv.input[1]]) * factor[:, None, None, None]
        bias = conv.input[1].replace(".weight", ".bias")
        weights[conv.input[1]].CopyFrom(numpy_helper.from_array(kernel.astype(np.float32), conv.input[1]))
        weights[norm.input[2]].CopyFrom(numpy_helper.from_array((shift - mean * factor).astype(np.float32), bias))
        conv.input.append(bias)
        conv.output[0] = norm.output[0]
        for name in (norm.input[1], norm.input[3], norm.input[4]):
            model.graph.initializer.remove(weights[name])
        model.graph.node.remove(norm)
    return model


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {"resnet18": resnet18, "mobilenetv2": mobilenetv2}


def main(name: str, folder: str) -> None:
    """Write model ``name`` with its normalizations folded, and the samples, which serve all models."""
    onnx.save(fold(MODELS[name]()), Path(folder) / f"{name}.onnx")
    calib = Path(folder) / "calib.npz"
    if not calib.exists():
        np.savez(calib, input=images(SAMPLES, seed=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
