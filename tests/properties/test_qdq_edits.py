"""For all small graphs with pairs: edits of where pairs stand change no bit of any output, and leave a sound model."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes.graph.dump import dump
from qdq_passes.numerics.encoding import Encoding, integer_range
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.exact import Rounding, on_grid

from tests.dial import sized
from tests.golden.numerics import outputs_of
from tests.properties.graphs import DETERMINISTIC, parse
from tests.properties.qdq_graphs import qdq_texts

#: Edit → in how many of sixty graphs, or of as many in proportion, it must find something to do; else the property would say little.
EDITS = {
    "move-qdq": 24, "move-qdq{direction=up}": 15, "move-qdq{steps=1}": 24, "move-qdq{direction=up steps=2}": 15, "fold-qdq": 24,
    "share-qdq": 24, "dedicate-qdq": 24, "move-qdq{direction=up},move-qdq,fold-weight-qdq,fold-qdq": 24,
}  # fmt: skip


def run(text: str, pipeline: str, *, shapes: bool = True) -> tuple[ir.Model, list[str]]:
    """The model of ``text`` after the pipeline, verified after each pass, and what changed."""
    model = parse(text)
    if shapes:
        run_pipeline(model, "infer-shapes")
    report = run_pipeline(model, pipeline, hooks=[VerifyEach()])
    return model, [str(change) for change in report.changes if not change.is_skip]


def changed(before: ir.Model, after: ir.Model) -> list[str]:
    """Outputs that are not the same bit for bit."""
    old, new = outputs_of(before), outputs_of(after)
    assert list(old) == list(new)
    return [f"{name}: {old[name]} became {new[name]}" for name in old if old[name].tobytes() != new[name].tobytes()]


@pytest.mark.parametrize("edit", EDITS)
def test_outputs_stay_bit_for_bit(edit: str) -> None:
    """In onnxruntime with optimization disabled; and a second run finds nothing to do."""
    acted: Counter[bool] = Counter()

    graphs = sized(60, 15)

    @settings(DETERMINISTIC, max_examples=graphs)
    @given(qdq_texts(), st.booleans())
    def property_of(text: str, shapes: bool) -> None:
        model, changes = run(text, edit, shapes=shapes)
        acted[bool(changes)] += 1
        found = changed(parse(text), model)
        assert not found, f"{found}\n{dump(model)}"
        if "steps" not in edit:
            before = dump(model)
            report = run_pipeline(model, edit.split(",")[-1])
            assert not report.modified, [str(change) for change in report.changes]
            assert dump(model) == before

    property_of()
    assert acted[True] * 60 >= EDITS[edit] * graphs, acted


@pytest.mark.parametrize("parameters", ["own", "shared"])
@DETERMINISTIC
@given(text=qdq_texts())
def test_share_undoes_dedicate(parameters: str, text: str) -> None:
    """What share-qdq has made one, dedicate-qdq takes apart and share-qdq makes one again: the same text, names included."""
    shared, _ = run(text, "share-qdq,fold-qdq")
    again, _ = run(text, f"share-qdq,fold-qdq,dedicate-qdq{{parameters={parameters}}},share-qdq")
    assert dump(again) == dump(shared)


@DETERMINISTIC
@given(text=qdq_texts())
def test_every_consumer_has_its_pair(text: str) -> None:
    model, _ = run(text, "dedicate-qdq")
    for node in model.graph:
        if node.op_type == "DequantizeLinear":
            consumers = {use.node for use in node.outputs[0].uses()}
            assert len(consumers) + node.outputs[0].is_graph_output() <= 1, dump(model)
        if node.op_type == "QuantizeLinear":
            assert len(node.outputs[0].uses()) <= 1, dump(model)


@DETERMINISTIC
@given(
    text=qdq_texts(
        ("Add", "GlobalAveragePool", "Sigmoid", "Resize", "Pad", "Clip", "Max", "Reduce", "Concat", "Transpose")
    ),
    direction=st.sampled_from(["up", "down"]),
)
def test_approximate_moves_leave_a_model_that_runs(text: str, direction: str) -> None:
    model, _ = run(text, f"move-qdq{{direction={direction} allow-approximate=true}}")
    before, after = outputs_of(parse(text)), outputs_of(model)
    assert {name: (a.dtype, a.shape) for name, a in after.items()} == {
        name: (a.dtype, a.shape) for name, a in before.items()
    }


@st.composite
def roundings(draw: st.DrawFn) -> Rounding:
    """Any per-tensor rounding to integers: every scale of the float type that is positive and finite."""
    float_type = draw(st.sampled_from([ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16]))
    dtype = ir.DataType[draw(st.sampled_from(["INT8", "UINT8", "INT4", "INT16", "UINT16"]))]
    low, high = integer_range(dtype, symmetric=False)
    exponent, mantissa = draw(st.integers(-160, 130)), draw(st.floats(1, 2, width=32, exclude_max=True))
    with np.errstate(over="ignore"):
        scale = float(np.clip(mantissa * 2.0**exponent, 2.0**-149, 3e38).astype(float_type.numpy()))
    if not 0 < scale < np.inf:
        scale = 0.5
    encoding = Encoding.per_tensor(dtype, scale, draw(st.integers(low, high)))
    return Rounding(encoding, float_type, "", ())


@DETERMINISTIC
@given(roundings())
def test_integers_come_back_exactly_if_it_is_claimed(rounding: Rounding) -> None:
    """`Rounding.is_idempotent` follows a proof for float32; here every integer of the type is tried."""
    encoding = rounding.encoding
    low, high = integer_range(encoding.dtype, symmetric=False)
    integers = np.arange(low, high + 1).astype(encoding.dtype.numpy())
    with np.errstate(over="ignore"):
        back = quantize(dequantize(integers, encoding, rounding.float_type.numpy()), encoding)
    assert rounding.is_idempotent == bool(np.array_equal(back.astype(np.int64), integers.astype(np.int64)))


@DETERMINISTIC
@given(rounding=roundings(), seed=st.integers(0, 2**16))
def test_rounding_keeps_order_and_zero(rounding: Rounding, seed: int) -> None:
    """What `qdq_commute` builds on: F does not decrease, F(±0) = +0, and what `on_grid` says of a number beyond the grid."""
    dtype = rounding.float_type.numpy()
    low, high = integer_range(rounding.encoding.dtype, symmetric=False)
    reach = rounding.encoding.scale[0] * (high - low)
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.sort((np.random.default_rng(seed).uniform(-1.5, 1.5, 500) * reach).astype(dtype))
        rounded = rounding.apply(np.concatenate([[-np.inf], x, [np.inf]]).astype(dtype)).astype(np.float64)
        zeros = rounding.apply(np.array([0.0, -0.0], dtype))
        assert (np.diff(rounded) >= 0).all() or np.isinf(rounded).any()
        assert zeros.tobytes() == np.zeros(2, dtype).tobytes()
        for c in x[::50]:
            for choose, beyond in ((np.maximum, "below"), (np.minimum, "above")):
                if on_grid(np.array(c), rounding, rank=1, beyond=beyond):
                    one, other = rounding.apply(choose(x, c)), choose(rounding.apply(x), c)
                    assert one.tobytes() == other.tobytes()
