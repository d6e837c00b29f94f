"""undo-dpu-edits: the DPU's factors against the table they were measured with, and a small network taken back."""

from __future__ import annotations

import numpy as np
import pytest
from qdq_passes.numerics.dpu import HARD_SIGMOID_FACTOR, mean_factor, pool_factor
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.pipeline.pipeline import run_pipeline

from tests.cases.small_models import checked, model, operators, run

#: Measured on the peer's output: window sides with multipliers of their own, powers of two, and the side beyond which there is none.
FACTORS = {
    1: 1.0, 2: 1.0, 3: 63 / 64, 4: 1.0, 5: 250 / 256, 6: 252 / 256, 7: 1029 / 1024, 8: 1.0, 14: 4116 / 4096, 16: 1.0, 256: 1.0,
}  # fmt: skip


def test_factors() -> None:
    assert {side: pool_factor([side, side]) for side in FACTORS} == FACTORS
    assert HARD_SIGMOID_FACTOR == 1.0001220703125
    assert pool_factor([2, 3]) is None
    assert pool_factor([3]) is None


@pytest.mark.parametrize("count", range(1, 200))
def test_mean_factor_is_the_first_of_the_best(count: int) -> None:
    """k / 2^n with the smallest error, and of those the smallest n: checked by comparing every shift in exact fractions."""
    from fractions import Fraction

    shifts = range(7 + int(np.ceil(np.log2(count))))
    errors = {n: abs(Fraction(round(2**n / count), 2**n) - Fraction(1, count)) for n in shifts}
    best = min(shifts, key=lambda n: errors[n])
    assert mean_factor(count) == float(Fraction(round(2**best / count), 2**best) * count)


def test_the_network_computes_the_original_again() -> None:
    """Bit for bit what the float network computes: only whole operators were replaced."""
    original = model(
        """g (float[1,2,9,9] x) => (float[1,2,1,1] y) { [leaky] l = LeakyRelu<alpha: float = 0.1>(x) [sg] s = Sigmoid(l)
        [swish] w = Mul(l, s) [pool] p = AveragePool<kernel_shape: ints = [3,3]>(w) [gap] y = GlobalAveragePool(p) }"""
    )
    edited = model(
        """g (float[1,2,9,9] x) => (float[1,2,1,1] y) <float q = {0.0625}, int8 z = {0}> {
        [leaky] l = LeakyRelu<alpha: float = 0.1015625>(x) [sg] s_Mul = HardSigmoid<alpha: float = 0.16666667>(l)
        [sc] sk = Constant<value: tensor = float {1.0001220703125}>() [sm] s = Mul(s_Mul, sk) [swish] w = Mul(l, s)
        [pool] p_Mul = AveragePool<kernel_shape: ints = [3,3]>(w) [pc] pk = Constant<value: tensor = float {0.984375}>()
        [pm] p = Mul(p_Mul, pk) [gap] y_Mul = GlobalAveragePool(p) [gc] gk = Constant<value: tensor = float {1.0048828125}>()
        [gm] t = Mul(y_Mul, gk) [qq] i = QuantizeLinear(t, q, z) [dq] y = DequantizeLinear(i, q, z) }"""
    )
    run_pipeline(edited, "infer-shapes,undo-dpu-edits,remove-qdq", hooks=[VerifyEach()])
    assert operators(checked(edited)) == operators(original)
    assert [node.outputs[0].name for node in edited.graph] == [node.outputs[0].name for node in original.graph]
    x = np.random.default_rng(0).normal(0, 2, (1, 2, 9, 9)).astype(np.float32)
    assert np.array_equal(run(edited, {"x": x})["y"], run(original, {"x": x})["y"])
