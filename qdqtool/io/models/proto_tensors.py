"""Rules on tensors as they stand in the file: known type, sane shape, as many bytes as type and shape say."""

from __future__ import annotations

import hashlib
import math
import os

import onnx
import onnx_ir as ir
from qdq_passes.errors import ModelError, UnsupportedError

from qdqtool.io.models import external

T = onnx.TensorProto

#: Typed field that holds each data type, and the entries per element: complex numbers take two.
FIELD_OF: dict[int, str] = {
    **dict.fromkeys((T.FLOAT, T.COMPLEX64), "float_data"),
    **dict.fromkeys((T.DOUBLE, T.COMPLEX128), "double_data"),
    **dict.fromkeys((T.UINT32, T.UINT64), "uint64_data"),
    T.INT64: "int64_data",
    T.STRING: "string_data",
}
FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
KNOWN = frozenset(t.value for t in ir.DataType) - {T.UNDEFINED}
#: Data types that a typed field holds packed, as the raw bytes are: several elements in a byte, a byte an entry.
PACKED_BITS = (2, 4)
#: Dimensions, and elements beside those of sizes of 0, that an array of numpy has at most.
MAX_RANK, MAX_SIZE = 64, 1 << 56
TOO_LARGE = f"no array has more than {MAX_RANK} dimensions, or so many elements: export the model again"
DAMAGED = "the file is damaged: fetch or export it again"


class TensorRules:
    """Checks tensors one after the other; files of external data are opened once each.

    Args:
        folder: the model's folder, below which external data lies; None: the model came from memory, and has none.
        weights: whether every file of external data must be there.
    """

    def __init__(self, folder: str | None, *, weights: bool = True) -> None:
        self.folder = folder
        self.weights = weights
        #: Locations of the external data files that are not there.
        self.missing: set[str] = set()
        #: Size in bytes of each external data file seen.
        self.sizes: dict[str, int] = {}
        #: Hex SHA-1 of each whose checksum a tensor says.
        self.digests: dict[str, str] = {}

    def check(self, tensor: onnx.TensorProto, where: str) -> None:
        """Raise `ModelError` for the first thing that is wrong with ``tensor``, of ``where``."""
        code = tensor.data_type
        if code not in KNOWN:
            what = "no data type" if code == T.UNDEFINED else f"the unknown data type {code}"
            raise ModelError(f"the tensor has {what}", where=where, hint=DAMAGED)
        if any(d < 0 for d in tensor.dims):
            raise ModelError(f"the tensor has the shape {list(tensor.dims)[:8]}", where=where, hint=DAMAGED)
        if len(tensor.dims) > MAX_RANK or math.prod(d or 1 for d in tensor.dims) >= MAX_SIZE:
            raise ModelError(f"the tensor has the shape {list(tensor.dims)[:8]}", where=where, hint=TOO_LARGE)
        if tensor.HasField("segment"):
            raise UnsupportedError("the tensor is cut into segments", where=where, hint="save it in one piece")
        elements = math.prod(tensor.dims)
        if tensor.data_location == T.EXTERNAL:
            self._check_external(tensor, elements, where)
        else:
            _check_inline(tensor, elements, where)

    def _check_external(self, tensor: onnx.TensorProto, elements: int, where: str) -> None:
        if tensor.data_type == T.STRING:
            raise ModelError("strings cannot be external data", where=where, hint=DAMAGED)
        extent = external.extent_of(tensor)
        if self.folder is None:
            raise ModelError("external data without a folder", where=where, hint="load the model from its file")
        nbytes = bytes_of(tensor.data_type, elements)
        if self._is_missing(self.folder, extent.location, where):
            external.check_bounds(extent, nbytes, extent.offset + nbytes, where)
            return
        external.check_bounds(extent, nbytes, self.sizes[extent.location], where)
        if extent.checksum and extent.checksum != self._digest(extent.location, where):
            problem = f"external data {extent.location!r} has another SHA-1 than the model says"
            raise ModelError(problem, where=where, hint="model and data file do not belong together: fetch both again")

    def _is_missing(self, folder: str, location: str, where: str) -> bool:
        """Whether a data file is not there, and need not be; its size is noted where it is. Any other fault is refused."""
        if location in self.missing or location in self.sizes:
            return location in self.missing
        try:
            handle = external.open_data(folder, location, where)
        except ModelError as error:
            if self.weights or not isinstance(error.__cause__, FileNotFoundError):
                raise
            self.missing.add(location)
            return True
        with os.fdopen(handle, "rb") as file:
            self.sizes[location] = os.fstat(file.fileno()).st_size
        return False

    def _digest(self, location: str, where: str) -> str:
        """Hex SHA-1 of a data file, read once."""
        if location not in self.digests:
            with os.fdopen(external.open_data(self.folder or "", location, where), "rb") as file:
                self.digests[location] = hashlib.file_digest(file, "sha1").hexdigest()
        return self.digests[location]


def bytes_of(code: int, elements: int) -> int:
    """Bytes that ``elements`` elements of data type ``code`` take as raw data."""
    return (elements * ir.DataType(code).bitwidth + 7) // 8


def _check_inline(tensor: onnx.TensorProto, elements: int, where: str) -> None:
    filled = [field for field in FIELDS if len(getattr(tensor, field))]
    if tensor.HasField("raw_data"):
        if tensor.data_type == T.STRING:
            raise ModelError("strings cannot be raw data", where=where, hint=DAMAGED)
        if filled:
            raise ModelError(f"the tensor has raw data and {filled[0]}", where=where, hint=DAMAGED)
        _compare(len(tensor.raw_data), bytes_of(tensor.data_type, elements), "bytes", tensor, where)
        return
    field = FIELD_OF.get(tensor.data_type, "int32_data")
    if filled and filled != [field]:
        raise ModelError(f"the tensor has {filled[0]} where its type needs {field}", where=where, hint=DAMAGED)
    expected = elements
    if tensor.data_type in (T.COMPLEX64, T.COMPLEX128):
        expected *= 2
    elif tensor.data_type != T.STRING and ir.DataType(tensor.data_type).bitwidth in PACKED_BITS:
        expected = bytes_of(tensor.data_type, elements)
        if len(tensor.int32_data) == elements > expected:
            _pack(tensor, ir.DataType(tensor.data_type).bitwidth)
    _compare(len(getattr(tensor, field)), expected, "entries", tensor, where)


def _pack(tensor: onnx.TensorProto, bits: int) -> None:
    """Pack the entries of a tensor of 2 or 4 bits, the first in the lowest bits; `onnx.parser` leaves one per element."""
    entries, per_byte = list(tensor.int32_data), 8 // bits
    packed = [
        sum(
            (entry & ((1 << bits) - 1)) << (bits * place)
            for place, entry in enumerate(entries[start : start + per_byte])
        )
        for start in range(0, len(entries), per_byte)
    ]
    tensor.int32_data[:] = packed


def _compare(found: int, expected: int, unit: str, tensor: onnx.TensorProto, where: str) -> None:
    if found != expected:
        name = ir.DataType(tensor.data_type).name.lower()
        raise ModelError(
            f"the tensor has {found} {unit} of data where {name}{list(tensor.dims)[:8]} needs {expected}",
            where=where,
            hint=DAMAGED,
        )
