"""Train the demo model: a small CNN on scikit-learn's digits, with its calibration and test images.

Writes `digits.onnx`, `calib.npz` and `test.npz` into `qdqtool/_demo`. The graph is written node by node from the
trained weights, so BatchNormalization is there to be folded and names say what a node is:

    /stem -> /block1 (residual Add) -> MaxPool -> /branch1x1 | /branch3x3 -> Concat -> /fuse -> GlobalAveragePool ->
    Flatten -> /head/fc

Recipe: fixed number of epochs, small affine augmentation, label smoothing; nothing is chosen on the test images.
"""

from pathlib import Path

import numpy as np
import onnx
import torch
from _build import GraphBuilder, Weights, floats, fold_batch_norm, pow2_int8, run, save
from _digits_data import Digits, split
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F

OUT = Path(__file__).resolve().parent.parent / "qdqtool" / "_demo"
SEED = 7
EPOCHS = 50
BATCH = 64
WIDTH = 24
LAYERS = ("stem", "block1.conv1", "block1.conv2", "branch1x1", "branch3x3", "fuse")


class ConvBn(nn.Module):
    """Convolution without bias, then batch normalization."""

    def __init__(self, inputs: int, outputs: int, size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x))


class Block(nn.Module):
    """relu(x + f(x)), f = ConvBn, relu, ConvBn."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = ConvBn(width, width, 3)
        self.conv2 = ConvBn(width, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.conv2(F.relu(self.conv1(x))))


class Head(nn.Module):
    """[N, C, H, W] -> logits [N, 10]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean(dim=(2, 3)))


class DigitsNet(nn.Module):
    """Images [N, 1, 8, 8] -> logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBn(1, WIDTH, 3)
        self.block1 = Block(WIDTH)
        self.branch1x1 = ConvBn(WIDTH, WIDTH, 1)
        self.branch3x3 = ConvBn(WIDTH, WIDTH, 3)
        self.fuse = ConvBn(2 * WIDTH, 2 * WIDTH, 3)
        self.head = Head(2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.block1(F.relu(self.stem(x))), 2)
        x = torch.cat([F.relu(self.branch1x1(x)), F.relu(self.branch3x3(x))], dim=1)
        return self.head(F.relu(self.fuse(x)))


def augment(images: Tensor) -> Tensor:
    """Turn each image by up to 10 degrees, scale it by up to 10 %, shift it by up to one pixel (1/4 in grid units)."""
    count = len(images)
    angle = (torch.rand(count) * 2 - 1) * 0.175
    zoom = 1 + (torch.rand(count) * 2 - 1) * 0.1
    shift = (torch.rand(count, 2) * 2 - 1) * 0.25
    rows = [torch.stack([angle.cos() * zoom, -angle.sin() * zoom, shift[:, 0]], 1)]
    rows.append(torch.stack([angle.sin() * zoom, angle.cos() * zoom, shift[:, 1]], 1))
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def train(data: Digits) -> Weights:
    """Train `DigitsNet` from the seed and return its weights by dotted name."""
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    net = DigitsNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.02)
    steps = EPOCHS * (len(labels) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    net.train()
    for _ in range(EPOCHS):
        order = torch.randperm(len(labels))
        for index in order[: len(labels) // BATCH * BATCH].split(BATCH):
            loss = F.cross_entropy(net(augment(images[index])), labels[index], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return {name: value.numpy() for name, value in net.state_dict().items() if "num_batches" not in name}


def to_onnx(weights: Weights) -> onnx.ModelProto:
    """The trained network as ONNX; a layer whose normalization is missing from `weights` is written without it."""
    g = GraphBuilder("digits")

    def layer(x: str, name: str) -> str:
        y = g.conv(x, f"{name}/conv", weights)
        return g.batch_norm(y, f"{name}/bn", weights) if f"{name[1:].replace('/', '.')}.bn.weight" in weights else y

    def relu(x: str, name: str) -> str:
        return g.node("Relu", name, [x])

    x = relu(layer("input", "/stem"), "/stem/relu")
    y = relu(layer(x, "/block1/conv1"), "/block1/relu1")
    y = g.node("Add", "/block1/add", [x, layer(y, "/block1/conv2")])
    y = relu(y, "/block1/relu2")
    y = g.node("MaxPool", "/pool", [y], kernel_shape=[2, 2], strides=[2, 2])
    branches = [relu(layer(y, name), f"{name}/relu") for name in ("/branch1x1", "/branch3x3")]
    y = g.node("Concat", "/concat", branches, axis=1)
    y = relu(layer(y, "/fuse"), "/fuse/relu")
    y = g.node("Flatten", "/head/flatten", [g.node("GlobalAveragePool", "/head/pool", [y])], axis=1)
    head = [g.weight(name, weights[name]) for name in ("head.fc.weight", "head.fc.bias")]
    g.node("Gemm", "/head/fc", [y, *head], output="logits", transB=1)
    return g.model([floats("input", "N", 1, 8, 8)], [floats("logits", "N", 10)])


def accuracy(model: onnx.ModelProto, data: Digits) -> float:
    """Share of images whose largest logit is the label."""
    return float((run(model, {"input": data.images})[0].argmax(1) == data.labels).mean())


def pow2_model(weights: Weights) -> onnx.ModelProto:
    """The folded model with each Conv and Gemm weight through int8 with a power-of-two scale."""
    for name in LAYERS:
        weights = fold_batch_norm(weights, f"{name}.conv", f"{name}.bn")
    model = to_onnx(weights)
    for tensor in model.graph.initializer:
        if len(tensor.dims) > 1:
            tensor.CopyFrom(numpy_helper.from_array(pow2_int8(numpy_helper.to_array(tensor)), tensor.name))
    return model


def main() -> None:
    """Train, write the demo files and print the measured figures."""
    data, calibration, test = split()
    weights = train(data)
    model = to_onnx(weights)
    save(model, OUT / "digits.onnx")
    np.savez_compressed(OUT / "calib.npz", input=calibration.images)
    np.savez_compressed(OUT / "test.npz", input=test.images, labels=test.labels)
    for what, one in (("float", model), ("weights folded and in power-of-two int8", pow2_model(weights))):
        print(f"test accuracy {accuracy(one, test):.4f}: {what}")


if __name__ == "__main__":
    main()
