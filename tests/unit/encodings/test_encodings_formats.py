"""Files of every format, written by hand from the schemas: what they mean, and that they come out as they went in."""

from __future__ import annotations

import json
from typing import Any, get_args

import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, QdqError, UnsupportedError, UsageError
from qdq_passes.numerics.encoding import Encoding

import qdqtool
from qdqtool.encodings.entries import Encodings, Entry, Float, Lpbq, Unplaced, Wish
from qdqtool.encodings.files import bound, read_encodings
from qdqtool.encodings.formats import FORMATS, read_document, write_document
from qdqtool.encodings.grid import as_type
from qdqtool.encodings.reading import encoding_for
from qdqtool.encodings.tensors import place, values_by_name
from qdqtool.verbs.encodings.export_encodings import Format
from tests.cases.encodings_helpers import DATA, as_json, per_axis, values
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

INT8, UINT8, INT4, INT32 = ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.INT32


X = Encoding.per_tensor(UINT8, 0.5, 128)
RELU = Encoding.per_tensor(UINT8, 0.25)
Y = Encoding.per_tensor(INT8, 0.125)
CONV = per_axis(INT8, (0.5, 0.25, 0.125, 0.0625))
BIAS = per_axis(INT32, (0.25, 0.125, 0.0625, 0.03125))
MM = Encoding(dtype=INT4, scale=(1, 2, 3, 4, 5, 6, 7, 8), zero_point=(0,) * 8, shape=(2, 4), axis=0, block_size=8)
FC = Encoding(dtype=INT4, scale=(0.5, 1.0, 0.75, 1.0), zero_point=(0,) * 4, shape=(2, 2), axis=1, block_size=2)
SIMPLE = {"x": X, "relu_out": RELU, "y": Y, "conv.weight": CONV}
BLOCKS = {"mm.weight": MM, "fc.weight": FC}

#: What each hand-written file means for the model beside it; None stays float.
MEANING: dict[str, tuple[str, dict[str, Encoding | None]]] = {
    "aimet_0_6_1": ("aimet-0.6.1", {**SIMPLE, "mm_out": None}),
    "aimet_1_0_0": ("aimet-1.0.0", {**SIMPLE, **BLOCKS, "mm_out": None}),
    "aimet_2_0_0": ("aimet-2.0.0", {**SIMPLE, **BLOCKS, "conv.bias": BIAS}),
    "aimet_2_1_0": ("aimet-2.1.0", {**SIMPLE, **BLOCKS, "conv.bias": BIAS}),
    "qnn": ("qnn", {**SIMPLE, "mm_out": None}),
    "ort": ("ort", {**SIMPLE}),
}
each_file = pytest.mark.parametrize("file", MEANING)


def document_of(file: str) -> Any:
    return json.loads((DATA / f"{file}.json").read_text(encoding="utf-8"))


@each_file
def test_what_a_file_means(file: str) -> None:
    format_name, meaning = MEANING[file]
    read, tensors = read_encodings(DATA / f"{file}.json"), values()
    assert read.format == format_name
    assert {e.name: encoding_for(e, tensors[e.name], None) for e in read.entries} == meaning
    assert [e.name for e in read.entries if isinstance(e.holds, Float)] == [n for n, e in meaning.items() if e is None]


@each_file
def test_a_file_comes_out_as_it_went_in(file: str) -> None:
    """Unknown fields, of entries and at the top, included; the model is not needed for that."""
    format_name, _ = MEANING[file]
    assert as_json(write_document(read_document(document_of(file)), format_name)) == document_of(file)


@each_file
def test_what_is_written_is_what_the_file_has(file: str) -> None:
    """Each entry made anew from what it means, not given back as it was."""
    format_name, _ = MEANING[file]
    read = read_document(document_of(file))
    entries = [
        type(e)(name=e.name, holds=place(e.holds, values()[e.name]), role=e.role, extra=e.extra) for e in read.entries
    ]
    made = Encodings(format=format_name, entries=tuple(entries), extra=read.extra)
    assert as_json(write_document(made, format_name, values())) == document_of(file)


