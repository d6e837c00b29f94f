"""A cache of integers, written by ScatterElements on bare integers and read through a pair: it stays on the NPU, in one program."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from qdq_passes.npu.partitions.partitions import partition_for
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.pipeline.pipeline import run_pipeline

import qdqtool.npu
from qdqtool.npu.compile import compile as compile_model
from qdqtool.npu.runs import reference_run
from qdqtool.runtime import provider
from tests.cases.small_models import model
from tests.npu.equality.test_movement_equality import WIDE

#: Keys of one new position are scattered into a cache [1, 2, 4, 3], and read by the scores; a mask is computed from positions.
STEP = """<ir_version: 10, opset_import: ["" : 21]>
g (float[1,2,1,3] q, float[1,2,1,3] k, {kind}[1,2,4,3] past, int64[1,1,1,1] p) => ({kind}[1,2,4,3] present, float[1,2,1,4] y)
  <float sq = {{0.03125}}, int8 zq = {{3}}, float sk = {{0.0625}}, {kind} zk = {{0}}, int64[4] shape = {{1, 2, 1, 3}}, float hidden = {{-4.0}},
   float sy = {{0.0625}}, int8 zy = {{0}}, int64[4] slots = {{0, 1, 2, 3}}>
{{
  qq = QuantizeLinear(q, sq, zq) qd = DequantizeLinear(qq, sq, zq)
  kq = QuantizeLinear(k, sk, zk)
  i = Expand(p, shape)
  present = ScatterElements<axis: int = 2>(past, i, kq)
  kd = DequantizeLinear(present, sk, zk)
  t = Transpose<perm: ints = [0, 1, 3, 2]>(kd)
  tq = QuantizeLinear(t, sk, zk) td = DequantizeLinear(tq, sk, zk)
  s = MatMul(qd, td)
  sq8 = QuantizeLinear(s, sy, zy) sd = DequantizeLinear(sq8, sy, zy)
  m = LessOrEqual(slots, p)
  hq = QuantizeLinear(hidden, sy, zy) hd = DequantizeLinear(hq, sy, zy)
  w = Where(m, sd, hd)
  wq = QuantizeLinear(w, sy, zy) y = DequantizeLinear(wq, sy, zy)
}}"""


@pytest.mark.parametrize("kind", ["int8", "int16"])
@pytest.mark.parametrize("requantize", ["fixed_point", "float"])
def test_a_cache_of_integers_stays_on_the_npu(kind: str, requantize: str) -> None:
    qdqtool.npu.register()
    target = dataclasses.replace(WIDE, arithmetic=Arithmetic(requantize=requantize))  # type: ignore[arg-type]
    step = model(STEP.format(kind=kind))
    done = compile_model(step, target)
    assert len(done.parts) == 1, done.reasons
    assert {"past", "kq"} <= set(done.parts[0].inputs)
    assert "present" in done.parts[0].outputs
    rng = np.random.default_rng(5)
    feed = {
        "q": rng.normal(size=(1, 2, 1, 3)).astype(np.float32), "k": rng.normal(size=(1, 2, 1, 3)).astype(np.float32),
        "past": rng.integers(-40, 40, (1, 2, 4, 3)).astype(kind), "p": np.full((1, 1, 1, 1), 2, np.int64),
    }  # fmt: skip
    run_pipeline(step, "infer-shapes,lift-constants")
    wanted = reference_run(step, partition_for(step, target), target.arithmetic)(feed)
    found = provider.open_session(done.model).run(feed)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    np.testing.assert_array_equal(found["present"][:, :, [0, 1, 3]], feed["past"][:, :, [0, 1, 3]])
    assert (found["y"][..., 3] == -4).all()
    assert (found["y"][..., :3] != -4).any()
