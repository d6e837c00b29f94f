"""`qdq remove --all` over presets and the quantizers of onnxruntime: what is left is the float model with its weights rounded.

Sharper than a bound in dB, which follows the weights: the float model as it was prepared, with the weights that the removal left put
in its place, gives the same outputs, bit for bit. So all that removal may lose is the rounding of weights; where those are stored as
floats it loses nothing."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_dynamic, quantize_static
from qdq_passes.core.base import Pass
from qdq_passes.graph.uses import all_graphs, known_array
from qdq_passes.pipeline.pipeline import Pipeline, parse_pipeline, run_pipeline

import qdqtool
from qdqtool.io.models.load import model_of
from qdqtool.io.models.provenance import history
from qdqtool.presets import PRESETS
from qdqtool.presets.loading import load_preset
from qdqtool.runtime.session import RUNTIME, compute, open_session
from qdqtool.verbs.qdq.remove import Remove
from tests.cases.quantized_files import Samples
from tests.cases.small_models import Array, parsed
from tests.exports import exports

#: Graphs with what quantizers do to activations: a Relu behind Add, Concat, a layer; Clips; what becomes of it on the DPU.
NETS = {
    "residual": """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,8,8] x) => (float[N,5] y, float[N,5] z) {
  [c1] a = Conv<pads: ints = [1,1,1,1]>(x, w1, b1)  [r1] b = Relu(a)
  [c2] c = Conv<pads: ints = [1,1,1,1]>(b, w2, b2)  [sum] d = Add(b, c)  [r2] e = Relu(d)
  [c3] f = Conv<pads: ints = [1,1,1,1], group: int = 4>(e, w3)  [clip] g1 = Clip(f, zero, six)
  [join] h = Concat<axis: int = 1>(e, c)  [r3] i = Relu(h)  [pool] j = MaxPool<kernel_shape: ints = [2,2], strides: ints = [2,2]>(i)
  [c4] k = Conv(j, w4, b4)  [gap] l = GlobalAveragePool(k)  [gap2] l2 = GlobalAveragePool(g1)
  [join2] m = Concat<axis: int = 1>(l, l2)  [flat] n = Flatten(m)  [fc] o = Gemm(n, w5, b5)  [out] z = Softmax(o)  [small] y = Mul(o, third)
}""",
    "activations": """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,8,8] x) => (float[N,4,3,3] y, float[N,4,1,1] z, float[N,5] t) {
  [c1] a = Conv(x, w1, b1)  [bn] b = BatchNormalization(a, gamma, beta, mean, var)  [sig] c = Sigmoid(b)  [mul] d = Mul(b, c)
  [leaky] e = LeakyRelu<alpha: float = 0.7>(d)  [hard] f = HardSigmoid<alpha: float = 0.16666667>(e)  [swish] swish_output_0 = Mul(e, f)
  [c2] h = Conv<pads: ints = [1,1,1,1]>(swish_output_0, w2, b2)  [clip] i = Clip(h, minus, six)
  [pool] y = AveragePool<kernel_shape: ints = [3,3], strides: ints = [2,2], pads: ints = [1,1,1,1]>(i)
  [gap] j = GlobalAveragePool(swish_output_0)  [fc1] k = Conv(j, w6)  [relu] l = Relu(k)  [fc2] m = Conv(l, w6)  [gate] z = Sigmoid(m)
  [flat] n = Flatten(j)  [fc] t = Gemm(n, w7)
}""",
    "attention": """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,6,8] x) => (float[N,6,8] y) {
  [ln] a = LayerNormalization<axis: int = -1>(x, gamma8, beta8)  [q] q0 = MatMul(a, wq)  [k] k0 = MatMul(a, wk)  [v] v0 = MatMul(a, wv)
  [kt] k1 = Transpose<perm: ints = [0,2,1]>(k0)  [qk] s0 = MatMul(q0, k1)  [scale] s1 = Mul(s0, third)
  [soft] p = Softmax<axis: int = -1>(s1)  [pv] o = MatMul(p, v0)  [res] r = Add(x, o)  [up] u0 = MatMul(r, wu)  [ub] u1 = Add(u0, bu)
  [ga] g0 = Div(u1, root2)  [erf] g1 = Erf(g0)  [one] g2 = Add(g1, one_)  [gm] g3 = Mul(u1, g2)  [half] g4 = Mul(g3, half_)
  [down] d0 = MatMul(g4, wd)  [relu] d1 = Relu(d0)  [res2] y = Add(r, d1)
}""",
}


@cache
def net(name: str) -> onnx.ModelProto:
    """The net with its weights, seeded; gamma and beta put a third of the values beyond 6, so that Clips cut."""
    random = np.random.default_rng(3)

    def floats(*shape: int) -> Array:
        return random.normal(0, 0.6, shape).astype(np.float32)

    def number(value: float) -> Array:
        return np.array(value, np.float32)

    weights = {
        "w1": floats(4, 3, 3, 3), "b1": floats(4), "w2": floats(4, 4, 3, 3), "b2": floats(4), "w3": 9 * floats(4, 1, 3, 3),
        "w4": floats(6, 8, 3, 3), "b4": floats(6), "w5": floats(10, 5), "b5": floats(5), "w6": floats(4, 4, 1, 1), "w7": floats(4, 5),
        "gamma": 1 + floats(4) ** 2, "beta": floats(4), "mean": floats(4), "var": 1 + floats(4) ** 2,
        "gamma8": 1 + floats(8) ** 2, "beta8": floats(8), **{f"w{c}": floats(8, 8) for c in "qkv"}, "wu": floats(8, 16),
        "bu": floats(16), "wd": floats(16, 8), "zero": number(0), "six": number(6), "minus": number(-1), "third": number(0.35),
        "root2": number(math.sqrt(2)), "one_": number(1), "half_": number(0.5),
    }  # fmt: skip
    read = {name for node in parsed(NETS[name]).graph.node for name in node.input}
    return onnx.shape_inference.infer_shapes(parsed(NETS[name], {n: a for n, a in weights.items() if n in read}))


@dataclass(frozen=True)
class Writer:
    """A way to quantize.

    Args:
        preset: ours; empty for onnxruntime's.
        options: what it is told.
    """

    preset: str = ""
    options: tuple[tuple[str, Any], ...] = ()

    def write(self, model: onnx.ModelProto, data: Mapping[str, Array], folder: Path) -> Path:
        """The quantized file."""
        source, path, options = folder / "source.onnx", folder / "int8.onnx", dict(self.options)
        onnx.save(model, source)
        if self.preset:
            np.savez(folder / "data.npz", allow_pickle=False, **data)
            qdqtool.quantize(source, path, preset=self.preset, data=folder / "data.npz", overwrite=True, **options)
        elif options.pop("dynamic", False):
            quantize_dynamic(source, path, **options)
        else:
            feeds = [
                {name: array[i : i + 1] for name, array in data.items()} for i in range(len(next(iter(data.values()))))
            ]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of its own, where a mask is −inf
                quantize_static(source, path, Samples(feeds), calibrate_method=CalibrationMethod.MinMax, **options)
        return path


def _ort(**options: Any) -> Writer:
    return Writer("", tuple({"weight_type": QuantType.QInt8, **options}.items()))


UNSIGNED, SIGNED = {"activation_type": QuantType.QUInt8}, {"activation_type": QuantType.QInt8}
OPERATORS = {"quant_format": QuantFormat.QOperator}
WRITERS = {
    **{
        f"{preset}, {form}": Writer(preset, (("weights", form),))
        for preset in PRESETS.names()
        for form in ("qdq", "dq")
    },
    "onnxruntime QDQ": _ort(**UNSIGNED),
    "onnxruntime QDQ, signed": _ort(**SIGNED),
    "onnxruntime QDQ, per channel": _ort(**UNSIGNED, per_channel=True),
    "onnxruntime QDQ, pairs on weights": _ort(**UNSIGNED, extra_options={"AddQDQPairToWeight": True}),
    "onnxruntime QOperator": _ort(**UNSIGNED, **OPERATORS),
    "onnxruntime QOperator, signed": _ort(**SIGNED, **OPERATORS),
    "onnxruntime QOperator, per channel": _ort(**UNSIGNED, **OPERATORS, per_channel=True),
    "onnxruntime dynamic": _ort(dynamic=True),
}  # fmt: skip


def prepared(source: onnx.ModelProto, quantized: ir.Model) -> ir.Model:
    """``source`` behind the passes of ours that ran before its values were annotated; as it is where another tool quantized it."""
    model = model_of(source)
    run_pipeline(model, "infer-shapes")
    for entry in history(quantized.metadata_props):
        before: list[Pass] = []
        for each in parse_pipeline(entry["pipeline"]).passes:
            if each.name() in ("adjust-ranges", "annotate-encodings"):
                break
            before.append(each)
        Pipeline(tuple(before)).run(model, inputs={RUNTIME: compute})
    return model


def with_weights_of(model: ir.Model, other: ir.Model) -> dict[str, float]:
    """Put the initializers of ``other`` in the place of those of ``model`` of the same name; of those that differ, how far, in
    dB: infinite of masks, numbers and biases, whose step s_x·s_w is that of the sum they are added to."""
    found = {name: value for graph in all_graphs(other) for name, value in graph.initializers.items()}
    changed: dict[str, float] = {}
    for graph in all_graphs(model):
        for name, value in graph.initializers.items():
            old = value.const_value
            new = found[name].const_value if name in found else None
            if new is None and f"{name}_bounded" in found:  # a mask of stored integers
                new = found[f"{name}_bounded"].const_value
            if new is None and f"{name}_Transposed" in found:  # as onnxruntime makes a MatMul of a Gemm
                new = ir.tensor(known_array(found[f"{name}_Transposed"]).T)
            if old is None or new is None or old.dtype != new.dtype or old.tobytes() == new.tobytes():
                continue
            is_weight = len(old.shape) > 1 and f"{name}_bounded" not in found
            changed[name] = sqnr([old.numpy()], [new.numpy()]) if is_weight else math.inf
            value.const_value = new
    return changed


def sqnr(wanted: list[Array], got: list[Array]) -> float:
    """Of the worst of some tensors, in dB."""
    worst = math.inf
    for a, b in zip(wanted, got, strict=True):
        noise = float(((a.astype(np.float64) - b) ** 2).sum())
        signal = float((a.astype(np.float64) ** 2).sum())
        worst = min(worst, math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal else -math.inf)
    return worst


def outputs(model: ir.Model, data: Mapping[str, Array]) -> list[Array]:
    """Of each sample by itself, one after the other."""
    session, count = open_session(model), len(next(iter(data.values())))
    feeds = [{name: array[i : i + 1] for name, array in data.items()} for i in range(count)]
    return [array for feed in feeds for array in session.run(feed).values()]


def taken_back(
    writer: Writer, model: onnx.ModelProto, data: Mapping[str, Array], folder: Path
) -> tuple[ir.Model, ir.Model]:
    """The quantized model, and what removal leaves of it."""
    path = writer.write(model, data, folder)
    Remove(model=path, output=folder / "float.onnx", everything=True, overwrite=True).run()
    return qdqtool.load(path), qdqtool.load(folder / "float.onnx")


#: Of each family of writers one, and all that leaves Relus out.
FAMILIES = (
    "xint8, qdq", "xint8-compat, dq", "vint8, qdq", "8a8w, dq", "qnn-a8w8, dq", "16a4w, dq", "16a16w-qat, qdq", "w4-g32, dq",
    "onnxruntime QDQ", "onnxruntime QOperator", "onnxruntime dynamic",
)  # fmt: skip

#: What 8 and 4 bits must leave of a weight, in dB: a scale that is twice the least one, of a tensor with few large values.
LEAST, LEAST_OF_4_BITS = 20.0, 12.0
#: Not bit for bit, in dB: QLinear operators keep no name of a Relu. One comes back also where calibration saw nothing below −s/2, as
#: the file cuts off there, which loses what was above.
NEARLY = {"onnxruntime QOperator": 45.0}
#: Against the float model where weights are stored as floats, and int32 biases alone are rounded.
WHOLE = 40.0


def check(writer: str, model: onnx.ModelProto, data: Mapping[str, Array], folder: Path) -> None:
    """What is left computes, bit for bit, as the prepared float model with the rounded weights; these are near to what they
    were."""
    quantized, bare = taken_back(WRITERS[writer], model, data, folder)
    reference = prepared(model, quantized)
    unrounded = outputs(reference, data)
    changed = with_weights_of(reference, bare)
    got = outputs(bare, data)
    wanted = outputs(reference, data)
    if writer in NEARLY:
        assert sqnr(wanted, got) >= NEARLY[writer]
    else:
        assert all(np.array_equal(a, b) for a, b in zip(wanted, got, strict=True))
    least = LEAST_OF_4_BITS if "4w" in writer or "w4" in writer else LEAST
    assert min(changed.values(), default=math.inf) >= least, changed
    if writer.endswith(", qdq"):
        assert sqnr(unrounded, got) >= WHOLE
        if load_preset(writer.removesuffix(", qdq")).annotate.bias in ("none", "int8"):
            assert not changed


@pytest.mark.product(cover=("name", "family"), extra=2)
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(
    ("writer", "family"), [pytest.param(name, name if name in FAMILIES else "others", id=name) for name in WRITERS]
)
def test_only_the_rounding_of_weights_is_lost(name: str, writer: str, family: str, tmp_path: Path) -> None:
    random, (value,) = np.random.default_rng(7), net(name).graph.input
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim][1:]
    check(writer, net(name), {"x": random.normal(0, 1, (6, *shape)).astype(np.float32)}, tmp_path)


#: onnxruntime 1.23 transposes the weights of Gemm, and keeps their names.
SINCE = {"onnxruntime dynamic": pytest.mark.newest}
#: What cannot be: the reference's histogram has no bins for a mask that a later sample alone holds; and in a file of QLinear operators
#: no name tells of a Clip(0, 6) whose bound calibration did not reach.
EXCEPT = {
    *((name, "xint8-compat, dq") for name in ("bert.dynamo", "bert.dynamo_dyn", "bert.ts")),
    ("ssdlite.dynamo", "onnxruntime QOperator"),
}  # fmt: skip


@pytest.mark.product(cover=(), extra=1)
@pytest.mark.parametrize(
    ("name", "writer"),
    [
        pytest.param(name, writer, marks=SINCE.get(writer, ()))
        for name in exports.names()
        for writer in FAMILIES
        if (name, writer) not in EXCEPT
    ],
)
def test_exports_come_back(name: str, writer: str, tmp_path: Path) -> None:
    check(writer, exports.model(name), exports.samples(name, 2), tmp_path)
