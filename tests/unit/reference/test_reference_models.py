"""Whole models in the reference against onnxruntime without optimization: equal, bit for bit, whatever runs where.

The presets of the Vitis line have scales of powers of two; onnxruntime's float32 is exact on them as long as sums stay below 2^24
steps. Where it computes a function or a normalization, the CPU does, which is onnxruntime itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper
from qdq_passes.npu.reference.run import Fallback, captured_values, run_reference
from qdq_passes.npu.units.units import units_of
from qdq_passes.numerics.arithmetic import Arithmetic

from qdqtool import api
from qdqtool.io.models.load import load, model_of
from qdqtool.runtime.session import open_session
from tests.cases.cli_helpers import CALIB, DEMO, DIGITS, SAMPLES
from tests.cases.qdq_units import FIXED_POINT, SHIFT, Array


def on_cpu(model: ir.Model) -> Fallback:
    """onnxruntime without optimization on one node of ``model`` at a time, bodies and all."""

    def run(node: ir.Node, inputs: Sequence[Array | None]) -> list[Array]:
        values = [*node.inputs, *captured_values(node)]
        fed = {v.name or "": a for v, a in zip(values, inputs, strict=True) if v is not None and a is not None}
        read = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in fed.items()
        ]
        written = [helper.make_empty_tensor_value_info(v.name or "") for v in node.outputs if v.name]
        graph = helper.make_graph([ir.to_proto(node)], "node", read, written)
        opsets = [helper.make_opsetid(domain, opset) for domain, opset in model.opset_imports.items()]
        functions = [ir.to_proto(function) for function in model.functions.values()]
        proto = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=model.ir_version)
        return list(open_session(model_of(proto)).run(fed).values())

    return run


#: Not computed on the NPU here: float32 is not exact, or not in the last bit.
ROUNDED = frozenset({"Softmax", "Sigmoid", "Gelu", "LayerNormalization", "ReduceMean"})


def placed(model: ir.Model, without: frozenset[str] = ROUNDED) -> Callable[[ir.Node], bool]:
    """Whether a node belongs to a unit of integers alone."""
    units = [u for u in units_of(model) if u.is_quantized and u.is_compute and u.core.op_type not in without]
    nodes = {node for unit in units for node in unit.nodes}
    return lambda node: node in nodes


def equal(model: ir.Model, feed: dict[str, Array], on_npu: Callable[[ir.Node], bool], least: int) -> None:
    """Both modes with integers give what onnxruntime gives, ``least`` nodes or more on the NPU."""
    assert sum(on_npu(node) for node in model.graph) >= least
    wanted = open_session(model).run(feed)
    for arithmetic in (SHIFT, FIXED_POINT):
        found = run_reference(model, feed, arithmetic, on_npu=on_npu, fallback=on_cpu(model))
        assert list(found) == list(wanted)
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value)


def digits(count: int) -> dict[str, Array]:
    with np.load(DEMO / "test.npz") as data:
        return {"input": data["input"][:count]}


@pytest.mark.parametrize("preset", ["xint8", "xint8-compat"])
def test_the_digits_cnn_is_what_onnxruntime_computes(preset: str) -> None:
    model = api.quantize(load(DIGITS), preset=preset, data=CALIB).model
    equal(model, digits(48), placed(model), least=17)


def test_half_of_the_nodes_may_be_on_the_cpu() -> None:
    """Every second operator: what crosses the border is the number of an integer."""
    model = api.quantize(load(DIGITS), preset="xint8", data=CALIB).model
    units = [u for u in units_of(model) if u.is_compute]
    for parity in (0, 1):
        chosen = {node for unit in units[parity::2] for node in unit.nodes}
        equal(model, digits(8), lambda node, chosen=chosen: node in chosen, least=4)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "shape", "least"), [("mobilenet_block", (3, 32, 32), 20), ("vit_block", (3, 32, 32), 30)]
)
def test_samples_are_what_onnxruntime_computes(name: str, shape: tuple[int, ...], least: int) -> None:
    random = np.random.default_rng(0)
    data = {"input": random.normal(size=(4, *shape)).astype(np.float32)}
    model = api.quantize(load(SAMPLES / f"{name}.onnx"), preset="xint8", data=data).model
    equal(model, {"input": data["input"][:2]}, placed(model), least)


def test_a_detector_with_resize_split_and_concat_is_what_onnxruntime_computes() -> None:
    with np.load(SAMPLES / "detector_test.npz") as data:
        feed = {"input": data["input"][:2]}
    model = api.quantize(
        load(SAMPLES / "detector.onnx"), preset="xint8", data=str(SAMPLES / "detector_calib.npz")
    ).model
    equal(model, feed, placed(model), least=25)


def test_nodes_may_stand_in_any_order() -> None:
    model = load(SAMPLES / "quark_layout.onnx")
    feed = {"input": np.random.default_rng(1).normal(size=(2, 3, 16, 16)).astype(np.float32)}
    equal(model, feed, placed(model), least=12)


@pytest.mark.parametrize("name", ["if_branch", "loop_body", "local_function", "int4_weights"])
def test_what_is_not_quantized_is_left_to_the_cpu(name: str) -> None:
    model = load(Path(SAMPLES / f"{name}.onnx"))
    random, feed = np.random.default_rng(2), {}
    for value in model.graph.inputs:
        assert value.dtype is not None
        shape = [size if isinstance(size, int) else 2 for size in value.shape or ()]
        kind = value.dtype.numpy()
        feed[value.name or ""] = (
            random.normal(size=shape).astype(kind) if kind == np.float32 else np.ones(shape, kind) * 3
        )
    equal(model, {n: a.astype(np.bool_) if n == "flag" else a for n, a in feed.items()}, lambda node: False, least=0)


def test_half_up_moves_few_logits_and_no_class() -> None:
    model = api.quantize(load(DIGITS), preset="xint8", data=CALIB).model
    found, even = (
        run_reference(model, digits(48), Arithmetic(requantize="shift", rounding=rounding), on_npu=placed(model), fallback=on_cpu(model))
        for rounding in ("half_up", "half_even")
    )  # fmt: skip
    assert (found["logits"] != even["logits"]).any()
    assert (found["logits"].argmax(1) == even["logits"].argmax(1)).mean() > 0.95
