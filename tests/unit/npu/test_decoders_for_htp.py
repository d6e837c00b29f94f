"""Quantized decoders for the HTP: every operator of every graph on integers, nothing that goes silently wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from qdq_passes.npu.units.units import units_of
from qdq_passes.pipeline.pipeline import run_pipeline

import qdqtool
from qdqtool.io.models.load import load
from qdqtool.npu.analyzing import silent_findings
from qdqtool.runtime.session import open_session
from qdqtool.targets.loading import load_target
from tests.cases.random_decoders import random_decoder
from tests.golden.golden import Golden

ROOT = Path(__file__).parents[3]
HTP = load_target("qnn_htp")


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("split")
    decoder = random_decoder(folder / "decoder.onnx", "grouped", layers=1)
    qdqtool.split(decoder, folder / "float", prefill=(8,), context=(32,))
    return folder / "float"


@pytest.mark.product(extra=1)
@pytest.mark.parametrize(
    ("preset", "kv_cache"), [("mobilequant", "float"), ("mobilequant", "uint8"), ("qnn-a16w8", "float")]
)
def test_every_operator_is_computed_on_integers(preset: str, kv_cache: str, split: Path, tmp_path: Path) -> None:
    done = qdqtool.quantize(
        split, tmp_path / "out", preset=preset, target="qnn_htp", kv_cache=kv_cache, data="random:2"
    )
    assert not done.target_refusals
    files = sorted((tmp_path / "out").glob("*.onnx"))
    assert len(files) == 2
    for file in files:
        graph = load(file)
        run_pipeline(graph, "infer-shapes")
        verdicts = {unit.core.name: HTP.judge(unit) for unit in units_of(graph) if unit.is_compute}
        assert {name: v.reason for name, v in verdicts.items() if v.kind != "npu-int"} == {}
        assert [str(f) for f in silent_findings(graph, HTP) if f.level in ("error", "fatal")] == []
        assert not any(node.op_type in ("Cos", "Sin") for node in graph.graph)


@pytest.mark.parametrize("case", ["acts_moves", "acts_constant"])
def test_unified_widths_change_no_bit_where_nothing_is_computed_anew(case: str) -> None:
    """What moves elements commutes with rounding them, and wider integers stand for the same numbers."""
    made = Golden(ROOT / f"tests/golden/unify-widths/{case}.onnxtxt").model()
    unified = run_pipeline(made, "unify-widths", copy=True).model
    assert len(unified.graph) > len(made.graph) or case == "acts_constant"
    rng, first = np.random.default_rng(0), open_session(made)
    for _ in range(5):
        feed = {name: rng.normal(0, 40, first.input_shapes[name]).astype(np.float32) for name in first.input_names}
        wanted, found = first.run(feed), open_session(unified).run(feed)
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_wider_input_gives_the_same_product() -> None:
    """With scales of powers of two every product is exact in float32."""
    made = Golden(ROOT / "tests/golden/unify-widths/acts.onnxtxt").model()
    first = run_pipeline(made, "extract-subgraph{outputs=[m]}", copy=True).model
    second = run_pipeline(made, "unify-widths,extract-subgraph{outputs=[m]}", copy=True).model
    assert [n.op_type for n in second.graph].count("QuantizeLinear") == 2
    feed = {"x": np.random.default_rng(1).normal(0, 40, (2, 4)).astype(np.float32)}
    np.testing.assert_array_equal(open_session(second).run(feed)["m"], open_session(first).run(feed)["m"])
