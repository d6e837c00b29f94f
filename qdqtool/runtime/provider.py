"""The simulated NPU in onnxruntime: its library, the compiler that the library asks, and sessions that tell what it said.

The library knows no Python. It calls one C function (ctypes; the interpreter's lock is taken by it, whoever holds it) with a
graph and wants lists of nodes, or a compiled program, back. Constants of more than 4096 bytes are not copied for that: the graph
that the compiler reads holds them where onnxruntime does."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import threading
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import onnx
import onnx_ir as ir
from qdq_passes.errors import QdqError, SetupError

from qdqtool.runtime.plugin import _registered, open_on, provider_names, register_library
from qdqtool.runtime.session import Session, version

PROVIDER = "NpuSimExecutionProvider"
#: Name under which onnxruntime knows the library.
REGISTRATION = "qdqtool_npu"
#: Location of tensors that are not in a file but at an address of this process.
MEMORY = "qdqtool-memory"
_PARTITION, _LOWER, _CHECK = 0, 1, 2


class Compiler(Protocol):
    """What the library asks. Called from the thread that creates a session, from several at a time.

    ``options`` are the provider's own (``target``, ``boundary``, ``isa`` …) and, of the session's configuration, the entries that
    begin with ``session.``, and ``ep.context_enable``. ``model`` is to be read with `read_graph`, before the call returns."""

    def partition(self, model: bytes, options: Mapping[str, str]) -> list[list[int]]:
        """Nodes of each partition, as indices into the nodes of the main graph."""

    def lower(self, model: bytes, options: Mapping[str, str]) -> bytes:
        """The payload of an EPContext node, for a graph that is one partition."""

    def check(self, header: Mapping[str, str], options: Mapping[str, str]) -> None:
        """Refuse a compiled program, by what its header says, that was not made for the target of ``options`` as that is now."""


class _Pending(threading.local):
    """What the compiler raised while this thread created a session: onnxruntime hands on only its text."""

    error: BaseException | None = None


_pending = _Pending()
_registering = threading.Lock()
_PUT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, _PUT, ctypes.c_void_p
)  # fmt: skip
#: (library, function, compiler) that were attached: the library keeps the function's address.
_attached: list[tuple[ctypes.CDLL, Any, Compiler]] = []


def register(library: str | os.PathLike[str], compiler: Compiler | None = None) -> None:
    """Have onnxruntime load the NPU's library, and attach ``compiler`` to it, in place of one before. Again is no harm.

    Raises:
        UsageError: there is no such file, or another one is registered.
        SetupError: onnxruntime is older than 1.23 or refuses the library.
    """
    with _registering:
        if PROVIDER not in provider_names():
            _registered.pop(REGISTRATION, None)  # unregistered since, behind our back
            register_library(REGISTRATION, library)
            if PROVIDER not in provider_names():
                raise SetupError(f"onnxruntime {version()} finds no device of {PROVIDER}", hint="install a newer one")
        elif REGISTRATION in _registered:  # or else the application did it, under a name of its own
            register_library(REGISTRATION, library)
    if compiler is not None:
        attach(library, compiler)


def attach(library: str | os.PathLike[str], compiler: Compiler) -> None:
    """Have the library at ``library`` ask ``compiler`` about models that are not compiled."""
    if _attached and _attached[-1][2] is compiler:
        return

    def asked(what: int, options: int, options_size: int, model: int, model_size: int, put: Any, context: int) -> int:
        try:
            text = ctypes.string_at(options, options_size).decode()
            answer = _answer(compiler, what, ctypes.string_at(model, model_size), text)
        except BaseException as error:  # noqa: BLE001  (nothing may leave a C callback; `open_session` raises it)
            _pending.error = error
            reason = str(error) if isinstance(error, QdqError) else f"{type(error).__name__}: {error}"
            put(context, reason.encode(), len(reason.encode()))
            return 1
        put(context, answer, len(answer))
        return 0

    handle, callback = ctypes.CDLL(os.fspath(library)), _CALLBACK(asked)
    handle.qdqtool_set_compiler.argtypes = [_CALLBACK]
    handle.qdqtool_set_compiler.restype = None
    handle.qdqtool_set_compiler(callback)
    if not _attached:
        atexit.register(detach)
    _attached.append((handle, callback, compiler))  # every one stays alive: another thread may be inside it


def detach() -> None:
    """Take the compiler away: at the end of the process, before its functions go."""
    for handle, _, _ in _attached:
        handle.qdqtool_set_compiler(_CALLBACK())


def open_session(
    model: ir.Model | str | os.PathLike[str],
    options: Mapping[str, str] | None = None,
    *,
    optimize: bool = False,
    threads: int = 1,
    config: Mapping[str, str] | None = None,
) -> Session:
    """A session on the simulated NPU, which `register` has registered. Arguments and errors as `qdqtool.runtime.plugin.open_on`.

    Raises:
        QdqError: the compiler refuses the model; its own error, not onnxruntime's word of it.
    """
    _raised()
    try:
        session = open_on(model, PROVIDER, options, optimize=optimize, threads=threads, config=config)
    except QdqError as refusal:
        error = _raised()
        if error is None:
            raise
        raise error from refusal
    error = _raised()
    if error is not None:  # onnxruntime went on without the NPU
        session.close()
        raise error
    return session


def _raised() -> BaseException | None:
    """What the compiler raised in this thread since the last question."""
    error, _pending.error = _pending.error, None
    return error


def _answer(compiler: Compiler, what: int, model: bytes, options: str) -> bytes:
    settings = dict(line.split("=", 1) for line in options.splitlines())
    if what == _PARTITION:
        groups = [",".join(map(str, group)) for group in compiler.partition(model, settings) if group]
        return ";".join(groups).encode()
    if what == _LOWER:
        return compiler.lower(model, settings)
    if what == _CHECK:
        compiler.check(json.loads(model), settings)
        return b""
    raise SetupError(
        f"the NPU's library asks question {what}, which this version does not know", hint="reinstall qdqtool"
    )


def read_graph(data: bytes) -> ir.Model:
    """The graph that the library shows its compiler. Large constants are views of onnxruntime's memory: they must not be read,
    nor the model kept, once the call is over."""
    proto = onnx.ModelProto.FromString(data)
    views = {t.name: _view(t) for t in proto.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL}
    model = ir.serde.deserialize_model(proto)
    for name, tensor in views.items():
        model.graph.initializers[name].const_value = tensor
    return model


def _view(proto: onnx.TensorProto) -> ir.TensorProtocol:
    where = {entry.key: entry.value for entry in proto.external_data}
    if where.get("location") != MEMORY:
        raise SetupError(
            f"tensor {proto.name!r} is in {where.get('location')!r}, not in memory", hint="reinstall qdqtool"
        )
    raw = (ctypes.c_uint8 * int(where["length"])).from_address(int(where["offset"]))
    data = np.ctypeslib.as_array(raw)
    data.flags.writeable = False
    dtype, shape = ir.DataType(proto.data_type), ir.Shape(proto.dims)
    if dtype.bitwidth < 8:
        return ir.PackedTensor(data, dtype, shape=shape, name=proto.name)
    return ir.Tensor(data.view(dtype.numpy()).reshape(tuple(proto.dims)), dtype, shape=shape, name=proto.name)
