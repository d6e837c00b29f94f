"""Dumped files: which tensor each is, by its mangled name; and its bytes or integers as the float numbers that they stand for,
in the model's layout.

Names as boards mangle them:
/conv1/Relu_output_0:0 → conv1_relu_output_0, _conv1_Relu_output_0_0.raw, conv1_Relu_output_0_native: all one tensor"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding, is_integer_type
from qdq_passes.numerics.quantize import dequantize
from qdq_passes.qdq.look.pairs import half_pairs, qdq_pairs

#: What boards put behind a name, by and by taken off until something fits.
_ENDS = re.compile(
    r"(?:_(?:native|raw|bin|out|output|nhwc|nchw|float|f32|int8|uint8|dequantizelinear|dequantized|quantized)|_\d+)$"
)
#: Kinds of numpy's types that may be a tensor's: floats (``V``: of ml_dtypes), integers, truth values.
NUMBERS = "fViub"
#: ``nhwc``: dumps of four and five dimensions have their channels last; ``auto``: where only that fits the shape.
Layout = Literal["auto", "nchw", "nhwc"]


def read_dump(dumped: Array | bytes, like: Array, encoding: Encoding | None, layout: Layout = "auto") -> Array:
    """``dumped`` as an array in the shape of ``like``.

    Args:
        dumped: an array, or bytes: float32, float64, float16 or integers of the encoding, whichever their number says; where two
            may be meant, the encoding's.
        like: the model's tensor.
        encoding: of the tensor, for integers; None where it has none.
        layout: of the dump.

    Raises:
        ModelError: it does not fit; the message says why.
    """
    array = _typed(dumped, like, encoding) if isinstance(dumped, bytes) else dumped
    if array.dtype.kind not in NUMBERS or (array.dtype.kind == "b" and like.dtype.kind != "b"):
        raise ModelError(f"holds {array.dtype}, the model {like.dtype}")
    if array.size != like.size:
        raise ModelError(f"has {list(array.shape)}, the model {list(like.shape)}")
    turned = _arranged(array, like, layout, is_flat=isinstance(dumped, bytes))
    if turned.dtype.kind not in "iu" or like.dtype.kind in "iub":
        return turned
    if encoding is None:
        raise ModelError("holds integers, and no pair says what they stand for; give the quantized model as B")
    if not is_integer_type(encoding.dtype):
        raise ModelError(f"holds integers, the pair has {encoding.dtype.name.lower()}")
    stored = encoding.dtype.numpy()
    if turned.dtype.itemsize < np.dtype(stored).itemsize or (
        turned.dtype.itemsize == np.dtype(stored).itemsize and turned.dtype != stored
    ):
        raise ModelError(f"holds {turned.dtype}, the pair has {encoding.dtype.name.lower()}")
    return dequantize(turned, encoding)


def _typed(data: bytes, like: Array, encoding: Encoding | None) -> Array:
    """Bytes as an array [n]: of the encoding's type where they are as many as that needs, else of the float type that fits."""
    count = like.size
    types: list[Any] = [like.dtype] if like.dtype.kind in "iub" else []
    if encoding is not None and is_integer_type(encoding.dtype) and encoding.dtype.bitwidth % 8 == 0:
        types.append(encoding.dtype.numpy())
    for dtype in (*types, np.float32, np.float16, np.float64):
        if count and len(data) == count * np.dtype(dtype).itemsize:
            return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).astype(dtype, copy=False)
    raise ModelError(f"has {len(data)} bytes, the model's tensor {list(like.shape)} of {like.dtype} has {like.nbytes}")


def _arranged(array: Array, like: Array, layout: Layout, *, is_flat: bool) -> Array:
    channels_last = (like.shape[0], *like.shape[2:], like.shape[1]) if like.ndim >= 3 else like.shape
    if layout == "nhwc" and like.ndim >= 4:
        return np.moveaxis(array.reshape(channels_last), -1, 1)
    fits = is_flat or layout == "nchw" or _bare(array.shape) == _bare(like.shape)
    if not fits and _bare(array.shape) == _bare(channels_last):
        return np.moveaxis(array.reshape(channels_last), -1, 1)
    return array.reshape(like.shape)


def _bare(shape: tuple[int, ...]) -> list[int]:
    """A shape without its dimensions of one."""
    return [d for d in shape if d != 1]


@dataclass(frozen=True)
class Names:
    """Every name that a tensor may be dumped under.

    Args:
        tensors: names of the tensors.
        aliases: mangled name → tensors it may be: their own names and those of what Q and DQ make of them.
        by_node: mangled node name → the tensor that it writes first.
    """

    tensors: frozenset[str]
    aliases: Mapping[str, frozenset[str]]
    by_node: Mapping[str, frozenset[str]]

    def find(self, name: str) -> str | list[str]:
        """The tensor called ``name``; several when it may be any of them, none when it is none."""
        if name in self.tensors:
            return name
        wanted = mangled(name)
        while wanted:
            for table in (self.aliases, self.by_node):
                found = table.get(wanted)
                if found is not None:
                    return next(iter(found)) if len(found) == 1 else sorted(found)
            shorter = _ENDS.sub("", wanted)
            if shorter == wanted:
                break
            wanted = shorter
        return []

    def nearest(self, name: str) -> list[str]:
        """Up to three tensors of similar names."""
        close = difflib.get_close_matches(mangled(name), list(self.aliases), n=3)
        return list(dict.fromkeys(tensor for key in close for tensor in sorted(self.aliases[key])))[:3]


def mangled(name: str) -> str:
    """``name`` in small letters, everything but letters and digits one underscore, none at the ends."""
    return re.sub(r"[^0-9a-z]+", "_", name.lower()).strip("_")


def names_of(tensors: Iterable[str], models: Iterable[ir.Model]) -> Names:
    """The names under which ``tensors`` of ``models`` may be dumped."""
    known = frozenset(tensors)
    aliases: dict[str, set[str]] = {}
    by_node: dict[str, set[str]] = {}
    for name in known:
        aliases.setdefault(mangled(name), set()).add(name)
    for model in models:
        made = [(p.tensor, v) for p in qdq_pairs(model) for v in (p.output, p.dq.inputs[0])]
        made += [(half.tensor, half.node.outputs[0]) for half in half_pairs(model)]
        for tensor, value in made:
            if tensor in known and value is not None and value.name:
                aliases.setdefault(mangled(value.name), set()).add(tensor)
        for node in model.graph:
            if node.name and node.outputs and node.outputs[0].name in known:
                by_node.setdefault(mangled(node.name), set()).add(node.outputs[0].name)
    return Names(known, _frozen(aliases), _frozen(by_node))


def _frozen(table: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    return {key: frozenset(found) for key, found in table.items()}
