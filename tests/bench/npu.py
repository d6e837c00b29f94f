"""The simulated NPU beside onnxruntime's own CPU provider: a network at 224×224, opening it, and what a node costs by itself.

Both sessions live in one process and run in turn; the figure is the median of the ratios of neighbours. Without the library there is
nothing to measure, which one line says.

    python -m tests.bench.npu run MODEL TARGET THREADS [ISA]    prints the figures of one model as JSON
    python -m tests.bench.npu tiny FOLDER                       ... of the chains of additions, written there
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qdq_passes.errors import SetupError

from qdqtool.npu.library import library_path
from tests.bench.measure import PYTHON, QDQTOOL, Result, progress, run

#: Form → target: two presets, and what onnxruntime's own quantizer writes. Of `xint8` (int8 biases) onnxruntime has no fused kernels,
#: `a8w8` it runs on integers; uint8 activations are what it is fastest with.
FORMS = {"xint8": "vitis_xint8", "a8w8": "generic_int8", "uint8": "generic_int8"}
#: Run time over that of the CPU provider; seconds to open a session; microseconds that a node adds.
TIMES, OPENING, NODE = 1.5, 3.0, 5.0
ROUNDS = 30
_BYTES = {"tensor(int8)": "int8", "tensor(uint8)": "uint8"}
#: Nodes of the long chain, and values that each computes.
CHAIN, VALUES = 200, 16
SHORT_RUNS = 2000


def results() -> Iterator[Result]:
    """ResNet-18 on one thread and on two, opening it, and the cost of a node inside a partition and of a partition."""
    try:
        library_path()
    except SetupError as error:
        yield Result("simulated NPU", 0.0, "", None, f"SKIPPED: {error.message}")
        return
    with tempfile.TemporaryDirectory() as folder:
        yield from _resnet18(folder)
        yield from _chains(folder)


def _resnet18(folder: str) -> Iterator[Result]:
    progress("building ResNet-18")
    run([PYTHON, "-m", "tests.bench.models", "resnet18", folder])
    model, data = f"{folder}/resnet18.onnx", f"{folder}/calib.npz"
    for preset, target in FORMS.items():
        out = f"{folder}/{preset}.onnx"
        progress(f"ResNet-18 {preset}")
        if preset == "uint8":
            run([PYTHON, "-m", "tests.bench.onnxruntime_quantizer", model, data, "16", "MinMax", out, "QUInt8"])
        else:
            run([QDQTOOL, "quantize", model, "--preset", preset, "--data", data, "--samples", "16", "-o", out])
        for threads in (1, 2):
            found = measured("run", out, target, str(threads))
            detail = (
                f"{found['npu_ms']:.1f} ms against {found['cpu_ms']:.1f} ms, medians of {ROUNDS}; {found['placed']}"
            )
            name = f"ResNet-18 {preset}, {threads} thread{'s' * (threads > 1)}, over the CPU"
            yield Result(name, found["ratio"], "×", TIMES, detail)
        older = measured("run", out, target, "1", "avx2")
        detail = f"{older['npu_ms']:.1f} ms against {older['cpu_ms']:.1f} ms, which has all that the processor has"
        yield Result(f"ResNet-18 {preset}, AVX2 alone, 1 thread", older["ratio"], "×", None, detail)
        yield Result(f"ResNet-18 {preset}, opening", found["opening_s"], "s", OPENING, "partition, lower, pack weights")


def _chains(folder: str) -> Iterator[Result]:
    progress("chains of additions")
    found = measured("tiny", folder)
    inside = (found["long"] - found["short"]) / (CHAIN - 1)
    detail = f"{CHAIN} additions of {VALUES} values {found['long']:.1f} µs, one {found['short']:.1f} µs"
    yield Result("a node inside a partition", inside, "µs", NODE, detail)
    detail = f"one addition on the NPU {found['short']:.1f} µs, on the CPU {found['cpu']:.1f} µs"
    yield Result("a partition, over the same on the CPU", found["short"] - found["cpu"], "µs", NODE, detail)


def measured(*arguments: str) -> dict[str, Any]:
    """What this module prints when it is run as a process of its own."""
    found: dict[str, Any] = json.loads(run([PYTHON, "-m", "tests.bench.npu", *arguments]).output.splitlines()[-1])
    return found


def _run(model: str, target: str, threads: str, isa: str = "") -> dict[str, Any]:
    """Both sessions on one model, in turn; ``isa`` holds the NPU to an instruction set."""
    import time

    cpu = _session(model, int(threads))
    start = time.perf_counter()
    npu = _session(model, int(threads), {"target": target, **({"isa": isa} if isa else {})})
    opening = time.perf_counter() - start
    feed = {source.name: _fed(source.name, source.type, source.shape) for source in cpu.get_inputs()}
    for session in (cpu, npu, cpu, npu):
        session.run(None, feed)
    pairs = [(_seconds(npu, feed), _seconds(cpu, feed)) for _ in range(ROUNDS)]
    return {
        "ratio": statistics.median(ours / theirs for ours, theirs in pairs),
        "npu_ms": 1e3 * statistics.median(ours for ours, _ in pairs),
        "cpu_ms": 1e3 * statistics.median(theirs for _, theirs in pairs),
        "opening_s": opening,
        "placed": _placed(npu),
    }


def _fed(name: str, dtype: str, shape: list[int]) -> Any:
    """An input: positions one after the other, a mask that hides nothing, ids and floats at random."""
    import numpy as np

    rng = np.random.default_rng(0)
    if dtype == "tensor(float)":
        return np.zeros(shape, np.float32) if "mask" in name else rng.normal(size=shape).astype(np.float32)
    if "position" in name:
        return np.broadcast_to(np.arange(shape[-1], dtype=np.int64), shape).copy()
    return rng.integers(0, shape[-1], shape) if dtype == "tensor(int64)" else np.zeros(shape, _BYTES[dtype])


def _seconds(session: Any, feed: dict[str, Any]) -> float:
    import time

    start = time.perf_counter()
    session.run(None, feed)
    return time.perf_counter() - start


def _session(model: str, threads: int, npu: dict[str, str] | None = None) -> Any:
    """A session as an application opens it, with onnxruntime's default optimization; on the NPU when it has options."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    if npu is None:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    import qdqtool.npu

    qdqtool.npu.register()
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "NpuSimExecutionProvider"]
    options.add_provider_for_devices(devices[:1], npu)
    if hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return onnxruntime.InferenceSession(model, options)


