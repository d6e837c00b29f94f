"""Same input, same output in another process: addresses and hash seeds differ there, nothing may hang on the order of a set."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Collection

import pytest
from qdq_passes.graph.annotate import write_metadata
from qdq_passes.graph.dump import dump

from qdqtool.io.models.save import serialize, to_bytes
from tests.dial import some
from tests.golden.golden import cases

#: Passes whose results may hang on the order in which Python walks a set of nodes.
FOLDERS = (
    "fold-batch-norm", "fold-constants", "inline-functions", "insert-qdq", "remove-identity", "remove-qdq", "remove-unused",
    "merge-transposes", "convert-opset", "extract-subgraph", "unshare-initializers", "apply-encodings", "convert-bias",
    "convert-boundaries", "convert-encodings", "convert-qdq-domain", "convert-qoperators", "dedicate-qdq", "describe-encodings",
    "fold-qdq", "insert-dynamic-quantization", "move-qdq", "remove-dynamic-quantization", "restore-relu", "set-qdq", "share-qdq",
    "undo-dpu-edits", "unpack-matmul-nbits",
)  # fmt: skip


def digests(folders: Collection[str]) -> list[str]:
    """Per golden case of ``folders`` that runs: its name, and the hash of dump, bytes and changes."""
    found = []
    for case in cases():
        if case.path.parent.name not in folders or case.has("FAILS"):
            continue
        model = case.model()
        changes = "\n".join(str(change) for change in case.run(model).changes)
        write_metadata(model)
        data = to_bytes(serialize(model))
        digest = hashlib.sha256(dump(model).encode() + data + changes.encode()).hexdigest()[:16]
        found.append(f"{case.name} {digest}")
    return found


def in_a_fresh_process(seed: str, folders: list[str]) -> list[str]:
    code = f"from {__name__} import digests; print(*digests({folders}), sep='\\n')"
    path = os.pathsep.join(p or "." for p in sys.path)
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.product(days=3)
def test_another_process_makes_the_same() -> None:
    folders = some(FOLDERS, 4)
    first, second = in_a_fresh_process("1", folders), in_a_fresh_process("2", folders)
    assert len(first) > 2 * len(folders)
    here = digests(folders)
    assert [a for a, b, c in zip(first, second, here, strict=True) if not a == b == c] == []
