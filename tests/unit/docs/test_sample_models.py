"""The committed sample models are what their README says."""

from __future__ import annotations

import importlib.util
from importlib.resources import as_file, files
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from qdq_passes.graph.uses import all_nodes
from qdq_passes.verification.rules import verify

import qdqtool
from qdqtool.io.models.versions import IR_VERSION, OPSET
from qdqtool.runtime.session import load_check, open_session

FOLDER = Path(__file__).parents[3] / "sample_models"
DEMO = FOLDER.parent / "qdqtool" / "_demo"
TRAINED = FOLDER / "trained"
MODELS = [DEMO / "digits.onnx", *sorted(FOLDER.glob("*.onnx")), *sorted(TRAINED.glob("*.onnx"))]
#: Laid out as another tool does it, with that tool's faults.
FOREIGN = {"quark_layout"}


def scenes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scenes", FOLDER / "scenes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def predictions(model: Path, images: np.ndarray) -> np.ndarray:
    session = open_session(model)
    return np.asarray(session.run({session.input_names[0]: images})[session.output_names[0]])


def test_all_are_there() -> None:
    names = {path.stem for path in MODELS}
    assert names >= {
        "digits", "detector", "mobilenet_block", "vit_block", "tiny_llama", "if_branch", "local_function", "int4_weights",
        "external_data", "mobilenet", "keywords", "vit",
    }  # fmt: skip
    assert (
        sum(path.stat().st_size for folder in (FOLDER, TRAINED, DEMO) for path in folder.iterdir() if path.is_file())
        < 15e6
    )


@pytest.mark.parametrize("path", [path for path in MODELS if path.stem not in FOREIGN], ids=lambda path: path.stem)
def test_model_is_clean(path: Path) -> None:
    onnx.checker.check_model(str(path), full_check=True)
    model = qdqtool.load(path)
    assert (model.ir_version, model.opset_imports[""]) == (IR_VERSION, OPSET)
    assert verify(model, minimum="warning") == []
    assert load_check(path) is None
    assert all(node.name for node in all_nodes(model))
    assert b"/site-packages" not in path.read_bytes()


def test_digits_accuracy_on_images_not_trained_on() -> None:
    with as_file(files("qdqtool") / "_demo" / "test.npz") as path, np.load(path) as data:
        images, labels = data["input"], data["labels"]
    found = predictions(DEMO / "digits.onnx", images).argmax(axis=1)
    assert len(labels) >= 500
    assert (found == labels).mean() >= 0.985
    with np.load(DEMO / "calib.npz") as calibration:
        trained = {image.tobytes() for image in calibration["input"]}
    assert not trained & {image.tobytes() for image in images}


@pytest.mark.parametrize(
    ("name", "test", "accuracy"),
    [("mobilenet", TRAINED / "mobilenet_test.npz", 0.9765), ("keywords", TRAINED / "keywords_test.npz", 0.9838),
     ("vit", DEMO / "test.npz", 0.9782)],
    ids=["mobilenet", "keywords", "vit"],
)  # fmt: skip
def test_trained_nets_are_as_accurate_as_the_readme_says(name: str, test: Path, accuracy: float) -> None:
    """To four digits: one sample of 597 is 0.0017."""
    with np.load(test) as data:
        found = predictions(TRAINED / f"{name}.onnx", data["input"]).argmax(axis=1)
        assert round(float((found == data["labels"]).mean()), 4) == accuracy
    if name != "vit":
        with np.load(TRAINED / f"{name}_calib.npz") as calibration, np.load(test) as data:
            assert not {one.tobytes() for one in calibration["input"]} & {one.tobytes() for one in data["input"]}


def test_int8_kills_the_detectors_scores_while_sqnr_stays_splendid(tmp_path: Path) -> None:
    """Boxes in pixels and scores in 0..1 share one per-tensor scale in the concatenated output."""
    module, quantized = scenes(), tmp_path / "detector_int8.onnx"
    done = qdqtool.quantize(FOLDER / "detector.onnx", quantized, preset="a8w8", data=str(FOLDER / "detector_calib.npz"))
    with np.load(FOLDER / "detector_test.npz") as data:
        images, boxes, labels = data["input"], data["boxes"], data["labels"]
    before, after = (
        module.mean_average_precision(predictions(path, images), boxes, labels)
        for path in (FOLDER / "detector.onnx", quantized)
    )
    assert before >= 0.8
    assert after < before / 2
    assert done.comparison is not None
    assert done.comparison.min_sqnr is not None
    assert done.comparison.min_sqnr > 30
