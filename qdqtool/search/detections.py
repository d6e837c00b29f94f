"""The boxes that a detector gives, whichever of these forms its outputs have,

    [images, 4 + classes, n]        centre and size, then a score a class: YOLOv8 to 12
    [images, n, 5 + classes]        centre and size, how likely there is anything, then a score a class: YOLOv5 to 7
    [images, n, 6]                  two corners, score, class: suppressed in the model, or not in need of it
    [images, n, 4] and the rest     two corners, and either scores [images, n, classes], or scores and classes [images, n]

with scores of 0 to 1, and in the first two n more than a box has numbers. ``images`` may be missing where there is one. Where
every class has a score, boxes that overlap a surer one of their class by more than `SUPPRESSED` are left out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.numerics.arrays import Array

Arrays = Mapping[str, Array]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SUPPRESSED = 0.7
#: Of each class, scores below are not looked at; of the others so many are, and so many boxes kept.
LEAST, LOOKED_AT, KEPT = 0.001, 400, 100
#: A box in one row: corners, score, class.
ROW = 6
#: A grid may round scores so far out of 0 to 1; further out they are something else.
OUTSIDE = 0.1
_WHERE = "--metric map"
_OWN = "give a function of your own: --metric module:function (or file.py:function)"


@dataclass(frozen=True, kw_only=True)
class Found:
    """Boxes in one image.

    Args:
        corners: [n, 4], the two smaller coordinates first.
        scores: [n].
        classes: [n].
    """

    corners: Floats
    scores: Floats
    classes: Ints


def detections(output: Arrays) -> tuple[list[Found], bool]:
    """What a model finds, an image each; and whether its boxes are centre and size.

    Raises:
        UsageError: the outputs have none of the forms above, or the scores are none.
    """
    if len(output) == 1:
        (array,) = output.values()
        found = _of_one(np.asarray(array)) if np.ndim(array) in (2, 3) else None
    else:
        several = _of_several({name: np.asarray(array) for name, array in output.items()})
        found = None if several is None else (several, False)
    if found is None:
        shapes = ", ".join(f"{name} {list(np.shape(array))}" for name, array in output.items())
        raise UsageError(f"the outputs are not known as boxes and scores: {shapes}", where=_WHERE, hint=_OWN)
    return found


def _of_one(array: Array) -> tuple[list[Found], bool] | None:
    """Of the only output, of rank 2 or 3."""
    given = np.asarray(array if array.ndim == 3 else array[None], np.float64)
    if given.shape[2] == ROW:
        return [_found(row[:, :4], row[:, 4], row[:, 5]) for row in given], False
    is_last = given.shape[2] <= given.shape[1]
    rows, first = (given, 5) if is_last else (given.transpose(0, 2, 1), 4)
    if rows.shape[2] <= first:
        return None
    scores = rows[..., first:] * rows[..., 4:5] if is_last else rows[..., first:]
    return [_suppressed(corners_of(box), score) for box, score in zip(rows[..., :4], scores, strict=True)], True


def _of_several(arrays: dict[str, Array]) -> list[Found] | None:
    """Of boxes in one output, scores in another, and perhaps classes in a third; what says how many there are is let be."""
    rank = max(array.ndim for array in arrays.values())
    names = [name for name, array in arrays.items() if array.ndim == rank and rank in (2, 3) and array.shape[-1] == 4]
    names = [name for name in names if "box" in name.lower()] if len(names) > 1 else names
    if len(names) != 1:
        return None
    boxes = arrays.pop(names[0]).astype(np.float64)
    boxes = boxes if boxes.ndim == 3 else boxes[None]
    images, count = boxes.shape[:2]
    rest = {
        name: array.reshape(images, count, -1 if count else 1)
        for name, array in arrays.items()
        if array.ndim >= rank - 1 and (array.size % (images * count) == 0 if count else not array.size)
    }
    classes = [name for name, array in rest.items() if array.shape[2] == 1 and _are_classes(name, array)]
    classes = classes if len(rest) > 1 else []
    scores = [name for name in rest if name not in classes]
    if len(scores) != 1 or len(classes) > 1:
        return None
    sure = rest[scores[0]].astype(np.float64)
    if not classes:
        return [_suppressed(box, score) for box, score in zip(boxes, sure, strict=True)]
    parts = zip(boxes, sure, rest[classes[0]], strict=True)
    return [_found(box, score[:, 0], label[:, 0]) for box, score, label in parts] if sure.shape[2] == 1 else None


def _are_classes(name: str, array: Array) -> bool:
    return array.dtype.kind in "iu" or any(word in name.lower() for word in ("class", "label"))


def _found(corners: Floats, scores: Floats, classes: Array) -> Found:
    _refuse_logits(scores)
    return Found(corners=corners, scores=scores, classes=np.rint(classes).astype(np.int64))


def _suppressed(corners: Floats, scores: Floats) -> Found:
    """Of boxes [n, 4] with a score a class [n, classes]: of each class the surest first, but what overlaps a surer one."""
    _refuse_logits(scores)
    parts = [np.zeros((0, 2), np.int64)]
    for label in np.flatnonzero((scores > LEAST).any(axis=0)):
        of = scores[:, label]
        order = np.argsort(-of, kind="stable")[: min(LOOKED_AT, int((of > LEAST).sum()))]
        kept = order[_apart(corners[order])]
        parts.append(np.stack([kept, np.full(len(kept), label)], axis=1))
    boxes, classes = np.concatenate(parts).T
    return Found(corners=corners[boxes], scores=scores[boxes, classes], classes=classes)


def _apart(corners: Floats) -> list[int]:
    """Numbers of the boxes that overlap none before them that is among these by more than `SUPPRESSED`."""
    left, kept = np.ones(len(corners), bool), list[int]()
    while left.any() and len(kept) < KEPT:
        at = int(left.argmax())
        kept.append(at)
        left[at] = False
        others = np.flatnonzero(left)
        left[others[overlaps(corners[at][None], corners[others])[0] > SUPPRESSED]] = False
    return kept


def _refuse_logits(scores: Floats) -> None:
    if scores.size and not (scores.min() >= -OUTSIDE and scores.max() <= 1 + OUTSIDE):
        told = f"the scores are {scores.min():.4g} to {scores.max():.4g}, and not 0 to 1 (logits?)"
        raise UsageError(told, where=_WHERE, hint=_OWN)


def corners_of(boxes: Floats) -> Floats:
    """Corners [n, 4] of boxes that are centre and size."""
    return np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], axis=1)


def overlaps(boxes: Floats, others: Floats) -> Floats:
    """Intersection over union [n, m] of corners [n, 4] and [m, 4]; 0 where both have no area."""
    a, b = boxes[:, None], others[None]
    sides = np.clip(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0, None)
    shared = sides[..., 0] * sides[..., 1]
    one, other = ((each[..., 2] - each[..., 0]) * (each[..., 3] - each[..., 1]) for each in (a, b))
    whole = one + other - shared
    found: Floats = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
    return found
