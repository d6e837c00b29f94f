"""Which tensors get an encoding, and which, when it is chosen as the reference quantizer for NPU networks does.

The table is what was read in Quark 0.13 for its XINT8 configuration, one row per operator type and what is odd about it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from qdq_passes.core.base import Change
from qdq_passes.encode.annotate_encodings import is_inside_group
from qdq_passes.encode.edit.whole_groups import mark_group
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import DEMAND, ENCODING, FUSED, OBSERVED, SHARED, Fused, Observed, Shared
from qdq_passes.graph.uses import all_values, constant_array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.pairs import qdq_pairs

from qdqtool.io.models.load import model_of
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

DATA = Path(__file__).parents[2] / "data" / "xint8_parity"

OPS = (
    "ArgMax,Add,Mul,LeakyRelu,Sigmoid,GlobalAveragePool,Pad,Concat,Softmax,Conv,ConvTranspose,Gemm,MatMul,Relu,Clip,MaxPool,"
    "AveragePool,Reshape,Transpose,Squeeze,Unsqueeze,Resize,Split,Gather,Where,Tanh,Gelu,Erf,Div,Sub,Min,Max,ReduceMean,"
    "DepthToSpace,SpaceToDepth,Slice,PRelu,LpNormalization,HardSigmoid,InstanceNormalization,LayerNormalization,"
    "EmbedLayerNormalization,BatchNormalization"
)
COMPAT = (
    "annotate-encodings{encodings=@ranges rounding=nearest constants=%s sharing=[Reshape,Transpose,Squeeze,Unsqueeze,MaxPool,"
    f"Resize,Gather] share-constants=false followers=[Relu,Clip] hard-sigmoid=dpu batch-norm-parameters=true ops=[{OPS}]}}"
)
INSERT = "insert-qdq{weights=dq narrow=true}"

#: What an operator type does → graph, and what gets an encoding: name, ``:a`` for activations, ``:w``, ``:b``, ``=x`` as x.
TABLE = {
    "conv": ("g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float[1,1,1,1] w = {2}, float[1] b = {1}> { y = Conv(x, w, b) }", "x:a w:w b:b y:a"),
    "conv transpose": ("g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float[1,1,1,1] w = {2}, float[1] b = {1}> { y = ConvTranspose(x, w, b) }", "x:a w:w b:b y:a"),
    "gemm": ("g (float[1,2] x) => (float[1,1] y) <float[2,1] w = {2, 1}, float[1] b = {1}> { y = Gemm(x, w, b) }", "x:a w:w b:b y:a"),
    "gemm with a computed bias": ("g (float[1,2] x, float[1] b) => (float[1,1] y) <float[2,1] w = {2, 1}> { y = Gemm(x, w, b) }", "x:a w:w b:a y:a"),
    "matmul": ("g (float[2,2] x, float[2,2] z) => (float[2,2] y) { y = MatMul(x, z) }", "x:a z:a y:a"),
    "shared bias": ("g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float[1,1,1,1] w = {2}, float[1] b = {1}> { t = Conv(x, w, b) y = Conv(t, w, b) }", "x:a w:w b:b t:a y:a"),
    "add with a constant": ("g (float[2] x) => (float[2] y) <float c = {3}> { y = Add(c, x) }", "c:w x:a y:a"),
    "div, sub, min, max": ("g (float[2] x) => (float[2] y) <float c = {3}, float d = {2}> { t = Div(x, c) u = Sub(d, t) v = Min(u, c, x) y = Max(v, d) }",
                           "x:a c:w t:a d:w u:a v:a y:a"),
    "mul of a Constant node": ("g (float[2] x) => (float[2] y) { c = Constant<value_float: float = 2.0>() y = Mul(x, c) }", "x:a c:w y:a"),
    "relu on what nothing marked": ("g (float[2] x) => (float[2] y) { e = Exp(x) r = Relu(e) y = Sqrt(r) }", ""),
    "relu on a graph input": ("g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = Tanh(x) }", "x:a z:a"),
    "relu on what an earlier node marked": ("g (float[2] x) => (float[2] y, float[2] z) { z = Tanh(x) y = Relu(x) }", "x:a z:a y:a"),
    "clip": ("g (float[2] x) => (float[2] y, float[2] z) <float l = {-1}, float h = {1}> { t = Neg(x) u = Clip(t, l, h) z = Tanh(x) y = Clip(z, l, h) }",
             "x:a z:a y:a"),
    "flatten is not on the list": ("g (float[1,1,2,2] x) => (float[1,4] y) { t = GlobalAveragePool(x) u = Flatten(t) y = Flatten(x) }", "x:a t:a"),
    "flatten before a gemm": ("g (float[1,2] x) => (float[1,1] y) <float[2,1] w = {2, 1}> { t = Flatten(x) y = Gemm(t, w) }", "t:a w:w y:a"),
    "other operators": ("g (float[2] x) => (float[2] y) { a = Exp(x) b = Abs(a) c = Sqrt(b) d = Neg(c) e = HardSwish(d) y = Identity(e) }", ""),
    "chain of sharing": ("g (float[1,2] x) => (float[2,1] y) <int64[2] s = {2, 1}, int64[1] a = {0}> { t = Transpose(x) u = Unsqueeze(t, a) v = Squeeze(u, a) y = Reshape(v, s) }",
                         "x:a t=x u=x v=x y=x"),
    "max pool": ("g (float[1,1,2,2] x) => (float[1,1,1,1] y) { y, i = MaxPool<kernel_shape: ints = [2,2]>(x) }", "x:a y=x"),
    "average pool": ("g (float[1,1,2,2] x) => (float[1,1,1,1] y) { y = AveragePool<kernel_shape: ints = [2,2]>(x) }", "x:a y:a"),
    "resize": ("g (float[1,1,2,2] x) => (float[1,1,4,4] y) <float[4] s = {1, 1, 2, 2}> { y = Resize(x, , s) }", "x:a y=x"),
    "gather": ("g (float[4] x) => (float[2] y) <int64[2] i = {1, 0}> { y = Gather(x, i) }", "x:a y=x"),
    "gather of a constant": ("g (int64[2] i) => (float[2] y) <float[4] w = {1, 2, 3, 4}> { y = Gather(w, i) }", "w:w y:a"),
    "gather of integers": ("g (int64[4] x) => (int64[2] y) <int64[2] i = {1, 0}> { y = Gather(x, i) }", ""),
    "split, slice": ("g (float[4] x) => (float[2] p, float[2] q, float[1] y) <int64[2] s = {2, 2}, int64[1] z = {0}, int64[1] e = {1}> { p, q = Split<axis: int = 0>(x, s) y = Slice(q, z, e) }",
                     "x:a p:a q:a y:a"),
    "depth to space": ("g (float[1,4,1,1] x) => (float[1,4,1,1] y) { t = DepthToSpace<blocksize: int = 2>(x) y = SpaceToDepth<blocksize: int = 2>(t) }", "x:a t:a y:a"),
    "where": ("g (bool[2] c, float[2] x) => (float[2] y) <float w = {2}> { y = Where(c, x, w) }", "x:a w:w y:a"),
    "where on integers": ("g (bool[2] c, int64[2] x) => (int64[2] y) <int64 w = {2}> { y = Where(c, x, w) }", ""),
    "pad": ("g (float[2] x) => (float[3] y) <int64[2] p = {0, 1}, float v = {0.5}> { y = Pad(x, p, v) }", "x:a v:w y:a"),
    "prelu": ("g (float[2] x) => (float[2] y) <float[2] s = {0.1, 0.2}> { y = PRelu(x, s) }", "x:a s:w y:a"),
    "leaky relu": ("g (float[2] x) => (float[2] y) { y = LeakyRelu(x) }", "x:a y:a"),
    "hard sigmoid": ("g (float[2] x) => (float[2] y, float[2] z) { y = HardSigmoid<alpha: float = 0.16666667, beta: float = 0.5>(x) z = HardSigmoid(y) }", "x:a y:a"),
    "softmax": ("g (float[2] x) => (float[2] y) { y = Softmax(x) }", "x:a y:a"),
    "argmax": ("g (float[2,2] x) => (int64[1,2] y) { y = ArgMax(x) }", "x:a"),
    "argmax without types": ("g (float[2,2] x) => (float[1,2] y) { t = ArgMax(x) y = Cast<to: int = 1>(t) }", "x:a"),
    "layer norm": ("g (float[2,2] x) => (float[2,2] y) <float[2] s = {1, 2}, float[2] b = {0, 1}> { y, m, d = LayerNormalization(x, s, b) }", "x:a s:w b:b y:a"),
    "instance norm": ("g (float[1,2,2] x) => (float[1,2,2] y) <float[2] s = {1, 2}, float[2] b = {0, 1}> { y = InstanceNormalization(x, s, b) }", "x:a s:w b:w y:a"),
    "batch norm": ("g (float[1,1] x) => (float[1,1] y) <float[1] s = {1}, float[1] b = {0}, float[1] m = {0}, float[1] v = {2}> { y = BatchNormalization(x, s, b, m, v) }",
                   "x:a s:w b:w m:w v:w y:a"),
    "lp norm": ("g (float[2] x) => (float[2] y) { y = LpNormalization(x) }", "x:a y:a"),
    "reduce mean": ("g (float[2,2] x) => (float[2,1] y) <int64[1] a = {1}> { y = ReduceMean(x, a) }", "x:a y:a"),
    "erf, tanh, gelu, sigmoid": ("g (float[2] x) => (float[2] y) { a = Erf(x) b = Tanh(a) c = Gelu(b) y = Sigmoid(c) }", "x:a a:a b:a c:a y:a"),
    "concat": ("g (float[2] x, float[2] z) => (float[6] y) <float[2] w = {1, 2}> { y = Concat<axis: int = 0>(x, w, z) }", "x:a w:w z:a y:a"),
    "an output that is read": ("g (float[2] x) => (float[2] t, float[2] y) { t = Tanh(x) y = Relu(t) }", "x:a t:a y:a"),
}  # fmt: skip


@dataclass(frozen=True)
class Range:
    low: float
    high: float


def ranges(graph: ir.Model, low: float = -1.0, high: float = 1.0) -> dict[str, Range]:
    return {value.name or "": Range(low, high) for value in all_values(graph)}


def compat(graph: ir.Model, constants: str = "minmse", *more: str) -> list[Change]:
    pipeline = ",".join((COMPAT % constants, *more))
    return run_pipeline(graph, pipeline, inputs={"ranges": ranges(graph)}, hooks=[VerifyEach()]).changes


def input_names(node: ir.Node) -> list[str | None]:
    return [None if value is None else value.name for value in node.inputs]


def told(change: Change) -> str:
    """``x:a``, or ``y=x`` where it shares."""
    return f"{change.where}={{}}" if change.because.startswith("shares") else f"{change.where}:{change.because[0]}"


@pytest.mark.parametrize("name", TABLE)
def test_tensors_of_each_operator(name: str) -> None:
    text, expected = TABLE[name]
    graph = model(text)
    changes = [change for change in compat(graph) if change.kind == "annotate"]
    roots = {value.name: mark.of for value in all_values(graph) if (mark := SHARED.get(value)) is not None}
    assert " ".join(told(c).format(roots.get(c.where)) for c in changes) == expected
    assert {value.name for value in all_values(graph) if ENCODING.get(value)} == {c.where for c in changes}


def test_every_operator_of_the_list_is_in_the_table() -> None:
    """But those of other domains, which no row of ONNX text can type."""
    tried = {node.op_type for text, _ in TABLE.values() for node in model(text).graph}
    assert set(OPS.split(",")) - tried == {"EmbedLayerNormalization"}


def test_one_bias_of_several_layers_is_stored_once() -> None:
    graph = model(TABLE["shared bias"][0])
    compat(graph, "minmse", INSERT)
    readers = [dq for dq in graph.graph if dq.op_type == "DequantizeLinear" and input_names(dq)[0] == "b_quantized"]
    assert len(readers) == 1
    assert [input_names(node)[2] for node in graph.graph if node.op_type == "Conv"] == ["b_DequantizeLinear_Output"] * 2


@pytest.mark.parametrize(("constants", "method"), [("minmse", "minmse"), ("range", "nonoverflow")])
@pytest.mark.parametrize("name", ["c", "d", "n", "o"])
def test_stored_integers_are_those_of_the_reference(name: str, constants: str, method: str) -> None:
    """Of every weight and bias that the file has as it is quantized. The reference's positions may have moved since, not these."""
    graph = model_of(onnx.load(DATA / f"{name}.onnx"))
    run_pipeline(graph, "infer-shapes")
    compat(graph, constants, INSERT)
    stored = {pair.tensor: pair.stored for pair in qdq_pairs(graph) if pair.stored is not None}
    expected = json.loads((DATA / f"{name}.{method}.json").read_text())["parameters"]
    known = [tensor for tensor in expected if tensor in stored]
    assert len(known) >= 3
    for tensor in known:
        integers = constant_array(stored[tensor])
        assert integers is not None
        assert hashlib.sha256(integers.tobytes()).hexdigest() == expected[tensor]["int8_sha256"], tensor


