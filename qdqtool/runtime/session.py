"""Sessions: the one module that imports onnxruntime, and only when a session is opened.

A session is the project's numeric reference: graph optimization is off unless asked for, because the fused int8 kernels of
CPUs without VNNI saturate and one thread makes sums reproducible. Every refusal of onnxruntime becomes one line of ours."""

from __future__ import annotations

import ctypes
import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from qdq_passes.core import budget
from qdq_passes.errors import QdqError, SetupError, UsageError, VerifyError
from qdq_passes.graph.operators.qdq_ops import is_quantization
from qdq_passes.graph.uses import all_nodes, is_constant
from qdq_passes.numerics.arrays import Array
from qdq_passes.pipeline.pipeline import Hook, Pipeline, Report
from qdq_passes.pipeline.pipeline import run_pipeline as run_passes

from qdqtool.io.feeds.spec import Dims, InputSpec, format_shape
from qdqtool.io.files.progress import Warn
from qdqtool.runtime.blocked import blocked, pays
from qdqtool.runtime.memory import ENTRY, MemoryRefusal, least, limited, refuse_endless
from qdqtool.runtime.model_bytes import ModelBytes, model_bytes
from qdqtool.runtime.refusals import failure, refusal

#: What pipelines call `compute`: ``tabulate-rotary-angles{compute=@runtime}``.
RUNTIME = "runtime"
#: numpy type of each onnxruntime tensor type. The last five have no numpy form in onnxruntime: their bytes are copied.
_DTYPES: dict[str, Any] = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bool": np.bool_,
    "string": np.object_,
    "bfloat16": ml_dtypes.bfloat16,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8e5m2": ml_dtypes.float8_e5m2,
    "float8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
}
#: Bytes of a model from which giving its memory back to the system pays.
LARGE = 1 << 26
#: Bytes that are more than what grows with the data: such a session is not made a second time.
_AMPLE = 1 << 34
FLOATS = frozenset(np.dtype(t) for t in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16))


@functools.cache
def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise SetupError(f"onnxruntime cannot be imported: {error}", hint="pip install onnxruntime") from error
    onnxruntime.set_default_logger_severity(3)
    return onnxruntime


def version() -> str:
    """Version of the installed onnxruntime, as ``"1.31.1"``."""
    return str(_onnxruntime().__version__)


