"""Presets of other vendors: on the sample models their types, ranges, zero points, axes and biases are those of the scheme."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from qdq_passes.graph.operators.channels import output_axis
from qdq_passes.graph.uses import constant_array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.pairs import Pair, qdq_pairs

from qdqtool import api
from qdqtool.io.models.save import save
from qdqtool.presets.loading import load_preset
from qdqtool.quantization.plan import CONVOLUTIONS, LINEAR
from qdqtool.verbs.work.quantizing import Quantized
from tests.cases.cli_helpers import CALIB, DIGITS, SAMPLES, accepted, cli
from tests.golden_messages.refusal import told

#: Model and its samples.
MODELS: dict[str, tuple[str, str]] = {
    "digits": (DIGITS, CALIB),
    "mobilenet_block": (str(SAMPLES / "mobilenet_block.onnx"), "random:8"),
    "vit_block": (str(SAMPLES / "vit_block.onnx"), "random:8"),
    "detector": (str(SAMPLES / "detector.onnx"), str(SAMPLES / "detector_calib.npz")),
}


@dataclass(frozen=True)
class Scheme:
    """What a preset must be. ``least`` is an SQNR in dB that it reaches on every model."""

    activations: str
    weights: str
    limit: int
    per_axis: bool = True
    bias: str | None = "int32"
    middle: int | None = None
    eps: float = 0.0
    least: float = 10.0


EXECUTORCH_8, EXECUTORCH_16 = 2.0**-12, 2.0**-20
SCHEMES: dict[str, Scheme] = {
    "8a8w": Scheme("uint8", "int8", 127, eps=EXECUTORCH_8, least=20),
    "16a8w": Scheme("uint16", "int8", 127, eps=EXECUTORCH_16, least=30),
    "16a4w": Scheme("uint16", "int4", 7, eps=EXECUTORCH_16, least=9),
    "16a16w": Scheme("uint16", "int16", 32767, per_axis=False, eps=EXECUTORCH_16, least=30),
    "qnn-a8w8": Scheme("uint8", "int8", 127, least=20),
    "qnn-a16w8": Scheme("uint16", "int8", 127, middle=32768, least=30),
    "coreml-8a-c8w": Scheme("uint8", "int8", 127, bias=None, least=20),
    "coreml-baseline-8a-c8w": Scheme("int8", "int8", 127, bias=None, eps=EXECUTORCH_8, least=20),
    "coreml-baseline-8a-c4w": Scheme("int8", "int4", 7, bias=None, eps=EXECUTORCH_8, least=9),
}
#: Presets with the observer of the original, beside those that have whole ranges.
COMPAT = ("8a8w", "16a8w", "16a16w", "coreml-8a-c8w")
QAT = ("8a8w", "16a8w", "16a4w", "16a16w")
CASES = [(preset, model) for preset in SCHEMES for model in MODELS]
#: Operators whose weights the schemes are about.
WEIGHTED = (*CONVOLUTIONS, *LINEAR)


@functools.cache
def quantized(preset: str, model: str, **options: Any) -> Quantized:
    path, data = MODELS[model]
    return api.quantize(path, preset=preset, data=data, samples=8, **options)


def readers(pair: Pair) -> Iterator[tuple[ir.Node, int]]:
    """Who reads what ``pair`` makes of its tensor."""
    yield from ((use.node, use.idx) for use in pair.output.uses())


def pairs_of(model: ir.Model, kind: str) -> list[tuple[Pair, Encoding]]:
    found = [(pair, pair.encoding) for pair in qdq_pairs(model) if pair.kind == kind]
    assert all(encoding is not None for _, encoding in found)
    return [(pair, encoding) for pair, encoding in found if encoding is not None]


def weights_of(model: ir.Model) -> list[tuple[Pair, Encoding, ir.Node]]:
    """Weights of sums of products, with the node that reads each."""
    found = []
    for pair, encoding in pairs_of(model, "weight"):
        node, index = next(readers(pair))
        if node.op_type in WEIGHTED and index == 1:
            found.append((pair, encoding, node))
    return found


@pytest.mark.product(cover=("preset", "model"))
@pytest.mark.parametrize(("preset", "model"), CASES)
def test_activations(preset: str, model: str) -> None:
    scheme, done = SCHEMES[preset], quantized(preset, model)
    assert done.quantization.ranges.method == "minmax"
    found = pairs_of(done.model, "activation")
    assert len(found) >= 10
    for pair, encoding in found:
        is_attention = preset == "16a4w" and model == "vit_block"  # its keys and values have 8 bit, see below
        wanted = {scheme.activations, "uint8"} if is_attention else {scheme.activations}
        assert encoding.dtype.name.lower() in wanted, pair.tensor
        assert encoding.axis is None
        assert encoding.scale[0] >= scheme.eps
        writer = pair.source.producer()
        if any(node.op_type == "Concat" for node, _ in readers(pair)):
            continue  # one scale for all that are joined
        if scheme.middle is not None:
            is_positive = writer is not None and writer.op_type in ("Sigmoid", "Softmax")
            assert encoding.zero_point == (0 if is_positive else scheme.middle,), pair.tensor
        if writer is not None and writer.op_type == "Sigmoid" and scheme.bias is not None:
            steps = 256 if scheme.activations == "uint8" else 65536
            assert (encoding.scale[0], encoding.zero_point[0]) == (1 / steps, 0)


def test_products_of_attention_take_16_bit_by_8_beside_weights_of_4() -> None:
    """16a4w: queries and probabilities are uint16, keys and values uint8."""
    found = [
        (encoding.dtype.name, index)
        for pair, encoding in pairs_of(quantized("16a4w", "vit_block").model, "activation")
        for node, index in readers(pair)
        if node.op_type == "MatMul" and constant_array(node.inputs[1]) is None
    ]
    assert len(found) >= 8
    assert set(found) == {("UINT16", 0), ("UINT8", 1)}


@pytest.mark.product(cover=("preset", "model"))
@pytest.mark.parametrize(("preset", "model"), CASES)
def test_weights(preset: str, model: str) -> None:
    scheme, done = SCHEMES[preset], quantized(preset, model)
    found = weights_of(done.model)
    assert len(found) >= 7
    for pair, encoding, node in found:
        assert encoding.dtype.name.lower() == scheme.weights, pair.tensor
        assert set(encoding.zero_point) == {0}
        assert min(encoding.scale) >= scheme.eps
        stored = constant_array(pair.stored)
        assert stored is not None
        assert np.abs(stored.astype(np.int64)).max() <= scheme.limit
        if scheme.per_axis:
            axis = output_axis(node, stored.ndim)
            assert encoding.axis == axis
            assert axis is not None
            assert len(encoding.scale) == stored.shape[axis]
        else:
            assert encoding.axis is None


@pytest.mark.product(cover=("preset", "model"))
@pytest.mark.parametrize(("preset", "model"), CASES)
def test_biases(preset: str, model: str) -> None:
    """int32 at float32(s_x·s_w); where a scheme has none they are float constants."""
    scheme, done = SCHEMES[preset], quantized(preset, model)
    found = pairs_of(done.model, "bias")
    if scheme.bias is None:
        assert not found
        assert any(len(n.inputs) > 2 and constant_array(n.inputs[2]) is not None for n in done.model.graph)
        return
    of_value = {pair.output: encoding for pair, encoding in [*pairs_of(done.model, "activation"), *_all_weights(done)]}
    assert len(found) >= 7
    for pair, encoding in found:
        assert encoding.dtype == ir.DataType.INT32
        node, _ = next(readers(pair))
        x, w = (of_value[value] for value in node.inputs[:2] if value is not None)
        product = np.float32(x.scale[0]) * np.asarray(w.scale, np.float32)
        np.testing.assert_array_equal(np.asarray(encoding.scale, np.float32), product)
    assert not [name for name, reason in done.quantization.refused if "s_x·s_w" in reason and "shared" not in reason]


def _all_weights(done: Quantized) -> list[tuple[Pair, Encoding]]:
    return pairs_of(done.model, "weight")


@pytest.mark.product(cover=("preset", "model"))
@pytest.mark.parametrize(("preset", "model"), CASES)
def test_the_file_is_accepted_and_computes_about_the_same(preset: str, model: str, tmp_path: Path) -> None:
    done = quantized(preset, model)
    save(done.model, tmp_path / "q.onnx")
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)
    assert done.comparison is not None
    assert done.comparison.min_sqnr is not None
    assert done.comparison.min_sqnr >= SCHEMES[preset].least


def test_more_bits_are_better() -> None:
    """On the ViT, whose outlier channels cost 8 bits most."""
    figures = [_sqnr(quantized(p, "vit_block")) for p in ("16a4w", "16a8w", "16a16w")]
    assert figures == sorted(figures)
    assert _sqnr(quantized("8a8w", "vit_block")) < figures[1] - 6


@pytest.mark.product(extra=2)
@pytest.mark.parametrize("preset", COMPAT)
def test_the_observer_of_the_original_differs_in_ranges_alone(preset: str) -> None:
    """The moving average over single samples cuts off what few of them reach; what is quantized, and how, is the same."""
    plain, compat = quantized(preset, "digits"), quantized(f"{preset}-compat", "digits")
    assert compat.quantization.ranges.method == "moving-average"
    assert _sqnr(plain) > _sqnr(compat) + 10
    assert _integers(quantized(preset, "digits", method="moving-average").model) == _integers(compat.model)
    shapes = [
        [(pair.tensor, encoding.dtype, encoding.axis) for pair, encoding in pairs_of(done.model, "activation")]
        for done in (plain, compat)
    ]
    assert shapes[0] == shapes[1]


def _sqnr(done: Quantized) -> float:
    assert done.comparison is not None
    assert done.comparison.min_sqnr is not None
    return done.comparison.min_sqnr


def test_constants_of_other_operators_are_stored_as_each_scheme_has_it() -> None:
    """Gains of norms: as activations beside 8 bits, int16 beside 16 (ExecuTorch), uint8 for onnxruntime's QNN."""
    for preset, wanted in (("8a8w", "uint8"), ("16a8w", "int16"), ("16a4w", "int16"), ("qnn-a16w8", "uint8")):
        gains = {
            encoding.dtype.name.lower()
            for pair, encoding in pairs_of(quantized(preset, "vit_block").model, "weight")
            if next(readers(pair))[0].op_type == "LayerNormalization"
        }
        assert gains == {wanted}, preset
    added = [
        encoding.dtype.name.lower()
        for pair, encoding in pairs_of(quantized("16a8w", "vit_block").model, "weight")
        if next(readers(pair))[0].op_type == "Add"
    ]
    assert set(added) == {"uint16"}