def test_a_source_that_stands_later_in_the_file_is_shared_all_the_same() -> None:
    graph = model("g (float[1,2] x) => (float[2,1] y) { [b] y = Transpose(t) [a] t = Tanh(x) }")
    inputs = {"ranges": {**ranges(graph), "t": Range(-5, 5)}}
    run_pipeline(graph, "annotate-encodings{encodings=@ranges}", inputs=inputs)
    values = {value.name: value for value in all_values(graph)}
    assert SHARED.get(values["y"]) == Shared("t")
    assert ENCODING.get(values["y"]) == ENCODING.get(values["t"]) == Encoding.per_tensor(ir.DataType.INT8, 2.0**-4)


def test_sharing_is_forgotten_when_chosen_anew() -> None:
    graph = model("g (float[1,2] x) => (float[2,1] y) { [a] y = Transpose(x) }")
    output = graph.graph.outputs[0]
    run_pipeline(graph, "annotate-encodings{encodings=@ranges}", inputs={"ranges": ranges(graph)})
    assert SHARED.get(output) == Shared("x")
    own = {"ranges": {**ranges(graph), "y": Encoding.per_tensor(ir.DataType.INT8, 0.5)}}
    run_pipeline(graph, "annotate-encodings{encodings=@ranges}", inputs=own)
    assert SHARED.get(output) is None
    assert ENCODING.get(output) == Encoding.per_tensor(ir.DataType.INT8, 0.5)


