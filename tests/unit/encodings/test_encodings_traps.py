"""Files in the wild: what they mean although they are odd, and what is said of those that are broken."""

from __future__ import annotations

import json
from typing import Any

import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, QdqError, UnsupportedError
from qdq_passes.numerics.encoding import Encoding

from qdqtool.encodings.entries import Encodings
from qdqtool.encodings.files import read_encodings
from qdqtool.encodings.formats import read_document, write_document
from qdqtool.encodings.reading import encoding_for
from tests.cases.encodings_helpers import as_json, per_axis, values
from tests.golden_messages.refusal import refusal

INT8, UINT8 = ir.DataType.INT8, ir.DataType.UINT8
X = Encoding.per_tensor(UINT8, 0.5, 128)


def row(**changes: Any) -> dict[str, Any]:
    fields = {
        "bitwidth": 8,
        "dtype": "int",
        "is_symmetric": "False",
        "max": 63.5,
        "min": -64.0,
        "offset": -128,
        "scale": 0.5,
    }
    return {k: v for k, v in {**fields, **changes}.items() if v != "-"}


def rows(**changes: Any) -> Any:
    return {"activation_encodings": {"x": [row(**changes)]}}


def item(**changes: Any) -> Any:
    fields = {
        "name": "x",
        "dtype": "INT",
        "bw": 8,
        "is_sym": False,
        "scale": [0.5],
        "offset": [-128],
        "enc_type": "PER_TENSOR",
    }
    kept = {k: v for k, v in {**fields, **changes}.items() if v != "-"}
    return {"version": "1.0.0", "activation_encodings": [kept]}


def two(**changes: Any) -> Any:
    fields = {"name": "x", "output_dtype": "uint8", "y_scale": 0.5, "y_zero_point": 128}
    return {"version": "2.0.0", "encodings": [{k: v for k, v in {**fields, **changes}.items() if v != "-"}]}


def lpbq(**changes: Any) -> Any:
    factors = {
        "per_channel_float_scale": [1.0, 2.0],
        "per_block_int_scale": [[1, 2], [3, 4]],
        "axis": 1,
        "block_size": 2,
    }
    return two(output_dtype="int4", y_scale="-", y_zero_point="-", **{**factors, **changes})


#: (document, what entry x means): traps of files in the wild.
TRAPS: dict[str, tuple[Any, Encoding]] = {
    "an entry of 1.0.0 in a file that says 2.0.0": ({"version": "2.0.0", "encodings": item()["activation_encodings"]}, X),
    "an entry of 2.0.0 in a file that says 1.0.0": ({"version": "1.0.0", "activation_encodings": two()["encodings"]}, X),
    "rows in a file that says 1.0.0": ({"version": "1.0.0", **rows()}, X),
    "sections of 1.0.0 as objects": ({"version": "1.0.0", "activation_encodings": {"x": item()["activation_encodings"][0]}}, X),
    "a row that is no list": ({"version": "0.6.1", "activation_encodings": {"x": rows()["activation_encodings"]["x"][0]}}, X),
    "0.4.0 has no dtype": ({"version": "0.4.0", **rows(dtype="-")}, X),
    "a version without a name": ({"version": "0.5.0", **rows()}, X),
    "booleans for is_symmetric": (rows(is_symmetric=False), X),
    "offsets as floats": (rows(offset=-128.0), X),
    "lists in one row": (rows(scale=[0.5], offset=[-128], min=[-64.0], max=[63.5]), X),
    "no offset, but min": (rows(offset="-"), X),
    "signed grid: offset 0 with a negative min": (rows(is_symmetric="True", offset=0), Encoding.per_tensor(INT8, 0.5)),
    "signed, from 0 on": (rows(is_symmetric="True", offset=0, min=0.0, max=127.5), Encoding.per_tensor(INT8, 0.5, -128)),
    "signed with a zero point": (rows(is_symmetric="True", offset=-111), Encoding.per_tensor(INT8, 0.5, -17)),
    "range only": (rows(scale="-", offset="-", min=0.0, max=127.5), Encoding.per_tensor(UINT8, 0.5)),
    "signed range only": (rows(is_symmetric="True", scale="-", offset="-", min=-63.5, max=63.5), Encoding.per_tensor(INT8, 0.5)),
    "no enc_type": (item(enc_type="-"), X),
    "no offset, signed": (item(is_sym=True, offset="-"), Encoding.per_tensor(INT8, 0.5)),
    "FP is FLOAT, INT in small letters is a row": (rows(dtype="INT"), X),
    "a list of one scale": (two(y_scale=[0.5], y_zero_point=[128]), X),
    "one zero point for all": (
        {"encodings": [{"name": "conv.weight", "output_dtype": "uint8", "y_scale": [1, 2, 3, 4], "y_zero_point": 7, "axis": 0}]},
        Encoding(dtype=UINT8, scale=(1, 2, 3, 4), zero_point=(7,) * 4, shape=(4,), axis=0),
    ),
    "no axis where there must be one": (
        {"encodings": [{"name": "conv.weight", "output_dtype": "int8", "y_scale": [1, 2, 3, 4]}]}, per_axis(INT8, (1, 2, 3, 4)),
    ),
    "scales in the shape of the weight": (
        {"encodings": [{"name": "conv.weight", "output_dtype": "int8", "y_scale": [[[[1]]], [[[2]]], [[[3]]], [[[4]]]], "axis": 0}]},
        per_axis(INT8, (1, 2, 3, 4)),
    ),
    "one scale for a kernel": (
        {"encodings": [{"name": "conv.weight", "output_dtype": "int8", "y_scale": [[[[1]]], [[[2]]], [[[3]]], [[[4]]]], "axis": 1,
          "block_size": 2}]},
        Encoding(dtype=INT8, scale=(1, 2, 3, 4), zero_point=(0,) * 4, shape=(4, 1, 1, 1), axis=1, block_size=2),
    ),
    "QuantType of onnxruntime, printed": ({"x": [{"quant_type": "QuantType.QUInt8", "scale": 0.5, "zero_point": 128}]}, X),
    "a range for onnxruntime": ({"x": [{"quant_type": "QUInt8", "rmin": 0.0, "rmax": 127.5}]}, Encoding.per_tensor(UINT8, 0.5)),
}  # fmt: skip


