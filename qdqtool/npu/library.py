"""Where the library of the simulated NPU is: C++, built when the package is installed, and not there when that failed."""

from __future__ import annotations

import os
import sys
from importlib.resources import as_file, files
from pathlib import Path

from qdq_passes.errors import SetupError

#: Environment variable with the path of another build of the library, for example one with sanitizers.
VARIABLE = "QDQTOOL_NPU_LIBRARY"
NAME = "qdqtool_npu.dll" if sys.platform == "win32" else "libqdqtool_npu.so"


def library_path() -> Path:
    """The library, which is one file for onnxruntime 1.23 and all later ones, and for programs without Python.

    Raises:
        SetupError: it is not there.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise SetupError(
                f"there is no library at {named}, which {VARIABLE} names", hint=f"correct or unset {VARIABLE}"
            )
        return Path(named)
    # An editable installation has Python files in one folder and what was built in another; `files` looks into both.
    with as_file(files("qdqtool.npu").joinpath(NAME)) as path:
        if path.is_file():
            return path
    raise SetupError(
        f"the library of the simulated NPU, {NAME}, was not built when qdqtool was installed",
        hint="install a C++17 compiler (g++ 9 or newer) and CMake 3.20, then qdqtool again "
        "(pip install --force-reinstall --no-cache-dir)",
    )
