"""What the trained depthwise separable nets share: the module, its training from a seed, and its graph.

A net is a stem convolution and blocks of a depthwise 3x3 and a pointwise convolution, each followed by batch
normalization and an activation, then the mean over positions and a linear layer. The graph is written node by node from
the trained weights, so BatchNormalization is there to be folded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from _build import GraphBuilder, Weights, floats, run
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Layout of a net.

    Args:
        name: of the graph.
        input: shape of one sample [C, H, W].
        stem: output channels, kernel size and strides of the first convolution.
        blocks: output channels and strides of each block.
        classes: number of logits.
        limit: upper bound of the activations: 6 for ReLU6, None for ReLU.
    """

    name: str
    input: tuple[int, int, int]
    stem: tuple[int, int, tuple[int, int]]
    blocks: tuple[tuple[int, tuple[int, int]], ...]
    classes: int
    limit: float | None

    def layers(self) -> list[tuple[str, int, int, int, tuple[int, int], int]]:
        """Name, input channels, output channels, kernel size, strides and groups of each convolution, in order."""
        width, size, strides = self.stem
        found = [("stem", self.input[0], width, size, strides, 1)]
        for index, (outputs, strides) in enumerate(self.blocks):
            found.append((f"block{index}.depthwise", width, width, 3, strides, width))
            found.append((f"block{index}.pointwise", width, outputs, 1, (1, 1), 1))
            width = outputs
        return found


class Layer(nn.Module):
    """Convolution without bias, batch normalization, ReLU or ReLU6."""

    def __init__(
        self, shape: Shape, inputs: int, outputs: int, size: int, strides: tuple[int, int], groups: int
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, strides, size // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(outputs)
        self.limit = shape.limit

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(x)))
        return x if self.limit is None else x.clamp(max=self.limit)


class SeparableNet(nn.Module):
    """Samples [N, C, H, W] -> logits [N, classes]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.names = [name.replace(".", "_") for name, *_ in shape.layers()]
        for name, (_, *layer) in zip(self.names, shape.layers(), strict=True):
            self.add_module(name, Layer(shape, *layer))
        self.fc = nn.Linear(shape.blocks[-1][0], shape.classes)

    def forward(self, x: Tensor) -> Tensor:
        for name in self.names:
            x = self.get_submodule(name)(x)
        return self.fc(x.mean(dim=(2, 3)))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a net is trained: SGD with momentum, one cycle of the learning rate, weight decay on the kernels alone.

    The gains of the depthwise normalizations begin log-normal with deviation `spread` of the logarithm.
    """

    seed: int
    epochs: int
    batch: int
    rate: float
    decay: float
    spread: float


def train(
    shape: Shape, recipe: Recipe, samples: np.ndarray, labels: np.ndarray, augment: Callable[[Tensor], Tensor]
) -> Weights:
    """Weights by dotted name (`block0.depthwise.conv.weight`), trained on samples [K, C, H, W] and labels [K]."""
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    inputs, wanted = torch.from_numpy(samples), torch.from_numpy(labels)
    net = SeparableNet(shape).train()
    for name in net.names:
        if "depthwise" in name:
            gain = net.get_submodule(name).get_parameter("bn.weight")
            nn.init.normal_(gain.data, std=recipe.spread)
            gain.data.exp_()
    kernels = [value for value in net.parameters() if value.dim() > 1]
    others = [value for value in net.parameters() if value.dim() == 1]
    groups = [{"params": kernels, "weight_decay": recipe.decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=recipe.rate, momentum=0.9, nesterov=True)
    steps = recipe.epochs * (len(wanted) // recipe.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=recipe.rate, total_steps=steps)
    for _ in range(recipe.epochs):
        for index in torch.randperm(len(wanted))[: len(wanted) // recipe.batch * recipe.batch].split(recipe.batch):
            loss = F.cross_entropy(net(augment(inputs[index])), wanted[index], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    dotted = {
        name.replace("_depthwise", ".depthwise").replace("_pointwise", ".pointwise"): value
        for name, value in net.state_dict().items()
    }
    return {name: value.numpy() for name, value in dotted.items() if "num_batches" not in name}


def to_onnx(shape: Shape, weights: Weights) -> onnx.ModelProto:
    """The trained net; input `input` [N, C, H, W], output `logits` [N, classes]."""
    g = GraphBuilder(shape.name)
    bounds: Sequence[str] = ()
    if shape.limit is not None:
        bounds = [
            g.weight("relu6.low", np.array(0, np.float32)),
            g.weight("relu6.high", np.array(shape.limit, np.float32)),
        ]
    x = "input"
    for name, _, _, size, strides, groups in shape.layers():
        path = f"/{name.replace('.', '/')}"
        kernel = g.weight(f"{name}.conv.weight", weights[f"{name}.conv.weight"])
        x = g.node(
            "Conv", f"{path}/conv", [x, kernel], kernel_shape=[size, size], pads=[size // 2] * 4,
            strides=list(strides), group=groups,
        )  # fmt: skip
        x = g.batch_norm(x, f"{path}/bn", weights)
        x = g.node("Clip" if bounds else "Relu", f"{path}/{'relu6' if bounds else 'relu'}", [x, *bounds])
    x = g.node("Flatten", "/head/flatten", [g.node("GlobalAveragePool", "/head/pool", [x])], axis=1)
    head = [g.weight(f"head.{name}", weights[name]) for name in ("fc.weight", "fc.bias")]
    g.node("Gemm", "/head/fc", [x, *head], output="logits", transB=1)
    return g.model([floats("input", "N", *shape.input)], [floats("logits", "N", shape.classes)])


def accuracy(model: onnx.ModelProto, samples: np.ndarray, labels: np.ndarray) -> float:
    """Share of samples whose largest logit is the label."""
    return float((run(model, {"input": samples})[0].argmax(1) == labels).mean())
