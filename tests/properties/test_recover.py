"""Scaling channels keeps the float function: bit for bit with powers of two, within the declared bound with other factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from hypothesis import given
from hypothesis import strategies as st
from qdq_passes.graph.edit import set_constant
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.recover.edit.channels import BOUND

from qdqtool.calibrate.layer_sums import collect_statistics
from qdqtool.runtime.session import open_session
from tests.cases.small_models import model
from tests.properties.graphs import DETERMINISTIC

Array = npt.NDArray[Any]

#: What may stand between two layers on [1, C, H, W], `C` channels; {i} and {o} are input and output.
BETWEEN = {
    "relu": "{o} = Relu({i})",
    "leaky": "{o} = LeakyRelu<alpha: float = 0.25>({i})",
    "clip": "{o} = Clip({i}, low, high)",
    "maximum": "{o} = MaxPool<kernel_shape: ints = [2,2], pads: ints = [0,0,1,1]>({i})",
    "average": "{o} = AveragePool<kernel_shape: ints = [3,3], pads: ints = [1,1,1,1]>({i})",
    "pad": "{o} = Pad({i}, around)",
    "turn": "{i}_t = Transpose<perm: ints = [0,2,3,1]>({i}) {o} = Transpose<perm: ints = [0,3,1,2]>({i}_t)",
    "add": "{o} = Add({i}, shift)",
    "sigmoid": "{o} = Sigmoid({i})",
    "gate": "{i}_g = Sigmoid(gate) {o} = Mul({i}, {i}_g)",
    "halves": "{i}_a, {i}_b = Split<axis: int = 1>({i}, parts) {o} = Concat<axis: int = 1>({i}_b, {i}_a)",
    "residual": "{i}_r = Relu({i}) {o} = Add({i}, {i}_r)",
    "identity": "{o} = Identity({i})",
}
#: The layers: (operator with its weight w, shape of the weight), 4 channels in and out.
LAYERS = {
    "conv": ("Conv<kernel_shape: ints = [1,1]>({i}, {w}, {b})", [4, 4, 1, 1]),
    "wide": ("Conv<pads: ints = [1,1,1,1]>({i}, {w}, {b})", [4, 4, 3, 3]),
    "groups": ("Conv<group: int = 2>({i}, {w}, {b})", [4, 2, 1, 1]),
    "depthwise": ("Conv<group: int = 4, pads: ints = [1,1,1,1]>({i}, {w}, {b})", [4, 1, 3, 3]),
    "transposed": ("ConvTranspose<group: int = 2>({i}, {w}, {b})", [4, 2, 1, 1]),
    "norm": ("BatchNormalization({i}, {b}, {b}, mean, var)", [1]),
}


@st.composite
def nets(draw: st.DrawFn) -> tuple[ir.Model, Array]:
    """A chain of layers with something between them, channels of very different sizes, and data for it."""
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    lines, constants, at = list[str](), dict[str, Array](), "x"
    for number in range(draw(st.integers(2, 4))):
        call, shape = LAYERS[draw(st.sampled_from(sorted(LAYERS)))]
        made, weight, bias = f"l{number}", f"w{number}", f"b{number}"
        sizes = np.exp2(random.integers(-5, 6, [shape[0], *[1] * (len(shape) - 1)]))
        constants[weight] = random.standard_normal(shape) * sizes
        constants[bias] = random.standard_normal(4)
        lines.append(f"[{made}_node] {made} = {call.format(i=at, w=weight, b=bias)}")
        at = made
        for name in draw(st.lists(st.sampled_from(sorted(BETWEEN)), max_size=2)):
            step = f"{at}{name[0]}"
            lines.append(BETWEEN[name].format(i=at, o=step))
            at = step
    lines.append(f"y = Conv({at}, last)")
    constants["last"] = random.standard_normal((2, 4, 1, 1))
    initializers = ", ".join(f"float {name} = {{1}}" for name in constants)
    text = f"""g (float[1,4,6,6] x, float[1,4,1,1] gate) => (float[1,2,h,w] y)
    <float[4] mean = {{0.5,-1,2,0}}, float[4] var = {{1,2,0.25,4}}, float low = {{0}}, float high = {{6}},
    float[1,4,1,1] shift = {{1,-2,0.5,3}}, int64[8] around = {{0,0,1,0,0,0,0,1}}, int64[2] parts = {{2,2}}, {initializers}>
    {{ {" ".join(lines)} }}"""
    net = model(text)
    for name, array in constants.items():
        set_constant(net.graph.initializers[name], array.astype(np.float32))
    run_pipeline(net, "give-names,remove-unused,infer-shapes")
    return net, random.standard_normal((1, 4, 6, 6)).astype(np.float32)


def run(net: ir.Model, data: Array) -> Array:
    feed = {"x": data} | (
        {"gate": np.ones((1, 4, 1, 1), np.float32)} if "gate" in {v.name for v in net.graph.inputs} else {}
    )
    return open_session(net).run(feed)["y"]


@DETERMINISTIC
@given(made=nets(), clip=st.sampled_from(["keep", "bounds"]))
def test_equalizing(made: tuple[ir.Model, Array], clip: str) -> None:
    net, data = made
    before = run(net, data)
    exact = run_pipeline(net, f"equalize-layers{{clip={clip}}}", copy=True).model
    assert np.array_equal(run(exact, data), before)
    near = run_pipeline(net, f"equalize-layers{{clip={clip} factors=any}}", copy=True).model
    assert np.abs(run(near, data) - before).max() <= BOUND * max(np.abs(before).max(), 1.0)


@DETERMINISTIC
@given(made=nets(), alpha=st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_smoothing(made: tuple[ir.Model, Array], alpha: float) -> None:
    net, data = made
    before = run(net, data)
    feed = {"x": data, "gate": np.ones((1, 4, 1, 1), np.float32)}
    seen = collect_statistics(
        net, [{name: feed[name] for name in (v.name or "" for v in net.graph.inputs)}], wanted=["magnitudes"]
    )
    for factors in ("pow2", "any"):
        text = f"smooth-activations{{statistics=@statistics alpha={alpha} factors={factors}}}"
        after = run(run_pipeline(net, text, inputs={"statistics": seen.layers}, copy=True).model, data)
        if factors == "pow2":
            assert np.array_equal(after, before)
        else:
            assert np.abs(after - before).max() <= BOUND * max(np.abs(before).max(), 1.0)
