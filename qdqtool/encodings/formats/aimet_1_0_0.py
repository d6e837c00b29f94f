"""AIMET 1.0.0: both sections are lists of ``{name, enc_type, dtype: "INT"|"FLOAT", bw, is_sym, scale: […], offset: […]}``.

``enc_type`` is PER_TENSOR, PER_CHANNEL, PER_BLOCK (with ``block_size``) or LPBQ (with ``compressed_bw`` and
``per_block_int_scale``; ``scale`` is then per channel and ``bw`` the decompressed width). ``offset`` counts on the unsigned grid,
``zero_point_shift`` is what it lacks of a fraction. No axis is stored: see `qdqtool.encodings.tensors`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import ModelError
from qdq_passes.numerics.encoding import Encoding, integer_format, is_integer_type

from qdqtool.encodings.entries import Content, Encodings, Entry, Float, Json, Lpbq, Unplaced, Wish
from qdqtool.encodings.formats.aimet_0_6_1 import BITS, FLOATS
from qdqtool.encodings.formats.fields import HINTS, Fields, cannot, json_number, scales_of, type_name
from qdqtool.encodings.formats.sections import for_type, role_of, summary
from qdqtool.encodings.grid import integer_type, offset_of, zero_points_of
from qdqtool.encodings.tensors import Values, unplace

NAME, INSTEAD = "aimet-1.0.0", "aimet-2.0.0"
KNOWN = (
    "name", "dtype", "bw", "is_sym", "scale", "offset", "enc_type", "block_size", "compressed_bw", "per_block_int_scale",
    "zero_point_shift",
)  # fmt: skip


def read_item(name: str, item: Json) -> tuple[Content, dict[str, Json]]:
    """What the object of tensor ``name`` holds, and its unknown fields.

    Raises:
        ModelError: a field is missing or wrong.
    """
    fields = Fields(item, name)
    extra, bits = fields.unknown(KNOWN), fields.integer("bw")
    kind = fields.get("dtype", "INT")
    if kind in ("FLOAT", "FP"):
        if bits not in FLOATS:
            raise ModelError(f"a float of {bits} bits", where=name, hint="16 and 32 are known")
        return Float(FLOATS[bits]), extra
    if kind != "INT":
        raise fields.bad("dtype", '"INT" or "FLOAT"')
    kind = fields.get("enc_type") or ("PER_CHANNEL" if len(fields.numbers("scale")) > 1 else "PER_TENSOR")
    if kind == "LPBQ":
        return _read_lpbq(fields, bits), extra
    scale = scales_of(fields.numbers("scale"), name)
    dtype = integer_type(bits, signed=fields.flag("is_sym", False))
    zero_point = _zero_points(fields, dtype, len(scale))
    if kind == "PER_TENSOR":
        if len(scale) != 1:
            raise ModelError(f"{len(scale)} scales with enc_type PER_TENSOR", where=name)
        return Encoding(dtype=dtype, scale=scale, zero_point=zero_point), extra
    if kind not in ("PER_CHANNEL", "PER_BLOCK"):
        raise fields.bad("enc_type", "PER_TENSOR, PER_CHANNEL, PER_BLOCK or LPBQ")
    block_size = fields.integer("block_size") if kind == "PER_BLOCK" else 0
    return Unplaced(dtype=dtype, scale=scale, zero_point=zero_point, block_size=block_size), extra


def _read_lpbq(fields: Fields, bits: int) -> Lpbq:
    return Lpbq(
        dtype=integer_type(fields.integer("compressed_bw"), signed=True),
        bits=bits,
        channel_scale=scales_of(fields.numbers("scale"), fields.where),
        block_scale=tuple(int(factor) for factor in fields.numbers("per_block_int_scale")),
        block_size=fields.integer("block_size"),
    )


def _zero_points(fields: Fields, dtype: ir.DataType, count: int) -> tuple[int | float, ...]:
    """Zero points; a missing offset is the middle of a signed grid."""
    if fields.get("offset") is None and integer_format(dtype)[0]:
        return (0,) * count
    offsets = np.array(fields.numbers("offset", count))
    if fields.get("zero_point_shift") is not None:
        offsets = offsets + np.array(fields.numbers("zero_point_shift", count))
    return zero_points_of(dtype, offsets.tolist())


def write_item(entry: Entry, values: Values | None) -> dict[str, Json]:
    """The object of ``entry``.

    Raises:
        UnsupportedError: it cannot say it; the message names the format that can.
    """
    name, holds = entry.name, entry.holds
    if entry.convert is not None:
        raise cannot(name, "a second encoding for some of its readers", NAME, "ort")
    if isinstance(holds, Float):
        if holds.dtype not in FLOATS.values():
            raise cannot(name, type_name(holds.dtype), NAME, "aimet-2.0.0, where it is simply absent")
        width = 8 * holds.dtype.itemsize
        return {"name": name, "dtype": "FLOAT", "bw": width, "enc_type": "PER_TENSOR", **entry.extra}
    if isinstance(holds, Wish):
        raise cannot(name, "an encoding without a scale", NAME, "qnn or ort")
    dtype = holds.dtype
    if not is_integer_type(dtype):
        raise cannot(name, f"{type_name(dtype)} with a scale", NAME, for_type(dtype))
    bits = integer_format(dtype)[1]
    if bits not in BITS:
        raise cannot(name, f"{bits} bits", NAME, INSTEAD)
    bare = holds if isinstance(holds, Unplaced) else unplace(name, holds, values, NAME, INSTEAD)
    fields = _write_lpbq(bare, bits) if isinstance(bare, Lpbq) else _write_affine(bare, dtype, bits)
    return {"name": name, "dtype": "INT", **fields, **entry.extra}


def _write_lpbq(holds: Lpbq, compressed: int) -> dict[str, Json]:
    return {
        "enc_type": "LPBQ",
        "compressed_bw": compressed,
        "bw": holds.bits,
        "is_sym": True,
        "scale": holds.channel_scale,
        "offset": [-(2 ** (holds.bits - 1))] * len(holds.channel_scale),
        "per_block_int_scale": holds.block_scale,
        "block_size": holds.block_size,
    }


def _write_affine(bare: Content, dtype: ir.DataType, bits: int) -> dict[str, Json]:
    assert isinstance(bare, Encoding | Unplaced)
    offsets = np.array([offset_of(dtype, zero) for zero in bare.zero_point], np.float64)
    whole = np.floor(offsets)
    fields: dict[str, Json] = {
        "bw": bits,
        "is_sym": integer_format(dtype)[0] and not any(bare.zero_point),
        "scale": bare.scale,
        "offset": [json_number(offset) for offset in whole.tolist()],
        "enc_type": "PER_TENSOR" if isinstance(bare, Encoding) else "PER_BLOCK" if bare.block_size else "PER_CHANNEL",
    }
    if bare.block_size:
        fields["block_size"] = bare.block_size
    if (offsets != whole).any():
        fields["zero_point_shift"] = (offsets - whole).tolist()
    return fields


def write(encodings: Encodings, values: Values | None) -> dict[str, Json]:
    """The document."""
    parts: dict[str, list[Json]] = {"activation": [], "param": []}
    for entry in encodings.entries:
        given_back = entry.raw if encodings.format == NAME else None
        parts[role_of(entry, values)].append(write_item(entry, values) if given_back is None else given_back)
    lists: dict[str, Sequence[Json]] = {f"{role}_encodings": items for role, items in parts.items()}
    return {
        "version": "1.0.0",
        **lists,
        "quantizer_args": summary(encodings, values),
        **encodings.extra,
        **({HINTS: encodings.hints} if encodings.hints else {}),
    }
