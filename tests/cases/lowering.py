"""Lowering for tests: a target that takes whatever can be computed, and models lowered for it."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
from qdq_passes.npu.program.operators import why_not_computable
from qdq_passes.npu.units.units import Unit
from qdq_passes.npu.units.verdict import Verdict
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.npu.compile import LOWER, preparation
from tests.golden.fake_target import FakeTarget


@dataclass(frozen=True, kw_only=True)
class TakesAll(FakeTarget):
    """An NPU that takes what the simulator computes."""

    name: str = "takes_all"
    version: str = "1"
    sha256: str = "0" * 64

    def judge(self, unit: Unit) -> Verdict:
        """By whether there is a plan for it."""
        why = why_not_computable(unit, self.arithmetic)
        if why is not None:
            return Verdict(kind="fallback", engine="CPU", rule="not-computable", reason=why)
        return Verdict(kind="npu-int", engine="npu", rule="takes")


def lowered(model: ir.Model, target: FakeTarget | None = None) -> ir.Model:
    """A copy of ``model`` lowered for ``target``, verified after each pass."""
    steps = f"{preparation()},{LOWER}"
    return run_pipeline(model, steps, inputs={"target": target or TakesAll()}, hooks=[VerifyEach()], copy=True).model
