"""Matrix products on one thread: with several, numpy's BLAS cuts a product into other blocks, and sums round otherwise.

Measured with OpenBLAS 0.3.31: xᵀ·x of float32 [49, 4608] has other last bits on two threads than on one."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

#: The library in numpy's own wheels, and what its functions are called there (built with 64-bit or 32-bit indices).
_LIBRARY, _SUFFIXES = re.compile(r"openblas.*\.(so|dll|dylib)"), ("64_", "")
_lock, _depth, _before = threading.Lock(), 0, 0


@contextmanager
def one_thread() -> Iterator[None]:
    """Have numpy multiply on one thread within the block, whatever thread asks: the same bits on any number of cores.

    Where numpy has another BLAS than that of its wheels, nothing changes: ``OMP_NUM_THREADS=1`` does it there."""
    global _depth, _before
    functions = _functions()
    with _lock:
        _depth += 1
        if functions is not None and _depth == 1:
            _before = functions[0]()
            functions[1](1)
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if functions is not None and _depth == 0:
                functions[1](_before)


@functools.cache
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Number of threads, and how to set it; None for another BLAS."""
    package = os.path.dirname(np.__file__)
    for folder in (f"{package}.libs", os.path.join(package, ".libs"), os.path.join(package, ".dylibs")):
        for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            if _LIBRARY.search(file):
                library = ctypes.CDLL(os.path.join(folder, file))
                for suffix in _SUFFIXES:
                    found = [
                        getattr(library, f"scipy_openblas_{verb}_num_threads{suffix}", None) for verb in ("get", "set")
                    ]
                    if None not in found:
                        return found[0], found[1]  # type: ignore[return-value]
    return None
