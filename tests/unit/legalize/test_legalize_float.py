"""Legalizations of float graphs against onnxruntime: the same numbers, over opsets, sizes and attributes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from qdq_passes.errors import QdqError
from qdq_passes.graph.uses import constant_array
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.pipeline.pipeline import run_pipeline

from tests.cases.small_models import checked, model, run
from tests.dial import some

Array = npt.NDArray[Any]


def header(opset: int) -> str:
    return f'<ir_version: 8, opset_import: ["" : {opset}]>'


def data(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


def legalized(text: str, pipeline: str) -> tuple[ir.Model, list[str]]:
    """The model after the pipeline, and its changes."""
    graph = model(text)
    report = run_pipeline(graph, pipeline, hooks=[VerifyEach()])
    return checked(graph), [str(change) for change in report.changes]


@pytest.mark.parametrize("form", ["initializer", "node"])
@pytest.mark.parametrize(
    ("opset", "split"),
    [
        (7, "Split<axis: int = 1, split: ints = [1, 2, 4]>(x)"),
        (9, "Split<axis: int = 0>(x)"),
        (11, "Split<axis: int = -1, split: ints = [2, 2, 3]>(x)"),
        (11, "Split<axis: int = -2>(x)"),
        (13, "Split<axis: int = 1>(x, sizes)"),
        (13, "Split(x)"),
        (17, "Split<axis: int = -1>(x, sizes)"),
        (18, "Split<axis: int = 1, num_outputs: int = 3>(x)"),
        (21, "Split<axis: int = -1, num_outputs: int = 3>(x)"),
        pytest.param(24, "Split<axis: int = 1>(x, sizes)", marks=pytest.mark.newest),
    ],
)
def test_slices_are_the_parts(opset: int, split: str, form: str) -> None:
    """Attribute, input, equal parts and equal parts with a smaller last one, on every kind of axis."""
    sizes = " <int64[3] sizes = {2, 1, 4}>" if "sizes" in split else ""
    text = f"{header(opset)} g (float[6,7] x) => (float[A,B] a, float[C,D] b, float[E,F] c){sizes} {{ [sp] a, b, c = {split} }}"
    x = data(6, 7)
    before = run(model(text), {"x": x})
    graph, _ = legalized(text, f"split-to-slice{{constant={form}}}")
    after = run(graph, {"x": x})
    assert {node.op_type for node in graph.graph} == (
        {"Slice", "Constant"} if form == "node" and opset > 9 else {"Slice"}
    )
    assert [name for name in before if not np.array_equal(before[name], after[name])] == []


def attributes(**given: Any) -> str:
    return ", ".join(
        f'{key}: string = "{value}"' if isinstance(value, str)
        else f"{key}: ints = [{value},{value}]" if isinstance(value, int) and key not in ("ceil_mode", "group")
        else f"{key}: int = {value}"
        for key, value in given.items()
    )  # fmt: skip


LAYERS = [
    (op, auto, size, kernel, stride, dilation, ceil)
    for op, auto in itertools.product(
        ("Conv", "MaxPool", "AveragePool"), ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    )
    for size, kernel, stride, dilation, ceil in itertools.product((5, 6), (1, 2, 3), (1, 2, 3), (1, 2), (0, 1))
    if not (op == "Conv" and ceil) and not (op == "AveragePool" and dilation > 1)
]


def test_explicit_pads_are_those_that_were_meant() -> None:
    """onnxruntime computes the same, to the last bit, with what auto_pad stood for written down; what it refuses to compute it
    computes then, in the size that ONNX gives."""
    made = 0
    layers = some(LAYERS, 120)
    for op, auto, size, kernel, stride, dilation, ceil in layers:
        given: dict[str, Any] = {"auto_pad": auto, "strides": stride}
        given |= {"dilations": dilation} if dilation > 1 else {}
        given |= {"ceil_mode": ceil} if ceil else {}
        given |= {"kernel_shape": kernel} if op != "Conv" else {}
        weight = (
            f" <float[1,1,{kernel},{kernel}] w = {{{','.join(str(k + 1) for k in range(kernel**2))}}}>"
            if op == "Conv"
            else ""
        )
        call = f"{op}<{attributes(**given)}>(x{', w' if weight else ''})"
        text = f"{header(17)} g (float[1,1,{size},{size}] x) => (float[1,1,A,B] y){weight} {{ [n] y = {call} }}"
        feed = {"x": data(1, 1, size, size)}
        graph, changes = legalized(text, "explicit-conv-attributes")
        passes_over = stride > 1 and (-(-size // stride) - 1) * stride + kernel < size
        is_unclear = op != "Conv" and auto.startswith("SAME") and (dilation > 1 or passes_over)
        assert any(change.startswith("skip") for change in changes) == is_unclear, text
        if is_unclear:
            continue
        made += 1
        assert "auto_pad" not in graph.graph[0].attributes or auto == "NOTSET"
        wanted = {"kernel_shape", "strides", "pads"} | ({"dilations", "group"} if op == "Conv" else set())
        assert wanted <= set(graph.graph[0].attributes), text
        try:
            before = run(model(text), feed)["y"]
        except QdqError:
            if auto.startswith("SAME"):
                assert run(graph, feed)["y"].shape == (1, 1, -(-size // stride), -(-size // stride)), text
            continue
        assert np.array_equal(before, run(graph, feed)["y"]), text
    assert made > 0.4 * len(layers)


@pytest.mark.newest  # up to 1.23 dilated ones with an output padding hold memory that was never written
def test_explicit_pads_of_transposed_convolutions() -> None:
    """Every auto_pad and output_shape, with output padding and dilations."""
    made = 0
    forms = itertools.product(
        ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"), (3, 4), (2, 3), (1, 2, 3), (1, 2), (0, 1), (None, 0, 1)
    )
    drawn = some([*forms], 140)
    for auto, size, kernel, stride, dilation, more, less in drawn:
        if more >= max(stride, dilation) or (less is not None and auto.startswith("SAME") and size == 4):
            continue
        given: dict[str, Any] = {"auto_pad": auto, "strides": stride, "dilations": dilation, "output_padding": more}
        whole = stride * (size - 1) + more + dilation * (kernel - 1) + 1
        given |= {"output_shape": whole - less} if less is not None else {}
        weight = ",".join(str(k + 1) for k in range(kernel**2))
        text = f"""{header(17)} g (float[1,1,{size},{size}] x) => (float[1,1,A,B] y) <float[1,1,{kernel},{kernel}] w = {{{weight}}}>
        {{ [n] y = ConvTranspose<{attributes(**given)}>(x, w) }}"""
        feed = {"x": data(1, 1, size, size)}
        graph, changes = legalized(text, "explicit-conv-attributes")
        node = graph.graph[0]
        if any(change.startswith("skip") for change in changes):
            assert stride > dilation * (kernel - 1) + 1 + more, text
            continue
        assert {"kernel_shape", "strides", "pads", "dilations", "group"} <= set(node.attributes)
        assert "output_shape" not in node.attributes
        try:
            before = run(model(text), feed)["y"]
        except QdqError:
            continue  # onnxruntime refuses an output padding that the stride alone does not allow
        assert np.array_equal(before, run(graph, feed)["y"]), text
        made += 1
    assert made > 0.1 * len(drawn)


@pytest.mark.parametrize("opset", [7, 9, 13, 15, 17, 21, 23])
@pytest.mark.parametrize("epsilon", [None, 1e-3, 0.0])
def test_a_batch_norm_is_a_convolution(opset: int, epsilon: float | None) -> None:
    """W', b', the product and the sum round once each: |y − y'| ≤ 8·2^-24·(|f·x| + |b|), element by element."""
    given = "" if epsilon is None else f"<epsilon: float = {epsilon}>"
    text = f"""{header(opset)} g (float[2,3,4,5] x) => (float[2,3,4,5] y)
    <float[3] g = {{1.5, -2, 0.1}}, float[3] b = {{0.3, 5, -7}}, float[3] m = {{2, -0.5, 30}}, float[3] v = {{0.01, 4, 9}}>
    {{ [bn] y = BatchNormalization{given}(x, g, b, m, v) }}"""
    x = data(2, 3, 4, 5)
    before = run(model(text), {"x": x})["y"]
    graph, _ = legalized(text, "batch-norm-to-conv")
    after = run(graph, {"x": x})["y"]
    weight, bias = (constant_array(graph.graph.initializers[name]) for name in ("yweights", "ybias"))
    assert weight is not None
    assert bias is not None
    assert weight.shape == (3, 1, 1, 1)
    size = (
        np.abs(weight.reshape(1, 3, 1, 1) * x) + np.abs(bias.reshape(1, 3, 1, 1)) + np.abs(weight.reshape(-1)[2] * 30)
    )
    assert (np.abs(after - before) <= 8 * 2.0**-24 * size).all()
    gamma, variance = np.array([1.5, -2, 0.1], np.float32), np.array([0.01, 4, 9], np.float32)
    factor = gamma / np.sqrt(variance + np.float32(1e-5 if epsilon is None else epsilon))
    assert np.array_equal(weight.reshape(-1), factor)
    assert np.array_equal(bias, np.array([0.3, 5, -7], np.float32) + (-np.array([2, -0.5, 30], np.float32)) * factor)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_a_batch_norm_of_another_type(dtype: type) -> None:
    """Parameters of x's type: f is computed in float32 at least, and stored in that type."""
    name = {"float16": "float16", "float64": "double"}[np.dtype(dtype).name]
    text = f"""{header(13)} g ({name}[1,1,2,2] x) => ({name}[1,1,2,2] y) {{
    [k] g = Constant<value: tensor = {name}[1] {{1}}>() [w] w = Identity(g) [bn] y = BatchNormalization(x, w, w, w, w) }}"""
    graph = model(text)
    for value, number in zip([n.outputs[0] for n in graph.graph][:1], (3.0,), strict=True):
        node = value.producer()
        assert node is not None
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.array([number], dtype)))
    run_pipeline(graph, "remove-identity,batch-norm-to-conv", hooks=[VerifyEach()])
    wide = np.float64 if dtype == np.float64 else np.float32
    factor = wide(3) / np.sqrt(wide(3) + wide(1e-5))
    weight, bias = (constant_array(graph.graph.initializers[name]) for name in ("yweights", "ybias"))
    assert weight is not None
    assert bias is not None
    assert weight.dtype == bias.dtype == dtype
    assert weight.item() == dtype(factor)
    assert bias.item() == dtype(wide(3) - wide(3) * factor)


