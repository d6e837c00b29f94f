"""Cumulative comparison: what is matched with what, and the figures of outputs, tensors and slices."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, UsageError

from qdqtool.comparison.cumulative import compare_models
from qdqtool.comparison.turns import turns_of
from qdqtool.io.feeds.feeds import input_specs, open_feeds
from qdqtool.runtime.taps import Taps
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

Array = npt.NDArray[Any]

FLOAT = "g (float[N,2] x) => (float[N,2] y) { h = Relu(x)  y = Neg(h) }"
QUANTIZED = """g (float[N,2] x) => (float[N,2] y) <float s = {0.5}, int8 z = {0}> {
    h = Relu(x)
    q = QuantizeLinear(h, s, z)
    d = DequantizeLinear(q, s, z)
    y = Neg(d)
}"""
X = np.array([[1.0, -1.0], [0.75, 3.2]], np.float32)


def feeds(*, x: Array = X) -> list[dict[str, Array]]:
    return [{"x": row[np.newaxis]} for row in x]


def test_a_model_agrees_with_itself() -> None:
    found = compare_models(model(FLOAT), model(FLOAT), feeds())
    assert found.min_sqnr is None
    assert found.outputs[0].agreement.is_exact
    assert [t.name for t in found.tensors] == ["h"]
    assert found.warnings == ()


def test_a_quantized_tensor_is_compared_as_its_consumers_see_it() -> None:
    found = compare_models(model(FLOAT), model(QUANTIZED), feeds())
    (h,) = found.tensors
    assert h.name == "h"
    assert h.agreement.max_abs == pytest.approx(0.25)  # 0.75 → 1.0: half to even
    assert h.agreement.lsb == pytest.approx(0.5)
    assert (
        h.agreement.sqnr_db
        == found.min_sqnr
        == pytest.approx(10 * np.log10((1 + 0.75**2 + 3.2**2) / (0.25**2 + 0.2**2)))
    )
    assert found.samples == 2


def test_json_has_the_keys_of_the_contract() -> None:
    data = compare_models(model(FLOAT), model(QUANTIZED), feeds(), per_slice=1).to_json()
    json.dumps(data, allow_nan=False)
    assert set(data["outputs"]["y"]) == {"sqnr_db", "max_abs", "cosine", "exact", "slices"}
    assert {"name", "sqnr_db", "max_abs", "cosine", "exact", "lsb", "node", "slices"} == set(data["tensors"][0])
    assert [s["index"] for s in data["outputs"]["y"]["slices"]] == [0, 1]


def test_tensors_come_worst_first_and_can_be_chosen() -> None:
    float_text = "g (float[2] x) => (float[2] y) { b = Neg(x)  a = Mul(b, b)  y = Relu(a) }"
    other = float_text.replace("Neg(x)", "Neg(x2)").replace("{ b", "{ t = Round(x) x2 = Max(x, t) b")
    x = [{"x": np.array([0.6, 2.0], np.float32)}]
    found = compare_models(model(float_text), model(other), x)
    assert [t.name for t in found.tensors] == ["b", "a"]
    assert [t.name for t in compare_models(model(float_text), model(other), x, tensors=["a"]).tensors] == ["a"]
    assert compare_models(model(float_text), model(other), x, tensors=[]).tensors == ()
    with refusal(UsageError):
        compare_models(model(float_text), model(other), x, tensors=["zz"])


def test_a_quantized_input_is_compared_too() -> None:
    quantized = """g (float[N,2] x) => (float[N,2] y) <float s = {0.5}, int8 z = {0}> {
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  h = Relu(d)  y = Neg(h) }"""
    found = compare_models(model(FLOAT), model(quantized), feeds())
    assert {t.name for t in found.tensors} == {"x", "h"}


def test_names_that_differ_are_matched_by_position_with_a_warning() -> None:
    other = model("g (float[N,2] u) => (float[N,2] v) { h = Relu(u)  v = Neg(h) }")
    found = compare_models(model(FLOAT), other, feeds())
    assert [o.name for o in found.outputs] == ["y"]
    assert found.warnings == (
        "inputs are matched by position: x with u",
        "outputs are matched by position: y with v",
    )


def test_models_that_do_not_match_are_refused() -> None:
    two = model("g (float[N,2] x) => (float[N,2] y, float[N,2] z) { y = Relu(x)  z = Neg(x) }")
    with refusal(UsageError):
        compare_models(model(FLOAT), two, feeds())
    turned = model("g (float[N,2] x) => (float y) { h = Relu(x)  y = Transpose(h) }")
    with refusal(ModelError):
        compare_models(model(FLOAT), turned, feeds())
    with refusal(UsageError):
        compare_models(model(FLOAT), model(FLOAT), [])


def test_an_inner_tensor_of_another_shape_is_left_out_with_a_warning() -> None:
    a = model("g (float[1,2] x) => (float[1,2] y) { h = Relu(x)  y = Neg(h) }")
    b = model("g (float[1,2] x) => (float[1,2] y) { h = Transpose(x)  t = Transpose(h)  r = Relu(t)  y = Neg(r) }")
    found = compare_models(a, b, [{"x": X[:1]}])
    assert found.min_sqnr is None
    assert found.tensors == ()
    assert found.warnings == ("not compared: tensor 'h': shape [1, 2] in A, [2, 1] in B",)


def counting(outputs: str, op: str) -> ir.Model:
    """A model whose output ``z`` has as many elements as the largest value says."""
    text = "g (float[4] x) => (float[M] %s) <float o = {0}, float i = {1}> { y = %s(x)  m = ReduceMax<keepdims=0>(y)  z = Range(o, m, i) }"
    return model(text % (outputs, op))


def test_outputs_of_which_the_values_say_how_many_are_left_out_with_a_warning() -> None:
    a, b = counting("z, float[4] y", "Relu"), counting("z, float[4] y", "Neg")
    found = compare_models(a, b, [{"x": np.float32([1, 2, 3, -4])}], tensors=[])
    assert [output.name for output in found.outputs] == ["y"]
    assert found.warnings == ("not compared: output 'z': shape [3] in A, [4] in B",)
    assert found.uncompared == (("z", "output 'z': shape [3] in A, [4] in B"),)


def test_where_nothing_is_left_to_compare_that_is_an_error() -> None:
    a, b = counting("z", "Relu"), counting("z", "Neg")
    samples = [{"x": np.float32([1, 2, 3, -4])}]
    with refusal(ModelError):
        compare_models(a, b, samples)
    assert compare_models(a, b, samples, outputs_matter=False).outputs == ()


SELECTING = {
    "int64[1] y": "y = ArgMax<keepdims=0, axis=1>(h)",
    "int64[1,1] y": "v, y = TopK<axis=1>(h, k)",
    "float[1,1] y": "v, y0 = TopK<axis=1>(h, k)  y = GatherElements<axis=1>(h, y0)",
    "int64[2,M] y": "y = NonZero(h)",
    "float[1,M] y": "c = Greater(h, half)  d = Squeeze(c)  y = Compress<axis=1>(h, d)",
}


@pytest.mark.parametrize("output", SELECTING)
def test_an_order_or_an_index_is_compared_before_what_selects(output: str) -> None:
    """Between 0.9 and 1.0 lies less than a step: the index turns, and the scores agree within that."""
    text = f"g (float[1,3] x) => ({output}) <int64[1] k = {{1}}, float half = {{0.5}}, float s = {{0.5}}, int8 z = {{0}}> {{ %s {SELECTING[output]} }}"
    a = model(text % "h = Neg(x)")
    b = model(text % "n = Neg(x)  q = QuantizeLinear(n, s, z)  h = DequantizeLinear(q, s, z)")
    (found,) = compare_models(a, b, [{"x": np.float32([[-0.9, -1.1, 0.2]])}], tensors=[]).outputs
    assert (found.name, found.compared_at) == ("y", "h")
    assert found.agreement.sqnr_db == pytest.approx(10 * np.log10((0.81 + 1.21 + 0.04) / (0.01 + 0.01 + 0.04)))


def test_what_is_computed_from_a_selection_is_compared_as_it_is() -> None:
    text = "g (float[1,3] x) => (float[1,1] y) <int64[1] k = {1}, float[1,1] w = {2}> { v, i = TopK<axis=1>(x, k)  y = MatMul(v, w) }"
    (found,) = compare_models(model(text), model(text), [{"x": np.float32([[1, 2, 3]])}]).outputs
    assert found.compared_at == ""


def test_an_output_without_elements_is_not_compared() -> None:
    text = "g (float[4] x) => (float[M] z) <float o = {0}, float i = {1}> { m = ReduceMax<keepdims=0>(x)  z = Range(o, m, i) }"
    found = compare_models(model(text), model(text), [{"x": np.float32([-1, -2, -3, -4])}], outputs_matter=False)
    assert (found.outputs, found.uncompared) == ((), (("z", "output 'z' has no elements"),))


@pytest.mark.parametrize(("reader", "is_exact"), [("Relu(h)", True), ("Clip(h, o, i)", True), ("Neg(h)", False)])
def test_what_the_readers_of_a_tensor_cut_off_is_no_difference(reader: str, is_exact: bool) -> None:
    """Of a range that was narrowed for its Relu, all that is lost would be cut off by that."""
    start = "g (float[3] x) => (float[3] y) <float o = {0}, float i = {4}, float s = {0.5}, uint8 z = {0}> "
    a = model(f"{start} {{ h = Neg(x)  y = {reader} }}")
    b = model(f"{start} {{ f = Neg(x)  q = QuantizeLinear(f, s, z)  h = DequantizeLinear(q, s, z)  y = {reader} }}")
    (found,) = compare_models(a, b, [{"x": np.float32([3, -1, -2])}]).tensors
    assert (found.name, found.agreement.is_exact) == ("h", is_exact)


def test_slices_of_an_axis_whose_length_changes_are_left_out() -> None:
    found = compare_models(model(FLOAT), model(QUANTIZED), [{"x": X}, {"x": X[:1]}], per_slice=0, tensors=[])
    assert found.outputs[0].slices == ()
    assert "output 'y' has no slices" in found.warnings[0]


def test_progress_knows_the_count_of_feeds() -> None:
    a = model(FLOAT)
    seen: list[tuple[int, int | None]] = []
    data = open_feeds("random:2:7", input_specs(a))
    found = compare_models(a, model(QUANTIZED), data, progress=lambda done, total: seen.append((done, total)))
    assert found.warnings == ()  # those of the data stay with the feeds
    assert "random data" in data.warnings[0]
    assert seen == [(1, 2), (2, 2)]


MASKED = """g (float[N,4] x, bool[N,4] seen) => (float[N,4] y)
<float zero = {{0}}, float lowest = {{{lowest}}}, float amount = {{{amount}}}> {{
    s = Neg(x)
    m = Where(seen, zero, lowest)
    a = Add(s, m)
    f = Add(a, amount)
    y = Softmax(f)
}}"""


def masked(lowest: str, amount: str = "0") -> ir.Model:
    return model(MASKED.format(lowest=lowest, amount=amount))


def test_what_a_mask_hides_is_no_signal() -> None:
    feed = {"x": np.array([[1, 2, 3, -4]], np.float32), "seen": np.array([[True, True, False, True]])}
    found = {t.name: t.agreement for t in compare_models(masked("-3.4e38"), masked("-32"), [feed]).tensors}
    assert all(found[name].is_exact for name in ("s", "m", "a", "f"))
    moved = {t.name: t.agreement for t in compare_models(masked("-inf"), masked("-32", "0.5"), [feed]).tensors}
    assert moved["f"].sqnr_db == pytest.approx(10 * np.log10((1 + 4 + 16) / (3 * 0.25)))
    assert moved["f"].max_abs == 0.5


def test_what_is_hidden_in_one_model_alone_is_noise() -> None:
    """3 + 4 is above all scores that are seen: the other model does not hide it."""
    feed = {"x": np.array([[1, 2, 3, -4]], np.float32), "seen": np.array([[True, True, False, True]])}
    (worst, *_) = compare_models(masked("-1e9"), masked("4"), [feed]).tensors
    assert worst.name in ("m", "a", "f")
    assert worst.agreement.sqnr_db is not None
    assert worst.agreement.sqnr_db < 1


BIASED = """g (float[N,3] x) => (float[N,3] y) <float[3] amount = {{{amount}}}> {{
    s = Add(x, amount)
    y = Softmax(s)
}}"""


@pytest.mark.parametrize("scores", [[0, 20, 40], [0, 0, 40]], ids=["nothing lies apart", "a bias is no mask"])
def test_scores_without_a_mask_are_signal(scores: list[float]) -> None:
    a, b = model(BIASED.format(amount="0, 0, 0")), model(BIASED.format(amount="1, 1, 1"))
    (found,) = compare_models(a, b, [{"x": np.array([scores], np.float32)}]).tensors
    assert found.agreement.sqnr_db == pytest.approx(10 * np.log10(sum(s * s for s in scores) / 3))


def test_a_mask_of_a_hundred_hides() -> None:
    text = "g (float[N,2] x) => (float[N,2] y) <float[2,2] mask = {{0, {low}, 0, 0}}> {{ s = Add(x, mask) y = Softmax(s) }}"
    a, b = model(text.format(low="-100")), model(text.format(low="-16"))
    (found,) = compare_models(a, b, [{"x": np.array([[1, 2], [3, 4]], np.float32)}]).tensors
    assert found.agreement.is_exact


def test_what_does_not_fit_into_memory_is_compared_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same figures, from feeds that can be read once, with few values held at a time."""
    whole = compare_models(model(FLOAT), model(QUANTIZED), feeds(), per_slice=1).to_json()
    held: list[list[str]] = []

    class Counted(Taps):
        def __init__(self, given: ir.Model, tensors: Iterable[str], **options: Any) -> None:
            super().__init__(given, tensors, **options)
            held.append([*self.names])

    monkeypatch.setattr("qdqtool.comparison.turns.HELD", 1)
    monkeypatch.setattr("qdqtool.comparison.cumulative.Taps", Counted)
    ticks: list[tuple[int, int | None]] = []
    found = compare_models(
        model(FLOAT), model(QUANTIZED), iter(feeds()), per_slice=1, progress=lambda *at: ticks.append(at)
    )
    assert found.to_json() == whole
    assert held == [["y"], ["y"], ["h"], ["d"]]
    assert ticks == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("shape", "wanted"), [(["N", 4], [range(2), range(2, 3)]), ([1, 4], [range(3)]), ([None, 4], [range(3)])]
)
def test_symbolic_sizes_are_those_of_the_samples(
    shape: list[Any], wanted: list[range], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = model("g (float[N,4] x) => (float[N,4] c) { a = Relu(x)  b = Neg(a)  c = Neg(b) }")
    for value in [v for node in graph.graph for v in node.outputs]:
        value.shape = ir.Shape(shape)
    monkeypatch.setattr("qdqtool.comparison.turns.HELD", 4 * 4 * 8 * 2 * 2)
    names = [(name, name) for name in "abc"]
    assert turns_of(names, (graph, graph), {"x": np.zeros((8, 4), np.float32)}) == wanted