@pytest.mark.parametrize("target", ["aimet-1.0.0", "aimet-2.0.0", "aimet-2.1.0"])
@pytest.mark.parametrize("file", ["aimet_1_0_0", "aimet_2_0_0"])
def test_converting_keeps_meaning_and_unknown_fields(file: str, target: str) -> None:
    converted = qdqtool.convert_encodings(DATA / f"{file}.json", format=target, model=DATA / "model.onnxtxt")
    document = as_json(write_document(converted, target, values()))
    read = read_document(document)
    tensors = values()
    found = {e.name: encoding_for(e, tensors[e.name], None) for e in read.entries}
    assert found == MEANING[file][1]
    assert read.extra["excluded_layers"] == ["decoder"]
    assert read.by_name["x"].extra == {"source": "user"}
    assert isinstance(read.by_name["fc.weight"].holds, Lpbq)


def test_floats_survive_versions_without_a_word_for_them() -> None:
    """2.0.0 leaves float16 out; the hints remember it."""
    converted = qdqtool.convert_encodings(DATA / "aimet_1_0_0.json", format="aimet-2.0.0", model=DATA / "model.onnxtxt")
    document = as_json(write_document(converted, "aimet-2.0.0", values()))
    assert "mm_out" not in {entry["name"] for entry in document["encodings"]}
    assert document["qdqtool"] == {"float": {"mm_out": "float16"}}
    assert read_document(document).by_name["mm_out"].holds == Float(ir.DataType.FLOAT16)
    again = as_json(write_document(read_document(document), "aimet-1.0.0", values()))
    assert {"name": "mm_out", "dtype": "FLOAT", "bw": 16, "enc_type": "PER_TENSOR"} in again["activation_encodings"]
    assert "qdqtool" not in again


def test_formats_are_those_of_the_command() -> None:
    assert get_args(Format) == FORMATS


def entry(holds: Any, **more: Any) -> Encodings:
    return Encodings(format="", entries=(Entry(name="conv.weight", holds=holds, **more),))


BLOCKED = Encoding(dtype=INT8, scale=(1.0,) * 4, zero_point=(0,) * 4, shape=(4, 1, 1, 1), axis=1, block_size=2)
LPBQ = Lpbq(
    dtype=INT4, bits=8, channel_scale=(1.0,) * 4, block_scale=(1,) * 4, block_size=2, shape=(4, 1, 1, 1), axis=1
)
WRONG_WAY = Encoding(
    dtype=INT8, scale=(1.0,) * 4, zero_point=(0,) * 4, shape=(2, 2, 1, 1), axis=0, block_size=2
)  # blocks along the output channels, which 1.0.0 cannot tell
NO_AXIS = Lpbq(**{**vars(LPBQ), "shape": (), "axis": None})
LONG_LPBQ = Lpbq(**{**vars(LPBQ), "bits": 16})
FLOAT4 = Encoding.per_tensor(ir.DataType.FLOAT4E2M1, 1.0)
HALF = Encoding(dtype=INT8, scale=(1.0,), zero_point=(0.5,))
BF16, FLOAT8 = Float(ir.DataType.BFLOAT16), Encoding.per_tensor(ir.DataType.FLOAT8E4M3FN, 1.0)