@pytest.mark.parametrize("opset", [7, 11, 13, 18, 21])
def test_a_mean_is_a_pool(opset: int) -> None:
    """H·W = 20 sums of at most |x| in float32: 20·2^-24 of the mean of |x|."""
    axes = "axes: ints = [2,3]" if opset < 18 else "keepdims: int = 1"
    given = "" if opset < 18 else " <int64[2] axes = {2, 3}>"
    text = f"""{header(opset)} g (float[2,3,4,5] x) => (float[2,3,1,1] y){given}
    {{ [m] y = ReduceMean<{axes}>(x{"" if opset < 18 else ", axes"}) }}"""
    x = data(2, 3, 4, 5)
    graph, _ = legalized(text, "reduce-mean-to-global-pool")
    assert [node.op_type for node in graph.graph] == ["GlobalAveragePool"]
    before, after = run(model(text), {"x": x})["y"], run(graph, {"x": x})["y"]
    assert (np.abs(after - before) <= 20 * 2.0**-24 * np.abs(x).mean((2, 3), keepdims=True)).all()


@pytest.mark.parametrize(("height", "width"), [(28, 28), (24, 24), (16, 64), (512, 1), (45, 30), (20, 30)])
def test_a_large_pool_averages_in_two_steps(height: int, width: int) -> None:
    """Every step within the limit, and the exact mean to H·W·2^-24 of the mean of |x|."""
    text = f"{header(17)} g (float[1,2,{height},{width}] x) => (float[1,2,1,1] y) {{ [t] t = Abs(x) [g] y = GlobalAveragePool(t) }}"
    graph, _ = legalized(text, "infer-shapes,split-large-pool")
    x = data(1, 2, height, width)
    after = run(graph, {"x": x})["y"]
    exact = np.abs(x.astype(np.float64)).mean((2, 3), keepdims=True)
    assert (np.abs(after - exact) <= height * width * 2.0**-24 * exact).all()
    if height * width <= 512:
        assert len(graph.graph) == 2
        return
    pool = graph.graph[1]
    window = pool.attributes["kernel_shape"].as_ints()
    assert pool.outputs[0].name == "t_Split"
    assert height * width // (window[0] * window[1]) <= 512
    assert window[0] * window[1] <= 512
    assert height % window[0] == width % window[1] == 0
    assert pool.outputs[0].shape == ir.Shape([1, 2, height // window[0], width // window[1]])


def test_the_other_layout_takes_transposed_data() -> None:
    """Fed transposed, the graph writes the same numbers transposed; turned back and merged, it is the graph it was."""
    text = f"""{header(17)} g (float[N,3,4,5] x, float[N,6] e) => (float[N,2,4,5] y, float[N,6] f)
    <float[2,3,1,1] w = {{1,2,3,4,5,6}}> {{ [conv] y = Conv(x, w) [neg] f = Neg(e) }}"""
    x, e = data(2, 3, 4, 5), data(2, 6)
    before = run(model(text), {"x": x, "e": e})
    graph, _ = legalized(text, "convert-layout")
    after = run(graph, {"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1)), "e": e})
    assert np.array_equal(after["y"], before["y"].transpose(0, 2, 3, 1))
    assert np.array_equal(after["f"], before["f"])
    run_pipeline(graph, "convert-layout{to=nchw},merge-transposes", hooks=[VerifyEach()])
    assert [node.op_type for node in graph.graph] == ["Conv", "Neg"]
    assert str(graph.graph.inputs[0].shape) == "[N,3,4,5]"
    assert np.array_equal(run(checked(graph), {"x": x, "e": e})["y"], before["y"])


SHARED = """g (float[1,1,4,4] x) => (float[1,1,4,4] y) <int8[1,1,1,1] w_quantized = {3}, int8[1] b_quantized = {5},
  float w_scale = {0.5}, float b_scale = {0.25}, float x_scale = {0.125}, float t_scale = {0.25}, int8 z = {0}>
{ [qx] i = QuantizeLinear(x, x_scale, z) [dx] d = DequantizeLinear(i, x_scale, z)
  [dw] w = DequantizeLinear(w_quantized, w_scale, z) [db] b = DequantizeLinear(b_quantized, b_scale, z)
  [first] t = Conv(d, w, b) [qt] j = QuantizeLinear(t, t_scale, z) [dt] e = DequantizeLinear(j, t_scale, z)
  [second] y = Conv(e, w, b) }"""


def test_one_reader_for_every_initializer() -> None:
    """On a quantized graph the integers of two layers have one DequantizeLinear: dedicate-qdq first, then every initializer, scales
    and zero points too, is read once."""
    graph = model(SHARED)
    run_pipeline(graph, "unshare-initializers")
    assert len(graph.graph.initializers["w_quantized"].uses()) == 1
    convs = [node for node in graph.graph if node.op_type == "Conv"]
    assert convs[0].inputs[1] is convs[1].inputs[1]
    graph = model(SHARED)
    run_pipeline(graph, "dedicate-qdq,unshare-initializers", hooks=[VerifyEach()])
    assert {len(value.uses()) for value in graph.graph.initializers.values()} == {1}
    convs = [node for node in graph.graph if node.op_type == "Conv"]
    assert not set(convs[0].inputs[1:]) & set(convs[1].inputs[1:])
    assert sum("quantized" in name for name in graph.graph.initializers) == 4
    x = data(1, 1, 4, 4)
    assert np.array_equal(run(checked(graph), {"x": x})["y"], run(model(SHARED), {"x": x})["y"])


def test_int8_biases_become_int32() -> None:
    """A bias that two layers of different products read is stored for each at s_x·s_w: 1.25 is 20·2^-4 and 10·2^-3."""
    graph = model(SHARED)
    run_pipeline(graph, "convert-bias", hooks=[VerifyEach()])
    stored = []
    for conv in [node for node in graph.graph if node.op_type == "Conv"]:
        dq = conv.inputs[2].producer() if conv.inputs[2] is not None else None
        assert dq is not None
        integers, scale = constant_array(dq.inputs[0]), constant_array(dq.inputs[1])
        assert integers is not None
        assert scale is not None
        assert integers.dtype == np.int32
        stored.append((integers.item(), scale.item()))
    assert stored == [(20, 0.0625), (10, 0.125)]
    x = data(1, 1, 4, 4)
    assert np.array_equal(run(checked(graph), {"x": x})["y"], run(model(SHARED), {"x": x})["y"])
