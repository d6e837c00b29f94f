"""Arrays into an ``.npz``: whole or not at all, and the same arrays give the same bytes (numpy's own writer stores the clock)."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping, Sequence

import numpy as np
from qdq_passes.numerics.arrays import Array

from qdqtool.io.files.atomic import write_whole


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, Array], *, overwrite: bool = True) -> None:
    """Write ``arrays`` by name; ``numpy.load`` and ``--data`` read it.

    Raises:
        UsageError: the file exists and ``overwrite`` is off, or the place cannot be written.
        SetupError: the disk is full.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, array in arrays.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, np.asarray(array), allow_pickle=False)
            file.writestr(zipfile.ZipInfo(f"{name}.npy"), data.getvalue())  # its date is 1980
    write_whole(path, packed.getvalue(), overwrite=overwrite)


def joined(samples: Mapping[str, Sequence[Array]]) -> dict[str, Array]:
    """One array a name: samples behind each other along the first axis, stacked where they are single numbers; of samples whose
    shapes differ one array each, as ``name/0``, ``name/1``."""
    found: dict[str, Array] = {}
    for name, arrays in samples.items():
        if len({array.shape[1:] if array.ndim else None for array in arrays}) == 1:
            found[name] = np.concatenate(arrays) if arrays[0].ndim else np.stack(arrays)
        else:
            found |= {f"{name}/{index}": array for index, array in enumerate(arrays)}
    return found
