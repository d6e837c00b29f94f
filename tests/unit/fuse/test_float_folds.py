"""Simplifications of the float graph: exact weights, names, order and what several passes make together."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper
from qdq_passes.graph.annotate import DEMAND, Demand
from qdq_passes.graph.uses import all_nodes
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.pipeline.pipeline import parse_pipeline, run_pipeline

from qdqtool.io.models.load import model_of
from tests.cases.small_models import model
from tests.golden.numerics import differences, outputs_of

Floats = npt.NDArray[np.float32]

#: One round of folding into layers; a chain of n nodes needs at most n rounds.
ROUND = "fold-batch-norm,fold-scale,fold-shift"
REFERENCE = "fold-batch-norm{precision=float32 reference=true},fold-scale{reference=true},fold-shift{reference=true}"
BEFORE = "infer-shapes,remove-no-ops{identities=true},remove-unused"
BEHIND = "fuse-matmul-add,merge-concats,fold-pad,remove-unused"
SIMPLIFY = f"{BEFORE},{ROUND},{ROUND},{ROUND},{BEHIND}"


def build(
    nodes: Sequence[NodeProto], constants: Mapping[str, object], inputs: Mapping[str, list[int]], outputs: Sequence[str]
) -> ir.Model:
    """A model with named nodes and inferred outputs."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return model_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def stored(graph: ir.Model, name: str) -> Floats:
    tensor = graph.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_float32_is_float32_in_every_step(kind: str, groups: int) -> None:
    """f = γ/√(var + ε), W·f and (B − μ)·f + β, each rounded to float32; float64 rounds once and differs somewhere."""
    random = np.random.default_rng(groups)
    channels, inputs = 8, 4
    shape = (channels, inputs // groups, 3, 3) if kind == "Conv" else (inputs, channels // groups, 3, 3)
    weight, bias = random.normal(size=shape).astype(np.float32), random.normal(size=channels).astype(np.float32)
    gamma, beta, mean = (random.normal(size=channels).astype(np.float32) for _ in range(3))
    variance = random.uniform(0.1, 2, channels).astype(np.float32)
    constants = {"w": weight, "b": bias, "gamma": gamma, "beta": beta, "mean": mean, "var": variance}
    nodes = [
        helper.make_node(kind, ["x", "w", "b"], ["t"], "layer", group=groups),
        helper.make_node("BatchNormalization", ["t", "gamma", "beta", "mean", "var"], ["y"], "bn", epsilon=0.001),
    ]
    factor = gamma / np.sqrt(variance + np.float32(0.001))
    assert factor.dtype == np.float32
    expected = np.empty_like(weight)
    for channel in range(channels):
        if kind == "Conv":
            expected[channel] = weight[channel] * factor[channel]
        else:
            group, place = divmod(channel, channels // groups)
            rows = slice(group * inputs // groups, (group + 1) * inputs // groups)
            expected[rows, place] = weight[rows, place] * factor[channel]
    results = {}
    for precision in ("float32", "float64"):
        folded = build(nodes, constants, {"x": [1, inputs, 5, 5]}, ["y"])
        run_pipeline(folded, f"fold-batch-norm{{precision={precision}}}")
        results[precision] = stored(folded, "y_weight"), stored(folded, "y_bias")
    np.testing.assert_array_equal(results["float32"][0], expected)
    np.testing.assert_array_equal(results["float32"][1], (bias - mean) * factor + beta)
    wide = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + float(np.float32(0.001)))
    np.testing.assert_array_equal(
        results["float64"][1], ((bias - mean.astype(np.float64)) * wide + beta).astype(np.float32)
    )
    assert (results["float32"][0] != results["float64"][0]).any()


CHAIN = """g (float[1,1,2,2] x) => (float[1,1,2,2] y)
<float[1,1,1,1] w = {2}, float[1] b = {1}, float[1] g = {3}, float[1] o = {1}, float[1] z = {0}, float k = {5}, float[1,1,1,1] s = {7}>
{ [conv] t0 = Conv(x, w, b) [a1] t1 = Add(t0, k) [m1] t2 = Mul(t1, s) [n1] t3 = BatchNormalization<epsilon: float = 0.0>(t2, g, z, z, o)
  [a2] t4 = Add(t3, s) [relu] y = Relu(t4) }"""


def test_a_chain_takes_as_many_rounds_as_it_needs() -> None:
    """((2x + 1 + 5)·7)·3 + 7 = 42x + 133; each fold names what it makes after the last node folded."""
    graph = model(CHAIN)
    run_pipeline(graph, ",".join([ROUND] * 3), hooks=[VerifyEach()])
    conv, relu = graph.graph
    assert [v.name for v in (*conv.inputs, conv.outputs[0]) if v is not None] == ["x", "t3_weight", "t4_bias", "t4"]
    assert (stored(graph, "t3_weight").item(), stored(graph, "t4_bias").item()) == (42, 133)
    assert sorted(graph.graph.initializers) == ["t3_weight", "t4_bias"]
    assert conv.name == "conv"
    assert relu.inputs[0] is conv.outputs[0]


def test_the_reference_calls_a_layer_like_its_former_output() -> None:
    """Of the chain it leaves the Add of a scalar alone, and with it what comes behind."""
    graph = model(CHAIN)
    run_pipeline(graph, REFERENCE)
    assert [node.name for node in graph.graph] == ["conv", "a1", "m1", "n1", "a2", "relu"]
    two = model(
        """g (float[1,1,1,1] x) => (float[1,2,1,1] y) <float[2,1,1,1] w = {1, 1}, float[1,2,1,1] k = {2, 3}, float[2] o = {1, 1}, float[2] z = {0, 0}>
        { [conv] t = Conv(x, w) [n] u = BatchNormalization(t, o, z, z, o) [m] v = Mul(u, k) [a] y = Add(v, k) }"""
    )
    run_pipeline(two, REFERENCE)
    assert [(node.name, node.outputs[0].name) for node in two.graph] == [("v", "y")]
    assert sorted(two.graph.initializers) == ["v_weight", "y_bias"]


def test_a_name_that_is_given_up_can_be_taken() -> None:
    """The old weight bears the name that the new one gets; a node has the name of the value that another is called after."""
    graph = model(
        """g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float[1,1,1,1] y_weight = {2}, float[1] o = {1}, float[1] z = {0}>
        { [u] t = Conv(x, y_weight) [bn] u = BatchNormalization<epsilon: float = 0.0>(t, o, z, z, o) [m] y = Mul(u, o) }"""
    )
    run_pipeline(graph, "fold-batch-norm{reference=true},fold-scale", hooks=[VerifyEach()])
    assert sorted(graph.graph.initializers) == ["y_bias", "y_weight"]
    assert [node.name for node in graph.graph] == ["t"]


def test_annotations_go_to_the_value_that_takes_the_name() -> None:
    graph = model(
        "g (float[2] x) => (float[2] y) <float one = {1}> { [e] t = Exp(x) [m] u = Mul(t, one) [i] v = Identity(u) [r] y = Relu(v) }"
    )
    DEMAND.set(graph.graph[2].outputs[0], Demand(("r",)))
    run_pipeline(graph, "remove-no-ops{names=removed identities=true}")
    value = graph.graph[0].outputs[0]
    assert value.name == "v"
    assert DEMAND.get(value) == Demand(("r",))


def test_the_last_of_two_removed_names_stays() -> None:
    """Two nodes pass on the same value: in one walk the order of the graph decides, in two passes the order of the passes."""
    text = """g (float[2] x) => (float[2] y, float[2] z) <float one = {1}>
    { [e] t = Exp(x) [m] u = Mul(t, one) [i] v = Identity(t) [r] y = Relu(u) [n] z = Neg(v) }"""
    names = {}
    for pipeline in (
        "remove-no-ops{names=removed identities=true}",
        "remove-identity{names=removed},remove-no-ops{names=removed}",
    ):
        graph = model(text)
        run_pipeline(graph, pipeline)
        names[pipeline] = graph.graph[0].outputs[0].name
    assert list(names.values()) == ["v", "u"]


def test_identity_passes_agree() -> None:
    """The pass over graphsurgeon's graph and the walk over ours remove the same nodes and leave the same names."""
    text = """g (bool c, float[2] x) => (float[2] y, float[2] z) <float[2] w = {1, 2}>
    { [i0] p = Identity(x) [e] t = Exp(p) [i1] u = Identity(t) [d] v = Dropout(u) [a] s = Add(v, u) [i2] y = Identity(s)
      [f] z = If(c) <then_branch = b () => (float[2] q) { [i3] k = Identity(v) [n] m = Neg(k) [i4] q = Identity(m) },
      else_branch = e () => (float[2] r) { [i5] r = Identity(w) }> }"""
    for names in ("producer", "removed"):
        written = []
        for name, options in (
            ("remove-identity", f"names={names}"),
            ("remove-no-ops", f"names={names} identities=true"),
        ):
            graph = model(text)
            run_pipeline(graph, f"{name}{{{options}}}")
            written.append(
                [(node.op_type, [v.name for v in (*node.inputs, *node.outputs) if v]) for node in all_nodes(graph)]
            )
        assert written[0] == written[1]


@pytest.mark.newest  # up to 1.23 an AveragePool of opset 11 divides by too much where ceil_mode adds a window
@pytest.mark.parametrize("op_type", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("opset", [11, 22])
def test_pads_of_pools_with_ceil_mode(op_type: str, opset: int) -> None:
    """For every small size, kernel and stride: folded or not, the pool gives the same, in shape as well."""
    folded = 0
    for pad, kernel, stride, size in itertools.product((1, 2), (2, 3, 4), (1, 2, 3), (3, 5, 6, 8)):
        text = f"""<ir_version: 8, opset_import: ["" : {opset}]> g (float[1,1,{size}] x) => (float[A,B,C] y) <int64[6] p = {{0, 0, {pad}, 0, 0, {pad}}}>
        {{ [r] a = Relu(x) [p] t = Pad(a, p) [q] y = {op_type}<kernel_shape: ints = [{kernel}], strides: ints = [{stride}], ceil_mode: int = 1>(t) }}"""
        before, graph = outputs_of(model(text)), model(text)
        report = run_pipeline(graph, "infer-shapes,fold-pad")
        folded += report.passes[-1].modified
        assert not differences(before, outputs_of(graph), [p.keeps for p in parse_pipeline("fold-pad").passes])
    assert 30 <= folded < 60, (
        "some fold, those with pads as large as the window and those with a window in the pads do not"
    )


class Design:
    """A seeded random network: chains behind layers, residuals, pads, joins, dense layers, nodes that change nothing."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, object] = {}

    def constant(self, *shape: int) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = self.random.uniform(0.5, 1.5, shape).astype(np.float32)
        return name

    def add(self, op_type: str, inputs: list[str], **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], f"n{len(self.nodes)}", **attributes))
        return name

    def choose(self, *choices: str) -> str:
        return str(self.random.choice(choices))

    def layer(self, x: str) -> str:
        """A layer of 4 channels and up to four nodes behind it."""
        groups = int(self.random.choice([1, 2]))
        inputs = [x, self.constant(4, 4 // groups, 1, 1), *([self.constant(4)] if self.random.random() < 0.5 else [])]
        x = self.add(self.choose("Conv", "ConvTranspose"), inputs, group=groups)
        for _ in range(self.random.integers(5)):
            kind = self.choose("norm", "Mul", "Add", "Identity")
            if kind == "norm":
                x = self.add("BatchNormalization", [x, *(self.constant(4) for _ in range(4))])
            elif kind == "Identity":
                x = self.add(kind, [x])
            else:
                operands = [x, self.constant(*([4, 1, 1] if self.random.random() < 0.7 else []))]
                x = self.add(kind, operands[:: self.random.choice([1, -1])])
        return x

    def build(self) -> ir.Model:
        x = "x"
        self.constants["pads"] = np.array([0, 0, 1, 1, 0, 0, 1, 1])
        for _ in range(6):
            kind = self.choose("layer", "layer", "residual", "pad", "join", "one")
            if kind == "residual":
                x = self.add("Add", [x, self.layer(x)])
            elif kind == "pad":
                pool = self.choose("AveragePool", "MaxPool")
                x = self.add(
                    pool, [self.add("Pad", [self.add(self.choose("Relu", "Neg"), [x]), "pads"])], kernel_shape=[3, 3]
                )
            elif kind == "join":
                inner = self.add("Concat", [self.layer(x), self.layer(x)], axis=1)
                norm = [self.constant(8) for _ in range(4)]
                inner = self.add("BatchNormalization", [inner, *norm]) if self.random.random() < 0.5 else inner
                x = self.add("Concat", [x, inner], axis=1)
                x = self.add("Conv", [x, self.constant(4, 12, 1, 1)])
            elif kind == "one":
                self.constants.setdefault("one", np.float32(1))
                x = self.add(self.choose("Mul", "Div"), [x, "one"])
            else:
                x = self.layer(x)
        shown = self.add("Relu", [x])
        flat = self.add("Flatten", [self.add("GlobalAveragePool", [x])])
        dense = self.add("Add", [self.add("MatMul", [flat, self.constant(4, 3)]), self.constant(3)])
        return build(self.nodes, self.constants, {"x": [1, 4, 4, 4]}, [shown, dense])


@pytest.mark.parametrize("seed", range(20))
def test_designs(seed: int) -> None:
    """Whatever is folded, the outputs stay within what the passes promise, and nothing is left to do."""
    graph = Design(seed).build()
    before = outputs_of(graph)
    run_pipeline(graph, SIMPLIFY, hooks=[VerifyEach()])
    assert not differences(before, outputs_of(graph), [p.keeps for p in parse_pipeline(SIMPLIFY).passes])
    kinds = [node.op_type for node in all_nodes(graph)]
    assert not {"MatMul", "Identity", "Div"} & set(kinds)
    assert "Gemm" in kinds
    readers = [node for node in all_nodes(graph) if node.op_type in ("BatchNormalization", "Mul")]
    for node in readers:
        source = node.inputs[0].producer() if node.inputs[0] is not None else None
        assert (
            source is None
            or source.op_type not in ("Conv", "ConvTranspose", "Concat")
            or len(source.outputs[0].uses()) > 1
        )
    assert not run_pipeline(graph, SIMPLIFY).modified


def test_the_order_of_nodes_does_not_matter() -> None:
    graph = model(
        "g (float[1,1,1,1] x) => (float[1,1,1,1] y) <float[1,1,1,1] w = {2}, float k = {3}, float[1] o = {1}, float[1] z = {0}> "
        "{ [n] y = BatchNormalization(s, o, z, z, o) [m] s = Mul(t, k) [c] t = Conv(x, w) }"
    )
    run_pipeline(graph, ",".join([ROUND] * 2))
    assert [node.op_type for node in graph.graph] == ["Conv"]
