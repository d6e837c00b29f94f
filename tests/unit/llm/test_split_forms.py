"""Every form of a split against the dynamic model: exporters, layouts, operators, masks, batch sizes, buckets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.io.models.load import load
from qdqtool.llm import Session
from qdqtool.llm.folder.folders import SplitFolder
from qdqtool.llm.folder.manifest import read_manifest
from qdqtool.llm.run.dynamic import DynamicDecoder
from qdqtool.llm.run.verifying import Verification, boundary_lengths, verify_split
from qdqtool.verbs.split import split
from tests.cases.tiny_decoder import dynamic

DATA = Path(__file__).parents[2] / "data" / "decoders"
#: The same float32 products, summed in another order and over masked keys too: seen below 1e-6.
CLOSE = 1e-5


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dynamic(tmp_path_factory.mktemp("tiny") / "model.onnx")


def exported(name: str) -> Path:
    return DATA / name / "model.onnx"


def verified(model: Path, folder: Path, **options: Any) -> tuple[SplitFolder, Verification]:
    options = {"prefill": (8,), "context": (40,)} | options
    done = split(model, folder, **options)
    found = verify_split(folder, model)
    assert found.worst < CLOSE, [case for case in found.cases if case.difference >= CLOSE]
    return done, found


def operators(folder: Path) -> set[str]:
    """Of all graphs there."""
    graphs = [onnx.load(path, load_external_data=False).graph for path in folder.glob("*.onnx")]
    return {node.op_type for graph in graphs for node in graph.node}


NEWEST = pytest.mark.newest  # TensorScatter is of opset 24, which onnxruntime reads from 1.24 on


@pytest.mark.product(extra=2)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gemma2_optimum", {}),
        ("gemma2_optimum", {"layout": "slide", "mask": "graph"}),
        ("gpt2_torchscript", {"scatter": "scatter-nd", "mask": "graph"}),
        ("gpt2_torchscript", {"layout": "slide", "all_logits": True}),
        pytest.param("llama_dynamo23", {"scatter": "tensor-scatter"}, marks=NEWEST),
        ("llama_dynamo23", {"layout": "slide"}),
        ("llama_dynamo_anon", {"batch": (1, 2), "mask": "graph"}),
        ("llama_dynamo_anon", {"layout": "slide", "batch": (2,)}),
        ("llama_genai_int4", {}),
        ("llama_genai_int4", {"decompose": True, "all_logits": True}),
    ],
    ids=str,
)
def test_exports(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Also MatMulNBits, whose int8 arithmetic depends on how many rows run at once: compared in float32."""
    done, found = verified(exported(name), tmp_path / "split", **options)
    largest = max(batch for batch in options.get("batch", (1,)))
    assert max(case.batch_size for case in found.cases) == largest
    assert {case.prompt for case in found.cases} == set(boundary_lengths(8))
    left = operators(tmp_path / "split") & {"Shape", "Range", "ConstantOfShape", "NonZero", "IsNaN"}
    assert not left
    assert ("GroupQueryAttention" in operators(tmp_path / "split")) == (name == "llama_genai_int4" and not options)
    assert [g.specialization.batch_size for g in done.graphs] == sorted(options.get("batch", (1,)) * 2)


@pytest.mark.product(cover=("mask",))
@pytest.mark.parametrize("mask", ["input", "graph"])
@pytest.mark.parametrize(
    "form", ["scatter-elements", "scatter-nd", pytest.param("tensor-scatter", marks=NEWEST), "slide"]
)
def test_layouts_masks_and_rows(form: str, mask: str, tiny: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"layout": "slide"} if form == "slide" else {"scatter": form}
    verified(tiny, tmp_path / "split", prefill=(4,), context=(24,), batch=(1, 2), mask=mask, **options)
    written = operators(tmp_path / "split") & {"ScatterElements", "ScatterND", "TensorScatter", "Concat"}
    names = {"scatter-elements": {"ScatterElements"}, "scatter-nd": {"ScatterND"}, "tensor-scatter": {"TensorScatter"}}
    assert names.get(form, set()) <= written
    model = read_manifest(tmp_path / "split").models[0]
    assert bool(model.decoder.masks) == (mask == "input")


@pytest.mark.product(days=3)
def test_buckets_of_length_and_context(tiny: Path, tmp_path: Path) -> None:
    """Every graph is compared: those of the shorter chunks run their prompts alone."""
    done, found = verified(tiny, tmp_path / "split", prefill=(4, 8), context=(16, 32))
    names = [graph.specialization.name for graph in done.graphs]
    assert names == [f"{kind}_c{c}" for c in (16, 32) for kind in ("prefill_b1_s8", "prefill_b1_s4", "decode_b1_s1")]
    assert {(case.context, case.chunk) for case in found.cases} == {(16, 8), (16, 4), (32, 8), (32, 4)}
    short = [case.prompt for case in found.cases if (case.context, case.chunk) == (32, 4)]
    assert short == [1, 3, 4, 5, 8, 17]
    assert {case.decoded for case in found.cases if case.context == 16 and case.prompt == 16} == {0}


@pytest.mark.product(days=3)
def test_chunk_as_long_as_the_context(tiny: Path, tmp_path: Path) -> None:
    for layout in ("in-place", "slide"):
        verified(tiny, tmp_path / layout, prefill=(16,), context=(16,), layout=layout)


def test_decode_alone(tiny: Path, tmp_path: Path) -> None:
    done, found = verified(tiny, tmp_path / "split", prefill=(), context=(16,))
    assert [graph.specialization.name for graph in done.graphs] == ["decode_b1_s1_c16"]
    assert {case.chunk for case in found.cases} == {1}


def test_all_logits(tiny: Path, tmp_path: Path) -> None:
    split(tiny, tmp_path / "split", prefill=(4,), context=(16,), all_logits=True)
    ids = [3, 1, 4, 1, 5, 9]
    session = Session(tmp_path / "split")
    assert session.gives_all_logits
    np.testing.assert_allclose(session.logits(ids), DynamicDecoder(tiny).logits(ids), atol=1e-5)


def test_a_model_in_memory_stays_as_it_is(tiny: Path, tmp_path: Path) -> None:
    model = load(tiny)
    before = [node.name for node in model.graph]
    split(model, tmp_path / "split", prefill=(4,), context=(16,))
    assert [node.name for node in model.graph] == before
    assert verify_split(tmp_path / "split", model).passed
    assert read_manifest(tmp_path / "split").source_sha256 == ""


@pytest.mark.product(days=4)
@pytest.mark.parametrize("layout", ["in-place", "slide"])
def test_pipelines_replay(layout: str, tiny: Path, tmp_path: Path) -> None:
    """What is printed is what was done: passes alone make the same graph."""
    for number, source in enumerate((tiny, exported("llama_genai_int4"))):
        folder = tmp_path / str(number)
        done = split(source, folder, prefill=(4,), context=(16,), layout=layout, naming="exported")  # type: ignore[arg-type]
        texts = done.plan.pipelines
        assert ("bind-group-query-lengths" in texts["prefill_b1_s4_c16"]) == (number == 1 and layout == "in-place")
        prepared = run_pipeline(load(source), texts.pop("prepare")).model
        for name, text in texts.items():
            replayed = run_pipeline(prepared, text, copy=True).model
            written = load(folder / f"{name}.onnx")
            nodes = [
                [(n.op_type, n.name, [v and v.name for v in n.inputs]) for n in m.graph] for m in (replayed, written)
            ]
            assert nodes[0] == nodes[1]
            assert [v.name for v in replayed.graph.inputs] == [v.name for v in written.graph.inputs]
