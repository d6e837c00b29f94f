"""Encodings of other tools put into a float model: which tensors get them, and what is said of all the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.errors import QdqError, UsageError
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.quantize import quantize
from qdq_passes.qdq.look.pairs import qdq_pairs

import qdqtool
from qdqtool.calibrate.observer import Range
from qdqtool.runtime.session import open_session
from tests.cases.encodings_helpers import ALL, NET, back, encodings, facts, file, int8, missing, uint8
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal


def test_what_the_file_has_is_inserted_and_the_rest_is_named() -> None:
    done = back(model(NET), file(*ALL))
    assert set(encodings(done)) == {"x", "w", "r", "v", "y"}
    assert missing(done) == ["b", "f"]
    assert done.fused == ("c",)  # between Conv and Relu no encoding belongs
    assert done.to_json()["missing"][0] == {"tensor": "b", "role": "bias", "nodes": ["conv"]}


def test_error_names_what_is_missing() -> None:
    """A bias counts only where the file lists biases: AIMET before 2.0.0 and QNN leave them to the converter."""
    with refusal(UsageError) as caught:
        back(model(NET), file(*ALL), missing="error")
    assert caught.value.exit_code == 2
    bias = {"name": "b", "output_dtype": "int32", "y_scale": 0.25}
    with refusal(UsageError):
        back(model(NET), file(*ALL[1:], bias), missing="error")
    assert missing(back(model(NET), file(*ALL, uint8("f", 0.25, 0)), missing="error")) == ["b"]


def test_propagate_goes_through_data_movement_both_ways() -> None:
    """Flatten moves elements only: f has the encoding of r. A MaxPool drops elements: its input does not take its output's."""
    done = back(model(NET), file(*ALL), missing="propagate")
    assert encodings(done)["f"] == encodings(done)["r"] == Encoding.per_tensor(ir.DataType.UINT8, 0.25)
    assert done.filled == {"f": "its neighbour r"}
    backward = back(model(NET), file(*ALL[:2], *ALL[3:], uint8("f")), missing="propagate")
    assert backward.filled == {"r": "its neighbour f"}
    pooled = "g (float[1,1,2,2] x) => (float[1,1,1,1] y) { [p] y = MaxPool<kernel_shape: ints = [2,2]>(x) }"
    assert back(model(pooled), file(uint8("y")), missing="propagate").filled == {}
    assert back(model(pooled), file(uint8("x")), missing="propagate").filled == {"y": "its neighbour x"}


def test_two_outputs_that_disagree_tell_nothing() -> None:
    split = """g (float[2] x) => (float[2] y, float[1,2] z) <int64[1] s = {2}, int64[1] o = {0}>
      { [a] y = Reshape(x, s) [b] z = Unsqueeze(x, o) }"""
    assert back(model(split), file(uint8("y"), uint8("z", 0.25)), missing="propagate").filled == {}
    assert list(back(model(split), file(uint8("y"), uint8("z")), missing="propagate").filled) == ["x"]


def test_calibrate_follows_the_rule_of_the_file() -> None:
    """Missing: w, b, f, y. Activations are asymmetric uint8, weights symmetric int8 per channel, so these are, too."""
    asked: list[str] = []

    def calibrate(names: list[str]) -> dict[str, Range]:
        asked.extend(names)
        return {"y": Range(-2.0, 8.2)}

    given = file(uint8("x"), uint8("r", 0.25, 0), int8("v", [0.3, 0.7], axis=1))
    done = back(model(NET), given, missing="calibrate", calibrate=calibrate)
    assert asked == ["y"]  # f comes from r
    found = encodings(done)
    assert found["y"] == Encoding.per_tensor(ir.DataType.UINT8, float(np.float32(0.04)), 50)
    scales = tuple(float(np.float32(m / 127)) for m in (1.0, 1.0))
    assert found["w"] == Encoding(dtype=ir.DataType.INT8, scale=scales, zero_point=(0, 0), shape=(2,), axis=0)
    assert missing(done) == ["b"]  # the file has no bias
    assert done.filled == {"f": "its neighbour r", "w": "its data", "y": "calibration"}
    with refusal(UsageError):
        back(model(NET), given, missing="calibrate")


def test_calibrate_on_data() -> None:
    """The public verb: y = x·[…] over the data reaches exactly [-36, 36], symmetric int8 like the one other activation."""
    feeds = [{"x": np.full((1, 2, 2, 2), sign, np.float32)} for sign in (1, -1)]
    net = "g (float[1,2,2,2] x) => (float[1,2] y) <float[8,2] v = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}> { [f] t = Flatten(x) [m] y = MatMul(t, v) }"
    from qdqtool.encodings.formats import read_document

    done = qdqtool.import_encodings(
        model(net), read_document(file(int8("x", 0.3), int8("v", 0.5))), missing="calibrate", data=lambda: iter(feeds)
    )
    assert encodings(done)["y"] == Encoding.per_tensor(ir.DataType.INT8, float(np.float32(40 / 127)))


