"""Kernels that are no products: sums, tables, pools, softmax, conversions and movements, each against naive arithmetic in C++."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.npu.kernel_builds import build, run

SHARED = ["isa", "kernel", "requantize"]
ARITHMETIC = ["elementwise", "lookup", "maxpool", "pools", "quantize", "reduce_mean", "softmax", "windows"]
MOVEMENT = ["cuts", "joins", "movement", "repeats", "transpose", "views"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both programs keep their objects."""
    return tmp_path_factory.mktemp("kernels")


def test_arithmetic(folder: Path) -> None:
    assert run(build("others_test", [*SHARED, *ARITHMETIC], folder)) == "0 failures\n"


def test_movement(folder: Path) -> None:
    assert run(build("movement_test", [*SHARED, *MOVEMENT], folder)) == "0 failures\n"