@pytest.mark.parametrize("source", ["scale", "type", "no pair"])
def test_parameters_are_shared_only_where_they_say_the_same(source: str) -> None:
    """An encoding that was changed since, or a root without a pair, leaves a value its own scale and zero point."""
    graph = model("g (float[1,2] x) => (float[2,1] y) { [a] t = Tanh(x) [b] y = Transpose(t) }")
    run_pipeline(graph, "annotate-encodings{encodings=@ranges}", inputs={"ranges": ranges(graph)})
    root = graph.graph[0].outputs[0]
    if source == "no pair":
        ENCODING.clear(root)
    else:
        scale, dtype = (0.5, ir.DataType.INT8) if source == "scale" else (2.0**-6, ir.DataType.INT16)
        ENCODING.set(root, Encoding.per_tensor(dtype, scale))
    run_pipeline(graph, "insert-qdq", hooks=[VerifyEach()])
    quantizers = {input_names(node)[0]: input_names(node) for node in graph.graph if node.op_type == "QuantizeLinear"}
    assert quantizers["y_QuantizeLinear_Input"][1:] == ["y_scale", "y_zero_point"]
    assert ("t" in quantizers) == (source != "no pair")


def test_insertion_takes_what_it_used_off() -> None:
    graph = model("g (float[1,2] x) => (float[2,1] y) { [b] y = Transpose(x) }")
    OBSERVED.set(graph.graph.inputs[0], Observed(-2, 2))
    run_pipeline(graph, "annotate-encodings{encodings=@ranges},insert-qdq", inputs={"ranges": {}})
    assert not [v for v in all_values(graph) for a in (ENCODING, SHARED, OBSERVED) if a.get(v) is not None]