def test_biases_in_32_bits() -> None:
    """s_x·s_w per channel, on demand; onnxruntime's overrides leave biases to their reader, so there it is the default."""
    done = back(model(NET), file(*ALL), bias="int32")
    wanted = Encoding(dtype=ir.DataType.INT32, scale=(0.25, 0.125), zero_point=(0, 0), shape=(2,), axis=0)
    assert encodings(done)["b"] == wanted
    assert missing(done) == ["f"]
    overrides = {
        "x": [{"quant_type": "QUInt8", "scale": 0.5, "zero_point": 128}],
        "w": [{"quant_type": "QInt8", "axis": 0, "scale": s, "zero_point": 0} for s in (0.5, 0.25)],
    }
    assert encodings(back(model(NET), overrides))["b"] == wanted
    assert "b" not in encodings(back(model(NET), overrides, bias="file"))
    alone = back(model(NET), {"w": overrides["w"]})
    assert "b stays float: the input x of conv has no encoding" in alone.notes


def test_a_model_that_is_quantized_already() -> None:
    done = back(model(NET), file(uint8("x"), int8("w")))
    with refusal(UsageError):
        back(done.model, file(uint8("x"), int8("w")))


def test_widths_that_meet_are_converted() -> None:
    """An 8-bit tensor before an operator that writes 16 bits: the second pair is listed as ``x_converted``."""
    float_model = model("g (float[2] x) => (float[2] y) { t = Neg(x) y = Sigmoid(t) }")
    wide = {"name": "t", "output_dtype": "uint16", "y_scale": 0.001, "y_zero_point": 9}
    found = {pair.tensor: pair.encoding for pair in qdq_pairs(back(float_model, file(uint8("x"), wide)).model)}
    assert found["x_converted"] == Encoding(dtype=ir.DataType.UINT16, scale=(0.5 / 256,), zero_point=(128 * 256,))
    narrow = {**wide, "name": "x"}
    assert back(float_model, file(narrow, uint8("t"))).notes == (
        "x is narrowed to uint8 for Neg_0; --no-boundaries leaves it",
    )
    done = back(float_model, file(uint8("x"), wide), boundaries=False)
    assert [pair.tensor for pair in qdq_pairs(done.model)] == ["x", "t"]
    assert "convert-boundaries" not in done.pipeline


def test_names_that_the_model_does_not_have() -> None:
    done = back(model(NET), file(*ALL, uint8("conv_out"), uint8("yy")))
    assert done.to_json()["alignment"]["unmatched"] == [
        {"name": "conv_out", "reason": "the model has no such tensor"},
        {"name": "yy", "reason": "the model has no such tensor; nearest: y"},
    ]
    with refusal(UsageError):
        back(model(NET), file(uint8("a"), uint8("bb")))


def test_tensors_that_cannot_be_quantized_are_named() -> None:
    odd = """g (int64[2] i, double[2] d, float[2] x) => (float[2] y, int64[2] j, double[2] e) <float s = {0.5}, float[2] w = {1, 2}>
      { [q] a = QuantizeLinear(x, s) [p] b = DequantizeLinear(a, s) [m] y = Mul(b, w) [n] j = Neg(i) [o] e = Neg(d) }"""
    done = back(model(odd), file(uint8("i"), uint8("d"), uint8("x"), uint8("b"), uint8("y")))
    assert done.declined == (
        ("i", "is int64, which QuantizeLinear does not take"),
        ("d", "is double, which QuantizeLinear does not take"),
        ("x", "has a pair already"),
        ("b", "has a pair already"),
    )
    assert done.encoded == ("y",)


def test_entries_in_the_wrong_section_count_and_are_named() -> None:
    item = {"dtype": "INT", "bw": 8, "is_sym": False, "scale": [0.5], "offset": [-128], "enc_type": "PER_TENSOR"}
    sections = {"activation_encodings": [{"name": "w", **item}], "param_encodings": [{"name": "x", **item}]}
    done = back(model(NET), {"version": "1.0.0", **sections})
    assert set(done.encoded) == {"w", "x"}
    assert done.notes == (
        "w stands among the activation encodings and is a constant; SNPE ignores such entries",
        "x stands among the param encodings and is no constant; SNPE ignores such entries",
    )