#: (what, format).
REFUSALS = [
    pytest.param(BLOCKED, "aimet-0.6.1", id="blocks, aimet-0.6.1"),
    pytest.param(BLOCKED, "qnn", id="blocks, qnn"),
    pytest.param(BLOCKED, "ort", id="blocks, ort"),
    pytest.param(LPBQ, "aimet-0.6.1", id="LPBQ, aimet-0.6.1"),
    pytest.param(Lpbq(**{**vars(LPBQ), "bits": 16}), "aimet-2.0.0", id="LPBQ of 16 bits, aimet-2.0.0"),
    pytest.param(per_axis(INT8, (1.0, 2.0), 1), "aimet-1.0.0", id="another axis, aimet-1.0.0"),
    pytest.param(per_axis(INT8, (1.0,), 2), "aimet-0.6.1", id="two axes possible, aimet-0.6.1"),
    pytest.param(Encoding(dtype=INT8, scale=(1.0,) * 8, zero_point=(0,) * 8, shape=(1, 2, 2, 2), axis=0, block_size=4), "aimet-1.0.0", id="blocks that do not fit, aimet-1.0.0"),
    pytest.param(BF16, "aimet-0.6.1", id="bfloat16, aimet-0.6.1"),
    pytest.param(BF16, "aimet-1.0.0", id="bfloat16, aimet-1.0.0"),
    pytest.param(BF16, "ort", id="bfloat16, ort"),
    pytest.param(FLOAT4, "aimet-0.6.1", id="float4, aimet-0.6.1"),
    pytest.param(FLOAT4, "aimet-1.0.0", id="float4, aimet-1.0.0"),
    pytest.param(FLOAT4, "ort", id="float4, ort"),
    pytest.param(WRONG_WAY, "aimet-0.6.1", id="blocks of outputs, aimet-0.6.1"),
    pytest.param(WRONG_WAY, "ort", id="blocks of outputs, ort"),
    pytest.param(LONG_LPBQ, "qnn", id="LPBQ of 16 bits, qnn"),
    pytest.param(FLOAT8, "aimet-1.0.0", id="float8, aimet-1.0.0"),
    pytest.param(FLOAT8, "qnn", id="float8, qnn"),
    pytest.param(Encoding.per_tensor(ir.DataType.FLOAT8E5M2, 1.0), "ort", id="float8e5m2, ort"),
    pytest.param(Encoding.per_tensor(ir.DataType.FLOAT4E2M1, 1.0), "aimet-2.0.0", id="float4, aimet-2.0.0"),
    pytest.param(Encoding.per_tensor(ir.DataType.INT2, 1.0), "aimet-1.0.0", id="2 bits, aimet-1.0.0"),
    pytest.param(Encoding.per_tensor(ir.DataType.INT2, 1.0), "ort", id="2 bits, ort"),
    pytest.param(HALF, "aimet-0.6.1", id="half a zero point, aimet-0.6.1"),
    pytest.param(HALF, "ort", id="half a zero point, ort"),
    pytest.param(Wish(dtype=INT8), "aimet-1.0.0", id="no scale, aimet-1.0.0"),
    pytest.param(Wish(dtype=INT8), "aimet-2.0.0", id="no scale, aimet-2.0.0"),
    pytest.param(Wish(dtype=INT8, reduce_range=True), "qnn", id="a reduced range, qnn"),
    pytest.param(Unplaced(dtype=INT8, scale=(1.0, 2.0), zero_point=(0, 0)), "aimet-2.0.0", id="no axis known, aimet-2.0.0"),
    pytest.param(Unplaced(dtype=INT8, scale=(1.0, 2.0), zero_point=(0, 0)), "ort", id="no axis known, ort"),
    pytest.param(NO_AXIS, "aimet-2.0.0", id="LPBQ without an axis, aimet-2.0.0"),
    pytest.param(Encoding.per_tensor(INT32, 0.7), "ort", id="another int32, ort"),
]  # fmt: skip


@pytest.mark.parametrize(("holds", "format_name"), REFUSALS)
def test_refusals(holds: Any, format_name: str) -> None:
    with refusal(UnsupportedError):
        write_document(entry(holds), format_name, values())


@pytest.mark.parametrize("format_name", ["aimet-0.6.1", "aimet-1.0.0", "aimet-2.0.0", "qnn"])
def test_a_second_encoding_is_for_onnxruntime(format_name: str) -> None:
    from qdqtool.encodings.entries import Convert

    with refusal(UnsupportedError):
        write_document(entry(X, convert=Convert(holds=Y)), format_name, values())


