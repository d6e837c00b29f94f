"""A model file in pieces: protobuf makes the small ones, and the bytes of large weights are written from where they are.

Through protobuf they would be copied twice, which takes twice their memory and longer than writing them (ResNet-18: 0.09 CPU s).
While the model becomes a message, random bytes stand for each of them; then the lengths of the messages around are put right."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from qdq_passes.graph.foreign import Slot

from qdqtool.io.models.references import GRAPH, fields

Piece = bytes | memoryview

#: Bytes from which a weight is a piece of its own.
LARGE = 1 << 16
#: Types whose bytes in a file are those of their array, on machines that store the lowest byte first.
_PLAIN = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.INT8, ir.DataType.UINT8}
#: Bytes that stand for a weight; their number takes one byte.
_TOKEN = 32


class _StandIn(ir.Tensor[Any]):
    """A tensor that gives protobuf ``token`` for its bytes."""

    def __init__(self, tensor: ir.Tensor[Any], token: bytes) -> None:
        super().__init__(
            tensor.raw, tensor.dtype, shape=tensor.shape, name=tensor.name, doc_string=tensor.doc_string,
            metadata_props=tensor.metadata_props,
        )  # fmt: skip
        self.token = token

    def tobytes(self) -> bytes:
        """The token."""
        return self.token


def stand_ins(initializers: Iterable[ir.Value]) -> dict[Slot, ir.TensorProtocol]:
    """Return small stand-ins for large ``initializers`` of the main graph, used while it is serialized; see `pieces`."""
    found: dict[Slot, ir.TensorProtocol] = {}
    for value in initializers if sys.byteorder == "little" else ():
        tensor = value.const_value
        if type(tensor) is ir.Tensor and tensor.dtype in _PLAIN and tensor.nbytes >= LARGE:
            array = tensor.raw
            if isinstance(array, np.ndarray) and array.flags.c_contiguous and array.dtype.isnative:
                found[Slot(value)] = _StandIn(tensor, os.urandom(_TOKEN))
    return found


def pieces(data: bytes, tensors: Iterable[onnx.TensorProto], standing: dict[Slot, ir.TensorProtocol]) -> list[Piece]:
    """The file whose bytes would be ``data``, were it not for what is ``standing`` for weights.

    Args:
        data: a model as protobuf writes it, made while ``standing`` stood in it, deterministically.
        tensors: initializers of its main graph.
        standing: result of `stand_ins`.
    """
    weights = {each.token: each for each in standing.values() if isinstance(each, _StandIn)}
    graph = next(fields(data, (0, len(data)), GRAPH))
    edits: list[tuple[int, int, list[Piece]]] = []  # what comes instead of the bytes from one place to another
    grown = 0
    for start, stop, token in _found(data, tensors, weights):
        raw = _raw(weights[token])
        at = data.index(token, start)
        count = _varint(raw.nbytes)
        more = len(count) - 1 + raw.nbytes - _TOKEN
        old, new = _varint(stop - start), _varint(stop - start + more)
        edits += [(start - len(old), start, [new]), (at - 1, at + _TOKEN, [count, raw])]
        grown += more + len(new) - len(old)
    old = _varint(graph[1] - graph[0])
    edits.insert(0, (graph[0] - len(old), graph[0], [_varint(graph[1] - graph[0] + grown)]))
    view, at = memoryview(data), 0
    made: list[Piece] = []
    for start, stop, instead in edits:
        made += [view[at:start], *instead]
        at = stop
    return [*made, view[at:]]


def _found(
    data: bytes, tensors: Iterable[onnx.TensorProto], weights: dict[bytes, _StandIn]
) -> Iterator[tuple[int, int, bytes]]:
    """(first byte, one behind the last, token) of each of ``tensors`` in ``data`` that stands for one of ``weights``."""
    at = 0
    for tensor in tensors:
        if tensor.raw_data in weights:
            message = tensor.SerializeToString(deterministic=True)
            at = data.index(message, at)
            yield at, at + len(message), tensor.raw_data
            at += len(message)


def _raw(tensor: ir.Tensor[Any]) -> memoryview:
    return tensor.numpy().reshape(-1).view(np.uint8).data


def _varint(number: int) -> bytes:
    """``number`` as protobuf writes it: seven bits a byte, the lowest first."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
