"""Train a MobileNet-like classifier: depthwise separable blocks with ReLU6 on scikit-learn's digits at 16x16.

Writes `trained/mobilenet.onnx`, `trained/mobilenet_calib.npz` and `trained/mobilenet_test.npz`. Input `input`
[N, 1, 16, 16] in 0..1, output `logits` [N, 10]. The images are those of `digits.py`, bilinearly enlarged, with their
split; nothing is chosen on the test images.

The gains of the depthwise normalizations begin log-normal and keep most of that spread, so that the folded depthwise
kernels have channels whose ranges differ by factors of hundreds and more, as in the first MobileNets: one 8-bit scale for all
of them leaves little of the small ones.
"""

from pathlib import Path

import numpy as np
from _build import save
from _digits_data import Digits, split
from _separable import Recipe, Shape, accuracy, to_onnx, train
from digits import augment
from scenes import upscale

OUT = Path(__file__).resolve().parent / "trained"
SIDE, LEVELS = 16, 16
SHAPE = Shape(
    name="mobilenet", input=(1, SIDE, SIDE), stem=(16, 3, (2, 2)), classes=10, limit=6.0,
    blocks=((32, (1, 1)), (48, (2, 2)), (48, (1, 1)), (64, (2, 2)), (64, (1, 1))),
)  # fmt: skip
RECIPE = Recipe(seed=13, epochs=60, batch=64, rate=0.1, decay=5e-4, spread=2.0)


def enlarged(data: Digits) -> np.ndarray:
    """Images [K, 1, 16, 16] in steps of 1/16, the steps of the small ones."""
    large = np.stack([upscale(image[0], SIDE) for image in data.images])
    return (np.rint(large * LEVELS) / LEVELS).astype(np.float32)[:, None]


def main() -> None:
    """Train, write the model and its data, print the figures."""
    data, calibration, test = split()
    weights = train(SHAPE, RECIPE, enlarged(data), data.labels, augment)
    model = to_onnx(SHAPE, weights)
    save(model, OUT / "mobilenet.onnx")
    np.savez_compressed(OUT / "mobilenet_calib.npz", input=enlarged(calibration))
    np.savez_compressed(OUT / "mobilenet_test.npz", input=enlarged(test), labels=test.labels)
    print(f"test accuracy {accuracy(model, enlarged(test), test.labels):.4f}")
    for name, *_ in SHAPE.layers():
        factor = weights[f"{name}.bn.weight"] / np.sqrt(weights[f"{name}.bn.running_var"] + 1e-5)
        largest = np.abs(weights[f"{name}.conv.weight"] * factor[:, None, None, None]).max((1, 2, 3))
        print(f"{name}: channel ranges {largest.min():.3g} to {largest.max():.3g}")


if __name__ == "__main__":
    main()
