"""Values of other tools' options, as scripts and command lines write them: Python objects, JSON, Python literals, words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

import numpy as np
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.numerics.documents import json_of, literal_of
from qdq_passes.numerics.encoding import parse_dtype
from qdq_passes.numerics.override import Override
from qdq_passes.select.globs import literal

from qdqtool.calibrate.observer import METHODS

#: Calibration methods of the other tools → ours; those that begin with pow2 give powers of two.
_METHODS = {"nonoverflow": "pow2-nonoverflow", "minmse": "pow2-minmse", "movingaverage": "moving-average"}
#: What the enumerations of other methods than powers of two call by the same name.
_FLOAT_METHODS = {**_METHODS, "minmse": "mse"}
#: How a constant gets its encoding, by the method that is said for weights.
_CONSTANTS = {"minmax": "range", "nonoverflow": "range", "minmse": "minmse"}

#: Prefixes of enumerations that name storage types.
_TYPE_ENUMS = ("quanttype.", "extendedquanttype.", "vitisquanttype.")
_TYPES = ("int8", "uint8", "int16", "uint16", "int4", "uint4")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")

#: Keys of an entry of TensorQuantOverrides; scale and zero_point, or rmin and rmax, are one a channel.
#: ``qdqtool`` holds what `encodings export` notes for itself.
_ENTRY_KEYS = (
    "axis",
    "convert",
    "quant_type",
    "reduce_range",
    "rmax",
    "rmin",
    "scale",
    "symmetric",
    "zero_point",
    "qdqtool",
)
_PER_CHANNEL = ("scale", "zero_point", "rmin", "rmax")


def structured(value: object) -> object:
    """``value``, read as JSON or as a Python literal where it is text that is one; ``None``, ``null`` and ``""`` are None; a
    member of an enumeration is its name."""
    if isinstance(value, Enum):
        return value.name
    if not isinstance(value, str):
        return value
    if value.strip().lower() in ("", "none", "null"):
        return None
    if value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    try:
        return json_of(value)
    except ValueError:
        pass
    try:
        return literal_of(value)
    except ValueError:
        return value


def to_bool(name: str, value: object) -> bool:
    """True or false, in any spelling."""
    text = str(value).strip().lower()
    if text not in (*_TRUE, *_FALSE):
        raise _mismatch(name, value, "true or false")
    return text in _TRUE


def to_number(name: str, value: object) -> float:
    """A number."""
    found = structured(value)
    try:
        number = np.asarray(found)
    except ValueError:  # lists of different lengths
        raise _mismatch(name, value, "a number") from None
    if (
        isinstance(found, bool | str)
        or number.size != 1
        or number.dtype.kind not in "iuf"
        or not np.isfinite(number).all()
    ):
        raise _mismatch(name, value, "a number")
    return float(number.reshape(()))


def to_integer(name: str, value: object) -> int:
    """An integer."""
    number = to_number(name, value)
    if number != int(number):
        raise _mismatch(name, value, "an integer")
    return int(number)


def to_names(name: str, value: object) -> tuple[str, ...]:
    """A list of names: a list, JSON, a Python literal, or names with commas between them."""
    found = structured(value)
    if isinstance(value, str) and not isinstance(found, list | tuple | set | dict | None):
        found = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(found, list | tuple | set | frozenset) or not all(isinstance(item, str) for item in found):
        raise _mismatch(name, value, 'a list of names, as in a,b or ["a", "b"]')
    return tuple(dict.fromkeys(sorted(found) if isinstance(found, set | frozenset) else found))


def to_type(name: str, value: object) -> str:
    """An integer storage type, ``int8`` for QInt8, QuantType.QInt8, "INT8" and the like.

    Raises:
        UsageError: no type.
        UnsupportedError: a type of theirs that is none of ours.
    """
    text = (value.name if isinstance(value, Enum) else str(value)).strip().lower()
    for prefix in _TYPE_ENUMS:
        text = text.rpartition(prefix)[2]
    plain = text.removeprefix("q")
    if plain in _TYPES:
        return plain
    if text in ("qfloat8e4m3fn", "qfloat16", "qbfloat16", "qbfp", "qmx", "qint32", "quint32"):
        raise UnsupportedError(f"{name}: tensors are not stored as {plain} here", hint=f"it takes {', '.join(_TYPES)}")
    raise _mismatch(name, value, f"a type: QInt8, QUInt8, QInt16, QUInt16, QInt4 or QUInt4 ({', '.join(_TYPES)})")


def to_axes(name: str, value: object) -> dict[str, int]:
    """Operator type → axis: a dict, JSON, a Python literal, or ``MatMul:1,Conv:0``."""
    found = structured(value)
    if isinstance(found, str):
        pairs = [part.rpartition(":") for part in found.split(",") if part.strip()]
        found = {op_type.strip(): structured(axis) for op_type, _, axis in pairs}
    if not isinstance(found, Mapping) or not all(isinstance(key, str) and key for key in found):
        raise _mismatch(name, value, 'axes by operator type, as in {"MatMul": 1}')
    return {str(op_type): to_integer(f"{name}, {op_type}", axis) for op_type, axis in found.items()}


def to_overrides(name: str, value: object) -> dict[str, Override]:
    """TensorQuantOverrides: tensor → list of entries, one per-tensor or one a channel; a bare entry is taken for a list of one.
    What ``convert`` says is left to `to_conversions`.

    Raises:
        UsageError: what is no such thing; the message names the tensor.
        UnsupportedError: a type that is none of ours.
    """
    found = structured(value)
    if not isinstance(found, Mapping):
        raise _mismatch(name, value, 'a dictionary by tensor, as in {"w": [{"quant_type": "QInt16"}]}')
    overrides = {}
    for tensor, given in found.items():
        entries = [given] if isinstance(given, Mapping) else given
        if not isinstance(entries, list | tuple) or not all(isinstance(entry, Mapping) for entry in entries):
            raise UsageError(f"{name}: {given!r} is no list of dictionaries", where=str(tensor))
        try:
            override = _override([{str(k): v for k, v in entry.items()} for entry in entries or [{}]])
        except (UsageError, UnsupportedError) as error:
            error.where = str(tensor)
            raise
        if override != Override():
            overrides[str(tensor)] = override
    return overrides


def to_conversions(name: str, value: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """(type, names of the receiving nodes) of every ``convert`` of TensorQuantOverrides, in order.

    Raises:
        UsageError: a ``convert`` that cannot be read.
        UnsupportedError: one for all receivers, or with scale, zero point or range of its own.
    """
    found, conversions = structured(value), []
    for tensor, given in found.items() if isinstance(found, Mapping) else ():
        first = given[0] if isinstance(given, list | tuple) and given else given
        convert = first.get("convert") if isinstance(first, Mapping) else None
        if convert is None:
            continue
        if not isinstance(convert, Mapping) or "quant_type" not in convert:
            raise UsageError("TensorQuantOverrides: 'convert' needs a quant_type", where=str(tensor))
        if "recv_nodes" not in convert or set(convert) != {"quant_type", "recv_nodes"}:
            raise UnsupportedError(
                "TensorQuantOverrides: 'convert' is taken over with quant_type and recv_nodes alone",
                where=str(tensor),
                hint="convert-boundaries widens the encoding there is, for the nodes that it is told",
            )
        names = to_names(f"{name}, recv_nodes", convert["recv_nodes"])
        conversions.append((to_type("quant_type", convert["quant_type"]), names))
    return tuple(conversions)


def _override(entries: list[dict[str, object]]) -> Override:
    first = entries[0]
    for entry in entries:
        if unknown := sorted(set(entry) - set(_ENTRY_KEYS)):
            raise UsageError(
                f"TensorQuantOverrides has no {unknown[0]!r}", hint=f"its keys are {', '.join(_ENTRY_KEYS)}"
            )
        if "convert" in entry and (entry is not first or "axis" in entry):
            raise UsageError("TensorQuantOverrides: 'convert' is for activations, which have one entry")
        if ("scale" in entry) != ("zero_point" in entry):
            raise UsageError("TensorQuantOverrides: a scale needs a zero_point, and the other way round")
        for key in ("axis", "quant_type", "reduce_range", "symmetric"):
            if key in entry and entry is not first and entry[key] != first.get(key):
                raise UsageError(
                    f"TensorQuantOverrides: the channels differ in {key!r}", hint="all take that of the first"
                )
    if len(entries) > 1 and "axis" not in first:
        raise UsageError("TensorQuantOverrides: several entries without an axis", hint="give 'axis' in the first")
    numbers = {key: tuple(to_number(key, entry[key]) for entry in entries if key in entry) for key in _PER_CHANNEL}
    for key, found in numbers.items():
        if found and len(found) != len(entries):
            raise UsageError(f"TensorQuantOverrides: {key!r} is given for {len(found)} of {len(entries)} channels")
    return Override(
        dtype=parse_dtype(to_type("quant_type", first["quant_type"])) if "quant_type" in first else None,
        axis=to_integer("axis", first["axis"]) if "axis" in first else None,
        scale=numbers["scale"],
        zero_point=tuple(to_integer("zero_point", z) for z in numbers["zero_point"]),
        low=numbers["rmin"],
        high=numbers["rmax"],
        symmetric=to_bool("symmetric", first["symmetric"]) if "symmetric" in first else None,
        reduced=to_bool("reduce_range", first["reduce_range"]) if "reduce_range" in first else None,
    )


def _selectors(name: str, value: object) -> tuple[str, ...]:
    """Selectors of nodes by name; Quark's ``^/layer0/.*`` is a regular expression."""
    names = to_names(name, value)
    return tuple("re:" + n.replace("&", r"\&") if n.startswith("^") and ".*" in n else literal(n) for n in names)


