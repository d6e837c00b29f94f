"""The numeric check holds passes to what they declare."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.errors import CheckError, VerifyError
from qdq_passes.pipeline.pipeline import Pipeline

from qdqtool.runtime import hooks
from qdqtool.runtime.hooks import NumericCheck, same_bits
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

TEXT = "g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 4}> { [m] y = Mul(x, w) }"
FEEDS = [{"x": np.array([1, 2, 3], np.float32)}, {"x": np.array([0, -1, 5], np.float32)}]


@dataclass(frozen=True)
class ScaleWeights(Pass):
    """Multiplies the weights: breaks what it claims to keep."""

    keeps: ClassVar[Keeps] = Keeps("exact")
    factor: float = 1.0

    def run(self, model: ir.Model) -> Iterator[Change]:
        value = model.graph.initializers["w"]
        assert value.const_value is not None
        value.const_value = ir.tensor(value.const_value.numpy() * np.float32(self.factor), name="w")
        yield Change("replace", "w")


@dataclass(frozen=True)
class ScaleWithin(ScaleWeights):
    """Declares a bound of 1 %."""

    keeps: ClassVar[Keeps] = Keeps("bounded", 0.01)


@dataclass(frozen=True)
class ScaleFreely(ScaleWeights):
    """Declares that it changes the function."""

    keeps: ClassVar[Keeps] = Keeps("changes")


@dataclass(frozen=True)
class Decline(Pass):
    """Changes nothing."""

    def run(self, model: ir.Model) -> Iterator[Change]:
        yield skip("m", "not today")


@dataclass(frozen=True)
class SetOperator(Pass):
    """Makes the node another one."""

    op: str = "Foo"

    def run(self, model: ir.Model) -> Iterator[Change]:
        node = next(iter(model.graph))
        node.op_type = self.op
        yield Change("replace", "m")


def run(*passes: Pass, text: str = TEXT, samples: int = 4) -> NumericCheck:
    check = NumericCheck(FEEDS, samples=samples)
    Pipeline(passes).run(model(text), hooks=[check])
    return check


def test_what_is_kept_passes() -> None:
    assert run(ScaleWeights(1.0), ScaleWithin(1.005), Decline()).unchecked == []


def test_a_broken_promise_names_pass_output_sample_and_figure() -> None:
    with refusal(VerifyError):
        run(Decline(), ScaleWeights(2.0))


def test_a_bound_is_in_units_of_the_largest_output() -> None:
    with refusal(CheckError):
        run(ScaleWithin(1.02))


def test_passes_that_change_the_function_are_a_new_start() -> None:
    assert run(ScaleFreely(2.0), ScaleWeights(1.0)).unchecked == []
    with pytest.raises(VerifyError):
        run(ScaleFreely(2.0), ScaleWeights(2.0))


def test_one_run_serves_after_and_before(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    original = hooks.open_session
    monkeypatch.setattr(hooks, "open_session", lambda m: opened.append(1) or original(m))
    run(ScaleWeights(), Decline(), ScaleWeights(), ScaleWeights())
    assert len(opened) == 4  # the input, and after each pass that changed something


def test_only_the_first_samples_are_held() -> None:
    assert len(run(Decline(), samples=1)._feeds) == 1


def test_an_operator_that_is_gone_cannot_be_checked_but_another_function_is_caught() -> None:
    (unchecked,) = run(SetOperator("Foo")).unchecked
    assert unchecked[0] == "set-operator"
    assert "no operator Foo" in unchecked[1]
    with refusal(VerifyError):
        run(SetOperator("Add"))
    with pytest.raises(VerifyError, match="no longer runs"):
        run(SetOperator("MatMulInteger"))


def test_a_model_that_does_not_run_as_it_came_is_not_checked() -> None:
    check = run(ScaleWeights(2.0), text=TEXT.replace("Mul", "Foo"))
    assert [text for text, _ in check.unchecked] == ["scale-weights{factor=2.0}"]
    assert "no operator Foo" in check.unchecked[0][1]


def test_random_models_are_not_checked() -> None:
    check = run(ScaleWeights(2.0), text=TEXT.replace("y = Mul(x, w)", "r = RandomNormalLike(x)  y = Mul(r, w)"))
    assert check.unchecked[0][1] == "the model draws random numbers"


def test_same_bits() -> None:
    nan = np.array([np.nan, 1], np.float32)
    other_nan = (nan.view(np.uint32) + np.array([1, 0], np.uint32)).view(np.float32)
    assert same_bits(nan, other_nan)
    assert not same_bits(np.array([0.0]), np.array([-0.0]))
    assert not same_bits(np.array([1.0]), np.array([1.0], np.float32))
    assert same_bits(np.array(["a"], object), np.array(["a"], object))
    assert same_bits(np.array(3), np.array(3))
