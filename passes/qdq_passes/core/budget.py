"""How much memory and work a file may cost: a file of 2 KB can ask for terabytes.

What is allowed grows with what the user brought, so that a large model is never refused for its size: a part that every file has,
and multiples of the bytes of the largest model loaded and of the largest feed read. ``QDQTOOL_MAX_BYTES`` says another bound.

    allowed(least) = least + 128·model + 64·tensors·feed     bytes

``tensors`` are those that are fetched of a session. Random feeds count likewise, up to a GiB.

The factors are judged, not measured: activations of the networks we know are 60 times their input at most. Nodes and elements are
counted in bytes as well."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from qdq_passes.errors import ModelError, UsageError

#: Lifts the bounds: bytes.
VARIABLE = "QDQTOOL_MAX_BYTES"
#: What every file may cost, however small: bytes.
LEAST = 1 << 30
_A_MODEL, _A_FEED = 128, 64
#: Bytes of the largest model loaded and of the largest feed read in this process.
_brought = {"model": 0, "feed": 0, "drawn": 0}


def brought(**sizes: int) -> None:
    """Note down the bytes of something the user brought: a ``model`` with its data, a ``feed``, or one ``drawn`` at random."""
    for what, count in sizes.items():
        _brought[what] = max(_brought[what], count)


def forget() -> None:
    """Nothing was brought so far."""
    _brought.update(dict.fromkeys(_brought, 0))


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected while what is made stays alive, as the nodes of a large graph do: each collection would go through
    all of them again, a sixth of the time of 5,000 nodes. What was let go of since the last time is collected before, if by the
    collector's own rule there is enough of it."""
    was_on = gc.isenabled()
    if was_on and gc.get_count()[0] > gc.get_threshold()[0] // 2:
        gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def allowed(least: int = LEAST, tensors: int = 1) -> int:
    """Bytes that may be asked for at once, where so many ``tensors`` are to be had of each feed.

    Raises:
        UsageError: the variable holds no number.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        drawn = min(_A_FEED * tensors * _brought["drawn"], LEAST)  # as large as the model says: no reason to trust it
        return least + _A_MODEL * _brought["model"] + max(_A_FEED * tensors * _brought["feed"], drawn)
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise UsageError(
            f"{text[:40]!r} is no number of bytes", where=VARIABLE, hint=f"{VARIABLE}={16 << 30}, for 16 GiB"
        )
    return int(text)


def demand(wanted: int, what: str, *, where: str | None, least: int = LEAST, hint: str = "") -> None:
    """Refuse ``what``, which would take ``wanted`` bytes, where that is more than is `allowed`; ``hint`` is a better way out than
    to allow more.

    Raises:
        ModelError: it is; ``where`` is the node, value or file.
    """
    if wanted > (most := allowed(least)):
        raise ModelError(
            f"{what} would take {size(wanted)}, more than the {size(most)} allowed",
            where=where,
            hint=hint or way_out(wanted),
        )


def way_out(wanted: int = 0) -> str:
    """What a reader can do, in words."""
    needed = min(max(2 * wanted, 4 * LEAST), 10**18 - 1)
    return f"where the file is trusted, set {VARIABLE}={needed}"


def size(count: int) -> str:
    """``1.5 GiB``; of what is beyond all measure ``more than 8 EiB``."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    step = min(max(count.bit_length() - 1, 0) // 10, len(units) - 1)
    if count >= 1 << 63:
        return "more than 8 EiB"
    return f"{count / (1 << (10 * step)):.4g} {units[step]}"
