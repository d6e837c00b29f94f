"""A decoder block of int8 on the simulated NPU beside onnxruntime's own CPU provider, on the same QDQ file: a chunk of a prompt, a token.

One layer of the shape of Qwen2-0.5B with random weights (width 896, 14 heads on 2, SwiGLU of 4864), 128 tokens or one with a context
of 512, quantized to 8 bits for the target. Sessions run in turn in one process, as in `tests.bench.npu`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from qdq_passes.errors import SetupError

from qdqtool.npu.library import library_path
from tests.bench.measure import PYTHON, QDQTOOL, Result, progress, run
from tests.bench.npu import ROUNDS, measured

SHAPE = (
    "--layers",
    "1",
    "--hidden",
    "896",
    "--heads",
    "14",
    "--kv-heads",
    "2",
    "--intermediate",
    "4864",
    "--vocab",
    "1024",
)
TEXT, TOKENIZER = "sample_models/text/train.txt", "sample_models/tokenizer.json"
PRESET, TARGET = "qnn-a8w8", "qnn_htp"
#: Run time over that of the CPU provider.
TIMES = 1.3


def results() -> Iterator[Result]:
    """The prefill and the decode graph of the block, on one thread and on two."""
    try:
        library_path()
    except SetupError as error:
        yield Result("decoder block", 0.0, "", None, f"SKIPPED: {error.message}")
        return
    with tempfile.TemporaryDirectory() as folder:
        progress("building and quantizing the block")
        run([PYTHON, "sample_models/qwen2_shape.py", f"{folder}/block.onnx", *SHAPE])
        run(
            [
                QDQTOOL,
                "split",
                f"{folder}/block.onnx",
                "-o",
                f"{folder}/split",
                "--prefill",
                "128",
                "--context",
                "512",
                "-q",
            ]
        )
        data = ["--target", TARGET, "--data", TEXT, "--tokenizer", TOKENIZER, "--samples", "4"]
        run([QDQTOOL, "quantize", f"{folder}/split", "--preset", PRESET, *data, "-o", f"{folder}/int8", "-q"])
        for name, tokens in (("prefill_b1_s128_c512", "128 tokens"), ("decode_b1_s1_c512", "one token")):
            progress(tokens)
            for threads in (1, 2):
                found = measured("run", f"{folder}/int8/{name}.onnx", TARGET, str(threads))
                detail = (
                    f"{found['npu_ms']:.2f} ms against {found['cpu_ms']:.2f} ms, medians of {ROUNDS}; {found['placed']}"
                )
                title = f"decoder block, {tokens}, {threads} thread{'s' * (threads > 1)}, over the CPU"
                yield Result(title, found["ratio"], "×", TIMES, detail)