def _placed(session: Any) -> str:
    """Where the nodes are."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return "placement unknown before onnxruntime 1.24"
    counts: dict[str, int] = {}
    for group in session.get_provider_graph_assignment_info():
        counts[group.ep_name] = counts.get(group.ep_name, 0) + len(group.get_nodes())
    npu = counts.pop("NpuSimExecutionProvider", 0)
    return f"{npu} nodes on the NPU, {sum(counts.values())} on the CPU"


def _tiny(folder: str) -> dict[str, float]:
    """Microseconds a run, the least of many rounds, of one addition and of many behind each other."""
    options = {"target": "generic_int8"}
    one, many = (_chain(Path(folder) / f"chain{count}.onnx", count) for count in (1, CHAIN))
    return {
        "short": _least(_session(one, 1, options)),
        "long": _least(_session(many, 1, options)),
        "cpu": _least(_session(one, 1)),
    }


def _chain(path: Path, count: int) -> str:
    """A file with ``count`` quantized additions in a row, integers at both ends."""
    import onnx
    import onnx.parser

    lines = []
    for i in range(count):
        lines += [
            f"a{i} = DequantizeLinear(x{i}, s, z)", f"b{i} = DequantizeLinear(x{i}, s, z)", f"f{i} = Add(a{i}, b{i})",
            f"x{i + 1} = QuantizeLinear(f{i}, s, z)",
        ]  # fmt: skip
    ends = f"(int8[1,{VALUES}] x0) => (int8[1,{VALUES}] x{count})"
    constants = "<float s = {0.5}, int8 z = {0}>"
    header = '<ir_version: 10, opset_import: ["" : 21]>'
    model = onnx.parser.parse_model("\n".join([header, f"chain {ends} {constants} {{", *lines, "}"]))
    onnx.save(model, path)
    return str(path)


def _least(session: Any) -> float:
    """Microseconds of a run; other work on the machine only ever adds."""
    import time

    import numpy as np

    (source,) = session.get_inputs()
    feed = {source.name: np.ones((1, VALUES), np.int8)}
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(SHORT_RUNS // 20):
            session.run(None, feed)
        best = min(best, (time.perf_counter() - start) / (SHORT_RUNS // 20))
    return 1e6 * best


if __name__ == "__main__":
    MEASURED: dict[str, Callable[..., Mapping[str, Any]]] = {"run": _run, "tiny": _tiny}
    print(json.dumps(MEASURED[sys.argv[1]](*sys.argv[2:])))
