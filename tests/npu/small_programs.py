"""Programs by hand, payloads of them, and models that carry them: what tests of the provider run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from qdq_passes.errors import SetupError

import qdqtool.npu
from qdqtool.npu.library import VARIABLE, library_path
from qdqtool.npu.payload import Header, write_payload
from qdqtool.runtime.plugin import provider_names
from qdqtool.runtime.provider import PROVIDER
from tests.architecture.places import ROOT
from tests.cases.waiting import PATIENCE

Array = npt.NDArray[Any]
SOURCES = ROOT / "qdqtool" / "npu" / "ep"
HEADER = Header(target="acme_npu", target_version="3", target_sha256="ab" * 32, qdqtool="0.1.0")
#: Minor version of onnxruntime.
RUNTIME = int(ort.__version__.split(".")[1])

#: y = x transposed and made flat (a kernel, then a view); z = x + 2 saturated, computed as (2·x + 4 + 1) >> 1.
MIXED = """
<ir_version: 8, opset_import: ["" : 17, "ai.qdqtool" : 1]>
program (uint8[N, 3, 4] x) => (uint8[N, 12] y, uint8[N, 3, 4] z)
<int64[2] shape = {-1, 12}, uint8[1] two = {2}>
{
  t = Transpose <perm = [0, 2, 1]> (x)
  y = Reshape (t, shape)
  z = ai.qdqtool.Add <mode = "integer", rounding = "half_up", overflow = "saturate", a_zero_point = 0, b_zero_point = 0,
                      a_multiplier = 2, b_multiplier = 2, shift = 1, y_zero_point = 0, y_type = 2> (x, two)
}
"""


def mixed(x: Array) -> list[Array]:
    """What MIXED computes."""
    return [x.transpose(0, 2, 1).reshape(len(x), 12), np.minimum(x.astype(int) + 2, 255).astype(np.uint8)]


def feed(batch: int = 2, seed: int = 0) -> Array:
    """An input of MIXED."""
    return np.random.default_rng(seed).integers(0, 256, (batch, 3, 4)).astype(np.uint8)


def library() -> Path:
    """The library. Where it is missing the test is skipped, unless a compiler is there: then it should have been built."""
    try:
        return library_path()
    except SetupError as error:
        if shutil.which("c++") or shutil.which("g++"):
            raise
        pytest.skip(str(error))


def devices() -> list[Any]:
    """The simulated NPU, registered; the compiler of the process stays what it is."""
    library()
    if PROVIDER not in provider_names():
        qdqtool.npu.register()
    return [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]


def payload(text: str = MIXED, **header: str) -> bytes:
    """The payload of a program in text."""
    program = onnx.parser.parse_model(text)
    return write_payload(Header(**{**HEADER.__dict__, **header}), program.SerializeToString())


def context_model(text: str = MIXED, data: bytes | None = None, *, rename: str = "") -> onnx.ModelProto:
    """A model of one EPContext node, with inputs and outputs as the program ``text`` has them.

    Args:
        text: the program.
        data: the payload of the node instead of that of ``text``.
        rename: put before the names of inputs and outputs.
    """
    graph = onnx.parser.parse_model(text).graph
    inputs, outputs = list(graph.input), list(graph.output)
    for value in [*inputs, *outputs]:
        value.name = rename + value.name
    node = helper.make_node(
        "EPContext", [v.name for v in inputs], [v.name for v in outputs], name="npu_0", domain="com.microsoft",
        embed_mode=1, main_context=1, ep_cache_context=payload(text) if data is None else data, source=PROVIDER,
        partition_name="npu_0",
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "main", inputs, outputs), opset_imports=opsets, ir_version=8)


def session(
    model: onnx.ModelProto | str, config: Mapping[str, str] | None = None, *, threads: int = 1, **options: str
) -> ort.InferenceSession:
    """A session on the NPU, as a user of onnxruntime makes it."""
    made = ort.SessionOptions()
    made.log_severity_level, made.intra_op_num_threads = 4, threads
    for key, value in (config or {}).items():
        made.add_session_config_entry(key, value)
    made.add_provider_for_devices(devices()[:1], options)
    return ort.InferenceSession(model if isinstance(model, str) else model.SerializeToString(), made)


def run(model: onnx.ModelProto, *values: Array) -> list[Array]:
    """Outputs of ``model`` on the NPU."""
    made = session(model)
    return list(made.run(None, {i.name: v for i, v in zip(made.get_inputs(), values, strict=True)}))


def refusal(model: onnx.ModelProto | str, config: Mapping[str, str] | None = None, **options: str) -> str:
    """What a session on ``model`` is refused with."""
    with pytest.raises(Exception, match=": FAIL :") as caught:
        session(model, config, **options)
    return str(caught.value)


def python(code: str, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in another process: for what may end it."""
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "passes")]), VARIABLE: str(library())}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, env={**os.environ, **paths, **(env or {})},
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


def succeeds(done: subprocess.CompletedProcess[str]) -> str:
    """The output of a process that ended well."""
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def equal(found: Sequence[Array], wanted: Sequence[Array]) -> bool:
    """Whether all outputs have the same types, shapes and numbers."""
    return len(found) == len(wanted) and all(
        a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)
    )
