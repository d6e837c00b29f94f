"""What the tests of equality share: arithmetics, random units, and how what the NPU computes is compared with the reference."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy._core._multiarray_umath import __cpu_features__  # type: ignore[attr-defined]
from qdq_passes.npu.reference.run import run_reference
from qdq_passes.numerics.arithmetic import Arithmetic

from qdqtool.npu.compile import compile as compile_model
from qdqtool.npu.compile import lower
from qdqtool.npu.library import library_path
from qdqtool.runtime import provider
from qdqtool.runtime.session import open_session
from qdqtool.targets.target import Target
from tests.dial import some

#: A model and what it is fed.
Unit = tuple[ir.Model, dict[str, Any]]

#: Name → arithmetic, and whether only power-of-two scales have a meaning in it.
ARITHMETICS: dict[str, tuple[Arithmetic, bool]] = {
    "half_even": (Arithmetic(rounding="half_even"), False),
    "half_up": (Arithmetic(rounding="half_up"), False),
    "half_away": (Arithmetic(rounding="half_away", zero_point_first=True), False),
    "shift": (Arithmetic(requantize="shift", rounding="half_up"), True),
    "float": (Arithmetic(requantize="float", rounding="toward_zero", zero_point_first=True), False),
    "wrapping": (Arithmetic(rounding="toward_zero", overflow="wrap"), False),
    "narrow": (Arithmetic(accumulator=16, accumulator_overflow="saturate"), False),
}
#: Instruction set of the kernels → the features that a processor needs for it, as numpy calls them.
FEATURES: dict[str, tuple[str, ...]] = {
    "portable": (), "avx2": ("AVX2",), "avx512": ("AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL", "AVX512VNNI"),
}  # fmt: skip
INSTRUCTION_SETS = tuple(FEATURES)


def generator(seed: int, *names: str) -> np.random.Generator:
    """The same numbers every time for a seed of a case."""
    return np.random.default_rng([*(zlib.crc32(name.encode()) for name in names), seed])


def on_arithmetic(target: Target, arithmetic: Arithmetic) -> Target:
    """The target, computing so."""
    return dataclasses.replace(target, arithmetic=arithmetic)


def reference(model: ir.Model, feed: dict[str, Any], arithmetic: Arithmetic) -> dict[str, Any]:
    """What must come out when the NPU computes every node."""

    def never(node: ir.Node, inputs: Any) -> Any:
        raise AssertionError(f"{node.op_type} is asked of the CPU")

    return run_reference(model, feed, arithmetic, on_npu=lambda node: True, fallback=never)


def assert_equal(found: Any, wanted: dict[str, Any], label: str = "") -> None:
    """Every element of every output, at tolerance 0."""
    for output, value in wanted.items():
        np.testing.assert_array_equal(found[output], value, err_msg=f"{label}, output {output}")


def assert_provider_equals(unit: Unit, target: Target, label: str = "", **options: str) -> None:
    """The target takes the whole unit, and the provider computes it as the reference says. `options` are the provider's."""
    model, feed = unit
    wanted = reference(model, feed, target.arithmetic)
    done = compile_model(model, target)
    assert done.parts, label
    assert not done.reasons, f"{label}: {done.reasons}"
    assert_equal(provider.open_session(done.model, options).run(feed), wanted, label)


def assert_operators_equal(unit: Unit, target: Target, label: str = "") -> None:
    """The custom operators of the lowered unit compute it as the reference says."""
    model, feed = unit
    wanted = reference(model, feed, target.arithmetic)
    lowered = lower(model, target).model
    assert_equal(open_session(lowered, operators=library_path()).run(feed), wanted, label)


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """Random units of a topic, and the target that takes all of them.

    Args:
        target: whatever its arithmetic.
        make: (seed, whether scales are powers of two, names of the case) → unit, the same one every time.
        seeds: how many units of a case, of which the part makes one.
    """

    target: Target
    make: Callable[..., Unit]
    seeds: int

    def on_provider(
        self, arithmetic: str | tuple[Arithmetic, bool], *case: str, seeds: Iterable[int] | None = None, **options: str
    ) -> None:
        """Units of ``case`` on the provider; ``arithmetic`` is one of `ARITHMETICS`, or like those."""
        if missing := [name for name in FEATURES[options.get("isa", "portable")] if not __cpu_features__.get(name)]:
            pytest.skip(f"this processor does not have {missing[0]}")
        computing, only_pow2 = ARITHMETICS[arithmetic] if isinstance(arithmetic, str) else arithmetic
        for seed in seeds or some(self.seeds):
            unit = self.make(seed, only_pow2 or seed % 2 == 0, *case)
            assert_provider_equals(unit, on_arithmetic(self.target, computing), f"seed {seed}", **options)

    def as_operators(self, *case: str) -> None:
        """Each unit of ``case`` as custom operators."""
        target = on_arithmetic(self.target, ARITHMETICS["half_up"][0])
        for seed in some(self.seeds):
            assert_operators_equal(self.make(seed, seed % 2 == 0, *case), target, f"seed {seed}")
