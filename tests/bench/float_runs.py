"""The floor: plain float inference. `python -m tests.bench.float_runs MODEL DATA COUNT` prints the CPU seconds of COUNT runs.

One thread, all of onnxruntime's optimizations; starting the process, reading the files and opening the session do not count. The
process' peak memory is what the float model's own inference takes."""

from __future__ import annotations

import sys
import time

import numpy as np
import onnxruntime


def main(model: str, data: str, count: str) -> None:
    """Run ``model`` on the first samples of ``data`` (.npz, ``input`` [S, …])."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    with np.load(data) as arrays:
        samples = arrays["input"][: int(count)]
    assert len(samples) == int(count), f"{data} has {len(samples)} samples"
    start = time.process_time()
    for index in range(len(samples)):
        session.run(None, {"input": samples[index : index + 1]})
    print(time.process_time() - start)


if __name__ == "__main__":
    main(*sys.argv[1:])
