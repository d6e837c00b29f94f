"""Bytes → `onnx.ModelProto`, by the format the file name tells: ``.onnx`` (and anything unknown) binary, ``.onnxtxt`` the text
syntax of the ONNX specification, ``.json``, ``.textproto`` and what else onnx has registered."""

from __future__ import annotations

import os
import re

import onnx
from qdq_passes.errors import ModelError

from qdqtool.io.files.read import read_bytes

#: The protobuf library reads no message of 2 GiB or more.
PROTOBUF_LIMIT = 2**31 - 1
#: Brackets open at once in text: protobuf allows 100 nested messages, and the C++ parser of the text has no limit but its stack.
MAX_DEPTH = 300
#: First bytes (after an offset) of files that people take for models.
LOOKALIKES = (
    (0, b"version https://git-lfs", "is a git-lfs pointer, not the model", "run `git lfs pull`"),
    (0, b"PK\x03\x04", "is a zip archive", "unpack it (a .pt or .pth file must be exported to ONNX)"),
    (0, b"\x1f\x8b", "is gzip-compressed", "unpack it with gunzip"),
    (0, b"\x89HDF", "is an HDF5 file", "convert the Keras model with tf2onnx"),
    (0, b"<", "is text", "fetch an HTML page again as the model; name ONNX text .onnxtxt"),
    (4, b"ORTM", "is an ORT-format model", "give the .onnx file it was made of"),
    (4, b"TFL3", "is a TensorFlow Lite model", "convert it with tf2onnx"),
)


def read_model(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Parse the file at ``path``; external data is not read.

    Raises:
        ModelError: no such file, or no ONNX model in it.
    """
    where = os.fspath(path)
    extension = os.path.splitext(where)[1].lower()
    form = onnx.serialization.registry.get_format_from_file_extension(extension) or "protobuf"
    data = read_bytes(path)
    if form == "protobuf":
        return _parse_binary(data, where)
    _refuse_depth(data, where)
    try:
        if form == "onnxtxt":
            return onnx.parser.parse_model(data.decode())
        return onnx.serialization.registry.get(form).deserialize_proto(data, onnx.ModelProto())
    except Exception as error:  # each parser has errors of its own for text that is not its syntax
        raise ModelError(f"is not ONNX {form} ({_one_line(error)})", where=where, hint="look at that place") from error


def _parse_binary(data: bytes, where: str) -> onnx.ModelProto:
    for offset, magic, what, hint in LOOKALIKES:
        if data.startswith(magic, offset):
            raise ModelError(what, where=where, hint=hint)
    if len(data) > PROTOBUF_LIMIT:
        raise ModelError("is larger than 2 GiB", where=where, hint="save it with its weights as external data")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:
        raise ModelError(
            "is not an ONNX model, or cut off (protobuf cannot read it)", where=where, hint="fetch or export it again"
        ) from error
    return model


def _refuse_depth(data: bytes, where: str) -> None:
    depth = deepest = 0
    for bracket in re.findall(rb'"(?:\\.|[^"\\])*"|[][(){}]', data):
        depth += {b"(": 1, b"[": 1, b"{": 1}.get(bracket, -1 if len(bracket) == 1 else 0)
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise ModelError(f"nests {deepest} deep", where=where, hint=f"{MAX_DEPTH} is the limit")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:200] + "…"
