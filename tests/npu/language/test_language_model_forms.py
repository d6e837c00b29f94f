"""Decoders of every form that `split` writes, on every target: the schedule changes no bit, and what the CPU runs has a reason."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from qdq_passes.npu.units.verdict import CPU

import qdqtool
from qdqtool.llm import Session
from qdqtool.targets import TARGETS
from qdqtool.targets.loading import load_target
from tests.cases.tiny_decoder import VOCABULARY, dynamic, words
from tests.dial import sized, some

LOGITS = npt.NDArray[np.float32]
IDS = np.random.default_rng(2).integers(2, VOCABULARY, (2, 24)).tolist()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A folder, and a chip for it.

    Args:
        split: options of `split`.
        preset: what it is quantized to.
        cache: type of its cache.
        target: the chip.
        rows: rows of a run.
    """

    split: tuple[tuple[str, Any], ...] = ()
    preset: str = "8a8w"
    cache: str = "float"
    target: str = "generic_int8"
    rows: int = 1


CASES = {
    "names-of-ane": Case(split=(("naming", "ane"),)),
    "names-of-cloud-ai": Case(split=(("naming", "cloud-ai"),), target="qnn_htp"),
    "names-of-genai": Case(split=(("naming", "genai"), ("prefill", (8,)))),  # an input that nothing reads
    "uint8-cache": Case(cache="uint8"),
    "int8-cache": Case(cache="int8", target="qnn_htp"),
    "int8-cache-slides": Case(split=(("layout", "slide"),), cache="int8"),
    "uint8-cache-slides": Case(split=(("layout", "slide"), ("parts", 2)), cache="uint8", target="qnn_htp"),
    "tensor-scatter": Case(split=(("scatter", "tensor-scatter"),)),
    "mask-on-the-graph": Case(split=(("mask", "graph"),), cache="uint8"),
    "two-rows": Case(split=(("batch", (1, 2)),), rows=2),
    "two-rows-slide": Case(split=(("batch", (2,)), ("layout", "slide")), rows=2, cache="uint8"),
    "parts-in-float": Case(split=(("parts", 2),), preset="mobilequant", target="qnn_htp"),
    "wide": Case(preset="qnn-a16w8", target="qnn_htp"),
    "wide-and-slides": Case(split=(("layout", "slide"),), preset="qnn-a16w8", target="qnn_htp_v68"),
    **{f"on-{name}": Case(target=name, cache="uint8") for name in TARGETS.names()},
    **{f"mixed-on-{name}": Case(target=name, preset="mobilequant") for name in TARGETS.names()},
}
#: Older onnxruntimes know no opset 24.
NAMES = [pytest.param(name, id=name, marks=[pytest.mark.newest] * (name == "tensor-scatter")) for name in CASES]
#: Targets that take models whole, as the others cannot be told apart without reading all of their files.
WHOLE = ("apple_ane", "cloud_ai100")


@cache
def home() -> Path:
    """A dynamic decoder with its tokenizer, and a text."""
    path = Path(mkdtemp())
    dynamic(path / "model.onnx")
    words(path)
    text = " ".join(f"w{n}" for n in np.random.default_rng(5).integers(2, VOCABULARY, 300))
    (path / "text.txt").write_text(text, encoding="utf-8")
    return path


@cache
def quantized(options: tuple[tuple[str, Any], ...], preset: str, kv_cache: Any) -> Path:
    path = Path(mkdtemp())
    sizes = {"prefill": sized((4, 8), (8,)), "context": (40,)}
    qdqtool.split(home() / "model.onnx", path / "float", **{**sizes, **dict(options)})
    qdqtool.quantize(
        path / "float", path / "out", preset=preset, data=str(home() / "text.txt"), samples=3, kv_cache=kv_cache
    )
    return path / "out"


def through(case: Case, **options: Any) -> tuple[LOGITS, Session]:
    """Logits behind a prompt of several chunks, one of them padded, and behind three tokens more."""
    path = quantized(case.split, case.preset, case.cache)
    session = Session(path, target=case.target, threads=1, batch_size=case.rows, **options)
    if case.rows == 1:
        found = [session.prefill(IDS[0][:21]), *(session.decode(token) for token in IDS[0][21:])]
    else:
        prompts = [IDS[0][:21], IDS[1][:13]]  # one row waits
        found = [session.prefill(prompts), *(session.decode([IDS[0][at], IDS[1][at]]) for at in range(21, 24))]
    return np.array(found), session


@pytest.mark.product(extra=2)
@pytest.mark.parametrize("name", NAMES)
def test_schedules_compute_the_same(name: str) -> None:
    case = CASES[name]
    wanted, _ = through(case, device="npusim", schedule="sequential")
    assert np.isfinite(wanted).all()
    for options in some([{"device": "npusim"}, {"device": "npusim", "schedule": "in-order"}]):
        found, session = through(case, **options)
        np.testing.assert_array_equal(found, wanted)
        for unit in (unit for placement in session.placements for unit in placement.units):
            assert (unit.engine == CPU) == bool(unit.rule and unit.reason)


@pytest.mark.product(extra=2)
@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name.id].target not in WHOLE])
def test_schedules_of_the_linear_arrangement_compute_the_same(name: str) -> None:
    case = CASES[name]
    wanted, _ = through(case, device="npusim", schedule="sequential", arrange="linear")
    np.testing.assert_array_equal(through(case, device="npusim", arrange="linear")[0], wanted)


def test_targets_that_take_models_whole_are_known() -> None:
    assert tuple(name for name in TARGETS.names() if load_target(name).policy == "whole-model") == WHOLE


def test_projections_of_a_layer_are_one_partition() -> None:
    """Two layers: q, k and v; the output projection and the MLP, with no norm between them; the embedding; the head is behind the
    last of them."""
    _, session = through(CASES["uint8-cache"], device="npusim", arrange="linear")
    for placement in session.placements:
        npu = {unit.name for unit in placement.units if unit.engine != CPU and unit.op == "MatMul"}
        assert len(npu) == 13
        assert placement.stages <= 7


def test_a_chip_that_takes_none_of_it_says_why(tmp_path: Path) -> None:
    target = tmp_path / "whole.toml"
    target.write_text('description = "d"\nversion = "1"\nextends = "generic_int8"\npolicy = "whole-model"\n', "utf-8")
    _, session = through(Case(preset="mobilequant", target=str(target)), device="npusim")
    for placement in session.placements:
        assert placement.npu_macs_share == 0
        (note,) = placement.notes
        assert note.startswith("nothing of it runs on the NPU: ")
        assert "uint16" in note
