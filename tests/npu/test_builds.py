"""Other builds of the library: with sanitizers, under which this folder's tests run again, and for Windows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qdqtool.npu.library import VARIABLE
from tests.architecture.places import ROOT
from tests.dial import Dial
from tests.npu.small_programs import SOURCES

pytestmark = pytest.mark.extra

#: Tests that say something under sanitizers; those that count memory or start processes themselves do not.
CHECKED = (
    "test_programs.py",
    "test_damaged_payloads.py",
    "test_sessions.py",
    "test_compiling.py",
    "test_context_models.py",
    "test_custom_operators.py",
    "test_movement.py",
    "test_forms.py",
    "equality/test_equality.py",
    "equality/test_floats_equality.py",
    "equality/test_products_equality.py",
    "equality/test_indexed_movement.py",
    "equality/test_movement_equality.py",
    "equality/test_rotary_equality.py",
    "language/test_cache_flow.py",
)
SKIPPED = "not leave_nothing and not child_process and not where_nothing_compiles"
#: Objects keep from run to run; the folder is not in the repository.
BUILDS = ROOT / "build" / "npu"


def built(folder: str, *options: str) -> Path:
    """A build with CMake and further ``options``; only what changed is compiled again."""
    if shutil.which("cmake") is None:
        pytest.skip("missing: cmake")
    place = BUILDS / folder
    told = [*options, "-DQDQTOOL_WARNINGS=ON"]
    for command in (["-S", str(SOURCES), "-B", str(place), *told], ["--build", str(place), "--parallel", "4"]):
        done = subprocess.run(["cmake", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        assert "warning:" not in done.stderr + done.stdout, (
            "a warning of the compiler: " + (done.stdout + done.stderr)[-4000:]
        )
    return place


def runtime_library(name: str) -> str:
    """Path of a library of the compiler's, to be loaded before all others."""
    return subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.skipif(shutil.which("g++") is None or sys.platform != "linux", reason="missing: g++ on Linux")
def test_sanitizers_find_nothing() -> None:
    """Addresses and undefined behaviour; a finding ends the process that runs the tests."""
    place = built("sanitized", "-DQDQTOOL_SANITIZE=address,undefined", "-DCMAKE_CXX_COMPILER=g++")
    env = {
        VARIABLE: str(place / "libqdqtool_npu.so"),
        "LD_PRELOAD": " ".join(map(runtime_library, ("libasan.so", "libubsan.so", "libstdc++.so.6"))),
        "ASAN_OPTIONS": "detect_leaks=0:protect_shadow_gap=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "passes")]),
    }
    tests = [str(ROOT / "tests" / "npu" / name) for name in CHECKED]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-k", SKIPPED, *(["--whole"] if Dial.whole else []), *tests]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    assert "AddressSanitizer" not in said
    assert "runtime error:" not in said


@pytest.mark.skipif(shutil.which("x86_64-w64-mingw32-g++") is None, reason="missing: x86_64-w64-mingw32-g++")
def test_it_compiles_for_windows() -> None:
    options = {
        "CMAKE_SYSTEM_NAME": "Windows",
        "CMAKE_CXX_COMPILER": "x86_64-w64-mingw32-g++",
        "CMAKE_BUILD_TYPE": "Release",
    }
    place = built("windows", *(f"-D{key}={value}" for key, value in options.items()))
    data = (place / "qdqtool_npu.dll").read_bytes()
    assert data.startswith(b"MZ")
    for door in ("CreateEpFactories", "ReleaseEpFactory", "RegisterCustomOps", "qdqtool_set_compiler"):
        assert door.encode() + b"\0" in data
    objdump = ["x86_64-w64-mingw32-objdump", "-p", str(place / "qdqtool_npu.dll")]
    said = subprocess.run(objdump, capture_output=True, text=True, check=True).stdout
    needed = {line.split()[-1].lower() for line in said.splitlines() if "DLL Name:" in line}
    assert needed
    assert needed <= {"kernel32.dll", "msvcrt.dll"}, "it needs libraries that Windows has not"
