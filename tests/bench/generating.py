"""Tokens a second of a split decoder with its cache in place, beside the dynamic model run with onnxruntime's IO binding.

Prompt of 32 tokens, 96 new ones, greedy, a context of 128 slots, one thread; both in one process and in turn, after one run
of each to warm up. Sampling and all that happens between two runs of a graph count.

    python -m tests.bench.generating DIR MODEL    prints the seconds of each run as JSON
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.measure import PYTHON, QDQTOOL, Result, progress, run

MODEL = Path(__file__).parents[2] / "sample_models" / "tiny_llama.onnx"
PROMPT, NEW, CONTEXT, ROUNDS = 32, 96, 128, 5
#: Seconds of the split model over those of the dynamic one.
BOUND = 1.0


def results() -> Iterator[Result]:
    """The trained sample, split in both layouts."""
    for layout, bound in (("in-place", BOUND), ("slide", None)):
        with tempfile.TemporaryDirectory() as folder:
            progress(f"split and generate, {layout}")
            made = f"{folder}/split"
            shapes = ("--prefill", str(PROMPT), "--decode", "1", "--context", str(CONTEXT))
            run([QDQTOOL, "split", str(MODEL), "-o", made, *shapes, "--layout", layout])
            done = run([PYTHON, "-m", "tests.bench.generating", made, str(MODEL)])
            found = json.loads(done.output.splitlines()[-1])
        static, dynamic = (statistics.median(found[which]) for which in ("static", "dynamic"))
        detail = f"{NEW / static:,.0f} tokens a second against {NEW / dynamic:,.0f}, medians of {ROUNDS}"
        yield Result(f"generate {layout}, over the dynamic model", static / dynamic, "×", bound, detail)


def _measured(folder: str, model: str) -> dict[str, list[float]]:
    """Seconds of each run of both; they must give the same tokens."""
    import numpy as np

    from qdqtool.llm import Session

    prompt = [int(token) for token in np.random.default_rng(0).integers(1, 500, PROMPT)]
    session, dynamic = Session(folder, threads=1), _Dynamic(model)
    found: dict[str, list[float]] = {"static": [], "dynamic": []}
    for _ in range(ROUNDS + 1):
        session.reset()
        start = time.perf_counter()
        ours = session.generate(prompt, NEW, eos=[])
        middle = time.perf_counter()
        theirs = dynamic.generate(prompt)
        found["static"].append(middle - start)
        found["dynamic"].append(time.perf_counter() - middle)
        assert ours == theirs, "the split model gives other tokens"
    return {name: seconds[1:] for name, seconds in found.items()}


class _Dynamic:
    """The dynamic model as an application runs it well: what comes out goes in again without a copy."""

    def __init__(self, model: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._binding = self._session.io_binding()
        self._pasts = {i.name: i.shape for i in self._session.get_inputs() if i.name.startswith("past_key_values")}
        self._outputs = [o.name for o in self._session.get_outputs()]

    def generate(self, prompt: list[int]) -> list[int]:
        """The tokens that follow, the most likely each time."""
        import numpy as np
        from onnxruntime import OrtValue

        binding, names = self._binding, self._outputs
        for name, shape in self._pasts.items():
            empty = OrtValue.ortvalue_from_numpy(np.zeros((1, shape[1], 0, shape[3]), np.float32))
            binding.bind_ortvalue_input(name, empty)
        ones = np.ones((1, PROMPT + NEW), np.int64)
        places = np.arange(PROMPT + NEW, dtype=np.int64)[None]
        tokens: list[int] = []
        ids, begin = np.array([prompt], np.int64), 0
        while True:
            end = begin + ids.shape[1]
            binding.bind_cpu_input("input_ids", ids)
            binding.bind_cpu_input("attention_mask", ones[:, :end])
            binding.bind_cpu_input("position_ids", np.ascontiguousarray(places[:, begin:end]))
            binding.clear_binding_outputs()
            for name in names:
                binding.bind_output(name)
            self._session.run_with_iobinding(binding)
            values: dict[str, Any] = dict(zip(names, binding.get_outputs(), strict=True))
            tokens.append(int(values["logits"].numpy()[0, -1].argmax()))
            if len(tokens) == NEW:
                return tokens
            for name in self._pasts:
                binding.bind_ortvalue_input(name, values[name.replace("past_key_values", "present")])
            ids, begin = np.array([[tokens[-1]]], np.int64), end


if __name__ == "__main__":
    print(json.dumps(_measured(*sys.argv[1:3])))