@pytest.mark.parametrize("trap", TRAPS)
def test_traps(trap: str) -> None:
    document, meaning = TRAPS[trap]
    (found,) = read_document(document).entries
    assert encoding_for(found, values()[found.name], None) == meaning


def test_a_shift_of_half_a_step() -> None:
    """``zero_point_shift`` of 1.0.0: the zero point lies between two integers. Files keep it, ONNX cannot have it."""
    read = read_document(item(zero_point_shift=[0.5]))
    (found,) = read.entries
    assert found.holds == Encoding(dtype=UINT8, scale=(0.5,), zero_point=(127.5,))
    assert (
        as_json(
            write_document(Encodings(format="", entries=(type(found)(name="x", holds=found.holds),)), "aimet-1.0.0")
        )["activation_encodings"]
        == item(zero_point_shift=[0.5])["activation_encodings"]
    )
    with refusal(UnsupportedError):
        encoding_for(found, values()["x"], None)


#: (document, what is wrong with it).
BROKEN: dict[str, tuple[Any, str]] = {
    "no object": ([1], "is no encodings file: not an object with fields; known are aimet-0.6.1"),
    "empty": ({}, "is no encodings file: not an object"),
    "something else": ({"a": 1}, "is no encodings file: neither activation_encodings nor encodings in it"),
    "a version to come": ({"version": "3.0.0", "encodings": []}, "has the encodings version '3.0.0', which is not known"),
    "a section that is a number": ({"activation_encodings": 3}, "activation_encodings is neither an object nor a list"),
    "a nameless entry": ({"encodings": [{}]}, "entry 1 of encodings has no name"),
    "listed twice": ({"encodings": [two()["encodings"][0]] * 2}, "x: is listed twice, in encodings and before"),
    "no row": ({"activation_encodings": {"x": []}}, "x: its list of rows is empty"),
    "a row that is a number": ({"activation_encodings": {"x": [1]}}, "x: its entry is a number, not an object"),
    "no bits": (rows(bitwidth="-"), "x: field 'bitwidth' is missing, expected an integer"),
    "half bits": (rows(bitwidth=8.5), "x: field 'bitwidth' is a number, expected an integer"),
    "5 bits": (rows(bitwidth=5), "x: ONNX has no 5-bit integers; it has 2, 4, 8, 16 and 32 bits"),
    "float of 8 bits": (rows(bitwidth=8, dtype="float"), "x: a float of 8 bits; 16 and 32 are known"),
    "maybe symmetric": (rows(is_symmetric="maybe"), "x: field 'is_symmetric' is a text, expected \"True\" or \"False\""),
    "no scale": (rows(scale=0.0), "x: 0 is no scale, which is positive"),
    "a text for a scale": (rows(scale="big"), "x: field 'scale' is a text, expected a number or a list of numbers"),
    "an offset off the grid": (rows(offset=11), "x: offset 11 gives zero point -11, which uint8 does not hold"),
    "a zero point that int8 does not hold": (two(output_dtype="int8", y_zero_point=200), "x: the zero point 200 is outside int8, [-128, 127]"),
    "a zero point of a float": (two(output_dtype="float8e4m3fn", y_zero_point=3), "x: the zero point 3 is outside float8e4m3fn"),
    "a zero point that uint8 does not hold, per channel": (
        two(y_scale=[1, 2], y_zero_point=[0, -1], axis=0), "x: the zero point -1 is outside uint8, [0, 255]",
    ),
    "no offset at all": (rows(offset="-", min="-"), "x: neither offset nor min is given"),
    "two scales per tensor": (item(scale=[1, 2], offset=[0, 0]), "x: 2 scales with enc_type PER_TENSOR"),
    "an unknown enc_type": (item(enc_type="VECTOR"), "x: field 'enc_type' is a text, expected PER_TENSOR, PER_CHANNEL"),
    "an unknown dtype": (item(dtype="COMPLEX"), "x: field 'dtype' is a text, expected \"INT\" or \"FLOAT\""),
    "blocks without a size": (item(enc_type="PER_BLOCK"), "x: field 'block_size' is missing, expected an integer"),
    "too few offsets": (item(scale=[1, 2, 3], offset=[0, 0], enc_type="PER_CHANNEL"), "x: field 'offset' has 2 numbers, expected 3"),
    "LPBQ that does not divide": (
        item(enc_type="LPBQ", compressed_bw=4, scale=[1, 2], per_block_int_scale=[1, 2, 3], block_size=2),
        "x: 3 block scales for 2 channels",
    ),
    "LPBQ without an axis": (lpbq(axis="-"), "x: field 'axis' is missing, expected the axis of the blocks"),
    "LPBQ along no axis": (lpbq(axis=2), "x: 4 block scales for shape [2, 2], axis 2"),
    "LPBQ with scales of other channels": (lpbq(axis=0, per_channel_float_scale=[1.0]), "x: 1 channel scales for shape [2, 2]"),
    "rows of different bits": (
        {"activation_encodings": {"x": [row() | {"bitwidth": bits} for bits in (8, 4)]}}, "x: its rows differ in bitwidth or dtype",
    ),
    "rows of integers and floats": (
        {"activation_encodings": {"x": [row() | {"dtype": kind} for kind in ("int", "float")]}}, "x: its rows differ in bitwidth or dtype",
    ),
    "ranges per channel": (
        {"activation_encodings": {"x": [row(scale="-", offset="-")] * 2}}, "x: ranges per channel without scales; give scale and offset",
    ),
    "a float of 8 bits in 1.0.0": (item(dtype="FLOAT", bw=8), "x: a float of 8 bits; 16 and 32 are known"),
    "a number for a dtype": (rows(dtype=3), "x: field 'dtype' is a number, expected a text"),
    "a hint of an unknown float": (
        {**two(), "qdqtool": {"float": {"w": "flaot16"}}}, "w: the hint 'float' names no type: 'flaot16'",
    ),
    "an unknown type": (two(output_dtype="float16"), "x: field 'output_dtype' is a text, expected an integer type or a float8"),
    "ragged scales": (two(y_scale=[[1], [1, 2]]), "x: field 'y_scale' is a list, expected a number or a list of numbers"),
    "a block without an axis": (two(block_size=2), "x: field 'axis' is missing, expected the axis of the blocks"),
    "an axis that is not there": (
        two(y_scale=[[1, 2]], y_zero_point="-", axis=4, block_size=2), "x: axis 4 with blocked scales of shape [1, 2]",
    ),
    "channels without an axis": ({"x": [{"quant_type": "QInt8", "scale": 1, "zero_point": 0}] * 2}, "x: 2 channels without an axis"),
    "an unknown QuantType": ({"x": [{"quant_type": "QInt3"}]}, "x: field 'quant_type' is a text, expected one of QInt8, QUInt8"),
    "a scale without its type": ({"x": [{"scale": 1.0, "zero_point": 0}]}, "x: field 'quant_type' is missing"),
    "a zero point off the grid": (
        {"x": [{"quant_type": "QInt8", "scale": 1.0, "zero_point": 128}]}, "x: zero point 128 is no int8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken_files(what: str) -> None:
    document, text = BROKEN[what]
    with pytest.raises(QdqError) as caught:
        read_document(document)
    assert text in str(caught.value)
    assert caught.value.exit_code in (2, 3)


def test_the_message_names_file_and_tensor(tmp_path: Any) -> None:
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(rows(scale=-1.0)), encoding="utf-8")
    with refusal(ModelError):
        read_encodings(path)
    path.write_text('{"version": "0.6.1", "activation_encodings": {"x": [], "x": []}}', encoding="utf-8")
    with refusal(ModelError):
        read_encodings(path)
    path.write_text('{"version": "0.6.1", "activation_encodings": {"x": [{"scale": NaN}]}}', encoding="utf-8")
    with refusal(ModelError):
        read_encodings(path)
