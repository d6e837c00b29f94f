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


#: What is wrong with a document.
BROKEN: dict[str, Any] = {
    "no object": [1],
    "empty": {},
    "something else": {"a": 1},
    "a version to come": {"version": "3.0.0", "encodings": []},
    "a section that is a number": {"activation_encodings": 3},
    "a nameless entry": {"encodings": [{}]},
    "listed twice": {"encodings": [two()["encodings"][0]] * 2},
    "no row": {"activation_encodings": {"x": []}},
    "a row that is a number": {"activation_encodings": {"x": [1]}},
    "no bits": rows(bitwidth="-"),
    "half bits": rows(bitwidth=8.5),
    "5 bits": rows(bitwidth=5),
    "float of 8 bits": rows(bitwidth=8, dtype="float"),
    "maybe symmetric": rows(is_symmetric="maybe"),
    "no scale": rows(scale=0.0),
    "a text for a scale": rows(scale="big"),
    "an offset off the grid": rows(offset=11),
    "a zero point that int8 does not hold": two(output_dtype="int8", y_zero_point=200),
    "a zero point of a float": two(output_dtype="float8e4m3fn", y_zero_point=3),
    "a zero point that uint8 does not hold, per channel": two(y_scale=[1, 2], y_zero_point=[0, -1], axis=0),
    "no offset at all": rows(offset="-", min="-"),
    "two scales per tensor": item(scale=[1, 2], offset=[0, 0]),
    "an unknown enc_type": item(enc_type="VECTOR"),
    "an unknown dtype": item(dtype="COMPLEX"),
    "blocks without a size": item(enc_type="PER_BLOCK"),
    "too few offsets": item(scale=[1, 2, 3], offset=[0, 0], enc_type="PER_CHANNEL"),
    "LPBQ that does not divide": item(enc_type="LPBQ", compressed_bw=4, scale=[1, 2], per_block_int_scale=[1, 2, 3], block_size=2),
    "LPBQ without an axis": lpbq(axis="-"),
    "LPBQ along no axis": lpbq(axis=2),
    "LPBQ with scales of other channels": lpbq(axis=0, per_channel_float_scale=[1.0]),
    "rows of different bits": {"activation_encodings": {"x": [row() | {"bitwidth": bits} for bits in (8, 4)]}},
    "rows of integers and floats": {"activation_encodings": {"x": [row() | {"dtype": kind} for kind in ("int", "float")]}},
    "ranges per channel": {"activation_encodings": {"x": [row(scale="-", offset="-")] * 2}},
    "a float of 8 bits in 1.0.0": item(dtype="FLOAT", bw=8),
    "a number for a dtype": rows(dtype=3),
    "a hint of an unknown float": {**two(), "qdqtool": {"float": {"w": "flaot16"}}},
    "an unknown type": two(output_dtype="float16"),
    "ragged scales": two(y_scale=[[1], [1, 2]]),
    "a block without an axis": two(block_size=2),
    "an axis that is not there": two(y_scale=[[1, 2]], y_zero_point="-", axis=4, block_size=2),
    "channels without an axis": {"x": [{"quant_type": "QInt8", "scale": 1, "zero_point": 0}] * 2},
    "an unknown QuantType": {"x": [{"quant_type": "QInt3"}]},
    "a scale without its type": {"x": [{"scale": 1.0, "zero_point": 0}]},
    "a zero point off the grid": {"x": [{"quant_type": "QInt8", "scale": 1.0, "zero_point": 128}]},
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken_files(what: str) -> None:
    with refusal(QdqError) as caught:
        read_document(BROKEN[what])
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