def _activation_type(name: str, value: object) -> str:
    found = to_type(name, value)
    if found.endswith("int4"):
        raise UnsupportedError(f"{name}: activations are not stored as {found}", hint="only weights are")
    return found


def _method(name: str, value: object) -> str:
    text = f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else str(structured(value))
    kind, _, word = text.lower().rpartition(".")
    if word == "layerwisepercentile":
        raise UnsupportedError(
            f"{name}: no method tries percentiles layer by layer", hint="Percentile is one for all tensors"
        )
    method = (_FLOAT_METHODS if kind.endswith("calibrationmethod") else _METHODS).get(word, word)
    if method not in METHODS.names():
        raise UnsupportedError(f"{name}: there is no method {method}", hint=f"there is {', '.join(METHODS.names())}")
    return method


def _constants(name: str, value: object) -> str:
    text = str(structured(value))
    word = text.rpartition(".")[2].lower()
    if word not in _CONSTANTS:
        raise UnsupportedError(
            f"{name}={text} has no equivalent", hint="MinMax takes the range of a weight, MinMSE searches around it"
        )
    return _CONSTANTS[word]


def _rounds(name: str, value: object) -> int:
    rounds = to_integer(name, value)
    if rounds < 1:
        raise UsageError(f"{name} is 1 or more, not {rounds}", hint="NPULimitationCheck=false refines nothing")
    return rounds


def _mismatch(name: str, value: object, expected: str) -> UsageError:
    text = repr(value)
    return UsageError(f"{name} cannot be {text if len(text) <= 60 else text[:60] + '…'}", hint=f"expected {expected}")


#: How values are read: word in the data files → what takes the name of the option, for messages, and its value.
READERS: dict[str, Callable[[str, object], object]] = {
    "bool": to_bool,
    "number": to_number,
    "names": to_names,
    "selectors": _selectors,
    "axes": to_axes,
    "type": to_type,
    "activation-type": _activation_type,
    "overrides": to_overrides,
    "method": _method,
    "constants": _constants,
    "rounds": _rounds,
}
