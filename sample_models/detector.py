"""Train a tiny anchor-free detector on made scenes (`scenes.py`) and write it with its calibration and test scenes.

Input `input` [N, 1, 64, 64]; output `predictions` [N, 4 + 10, 256], as YOLOv8 exports are made: boxes (cx, cy, w, h)
in pixels, 0..64, concatenated with class scores after a sigmoid, 0..1, one column per cell of a 16x16 grid (stride
4). One int8 scale for that tensor must cover 64 pixels; it is 2^-1, and a score below 0.25 becomes 0. SQNR, which the
boxes rule, does not show it; mAP does.

    /stem -> /down1 (16x16) -> /down2 -> /deep (8x8) -> Resize -> Concat with /down1 -> /neck -> /box, /cls -> decode
    -> Concat

Batch normalization is folded, as in the exports of detectors. Each digit gives the five cells nearest to its centre a
score of 1/5, so that the scores of a class add up to the number of its digits and a true detection has about 0.2. A
real detector has higher scores and boxes up to 640, which ask for a scale of 2^2 or 2^3; what the two have in common is
that true scores lie below half a step.
"""

from pathlib import Path

import numpy as np
import onnx
import torch
from _build import GraphBuilder, Weights, floats, fold_batch_norm, pow2_int8, run, save
from _digits_data import split
from scenes import CLASSES, SIZE, make_scenes, mean_average_precision
from torch import Tensor, nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
SEED = 11
SCENES, EPOCHS, BATCH = 3000, 24, 32
TEST_SCENES, CALIBRATION_SCENES = 64, 32
STRIDE, GRID, REACH, SHARES = 4, 16, 24.0, 5
LAYERS = {
    "stem": (1, 16, 3, 2),
    "down1": (16, 32, 3, 2),
    "down2": (32, 64, 3, 2),
    "deep": (64, 64, 3, 1),
    "neck": (96, 32, 1, 1),
}
LAYERS |= {"box1": (32, 32, 3, 1), "cls1": (32, 32, 3, 1)}
HEADS = {"box2": 4, "cls2": CLASSES}


def centres() -> np.ndarray:
    """Centres (x, y) of the cells in pixels, [2, 256], row by row."""
    y, x = np.divmod(np.arange(GRID * GRID), GRID)
    return (np.stack([x, y]).astype(np.float32) + 0.5) * STRIDE


