"""Kernels with sums of products, Conv, ConvTranspose and MatMul, for every instruction set of this machine, against naive arithmetic in C++."""

from __future__ import annotations

from pathlib import Path

from tests.npu.kernel_builds import build, run

KERNELS = [
    "requantize", "gemm", "gemm_avx2", "gemm_avx512",
    "conv", "convolution", "depthwise", "depthwise_avx2", "depthwise_avx512", "matmul", "matrix_shapes",
    "wide_gemm", "wide_gemm_x86", "sum_output", "sum_output_avx512", "wide_matmul", "wide_convolution", "blocked_matmul",
]  # fmt: skip


def test_products(tmp_path: Path) -> None:
    assert run(build("products_test", KERNELS, tmp_path), 12).endswith(", 0 failures\n")
