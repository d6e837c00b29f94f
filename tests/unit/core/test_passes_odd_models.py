"""Every pass on models that are legal and odd: it keeps what it promises, leaves a sound model, and finds nothing to do again."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from qdq_passes.core.registry import PASSES
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.annotate import write_metadata
from qdq_passes.graph.dump import dump
from qdq_passes.graph.uses import all_values
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.pipeline.pipeline import parse_pipeline, run_pipeline

from qdqtool.io.models.load import model_of
from qdqtool.io.models.save import serialize
from tests.cases.small_models import Observed, model
from tests.golden.fake_target import FakeTarget
from tests.golden.numerics import differences, outputs_of

HEADER = '<ir_version: 10, opset_import: ["" : 21, "local" : 1]>'

ODD = {
    "output twice": "g (float[2] x) => (float[2] y, float[2] y2) { [a] y = Relu(x) [b] y2 = Identity(y) }",
    "input is output": "g (float[2] x, float[2] z) => (float[2] x, float[2] y) { [a] y = Add(x, z) }",
    "weight is output": "g (float[2] x) => (float[2] w, float[2] y) <float[2] w = {1, 2}> { [a] y = Add(x, w) }",
    "overridable weight": "g (float[2,2] x, float[2,2] w = {1,2,3,4}) => (float[2,2] y) { [a] t = MatMul(x, w) [b] y = Relu(t) }",
    "nothing to compute": "g (float[2] x) => (float[2] x) { }",
    "constant output": "g (float[2] x) => (float[2] y, float[2] z) <float[2] w = {1,2}> { [a] y = Relu(x) [b] z = Identity(w) }",
    "no inputs": "g () => (float[2] y) <float[2] w = {1,-2}> { [a] y = Relu(w) }",
    "empty tensor": "g (float[0,3] x) => (float[0,2] y) <float[3,2] w = {1,2,3,4,5,6}> { [a] t = MatMul(x, w) [b] y = Relu(t) }",
    "scalar": "g (float x) => (float y) <float w = {2}> { [a] t = Mul(x, w) [b] y = Relu(t) }",
    "dynamic": "g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1,2,3,4}> { [a] t = MatMul(x, w) [b] y = Relu(t) }",
    "names with signs": 'g (float[2] "in put&1") => (float[2] "out:0") { ["a b"] "t/1" = Relu("in put&1") ["c=d"] "out:0" = Exp("t/1") }',
    "unused outputs": """g (float[1,1,4,4] x) => (float[1,1,2,2] y)
    { [a] p, i = MaxPool<kernel_shape: ints = [2,2], strides: ints = [2,2]>(x) [b] y = Relu(p) }""",
    "split": "g (float[4] x) => (float[2] y) <int64[2] s = {2, 2}> { [a] p, q = Split<axis: int = 0>(x, s) [b] y = Add(p, q) }",
    "constants of all kinds": """g (float[2] x) => (float[2] y, string[1] s) {
      [a] f = Constant<value_float: float = 2.0>() [b] fs = Constant<value_floats: floats = [1.0, 2.0]>()
      [c] i = Constant<value_ints: ints = [2]>() [d] s = Constant<value_strings: strings = ["é"]>()
      [e] t = Mul(x, f) [h] u = Add(t, fs) [k] y = Reshape(u, i) }""",
    "batch norm chain": """g (float[1,2,2,2] x) => (float[1,2,2,2] y, float[1,2,2,2] t)
    <float[2,2,1,1] w = {1,2,3,4}, float[2] a = {1,2}, float[2] v = {1,4}>
    { [c] s = Conv(x, w) [n] t = BatchNormalization(s, a, a, a, v) [r] u = Relu(t) [d] p = Conv(u, w) [m] y = BatchNormalization(p, a, a, a, v) }""",
    "loop": """g (int64 n, bool c, float[2] x) => (float[2] y, float[K,2] all) <float[2] w = {0.5, 2}>
    { [l] y, all = Loop(n, c, x) <body = b (int64 i, bool go, float[2] s) => (bool more, float[2] next, float[2] each)
      <float[2] inner = {1, 2}> { [m] p = Mul(s, w) [a] next = Add(p, inner) [r] each = Relu(next) [k] more = Identity(go) }> }""",
    "pairs in a loop": """g (int64 n, bool c, float[2] x) => (float[2] y) <float h = {0.5}, int8 z = {0}>
    { [q] i0 = QuantizeLinear(x, h, z) [l] y = Loop(n, c, x) <body = b (int64 i, bool go, float[2] s) => (bool more, float[2] next)
      { [d] f = DequantizeLinear(i0, h, z) [a] t = Add(s, f) [q2] k = QuantizeLinear(t, h, z) [d2] next = DequantizeLinear(k, h, z)
        [k] more = Identity(go) }> }""",
    "scan": """g (float[2] start, float[3,2] x) => (float[2] y, float[3,2] all)
    { [s] y, all = Scan<num_scan_inputs: int = 1, body: graph = b (float[2] s, float[2] e) => (float[2] next, float[2] out)
      { [a] next = Add(s, e) [r] out = Relu(next) }>(start, x) }""",
    "nested branches": """g (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> { [e] t = Exp(x)
      [i] y = If(c) <then_branch = p () => (float[2] a) { [j] a = If(c) <then_branch = q () => (float[2] u) { [m] u = Mul(t, w) },
        else_branch = r () => (float[2] v) { [n] v = Add(t, w) }> }, else_branch = s () => (float[2] d) { [k] d = Relu(w) }> }""",
    "function with a branch": f"""{HEADER} g (bool c, float[2] x) => (float[2] y) {{ [f] t = local.F(c, x) [h] y = local.F(c, t) }}
    <domain: "local", opset_import: ["" : 21]> F (c, p) => (q) {{ [k] w = Constant<value: tensor = float[2] {{1, 2}}>()
      [a] s = Add(p, w) [i] q = If(c) <then_branch = t () => (float[2] u) <float[2] b = {{3, 4}}> {{ [m] u = Mul(s, b) }},
      else_branch = e () => (float[2] v) {{ [r] v = Relu(s) }}> }}""",
    "quantized function": f"""{HEADER} g (float[1,2] x) => (float[1,2] y) {{ [f] y = local.Dense(x) }}
    <domain: "local", opset_import: ["" : 21]> Dense (p) => (q) {{ [a] h = Constant<value: tensor = float {{0.3}}>()
      [b] z = Constant<value: tensor = int8 {{0}}>() [c] w = Constant<value: tensor = int8[2,2] {{1, 2, 3, 4}}>()
      [d] i = QuantizeLinear(p, h, z) [e] f = DequantizeLinear(i, h, z) [g] v = DequantizeLinear(w, h, z) [m] q = MatMul(f, v) }}""",
    "int4 blocked": """g (float[1,4] x) => (float[1,1] y) <int4[4,1] w = {225, 7}, float[2,1] s = {0.5, 0.3}>
    { [d] f = DequantizeLinear<axis: int = 0, block_size: int = 2>(w, s) [m] y = MatMul(x, f) }""",
    "sequences": """g (float[2] x) => (float[4] y) { [a] s = SequenceConstruct(x, x) [r] t = Relu(x) [i] u = SequenceInsert(s, t)
      [e] v = SequenceErase(u) [c] y = ConcatFromSequence<axis: int = 0>(v) }""",
    "old format": '<ir_version: 3, opset_import: ["" : 13]> g (float[2] x, float[2] w = {1,2}) => (float[2] y) { [a] t = Add(x, w) [b] y = Relu(t) }',
    "one scale for all": """g (float[2] x) => (float[2] y, int8[2] i) <float s = {0.3}, float[2] w = {1, 2}>
    { [q] i = QuantizeLinear<output_dtype: int = 3>(x, s) [d] f = DequantizeLinear(i, s) [p] j = QuantizeLinear<output_dtype: int = 3>(w, s)
      [e] v = DequantizeLinear(j, s) [m] t = Mul(f, v) [n] y = Mul(t, s) }""",
}  # fmt: skip
#: Pipelines beyond the passes themselves.
CHAINS = (
    "apply-encodings{encodings=@encodings},insert-qdq",
    "annotate-encodings{encodings=@ranges},insert-qdq",
    "annotate-encodings{encodings=@ranges},insert-qdq{weights=dq},remove-qdq",
    "annotate-encodings{encodings=@ranges},insert-qdq{weights=dq},convert-bias,convert-encodings{symmetric=false dtype=uint8}",
    "annotate-encodings{encodings=@ranges},insert-qdq,convert-boundaries{dtype=uint8}",
)
NEEDS = {
    "observe": "{data=@data runtime=@runtime}", "adjust-ranges": "{ranges=@ranges}", "annotate-encodings": "{encodings=@ranges}", "apply-encodings": "{encodings=@encodings}",
    "annotate-kv-cache": "{ranges=@ranges}", "bound-attention-mask": "{ranges=@ranges}", "isolate-concats": "{ranges=@ranges}", "isolate-divisors": "{ranges=@ranges}",
    "requantize-constants": "{floats=@float}",
    **dict.fromkeys(("correct-bias", "learn-rounding", "round-weights", "search-scales", "smooth-activations", "tune-weights"), "{statistics=@statistics}"),
    "convert-encodings": "{dtype=uint8}", "convert-opset": "{version=22}", "set-qdq": "{scale=0.25}",
    **{name: "{target=@target}" for name in PASSES.names() if name == "assign-targets" or name.startswith("lower-")},
}  # fmt: skip
#: Passes over graphsurgeon's graph refuse what it would lose.
REFUSE = ("remove-identity", "merge-transposes")
#: Passes whose job is to take inputs away, or to change their shapes or types.
CHANGES_ENDS = ("convert-layout", "integer-io", "remove-initializer-inputs", "set-batch")
PIPELINES = [*(name + NEEDS.get(name, "") for name in PASSES.names()), *CHAINS]


class FakeRuntime:
    """Runs nothing, and has a range for every value."""

    def observe(self, graph: ir.Model, *_: object) -> dict[str, Observed]:
        return {value.name or "": Observed(-1.5, 2.0) for value in all_values(graph)}


@pytest.mark.product(cover=("pipeline", "odd"), extra=300)
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("odd", ODD)
def test_odd_models(odd: str, pipeline: str) -> None:
    graph = model(ODD[odd])
    names = [value.name for value in all_values(graph)]
    encodings = dict.fromkeys(names, Encoding.per_tensor(ir.DataType.UINT8, 0.25, 6))
    ranges = {
        "ranges": dict.fromkeys(names, Observed(-1.5, 2.0)),
        "encodings": encodings,
        "data": (),
        "runtime": FakeRuntime(),
        "target": FakeTarget(),
        "statistics": {},
        "float": {},
    }
    if pipeline.startswith("observe"):
        del ranges["ranges"]
    before, ends = outputs_of(graph), interface(dump(graph))
    refused = ""
    try:
        run_pipeline(graph, pipeline, inputs=ranges, hooks=[VerifyEach()])
    except UnsupportedError as error:
        refused = str(error)
    if refused:
        assert pipeline in REFUSE or "is no decoder with a KV cache" in refused, pipeline
        return
    found = differences(before, outputs_of(graph), [pass_.keeps for pass_ in parse_pipeline(pipeline).passes])
    assert not found, f"{found}\n{dump(graph)}"
    assert interface(dump(graph)) == ends or pipeline in CHANGES_ENDS
    after = dump(graph)
    report = run_pipeline(graph, pipeline.split(",")[-1], inputs=ranges)
    if "annotate" not in pipeline and not pipeline.startswith(("assign", "extract", "inject")):
        assert not report.modified, [str(change) for change in report.changes]
        assert dump(graph) == after
    write_metadata(graph)
    read = model_of(onnx.ModelProto.FromString(serialize(graph).SerializeToString()))
    assert dump(read) == dump(graph)


def interface(text: str) -> str:
    """Inputs and outputs of a dump, with their types."""
    return next(line for line in text.splitlines() if line.startswith("graph "))
