"""A model as the bytes a session is made from, with the extra outputs, and with the weights that do not fit into them.

Protobuf ends at 2 GiB. External tensors stay in their file; when too much lies in memory, the large weights are taken out of
the bytes and handed to onnxruntime as arrays, without a copy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from qdqtool.io import serialize
from qdqtool.io.slots import slots

#: Bytes of weights in memory above which they are handed over as arrays; protobuf's limit is 2^31 - 1 for everything.
INLINE_LIMIT = 1 << 30
#: Weights of fewer bytes stay in the bytes of the model: they cost nothing there.
SMALL = 1 << 16
#: Types that numpy and onnxruntime have in common; others stay in the bytes.
_PLAIN = {
    ir.DataType.FLOAT,
    ir.DataType.DOUBLE,
    ir.DataType.FLOAT16,
    *(ir.DataType[f"{sign}INT{bits}"] for sign in ("", "U") for bits in (8, 16, 32, 64)),
}


@dataclass(frozen=True)
class ModelBytes:
    """What a session is opened from.

    Args:
        data: the serialized model.
        folder: folder that external data is relative to, or None.
        arrays: weights that are in neither, by name of their initializer.
    """

    data: bytes
    folder: str | None = None
    arrays: dict[str, npt.NDArray[np.generic]] = field(default_factory=dict)


def model_bytes(model: ir.Model, *, extra_outputs: Iterable[str] = ()) -> ModelBytes:
    """Serialize ``model`` (unchanged) with the values ``extra_outputs`` of its main graph added to its outputs.

    Raises:
        UnsupportedError: the model is over 2 GiB even so.
    """
    large = _large_weights(model)
    source = serialize.model_bytes(_without_data(model, large) if large else model)
    known = {value.name for value in model.graph.outputs}
    extra = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(extra_outputs) if name not in known]
    tail = onnx.ModelProto(graph=onnx.GraphProto(output=extra))  # protobuf joins messages that follow each other
    folder = source.folder if source.folder != _NOWHERE else None
    arrays = {name: tensor.numpy() for name, tensor in large.items()}
    return ModelBytes(source.data + tail.SerializeToString() if extra else source.data, folder, arrays)


def _large_weights(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """Weights to hand over as arrays: the large ones of the main graph in memory, when all in memory are too many."""
    tensors = {
        name: tensor
        for name, value in model.graph.initializers.items()
        if (tensor := value.const_value) is not None and not isinstance(tensor, ir.ExternalTensor)
    }
    if sum(tensor.nbytes for tensor in tensors.values()) <= INLINE_LIMIT:
        return {}
    return {name: tensor for name, tensor in tensors.items() if tensor.dtype in _PLAIN and tensor.nbytes >= SMALL}


def _without_data(model: ir.Model, weights: dict[str, ir.TensorProtocol]) -> ir.Model:
    """A copy of ``model`` (tensors shared) in which ``weights`` claim to be in a file, which is never opened."""
    copy = model.clone()
    files = [slot.tensor for slot in slots(copy)]
    folder = next((t.base_dir for t in files if isinstance(t, ir.ExternalTensor)), _NOWHERE)
    for name, tensor in weights.items():
        copy.graph.initializers[name].const_value = ir.ExternalTensor(
            "in-memory",
            0,
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=name,
            base_dir=folder,
        )
    return copy


_NOWHERE = "/in-memory"