def test_moving_one_shared_scale_moves_all() -> None:
    """All pairs of a chain read one initializer."""
    graph = model(TABLE["chain of sharing"][0])
    compat(graph, "range", INSERT)
    scales = {id(node.inputs[1]) for node in graph.graph if node.op_type.endswith("eLinear")}
    assert len(scales) == 1
    assert list(graph.graph.initializers) == ["s", "a", "x_scale", "x_zero_point"]


WHOLE = """g (float[2,2] x) => (float[2,2] y) <float two = {2}, float eps = {0.001}, int64[1] axis = {1}, float[2] w = {1, 2}> {
  [square] s = Pow(x, two) [mean] m = ReduceMean(s, axis) [safe] a = Add(m, eps) [root] r = Sqrt(a) [div] d = Div(x, r)
  [weigh] n = Mul(d, w) [tanh] y = Tanh(n) }"""
#: What the nodes of `WHOLE` demand, each for itself.
ALONE = {
    "mean": "s m", "safe": "m eps a", "div": "x r d", "weigh": "d w n", "tanh": "n y",
}  # fmt: skip


def whole(*, with_parts: bool = True) -> ir.Model:
    """An RMS norm, marked as one operator, and a Tanh."""
    graph = model(WHOLE)
    nodes = list(graph.graph)[:-1]
    if with_parts:
        mark_group(nodes, "RMSNormalization", weight=graph.graph.initializers["w"])
    for node in nodes[:-1]:
        FUSED.set(node.outputs[0], Fused("square", whole=True))
    return graph


def demanded(graph: ir.Model, options: str = "") -> set[str]:
    inputs = {"ranges": ranges(graph)}
    changes = run_pipeline(graph, f"annotate-encodings{{encodings=@ranges{options}}}", inputs=inputs).changes
    return {change.where for change in changes if change.kind == "annotate"}


