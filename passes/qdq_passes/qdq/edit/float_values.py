"""Float values that a constant had before a pass changed them for an integer grid, as narrow-weights and bound-attention-mask do.

So that removing the pairs gives the constant as it was, they are kept in the metadata of the float tensor: which elements, and
their bytes; of a mask, one number and the one that it stands for. They count as long as the tensor holds what that pass left.
Likewise the scale of stored integers, where refine-positions moves it without them."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.errors import ModelError, QdqError
from qdq_passes.graph.edit import Namer, set_constant
from qdq_passes.numerics.documents import json_of
from qdq_passes.numerics.encoding import Encoding

#: In ``metadata_props`` of stored integers whose scale moved without them: the scales that they were made with, and those now.
SCALES = "qdqtool.scales"
#: In ``metadata_props`` of an initializer: flat indices, int64, or the number that all changed elements and no other have now
#: (``now``); and bytes of the values, or of the one value; little endian in base64; and the SHA-256 of the data they belong to.
KEY = "qdqtool.floats"


def remember_floats(value: ir.Value, before: npt.NDArray[Any], *, name: str | None = None) -> None:
    """Note what elements of ``before``, which ``value`` held, are others now; and under which ``name``, where it has another."""
    after = _data(value)
    if after is None:
        return
    old, new = before.reshape(-1), after.reshape(-1)
    at = np.flatnonzero(old != new)
    if not at.size:
        return
    if np.array_equal(at, np.flatnonzero(new == new[at[0]])) and (old[at] == old[at[0]]).all():
        which, at = {"now": _text(new[at[:1]])}, at[:1]
    else:
        which = {"at": _text(at.astype("<i8"))}
    named = {"name": name} if name is not None else {}
    note = {**named, **which, "data": _text(old[at]), "of": _digest(after)}
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
        note = json_of(text)
        if note["of"] != _digest(array):
            return array
        found = array.copy()
        flat = found.reshape(-1)
        at = flat == _numbers(note["now"], array.dtype) if "now" in note else _numbers(note["at"], np.dtype("<i8"))
        flat[at] = _numbers(note["data"], array.dtype)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ModelError(
            f"its metadata {KEY} is broken: {error}", where=value.name, hint="remove that entry"
        ) from error
    return found


def restore_floats(value: ir.Value, namer: Namer) -> bool:
    """Give ``value`` the floats noted on it, and its former name where that is free; whether there were any. The note goes."""
    array = _data(value) if KEY in value.metadata_props else None
    if array is None:
        return False
    found, note = remembered_floats(value, array), json_of(value.metadata_props.pop(KEY))
    if found is array:
        return False
    set_constant(value, found)
    if isinstance(note.get("name"), str) and namer.is_free(note["name"]):
        namer.release(value.name or "")
        value.name = namer.fresh(note["name"])
    return True


def remember_scale(stored: ir.Value, before: Encoding, now: Encoding) -> None:
    """Note that the integers ``stored`` in ``before`` are read in ``now`` from here on, and stand for something else."""
    note = {"now": list(now.scale), "was": list(made_in(stored, before).scale)}
    stored.metadata_props[SCALES] = json.dumps(note, sort_keys=True)


def made_in(stored: ir.Value, encoding: Encoding) -> Encoding:
    """What the integers ``stored`` were made in, if they are read in ``encoding`` because a scale moved without them.

    Raises:
        ModelError: the note is broken.
    """
    text = stored.metadata_props.get(SCALES)
    if text is None:
        return encoding
    try:
        note = json_of(text)
        is_about = tuple(note["now"]) == encoding.scale
        return dataclasses.replace(encoding, scale=tuple(map(float, note["was"]))) if is_about else encoding
    except (ValueError, KeyError, TypeError, QdqError) as error:
        raise ModelError(
            f"its metadata {SCALES} is broken: {error}", where=stored.name, hint="remove that entry"
        ) from error


def _text(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _numbers(text: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype)


def _data(value: ir.Value) -> npt.NDArray[Any] | None:
    return None if value.const_value is None else np.ascontiguousarray(value.const_value.numpy())


def _digest(array: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()
