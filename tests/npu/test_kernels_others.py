"""Kernels on integers but those of test_kernels_products.py, in floating point and of movements, each against naive arithmetic in C++."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.npu.kernel_builds import build, run

SHARED = ["requantize"]
ARITHMETIC = [
    "elementwise", "lookup", "maxpool", "pools", "quantize", "reduce", "softmax", "windows",
]  # fmt: skip
TRANSFORMERS = [
    "blocked_matmul", "division", "gemm", "gemm_avx2", "gemm_avx512", "matrix_shapes", "norm", "resize", "rotary", "wide_gemm", "wide_gemm_x86",
]  # fmt: skip
MOVEMENT = ["choices", "cuts", "indexed", "joins", "movement", "repeats", "scatter", "transpose", "views"]
FLOATS = ["float_elementwise", "float_matmul", "float_quantize", "float_reductions", "floats", "windows", *MOVEMENT]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs keep their objects."""
    return tmp_path_factory.mktemp("kernels")


def test_arithmetic(folder: Path) -> None:
    assert run(build("others_test", [*SHARED, *ARITHMETIC], folder), 10) == "0 failures\n"


@pytest.mark.product(days=2)
def test_movement(folder: Path) -> None:
    assert run(build("movement_test", [*SHARED, *MOVEMENT], folder), 8) == "0 failures\n"


def test_operators_of_transformers(folder: Path) -> None:
    assert run(build("transformers_test", [*SHARED, *TRANSFORMERS], folder), 6) == "0 failures\n"


@pytest.mark.product(days=2)
def test_floats(folder: Path) -> None:
    assert run(build("floats_test", [*SHARED, *FLOATS], folder)) == "0 failures\n"
