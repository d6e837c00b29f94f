"""Tensors of which only type and shape are known, as the file that holds their data is not there.

A graph without its weights can still be judged: where it runs, what it multiplies, what it moves. Whatever needs the values finds
that they are not known (`data_of`), as it does of what is computed at run time; who reads them all the same is refused."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.errors import ModelError


class MissingTensor(ir.ExternalTensor):
    """A tensor in a file that is not there; no memory is held for it.

    Raises:
        ModelError: something reads its data.
    """

    __slots__ = ()

    @classmethod
    def of(cls, tensor: ir.ExternalTensor) -> MissingTensor:
        """``tensor``, whose file is not there."""
        return cls(
            tensor.location, tensor.offset, tensor.length, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or "", doc_string=tensor.doc_string, base_dir=tensor.base_dir,
        )  # fmt: skip

    def numpy(self) -> NoReturn:
        """There is nothing to read."""
        raise ModelError(
            f"its external data file {self.location!r} is missing",
            where=f"tensor {self.name!r}",
            hint=f"put it into {self.base_dir}",
        )

    def tobytes(self) -> NoReturn:
        """There is nothing to read."""
        self.numpy()


def is_missing(tensor: ir.TensorProtocol | None) -> bool:
    """Whether the data of ``tensor`` are not there."""
    # isinstance is slow for the tensors of onnx_ir, which are protocols.
    return type(tensor) is MissingTensor


def data_of(tensor: ir.TensorProtocol) -> npt.NDArray[Any] | None:
    """The array of ``tensor``; None where its data are not there."""
    return None if is_missing(tensor) else np.asarray(tensor.numpy())


def tensor_of(array: npt.NDArray[Any] | np.generic, name: str | None = None) -> ir.TensorProtocol:
    """``array`` as a tensor that can be written: of texts a `onnx_ir.StringTensor`, which holds bytes."""
    array = np.asarray(array)
    if array.dtype.kind not in "OSU":
        return ir.tensor(array, name=name)
    texts = np.empty(array.shape, object)
    texts.reshape(-1)[:] = [text.encode() if isinstance(text, str) else text for text in array.ravel().tolist()]
    return ir.StringTensor(texts, shape=ir.Shape(array.shape), name=name)
