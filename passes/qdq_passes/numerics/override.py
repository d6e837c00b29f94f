"""Overrides: what is said of one tensor in place of the policy that holds for all; what is not said, the policy decides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.numerics.documents import json_of
from qdq_passes.numerics.encoding import FLOAT32_MAX, Encoding, parse_dtype

_KEYS = ("axis", "dtype", "high", "low", "reduced", "scale", "symmetric", "zero_point")


@dataclass(frozen=True, kw_only=True)
class Override:
    """What is said of one tensor; None and ``()`` say nothing.

    Args:
        dtype: storage type.
        axis: the scales run along this axis (weights and biases only); negative counts from the end.
        scale: the scales themselves, with ``zero_point``: nothing is left to choose then.
        zero_point: as many as scales.
        low: range instead of the observed one: a number per scale.
        high: upper end of that range; either end may be given alone per-tensor.
        symmetric: zero point 0.
        reduced: one bit less (weights and biases only).

    Raises:
        UsageError: scales without zero points, scales together with what they would be chosen by, numbers per scale without an
            axis, low > high.
    """

    dtype: ir.DataType | None = None
    axis: int | None = None
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    symmetric: bool | None = None
    reduced: bool | None = None

    def __post_init__(self) -> None:
        if len(self.scale) != len(self.zero_point):
            raise UsageError(f"{len(self.scale)} scales and {len(self.zero_point)} zero points", hint="give both")
        if self.scale and (self.low or self.high or self.symmetric is not None or self.reduced is not None):
            raise UsageError(
                "a scale leaves nothing to choose by a range, symmetric or reduced", hint="give one or the other"
            )
        if self.axis is None and max(len(self.scale), len(self.low), len(self.high)) > 1:
            raise UsageError("several numbers without an axis", hint="give axis")
        if self.axis is not None and len(self.low) != len(self.high):
            raise UsageError(f"{len(self.low)} lower and {len(self.high)} upper ends of ranges", hint="give both")
        for low, high in zip(self.low, self.high, strict=False):
            if not low <= high:
                raise UsageError(f"[{low}, {high}] is no range", hint="low <= high")

    @property
    def needs_range(self) -> bool:
        """Whether an activation still needs its observed range."""
        return not self.scale and not (self.low and self.high)

    def encoding(self, dtype: ir.DataType) -> Encoding | None:
        """The encoding, when it is said in full; ``dtype`` is the storage type unless the override names one."""
        if not self.scale:
            return None
        shape = () if self.axis is None else (len(self.scale),)
        return Encoding(
            dtype=self.dtype or dtype, scale=self.scale, zero_point=self.zero_point, shape=shape, axis=self.axis
        )

    def to_json(self) -> dict[str, Any]:
        """JSON-ready, what is said and no more; numbers bare per-tensor, in lists along an axis."""
        data: dict[str, Any] = {"axis": self.axis, "symmetric": self.symmetric, "reduced": self.reduced}
        data["dtype"] = None if self.dtype is None else self.dtype.name.lower()
        for key in ("scale", "zero_point", "low", "high"):
            numbers = getattr(self, key)
            data[key] = (numbers[0] if self.axis is None else list(numbers)) if numbers else None
        return {key: value for key, value in data.items() if value is not None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Override:
        """Read the form written by `to_json`.

        Raises:
            UsageError: an unknown key, a value of the wrong type, or numbers that do not fit together.
        """
        if unknown := sorted(set(data) - set(_KEYS)):
            raise UsageError(f"an override has no {unknown[0]!r}", hint=f"its keys are {', '.join(_KEYS)}")
        try:
            return cls(
                dtype=_dtype(data["dtype"]) if "dtype" in data else None,
                axis=_axis(data.get("axis")),
                scale=_numbers(data.get("scale")),
                zero_point=tuple(_integer(z) for z in _numbers(data.get("zero_point"))),
                low=_numbers(data.get("low")),
                high=_numbers(data.get("high")),
                symmetric=_flag(data.get("symmetric")),
                reduced=_flag(data.get("reduced")),
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"an override that cannot be read: {error}", hint=f"its keys are {', '.join(_KEYS)}"
            ) from error


def parse_overrides(text: str) -> dict[str, Override]:
    """Tensor name → override of a JSON object; ``""`` is none.

    Raises:
        UsageError: no JSON object of overrides; the message names the tensor.
    """
    try:
        data = json_of(text) if text else {}
    except ValueError as error:
        raise UsageError(f"overrides are no JSON: {error}", hint='write {"tensor": {"dtype": "int16"}}') from error
    if not isinstance(data, dict) or not all(isinstance(entry, dict) for entry in data.values()):
        raise UsageError("overrides are no JSON object of objects", hint='write {"tensor": {"dtype": "int16"}}')
    found = {}
    for name, entry in data.items():
        try:
            found[name] = Override.from_json(entry)
        except UsageError as error:
            error.where = name
            raise
    return found


def format_overrides(overrides: Mapping[str, Override]) -> str:
    """Canonical text; inverse of `parse_overrides`. ``""`` when there are none."""
    if not overrides:
        return ""
    data = {name: override.to_json() for name, override in overrides.items()}
    return json.dumps(data, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _numbers(value: Any) -> tuple[float, ...]:
    if value is None:
        return ()
    numbers = value if isinstance(value, list) else [value]
    if any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
        raise TypeError(f"{value!r} where numbers are expected")
    if any(not abs(n) <= FLOAT32_MAX for n in numbers):
        raise ValueError(f"{numbers!r:.60} where numbers that float32 holds are expected")
    return tuple(numbers)


def _dtype(value: Any) -> ir.DataType:
    if not isinstance(value, str):
        raise TypeError(f"dtype {value!r} is no name of a type")
    return parse_dtype(value)


def _integer(number: float) -> int:
    if int(number) != number:
        raise TypeError(f"zero point {number} is no integer")
    return int(number)


def _axis(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise TypeError(f"axis {value!r} is no integer")
    return value


def _flag(value: Any) -> bool | None:
    if value is not None and type(value) is not bool:
        raise TypeError(f"{value!r} where true or false is expected")
    return value
