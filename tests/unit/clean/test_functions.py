"""Chains of local functions: the work is linear in the nodes of all functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import onnx_ir as ir
import pytest
from qdq_passes.clean.fold_constants import FoldConstants
from qdq_passes.clean.inline_functions import InlineFunctions
from qdq_passes.clean.remove_unused import RemoveUnused
from qdq_passes.graph.shapes import inference
from qdq_passes.graph.shapes.inference import element_types
from qdq_passes.graph.uses import all_values
from qdq_passes.verification.rules import verify


def chain(count: int, called: str = "") -> ir.Model:
    """A graph that calls the last of ``count`` functions, each of which calls the one before; or ``called``."""
    functions = "".join(
        f"""<domain: "d", opset_import: ["" : 21, "d" : 1]> F{i} (a) => (b) {{ t = Relu(a) b = {f"d.F{i - 1}" if i else "Relu"}(t) }}"""
        for i in range(count)
    )
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 21, "d" : 1]>
            g (float[4] x) => (float[4] y) {{ y = d.{called or f"F{count - 1}"}(x) }} {functions}"""
    )


def calls(model: ir.Model, act: Callable[[ir.Model], object]) -> int:
    """Number of function calls, those of the library included, that ``act`` makes."""
    count = 0

    def counted(frame: FrameType, event: str, of: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        act(model)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(
    "act", [InlineFunctions(), RemoveUnused(), FoldConstants(), verify], ids=["inline", "unused", "fold", "verify"]
)
@pytest.mark.parametrize("called", ["", "F0"])
def test_calls_are_linear_in_the_nodes(act: Callable[[ir.Model], object], called: str) -> None:
    """Four times the functions: four times the calls, or sixteen if they were quadratic; the bound lies between."""
    act(chain(4, called))  # what is imported and cached
    small, large = (calls(chain(count, called), act) for count in (40, 160))
    assert large < 6 * small


def test_a_chain_longer_than_the_stack_is_inlined() -> None:
    model = chain(600)
    RemoveUnused()(model)
    assert len(model.functions) == 600
    InlineFunctions()(model)
    assert [node.op_type for node in model.graph] == ["Relu"] * 601
    assert len({node.name for node in model.graph}) == 601


def test_each_function_is_inferred_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once without types and once with those of the caller, whatever the number of functions."""
    seen: list[str] = []
    infer = inference._infer_function
    monkeypatch.setattr(
        inference, "_infer_function", lambda function, *rest: (seen.append(function.name), infer(function, *rest))[1]
    )
    model = chain(12)
    types = element_types(model, all_values(model))
    assert set(types.values()) == {ir.DataType.FLOAT}
    assert len(seen) <= 2 * 12
