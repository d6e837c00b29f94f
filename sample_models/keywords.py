"""Train a keyword-spotting-like net (DS-CNN) on recorded speech that ships with a library.

Writes `trained/keywords.onnx`, `trained/keywords_calib.npz` and `trained/keywords_test.npz`. Input `input`
[N, 1, 32, 12]: 32 frames of 12 cepstrum coefficients; output `logits` [N, 9].

The data are the Japanese Vowels of M. Kudo, J. Toyama and M. Shimbo ("Multidimensional curve classification using
passing-through regions", Pattern Recognition Letters 20, 1999; UCI Machine Learning Repository, CC BY 4.0) as the package
aeon carries them (`pip install --no-deps aeon==1.6.0`): utterances of the vowels a and e by nine speakers, 7 to 29 frames
each, the class is the speaker. 270 are trained on, the 370 of the test part are held out; every second one of the training
part calibrates. Frames behind the end are 0; coefficients are in steps of 1/64, as fixed-point front ends give them.
"""

from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from _build import save
from _separable import Recipe, Shape, accuracy, to_onnx, train
from torch import Tensor

OUT = Path(__file__).resolve().parent / "trained"
FRAMES, COEFFICIENTS, STEPS = 32, 12, 64
SHAPE = Shape(
    name="keywords", input=(1, FRAMES, COEFFICIENTS), stem=(48, 5, (2, 1)), classes=9, limit=None,
    blocks=((48, (1, 1)), (48, (2, 2)), (64, (1, 1)), (64, (1, 1))),
)  # fmt: skip
RECIPE = Recipe(seed=17, epochs=60, batch=30, rate=0.05, decay=1e-3, spread=0.0)


def utterances(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Features float32 [K, 1, 32, 12] and speakers int64 [K] of `TRAIN` or `TEST`."""
    text = files("aeon").joinpath(f"datasets/data/JapaneseVowels/JapaneseVowels_{part}.ts").read_text(encoding="utf-8")
    lines = text.split("@data")[1].split()
    features = np.zeros((len(lines), 1, FRAMES, COEFFICIENTS), np.float32)
    for at, line in enumerate(lines):
        series = np.array([[float(value) for value in one.split(",")] for one in line.split(":")[:-1]])
        features[at, 0, : series.shape[1]] = (np.rint(series * STEPS) / STEPS).T
    return features, np.array([int(line.rsplit(":", 1)[1]) - 1 for line in lines])


def augment(features: Tensor) -> Tensor:
    """Shift each utterance by up to three frames and add a little noise."""
    moved = [one.roll(int(by), dims=1) for one, by in zip(features, torch.randint(0, 4, (len(features),)), strict=True)]
    return torch.stack(moved) + 0.05 * torch.randn_like(features)


def main() -> None:
    """Train, write the model and its data, print the figure."""
    samples, labels = utterances("TRAIN")
    test, wanted = utterances("TEST")
    model = to_onnx(SHAPE, train(SHAPE, RECIPE, samples, labels, augment))
    save(model, OUT / "keywords.onnx")
    np.savez_compressed(OUT / "keywords_calib.npz", input=samples[::2])
    np.savez_compressed(OUT / "keywords_test.npz", input=test, labels=wanted)
    print(f"test accuracy {accuracy(model, test, wanted):.4f} on {len(wanted)} utterances")


if __name__ == "__main__":
    main()
