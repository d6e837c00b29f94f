"""Float values that a weight had before a pass brought them onto another integer, as narrow-weights does.

So that removing the pair gives the weight as it was, they are kept in the metadata of the float tensor: which elements, and their
bytes. They count as long as the tensor holds what that pass left there."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.errors import ModelError
from qdq_passes.graph.edit import set_constant

#: In ``metadata_props`` of an initializer: flat indices, int64, and bytes of the values, both little endian in base64; and the
#: SHA-256 of the data they belong to.
KEY = "qdqtool.floats"


def remember_floats(value: ir.Value, before: npt.NDArray[Any]) -> None:
    """Note what elements of ``before``, which ``value`` held, are others now."""
    after = _data(value)
    if after is None:
        return
    at = np.flatnonzero(before.reshape(-1) != after.reshape(-1))
    note = {
        "at": base64.b64encode(at.astype("<i8").tobytes()).decode(),
        "data": base64.b64encode(before.reshape(-1)[at].tobytes()).decode(),
        "of": _digest(after),
    }
    value.metadata_props[KEY] = json.dumps(note, sort_keys=True, separators=(",", ":"))


def remembered_floats(value: ir.Value, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``array``, the data of ``value``, with the values noted on it, if the note is about these data.

    Raises:
        ModelError: the note is broken.
    """
    text = value.metadata_props.get(KEY)
    if text is None:
        return array
    try:
        note = json.loads(text)
        if note["of"] != _digest(array):
            return array
        at = np.frombuffer(base64.b64decode(note["at"], validate=True), "<i8")
        found = array.copy()
        found.reshape(-1)[at] = np.frombuffer(base64.b64decode(note["data"], validate=True), array.dtype)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ModelError(
            f"its metadata {KEY} is broken: {error}", where=value.name, hint="remove that entry"
        ) from error
    return found


def restore_floats(value: ir.Value) -> bool:
    """Give ``value`` the floats noted on it, and drop the note; whether there were any."""
    array = _data(value) if KEY in value.metadata_props else None
    if array is None:
        return False
    found = remembered_floats(value, array)
    del value.metadata_props[KEY]
    if found is not array:
        set_constant(value, found)
    return found is not array


def _data(value: ir.Value) -> npt.NDArray[Any] | None:
    return None if value.const_value is None else np.ascontiguousarray(value.const_value.numpy())


def _digest(array: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
