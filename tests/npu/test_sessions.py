"""Many sessions: at the same time, one after the other, longer than the library is registered, and in a child process."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort
import pytest
from qdq_passes.npu.reference.run import run_reference

from qdqtool.io.models.save import serialize
from qdqtool.runtime.provider import open_session
from qdqtool.targets.loading import load_target
from tests.cases.small_models import model as model_of
from tests.npu.small_programs import context_model, devices, equal, feed, mixed, python, session, succeeds

START = "from tests.npu.small_programs import *\nimport gc, os\n"


def test_eight_threads_create_and_run() -> None:
    model = context_model()

    def work(number: int) -> bool:
        made = [session(model) for _ in range(3)]
        inputs = [feed(1 + (number + i) % 5, number) for i in range(60)]
        return all(equal(made[i % 3].run(None, {"x": x}), mixed(x)) for i, x in enumerate(inputs))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_one_session_runs_in_eight_threads() -> None:
    """With shapes that change, so that memory is planned while others run."""
    made = session(context_model(), threads=2)

    def work(number: int) -> int:
        inputs = [feed(1 + (number * 7 + i) % 12, i) for i in range(300)]
        return sum(not equal(made.run(None, {"x": x}), mixed(x)) for x in inputs)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_sessions_leave_nothing_behind() -> None:
    """300 created, run and destroyed: resident memory does not grow with their number."""
    code = """
def resident(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
model = context_model()
def cycle(count):
    for number in range(count):
        made = session(model)
        assert equal(made.run(None, {"x": feed()}), mixed(feed()))
        del made
    gc.collect()
cycle(60)
before = resident()
cycle(300)
print(resident() - before)
"""
    grown = int(succeeds(python(START + code)))
    assert grown < 2 << 20, f"{grown} bytes for 300 sessions"


def test_unregistered_while_a_session_lives() -> None:
    code = """
from qdqtool.runtime.provider import REGISTRATION
made = session(context_model())
ort.unregister_execution_provider_library(REGISTRATION)
assert not [d for d in ort.get_ep_devices() if d.ep_name == PROVIDER]
assert equal(made.run(None, {"x": feed()}), mixed(feed()))
del made
gc.collect()
qdqtool.npu.register()
assert equal(session(context_model()).run(None, {"x": feed()}), mixed(feed()))
print("ended well")
"""
    assert succeeds(python(START + code)).strip() == "ended well"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_process_runs_an_inherited_session() -> None:
    code = """
made = session(context_model())
made.run(None, {"x": feed()})
child = os.fork()
if not child:
    os._exit(0 if equal(made.run(None, {"x": feed(3)}), mixed(feed(3))) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert equal(made.run(None, {"x": feed(4)}), mixed(feed(4)))
print("ended well")
"""
    assert succeeds(python(START + code)).strip() == "ended well"


#: Pairs behind one another, of encodings that hold the same range only roughly.
PAIRS = """g (float[4000] x) => (float[4000] y)
<float a = {0.0456}, float b = {0.04189}, float c = {0.03447}, float d = {0.03863}, int8 za = {119}, int8 zb = {-128}, int8 zc = {-33}>
{ q1 = QuantizeLinear(x, a, za) f1 = DequantizeLinear(q1, a, za) q2 = QuantizeLinear(f1, b, zb) f2 = DequantizeLinear(q2, b, zb)
  q3 = QuantizeLinear(f2, c, zc) f3 = DequantizeLinear(q3, c, zc) r = Relu(f3)
  q4 = QuantizeLinear(r, d, zb) y = DequantizeLinear(q4, d, zb) }"""


#: With its optimizers on, onnxruntime 1.23 makes a QuantizeLinear of these that its own kernel refuses (axis 1 of one axis).
OPTIMIZED = pytest.param("the optimizer of pairs", marks=pytest.mark.newest)


@pytest.mark.parametrize("left_out", [OPTIMIZED, "all optimization"])
def test_what_onnxruntime_does_to_pairs_can_be_left_out(left_out: str) -> None:
    """By default it makes one pair, of another encoding, of two that follow each other, before the provider is asked."""
    model, x = model_of(PAIRS), np.linspace(-9, 9, 4000, dtype=np.float32)
    wanted = run_reference(
        model, {"x": x}, load_target("generic_int8").arithmetic, on_npu=lambda node: True, fallback=None
    )["y"]
    options = ort.SessionOptions()
    options.add_provider_for_devices(devices()[:1], {"target": "generic_int8"})
    more = {"disabled_optimizers": ["DoubleQDQPairsRemover"]}
    if left_out == "all optimization":
        options.graph_optimization_level, more = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, {}
    found = ort.InferenceSession(serialize(model).SerializeToString(), options, **more).run(None, {"x": x})
    assert equal(found, [wanted])
    opened = open_session(model, {"target": "generic_int8"}, optimize=left_out == "the optimizer of pairs")
    assert equal([opened.run({"x": x})["y"]], [wanted]) == (left_out == "all optimization")