class Session:
    """A model that runs. Made by `open_session`; may be used from several threads.

    Attributes:
        input_names: names of the graph inputs that a feed must hold.
        input_shapes: shape of each: a number, the name of a dynamic dimension, or None; () also when the rank is unknown.
        input_dtypes: numpy type of each; ``object`` for strings, None for what is no tensor or has no numpy type.
        output_names: names of the outputs, the extra ones last.
        output_shapes: shape of each, as for inputs.
        output_dtypes: numpy type of each, as for inputs.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        weights: Sequence[Any] = (),
        *,
        size: int,
        tensors: int = 1,
        is_large: bool = False,
    ) -> None:
        self._make, self._size, self._tensors = make, size, tensors
        self._is_large = is_large
        self._weights = weights  # the session reads the arrays where they are
        with limited(_onnxruntime(), self._size, self._tensors) as self._most:
            handle = self._handle = make()
        if self._most > _AMPLE:
            self._make = _closed  # it holds the bytes of the model
        inputs, outputs = handle.get_inputs(), handle.get_outputs()
        self.input_names: tuple[str, ...] = tuple(i.name for i in inputs)
        self.input_shapes: dict[str, Dims] = {i.name: tuple(i.shape) for i in inputs}
        self.input_dtypes: dict[str, np.dtype[Any] | None] = {i.name: _dtype(i.type) for i in inputs}
        self.output_names: tuple[str, ...] = tuple(o.name for o in outputs)
        self.output_shapes: dict[str, Dims] = {o.name: tuple(o.shape) for o in outputs}
        self.output_dtypes: dict[str, np.dtype[Any] | None] = {o.name: _dtype(o.type) for o in outputs}

    def run(self, feed: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Any]:
        """Values of ``outputs`` (default: all) for one feed.

        Args:
            feed: one array per input, of the exact type and shape.
            outputs: names among ``output_names``.

        Raises:
            UsageError: an input is missing, unknown, or has another type or shape than the model's.
            ModelError: a node fails; ``where`` names it.
        """
        names = list(self.output_names if outputs is None else outputs)
        found = self._values(feed, names, self._run)
        # An input that is an output comes back as the feed's own memory, or (up to 1.23) as memory already freed: copy the feed.
        return {n: np.array(feed[n]) if n in feed else v for n, v in found.items()}

    def lend(self, feed: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Any]:
        """Run like `run`, without copies: read-only arrays in the memory of onnxruntime, which each array keeps alive."""
        found = self._values(feed, list(outputs), lambda names, feed: self._run_raw(feed, names, _lent))
        return {n: np.array(feed[n]) if n in feed else v for n, v in found.items()}

    def _values(
        self, feed: Mapping[str, Array], names: list[str], run: Callable[[list[str], dict[str, Array]], list[Any]]
    ) -> dict[str, Any]:
        """Return the outputs of ``run`` for the checked feed, by name.

        Raises:
            UsageError: the feed does not fit.
            ModelError: a node fails.
        """
        checked = self._checked(feed, names)
        try:
            return dict(zip(names, run(names, checked), strict=True))
        except Exception as error:
            refused = failure(str(error))
            if isinstance(refused, MemoryRefusal) and self._grown():  # the data are larger than when it was made
                return self._values(feed, names, run)
            raise refused from error

    def _grown(self) -> bool:
        """Whether more memory is allowed by now; if so, the session is made once more."""
        if budget.allowed(least(self._size), self._tensors) <= self._most or self._make is _closed:
            return False
        self._handle = None
        with limited(_onnxruntime(), self._size, self._tensors) as self._most:
            self._handle = self._make()
        return True

    def close(self) -> None:
        """Let go of onnxruntime's session, and of the memory that a large one leaves, which the allocator would keep for later:
        more than the model's weights. The session cannot run any more."""
        self._handle, self._weights, self._make = None, (), _closed
        if os.name == "posix" and self._is_large:
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
            if trim is not None:
                trim(0)

    def _checked(self, feed: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        _refuse_names("input", [n for n in feed if n not in self.input_dtypes], self.input_names)
        _refuse_names("output", [n for n in names if n not in self.output_dtypes], self.output_names)
        missing = [n for n in self.input_names if n not in feed]
        if missing:
            raise UsageError(f"the feed lacks {', '.join(missing)}", hint=f"it has {', '.join(feed) or 'nothing'}")
        return {name: self._fitting(name, value) for name, value in feed.items()}

    def _fitting(self, name: str, value: Array) -> Array:
        wanted, shape = self.input_dtypes[name], self.input_shapes[name]
        if wanted is None:  # a sequence, a map: onnxruntime checks it
            return value
        array = np.asarray(value)
        fits = not shape or InputSpec(name, wanted, shape).takes(array.shape)
        if not fits or (array.dtype != wanted and wanted != np.object_):
            text = f"{array.dtype} {format_shape(array.shape)}"
            raise UsageError(
                f"the model wants {wanted} {format_shape(shape)}, the feed has {text}", where=f"input {name!r}"
            )
        return array

    def _run(self, names: list[str], feed: dict[str, Array]) -> list[Any]:
        raw = any(_is_raw(self.input_dtypes[n]) for n in feed) or any(_is_raw(self.output_dtypes[n]) for n in names)
        values: list[Any] = self._run_raw(feed, names, _from_ort_value) if raw else self._handle.run(names, feed)
        return values

    def _run_raw(
        self, feed: Mapping[str, Array], names: list[str], read: Callable[[Any, np.dtype[Any] | None], Any]
    ) -> list[Any]:
        """A run through OrtValues, for types that onnxruntime's numpy interface does not know, and where nothing is copied."""
        values = self._handle.run_with_ort_values(names, {n: _to_ort_value(a) for n, a in feed.items()})
        return [read(v, self.output_dtypes[n]) for n, v in zip(names, values, strict=True)]


def open_session(
    model: ir.Model | str | os.PathLike[str],
    *,
    optimize: bool = False,
    threads: int = 1,
    extra_outputs: Iterable[str] = (),
    any_order: Warn | None = None,
    operators: str | os.PathLike[str] | None = None,
) -> Session:
    """A session on the CPU for ``model``, which is not changed.

    Args:
        model: the model, or the file to load it from.
        optimize: let onnxruntime optimize the graph: for timing and for ranges, never for numbers that are compared.
        threads: threads inside an operator; 0 leaves the choice to onnxruntime.
        extra_outputs: names of values of the main graph to be had besides the outputs.
        any_order: the elements of extra outputs may come in any order, as makes an optimized session of convolutions faster; told
            where onnxruntime does not do it.
        operators: library of custom operators.

    Raises:
        UnsupportedError: onnxruntime has no such operator, kernel, opset or IR version.
        ModelError: onnxruntime refuses the model.
        SetupError: onnxruntime is not installed.
    """
    ort = _onnxruntime()
    model, extra_outputs = _loaded(model), list(extra_outputs)
    source, options, weights = prepared(model, optimize=optimize, threads=threads, extra_outputs=extra_outputs)
    try:
        if operators is not None:
            options.register_custom_ops_library(os.fspath(operators))
        kept = ["ConstantFolding"] if optimize and _has_constants_left(model) else None
        make = functools.partial(
            ort.InferenceSession, source.data, options, providers=["CPUExecutionProvider"], disabled_optimizers=kept
        )
        if any_order is not None and optimize and pays(model.graph, extra_outputs):
            plain = functools.partial(_options, optimize=False, threads=threads)
            inside = set(extra_outputs) - {value.name for value in model.graph.outputs}
            make = functools.partial(blocked, make, options, plain, inside, any_order)
        is_large = source.size >= LARGE or source.folder is not None  # weights in files count for nothing in the size
        return Session(make, weights, size=source.size, tensors=1 + len(extra_outputs), is_large=is_large)
    except VerifyError:
        raise
    except Exception as error:
        raise refusal(str(error), version=version()) from error


def _loaded(model: ir.Model | str | os.PathLike[str]) -> ir.Model:
    if isinstance(model, ir.Model):
        return model
    from qdqtool.io.models.load import load

    return load(model)


def _has_constants_left(model: ir.Model) -> bool:
    """Whether something is computed of constants alone. `simplify` leaves what would be large; onnxruntime folds all, beside its
    allocators, which are bounded."""
    return any(
        bool(node.inputs) and all(value is None or is_constant(value) for value in node.inputs)
        for node in all_nodes(model)
        if not is_quantization(node)
    )


def prepared(
    model: ir.Model | str | os.PathLike[str],
    *,
    optimize: bool = False,
    threads: int = 1,
    extra_outputs: Iterable[str] = (),
) -> tuple[ModelBytes, Any, list[Any]]:
    """What a session is made of, on any provider: the bytes, onnxruntime's options, and the large weights beside them, which
    must live as long as the session. Arguments as in `open_session`."""
    ort = _onnxruntime()
    model = _loaded(model)
    refuse_endless(model)
    source = model_bytes(model, extra_outputs=extra_outputs)
    options = _options(source.folder, optimize=optimize, threads=threads)
    weights = [ort.OrtValue.ortvalue_from_numpy(a) for a in source.arrays.values()]
    if weights:
        options.add_external_initializers(list(source.arrays), weights)
    return source, options, weights


def _options(folder: str | None, *, optimize: bool, threads: int) -> Any:
    """Options of a session whose external data lies in ``folder``."""
    ort = _onnxruntime()
    options, level = ort.SessionOptions(), ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # errors arrive as exceptions, once
    options.add_session_config_entry(*ENTRY)
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    return options


def load_check(model: ir.Model | str | os.PathLike[str]) -> str | None:
    """None when the installed onnxruntime loads ``model``, else its reason in one line."""
    try:
        open_session(model)
    except SetupError:
        raise
    except QdqError as error:
        return str(error)
    return None


def _closed() -> Any:
    raise UsageError("the session is closed")


def _dtype(type_text: str) -> np.dtype[Any] | None:
    """``"tensor(float)"`` → float32; None for sequences, maps, optionals and 4-bit types."""
    known = _DTYPES.get(type_text.removeprefix("tensor(").removesuffix(")"))
    return None if known is None else np.dtype(known)


def _is_raw(dtype: np.dtype[Any] | None) -> bool:
    return dtype is not None and dtype.kind == "V"


def _to_ort_value(array: Array) -> Any:
    value = _onnxruntime().OrtValue
    array = np.asarray(array, order="C")  # np.ascontiguousarray makes a scalar a list of one
    if not _is_raw(array.dtype):
        return value.ortvalue_from_numpy(array)
    bits = array.view(np.dtype(f"u{array.dtype.itemsize}"))
    return value.ortvalue_from_numpy_with_onnx_type(bits, ir.DataType.from_numpy(array.dtype).value)


def _from_ort_value(value: Any, dtype: np.dtype[Any] | None) -> Any:
    if dtype is None or not _is_raw(dtype):
        return value.numpy()
    shape = tuple(value.shape())
    size = math.prod(shape) * dtype.itemsize
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(bytearray(data), dtype).reshape(shape)


class _Lent:
    """Memory of onnxruntime as numpy takes it, which keeps this object."""

    __slots__ = ("__array_interface__", "_value")

    def __init__(self, value: Any, dtype: np.dtype[Any]) -> None:
        self._value = value
        data = (value.data_ptr(), True)
        self.__array_interface__ = {"version": 3, "shape": tuple(value.shape()), "typestr": dtype.str, "data": data}


def _lent(value: Any, dtype: np.dtype[Any] | None) -> Any:
    """The array in the memory of ``value``, read only; of types that numpy does not know, and without elements, a copy."""
    if dtype is None or dtype.kind not in "fiub" or not math.prod(value.shape()):
        return _from_ort_value(value, dtype)
    return np.asarray(_Lent(value, dtype))


def _refuse_names(kind: str, unknown: Sequence[str], known: Sequence[str]) -> None:
    if unknown:
        raise UsageError(
            f"the model has no {kind} {', '.join(unknown)}", hint=f"its {kind}s are {', '.join(known) or 'none'}"
        )


def compute(model: ir.Model, feeds: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """The outputs of ``model`` for each of ``feeds``, by name, in onnxruntime without optimization."""
    session = open_session(model)
    return [dict(session.run(feed)) for feed in feeds]


def run_pipeline(
    model: ir.Model,
    pipeline: str | Pipeline,
    *,
    inputs: Mapping[str, Any] | None = None,
    hooks: Iterable[Hook] = (),
    copy: bool = False,
) -> Report:
    """`qdq_passes.run_pipeline` with onnxruntime bound to ``@runtime``, so that a recorded pipeline needs its ranges alone.

    Raises:
        UsageError: a named input is missing.
        QdqError: a pass or hook refused; ``where`` names the pass.
    """
    return run_passes(model, pipeline, inputs={RUNTIME: compute, **(inputs or {})}, hooks=hooks, copy=copy)
