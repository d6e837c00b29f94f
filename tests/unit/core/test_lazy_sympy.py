"""sympy waits until it is needed, and survives eight threads that need it at once."""

from __future__ import annotations

import subprocess
import sys

from tests.architecture.places import ROOT
from tests.cases.waiting import PATIENCE

#: Eight threads start together and each asks a symbolic dimension for what only sympy knows.
EIGHT = """
import threading
import qdq_passes
import onnx_ir as ir

assert type(sys.modules["sympy"]).__name__ == "_DeferredModule", type(sys.modules["sympy"])
barrier, found, errors = threading.Barrier(8), [], []

def touch(i):
    barrier.wait()
    try:
        if i % 2:
            n = ir.SymbolicDim("N") + i
            found.append(str(n))
        else:
            import sympy
            found.append(str(sympy.Symbol("N") + i))
    except BaseException as error:
        errors.append(repr(error))

threads = [threading.Thread(target=touch, args=(i,)) for i in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
assert not errors, errors
assert len(found) == 8 and not any(t.is_alive() for t in threads), found
assert type(sys.modules["sympy"]).__name__ == "module", type(sys.modules["sympy"])
print(sorted(found))
"""

BROKEN = """
import types
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "mpmath":
            raise ImportError("no mpmath here")
sys.meta_path.insert(0, Finder())
import qdq_passes
import sympy
for _ in range(2):
    try:
        sympy.Symbol
    except ImportError as error:
        print("refused:", error)
"""


def run(code: str) -> str:
    """What ``code`` prints in a fresh interpreter; a warning there is an error."""
    prelude = f"import sys; sys.path[:0] = {[str(ROOT / 'passes'), str(ROOT)]!r}\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", prelude + code], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_eight_threads_at_once() -> None:
    printed = run(EIGHT)
    assert printed.count("N") == 8


def test_eight_threads_several_times() -> None:
    """A race does not show every time."""
    assert len({run(EIGHT) for _ in range(3)}) == 1


def test_importing_leaves_it_unexecuted() -> None:
    code = "import qdq_passes, onnx_ir; print(type(sys.modules['sympy']).__name__, 'sympy.core' in sys.modules)"
    assert run(code) == "_DeferredModule False"


def test_symbolic_dimensions_work_afterwards() -> None:
    code = (
        "import qdq_passes, onnx_ir as ir\n"
        "import sympy\n"
        "d = ir.SymbolicDim('N') * 2 + 1\n"
        "print(d, sympy.__name__, isinstance(sympy.Integer(3), sympy.Basic))"
    )
    assert run(code) == "2*N + 1 sympy True"


def test_nothing_happens_when_onnx_ir_is_there_already() -> None:
    code = "import onnx_ir, qdq_passes; print(type(sys.modules['sympy']).__name__)"
    assert run(code) == "module"


def test_a_failing_import_is_seen_again() -> None:
    first, second = run(BROKEN).splitlines()
    assert first == second
    assert "mpmath" in first
