"""Start-up: CPU seconds that commands add to the imports that they cannot do without.

Commands and the imports beside them run in turn, in processes of their own; figures are medians."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib.resources import as_file, files

from tests.bench.measure import PYTHON, QDQTOOL, Result, Run, in_turn, progress, run

#: What `qdqtool list` lists.
LISTS = ("passes", "presets", "targets", "chips", "shapes", "methods", "namings", "devices", "commands")
#: CPU seconds over bare imports: of `--version` and `import qdqtool`, of reading a small model, of quantizing one.
NOTHING, READING, QUANTIZING = 0.1, 0.25, 0.6
#: CPU seconds of `qdqtool list`, the interpreter included.
LISTING = 0.25
#: `--help` over `import click`, `inspect` over `import onnx`.
HELP, INSPECT = 2.0, 1.8


def results() -> Iterator[Result]:
    """Each command in seven rounds."""
    return _results(7)


def quick() -> Iterator[Result]:
    """Each command in five rounds."""
    return _results(5)


def _results(rounds: int) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder, as_file(files("qdqtool") / "_demo") as demo:
        digits, quantized = str(demo / "digits.onnx"), f"{folder}/digits_int8.onnx"
        quantize = [QDQTOOL, "quantize", digits, "--preset", "xint8", "--data", str(demo / "calib.npz"), "--overwrite"]
        run([*quantize, "-o", quantized])
        yield from _over({"--version": ["--version"]}, "pass", NOTHING, rounds)
        progress("import qdqtool")
        ours, bare = in_turn([PYTHON, "-c", "import qdqtool"], [PYTHON, "-c", "pass"], rounds=rounds)
        yield _difference("import qdqtool", ours, "pass", bare, NOTHING)
        progress("--help")
        ours, bare = in_turn([QDQTOOL, "--help"], [PYTHON, "-c", "import click"], rounds=rounds)
        yield _ratio("qdqtool --help / import click", ours, bare, HELP)
        progress("inspect")
        ours, bare = in_turn([QDQTOOL, "inspect", digits], [PYTHON, "-c", "import onnx"], rounds=rounds)
        yield _ratio("qdqtool inspect / import onnx", ours, bare, INSPECT)
        readers = {"inspect": ["inspect", digits], "qdq list": ["qdq", "list", quantized], "check": ["check", digits]}
        yield from _over(readers, "import onnx_ir", READING, rounds)
        again = [*quantize[1:], "-o", f"{folder}/again.onnx"]
        yield from _over({"quantize of the digits CNN": again}, "import onnx_ir, onnxruntime", QUANTIZING, rounds)
        progress("list")
        lists = in_turn(*([QDQTOOL, "list", what] for what in LISTS), rounds=rounds)
        for what, measured in zip(LISTS, lists, strict=True):
            yield Result(f"qdqtool list {what}", measured.cpu, "s", LISTING, "CPU s in all")


def _over(commands: dict[str, list[str]], imports: str, bound: float, rounds: int) -> Iterator[Result]:
    """CPU seconds of each command over those of ``imports``."""
    progress(f"{', '.join(commands)} beside `{imports}`")
    *measured, bare = in_turn(
        *([QDQTOOL, *words] for words in commands.values()), [PYTHON, "-c", imports], rounds=rounds
    )
    for name, ours in zip(commands, measured, strict=True):
        yield _difference(f"qdqtool {name}", ours, imports, bare, bound)


def _difference(name: str, ours: Run, imports: str, bare: Run, bound: float) -> Result:
    detail = f"{ours.cpu:.2f} CPU s, {bare.cpu:.2f} of `{imports}`"
    return Result(f"{name} over `{imports}`", ours.cpu - bare.cpu, "s", bound, detail)


def _ratio(name: str, ours: Run, bare: Run, bound: float) -> Result:
    return Result(name, ours.cpu / bare.cpu, "×", bound, f"{ours.cpu:.2f} CPU s against {bare.cpu:.2f}")
