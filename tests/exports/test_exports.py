"""Exports of real architectures go to the NPU whole, and what runs there is the reference to the last bit."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import qdqtool
from qdqtool.targets.loading import load_target
from tests.exports.exports import names, write
from tests.exports.placing import TARGETS, placed

ROOT = Path(__file__).parents[2]
#: Where nothing but the target is said, at least so much of the multiply-accumulates is on the NPU.
WHOLE = {"vitis_xint8": 0.95, "qnn_htp": 0.95}
#: dB that values may lose by what a target asks for beyond its preset.
MOST_LOST = 1.0


@pytest.mark.product(extra=1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", names())
def test_an_export_goes_to_the_npu(name: str, target: str, tmp_path: Path) -> None:
    found = placed(name, target, tmp_path)
    assert found.share >= WHOLE.get(target, 0.0)
    assert table_of_the_docs()[name, target] == found.cell
    if target not in WHOLE:
        return
    ran = qdqtool.simulate(found.output, str(found.data), target=target).to_json()
    assert ran["compared_with"] == "the numpy reference"
    for output, figures in ran["outputs"].items():
        assert (figures["max_lsb"], figures["exact"]) == (0, 1.0), output


@pytest.mark.product(cover=("target",))
@pytest.mark.parametrize("target", WHOLE)
@pytest.mark.parametrize("name", names())
def test_what_a_target_asks_for_costs_less_than_a_decibel(name: str, target: str, tmp_path: Path) -> None:
    """Beside the same preset for no target, on all samples, of the median value: which way the gate of a channel rounds moves a
    single output by more than a decibel either way, what is cut off moves all behind it, and values before a Relu that zero points
    replace are others."""
    model, data = write(name, tmp_path)
    fitted, plain = (
        figures(model, qdqtool.quantize(model, data=str(data), warn=lambda text: None, **way).model, data)
        for way in ({"target": target}, {"preset": load_target(target).legalization.preset})
    )
    lost = [sqnr - fitted[value] for value, sqnr in plain.items() if value in fitted]
    assert len(lost) > 20
    assert np.median(lost) < MOST_LOST


def figures(model: Path, quantized: ir.Model, data: Path) -> dict[str, float]:
    """Value → SQNR in dB, of those that differ at all."""
    found = qdqtool.compare(model, quantized, data=str(data)).to_json()
    return {f["name"]: f["sqnr_db"] for f in found["tensors"] if f["sqnr_db"] is not None}


def test_the_table_holds_every_export_and_most_of_them_whole() -> None:
    cells = table_of_the_docs()
    assert sorted(cells) == sorted((name, target) for name in names() for target in TARGETS)
    for target in WHOLE:
        assert sum(cells[name, target] == "all" for name in names()) >= 24, target


def table_of_the_docs() -> dict[tuple[str, str], str]:
    """(export, target) → its cell on the page."""
    cells: dict[tuple[str, str], str] = runpy.run_path(str(ROOT / "docs" / "make_export_table.py"))["stored"]()
    return cells
