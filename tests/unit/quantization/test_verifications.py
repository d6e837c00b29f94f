"""How often the whole graph is verified while a model is quantized: before and behind all passes, and after each where asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import pytest
from qdq_passes.core.base import Change, Pass
from qdq_passes.errors import VerifyError
from qdq_passes.pipeline.hooks import VERIFY_EACH, QuietHook
from qdq_passes.qdq.insert_qdq import InsertQdq
from qdq_passes.verification import rules

from qdqtool.io.models.load import load
from qdqtool.quantization.quantizing import quantize_model
from qdqtool.verbs.quantize import Quantize, quantize
from tests.cases.cli_helpers import DIGITS, cli
from tests.golden_messages.refusal import refusal, told


@dataclass
class Walks:
    """Counts walks through a whole model, which every verification makes one of."""

    count: int = 0


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Walks:
    """The walks from here on."""
    counted = Walks()
    enter = rules.Walk.__init__

    def counting(self: rules.Walk, model: ir.Model) -> None:
        counted.count += 1
        enter(self, model)

    monkeypatch.setattr(rules.Walk, "__init__", counting)
    return counted


def test_a_command_verifies_twice(walks: Walks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VERIFY_EACH)
    quantize(DIGITS, tmp_path / "out.onnx", preset="xint8", data="random:2")
    assert walks.count == 2


def test_after_each_pass_where_the_environment_asks(walks: Walks, tmp_path: Path) -> None:
    """It does in tests."""
    quantize(DIGITS, tmp_path / "out.onnx", preset="xint8", data="random:2")
    assert walks.count > 8


class Breaking(QuietHook):
    """Gives two nodes one name, as a broken pass might."""

    def after(self, pass_: Pass, model: ir.Model, changes: Sequence[Change]) -> None:
        first, second, *_ = model.graph
        first.name = second.name


def test_an_error_is_found_though_not_looked_for_after_each_pass(
    walks: Walks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the command, and by the function where its caller has not verified the model."""
    monkeypatch.delenv(VERIFY_EACH)
    with refusal(VerifyError):
        quantize(DIGITS, tmp_path / "out.onnx", preset="dynamic", hooks=[Breaking()])
    assert not (tmp_path / "out.onnx").exists()
    with refusal(VerifyError):
        quantize_model(load(DIGITS), Quantize(load(DIGITS), preset="dynamic").plan(), hooks=[Breaking()])
    assert walks.count == 4


@pytest.mark.parametrize("each", [False, True], ids=["at the end", "each"])
def test_what_a_pass_in_the_middle_breaks_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, each: bool
) -> None:
    """At the end, with how to find the pass; where the environment asks for it behind the pass, by its name."""
    honest = InsertQdq.run

    def broken(self: InsertQdq, model: ir.Model) -> Iterator[Change]:
        yield from honest(self, model)
        first, second, *_ = model.graph
        first.name = second.name

    monkeypatch.setattr(InsertQdq, "run", broken)
    if not each:
        monkeypatch.delenv(VERIFY_EACH)
    told(cli("quantize", DIGITS, "-o", tmp_path / "out.onnx", "--data", "random:2", "-q", code=70).error)
    assert not (tmp_path / "out.onnx").exists()


def test_a_caller_who_verifies_spares_the_function_to(walks: Walks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VERIFY_EACH)
    quantize_model(load(DIGITS), Quantize(load(DIGITS), preset="dynamic").plan(), known=[])
    assert walks.count == 0
