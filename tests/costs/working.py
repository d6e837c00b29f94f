"""Print the work of commands: ``python -m tests.costs.working digits LENGTH…`` (then of chains) or ``… chain COMMAND LENGTH…``.

Each command runs twice: the first run imports modules and fills caches, the second one is counted. cProfile counts calls."""

from __future__ import annotations

import contextlib
import cProfile
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from qdq_passes.verification import rules

from qdqtool.cli.main import run
from tests.architecture.places import ROOT
from tests.costs.counting import Work

OWN = (str(ROOT / "passes"), str(ROOT / "qdqtool"))
DEMO = ROOT / "qdqtool" / "_demo"
TARGET = ("--target", "vitis_xint8")
#: Arguments of each command on MODEL, a float model, with DATA; QUANTIZED is what `quantize` wrote, NEW a path that is not there.
COMMANDS = {
    "inspect": ("inspect", "MODEL"),
    "check": ("check", "MODEL"),
    "quantize": ("quantize", "MODEL", "--preset", "xint8", "--data", "DATA", "-o", "NEW"),
    "qdq list": ("qdq", "list", "QUANTIZED"),
    "analyze": ("analyze", "QUANTIZED", *TARGET),
    "simulate": ("simulate", "QUANTIZED", *TARGET, "--data", "DATA", "--samples", "2"),
    "deploy": ("deploy", "MODEL", *TARGET, "--data", "DATA", "-o", "NEW"),
}
#: Commands whose calls are counted on chains.
CHAINED = ("quantize", "analyze", "deploy")
#: Suffixes of modules, whose reading is no work of a command.
MODULES = (".py", ".pyc", ".so")


def digits() -> dict[str, Work]:
    """Return the work of every command on the digits network."""
    files = {"MODEL": str(DEMO / "digits.onnx"), "DATA": str(DEMO / "calib.npz"), "QUANTIZED": "quantize_0"}
    return {name: counted(name, command, files) for name, command in COMMANDS.items()}


def chain(command: str, lengths: Sequence[int]) -> dict[int, int]:
    """Return the own calls of ``command`` on chains of these lengths, in nodes."""
    np.savez("data.npz", x0=np.random.default_rng(0).standard_normal((2, 2, 2, 2)).astype(np.float32))
    calls = {}
    for length in (10, *lengths):  # the first fills caches
        files = {"DATA": "data.npz", "NEW": f"{command}_{length}"}
        for name, is_quantized in (("MODEL", False), ("QUANTIZED", True)):
            files[name] = f"{name}_{length}.onnx"
            write_chain(Path(files[name]), length, is_quantized=is_quantized)
        profile = cProfile.Profile(subcalls=False, builtins=False)
        with profile:
            execute(COMMANDS[command], files)
        calls[length] = own_calls(profile)
    return {length: calls[length] for length in lengths}


def write_chain(path: Path, length: int, *, is_quantized: bool) -> None:
    """Write ``length`` operators: Conv and Relu in turn, each Conv with weights of its own [2, 2, 1, 1].

    Quantized, a QDQ pair precedes each of them and follows the last one, and the weights are int8."""
    random, weights, nodes = np.random.default_rng(0), [], []
    weights += [
        numpy_helper.from_array(np.array(value), name) for name, value in (("s", np.float32(0.0625)), ("z", np.int8(0)))
    ]
    for i in range(length + 1):
        source = f"x{i}"
        if is_quantized:
            nodes.append(helper.make_node("QuantizeLinear", [f"x{i}", "s", "z"], [f"q{i}"], name=f"quantize{i}"))
            source = "y" if i == length else f"d{i}"
            nodes.append(helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [source], name=f"dequantize{i}"))
        if i == length:
            break
        if i % 2:
            nodes.append(helper.make_node("Relu", [source], [f"x{i + 1}"], name=f"relu{i}"))
            continue
        array = random.integers(-8, 8, (2, 2, 1, 1)).astype(np.float32) / 16
        weight = f"w{i}"
        if is_quantized:
            weights.append(numpy_helper.from_array((array * 16).astype(np.int8), f"{weight}_quantized"))
            nodes.append(
                helper.make_node("DequantizeLinear", [f"{weight}_quantized", "s", "z"], [weight], name=f"weight{i}")
            )
        else:
            weights.append(numpy_helper.from_array(array, weight))
        nodes.append(helper.make_node("Conv", [source, weight], [f"x{i + 1}"], name=f"conv{i}"))
    shape, last = [1, 2, 2, 2], "y" if is_quantized else f"x{length}"
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("x0", last)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights if is_quantized else weights[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def execute(command: Sequence[str], files: dict[str, str]) -> None:
    """Run a command in this process, with the names in ``files`` replaced."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = run([files.get(word, word) for word in command])
    if code:
        raise RuntimeError(f"{' '.join(command)}: exit {code}\n{errors.getvalue()[-2000:]}")


def counted(name: str, command: Sequence[str], files: dict[str, str]) -> Work:
    """Return the work of the second run."""
    execute(command, {**files, "NEW": f"{name}_0"})
    profile = cProfile.Profile(subcalls=False, builtins=False)
    before, start = len(opened), bytes_read()
    with profile:
        execute(command, {**files, "NEW": f"{name}_1"})
    done, files_opened = bytes_read() - start, opened[before:]
    calls = profile.getstats()
    verifying = [entry.callcount for entry in calls if entry.code is rules.verify.__code__]
    return Work(
        own_calls=own_calls(profile),
        total_calls=sum(entry.callcount for entry in calls),
        verifications=sum(verifying),
        files=sum(not file.endswith(MODULES) for file in files_opened),
        bytes=done,
    )


def own_calls(profile: cProfile.Profile) -> int:
    """Return the number of calls of the product's functions."""
    calls = profile.getstats()
    return sum(entry.callcount for entry in calls if getattr(entry.code, "co_filename", "").startswith(OWN))


opened: list[str] = []


def note_open(event: str, arguments: tuple[object, ...]) -> None:
    """Note the path of each file that Python opens."""
    if event == "open" and isinstance(arguments[0], str):
        opened.append(arguments[0])


def bytes_read() -> int:
    """Return the bytes that this process has read by system calls; 0 where the kernel does not count them."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return 0
    return next(int(line.partition(":")[2]) for line in lines if line.startswith("rchar"))


if __name__ == "__main__":
    sys.addaudithook(note_open)
    if sys.argv[1] == "digits":
        network = {name: asdict(work) for name, work in digits().items()}
        lengths = [int(length) for length in sys.argv[2:]]
        print(json.dumps([network, {command: chain(command, lengths) for command in CHAINED}]))
    else:
        print(json.dumps(chain(sys.argv[2], [int(length) for length in sys.argv[3:]])))