class DetectorNet(nn.Module):
    """Images [N, 1, 64, 64] -> distances to the four sides and class logits of each cell.

    Distances [N, 4, 256] in pixels (left, top, right, bottom), logits [N, 10, 256].
    """

    def __init__(self) -> None:
        super().__init__()
        for name, (inputs, outputs, size, stride) in LAYERS.items():
            self.add_module(name, nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False))
            self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs))
        for name, outputs in HEADS.items():
            self.add_module(name, nn.Conv2d(32, outputs, 1))
        nn.init.constant_(self.get_parameter("cls2.bias"), -4.0)

    def layer(self, name: str, x: Tensor) -> Tensor:
        return F.relu(self.get_submodule(f"{name}_bn")(self.get_submodule(name)(x)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        near = self.layer("down1", self.layer("stem", x))
        far = F.interpolate(self.layer("deep", self.layer("down2", near)), scale_factor=2, mode="nearest")
        x = self.layer("neck", torch.cat([far, near], dim=1))
        box, cls = (self.get_submodule(f"{head}2")(self.layer(f"{head}1", x)).flatten(2) for head in ("box", "cls"))
        return box.sigmoid() * REACH, cls


def targets(boxes: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Class scores [N, 10, 256], side distances [N, 4, 256] in pixels, and the cells where these count [N, 256]."""
    count = len(boxes)
    grid = torch.from_numpy(centres())
    classes, sides, counts = (
        torch.zeros(count, CLASSES, GRID**2),
        torch.zeros(count, 4, GRID**2),
        torch.zeros(count, GRID**2),
    )
    for scene, slot in (labels >= 0).nonzero().tolist():
        box = boxes[scene, slot]
        near = (grid - box[:2, None]).square().sum(0).topk(SHARES, largest=False).indices
        sides[scene][:, near] = torch.cat(
            [grid - (box[:2] - box[2:] / 2)[:, None], (box[:2] + box[2:] / 2)[:, None] - grid]
        )[:, near]
        counts[scene, near] = 1
        classes[scene, labels[scene, slot], near] = 1 / SHARES
    return classes, sides.clamp(0.1, REACH - 0.1), counts


def loss_of(net: DetectorNet, images: Tensor, classes: Tensor, sides: Tensor, counts: Tensor) -> Tensor:
    """Cross entropy of the class scores per digit, plus 1 - IoU and a small L1 of the boxes per cell."""
    box, logits = net(images)
    scores = F.binary_cross_entropy_with_logits(logits, classes, reduction="sum") / classes.sum()
    low, high = torch.minimum(box, sides), torch.maximum(box, sides)
    shared, area = (low[:, 0] + low[:, 2]) * (low[:, 1] + low[:, 3]), (box[:, 0] + box[:, 2]) * (box[:, 1] + box[:, 3])
    iou = shared / (area + (sides[:, 0] + sides[:, 2]) * (sides[:, 1] + sides[:, 3]) - shared)
    return scores + ((1 - iou + 0.05 * (high - low).sum(1)) * counts).sum() / counts.sum()


def train() -> Weights:
    """Train from the seed on scenes of training digits; weights by dotted name with the normalization folded."""
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    digits = split()[0]
    images, boxes, labels = map(torch.from_numpy, make_scenes(SCENES, SEED, (digits.images, digits.labels)))
    classes, sides, counts = targets(boxes, labels)
    net = DetectorNet().train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=EPOCHS * (SCENES // BATCH))
    for _ in range(EPOCHS):
        for index in torch.randperm(SCENES)[: SCENES // BATCH * BATCH].split(BATCH):
            loss = loss_of(net, images[index], classes[index], sides[index], counts[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    weights = {name: value.detach().numpy() for name, value in net.state_dict().items() if "num_batches" not in name}
    for name in LAYERS:
        weights = fold_batch_norm(weights, name, f"{name}_bn")
    return weights


def to_onnx(weights: Weights) -> onnx.ModelProto:
    """The network with the box decoding and the final Concat of boxes and scores."""
    g = GraphBuilder("detector")

    def layer(name: str, x: str) -> str:
        return g.node("Relu", f"/{name}/relu", [g.conv(x, f"/{name}", weights, stride=LAYERS[name][3])])

    near = layer("down1", layer("stem", "input"))
    scales = g.weight("resize.scales", np.array([1, 1, 2, 2], np.float32))
    far = g.node(
        "Resize", "/resize", [layer("deep", layer("down2", near)), "", scales],
        mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip
    x = layer("neck", g.node("Concat", "/neck/concat", [far, near], axis=1))
    flat = {}
    for head, rows in (("box", 4), ("cls", CLASSES)):
        shape = g.weight(f"head.{head}.shape", np.array([0, rows, GRID**2], np.int64))
        y = g.conv(layer(f"{head}1", x), f"/{head}2", weights)
        flat[head] = g.node("Reshape", f"/head/{head}/reshape", [y, shape])
    sides = g.node("Sigmoid", "/head/box/sigmoid", [flat["box"]])
    sides = g.node("Mul", "/head/box/reach", [sides, g.weight("head.reach", np.array(REACH, np.float32))])
    low, high = "/head/box/split_output_0", "/head/box/split_output_1"
    g.nodes.append(onnx.helper.make_node("Split", [sides], [low, high], name="/head/box/split", axis=1, num_outputs=2))
    cells = g.weight("head.centres", centres()[None])
    low = g.node("Sub", "/head/box/low", [cells, low])
    high = g.node("Add", "/head/box/high", [cells, high])
    both = g.node("Add", "/head/box/sum", [low, high])
    middle = g.node("Mul", "/head/box/middle", [both, g.weight("head.half", np.array(0.5, np.float32))])
    boxes = g.node("Concat", "/head/box/concat", [middle, g.node("Sub", "/head/box/extent", [high, low])], axis=1)
    scores = g.node("Sigmoid", "/head/cls/sigmoid", [flat["cls"]])
    g.node("Concat", "/head/concat", [boxes, scores], output="predictions", axis=1)
    return g.model([floats("input", "N", 1, SIZE, SIZE)], [floats("predictions", "N", 4 + CLASSES, GRID**2)])


def main() -> None:
    """Train, write the model and its scenes, print mAP with and without one scale for the output tensor."""
    model = to_onnx(train())
    save(model, HERE / "detector.onnx")
    digits = split()[1]
    calibration, _, _ = make_scenes(CALIBRATION_SCENES, SEED + 1, (digits.images, digits.labels))
    images, boxes, labels = make_scenes(TEST_SCENES, SEED + 2)
    np.savez_compressed(HERE / "detector_calib.npz", input=calibration)
    np.savez_compressed(HERE / "detector_test.npz", input=images, boxes=boxes, labels=labels)
    predictions = run(model, {"input": images})[0]
    print(f"largest score {predictions[:, 4:].max():.2f}, largest box value {predictions[:, :4].max():.1f}")
    shared = pow2_int8(predictions, exponent=-1)
    apart = np.concatenate([shared[:, :4], pow2_int8(predictions[:, 4:], exponent=-7)], axis=1)
    for what, one in (("float", predictions), ("one int8 scale 2^-1", shared), ("scores apart with 2^-7", apart)):
        noise = float(((predictions - one) ** 2).sum())
        sqnr = f"{10 * np.log10(float((predictions**2).sum()) / noise):.1f} dB" if noise else "exact"
        print(f"mAP@0.5 {mean_average_precision(one, boxes, labels):.3f}, SQNR of the output {sqnr}: {what}")


if __name__ == "__main__":
    main()
