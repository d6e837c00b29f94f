"""A model as the bytes a session is made from, with the extra outputs; large weights go beside them.

External tensors stay in their file. Large weights in memory are handed to onnxruntime as arrays: through protobuf they would be
copied three times (opening ResNet-18: 0.04 CPU s against 0.22, 47 MB less at the peak), and it ends at 2 GiB."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.foreign import Slot, put, slots
from qdq_passes.numerics.missing import MissingTensor

from qdqtool.io.models import save

#: Bytes of weights in memory above which the large ones are handed over as arrays.
INLINE_LIMIT = 1 << 20
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

    @property
    def size(self) -> int:
        """Bytes of what is in memory."""
        return len(self.data) + sum(array.nbytes for array in self.arrays.values())


def model_bytes(model: ir.Model, *, extra_outputs: Iterable[str] = ()) -> ModelBytes:
    """Serialize ``model``, with the values ``extra_outputs`` of its main graph added to its outputs; it is unchanged at the end.

    Raises:
        UnsupportedError: the model is over 2 GiB even so.
    """
    large = _large_weights(model)
    with put(_placeholders(model, large)):
        source = save.model_bytes(model)
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


def _placeholders(model: ir.Model, weights: dict[str, ir.TensorProtocol]) -> dict[Slot, ir.TensorProtocol]:
    """What stands for ``weights`` while the model is serialized: tensors of a file which is never opened."""
    if not weights:
        return {}
    files = [slot.tensor for slot in slots(model)]
    folder = next((t.base_dir for t in files if isinstance(t, ir.ExternalTensor)), _NOWHERE)
    return {
        Slot(model.graph.initializers[name]): MissingTensor(
            "in-memory",
            0,
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=name,
            base_dir=folder,
        )
        for name, tensor in weights.items()
    }


_NOWHERE = "/in-memory"
