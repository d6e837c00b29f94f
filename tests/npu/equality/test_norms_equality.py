"""Normalizations: the provider and the custom operators against the reference, and the reference against float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.npu.program.operators import why_not_computable
from qdq_passes.npu.units.units import units_of
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.pipeline.pipeline import run_pipeline

import qdqtool.npu
from qdqtool.targets.loading import load_target
from tests.npu.equality.equality import ARITHMETICS, INSTRUCTION_SETS, Unit, Units, generator, reference
from tests.npu.equality.random_units import Builder
from tests.npu.equality.units_norms import CASES

ANY = load_target(Path(__file__).with_name("targets") / "any_norm.toml")
SEEDS = 12
#: RMSNormalization is of opset 23, of whose pairs older onnxruntimes have no kernels.
NAMES = [pytest.param(case, marks=pytest.mark.newest) if case == "rms_norm" else case for case in CASES]


def unit(seed: int, pow2: bool, case: str) -> Unit:
    """A model and a feed, the same ones every time."""
    builder = Builder(generator(seed, case), pow2=pow2)
    return CASES[case](builder), builder.feeds


UNITS = Units(ANY, unit, SEEDS)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    qdqtool.npu.register()


@pytest.mark.parametrize("name", ARITHMETICS)
@pytest.mark.parametrize("case", NAMES)
def test_a_norm_is_computed_as_the_reference_says(case: str, name: str) -> None:
    UNITS.on_provider((ARITHMETICS[name][0], False), case)  # no shift depends on the scales: they may be any


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("case", NAMES)
def test_every_instruction_set_computes_the_same(case: str, isa: str) -> None:
    UNITS.on_provider("half_away", case, isa=isa)


@pytest.mark.parametrize("case", NAMES)
def test_the_custom_operator_computes_the_same(case: str) -> None:
    UNITS.as_operators(case)


@pytest.mark.parametrize("case", [case for case in CASES if case != "group_norm_18"])
def test_the_reference_is_the_norm_of_float64(case: str) -> None:
    """Against the same numbers in float64: where the quotient by the output's scale is 2^-8 or more from a half, to the integer.

    Four float32 operations lie behind c·r: a relative error of 2^-22 at most of the largest of the addends, which is below 2^13
    steps in these models' 16-bit outputs.
    """
    compared = 0
    for seed in range(SEEDS):
        model, feed = unit(seed, seed % 2 == 0, case)
        wanted = reference(model, feed, Arithmetic(rounding="half_even"))
        core, numbers = _in_float64(model, feed)
        quantize = next(node for node in model.graph if node.inputs[0] is core.outputs[0])
        scale, zero = (_numbers(quantize.inputs[i], {}) for i in (1, 2))
        steps = numbers / scale.astype(np.float64)
        info = np.iinfo(zero.dtype)
        stored = np.clip(np.rint(steps) + float(zero), info.min, info.max)
        real = (stored - float(zero)) * float(scale)
        clear = (np.abs(steps - np.floor(steps) - 0.5) > 2.0**-8) & (np.abs(steps) < 2.0**13)
        found = wanted[model.graph.outputs[0].name or ""]
        np.testing.assert_allclose(found[clear], real[clear], rtol=1e-6, err_msg=f"seed {seed}")
        compared += int(clear.sum())
    assert compared > 500


def _in_float64(model: ir.Model, feed: dict[str, Any]) -> tuple[ir.Node, Any]:
    """The normalization of ``model`` and its output."""
    core = next(node for node in model.graph if "Norm" in node.op_type)
    x, *parameters = (_numbers(value, feed).astype(np.float64) for value in core.inputs)
    epsilon = core.attributes.get_float("epsilon", 1e-5)
    if core.op_type == "LpNormalization":
        length = np.sqrt((x * x).sum(-1, keepdims=True))
        return core, np.divide(x, length, out=np.zeros_like(x), where=length > 0)
    rows = x
    if core.op_type in ("InstanceNormalization", "GroupNormalization"):
        rows = x.reshape(x.shape[0], core.attributes.get_int("num_groups", x.shape[1]), -1)
        parameters = [p.reshape(-1, *[1] * (x.ndim - 2)) for p in parameters]
    else:
        rows = x.reshape(*x.shape[: core.attributes.get_int("axis", -1) % x.ndim], -1)
    mean = 0.0 if core.op_type in ("RMSNormalization", "SimplifiedLayerNormalization") else rows.mean(-1, keepdims=True)
    centered = rows - mean
    y = (centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon)).reshape(x.shape)
    for parameter, step in zip(parameters, (np.multiply, np.add), strict=False):
        y = step(y, parameter)
    return core, y


def _numbers(value: ir.Value | None, feed: dict[str, Any]) -> Any:
    """What ``value`` is in float32, through the pairs before it."""
    assert value is not None
    node = value.producer()
    if node is None:
        return feed[value.name] if value.name in feed else value.const_value.numpy()  # type: ignore[union-attr]
    x = _numbers(node.inputs[0], feed)
    scale, zero = _numbers(node.inputs[1], feed), np.int64(0)
    if len(node.inputs) > 2:
        zero = _numbers(node.inputs[2], feed)
    if node.op_type == "DequantizeLinear":
        return (x.astype(np.int64) - int(zero)).astype(np.float32) * scale
    info = np.iinfo(zero.dtype)
    return np.clip(np.rint(x / scale).astype(np.int64) + int(zero), info.min, info.max).astype(zero.dtype)


def _why_not(op: str, *, opset: int = 21, **attributes: Any) -> str | None:
    """Why a normalization with float parameters [4] of quantized [2, 4, 3] is not computed."""
    b = Builder(np.random.default_rng(0))
    gain = b.constant(np.ones(4, np.float32))
    inputs = [b.quantized(b.input(2, 4, 3)), *([] if op == "LpNormalization" else [gain])]
    if op.startswith(("Instance", "Group")):
        inputs.append(gain)
    model = b.model(b.quantized(b.node(op, inputs, attributes)))
    model.graph.opset_imports[""] = opset
    run_pipeline(model, "infer-shapes")
    core = next(u for u in units_of(model) if u.core.op_type == op)
    return why_not_computable(core, Arithmetic())


def test_what_has_no_kernel_says_why() -> None:
    assert _why_not("InstanceNormalization") is None
    assert "of shape [4]" in (_why_not("LayerNormalization", axis=1) or "")
    assert "4 entries for 2 groups" in (_why_not("GroupNormalization", opset=18, num_groups=2) or "")
    assert "last axis" in (_why_not("LpNormalization", axis=1) or "")
    assert "absolute values" in (_why_not("LpNormalization", p=1) or "")


def test_gains_that_are_computed_or_not_finite_are_left() -> None:
    b = Builder(np.random.default_rng(0))
    x = b.quantized(b.input(2, 4))
    computed = b.model(b.quantized(b.node("LayerNormalization", [x, b.node("Relu", [x])])))
    norm = next(u for u in units_of(computed) if u.core.op_type == "LayerNormalization")
    assert why_not_computable(norm, Arithmetic()) == "its gain is computed"
    b = Builder(np.random.default_rng(0))
    infinite = b.constant(np.array([1, np.inf, 0, 0], np.float32))
    model = b.model(b.quantized(b.node("LayerNormalization", [b.quantized(b.input(2, 4)), infinite])))
    norm = next(u for u in units_of(model) if u.core.op_type == "LayerNormalization")
    assert why_not_computable(norm, Arithmetic()) == "its gain is not finite"
