"""Differences in words, for people."""

from __future__ import annotations

import math
from typing import Any


def describe(kind: str, value: Any) -> str:
    """One side of a difference in words, for people: ``int8 scale 2^-5, weight pair``; ``-`` for what is not there."""
    if value is None:
        return "-"
    if kind == "encoding" and isinstance(value, dict):
        return _encoding_text(value)
    if isinstance(value, list):
        return f"[{', '.join('' if item is None else str(item) for item in value)}]"
    return str(value)


def _encoding_text(data: dict[str, Any]) -> str:
    other = data.get("quantized_with")
    unlike = f", quantized with {_half_text({**data, **other})}" if other else ""
    domain = f" of {data['domain']}" if data.get("domain") else ""
    return f"{_half_text(data)}, {data['kind']}, {'stored integers' if data['stored'] else 'pair'}{domain}{unlike}"


def _half_text(data: dict[str, Any]) -> str:
    """What one of the two nodes does."""
    attributes = "".join(f", {name} {value}" for name, value in data.get("attributes", {}).items())
    if "dtype" not in data:
        return f"scale {data['scale']}{attributes}"
    scales, zero_points = _flat(data["scale"]), _flat(data["zero_point"])
    axis = "" if data["axis"] is None else f" on axis {data['axis']}"
    blocks = f" in blocks of {data['block_size']}" if data["block_size"] else ""
    scale = _scale_text(scales[0]) if len(scales) == 1 else f"{_scale_text(min(scales))}..{_scale_text(max(scales))}"
    many = f" ({len(scales)}{axis}{blocks})" if len(scales) > 1 else axis
    zero = f", zero point {min(zero_points)}" if any(zero_points) and min(zero_points) == max(zero_points) else ""
    zero = zero or (f", zero points {min(zero_points)}..{max(zero_points)}" if any(zero_points) else "")
    return f"{data['dtype']} scale {scale}{many}{zero}{attributes}"


def _scale_text(scale: float) -> str:
    mantissa, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{scale:.6g}"


def _flat(value: Any) -> list[Any]:
    return [x for item in value for x in _flat(item)] if isinstance(value, list) else [value]
