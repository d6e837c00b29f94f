"""The one split of scikit-learn's bundled digits (1,797 images of 8x8) that every trained sample uses."""

from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits

TEST_IMAGES = 597
CALIBRATION_IMAGES = 128
SPLIT_SEED = 20


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Images float32 [K, 1, 8, 8] in 0..1 (pixel values 0..16 divided by 16) and labels int64 [K]."""

    images: np.ndarray
    labels: np.ndarray


def split() -> tuple[Digits, Digits, Digits]:
    """(train, calibration, test): 1,200 images, the first 128 of them, and 597 that are in neither."""
    data = load_digits()
    images = (data.images / 16.0).astype(np.float32)[:, None]
    labels = data.target.astype(np.int64)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    train_part, calibration, test_part = (
        Digits(images=images[index], labels=labels[index]) for index in (train, train[:CALIBRATION_IMAGES], test)
    )
    return train_part, calibration, test_part