@pytest.mark.product(days=6)
@pytest.mark.parametrize("preset", ["qnn-a8w8", "qnn-a16w8"])
@pytest.mark.parametrize("model", MODELS)
def test_what_is_made_for_qnn_is_computed_in_integers_there(preset: str, model: str, tmp_path: Path) -> None:
    """By the verdicts of the target, which were measured: nothing falls back, nothing is computed in floats."""
    save(quantized(preset, model).model, tmp_path / "q.onnx")
    findings = cli("check", tmp_path / "q.onnx", "--target", "qnn_htp", "--json").json["findings"]
    rules = {finding["rule"] for finding in findings}
    assert rules <= {"unbound-batch", "matmul-int16-narrowed", "conv-silu-uint16"}, findings


@pytest.mark.product(days=6)
@pytest.mark.parametrize(
    ("preset", "model"),
    [*((preset, "digits") for preset in (*SCHEMES, "8a8w-qat", "8a8w-compat")), ("16a8w", "vit_block")],
)
def test_the_printed_pipeline_replays(preset: str, model: str, tmp_path: Path) -> None:
    path, data = MODELS[model]
    made, ranges, text = tmp_path / "a.onnx", tmp_path / "r.json", tmp_path / "p.txt"
    cli("quantize", path, "--preset", preset, "--data", data, "--samples", "2", "-o", made, "--save-ranges", ranges)
    text.write_text(cli("quantize", path, "--preset", preset, "--print-pipeline").out)
    cli("opt", path, "-p", f"@{text}", "--ranges", ranges, "-o", tmp_path / "b.onnx")
    assert made.read_bytes() == (tmp_path / "b.onnx").read_bytes()
    accepted(made)


