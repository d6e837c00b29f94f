"""Sessions on memory that is given once: each input and output has its buffer, and a run neither copies nor allocates.

An output may have the buffer of an input: a cache that is updated in place. That is right where the node that writes the
output is the only reader of the input, and can write where it reads (ScatterElements, ScatterND, TensorScatter,
GroupQueryAttention)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes.core import budget
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.arrays import Array

from qdqtool.io.feeds.spec import Dims, format_shape
from qdqtool.runtime.memory import ENTRY
from qdqtool.runtime.refusals import failure, refusal
from qdqtool.runtime.session import Session, _from_ort_value, _is_raw, _onnxruntime, _to_ort_value, version


class Buffer:
    """Memory of a tensor that numpy and onnxruntime both see.

    Args:
        array: contiguous memory, kept alive as long as the buffer.
    """

    __slots__ = ("array", "_value")

    def __init__(self, array: Array) -> None:
        if not array.flags.c_contiguous:
            raise ValueError("a buffer is contiguous memory")
        self.array = array
        self._value = _to_ort_value(array)


class Value:
    """What a session gave, still where onnxruntime put it: an input of the next run, or an array where asked for."""

    __slots__ = ("_dtype", "_value")

    def __init__(self, value: Any, dtype: np.dtype[Any] | None) -> None:
        self._value, self._dtype = value, dtype

    @property
    def array(self) -> Array:
        """The values; never memory of a later run."""
        found: Array = _from_ort_value(self._value, self._dtype)
        return found


def open_file(path: str | os.PathLike[str], *, threads: int = 0, optimize: bool = True) -> Session:
    """A session on the CPU that onnxruntime opens from the file at ``path``: weights stay in their file, mapped.

    Args:
        path: a model of ours, which has been checked: nothing of it is looked at here.
        threads: threads inside an operator; 0 leaves the choice to onnxruntime.
        optimize: let onnxruntime optimize the graph.

    Raises:
        UnsupportedError: onnxruntime has no such operator, kernel, opset or IR version.
        ModelError: onnxruntime refuses the model, or there is none.
        SetupError: onnxruntime is not installed.
    """
    ort = _onnxruntime()
    options = ort.SessionOptions()
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # errors arrive as exceptions, once
    options.add_session_config_entry(*ENTRY)
    where = os.fspath(path)
    if not os.path.isfile(where):
        raise ModelError("no such file", where=where, hint="copy the whole folder again")
    size = sum(file.stat().st_size for file in os.scandir(os.path.dirname(where) or ".") if file.is_file())
    budget.brought(model=size)
    try:
        return Session(lambda: ort.InferenceSession(where, options, providers=["CPUExecutionProvider"]), size=size)
    except Exception as error:
        raise refusal(str(error), version=version()) from error


class Bound:
    """A session with all its inputs and outputs bound.

    Args:
        session: from `open_session`; all its shapes are numbers.
        inputs: a buffer for each input, of its type and shape.
        outputs: a buffer for each output.

    Raises:
        UsageError: a buffer is missing, or has another type or shape.
    """

    def __init__(self, session: Session, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer]) -> None:
        self._session = session
        self._binding = session._handle.io_binding()
        self._kept: dict[str, Buffer] = {}  # the binding sees their memory only
        self._outputs = dict(outputs)
        self._run = session._handle.run_with_iobinding
        for name in session.input_names:
            if name not in inputs:
                raise UsageError(f"no buffer is given for the input {name!r}")
            self.rebind(name, inputs[name])
        for name in session.output_names:
            if name not in outputs:
                raise UsageError(f"no buffer is given for the output {name!r}")
            _refuse_other(name, outputs[name].array, session.output_dtypes[name], session.output_shapes[name])
            self._binding.bind_ortvalue_output(name, outputs[name]._value)

    def rebind(self, name: str, buffer: Buffer) -> None:
        """Have the input ``name`` read ``buffer`` from now on."""
        session = self._session
        _refuse_other(name, buffer.array, session.input_dtypes[name], session.input_shapes[name])
        self._binding.bind_ortvalue_input(name, buffer._value)
        self._kept[name] = buffer

    def point(self, name: str, address: int) -> None:
        """Have the input ``name`` read the memory at ``address``, of its type and shape, which the caller keeps alive."""
        dtype, shape = self._session.input_dtypes[name], self._session.input_shapes[name]
        assert dtype is not None
        kind = ir.DataType.from_numpy(dtype).value if _is_raw(dtype) else dtype.type
        self._binding.bind_input(name, "cpu", 0, kind, shape, address)

    def run(self) -> None:
        """Run once: the buffers of the outputs hold the result.

        Raises:
            ModelError: a node fails.
        """
        try:
            self._run(self._binding)
        except Exception as error:
            raise failure(str(error)) from error


class Chained:
    """A session whose outputs are inputs of its next run, of another size each time: bound, not copied.

    Args:
        session: from `open_session`.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._binding = session._handle.io_binding()

    def run(self, inputs: Mapping[str, Buffer | Value], outputs: Iterable[str]) -> dict[str, Value]:
        """The outputs, in memory that onnxruntime allocates.

        Raises:
            ModelError: a node fails.
        """
        binding, names = self._binding, list(outputs)
        try:
            for name, value in inputs.items():
                binding.bind_ortvalue_input(name, value._value)
            binding.clear_binding_outputs()
            for name in names:
                binding.bind_output(name)
            self.session._handle.run_with_iobinding(binding)
        except Exception as error:
            raise failure(str(error)) from error
        found = binding.get_outputs()
        return {n: Value(v, self.session.output_dtypes[n]) for n, v in zip(names, found, strict=True)}


def _refuse_other(name: str, array: Array, dtype: np.dtype[Any] | None, shape: Dims) -> None:
    if array.dtype != dtype or tuple(array.shape) != shape:
        given = f"{array.dtype} {format_shape(array.shape)}"
        raise UsageError(f"the model has {dtype} {format_shape(shape)}, the buffer is {given}", where=name)
