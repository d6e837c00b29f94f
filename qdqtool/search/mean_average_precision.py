"""Mean average precision of detectors, as COCO defines it: the metrics ``map`` and ``map50``.

The data hold, beside the inputs, ``boxes`` [images, n, 4] and ``labels`` [images, n], in the numbers, units and order of
coordinates of the model's own (`qdqtool.search.detections`); what has a negative label, or no area, fills up. Of an image `MOST`
boxes count for each class, the surest. It is what pycocotools computes of boxes of any size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.search.detections import Arrays, Floats, Found, Ints, corners_of, detections, overlaps

#: Overlaps of which the precision is averaged: 0.5, 0.55, … 0.95. ``map50`` is of the first alone.
OVERLAPS = np.linspace(0.5, 0.95, 10)
#: Recalls at which precision is read.
RECALLS = np.linspace(0.0, 1.0, 101)
MOST = 100
BOXES, LABELS = "boxes", "labels"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What is right of the boxes that a model finds in one image.

    Args:
        truths: class → how many there are.
        scores: of the boxes [n], of each class the surest first.
        classes: of the boxes [n].
        hits: [n, overlaps], whether a box is one of the truths.
    """

    truths: Mapping[int, int]
    scores: Floats
    classes: Ints
    hits: npt.NDArray[np.bool_]


def scenes(output: Arrays, feed: Arrays) -> tuple[Scene, ...]:
    """Of one sample: its images.

    Raises:
        UsageError: the data hold no truth, or the outputs have none of the forms above.
    """
    found, are_centred = detections(output)
    truths = _truths(feed, len(found), are_centred=are_centred)
    return tuple(_scene(each, *truth) for each, truth in zip(found, truths, strict=True))


def mean_average_precision(samples: Sequence[tuple[Scene, ...]], overlaps: int = len(OVERLAPS)) -> float:
    """The mean over classes that there are, and over the first ``overlaps`` of `OVERLAPS`.

    Raises:
        UsageError: there is no box to be found.
    """
    images = [scene for sample in samples for scene in sample]
    counts: dict[int, int] = {}
    for scene in images:
        for label, count in scene.truths.items():
            counts[label] = counts.get(label, 0) + count
    if not counts:
        raise UsageError(f"no sample holds a box in {BOXES!r}", where="--metric map", hint="give samples with some")
    classes = np.concatenate([scene.classes for scene in images])
    scores = np.concatenate([scene.scores for scene in images])
    hits = np.concatenate([scene.hits[:, :overlaps] for scene in images])
    order = np.lexsort((-scores, classes))  # stable: of equal scores in the order of the images
    classes, hits = classes[order], hits[order]
    found = []
    for label, count in sorted(counts.items()):
        first, last = np.searchsorted(classes, [label, label + 1])
        found.append(_average_precision(hits[first:last], count))
    return float(np.mean(found))


def _average_precision(hits: npt.NDArray[np.bool_], count: int) -> float:
    """Of boxes with the surest first: the best precision at each of `RECALLS` or beyond; 0 where none gets so far."""
    right = np.cumsum(hits, axis=0)
    precision = right / np.arange(1, len(hits) + 1)[:, None]
    precision = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
    total = 0.0
    for at in range(hits.shape[1]):
        places = np.searchsorted(right[:, at] / count, RECALLS, side="left")
        total += float(precision[places[places < len(hits)], at].sum()) / len(RECALLS)
    return total / int(hits.shape[1])


def _scene(found: Found, truth: Floats, labels: Ints) -> Scene:
    """Each box, the surest first, takes the truth of its class that it overlaps most and that no other has taken."""
    scores, classes, hits = [np.zeros(0)], [np.zeros(0, np.int64)], [np.zeros((0, len(OVERLAPS)), bool)]
    for label in np.unique(found.classes):
        of = np.flatnonzero(found.classes == label)
        of = of[np.argsort(-found.scores[of], kind="stable")][:MOST]
        scores.append(found.scores[of])
        classes.append(found.classes[of])
        hits.append(_hits(overlaps(found.corners[of], truth[labels == label])))
    names, counts = np.unique(labels, return_counts=True)
    return Scene(
        truths={int(name): int(count) for name, count in zip(names, counts, strict=True)}, scores=np.concatenate(scores),
        classes=np.concatenate(classes), hits=np.concatenate(hits),
    )  # fmt: skip


def _hits(overlap: Floats) -> npt.NDArray[np.bool_]:
    """[boxes, overlaps] of the overlaps [boxes, truths]; of equal ones the last truth is taken."""
    boxes, truths = overlap.shape
    found = np.zeros((boxes, len(OVERLAPS)), bool)
    for at, least in enumerate(OVERLAPS if truths else ()):
        taken = np.zeros(truths, bool)
        for box in range(boxes):
            best = truths - 1 - int(np.where(taken, -1.0, overlap[box])[::-1].argmax())
            found[box, at] = not taken[best] and overlap[box, best] >= least
            taken[best] |= found[box, at]
    return found


def _truths(feed: Arrays, images: int, *, are_centred: bool) -> Iterator[tuple[Floats, Ints]]:
    """Of each image corners and labels."""
    for name in (BOXES, LABELS):
        if name not in feed:
            hint = f"give data with {BOXES!r} [images, n, 4] and {LABELS!r} [images, n], as --eval-data or --data"
            raise UsageError(f"the data holds no {name!r}", where="--metric map", hint=hint)
    boxes, labels = np.asarray(feed[BOXES], np.float64), labels_of(feed)
    if boxes.size != 4 * labels.size or labels.size % images:
        sizes = f"{BOXES} {list(boxes.shape)}, {LABELS} {list(labels.shape)} for {images} images"
        raise UsageError(
            f"the truth does not fit: {sizes}", where="--metric map", hint="[images, n, 4] and [images, n]"
        )
    rows, names = boxes.reshape(images, -1, 4), labels.reshape(images, -1)
    for row, of in zip(rows, names, strict=True):
        corners = corners_of(row) if are_centred else row
        is_one = (of >= 0) & (corners[:, 2:] > corners[:, :2]).all(axis=1)
        yield corners[is_one], of[is_one]


def labels_of(feed: Arrays) -> Ints:
    """The array `LABELS` of a sample.

    Raises:
        UsageError: it holds no whole numbers.
    """
    labels = np.asarray(feed[LABELS])
    if labels.dtype.kind not in "iub" and not (labels.dtype.kind == "f" and bool((labels == np.rint(labels)).all())):
        raise UsageError(
            f"{LABELS!r} are no whole numbers ({labels.dtype})", where="--metric", hint="give the index of a class"
        )
    return labels.astype(np.int64)
