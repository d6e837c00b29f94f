"""``TensorQuantOverrides`` of onnxruntime's static quantizer: tensor → a list of objects, one per channel.

``{quant_type: "QInt8"|…, scale, zero_point}``, or a wish ``{quant_type, symmetric, reduce_range, rmin, rmax}``; ``axis`` in the
first makes it per channel (weights only); ``convert: {quant_type, …, recv_nodes}`` is a second encoding for some readers. In
JSON the types are texts; `qdqtool.runtime.overrides` makes of them what ``quantize_static`` takes. int32 biases are absent:
onnxruntime makes them itself, with the product of the scales of input and weight. Hints stand in a tensor's first object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.graph.uses import is_constant
from qdq_passes.numerics.encoding import Encoding, integer_range, is_integer_type

from qdqtool.encodings.biases import WITH_BIAS, product_encodings
from qdqtool.encodings.entries import Content, Convert, Encodings, Entry, Float, Json, Lpbq, Unplaced, Wish
from qdqtool.encodings.formats.fields import HINTS, Fields, cannot, scales_of, type_name
from qdqtool.encodings.formats.sections import for_blocks, for_type, role_of
from qdqtool.encodings.grid import is_whole
from qdqtool.encodings.tensors import Values

NAME = "ort"
KNOWN = ("quant_type", "axis", "scale", "zero_point", "symmetric", "reduce_range", "rmin", "rmax", "convert", HINTS)
#: Key in a weight's hints: biases of its layers that onnxruntime makes itself, with their hints.
BIASES = "biases"
#: onnxruntime's names of storage types.
TYPES = {
    ir.DataType.INT8: "QInt8", ir.DataType.UINT8: "QUInt8", ir.DataType.INT16: "QInt16", ir.DataType.UINT16: "QUInt16",
    ir.DataType.INT4: "QInt4", ir.DataType.UINT4: "QUInt4", ir.DataType.FLOAT8E4M3FN: "QFLOAT8E4M3FN",
}  # fmt: skip


def is_overrides(document: Json) -> bool:
    """Whether ``document`` maps names to lists of objects, as this format does."""
    return isinstance(document, Mapping) and all(
        isinstance(rows, Sequence) and not isinstance(rows, str) and all(isinstance(row, Mapping) for row in rows)
        for rows in document.values()
    )


def read(document: Mapping[str, Json]) -> Encodings:
    """The entries of ``document``.

    Raises:
        ModelError: a field is missing or wrong.
    """
    entries: list[Entry] = []
    tensors: dict[str, Json] = {}
    biases: dict[str, Json] | None = None
    for name, rows in document.items():
        assert isinstance(rows, Sequence)
        if not rows or not rows[0]:
            continue
        first = Fields(rows[0], name)
        hint = first.get(HINTS)
        if isinstance(hint, Mapping):
            own = hint.get(BIASES)
            if isinstance(own, Mapping):
                biases = {**(biases or {}), **own}
            tensors[name] = {key: value for key, value in hint.items() if key != BIASES}
        entries.append(_entry(name, [first, *(Fields(row, name) for row in rows[1:])], rows))
    hints: dict[str, Json] = {"tensors": tensors} if tensors else {}
    return Encodings(format=NAME, entries=tuple(entries), hints=hints if biases is None else {**hints, BIASES: biases})


def _entry(name: str, rows: list[Fields], raw: Json) -> Entry:
    first = rows[0]
    if len(rows) > 1 and first.get("axis") is None:
        raise ModelError(f"{len(rows)} channels without an axis", where=name, hint="give axis in the first")
    convert = None
    if first.get("convert") is not None:
        fields = Fields(first["convert"], name)
        names = fields.get("recv_nodes")
        readers = tuple(map(str, names)) if isinstance(names, Sequence) and not isinstance(names, str) else None
        holds = _read([fields])
        assert isinstance(holds, Encoding | Wish)
        convert = Convert(holds=holds, readers=readers)
    return Entry(name=name, holds=_read(rows), convert=convert, extra=first.unknown(KNOWN), raw=raw)


def _read(rows: list[Fields]) -> Content:
    first = rows[0]
    dtype = _dtype(first) if first.get("quant_type") is not None else None
    axis = first.integer("axis") if first.get("axis") is not None else None
    if first.get("scale") is None:
        optional = {key: first.flag(key) for key in ("symmetric", "reduce_range") if first.get(key) is not None}
        bounds = [(row.numbers("rmin", 1)[0], row.numbers("rmax", 1)[0]) for row in rows if row.get("rmin") is not None]
        low, high = (tuple(column) for column in zip(*bounds, strict=True)) if bounds else ((), ())
        return Wish(dtype=dtype, axis=axis, low=low, high=high, **optional)
    if dtype is None:
        raise first.bad("quant_type", "the type that scale and zero_point are of")
    scale = scales_of([row.numbers("scale", 1)[0] for row in rows], first.where)
    zero_point = tuple(row.integer("zero_point") for row in rows)
    if is_integer_type(dtype):
        lowest, highest = integer_range(dtype, symmetric=False)
        for zero in zero_point:
            if not lowest <= zero <= highest:
                raise ModelError(f"zero point {zero} is no {type_name(dtype)}", where=first.where)
    shape = () if axis is None else (len(rows),)
    return Encoding(dtype=dtype, scale=scale, zero_point=zero_point, shape=shape, axis=axis)


def _dtype(row: Fields) -> ir.DataType:
    text = row.text("quant_type").removeprefix("QuantType.").lower().removeprefix("q")
    for dtype in TYPES:
        if type_name(dtype) == text:
            return dtype
    raise row.bad("quant_type", f"one of {', '.join(TYPES.values())}")


def write(encodings: Encodings, values: Values | None) -> dict[str, Json]:
    """The document. int32 biases are left out, as onnxruntime makes them itself.

    Raises:
        UnsupportedError: an entry has no place here; the message names the format that has.
    """
    _refuse_own_scales(encodings, values)
    hints = _hints(encodings, values)
    document: dict[str, Json] = {}
    for entry in encodings.entries:
        if is_derived_bias(entry):
            continue
        if encodings.format == NAME and entry.raw is not None:
            document[entry.name] = entry.raw
            continue
        rows = _rows(entry, entry.holds, values)
        if entry.convert is not None:
            second = _rows(entry, entry.convert.holds, values)[0]
            chosen = {} if entry.convert.readers is None else {"recv_nodes": entry.convert.readers}
            rows[0]["convert"] = {**second, **chosen}
        rows[0] |= {**entry.extra, **({HINTS: hints[entry.name]} if entry.name in hints else {})}
        document[entry.name] = rows
    return document


def _refuse_own_scales(encodings: Encodings, values: Values | None) -> None:
    """An int32 bias with a scale of its own would be made another by onnxruntime."""
    biases = {entry.name: entry.holds for entry in encodings.entries if is_derived_bias(entry)}
    if not biases:
        return
    if values is None:
        raise UsageError(
            "whether its scale is that of input times weight depends on the model",
            where=next(iter(biases)),
            hint="give the model with --model",
        )
    known = {values[e.name]: e.holds for e in encodings.entries if e.name in values and isinstance(e.holds, Encoding)}
    made = product_encodings([values[name] for name in biases if name in values], known)
    for name, holds in biases.items():
        found = made.get(values[name]) if name in values else None
        if not isinstance(found, Encoding) or not isinstance(holds, Encoding) or found.scale != holds.scale:
            raise cannot(name, "an int32 bias whose scale is not that of input times weight", NAME, "aimet-2.0.0")


def _hints(encodings: Encodings, values: Values | None) -> dict[str, Json]:
    """Hints by tensor. What stands at the top of other formats (how most weights are kept), and hints about biases that are not
    in the file, go with the weights."""
    by_tensor, biases = encodings.hints.get("tensors"), encodings.hints.get(BIASES)
    found = dict(by_tensor) if isinstance(by_tensor, Mapping) else {}
    for entry in encodings.entries if encodings.hints else ():
        own = found.get(entry.name, {})
        own = dict(own) if isinstance(own, Mapping) else {}
        if role_of(entry, values) == "param" and encodings.hints.get("weights") == "qdq":
            own.setdefault("stored", False)
        if isinstance(biases, Mapping) and values is not None and entry.name in values:
            names = _biases_of(values[entry.name])
            own |= {BIASES: {name: biases[name] for name in names if name in biases}} if names else {}
        if own:
            found[entry.name] = own
    return found


def _biases_of(weight: ir.Value) -> list[str]:
    """Names of the constants that the layers with this weight add."""
    layers = [use.node for use in weight.uses() if use.idx == 1 and use.node.op_type in WITH_BIAS]
    biases = [
        layer.inputs[WITH_BIAS[layer.op_type]] for layer in layers if len(layer.inputs) > WITH_BIAS[layer.op_type]
    ]
    return [bias.name for bias in biases if bias is not None and bias.name and is_constant(bias)]


def is_derived_bias(entry: Entry) -> bool:
    """Whether ``entry`` is what onnxruntime has no type for and makes itself: an int32 bias with zero point 0."""
    holds = entry.holds
    return isinstance(holds, Encoding | Unplaced) and holds.dtype == ir.DataType.INT32 and not any(holds.zero_point)


def _rows(entry: Entry, holds: Content, values: Values | None) -> list[dict[str, Json]]:
    name = entry.name
    if isinstance(holds, Wish):
        return _wish_rows(holds)
    if isinstance(holds, Float):
        raise cannot(name, "a tensor that stays float", NAME, "an aimet format")
    if isinstance(holds, Lpbq) or holds.block_size:
        raise cannot(name, f"blocks of {holds.block_size}", NAME, for_blocks(name, holds, values))
    if isinstance(holds, Unplaced):
        raise cannot(name, "scales whose axis is not known", NAME, "it with --model, which tells the axis")
    if holds.dtype not in TYPES:
        raise cannot(name, type_name(holds.dtype), NAME, for_type(holds.dtype))
    if not is_whole(holds):
        raise cannot(name, f"the zero point {holds.zero_point[0]}", NAME, for_blocks(name, holds, values))
    if holds.axis is not None and role_of(entry, values) == "activation":
        raise cannot(name, "an activation with scales per channel", NAME, "aimet-2.0.0")
    axis: dict[str, Json] = {} if holds.axis is None else {"axis": holds.axis}
    return [
        {"quant_type": TYPES[holds.dtype], **axis, "scale": scale, "zero_point": zero}
        for scale, zero in zip(holds.scale, holds.zero_point, strict=True)
    ]


def _wish_rows(wish: Wish) -> list[dict[str, Json]]:
    given = {"axis": wish.axis, "symmetric": wish.symmetric, "reduce_range": wish.reduce_range}
    row: dict[str, Json] = {key: value for key, value in given.items() if value is not None}
    if wish.dtype is not None:
        row["quant_type"] = TYPES.get(wish.dtype, type_name(wish.dtype))
    bounds = zip(wish.low, wish.high, strict=True)
    return [{**row, "rmin": low, "rmax": high} for low, high in bounds] or [row]
