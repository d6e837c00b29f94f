"""Every golden case again, its constants of one element with more dimensions or none: results keep their shapes and values.

A constant of one element, [[2.]], lends the result its dimensions where it has more than the other operand."""

from __future__ import annotations

import contextlib

import onnx_ir as ir
import pytest
from qdq_passes.errors import QdqError
from qdq_passes.graph.shapes.inference import infer_shapes
from qdq_passes.graph.uses import FLOAT_TYPES, is_standard
from qdq_passes.pipeline.pipeline import parse_pipeline

from tests.golden.golden import Golden, cases
from tests.golden.numerics import differences, outputs_of

#: Operators that take a constant of one element in any rank that onnx's broadcasting does.
BROADCASTING = ("Add", "And", "Div", "Max", "Min", "Mul", "PRelu", "Pow", "Sub", "Where")
#: Dimensions that a constant gets: none, and more than any tensor of the cases has.
RANKS = (0, 2, 6)


def _constants(model: ir.Model) -> list[tuple[ir.Value, ir.TensorProtocol]]:
    """The initializers of one float that broadcasting operators alone read, and their tensors."""
    return [
        (value, value.const_value)
        for value in model.graph.initializers.values()
        if value.const_value is not None and value.const_value.size == 1 and value.const_value.dtype in FLOAT_TYPES
        and not value.is_graph_input() and value.uses()
        and all(is_standard(user, *BROADCASTING) for user, _ in value.uses())
    ]  # fmt: skip


def _reshaped(case: Golden, place: int, rank: int) -> ir.Model:
    """The model of ``case``, with a constant of ``rank``; sizes that follow from it are left open."""
    model = case.model()
    value, tensor = _constants(model)[place]
    value.const_value = ir.tensor(tensor.numpy().reshape((1,) * rank), dtype=tensor.dtype, name=tensor.name)
    value.shape = ir.Shape((1,) * rank)
    for node in model.graph:
        for output in node.outputs:
            output.shape = None
    with contextlib.suppress(QdqError):  # a size that does not fit: onnxruntime refuses it too
        infer_shapes(model)
    return model


def _fault(case: Golden, place: int, rank: int) -> list[str]:
    """Where the pipeline of ``case`` changes shapes or values; nothing where onnxruntime refuses the model as it is."""
    try:
        before = outputs_of(_reshaped(case, place, rank))
    except QdqError:
        return []
    model = _reshaped(case, place, rank)
    try:
        report = case.run(model)
    except QdqError as error:
        return [str(error)] if error.exit_code == 70 else []
    return (
        differences(before, outputs_of(model), [pass_.keeps for pass_ in parse_pipeline(case.pipeline).passes])
        if report.changes
        else []
    )


CASES = [case for case in cases() if not (case.has("FAILS") or case.has("NUMERICS") or case.has("NEWEST"))]
#: Passes that gave results another shape.
ALWAYS = ("pow-to-mul/", "remove-nan-guards/")


@pytest.mark.product(extra=1)
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[pytest.mark.always] if c.name.startswith(ALWAYS) else [], id=c.name) for c in CASES],
)
def test_the_rank_of_a_constant_is_kept(case: Golden) -> None:
    places = range(len(_constants(case.model())))
    faults = {(place, rank): _fault(case, place, rank) for place in places for rank in RANKS}
    assert {at: fault for at, fault in faults.items() if fault} == {}
