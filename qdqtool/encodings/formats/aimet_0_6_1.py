"""AIMET 0.6.1 (and 0.4.0, 0.5.0, which lack fields of it): a tensor is a list of rows, one per channel.

A row is ``{min, max, scale, offset, bitwidth, dtype: "int", is_symmetric: "True"|"False"}``; ``offset`` is −zero_point on the
unsigned grid. Rows give no axis and no block size. The type is signed where ``is_symmetric`` is true; we write "True" for signed
types with zero point 0 only, because readers such as QNN's converter take it at its word. float16 is
``[{"bitwidth": 16, "dtype": "float"}]``."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.numerics.encoding import Encoding, integer_format, is_integer_type

from qdqtool.encodings.entries import Content, Encodings, Entry, Float, Json, Lpbq, Unplaced, Wish
from qdqtool.encodings.formats.fields import HINTS, Fields, cannot, json_number, scales_of, type_name
from qdqtool.encodings.formats.sections import for_blocks, for_type, role_of, summary
from qdqtool.encodings.grid import integer_type, is_whole, offset_of, zero_points_of
from qdqtool.encodings.tensors import Values, unplace

NAME = "aimet-0.6.1"
#: ``--quantization_overrides`` of QNN\'s converters: the same rows, without a version.
QNN = "qnn"
KNOWN = ("min", "max", "scale", "offset", "bitwidth", "dtype", "is_symmetric")
#: Bits that the encoding specification allows.
BITS = range(4, 33)
#: Float types by their bits; bfloat16 has no name here.
FLOATS = {16: ir.DataType.FLOAT16, 32: ir.DataType.FLOAT}


def read_rows(name: str, item: Json) -> tuple[Content, dict[str, Json]]:
    """What the rows of tensor ``name`` hold, and the fields that are unknown and equal in all of them.

    Raises:
        ModelError: a field is missing or wrong.
    """
    listed = item if isinstance(item, Sequence) and not isinstance(item, str) else [item]
    rows = [part for row in listed for part in _per_channel(Fields(row, name))]
    if not rows:
        raise ModelError("its list of rows is empty", where=name)
    first = rows[0]
    extra = {k: v for k, v in first.unknown(KNOWN).items() if all(row.get(k) == v for row in rows)}
    bits = first.integer("bitwidth")
    if _kind(first) == "float":
        if bits not in FLOATS:
            raise ModelError(f"a float of {bits} bits", where=name, hint="16 and 32 are known")
        return Float(FLOATS[bits]), extra
    for row in rows:
        if row.integer("bitwidth") != bits or _kind(row) != "int":
            raise ModelError("its rows differ in bitwidth or dtype", where=name)
    signed = all(row.flag("is_symmetric", False) for row in rows)
    dtype = integer_type(bits, signed=signed)
    if any(row.get("scale") is None for row in rows):
        return _wish(rows, dtype, signed), extra
    scale = scales_of([row.numbers("scale", 1)[0] for row in rows], name)
    zero_point = zero_points_of(dtype, [_offset(row, dtype) for row in rows])
    if len(rows) == 1:
        return Encoding(dtype=dtype, scale=scale, zero_point=zero_point), extra
    return Unplaced(dtype=dtype, scale=scale, zero_point=zero_point), extra


def _kind(row: Fields) -> str:
    return row.text("dtype").lower() if row.get("dtype") is not None else "int"


def _per_channel(row: Fields) -> list[Fields]:
    """Rows of a row whose numbers are lists: some tools write one row with a list per field."""
    lists = [key for key in ("min", "max", "scale", "offset") if isinstance(row.get(key), list)]
    if not lists:
        return [row]
    count = max(len(row.numbers(key)) for key in lists)
    columns = {key: row.numbers(key, count) for key in lists}
    return [Fields({**row, **{key: column[i] for key, column in columns.items()}}, row.where) for i in range(count)]


def _offset(row: Fields, dtype: ir.DataType) -> float:
    """The offset on the unsigned grid."""
    signed, bits = integer_format(dtype)
    (scale,) = row.numbers("scale", 1)
    low = row.numbers("min", 1)[0] if row.get("min") is not None else None
    if row.get("offset") is None:
        if signed:
            return -float(1 << (bits - 1))
        if low is None:
            raise ModelError("neither offset nor min is given", where=row.where)
        return float(round(low / scale))
    (offset,) = row.numbers("offset", 1)
    if signed and offset == 0 and low is not None and low < -scale / 2:
        return -float(1 << (bits - 1))  # counted on the signed grid, as min shows
    return offset


def _wish(rows: Sequence[Fields], dtype: ir.DataType, signed: bool) -> Wish:
    if any(row.get("min") is None or row.get("max") is None for row in rows):
        return Wish(dtype=dtype, symmetric=signed)
    if len(rows) > 1:
        raise UnsupportedError("ranges per channel without scales", where=rows[0].where, hint="give scale and offset")
    low, high = rows[0].numbers("min", 1), rows[0].numbers("max", 1)
    return Wish(dtype=dtype, symmetric=signed, low=low, high=high)


def write_rows(entry: Entry, values: Values | None, format_name: str = NAME) -> list[dict[str, Json]]:
    """The rows of ``entry``.

    Raises:
        UnsupportedError: they cannot say it; the message names the formats that can.
    """
    name, holds = entry.name, entry.holds
    if entry.convert is not None:
        raise cannot(name, "a second encoding for some of its readers", format_name, "ort")
    extra = dict(entry.extra)
    if isinstance(holds, Float):
        if holds.dtype not in FLOATS.values():
            raise cannot(name, type_name(holds.dtype), format_name, "aimet-2.0.0, where it is simply absent")
        return [{"bitwidth": 8 * holds.dtype.itemsize, "dtype": "float", **extra}]
    if isinstance(holds, Wish):
        return [_write_wish(name, holds, format_name) | extra]
    dtype = holds.dtype
    if not is_integer_type(dtype):
        raise cannot(name, f"{type_name(dtype)} with a scale", format_name, for_type(dtype))
    bits = integer_format(dtype)[1]
    if bits not in BITS:
        raise cannot(name, f"{bits} bits", format_name, "aimet-2.0.0")
    if isinstance(holds, Lpbq) or holds.block_size:
        raise cannot(name, f"blocks of {holds.block_size}", format_name, for_blocks(name, holds, values))
    if isinstance(holds, Encoding) and not is_whole(holds):
        raise cannot(name, f"the zero point {holds.zero_point[0]}", format_name, for_blocks(name, holds, values))
    bare = unplace(name, holds, values, format_name, "aimet-2.0.0") if isinstance(holds, Encoding) else holds
    assert isinstance(bare, Encoding | Unplaced)
    symmetric = integer_format(dtype)[0] and not any(bare.zero_point)
    return [
        {
            "bitwidth": bits,
            "dtype": "int",
            "is_symmetric": str(symmetric),
            "max": (offset_of(dtype, zero) + 2**bits - 1) * scale,
            "min": offset_of(dtype, zero) * scale,
            "offset": json_number(offset_of(dtype, zero)),
            "scale": scale,
            **extra,
        }
        for scale, zero in zip(bare.scale, bare.zero_point, strict=True)
    ]


def _write_wish(name: str, wish: Wish, format_name: str) -> dict[str, Json]:
    if wish.dtype is None or not is_integer_type(wish.dtype) or wish.axis is not None or wish.reduce_range:
        raise cannot(name, "what it asks of an encoding that it does not give", format_name, "ort")
    signed, bits = integer_format(wish.dtype)
    row: dict[str, Json] = {"bitwidth": bits, "dtype": "int", "is_symmetric": str(signed)}
    if wish.low:
        row |= {"min": wish.low[0], "max": wish.high[0]}
    return row


def write(encodings: Encodings, values: Values | None) -> dict[str, Json]:
    """The document."""
    return {
        "version": "0.6.1",
        **sections(encodings, values, NAME),
        "quantizer_args": summary(encodings, values),
        **encodings.extra,
        **({HINTS: encodings.hints} if encodings.hints else {}),
    }


def sections(encodings: Encodings, values: Values | None, format_name: str) -> dict[str, Json]:
    """``activation_encodings`` and ``param_encodings`` as objects of lists of rows."""
    parts: dict[str, dict[str, Json]] = {"activation": {}, "param": {}}
    for entry in encodings.entries:
        given_back = entry.raw if encodings.format == format_name else None
        rows = write_rows(entry, values, format_name) if given_back is None else given_back
        parts[role_of(entry, values)][entry.name] = rows
    return {f"{role}_encodings": rows for role, rows in parts.items()}


def write_qnn(encodings: Encodings, values: Values | None) -> dict[str, Json]:
    """The document for QNN's converters: nothing at the top level but the two sections.

    A row may leave out what the converter can compute: with ``min`` and ``max`` only, or ``bitwidth`` only, it asks for an
    encoding without giving one.
    """
    hints: dict[str, Json] = {HINTS: encodings.hints} if encodings.hints else {}
    return {**sections(encodings, values, QNN), **encodings.extra, **hints}
