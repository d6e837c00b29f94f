"""The detector's metric: `tests/bench/rivals/metrics.py:map50`."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np


def _scenes() -> ModuleType:
    path = Path(__file__).parents[3] / "sample_models" / "scenes.py"
    spec = importlib.util.spec_from_file_location("scenes", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_SCENES = _scenes()


@functools.lru_cache(maxsize=20_000)
def _detections(prediction: bytes, label: int) -> list[tuple[float, np.ndarray]]:
    """Of one class in one scene: found once, however often the scene is drawn."""
    return list(_FOUND(np.frombuffer(prediction, np.float32).reshape(_ROWS, -1), label))


_FOUND, _ROWS = _SCENES.detections, 4 + _SCENES.CLASSES
_SCENES.detections = lambda prediction, label: _detections(prediction.tobytes(), label)


def map50(outputs: list[dict[str, np.ndarray]], feeds: list[dict[str, np.ndarray]]) -> float:
    """mAP at an IoU of 0.5; outputs `predictions` [1, 14, 256], feeds `boxes` [1, 4, 4] and `labels` [1, 4]."""
    predictions = np.concatenate([one["predictions"] for one in outputs])
    boxes, labels = (np.concatenate([np.asarray(feed[name]) for feed in feeds]) for name in ("boxes", "labels"))
    return float(_SCENES.mean_average_precision(predictions, boxes, labels))
