"""Made scenes for the detector and the metric to judge it by; numpy only.

A scene is a gray 64x64 image with one to four upscaled digits that hardly overlap, on a background of random level
with a little noise. By default the digits are the test images of the demo (never trained on); a builder passes
others.
"""

from pathlib import Path

import numpy as np

SIZE = 64
CLASSES = 10
MOST_OBJECTS = 4
SIDES = (16, 30)
LEVELS = 63
DEMO_TEST = Path(__file__).resolve().parent.parent / "qdqtool" / "_demo" / "test.npz"


def make_scenes(
    count: int, seed: int, digits: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scenes from a seed.

    digits: images [K, 1, 8, 8] in 0..1 and labels [K]; by default those of the demo's test file. Returns images
    float32 [count, 1, 64, 64] in 0..1 (multiples of 1/63), boxes float32 [count, 4, 4] as (cx, cy, w, h) in pixels
    around the ink, and labels int64 [count, 4]; a row with label -1 is empty.
    """
    if digits is None:
        with np.load(DEMO_TEST) as stored:
            digits = stored["input"], stored["labels"]
    rng = np.random.default_rng(seed)
    images = np.zeros((count, 1, SIZE, SIZE), np.float32)
    boxes = np.zeros((count, MOST_OBJECTS, 4), np.float32)
    labels = np.full((count, MOST_OBJECTS), -1, np.int64)
    for scene in range(count):
        ink = np.zeros((SIZE, SIZE))
        for slot in range(rng.integers(1, MOST_OBJECTS + 1)):
            which, side = rng.integers(len(digits[1])), int(rng.integers(SIDES[0], SIDES[1] + 1))
            tile = upscale(digits[0][which, 0], side)
            for _ in range(20):
                top, left = rng.integers(0, SIZE - side + 1, 2)
                box = ink_box(tile, int(top), int(left))
                if not slot or iou(box, boxes[scene, :slot]).max() < 0.02:
                    part = ink[top : top + side, left : left + side]
                    np.maximum(part, tile * rng.uniform(0.5, 1.0), out=part)
                    boxes[scene, slot], labels[scene, slot] = box, digits[1][which]
                    break
            if labels[scene, slot] < 0:
                break
        level = rng.uniform(0.0, 0.4)
        noisy = level + (1 - level) * ink + rng.normal(0, 0.02, ink.shape)
        images[scene, 0] = np.rint(np.clip(noisy, 0, 1) * LEVELS) / LEVELS
    return images, boxes, labels


def upscale(image: np.ndarray, side: int) -> np.ndarray:
    """Bilinear resize of a square image [S, S] to [side, side]."""
    size = len(image)
    at = np.clip((np.arange(side) + 0.5) * size / side - 0.5, 0, size - 1)
    weights = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(size)))
    return np.asarray(weights @ image @ weights.T)


def ink_box(tile: np.ndarray, top: int, left: int) -> np.ndarray:
    """(cx, cy, w, h) of the pixels above 0.25 of a tile placed at (top, left)."""
    rows, columns = (np.flatnonzero((tile > 0.25).any(axis)) for axis in (1, 0))
    y0, y1, x0, x1 = top + rows[0], top + rows[-1] + 1, left + columns[0], left + columns[-1] + 1
    return np.array([(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0], np.float32)


def iou(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Intersection over union of one box [4] with boxes [B, 4], all (cx, cy, w, h) -> [B]."""
    low = np.maximum(box[:2] - box[2:] / 2, boxes[:, :2] - boxes[:, 2:] / 2)
    high = np.minimum(box[:2] + box[2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2)
    shared = np.clip(high - low, 0, None).prod(axis=1)
    return np.asarray(shared / np.maximum(box[2:].prod() + boxes[:, 2:].prod(axis=1) - shared, 1e-9))


def detections(
    prediction: np.ndarray, label: int, score: float = 0.01, overlap: float = 0.5
) -> list[tuple[float, np.ndarray]]:
    """(score, box) of one class in one scene after non-maximum suppression, best first; prediction [4 + 10, A]."""
    scores = prediction[4 + label]
    order = [int(i) for i in np.argsort(-scores, kind="stable") if scores[i] > score]
    kept: list[tuple[float, np.ndarray]] = []
    for index in order:
        box = prediction[:4, index]
        if not kept or iou(box, np.stack([other for _, other in kept])).max() < overlap:
            kept.append((float(scores[index]), box))
    return kept


def mean_average_precision(
    predictions: np.ndarray, boxes: np.ndarray, labels: np.ndarray, overlap: float = 0.5
) -> float:
    """mAP at one IoU threshold: area under the precision envelope (all points), averaged over the classes present.

    predictions [N, 4 + 10, A] as the detector writes them; boxes [N, 4, 4] and labels [N, 4] as `make_scenes` returns
    them. The order of equal scores is by scene, then by anchor.
    """
    precisions = []
    for label in range(CLASSES):
        truth = [boxes[scene][labels[scene] == label] for scene in range(len(boxes))]
        total = sum(map(len, truth))
        if not total:
            continue
        found = [(score, scene, box) for scene, one in enumerate(predictions) for score, box in detections(one, label)]
        taken = [np.zeros(len(one), bool) for one in truth]
        hits = []
        for _, scene, box in sorted(found, key=lambda item: -item[0]):
            overlaps = np.where(taken[scene], 0, iou(box, truth[scene])) if len(truth[scene]) else np.zeros(1)
            best = int(overlaps.argmax())
            hits.append(bool(overlaps[best] >= overlap))
            if hits[-1]:
                taken[scene][best] = True
        right = np.cumsum(hits)
        precision = np.maximum.accumulate((right / np.arange(1, len(hits) + 1))[::-1])[::-1]
        precisions.append(float((precision * np.array(hits)).sum() / total) if hits else 0.0)
    return float(np.mean(precisions))
