"""The detector whose scores one 8-bit grid kills: what `check --data` suggests brings them back, and costs no 8-bit MAC."""

from __future__ import annotations

import re
import shlex
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from qdq_passes.graph.operators.macs import macs_of
from qdq_passes.npu.units.units import units_of

from qdqtool import api
from qdqtool.io.models.load import load
from qdqtool.runtime.session import open_session
from sample_models.scenes import mean_average_precision
from tests.cases.cli_helpers import SAMPLES

MODEL, CALIBRATION = SAMPLES / "detector.onnx", SAMPLES / "detector_calib.npz"


def points(model: ir.Model, scenes: dict[str, npt.NDArray[Any]]) -> float:
    """mAP of ``model`` on ``scenes``, in points."""
    found = open_session(model).run({"input": scenes["input"]})["predictions"]
    return 100 * float(mean_average_precision(found, scenes["boxes"], scenes["labels"]))


def share_in_int8(model: ir.Model) -> float:
    """Share of the multiply-accumulates in layers that read and write 8-bit integers alone."""
    macs = {unit.core: macs_of(unit.core) or 0 for unit in units_of(model)}
    in_int8 = sum(macs[unit.core] for unit in units_of(model) if unit.is_quantized)
    return in_int8 / sum(macs.values())


@pytest.fixture(scope="module")
def scenes() -> dict[str, npt.NDArray[Any]]:
    with np.load(SAMPLES / "detector_test.npz") as data:
        return dict(data)


def suggested() -> list[str]:
    """The selectors that the hint of the lint names."""
    (found,) = [f for f in api.lint(MODEL, CALIBRATION) if f.rule == "concat-range-mismatch"]
    assert found.where == "/head/concat"
    options = re.search(r"quantize with (.*?); or cut it off: extract --outputs (\S+)", found.hint)
    assert options is not None
    assert options[2] == "/box2_output_0,/cls2_output_0"
    words = shlex.split(options[1])
    assert set(words[::2]) == {"--exclude"}
    return words[1::2]


def test_the_suggested_cut_repairs_the_detector(scenes: dict[str, npt.NDArray[Any]]) -> None:
    floats = points(load(MODEL), scenes)
    killed = api.quantize(MODEL, data=CALIBRATION).model
    repaired = api.quantize(MODEL, data=CALIBRATION, exclude=suggested()).model
    assert points(killed, scenes) < floats - 20, "else there is nothing to repair"
    assert points(repaired, scenes) > floats - 1
    assert share_in_int8(repaired) >= 0.95


def test_the_head_cut_off_leaves_what_extract_writes() -> None:
    """The values named for `extract` are outputs of layers of the float model."""
    written = {v.name: node.op_type for node in load(MODEL).graph for v in node.outputs}
    assert {written[name] for name in ("/box2_output_0", "/cls2_output_0")} == {"Conv"}
