"""Runs a golden case's model before and after in onnxruntime, and says where outputs differ by more than the passes declare."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from qdq_passes.core.base import Keeps

from qdqtool.runtime.session import Session, open_session

#: Size of a dynamic dimension.
DYNAMIC = 2


def feed_of(session: Session) -> dict[str, npt.NDArray[Any]]:
    """One feed with values of [-2, 2), seeded by the names of the inputs; integers are 0..3, booleans true."""
    feed: dict[str, npt.NDArray[Any]] = {}
    for name in session.input_names:
        dtype = session.input_dtypes[name]
        assert dtype is not None, f"input {name} has no numpy type"
        shape = [d if isinstance(d, int) else DYNAMIC for d in session.input_shapes[name]]
        random = np.random.default_rng(zlib.crc32(name.encode()))
        values = random.uniform(-2, 2, shape) if dtype.kind in "fV" else random.integers(0, 4, shape)
        feed[name] = np.ones(shape, dtype) if dtype.kind == "b" else values.astype(dtype)
    return feed


def outputs_of(model: ir.Model) -> dict[str, npt.NDArray[Any]]:
    """Outputs of ``model`` on `feed_of`."""
    session = open_session(model)
    return session.run(feed_of(session))


def differences(
    before: Mapping[str, npt.NDArray[Any]], after: Mapping[str, npt.NDArray[Any]], keeps: Iterable[Keeps]
) -> list[str]:
    """Outputs that differ by more than the passes with these promises may, together."""
    promises = list(keeps)
    if any(k.numerics == "changes" for k in promises):
        return []
    bound = sum(k.bound for k in promises if k.numerics == "bounded")
    found = [] if list(before) == list(after) else [f"outputs are {list(after)}, were {list(before)}"]
    for name, a in before.items():
        b = after.get(name)
        if b is None or a.dtype != b.dtype or a.shape != b.shape:
            found.append(f"{name}: {a.dtype}{list(a.shape)} became {None if b is None else (b.dtype, b.shape)}")
        elif bound == 0 or a.dtype.kind not in "fV":
            if not (np.array_equal(a, b) if a.dtype.kind == "O" else a.tobytes() == b.tobytes()):
                found.append(f"{name}: {a.ravel()[:8]} became {b.ravel()[:8]}, not bit for bit the same")
        elif np.abs(a - b).max(initial=0.0) > bound * np.abs(a).max(initial=0.0):
            found.append(f"{name}: differs by {np.abs(a - b).max()}, more than {bound} of {np.abs(a).max()}")
    return found
