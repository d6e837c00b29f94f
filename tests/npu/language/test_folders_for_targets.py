"""A split decoder that is quantized for a target runs on it as it came out: nothing refused, no angles in 16-bit floats."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import qdqtool
from tests.cases.random_decoders import random_decoder

#: Target → the names that its runtime reads.
NAMINGS = {"apple_ane": "ane", "cloud_ai100": "cloud-ai", "tpu_like": "exported"}


@pytest.fixture(scope="module", params=sorted(NAMINGS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """(target, a decoder of one layer split with the names of its runtime and quantized for it)."""
    target: str = request.param
    made = tmp_path_factory.mktemp(target)
    decoder = random_decoder(made / "decoder.onnx", "grouped", layers=1, heads=2)  # heads of 32 fill the ANE's tiles
    qdqtool.split(decoder, made / "float", prefill=[8], context=[32], naming=NAMINGS[target])
    qdqtool.quantize(made / "float", made / "int8", preset="8a8w", target=target, data="random:1")
    return target, made / "int8"


@cache
def _reports(folder: tuple[str, Path]) -> list[dict[str, Any]]:
    target, path = folder
    graphs = sorted(path.glob("*.onnx"))
    assert [graph.name.split("_")[0] for graph in graphs] == ["decode", "prefill"]
    return [qdqtool.analyze(graph, target=target).to_json() for graph in graphs]


@pytest.mark.product(extra=1)
def test_every_operator_is_on_the_npu(folder: tuple[str, Path]) -> None:
    for report in _reports(folder):
        assert report["npu_macs_share"] == 1.0
        assert len(report["partitions"]) == 1
        computing = [n for n in report["nodes"] if n["op"] not in ("QuantizeLinear", "DequantizeLinear")]
        assert not [(n["name"], n["reason"]) for n in computing if n["verdict"] not in ("npu-int", "npu-float")]


@pytest.mark.product(extra=1)
def test_what_passes_mend_is_mended(folder: tuple[str, Path]) -> None:
    """Angles are looked up; on the ANE the cache is two states, which pairs do not hide."""
    for report in _reports(folder):
        found = {finding["rule"] for finding in report["findings"]}
        assert not found & {"half-angles", "cache-per-layer", "cache-sizes"}, found


@pytest.mark.product(extra=1)
def test_a_reason_tells_what_is_computed_in_float(folder: tuple[str, Path]) -> None:
    """The array of tpu_like multiplies symmetric int8; the cloud card has norms in float16, as the preset leaves them float."""
    target, _ = folder
    for report in _reports(folder):
        rules = {node["rule"] for node in report["nodes"] if node["verdict"] == "npu-float" and node["reason"]}
        wanted = {
            "apple_ane": set(),
            "cloud_ai100": {"add-float", "mul-float", "reciprocal-float", "reduce-mean-float", "sqrt-float"},
            "tpu_like": {"mat-mul-float", "gemm-float"},
        }
        assert rules == wanted[target]


@pytest.mark.product(extra=1)
def test_the_timeline_says_what_it_is_made_of(folder: tuple[str, Path]) -> None:
    target, path = folder
    done = qdqtool.generate(path, prompt_ids=[3, 4, 5], max_new=1, device="npusim", target=target, warm_up=False)
    figures = {figure["key"]: figure for figure in done.to_json()["timeline"]["assumptions"]}
    assert {"memory.tile", "cost.macs_per_cycle.float", "cost.cpu.macs_per_us", "cost.cpu.elements_per_us"} <= set(
        figures
    )
    assert all(
        figure["source"] and figure["confidence"] in ("assumed", "documented", "measured")
        for figure in figures.values()
    )
