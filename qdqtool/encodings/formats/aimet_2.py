"""AIMET 2.0.0 and 2.1.0: one list ``encodings`` of objects with the names that QuantizeLinear uses.

``{name, output_dtype: "int8"|"uint16"|…, y_scale, [y_zero_point], [axis], [block_size]}``; zero points are those of ONNX and left
out when all are 0. LPBQ has ``per_channel_float_scale`` and ``per_block_int_scale`` instead of ``y_scale``, and is decompressed
to twice its bits. float8 types have a scale; float16 and bfloat16 are simply absent."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import ModelError
from qdq_passes.numerics.encoding import Encoding, integer_format, integer_range, is_integer_type, nested

from qdqtool.encodings.entries import Content, Encodings, Entry, Float, Json, Lpbq, Unplaced, Wish
from qdqtool.encodings.formats.fields import HINTS, Fields, cannot, scales_of, type_name
from qdqtool.encodings.formats.sections import FLOAT8
from qdqtool.encodings.grid import integer_type
from qdqtool.encodings.tensors import Values

NAMES = {"aimet-2.0.0": "2.0.0", "aimet-2.1.0": "2.1.0"}
KNOWN = (
    "name", "output_dtype", "y_scale", "y_zero_point", "axis", "block_size", "per_channel_float_scale", "per_block_int_scale",
)  # fmt: skip


def read_item(name: str, item: Json) -> tuple[Content, dict[str, Json]]:
    """What the object of tensor ``name`` holds, and its unknown fields.

    Raises:
        ModelError: a field is missing or wrong.
    """
    fields = Fields(item, name)
    extra, dtype = fields.unknown(KNOWN), _dtype(fields)
    axis = fields.integer("axis") if fields.get("axis") is not None else None
    block_size = fields.integer("block_size") if fields.get("block_size") is not None else 0
    if fields.get("per_block_int_scale") is not None:
        factors = fields.array("per_block_int_scale")
        if axis is None:
            raise fields.bad("axis", "the axis of the blocks")
        return Lpbq(
            dtype=dtype,
            bits=2 * integer_format(dtype)[1],
            channel_scale=scales_of(fields.numbers("per_channel_float_scale"), name),
            block_scale=tuple(int(factor) for factor in factors.ravel()),
            block_size=block_size,
            shape=factors.shape,
            axis=axis,
        ), extra
    scales = fields.array("y_scale")
    scale = scales_of(fields.numbers("y_scale"), name)
    given = fields.numbers("y_zero_point", len(scale)) if fields.get("y_zero_point") is not None else (0,) * len(scale)
    zero_point = _zero_points(dtype, given, name)
    if axis is None or (scales.ndim == 0 and not block_size):
        if block_size:
            raise fields.bad("axis", "the axis of the blocks")
        if len(scale) > 1:
            return Unplaced(dtype=dtype, scale=scale, zero_point=zero_point), extra
        return Encoding(dtype=dtype, scale=scale, zero_point=zero_point), extra
    shape = scales.shape if block_size else (len(scale),)
    if block_size and not -len(shape) <= axis < len(shape):
        raise ModelError(f"axis {axis} with blocked scales of shape {list(shape)}", where=name)
    return Encoding(
        dtype=dtype, scale=scale, zero_point=zero_point, shape=shape, axis=axis, block_size=block_size
    ), extra


def _zero_points(dtype: ir.DataType, given: tuple[float, ...], name: str) -> tuple[int | float, ...]:
    """``given`` as zero points; a float8 has 0 alone, integers any that their type holds.

    Raises:
        ModelError: the type does not hold one.
    """
    low, high = integer_range(dtype, symmetric=False) if is_integer_type(dtype) else (0, 0)
    for zero in given:
        if not low <= zero <= high:
            raise ModelError(f"the zero point {zero:g} is outside {type_name(dtype)}, [{low}, {high}]", where=name)
    return tuple(int(z) if float(z).is_integer() else z for z in given)


def _dtype(fields: Fields) -> ir.DataType:
    text = fields.text("output_dtype").lower()
    digits = text.removeprefix("u").removeprefix("int")
    if text.startswith(("int", "uint")) and digits.isdigit():
        return integer_type(int(digits), signed=not text.startswith("u"))
    found = ir.DataType.__members__.get(text.upper())
    if found not in FLOAT8:
        raise fields.bad("output_dtype", "an integer type or a float8")
    return found


def write_item(entry: Entry, format_name: str) -> dict[str, Json] | None:
    """The object of ``entry``; None for a tensor that stays float, which these versions leave out.

    Raises:
        UnsupportedError: it cannot say it; the message names the format that can.
    """
    name, holds = entry.name, entry.holds
    if entry.convert is not None:
        raise cannot(name, "a second encoding for some of its readers", format_name, "ort")
    if isinstance(holds, Float):
        return None
    if isinstance(holds, Wish):
        raise cannot(name, "an encoding without a scale", format_name, "qnn or ort")
    if isinstance(holds, Unplaced):
        raise cannot(name, "scales whose axis is not known", format_name, "it with --model, which tells the axis")
    if not is_integer_type(holds.dtype) and holds.dtype not in FLOAT8:
        raise cannot(name, type_name(holds.dtype), format_name, "no format at all: none has it")
    fields: dict[str, Json] = {"name": name, "output_dtype": type_name(holds.dtype)}
    if isinstance(holds, Lpbq):
        fields |= _lpbq_fields(name, holds, format_name)
    else:
        fields["y_scale"] = nested(holds.scale, holds.shape)
        if any(holds.zero_point):
            fields["y_zero_point"] = nested(holds.zero_point, holds.shape)
    if holds.axis is not None:
        fields["axis"] = holds.axis
    if holds.block_size:
        fields["block_size"] = holds.block_size
    return {**fields, **entry.extra}


def _lpbq_fields(name: str, holds: Lpbq, format_name: str) -> dict[str, Json]:
    if holds.axis is None:
        raise cannot(name, "LPBQ whose axis is not known", format_name, "it with --model, which tells the axis")
    if holds.bits != 2 * integer_format(holds.dtype)[1]:
        raise cannot(name, f"LPBQ from {type_name(holds.dtype)} to {holds.bits} bits", format_name, "aimet-1.0.0")
    channels = [1 if axis == holds.axis % len(holds.shape) else size for axis, size in enumerate(holds.shape)]
    return {
        "per_channel_float_scale": np.array(holds.channel_scale).reshape(channels).tolist(),
        "per_block_int_scale": np.array(holds.block_scale).reshape(holds.shape).tolist(),
    }


def write(encodings: Encodings, values: Values | None, format_name: str = "aimet-2.0.0") -> dict[str, Json]:
    """The document; ``values`` are not needed, the axis is in the file."""
    is_same = encodings.format in NAMES
    items = [
        entry.raw if is_same and entry.raw is not None else write_item(entry, format_name)
        for entry in encodings.entries
    ]
    return {
        "version": NAMES[format_name],
        "encodings": [item for item in items if item is not None],
        **encodings.extra,
        **({HINTS: encodings.hints} if encodings.hints else {}),
    }
