"""A process killed while it saves leaves the old model or the new one, whole, and at most hidden ``.tmp`` files beside."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from qdqtool.io.models.load import load
from qdqtool.io.models.save import save
from tests.cases.small_models import model
from tests.dial import sized

#: Saves one version after the other over the same path; all weights of version k are full of k.
SAVER = """
import sys
import numpy as np
from tests.unit.io.test_kill_during_save import versioned
from qdqtool.io.models.save import save
print("ready", flush=True)
for version in range(1, 10_000):
    save(versioned(version), sys.argv[1], external=sys.argv[2])
    print(version, flush=True)
"""
WEIGHTS = ("a", "b", "c", "d")
#: Elements of each weight: a save takes some ten milliseconds, of which most are writing.
SIZE = 1 << 17


def versioned(version: int) -> ir.Model:
    """x + a + b + c + d, every weight full of ``version``."""
    tensors = ", ".join(f"float {name} = {{0}}" for name in WEIGHTS)
    m = model(f"g (float[N] x) => (float[N] y) <{tensors}> {{ y = Sum (x, {', '.join(WEIGHTS)}) }}")
    for name in WEIGHTS:
        value = m.graph.initializers[name]
        value.const_value = ir.tensor(np.full(SIZE, version, np.float32), name=name)
        value.shape = ir.Shape([SIZE])
    return m


def version_of(path: Path) -> float:
    """The version of the model at ``path``, after looking at every element of every weight."""
    found = set()
    for value in load(path).graph.initializers.values():
        assert value.const_value is not None
        found.update(np.unique(value.const_value.numpy()).tolist())
    (version,) = found
    return float(version)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 on this system")
@pytest.mark.parametrize("external", ["always", "never"])
def test_old_or_new(tmp_path: Path, external: str) -> None:
    path = tmp_path / "m.onnx"
    save(versioned(0), path, external="always" if external == "always" else "never")
    rng = random.Random(external)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    for attempt in range(sized(6, 3)):
        command = [sys.executable, "-c", SAVER, str(path), external]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as saver:
            assert saver.stdout is not None
            assert saver.stdout.readline() == b"ready\n"
            start = time.monotonic()
            for version in range(1, attempt + 1):
                assert saver.stdout.readline() == f"{version}\n".encode()
            a_save = (time.monotonic() - start) / attempt if attempt else 0.05
            time.sleep(rng.uniform(0.0, a_save))  # into a save, however busy the machine is
            saver.kill()
        assert version_of(path) >= attempt, "a save that was finished is lost"
        for leftover in tmp_path.iterdir():
            assert leftover.name == "m.onnx" or leftover.suffix == ".data" or leftover.name.startswith(".m.")
            if leftover.name.startswith("."):
                assert leftover.suffix == ".tmp"