def test_a_group_that_is_one_operator_demands_as_one() -> None:
    """What it reads, its weight and what it writes; not what is inside, not its epsilon. Pow and Sqrt are on no list."""
    graph = whole()
    assert demanded(graph) == {"x", "w", "n", "y"}
    demands = {v.name: mark.nodes for v in all_values(graph) if (mark := DEMAND.get(v)) is not None}
    assert demands == {"x": ("square", "div"), "w": ("weigh",), "n": ("weigh", "tanh"), "y": ("tanh",)}


def test_a_group_is_quantized_by_its_operator_or_by_a_type_of_its_nodes() -> None:
    for ops, expected in (("RMSNormalization", {"x", "w", "n"}), ("Div", {"x", "w", "n"}), ("Tanh", {"n", "y"})):
        assert demanded(whole(), f" ops=[{ops}]") == expected
    assert demanded(whole(), " outputs-stay-float=[RMSNormalization]") == {"x", "w", "n", "y"}
    assert demanded(whole(), " outputs-stay-float=[RMSNormalization] ops=[Div]") == {"x", "w"}


@pytest.mark.parametrize("left_out", ["square", *list(ALONE)[:-1], "root"])
def test_leaving_out_any_node_leaves_the_group_float(left_out: str) -> None:
    """Its other nodes demand nothing either: pieces of a norm have no 8-bit grid worth having."""
    expected = {"n", "y"}
    assert demanded(whole(), f' exclude="{left_out}"') == expected
    others = ",".join(f'"{node.name}"' for node in whole().graph if node.name != left_out)
    assert demanded(whole(), f" only=[{others}]") == expected


def test_excluding_a_neighbour_leaves_the_group_closed() -> None:
    assert demanded(whole(), ' exclude="tanh"') == {"x", "w", "n"}


def test_a_group_that_is_looked_into_is_open() -> None:
    graph = whole()
    graph.graph.append(ir.node("Tanh", [graph.graph[1].outputs[0]], name="outside"))
    graph.graph[-1].outputs[0].name = "z"
    assert demanded(graph) == {name for names in ALONE.values() for name in names.split()} | {"z"}


def test_marks_without_members_hide_what_they_mark() -> None:
    """Whatever the types of the nodes; what is not marked is demanded as ever."""
    graph = whole(with_parts=False)
    assert demanded(graph) == {"x", "eps", "w", "n", "y"}
    assert demanded(whole(with_parts=False), ' exclude="root"') == {"x", "s", "m", "eps", "a", "r", "d", "w", "n", "y"}


def test_a_graph_output_is_inside_no_group() -> None:
    for is_whole in (True, False):
        graph = model("g (float[2] x) => (float[2] t, float[2] y) { [a] t = Add(x, x) [b] y = Relu(t) }")
        t = graph.graph.outputs[0]
        FUSED.set(t, Fused("a", whole=is_whole))
        assert not is_inside_group(t, {"a", "b"})
        FUSED.set(graph.graph.inputs[0], Fused("a", whole=is_whole))
        assert is_inside_group(graph.graph.inputs[0], {"a", "b"})


def test_scales_of_float16_are_float16_numbers() -> None:
    """2^-24 over 127 is far below the smallest positive float16, which is 2^-24 itself. Zeros have the coarsest, 2^1."""
    for data, expected in (([2.0**-24, -(2.0**-24)], 2.0**-24), ([0, 0], 2.0)):
        graph = model("g (float16[2] x) => (float16[2] y) <float16[2] w = {1, 1}> { [a] y = Add(x, w) }")
        graph.graph.initializers["w"].const_value = ir.tensor(np.array(data, np.float16))
        compat(graph, "minmse", INSERT)
        scale = constant_array(graph.graph.initializers["w_scale"])
        assert scale is not None
        assert scale.dtype == np.float16
        assert float(scale) == expected


def test_an_observed_range_does_not_replace_a_ready_encoding() -> None:
    graph = model("g (float[2] x) => (float[2] y) { [a] y = Tanh(x) }")
    OBSERVED.set(graph.graph.inputs[0], Observed(-100, 100))
    ready = Encoding.per_tensor(ir.DataType.INT8, 0.25)
    run_pipeline(graph, "annotate-encodings{encodings=@ranges}", inputs={"ranges": {"x": ready, "y": Range(-1, 1)}})
    assert ENCODING.get(graph.graph.inputs[0]) == ready


def test_minmse_of_an_asymmetric_override_is_refused() -> None:
    graph = model(TABLE["conv"][0])
    text = (COMPAT % "minmse").replace(
        "encodings=@ranges", 'encodings=@ranges overrides="{\\"w\\": {\\"symmetric\\": false}}"'
    )
    with refusal(UsageError):
        run_pipeline(graph, text, inputs={"ranges": ranges(graph)})
