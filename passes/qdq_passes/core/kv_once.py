"""Values that several nodes of one model have in common."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir


class Once:
    """Values that are made once for all that ask for them by the same key."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], ir.Value] = {}

    def __call__(self, key: tuple[object, ...], make: Callable[[], ir.Value]) -> ir.Value:
        """The value of ``key``."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


def key_of_length(past: ir.Value | None, present: ir.Value | None, query: ir.Value, axis: int) -> tuple[object, ...]:
    """Equal for attentions of as many old and new rows: sizes or names of past and present [B, heads, rows, D], where those are
    not known that of ``query`` along ``axis``."""
    old, total = size_of(past, 2), size_of(present, 2)
    is_known = past is not None and isinstance(old, int | str) and isinstance(total, int | str)
    return (old, total) if is_known else (old, size_of(query, axis))


def size_of(value: ir.Value | None, axis: int) -> object:
    """Size of ``value`` along ``axis``, a number or a name, as part of a key; ``value`` itself where it has neither."""
    size = value.shape[axis] if value is not None and value.shape is not None else None
    known = size if isinstance(size, int) else size.value if size is not None else None
    return value if known is None else known
