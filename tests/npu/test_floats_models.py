"""Whole models with floating point on the NPU: compiled beforehand and when a session is created, against the reference."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.npu.partitions.partitions import partition_for
from qdq_passes.numerics.arithmetic import Precision
from qdq_passes.pipeline.pipeline import run_pipeline

import qdqtool.npu
from qdqtool.io.models.load import load
from qdqtool.npu.compile import compile as compile_model
from qdqtool.npu.runs import reference_run
from qdqtool.runtime import provider
from qdqtool.runtime.session import open_session
from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target
from tests.npu.equality.units_floats import FloatBuilder

SAMPLES = Path(__file__).parents[2] / "sample_models"
LLAMA = (
    'fix-shapes{dims=["batch_size=1","sequence_length=4","past_sequence_length=4","total_sequence_length=8"]},infer-shapes,'
    "fold-constants,infer-shapes,lift-constants"
)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    qdqtool.npu.register()


def _feed(model: ir.Model) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    found: dict[str, Any] = {}
    for value in model.graph.inputs:
        if value.is_initializer() or value.shape is None or value.dtype is None or value.name is None:
            continue
        shape = [size if isinstance(size, int) else 1 for size in value.shape]
        if value.dtype == ir.DataType.FLOAT:
            found[value.name] = rng.standard_normal(shape).astype(np.float32)
        elif "mask" in value.name:
            found[value.name] = np.ones(shape, np.int64)
        else:
            found[value.name] = (np.arange(np.prod(shape)) + 4).reshape(shape).astype(np.int64)
    return found


def _check(model: ir.Model, target: Target) -> dict[str, Any]:
    """Both ways onto the NPU give what the reference gives; returns that."""
    feed = _feed(model)
    wanted = reference_run(model, partition_for(model, target), target.arithmetic)(feed)
    compiled = provider.open_session(compile_model(model, target).model).run(feed)
    for name, value in wanted.items():
        np.testing.assert_array_equal(compiled[name], value, err_msg=name)
    return dict(wanted)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_a_vision_transformer_runs_on_the_htp_in_floating_point(precision: Precision) -> None:
    model = load(SAMPLES / "vit_block.onnx")
    run_pipeline(model, "infer-shapes,lift-constants")
    target = load_target("qnn_htp")
    target = dataclasses.replace(target, arithmetic=dataclasses.replace(target.arithmetic, float_precision=precision))
    done = compile_model(model, target)
    assert not done.cpu_nodes, done.reasons
    wanted = _check(model, target)
    real = open_session(model).run(_feed(model))
    for name, value in wanted.items():
        # a dozen layers: some ten halves of a step of 2^-10 (float16) or 2^-7 (bfloat16) of numbers about 1
        assert 0 < np.abs(value - real[name]).max() < (0.01 if precision == "float16" else 0.08)


def test_a_decoder_runs_on_the_htp_in_floating_point() -> None:
    model = load(SAMPLES / "tiny_llama.onnx")
    run_pipeline(model, LLAMA)
    target = load_target("qnn_htp")
    plan = partition_for(model, target)
    left = [
        unit.core.op_type
        for unit, v in zip(plan.units, plan.verdicts, strict=True)
        if v.kind == "npu-float" and v.engine == "CPU"
    ]
    assert not left
    _check(model, target)


def test_a_session_compiles_floating_point_itself() -> None:
    """Verdicts are those of the whole graph, although each part is lowered alone."""
    model = load(SAMPLES / "vit_block.onnx")
    run_pipeline(model, "infer-shapes,lift-constants")
    feed, target = _feed(model), load_target("qnn_htp")
    wanted = reference_run(model, partition_for(model, target), target.arithmetic)(feed)
    found = provider.open_session(model, {"target": "qnn_htp"}).run(feed)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def mixed(builder: FloatBuilder) -> ir.Model:
    """Integers, floats, and values that both read: DQ → Conv → Q, DQ → Sigmoid, DQ → Mul → Q, a Softmax that stays a float."""
    b = builder

    def pair(value: ir.Value) -> ir.Value:
        return b.quantized(value, dtype=b.choose("int8", "uint8"))

    x = pair(b.input(1, 4, 6, 6))
    conv = pair(
        b.node(
            "Relu",
            [b.node("Conv", [x, b.weight(4, 4, 3, 3, axis=0)[0]], {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]})],
        )
    )
    gated = pair(b.node("Mul", [conv, b.node("Sigmoid", [conv])]))
    added = pair(b.node("Add", [gated, x]))
    shares = b.node("Softmax", [pair(added)], {"axis": 1})
    turned = pair(b.node("Transpose", [b.node("Transpose", [shares], {"perm": [0, 2, 3, 1]})], {"perm": [0, 3, 1, 2]}))
    return b.model(pair(b.node("Add", [turned, added])), shares)


@pytest.mark.parametrize("seed", range(6))
def test_integers_and_floating_point_side_by_side(seed: int) -> None:
    target = load_target(Path(__file__).with_name("mixed.toml"))
    model = mixed(FloatBuilder(np.random.default_rng(seed), pow2=seed % 2 == 0))
    run_pipeline(model, "infer-shapes")
    kinds = {(u.core.op_type, v.kind) for u, v in zip(*_judged(model, target), strict=True)}
    assert {("Conv", "npu-int"), ("Softmax", "npu-float"), ("Add", "npu-int"), ("Mul", "npu-float")} <= kinds
    assert not compile_model(model, target).cpu_nodes
    _check(model, target)
    feed = _feed(model)
    wanted = reference_run(model, partition_for(model, target, "npu"), target.arithmetic)(feed)
    named = str(Path(__file__).with_name("mixed.toml"))
    found = provider.open_session(model, {"target": named}).run(feed)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def _judged(model: ir.Model, target: Target) -> tuple[Any, Any]:
    plan = partition_for(model, target)
    return plan.units, plan.verdicts
