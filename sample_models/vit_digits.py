"""Train a small vision transformer on scikit-learn's digits: `vit_block` with the blocks it has, on images it learns.

Writes `trained/vit.onnx`. Input `input` [N, 1, 8, 8], output `logits` [N, 10]: patches of 2x2, two blocks, outlier channels as
in `vit_block`, which stay through the training. Calibration and test images are those of the demo.
"""

from pathlib import Path

import torch
from _digits_data import Digits, split
from _export import export
from digits import augment
from torch import nn
from torch.nn import functional as F
from vit_block import WIDTH, Vit

OUT = Path(__file__).resolve().parent / "trained" / "vit.onnx"
SEED, EPOCHS, BATCH = 19, 80, 64


def train(data: Digits) -> Vit:
    """The net from the seed, trained."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    net = Vit()
    net.patch_embed = nn.Conv2d(1, WIDTH, 2, stride=2)
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.02)
    steps = EPOCHS * (len(labels) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps)
    net.train()
    for _ in range(EPOCHS):
        for index in torch.randperm(len(labels))[: len(labels) // BATCH * BATCH].split(BATCH):
            loss = F.cross_entropy(net(augment(images[index])), labels[index], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def main() -> None:
    """Train, export, print the figure."""
    data, _, test = split()
    net = train(data)
    images = torch.from_numpy(test.images)
    export(net, {"input": images[:2]}, ["logits"], {"input": {0: "N"}}, OUT, checks=[{"input": images[2:9]}])
    with torch.no_grad():
        print(f"test accuracy {(net(images).argmax(1).numpy() == test.labels).mean():.4f}")


if __name__ == "__main__":
    main()
