"""The text form of models: stable, complete, and readable."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from qdq_passes.graph.annotate import ENCODING, FUSED, ORIGIN, Fused, Origin
from qdq_passes.graph.dump import MAX_SHOWN, dump
from qdq_passes.graph.edit import Namer, new_constant
from qdq_passes.numerics.encoding import Encoding

from tests.cases.small_models import model

EVERYTHING = """<ir_version: 10, opset_import: ["" : 21, "local" : 1, "com.acme" : 2]>
g (bool c, float[N,2] x, float[?,2] u, float[] any) => (float[N,2] y)
<float[2] w = {1.5, -2}, float[9] big = {1,2,3,4,5,6,7,8,9}, int64 n = {7}, bool[2] b = {1, 0}, string[1] s = {"a\\"b"},
 float scale = {0.5}, int8 zero = {3}, float[0] none = {}>
{
  [clip] t = Clip(x, "", n)
  [pool] m, i = com.acme.Pool<size: ints = [2, 3], mode: string = "max", ratio: float = 0.25, table: tensor = int8[2] {1, -1}>(t)
  [q] k = QuantizeLinear(m, scale, zero)
  [call] f = local.Block<alpha: float = 0.5>(m)
  [if] y = If(c) <
    then_branch = yes () => (float[N,2] a) <float[2] v = {3, 4}> { [add] a = Add(f, v) },
    else_branch = no () => (float[N,2] d) { [id] d = Identity(f) }
  >
}
<domain: "local", opset_import: ["" : 21]>
Block <alpha> (p) => (q) { [leak] q = LeakyRelu<alpha: float = @alpha>(p) }
"""

EXPECTED = """\
model ir=10 ai.onnx=21 com.acme=2 local=1
graph g(%c: bool[], %x: float[N,2], %u: float[?,2], %any: float[?]) -> (%y: float[N,2]) {
  %w: float[2] = [1.5,-2.0]
  %big: float[9] = sha256:2b3dca5d
  %n: int64[] = 7
  %b: bool[2] = [True,False]
  %s: string[1] = ["a\\"b"]
  %scale: float[] = 0.5
  %zero: int8[] = 3
  %none: float[0] = []
  %t: ? = Clip(%x, _, %n) @clip
  %m: ?, %i: ? = com.acme::Pool(%t) {mode="max" ratio=0.25 size=[2,3] table=int8[2][1,-1]} @pool
  %k: ? = QuantizeLinear(%m, %scale=0.5, %zero=3) @q
  %f: ? = local::Block(%m) {alpha=0.5} @call
  %y: float[N,2] = If(%c) @if
    else_branch = no() -> (%d: float[N,2]) {
      %d: float[N,2] = Identity(%f) @id
    }
    then_branch = yes() -> (%a: float[N,2]) {
      %v: float[2] = [3.0,4.0]
      %a: float[N,2] = Add(%f, %v) @add
    }
}
function local::Block<alpha>(%p) -> (%q) {
  %q: ? = LeakyRelu(%p) {alpha=@alpha} @leak
}
"""


def test_everything() -> None:
    text = dump(model(EVERYTHING))
    digest = next(line for line in text.splitlines() if "%big" in line).rpartition(":")[2]
    assert text == EXPECTED.replace("2b3dca5d", digest)


def test_it_is_stable() -> None:
    first, second = model(EVERYTHING), model(EVERYTHING)
    assert dump(first) == dump(second) == dump(first) == dump(first.clone())


def test_the_digest_is_of_the_data() -> None:
    """Sizes above `MAX_SHOWN` show a hash; one changed element, or another type, shows."""
    texts = set()
    for array in (
        np.arange(MAX_SHOWN + 1, dtype=np.float32),
        np.arange(MAX_SHOWN + 1),
        np.ones(MAX_SHOWN + 1, np.float32),
    ):
        graph = model("g (float[2] x) => (float[2] y) { [relu] y = Relu(x) }")
        new_constant(graph.graph, Namer(graph), "big", array)
        texts.add(dump(graph).splitlines()[2].rpartition("sha256:")[2])
    assert len(texts) == 3
    assert all(len(text) == 8 for text in texts)


def test_numbers_of_every_type() -> None:
    graph = model("g (float[2] x) => (float[2] y) { [relu] y = Relu(x) }")
    for dtype in ("INT4", "UINT4", "INT8", "UINT16", "INT32", "FLOAT16", "BFLOAT16", "DOUBLE", "FLOAT8E4M3FN"):
        kind = ir.DataType[dtype]
        new_constant(
            graph.graph, Namer(graph), dtype.lower(), ir.tensor(np.array([1, 3]).astype(kind.numpy()), dtype=kind)
        )
    shown = {line.split(":")[0].strip(" %"): line.partition(" = ")[2] for line in dump(graph).splitlines()[2:-2]}
    assert {name: text for name, text in shown.items() if "int" in name} == dict.fromkeys(
        ("int4", "uint4", "int8", "uint16", "int32"), "[1,3]"
    )
    assert {text for name, text in shown.items() if "float" in name or name == "double"} == {"[1.0,3.0]"}


def test_infinite_and_undefined_numbers() -> None:
    graph = model("g (float[2] x) => (float[2] y) { [relu] y = Relu(x) }")
    new_constant(graph.graph, Namer(graph), "odd", np.array([np.inf, -np.inf, np.nan, -0.0], np.float32))
    assert "= [inf,-inf,nan,-0.0]" in dump(graph)


def test_annotations_end_the_line() -> None:
    graph = model("g (float[2] x) => (float[2] y) { [relu] t = Relu(x) [exp] y = Exp(t) }")
    relu, exp = graph.graph
    ENCODING.set(relu.outputs[0], Encoding.per_tensor(ir.DataType.UINT8, 0.5, 128))
    per_axis = Encoding(dtype=ir.DataType.INT8, scale=(0.5, 1.0), zero_point=(0, 0), shape=(2,), axis=1)
    ENCODING.set(exp.outputs[0], per_axis)
    FUSED.set(relu.outputs[0], Fused("relu"))
    ORIGIN.set(exp, Origin(("a", "b")))
    relu.metadata_props["qdqtool.scope"] = "model.act"
    assert dump(graph).splitlines()[2:4] == [
        '  %t: ? = Relu(%x) @relu ; scope=model.act ; encoding=uint8×0.5 zp=128 fused={"group":"relu"}',
        "  %y: float[2] = Exp(%t) @exp ; origin=a,b ; encoding=int8×[2×] axis=1",
    ]


def test_annotations_of_inputs_show() -> None:
    graph = model("g (float[2] x) => (float[2] y) { [relu] y = Relu(x) }")
    before = dump(graph)
    ENCODING.set(graph.graph.inputs[0], Encoding.per_tensor(ir.DataType.INT8, 0.5))
    assert dump(graph) != before


def test_overloads_and_names_left_out() -> None:
    graph = model("g (float[2] x) => (float[2] y) { [relu] y = Relu(x) }")
    function_graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    function = ir.Function("local", "F", "fast", graph=function_graph, attributes=[])
    graph.functions[function.identifier()] = function
    graph.graph.name = None
    graph.graph[0].name = None
    text = dump(graph)
    assert "graph <unnamed>(" in text
    assert "Relu(%x) @\n" in text
    assert "function local::F:fast<>() -> () {" in text
