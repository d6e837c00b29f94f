"""The metrics of detectors: as pycocotools computes them, of every form that outputs have."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from qdq_passes.errors import UsageError

from qdqtool.search.detections import KEPT, detections, overlaps
from qdqtool.search.metrics import open_metric
from qdqtool.verbs.goals.quantize_to_goal import quantize_to_goal
from tests.dial import examples

CLASSES = 3
SAMPLES = Path(__file__).parents[3] / "sample_models"
Scenes = list[tuple[dict[str, Any], dict[str, Any]]]


def scenes(random: np.random.Generator, images: int, truths: int, found: int) -> Scenes:
    """(output, feed) of images with corners on a grid of whole numbers, so that overlaps are exact, and scores of few values."""
    made = []
    for _ in range(images):
        start = random.integers(0, 20, (truths, 2))
        boxes = np.concatenate([start, start + random.integers(0, 8, (truths, 2))], axis=1)
        labels = random.integers(-1, CLASSES, truths)
        near = boxes[random.integers(0, truths, found)] if truths else np.zeros((found, 4), np.int64)
        corners = near + random.integers(-1, 2, (found, 4))
        corners[:, 2:] = np.maximum(corners[:, 2:], corners[:, :2])
        scores = random.integers(1, 9, found) / 8
        classes = random.integers(0, CLASSES, found)
        output = {"boxes": corners.astype(np.float32), "scores": scores.astype(np.float32), "labels": classes}
        made.append((output, {"boxes": boxes, "labels": labels}))
    return made


def of_coco(made: Scenes) -> tuple[float, float]:
    """(map, map50) of pycocotools."""
    truth = COCO()
    truths, found = [], []
    for at, (output, feed) in enumerate(made):
        for box, label in zip(feed["boxes"].tolist(), feed["labels"].tolist(), strict=True):
            size = [box[2] - box[0], box[3] - box[1]]
            if label >= 0 and min(size) > 0:
                one = {"id": len(truths) + 1, "image_id": at, "category_id": label, "bbox": [*box[:2], *size]}
                truths.append({**one, "area": size[0] * size[1], "iscrowd": 0})
        for box, score, label in zip(*(output[name].tolist() for name in ("boxes", "scores", "labels")), strict=True):
            size = [box[2] - box[0], box[3] - box[1]]
            found.append({"image_id": at, "category_id": label, "bbox": [*box[:2], *size], "score": score})
    images, categories = [{"id": at} for at in range(len(made))], [{"id": label} for label in range(CLASSES)]
    with contextlib.redirect_stdout(io.StringIO()):
        truth.dataset = {"images": images, "categories": categories, "annotations": truths}
        truth.createIndex()
        judge = COCOeval(truth, truth.loadRes(found), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return float(judge.stats[0]), float(judge.stats[1])


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32 - 1), images=st.integers(1, 4), truths=st.integers(0, 6), found=st.integers(1, 30))
def test_it_is_what_pycocotools_computes(seed: int, images: int, truths: int, found: int) -> None:
    made = scenes(np.random.default_rng(seed), images, truths, found)
    outputs, feeds = [output for output, _ in made], [feed for _, feed in made]
    wanted = of_coco(made)
    for name, figure in zip(("map", "map50"), wanted, strict=True):
        if figure < 0:  # theirs where there is no truth
            with pytest.raises(UsageError, match="no sample holds a box in 'boxes'"):
                open_metric(name).measure(outputs, feeds, outputs)
        else:  # sums of the same numbers in another order: a few roundings of 2^-53
            assert open_metric(name).measure(outputs, feeds, outputs) == pytest.approx(figure, abs=1e-12)


def test_more_boxes_than_count() -> None:
    """101 of one class: the surest 100 count, and the only right one is the last."""
    corners = np.tile(np.array([0, 0, 2, 2], np.float32), (101, 1))
    corners[100] += 10
    output = {"boxes": corners, "scores": np.linspace(1, 0.1, 101, dtype=np.float32), "labels": np.zeros(101, np.int64)}
    feed = {"boxes": np.array([[10, 10, 12, 12]]), "labels": np.array([0])}
    assert open_metric("map").measure([output], [feed], [output]) == of_coco([(output, feed)])[0] == 0


CORNERS = np.array(
    [[0, 0, 4, 4], [0, 0, 4, 4.5], [8, 8, 12, 12], [0, 0, 4, 4]], np.float32
)  # the second is the first's
CENTRED = np.concatenate([(CORNERS[:, :2] + CORNERS[:, 2:]) / 2, CORNERS[:, 2:] - CORNERS[:, :2]], axis=1)
SCORES = np.array([[0.5, 0], [0.25, 0], [0, 0.75], [0, 0.125]], np.float32)
FORMS: dict[str, dict[str, Any]] = {
    "yolov8": {"y": np.concatenate([CENTRED, SCORES], axis=1).T[None]},
    "without-images": {"y": np.concatenate([CENTRED, SCORES], axis=1).T},
    "boxes-and-scores": {"scores": SCORES[None], "boxes": CORNERS[None]},
    "four-classes": {"scores": np.pad(SCORES, ((0, 0), (0, 2)))[None], "pred_boxes": CORNERS[None]},
}
FORMS["yolov8"]["y"] = np.concatenate(
    [FORMS["yolov8"]["y"], np.zeros((1, 6, 4), np.float32)], axis=2
)  # more boxes than rows
FORMS["without-images"]["y"] = FORMS["yolov8"]["y"][0]


@pytest.mark.parametrize("form", FORMS)
def test_of_boxes_with_a_score_a_class_those_that_overlap_a_surer_one_are_left_out(form: str) -> None:
    ((found,), are_centred) = detections(FORMS[form])
    assert are_centred == (form in ("yolov8", "without-images"))
    assert found.scores.tolist() == [0.5, 0.75, 0.125]
    assert found.classes.tolist() == [0, 1, 1]
    assert found.corners.tolist() == [[0, 0, 4, 4], [8, 8, 12, 12], [0, 0, 4, 4]]


def test_how_likely_there_is_anything_counts() -> None:
    rows = np.concatenate([CENTRED, np.full((4, 1), 0.5, np.float32), SCORES], axis=1)
    ((found,), _) = detections({"y": np.concatenate([rows, np.zeros((9, 7), np.float32)])[None]})
    assert found.scores.tolist() == [0.25, 0.375, 0.0625]


@pytest.mark.parametrize("words", [("boxes", "scores", "labels"), ("b", "s", "class_ids"), ("detections",)])
@pytest.mark.parametrize("images", [(), (1,)], ids=["one-image", "a-batch"])
def test_what_is_suppressed_in_the_model_is_taken_as_it_is(words: tuple[str, ...], images: tuple[int, ...]) -> None:
    """Classes may be whole numbers of a float type."""
    scores, classes = SCORES.max(axis=1), SCORES.argmax(axis=1).astype(np.float32 if "b" in words else np.int64)
    parts = [CORNERS, scores, classes]
    if len(words) == 1:
        many = np.concatenate([CORNERS, scores[:, None], classes[:, None]], axis=1)
        parts = [np.tile(many, (2, 1))]
    ((found, *_), are_centred) = detections(
        {n: part.reshape(*images, *part.shape) for n, part in zip(words, parts, strict=True)}
    )
    assert not are_centred
    assert found.scores.tolist()[:4] == scores.tolist()
    assert found.classes.tolist()[:4] == [0, 0, 1, 1]


def test_no_more_boxes_of_an_image_are_kept_than_say_something() -> None:
    corners = np.arange(2 * KEPT, dtype=np.float32)[:, None] * 3 + np.array([0, 0, 1, 1], np.float32)
    ((found,), _) = detections({"boxes": corners[None], "scores": np.full((1, 2 * KEPT, 1), 0.5, np.float32)})
    assert len(found.scores) == KEPT


def test_a_background_class_takes_no_room_of_the_others() -> None:
    """One of 3000 boxes is right, and all are background as good as surely, as those of an SSD are."""
    random = np.random.default_rng(0)
    corners = random.integers(0, 300, (3000, 4)).astype(np.float32)
    corners[:, 2:] = corners[:, :2] + 9
    scores = np.stack([np.full(3000, 0.99), np.zeros(3000)], axis=1)
    scores[7] = [0.1, 0.9]
    feed = {"boxes": corners[None, 7:8], "labels": np.array([[1]])}
    output = {"boxes": corners[None], "scores": scores[None].astype(np.float32)}
    assert open_metric("map").measure([output], [feed], [output]) == pytest.approx(1)


@pytest.mark.parametrize("count", range(8))
def test_a_row_of_six_is_a_box_however_many_there_are(count: int) -> None:
    """Where the output is quantized, classes are on its grid."""
    rows = np.zeros((1, count, 6), np.float32)
    rows[..., 2:4], rows[..., 4], rows[..., 5] = 4, 0.5, 2.125
    ((found,), are_centred) = detections({"y": rows})
    assert not are_centred
    assert found.classes.tolist() == [2] * count


def test_what_says_how_many_there_are_is_let_be() -> None:
    output = {"n": np.array([1]), "boxes": CORNERS[None, :1], "scores": SCORES[None, :1, 0], "labels": np.array([[3]])}
    ((found,), _) = detections(output)
    assert (found.scores.tolist(), found.classes.tolist()) == ([0.5], [3])
    ((found,), _) = detections({"boxes": CORNERS[None], "class_scores": SCORES[None, :, :1]})
    assert found.scores.tolist() == [0.5]


def test_nothing_found_is_nothing_right() -> None:
    output = {"boxes": np.zeros((0, 4), np.float32), "scores": np.zeros(0, np.float32), "labels": np.zeros(0, np.int64)}
    feed = {"boxes": np.array([[[0, 0, 1, 1]]]), "labels": np.array([[0]])}
    assert open_metric("map50").measure([output], [feed], [output]) == 0
    assert overlaps(np.zeros((1, 4)), np.zeros((1, 4))).tolist() == [[0]]


@pytest.mark.parametrize(
    ("output", "feed", "error"),
    [
        ({"y": np.zeros((1, 10))}, {}, r"the outputs are not known as boxes and scores: y \[1, 10\]; give a function of your own"),
        ({"y": np.zeros((1, 4, 9))}, {}, r"not known as boxes and scores: y \[1, 4, 9\]"),
        ({"a": np.zeros((1, 9, 4)), "b": np.zeros((1, 9, 4))}, {}, "not known as boxes and scores"),
        ({"boxes": np.zeros((9, 4)), "scores": np.full((9, 2), 3.0)}, {}, r"the scores are 3 to 3, and not 0 to 1 \(logits"),
        (FORMS["yolov8"], {}, "the data holds no 'boxes'; give data with 'boxes'"),
        (FORMS["yolov8"], {"boxes": np.zeros((1, 2, 4)), "labels": np.full((1, 2), 0.5)}, "'labels' are no whole numbers"),
        (FORMS["yolov8"], {"boxes": np.zeros((1, 2, 4)), "labels": np.zeros((1, 3))}, r"the truth does not fit: boxes \[1, 2, 4\]"),
    ],
)  # fmt: skip
def test_what_is_no_detector_is_told(output: dict[str, Any], feed: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        open_metric("map").measure([output], [feed], [output])


def test_a_goal_of_it_is_met() -> None:
    """The sample detector gives boxes and scores in one tensor: in one encoding the scores are lost, in two they are not."""
    said: dict[str, Any] = {"target": "vitis_xint8", "data": SAMPLES / "detector_calib.npz", "samples": 8}
    judged = {"eval_data": SAMPLES / "detector_test.npz", "eval_samples": 16, "goal": "map50 >= 0.9 * float"}
    found = quantize_to_goal(SAMPLES / "detector.onnx", None, **said, **judged).sought
    assert found is not None
    assert found.is_met
    assert found.floating == pytest.approx(0.99, abs=0.02)  # 0.985 of all 64 by the area below all points
