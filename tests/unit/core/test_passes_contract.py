"""The pass contract, and what passes do with inputs that ONNX text cannot write down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from qdq_passes import Change, Pass, run_pipeline, skip
from qdq_passes.core.base import EXACT, Keeps, is_modified
from qdq_passes.core.registry import PASSES
from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.graph.annotate import ORIGIN, Origin
from qdq_passes.graph.edit import Namer, new_constant, set_constant
from qdq_passes.graph.uses import all_nodes
from qdq_passes.numerics.encoding import Encoding

from tests.cases.small_decoders import decoder
from tests.cases.small_models import Observed, model
from tests.golden.fake_target import FakeTarget
from tests.golden_messages.refusal import refusal

DYNAMO = "['', 'model', 'model.layers.0', 'model.layers.0.conv', 'conv2d']"


@dataclass(frozen=True)
class CountNodes(Pass):
    """Says how many nodes there are."""

    keeps = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        for node in model.graph:
            yield skip(node, "only counted")


def test_a_pass_is_a_value() -> None:
    assert CountNodes.name() == "count-nodes"
    assert CountNodes() == CountNodes()
    with pytest.raises(FrozenInstanceError):
        CountNodes().extra = 1  # type: ignore[attr-defined]
    changes = CountNodes()(model("g (float[2] x) => (float[2] y) { [a] t = Relu(x) [b] y = Neg(t) }"))
    assert [str(change) for change in changes] == ["skip a: only counted", "skip b: only counted"]
    assert not is_modified(changes)
    assert is_modified([*changes, Change("edit", "a")])


def test_changes_read_well() -> None:
    assert str(Change("edit", "a")) == "edit a"
    assert str(Change("edit", "a", "because")) == "edit a: because"
    assert skip(ir.node("Relu", [], name=None), "why").where == "<unnamed>"
    assert skip("x", "why").is_skip
    assert Keeps("bounded", 0.5, "so").bound == 0.5


def test_a_pass_without_a_run() -> None:
    class Nothing(Pass):
        """Nothing."""

    with pytest.raises(NotImplementedError, match="Nothing has no run"):
        list(Nothing().run(model("g (float[2] x) => (float[2] y) { y = Relu(x) }")))


def with_weight(array: npt.NDArray[np.float32]) -> ir.Model:
    """x + w, w being ``array``."""
    graph = model("g (float[2] x) => (float[2] y) <float[2] w = {1,2}> { [add] y = Add(x, w) }")
    set_constant(graph.graph.initializers["w"], array)
    return graph


RANGES = {"ranges": {"x": Observed(-1, 1), "y": Observed(-1, 1)}}


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_weight_that_is_not_finite_stays_float(bad: float) -> None:
    weight = with_weight(np.array([1, bad], np.float32))
    report = run_pipeline(weight, "annotate-encodings{encodings=@ranges}", inputs=RANGES)
    assert "skip w: holds values that are not finite" in [str(change) for change in report.changes]


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_range_that_is_not_finite_is_named(bad: float) -> None:
    inputs = {"ranges": {"x": Observed(-1, bad), "y": Observed(-1, 1)}}
    with refusal(ModelError) as caught:
        run_pipeline(with_weight(np.ones(2, np.float32)), "annotate-encodings{encodings=@ranges}", inputs=inputs)
    assert "x" in str(caught.value).split(":")[0]


def test_an_empty_weight_has_an_encoding() -> None:
    graph = with_weight(np.zeros(0, np.float32))
    assert run_pipeline(graph, "annotate-encodings{encodings=@ranges},insert-qdq{weights=dq}", inputs=RANGES).modified


def test_a_cycle_cannot_be_sorted() -> None:
    graph = model("g (float[2] x) => (float[2] y) { [a] t = Add(x, x) [b] y = Neg(t) }")
    first, second = graph.graph
    first.replace_input_with(1, second.outputs[0])
    with refusal(ModelError):
        run_pipeline(graph, "sort")


def test_a_quantized_integer_constant_is_left_alone() -> None:
    """QuantizeLinear takes int32 too; its float scale must not be rounded to an integer on the way."""
    graph = model(
        """g (float[2] x) => (float[2] y) <int32[2] w = {3, -5}, float s = {0.5}, int8 z = {0}>
        { [q] i = QuantizeLinear(w, s, z) [dq] d = DequantizeLinear(i, s, z) [add] y = Add(x, d) }"""
    )
    run_pipeline(graph, "fold-weight-qdq")
    stored = graph.graph.initializers.get("w_quantized")
    if stored is not None:  # declining is fine as well
        assert stored.const_value is not None
        assert stored.const_value.numpy().tolist() == [6, -10]


def test_dynamo_scopes_are_inherited_by_pairs() -> None:
    """Exports of torch's dynamo keep the module path in metadata only; a pair belongs to its producer's module."""
    graph = model(
        "g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float[1,1,1,1] w = {2}> { [n0] t = Conv(x, w) [n1] y = Relu(t) }"
    )
    graph.graph[0].metadata_props["pkg.torch.onnx.name_scopes"] = DYNAMO
    graph.graph[0].metadata_props["pkg.torch.onnx.class_hierarchy"] = "['Model', 'Conv2d', 'aten.conv2d']"
    graph.graph[0].metadata_props["pkg.torch.onnx.fx_node"] = "%conv2d"
    run_pipeline(graph, 'insert-qdq{select=["tensor:t","tensor:w"] scale=0.5}')
    pairs = [
        node
        for node in all_nodes(graph)
        if node.op_type.endswith("QuantizeLinear") or node.op_type == "DequantizeLinear"
    ]
    assert len(pairs) == 4
    for node in pairs:
        assert node.metadata_props["pkg.torch.onnx.name_scopes"] == DYNAMO
        assert node.metadata_props["pkg.torch.onnx.class_hierarchy"].startswith("['Model'")
        assert "pkg.torch.onnx.fx_node" not in node.metadata_props
        assert ORIGIN.get(node) == Origin(("n0",))


def test_large_weights_are_not_read_to_be_skipped() -> None:
    """unshare-initializers compares sizes, it does not load what it leaves alone."""

    class Unreadable(ir.Tensor[npt.NDArray[np.float32]]):
        def numpy(self) -> npt.NDArray[np.float32]:
            raise AssertionError("was read")

        def tobytes(self) -> bytes:
            raise AssertionError("was read")

    graph = model("g (float[2] x) => (float[2] y) <float[2] w = {1,2}> { [a] t = Add(x, w) [b] y = Mul(t, w) }")
    large = np.zeros(2**19, np.float32)
    value = new_constant(graph.graph, Namer(graph), "large", Unreadable(large, name="large"))
    for node in graph.graph:
        node.replace_input_with(1, value)
    report = run_pipeline(graph, "unshare-initializers,give-names,sort")
    assert [str(change) for change in report.changes] == ["skip large: has 2097152 bytes, more than max-bytes=1048576"]


UNSORTED = "g (float[2] x) => (float[2] y) { [b] y = Neg(t) [a] t = Relu(x) }"


@pytest.mark.parametrize("name", PASSES.names())
def test_nodes_out_of_order(name: str) -> None:
    """`load` accepts nodes in any order: a pass works on them, or says in one line that sort comes first."""
    options = {
        "observe": "{data=@data runtime=@runtime}", "adjust-ranges": "{ranges=@ranges}", "annotate-kv-cache": "{ranges=@ranges}", "bound-attention-mask": "{ranges=@ranges}", "isolate-concats": "{ranges=@ranges}", "isolate-divisors": "{ranges=@ranges}",
        "annotate-encodings": "{encodings=@ranges}", "apply-encodings": "{encodings=@encodings}",
        "assign-targets": "{target=@target}", "convert-encodings": "{dtype=uint8}", "convert-opset": "{version=22}", "set-qdq": "{scale=0.25}",
    }  # fmt: skip
    options["requantize-constants"] = "{floats=@float}"
    options |= dict.fromkeys(
        ("correct-bias", "learn-rounding", "round-weights", "search-scales", "smooth-activations", "tune-weights"),
        "{statistics=@statistics}",
    )
    options |= {each: "{target=@target}" for each in PASSES.names() if each.startswith("lower-")}
    ranges = {
        "ranges": {value: Observed(-1, 1) for value in (*"xty", "past_key", "past_value")},
        "encodings": dict.fromkeys("xty", Encoding.per_tensor(ir.DataType.INT8, 0.5)),
        "target": FakeTarget(),
        "statistics": {},
        "float": {},
    }
    is_for_decoders = PASSES.load(name).__module__.startswith("qdq_passes.decoder.")
    message = ""
    try:
        report = run_pipeline(
            unsorted_decoder() if is_for_decoders else model(UNSORTED), name + options.get(name, ""), inputs=ranges
        )
    except (ModelError, UnsupportedError) as error:
        message = str(error)
    else:
        assert is_for_decoders or {node.name for node in report.model.graph} == {"a", "b"}
    first = ("sort", "bind-decoder") if is_for_decoders else ("sort",)
    assert message == "" or message.endswith(
        tuple(f"run {word}{each} first" for word in ("the pass ", "") for each in first)
    )
    assert "\n" not in message


def unsorted_decoder() -> ir.Model:
    """A decoder, its nodes in reversed order."""
    graph = decoder()
    nodes = list(graph.graph)
    graph.graph.remove(nodes)
    graph.graph.extend(reversed(nodes))
    return graph


def test_an_unsorted_model_is_copied_as_it_is() -> None:
    graph = model(UNSORTED)
    report = run_pipeline(graph, "give-names", copy=True)
    names = [[node.name for node in m.graph] for m in (graph, report.model, model(UNSORTED))]
    assert names[0] == names[1] == names[2]
    assert [v.name for n in report.model.graph for v in n.inputs] == [v.name for n in graph.graph for v in n.inputs]
    assert not {*report.model.graph} & {*graph.graph}
    run_pipeline(report.model, "sort")
    assert [node.name for node in report.model.graph] == names[0][::-1]


@pytest.mark.parametrize("opset", [13, 18])
def test_converting_keeps_scopes_and_annotations(opset: int) -> None:
    graph = model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[2] x) => (float[2] y) {{ [n] t = Relu(x) [m] y = Neg(t) }}'
    )
    for node in graph.graph:
        node.metadata_props["pkg.torch.onnx.name_scopes"] = DYNAMO
        ORIGIN.set(node, Origin(("source",)))
    run_pipeline(graph, "convert-opset{version=21}")
    assert [node.metadata_props.get("pkg.torch.onnx.name_scopes") for node in graph.graph] == [DYNAMO] * 2
    assert [ORIGIN.get(node) for node in graph.graph] == [Origin(("source",))] * 2