@pytest.mark.product(cover=("preset", "model"))
@pytest.mark.parametrize("preset", QAT)
@pytest.mark.parametrize("model", ["digits", "vit_block"])
def test_forms_for_training(preset: str, model: str) -> None:
    """Pairs on float weights, float biases, the same grid; stored, they are the preset's own integers."""
    done = quantized(f"{preset}-qat", model)
    assert not pairs_of(done.model, "bias")
    for pair, encoding, _ in weights_of(done.model):
        array = constant_array(pair.stored)
        assert pair.q is not None
        assert array is not None
        assert array.dtype == np.float32
        assert encoding.dtype.name.lower() == SCHEMES[preset].weights
    stored = run_pipeline(done.model, "fold-weight-qdq,convert-bias", copy=True).model
    wanted, found = _integers(quantized(preset, model).model), _integers(stored)
    assert len(wanted) >= 5
    for name, what in wanted.items():
        assert found[name] == what


def _integers(model: ir.Model) -> dict[str, tuple[str, bytes, tuple[float, ...]]]:
    """Tensor → what is stored for it."""
    found = {}
    for pair in qdq_pairs(model):
        array = constant_array(pair.stored)
        if array is not None and pair.encoding is not None:
            found[pair.tensor] = (pair.encoding.dtype.name, array.tobytes(), pair.encoding.scale)
    return found