@pytest.mark.parametrize("format_name", ["aimet-0.6.1", "aimet-1.0.0", "qnn"])
def test_without_the_model_an_axis_is_not_dropped(format_name: str) -> None:
    with refusal(UsageError):
        write_document(entry(CONV), format_name)


def test_without_the_model_a_bias_is_not_left_to_onnxruntime() -> None:
    with refusal(UsageError):
        write_document(entry(Encoding.per_tensor(INT32, 0.7)), "ort")


def test_lpbq_without_an_axis_amounts_to_no_encoding() -> None:
    with refusal(ModelError):
        _ = NO_AXIS.encoding


def test_an_activation_per_channel_is_refused_by_onnxruntime() -> None:
    made = Encodings(format="", entries=(Entry(name="x", holds=per_axis(INT8, (1.0, 2.0), 1)),))
    with refusal(UnsupportedError):
        write_document(made, "ort", values())


def test_unknown_formats() -> None:
    with refusal(UsageError):
        write_document(entry(X), "aimet")


PLACING = [
    pytest.param("mm.weight", Unplaced(dtype=INT8, scale=(1.0,) * 5, zero_point=(0,) * 5), id="five scales"),
    pytest.param("conv.weight", Unplaced(dtype=INT8, scale=(1.0,), zero_point=(0,)), id="one scale"),
    pytest.param("mm.weight", Unplaced(dtype=INT8, scale=(1.0,) * 5, zero_point=(0,) * 5, block_size=8), id="five scales in blocks"),
    pytest.param("x", Unplaced(dtype=INT8, scale=(1.0,) * 4, zero_point=(0,) * 4, block_size=1), id="an activation"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "holds"), PLACING)
def test_an_axis_that_cannot_be_told(name: str, holds: Any) -> None:
    with refusal(QdqError):
        place(holds, values()[name])


def test_a_grid_is_not_counted_in_other_bits() -> None:
    with refusal(ModelError):
        as_type(X, ir.DataType.INT16)


def test_scales_that_differ_within_a_kernel() -> None:
    """Files of blocks without an axis hold one scale for a whole kernel."""
    graph = model(
        """g (float[1,2,1,2] x) => (float[1,1,1,1] y) <float[1,2,1,2] w = {1, 2, 3, 4}> { [c] y = Conv(x, w) }"""
    )
    blocks = Encoding(dtype=INT8, scale=(1.0, 2.0), zero_point=(0, 0), shape=(1, 1, 1, 2), axis=1, block_size=2)
    made = Encodings(format="", entries=(Entry(name="w", holds=blocks),))
    with refusal(UnsupportedError):
        write_document(made, "aimet-1.0.0", values_by_name(graph))


@pytest.mark.parametrize(("axis", "shape"), [(2, (1, 1, 2)), (-3, (2, 1, 1))])
def test_blocks_on_an_axis_that_the_tensor_does_not_have(axis: int, shape: tuple[int, ...]) -> None:
    blocks = Encoding(dtype=INT8, scale=(1.0, 2.0), zero_point=(0, 0), shape=shape, axis=axis, block_size=2)
    with refusal(ModelError):
        encoding_for(entry(blocks).entries[0], values()["fc.weight"], None)


def test_bound() -> None:
    """What a pipeline reads as ``@encodings``: with the model every format, without it those that store the axis."""
    two_zero = bound(read_encodings(DATA / "aimet_2_0_0.json"))
    assert two_zero == MEANING["aimet_2_0_0"][1]
    with_model = bound(read_encodings(DATA / "aimet_1_0_0.json"), values())
    assert with_model == {**SIMPLE, **BLOCKS}
    with refusal(UsageError):
        bound(read_encodings(DATA / "aimet_1_0_0.json"))