def test_what_the_file_leaves_float_stays_float_and_is_not_missing() -> None:
    half = {
        "version": "0.6.1",
        "activation_encodings": {"f": [{"bitwidth": 16, "dtype": "float"}]},
        "param_encodings": {},
    }
    done = back(model(NET), half)
    assert done.floats == ("f",)
    assert "f" not in missing(done)
    assert facts(done.model) == facts(model(NET))


def test_the_style_of_weights() -> None:
    """Stored integers by default, pairs where asked for; int32 is stored in any case, as no QuantizeLinear writes it."""
    bias = {"name": "b", "output_dtype": "int32", "y_scale": 0.25}
    for weights, stored in ((None, {"w", "b", "v"}), ("dq", {"w", "b", "v"}), ("qdq", {"b"})):
        done = back(model(NET), file(*ALL, bias), weights=weights)
        assert {pair.tensor for pair in qdq_pairs(done.model) if pair.q is None} == stored


def test_a_type_without_a_scale() -> None:
    """Weights get theirs from their data; an activation needs calibration, and is named until then."""
    rows = [{"bitwidth": 8, "dtype": "int", "is_symmetric": "True"}]
    wishes = {"activation_encodings": {"x": rows}, "param_encodings": {"v": rows}}
    done = back(model(NET), wishes)
    assert encodings(done) == {"v": Encoding.per_tensor(ir.DataType.INT8, float(np.float32(16 / 127)))}
    assert done.filled == {"v": "its data, as the file asks"}
    assert missing(done) == ["x", "w", "b", "r", "f", "y"]


def test_the_imported_model_computes_what_the_encodings_say() -> None:
    """In onnxruntime with optimization disabled, against numpy: every value on its grid, bit for bit."""
    net = "g (float[1,3] x) => (float[1,2] y) <float[3,2] w = {0.3, -1, 0.7, 1, 0.2, 2}> { [m] t = MatMul(x, w) [r] y = Relu(t) }"
    of_x, of_y = Encoding.per_tensor(ir.DataType.UINT8, 0.25, 100), Encoding.per_tensor(ir.DataType.INT8, 0.5)
    done = back(model(net), file(uint8("x", 0.25, 100), int8("w", 0.125), int8("y", 0.5)))
    x = np.array([[0.4, -3.1, 7.77]], np.float32)
    w = np.array([[0.3, -1], [0.7, 1], [0.2, 2]], np.float32)

    def on_grid(values: Any, encoding: Encoding) -> Any:
        integers = quantize(values, encoding).astype(np.float32) - np.float32(encoding.zero_point[0])
        return (integers * np.float32(encoding.scale[0])).astype(np.float32)

    product = on_grid(x, of_x) @ on_grid(w, Encoding.per_tensor(ir.DataType.INT8, 0.125))  # exact: multiples of 2^-5
    expected = on_grid(np.maximum(product, 0), of_y)
    np.testing.assert_array_equal(open_session(done.model).run({"x": x})["y"], expected)


#: (opset or type of the model, entry).
REFUSED = [
    pytest.param('<ir_version: 8, opset_import: ["": 12]>', int8("w", [0.5, 0.25], axis=0), id="per axis at opset 12"),
    pytest.param('<ir_version: 8, opset_import: ["": 17]>', {"name": "x", "output_dtype": "uint16", "y_scale": 1.0}, id="uint16 at opset 17"),
    pytest.param("", int8("w", [0.5, 0.25, 0.125], axis=0), id="three scales for two channels"),
    pytest.param("", int8("w", [0.5], axis=7), id="axis 7"),
    pytest.param("", int8("v", [[1.0, 1.0]], axis=0, block_size=4), id="too few blocks"),
    pytest.param("", {"name": "x", "output_dtype": "int32", "y_scale": 1.0}, id="int32"),
]  # fmt: skip


@pytest.mark.parametrize(("header", "entry"), REFUSED)
def test_what_the_model_cannot_hold(header: str, entry: dict[str, Any]) -> None:
    with refusal(QdqError) as caught:
        back(model(f"{header} {NET}" if header else NET), file(entry))
    assert caught.value.exit_code in (2, 3)


def test_a_model_without_types() -> None:
    """Nothing tells the type of t but inference: it is run, and noted in the pipeline."""
    net = "g (float[2] x) => (float[2] y) { [a] s, t = Split<num_outputs: int = 2>(x) [b] y = Concat<axis: int = 0>(s, t) }"
    done = back(model(net), file(uint8("t")))
    assert done.encoded == ("t",)
    assert done.pipeline == "infer-shapes,apply-encodings{encodings=@encodings},insert-qdq{weights=dq}"
    assert back(model(net), file(uint8("x"))).pipeline.startswith("apply-encodings")