def _widened(done: Quantized) -> set[str]:
    """Weights that were widened for their bias, and those biases: after training there is another bias."""
    changes = [change for change in done.quantization.changes if "so that int32 holds" in change.because]
    return {change.where for change in changes} | {change.because.rpartition(" holds ")[2] for change in changes}


@pytest.mark.parametrize("switch", ["conv", "linear"])
def test_switches_of_per_axis_weights(switch: str) -> None:
    changed = CONVOLUTIONS if switch == "conv" else LINEAR
    done = quantized("8a8w", "vit_block", **{f"per_axis_{switch}": False})
    for _, encoding, node in weights_of(done.model):
        assert (encoding.axis is None) == (node.op_type in changed), node.name
    assert load_preset("8a8w").annotate.per_axis == (*CONVOLUTIONS, *LINEAR)


def test_switches_turn_per_axis_weights_on() -> None:
    done = quantized("a8w8", "vit_block", per_axis_linear=True)
    found = [(node.op_type, encoding.axis, output_axis(node, 2)) for _, encoding, node in weights_of(done.model)]
    assert {axis for op_type, axis, _ in found if op_type == "Conv"} == {None}
    linear = [(axis, wanted) for op_type, axis, wanted in found if op_type in LINEAR]
    assert len(linear) > 10
    assert all(axis == wanted for axis, wanted in linear)


def test_switches_are_refused_with_a_reason() -> None:
    told(cli("quantize", DIGITS, "--preset", "16a16w", "--per-axis-conv", "--print-pipeline", code=2).error)
    for preset in ("xint8", "vint8", "xint8-compat"):
        told(cli("quantize", DIGITS, "--preset", preset, "--per-axis-linear", "--print-pipeline", code=2).error)
    options = ("--per-axis-conv", "--extra-options", "per_channel=false", "--print-pipeline")
    told(cli("quantize", DIGITS, "--preset", "a8w8", *options, code=2).error)
    cli("quantize", DIGITS, "--preset", "16a16w", "--no-per-axis-conv", "--print-pipeline")


def test_discarded_nodes_are_excluded_nodes() -> None:
    left = cli(
        "quantize", DIGITS, "--preset", "8a8w", "--discard", "op:Concat", "--discard", "/head/fc", "--print-pipeline"
    )
    right = cli(
        "quantize", DIGITS, "--preset", "8a8w", "--exclude", "op:Concat", "--exclude", "/head/fc", "--print-pipeline"
    )
    assert left.out == right.out
    assert 'exclude=["op:Concat",' in left.out
    told(cli("quantize", DIGITS, "--preset", "8a8w", "--discard", "op:Nope", "--print-pipeline", code=2).error)


def test_a_bias_beyond_int32_widens_its_weight() -> None:
    """int16 weights beside 16-bit activations: s_x·s_w is so small that 2^31 steps of it do not reach every bias."""
    done = quantized("16a16w", "digits")
    widened = _widened(done)
    assert widened
    assert not [reason for _, reason in done.quantization.refused if "more than int32 holds" in reason]
    for pair, _ in pairs_of(done.model, "bias"):
        array = constant_array(pair.stored)
        assert array is not None
        assert (np.abs(array.astype(np.int64)) <= 2**31 - 1).all()
        if pair.tensor in widened:
            assert np.abs(array.astype(np.int64)).max() > 2**31 * 0.99
