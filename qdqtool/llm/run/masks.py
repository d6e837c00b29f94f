"""The attention masks that the host makes, [B, 1, S, C]: written where they change, not made anew for each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from qdq_passes.decoder.look.record import HIDDEN, HIDDEN_FLOAT16, Layout
from qdq_passes.numerics.arrays import Array


def blocked(dtype: np.dtype[Any]) -> Any:
    """What stands for "not seen" in ``dtype``: −1e9, in float16 −2^15, in a mask of bool False."""
    if dtype == np.bool_:
        return False
    return dtype.type(HIDDEN_FLOAT16 if dtype == np.float16 else HIDDEN)


class HostMask:
    """One mask and its memory.

    Args:
        array: [B, 1, S, C], float or bool.
        layout: where key slots are counted from.
        window: how many keys a query sees at most, itself included; 0 for all before it.
        hidden: what stands for "not seen"; 0 for that of the type.
    """

    def __init__(self, array: Array, layout: Layout, window: int = 0, hidden: float = 0.0) -> None:
        self.array, self._layout, self._window = array, layout, window
        self._no = array.dtype.type(hidden) if hidden else blocked(array.dtype)
        self._yes = array.dtype.type(array.dtype == np.bool_)
        self._starts: list[int] | None = None  # of the last run, for runs of one token

    def write(self, starts: Sequence[int], counts: Sequence[int]) -> None:
        """Write the mask of a run.

        Args:
            starts: per row, the position of its first token.
            counts: per row, how many of its S tokens are real.
        """
        if self.array.shape[2] > 1:
            self._write_all(starts, counts)
            return
        before = self._starts
        self._starts = list(starts)
        if before is None or min(counts) < 1 or any(s != b + 1 for s, b in zip(starts, before, strict=True)):
            self._write_all(starts, counts)
            if min(counts) < 1:
                self._starts = None
            return
        ctx_len, window = self.array.shape[3], self._window
        for row, position in enumerate(starts):
            line = self.array[row, 0, 0]
            if self._layout == "in-place":
                line[position] = self._yes
                if window and position >= window:
                    line[position - window] = self._no
            elif not window or position < window:
                line[ctx_len - 1 - position] = self._yes

    def _write_all(self, starts: Sequence[int], counts: Sequence[int]) -> None:
        _, _, seq_len, ctx_len = self.array.shape
        slots = np.arange(ctx_len)
        queries = np.arange(seq_len)[:, None]
        for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
            first = 0
            if self._layout == "in-place":
                last = start + queries
            else:
                last = ctx_len - seq_len + queries
                first = ctx_len - start - count
            seen = (slots <= last) & (slots >= first)
            if self._window:
                seen &= slots > last - self._window
            self.array[row, 0] = np.where(seen, self._yes, self._no)
