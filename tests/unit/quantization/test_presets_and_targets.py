"""What a preset quantizes, a target takes whose tables take its types: one network holds every operator, or in the part
some, between layers."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from qdq_passes.encode.edit.precision import FLOATS
from qdq_passes.encode.set_precision import SetPrecision
from qdq_passes.legalize.split_operators import FORMS
from qdq_passes.numerics.encoding import Encoding, parse_dtype

import qdqtool
from qdqtool.presets import PRESETS
from qdqtool.presets.loading import load_preset
from qdqtool.presets.preset import Preset
from qdqtool.quantization.options import PlanOptions
from qdqtool.quantization.precision import precision_passes
from qdqtool.targets.loading import TARGETS, load_target
from qdqtool.targets.rules import Operand
from qdqtool.targets.target import Target
from tests.dial import some

#: Operator → what computes y from x of [1, 4, 6, 6]; constants are those of `CONSTANTS`.
OPERATORS = {
    "Abs": "Abs(x)", "Add": "Add(x, c)", "AveragePool": "AveragePool<kernel_shape = [2, 2]>(x)", "Clip": "Clip(x, zero, six)",
    "BatchNormalization": "BatchNormalization(x, one4, c4, c4, one4)", "Celu": "Celu(x)", "Concat": "Concat<axis = 1>(x, k)",
    "Conv": "Conv(x, w, c4)", "ConvTranspose": "ConvTranspose(x, w, c4)", "DepthToSpace": "DepthToSpace<blocksize = 2>(x)",
    "Div": "Div(x, one)", "Elu": "Elu(x)", "Expand": "Expand(p, wide)", "Flatten": "Flatten(x)", "Gather": "Gather<axis = 1>(x, first)",
    "Gelu": "Gelu(x)", "Gemm": "Gemm(r, g, c4)", "GlobalAveragePool": "GlobalAveragePool(x)", "GlobalMaxPool": "GlobalMaxPool(x)",
    "HardSigmoid": "HardSigmoid<alpha = 0.1666666716337204>(x)", "HardSwish": "HardSwish(x)",
    "InstanceNormalization": "InstanceNormalization(x, one4, c4)", "LayerNormalization": "LayerNormalization(x, one6, c6)",
    "LeakyRelu": "LeakyRelu<alpha = 0.1015625>(x)", "MatMul": "MatMul(x, k)", "Max": "Max(x, c, k)", "MaxPool": "MaxPool<kernel_shape = [2, 2]>(x)",
    "Mean": "Mean(x, c, k)", "Min": "Min(x, c, k)", "Mish": "Mish(x)", "Mul": "Mul(x, k)", "Neg": "Neg(x)", "PRelu": "PRelu(x, slope)",
    "Pad": "Pad(x, pads)", "Reciprocal": "Reciprocal(q)", "ReduceMax": "ReduceMax(x, plane)", "ReduceMean": "ReduceMean(x, plane)",
    "ReduceSum": "ReduceSum(x, plane)", "Relu": "Relu(x)", "Reshape": "Reshape(x, rows)", "Resize": "Resize(x, , twice)",
    "Selu": "Selu(x)", "Sigmoid": "Sigmoid(x)", "Slice": "Slice(x, first, last)", "Softmax": "Softmax(x)", "Softsign": "Softsign(x)",
    "SpaceToDepth": "SpaceToDepth<blocksize = 2>(x)", "Split": "Split<axis = 1, num_outputs = 1>(x)", "Squeeze": "Squeeze(p)",
    "Sub": "Sub(x, c)", "Sum": "Sum(x, c)", "Tanh": "Tanh(x)", "Tile": "Tile(p, copies)", "Transpose": "Transpose<perm = [0, 2, 3, 1]>(x)",
    "Unsqueeze": "Unsqueeze(x, first)",
}  # fmt: skip
#: Types and data of the constants that they read.
CONSTANTS = {
    "c": ("float[1,4,1,1]", "{0.5, -0.25, 1, 0.75}"), "k": ("float[1,4,6,6]", None), "one": ("float", "{2}"),
    "one4": ("float[4]", "{1, 2, 1, 0.5}"), "c4": ("float[4]", "{0.5, 1, 0.25, 1}"), "one6": ("float[6]", "{1, 2, 1, 0.5, 1, 1}"),
    "c6": ("float[6]", "{0.5, 1, 0, 1, -1, 0}"), "zero": ("float", "{0}"), "six": ("float", "{6}"), "w": ("float[4,4,1,1]", None),
    "wide": ("int64[4]", "{1, 4, 6, 6}"), "first": ("int64[1]", "{0}"), "last": ("int64[1]", "{1}"), "g": ("float[4,4]", None),
    "slope": ("float[4,1,1]", "{0.25, 0.5, 0.125, 0.25}"), "pads": ("int64[8]", "{0, 0, 1, 1, 0, 0, 1, 1}"),
    "plane": ("int64[2]", "{2, 3}"), "rows": ("int64[2]", "{1, -1}"), "twice": ("float[4]", "{1, 1, 2, 2}"),
    "copies": ("int64[4]", "{1, 1, 2, 2}"),
}  # fmt: skip

#: (target, words of a verdict) → why an operator is left to the CPU, or refused, all the same.
EXCEPTIONS = {
    ("generic_int8", "Normalization on generic_int8: weight"): "gains are stored as activations are, uint8 with a zero point",
    ("generic_int8", "LayerNormalization is not quantized: reads c6 as a float"): "presets of Core ML leave biases float",
    ("generic_int8", "MatMul on generic_int8: weight has zero point"): "Core ML's stores constants of four axes as activations",
    ("qnn_htp", "InstanceNormalization on qnn_htp: weight is int16"): "16a16w stores every weight in 16 bits, as ExecuTorch does",
    ("qnn_htp", "Pad with a constant and int16 input"): "it pads int16 in other modes, which no list of operators says",
    ("qnn_htp", "Transpose of 6 dimensions with int16 input"): "that of a DepthToSpace, which it has not for int16 either",
    ("qnn_htp", "LayerNormalization with uint8 input and int8 gain"): "u8w8 stores gains with no zero point, as generic_int8 wants them",
    ("qnn_htp", "PRelu with uint16 input fails to compile"): "mobilequant gives it 16 bits by a rule; lists go by the preset's type",
    ("qnn_htp_v68", "with int16 weight is not supported"): "16-bit weights are refused by a case there, not by a scheme",
    ("qnn_htp", "Celu is not supported on qnn_htp"): "there is no Min and no Exp of int16 to write it with",
}  # fmt: skip


def is_excepted(target: str, reason: str) -> bool:
    """Whether ``reason`` of a verdict is one that has to be."""
    return any(target.startswith(name) and words in reason.replace(target, name) for name, words in EXCEPTIONS)


def encoding(dtype: str, *, symmetric: bool, pow2: bool) -> Encoding:
    """An encoding such as a preset makes it."""
    signed = not dtype.startswith("u")
    zero = 0 if signed else 1 << (parse_dtype(dtype).bitwidth - 1)
    return Encoding.per_tensor(parse_dtype(dtype), 0.5 if pow2 else 0.3, zero if symmetric else zero + 3)


def are_made_for_each_other(preset: Preset, target: Target) -> bool:
    """Whether ``target`` computes the layers of ``preset`` on integers, all of them: by types, zero points and scales."""
    policy = preset.annotate
    if policy.activations == "none" or not preset.is_calibrated:
        return False
    pow2, after = policy.scales == "pow2", {p.name() for p in target.legalization.after.passes}
    bias = "int32" if "convert-bias" in after else policy.bias
    given: dict[Operand, Encoding] = {
        "activations": encoding(policy.activations, symmetric=policy.symmetric, pow2=pow2),
        "weights": encoding(policy.weights, symmetric=policy.weights_symmetric, pow2=pow2),
    }
    if bias != "none":
        given["bias"] = encoding(bias, symmetric=True, pow2=pow2)
    stored = dict(entry.split(":") for entry in policy.weight_types)
    others = {p.dtype for p in precision_passes(preset, PlanOptions()).passes if isinstance(p, SetPrecision)} - {
        *FLOATS
    }
    rules = {op: rule for rule in target.rules for op in rule.types}
    return all(
        any(scheme.compute == "integer" and not scheme.complaints(given) for scheme in rules[op].schemes)
        for op in ("Conv", "Gemm", "MatMul")
        if stored.get(op, policy.weights) != "activation"
    ) and all(any(parse_dtype(other) in scheme.activations for scheme in rules["Add"].schemes) for other in others)


PAIRS = [
    (name, target.name)
    for target, (name, preset) in itertools.product(
        map(load_target, TARGETS.names()), [(name, load_preset(name)) for name in PRESETS.names()]
    )
    if are_made_for_each_other(preset, target)
]


def network(operators: list[str], file: Path) -> None:
    """A model that reads what a Conv writes with each of ``operators``, and writes what each makes."""
    body = ["a = Conv(input, w)", "p = GlobalAveragePool(a)", "r = Flatten(p)", "s = Sigmoid(a)", "q = Add(s, one)"]
    for number, op in enumerate(operators):
        body += [f"x{number} = Conv(a, w, c4)", f"[{op}] y{number} = {OPERATORS[op].replace('(x', f'(x{number}')}"]
    constants = ", ".join(f"{dtype} {name} = {data}" for name, (dtype, data) in CONSTANTS.items() if data is not None)
    text = (
        f'<ir_version: 10, opset_import: ["" : 20]> g (float[1,4,6,6] input) => '
        f"({', '.join(f'float[] y{n}' for n in range(len(operators)))}) <{constants}> {{ {' '.join(body)} }}"
    )
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for name, (dtype, data) in CONSTANTS.items():
        if data is None:
            shape = [int(size) for size in dtype.removeprefix("float[").removesuffix("]").split(",")]
            proto.graph.initializer.append(
                onnx.numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name)
            )
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    onnx.save(onnx.shape_inference.infer_shapes(proto, strict_mode=True), file)


def test_every_target_for_integers_has_a_preset() -> None:
    assert {target for _, target in PAIRS} == {name for name in TARGETS.names() if name != "apple_ane"}
    assert ("xint8", "vitis_xint8") in PAIRS
    assert ("qnn-a8w8", "vitis_xint8") not in PAIRS


@pytest.mark.product(days=8)
@pytest.mark.parametrize(("preset", "target"), PAIRS, ids=[f"{p}-{t}" for p, t in PAIRS])
def test_what_a_preset_quantizes_its_target_takes(preset: str, target: str, tmp_path: Path) -> None:
    chip, listed = load_target(target), set(load_preset(preset).annotate.ops)
    split = {form.op for form in FORMS.values() if set(form.pieces) <= set(chip.quantized_ops())}
    operators = [op for op in OPERATORS if op in listed | split | set(chip.quantized_ops())]
    operators = some(operators, 16)
    network(operators, tmp_path / "float.onnx")
    np.savez(tmp_path / "data.npz", input=np.random.default_rng(1).normal(size=(2, 4, 6, 6)).astype(np.float32))
    qdqtool.quantize(
        tmp_path / "float.onnx", tmp_path / "int.onnx", preset=preset, target=target, data=str(tmp_path / "data.npz")
    )
    report = qdqtool.analyze(tmp_path / "int.onnx", target=target).to_json()
    left = {
        f"{node['verdict']} {node['op']} {node['name']} [{node['rule']}]: {node['reason']}"
        for node in report["nodes"]
        if node["op"] not in ("QuantizeLinear", "DequantizeLinear")
        and node["verdict"] in ("fallback", "refused")
        and not is_excepted(target, node["reason"])
    }
    assert not left, "\n".join(sorted(left))
