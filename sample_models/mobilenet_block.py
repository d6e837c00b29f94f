"""A MobileNetV2-like net with seeded weights.

A stem, three inverted residual blocks with depthwise convolutions, a classifier head. Input `input` [N, 3, 32, 32],
output `logits` [N, 10]. ReLU6 is Clip(0, 6), as exporters write it. The weights are random, the statistics are not:
every BatchNormalization holds the mean and variance its input has on seeded images, and its gains are log-normal per
channel, so that folded depthwise weights have channels of very different range, the case where per-axis scales pay.
"""

from pathlib import Path

import numpy as np
import onnx
from _build import GraphBuilder, Weights, floats, run, save

OUT = Path(__file__).resolve().parent / "mobilenet_block.onnx"
SEED = 3
STEM, LAST = 16, 96
# (input channels, expanded channels, output channels, stride); equal channels and stride 1 give a residual Add
BLOCKS = ((16, 64, 16, 1), (16, 96, 24, 2), (24, 144, 24, 1))


def images(count: int, seed: int) -> np.ndarray:
    """Smooth random images float32 [count, 3, 32, 32], roughly normalized (mean 0, deviation 1)."""
    coarse = np.random.default_rng(seed).normal(0, 1, (count, 3, 8, 8))
    smooth = coarse.repeat(4, axis=2).repeat(4, axis=3)
    for axis in (2, 3):
        smooth = np.mean([np.roll(smooth, shift, axis) for shift in range(-2, 3)], axis=0)
    return np.asarray(smooth / smooth.std(), np.float32)


def layers() -> list[tuple[str, tuple[int, int, int, int]]]:
    """Name and kernel shape [M, C/groups, k, k] of each convolution in execution order."""
    found = [("stem", (STEM, 3, 3, 3))]
    for index, (inputs, middle, outputs, _) in enumerate(BLOCKS):
        found.append((f"block{index}.expand", (middle, inputs, 1, 1)))
        found.append((f"block{index}.depthwise", (middle, 1, 3, 3)))
        found.append((f"block{index}.project", (outputs, middle, 1, 1)))
    return [*found, ("last", (LAST, BLOCKS[-1][2], 1, 1))]


def initial_weights() -> Weights:
    """He-normal kernels, log-normal gains, small shifts; the statistics are still those of a new layer (0 and 1)."""
    rng = np.random.default_rng(SEED)
    weights: Weights = {}
    for name, shape in layers():
        fan_in = int(np.prod(shape[1:]))
        weights[f"{name}.conv.weight"] = rng.normal(0, np.sqrt(2 / fan_in), shape)
        weights[f"{name}.bn.weight"] = np.exp(rng.normal(0, 0.4, shape[0]))
        weights[f"{name}.bn.bias"] = rng.normal(0.2, 0.4, shape[0])
        weights[f"{name}.bn.running_mean"] = np.zeros(shape[0])
        weights[f"{name}.bn.running_var"] = np.ones(shape[0])
    weights["head.fc.weight"] = rng.normal(0, np.sqrt(1 / LAST), (10, LAST))
    weights["head.fc.bias"] = rng.normal(0, 0.1, 10)
    return {name: value.astype(np.float32) for name, value in weights.items()}


def to_onnx(weights: Weights, stop_before: str = "") -> onnx.ModelProto:
    """The network; with `stop_before` the input of that layer's normalization is the only output (`tap`)."""
    g = GraphBuilder("mobilenet_block")
    taps: list[str] = []

    def layer(x: str, name: str, *, stride: int = 1, groups: int = 1, clip: bool = True) -> str:
        y = g.conv(x, f"/{name}/conv", weights, stride=stride, groups=groups)
        if name.replace("/", ".") == stop_before:
            taps.append(y)
        y = g.batch_norm(y, f"/{name}/bn", weights)
        return g.node("Clip", f"/{name}/relu6", [y, "relu6.low", "relu6.high"]) if clip else y

    g.weight("relu6.low", np.array(0, np.float32))
    g.weight("relu6.high", np.array(6, np.float32))
    x = layer("input", "stem", stride=2)
    for index, (inputs, middle, outputs, stride) in enumerate(BLOCKS):
        y = layer(x, f"block{index}/expand")
        y = layer(y, f"block{index}/depthwise", stride=stride, groups=middle)
        y = layer(y, f"block{index}/project", clip=False)
        x = g.node("Add", f"/block{index}/add", [x, y]) if inputs == outputs and stride == 1 else y
    x = g.node("GlobalAveragePool", "/head/pool", [layer(x, "last")])
    x = g.node("Flatten", "/head/flatten", [x], axis=1)
    head = [g.weight(name, weights[name]) for name in ("head.fc.weight", "head.fc.bias")]
    g.node("Gemm", "/head/fc", [x, *head], output="logits", transB=1)
    if taps:
        g.node("Identity", "/tap", taps, output="tap")
        return g.model([floats("input", "N", 3, 32, 32)], [floats("tap", "N", "C", "H", "W")])
    return g.model([floats("input", "N", 3, 32, 32)], [floats("logits", "N", 10)])


def settle(weights: Weights) -> Weights:
    """Set each layer's statistics, first to last, to what it sees on 64 seeded images.

    The logits are then brought to mean 0 and deviation about 2. Figures are rounded to four digits, so that another
    CPU's last bit seldom shows.
    """
    settled = dict(weights)
    feeds = {"input": images(64, SEED)}
    for name, _ in layers():
        seen = run(to_onnx(settled, stop_before=name), feeds)[0].astype(np.float64)
        for part, value in (("mean", seen.mean((0, 2, 3))), ("var", seen.var((0, 2, 3)))):
            settled[f"{name}.bn.running_{part}"] = np.array([float(f"{x:.4g}") for x in value], np.float32)
    logits = run(to_onnx(settled), feeds)[0]
    settled["head.fc.weight"] = (settled["head.fc.weight"] * np.float32(2 / logits.std(0).mean())).round(4)
    settled["head.fc.bias"] = -run(to_onnx(settled), feeds)[0].mean(0).round(3) + settled["head.fc.bias"]
    return settled


def main() -> None:
    """Write the model and print the spread of its logits."""
    model = to_onnx(settle(initial_weights()))
    save(model, OUT)
    logits = run(model, {"input": images(64, SEED + 1)})[0]
    print(f"logits: deviation {logits.std():.2f}, {len(set(logits.argmax(1)))} classes on 64 images")


if __name__ == "__main__":
    main()
