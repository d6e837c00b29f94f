"""Compiled models: an EPContext node for each partition, with the program of it inside; and what says that one is stale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.graph.dump import dump
from qdq_passes.verification.rules import verify

import qdqtool
from qdqtool.io.models.context_files import payload_bytes
from qdqtool.io.models.load import SOURCE, load, model_of
from qdqtool.io.models.save import save, serialize
from qdqtool.npu import compiled
from qdqtool.npu.compile import Lowered
from qdqtool.npu.compile import compile as compile_for
from qdqtool.npu.compile import lower as lower_for
from qdqtool.npu.payload import read_payload
from tests.cases.lowering import TakesAll
from tests.cases.small_models import model, operators
from tests.golden_messages.refusal import refusal

#: Two partitions, and an operator without a kernel between them; the first has two outputs.
SPLIT = """g (float[1,2,4,4] x) => (float[1,2,4,4] y, float[1,2,4,4] v)
  <float s = {0.5}, int8 z = {0}, int8[2,2,1,1] w = {1, 2, 3, 4}, int64 axis = {1}>
{ [qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z) [dw] wd = DequantizeLinear(w, s, z)
  [conv] a = Conv(xd, wd) [qa] aq = QuantizeLinear(a, s, z) [da] ad = DequantizeLinear(aq, s, z)
  [cum] b = CumSum(ad, axis) [qb] bq = QuantizeLinear(b, s, z) [db] bd = DequantizeLinear(bq, s, z)
  [add] c = Add(bd, ad) [qc] cq = QuantizeLinear(c, s, z) [dc] y = DequantizeLinear(cq, s, z)
  [neg] d = Neg(ad) [qd] dq = QuantizeLinear(d, s, z) [dd] v = DequantizeLinear(dq, s, z) }"""


def compiled_split(text: str = SPLIT, **options: Any) -> Lowered:
    return compile_for(model(text), TakesAll(**options))  # type: ignore[arg-type]


def programs(made: ir.Model) -> list[ir.Model]:
    data = [read_payload(payload_bytes(node, made.meta.get(SOURCE)))[1] for node in compiled.contexts(made)]
    return [model_of(onnx.ModelProto.FromString(program)) for program in data]


def test_a_node_for_each_partition() -> None:
    done = compiled_split()
    assert operators(done.model) == [
        "QuantizeLinear", "com.microsoft::EPContext", "CumSum", "QuantizeLinear", "com.microsoft::EPContext",
        "DequantizeLinear", "DequantizeLinear",
    ]  # fmt: skip
    assert verify(done.model) == []
    onnx.checker.check_model(serialize(done.model), full_check=True)
    assert (done.npu_nodes, done.cpu_nodes) == (3, 1)
    assert [(r.rule, r.reason, r.nodes) for r in done.reasons] == [("not-computable", "CumSum has no kernel", 1)]
    assert "ai.qdqtool" not in done.model.opset_imports
    assert not set(done.model.graph.initializers) & {"w", "conv_multiplier"}, "constants of programs are inside of them"


def test_an_epcontext_node() -> None:
    first = compiled.contexts(compiled_split().model)[0]
    attributes = {name: a.value for name, a in first.attributes.items() if name != "ep_cache_context"}
    assert attributes == {
        "embed_mode": 1, "main_context": 1, "source": "NpuSimExecutionProvider", "partition_name": first.name,
    }  # fmt: skip
    assert [value.name for value in first.inputs if value is not None] == ["xq"]
    assert [value.name for value in first.outputs] == ["aq", "ad", "dq"]
    assert [value.dtype for value in first.outputs] == [ir.DataType.INT8, ir.DataType.FLOAT, ir.DataType.INT8]
    assert {str(value.shape) for value in first.outputs} == {"[1,2,4,4]"}


def test_a_program_of_constants_alone_reads_the_smallest() -> None:
    """The chain after the constants is part of the program; an EPContext node without inputs does not open everywhere."""
    text = """g () => (int8[3] y) <float s = {0.5}, int8 z = {0}, int8[3] w = {1, 2, 3}, int64[1] shape = {3}>
      { [dw] a = DequantizeLinear(w, s, z) [abs] b = Abs(a) [qb] bq = QuantizeLinear(b, s, z)
        [db] bd = DequantizeLinear(bq, s, z) [r] c = Reshape(bd, shape) [qc] y = QuantizeLinear(c, s, z) }"""
    done = compiled_split(text)
    [node] = compiled.contexts(done.model)
    assert [value.name for value in node.inputs if value is not None] == ["w"]
    assert done.parts[0].inputs == ()
    [program] = programs(done.model)
    assert program.graph.inputs == []
    assert verify(done.model) == []
    onnx.checker.check_model(serialize(done.model), full_check=True)


def test_its_program() -> None:
    done = compiled_split()
    for node, program, part in zip(compiled.contexts(done.model), programs(done.model), done.parts, strict=True):
        assert verify(program) == []
        assert program.opset_imports == {"": 21, "ai.qdqtool": 1}
        assert program.ir_version == 10
        ends = [[v.name for v in values if v is not None] for values in (node.inputs, node.outputs)]
        assert ends == [[v.name for v in program.graph.inputs], [v.name for v in program.graph.outputs]]
        assert (part.name, list(part.inputs), list(part.outputs)) == (node.name, *ends)
        assert part.nodes == len(list(program.graph))
        assert part.bytes == len(payload_bytes(node, done.model.meta.get(SOURCE)))
    assert operators(programs(done.model)[0])[0] == "ai.qdqtool::Conv"


def test_the_model_given_stays() -> None:
    given = model(SPLIT)
    before = dump(given)
    compile_for(given, TakesAll())  # type: ignore[arg-type]
    assert dump(given) == before


def test_equal_work_gives_equal_bytes() -> None:
    made = [serialize(compiled_split().model).SerializeToString(deterministic=True) for _ in range(2)]
    assert made[0] == made[1]


def test_the_ends_of_the_graph() -> None:
    """boundary=npu: float inputs and outputs are those of the program, which quantizes them itself."""
    done = compile_for(model(SPLIT), TakesAll(), boundary="npu")  # type: ignore[arg-type]
    kinds = operators(done.model)
    assert kinds[0] == "com.microsoft::EPContext"
    assert kinds[-1] == "com.microsoft::EPContext"
    assert operators(programs(done.model)[0])[0] == "QuantizeLinear"


def test_nothing_for_the_npu() -> None:
    done = compile_for(model("g (float[4] x) => (float[4] y) { [neg] y = Neg(x) }"), TakesAll())  # type: ignore[arg-type]
    assert (done.npu_nodes, done.cpu_nodes, done.parts) == (0, 1, ())
    assert operators(done.model) == ["Neg"]


@pytest.mark.parametrize(("given", "made"), [(8, 8), (10, 10), (12, 10)])
def test_ir_version(given: int, made: int) -> None:
    """Every onnxruntime that has plugin providers must load the result."""
    done = compiled_split(f'<ir_version: {given}, opset_import: ["" : 21]> {SPLIT}')
    assert done.model.ir_version == made
    assert {program.ir_version for program in programs(done.model)} == {made}


def test_saved_and_loaded(tmp_path: Path) -> None:
    """The payload is no text: it goes around what would refuse to read it."""
    made = compiled_split().model
    save(made, tmp_path / "a.onnx", annotations=False)
    read = load(tmp_path / "a.onnx")
    payloads = [[payload_bytes(node, m.meta.get(SOURCE)) for node in compiled.contexts(m)] for m in (made, read)]
    assert payloads[0] == payloads[1]
    save(read, tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert "bytes sha256:" in dump(read)


def test_lowered_is_not_compiled() -> None:
    done = lower_for(model(SPLIT), TakesAll())  # type: ignore[arg-type]
    assert "ai.qdqtool::Conv" in operators(done.model)
    assert [part.bytes for part in done.parts] == [0] * len(done.parts)
    assert compiled.needs_library(done.model)
    assert not compiled.contexts(done.model)


SMALL = """g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float s = {0.5}, int8 z = {0}, int8[2,2,1,1] w = {1, 2, 3, 4}>
{ [qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z) [dw] wd = DequantizeLinear(w, s, z)
  [conv] a = Conv(xd, wd) [qa] aq = QuantizeLinear(a, s, z) [da] y = DequantizeLinear(aq, s, z) }"""


def test_the_verbs(tmp_path: Path) -> None:
    done = qdqtool.compile(model(SMALL), tmp_path / "deep" / "c.onnx", target="generic_int8")
    assert done.files == (str(tmp_path / "deep" / "c.onnx"),)
    assert [node.op_type for node in load(done.files[0]).graph] == ["QuantizeLinear", "EPContext", "DequantizeLinear"]
    assert [n.op_type for n in qdqtool.lower(model(SMALL), target="generic_int8").model.graph][1] == "Conv"
    with refusal(UsageError):
        qdqtool.compile(model(SMALL), done.files[0], target="generic_int8")
    with refusal(UsageError):
        qdqtool.compile(done.files[0], target="generic_int8")
    with refusal(UsageError):
        qdqtool.lower(done.model, target="vitis_xint8")


def test_programs_in_files(tmp_path: Path) -> None:
    done = qdqtool.compile(model(SMALL), tmp_path / "c.onnx", target="generic_int8", embed=False)
    (file,) = tmp_path.glob("c_npu_0.*.qdqnpu")
    assert done.files == (str(tmp_path / "c.onnx"), str(file))
    read = load(tmp_path / "c.onnx")
    (context,) = compiled.contexts(read)
    assert context.attributes["ep_cache_context"].as_string() == file.name
    assert payload_bytes(context, read.meta.get(SOURCE)) == file.read_bytes()
    file.unlink()
    with pytest.raises(ModelError) as caught:
        payload_bytes(context, read.meta.get(SOURCE))
    assert caught.value.where == "npu_0"
    assert [f.rule for f in compiled.findings(read, None)] == ["program"]


@pytest.mark.parametrize("name", ["../c.qdqnpu", "/c.qdqnpu"])
def test_programs_stay_beside_the_model(name: str, tmp_path: Path) -> None:
    done = qdqtool.compile(model(SMALL), tmp_path / "below" / "c.onnx", target="generic_int8", embed=False)
    Path(done.files[1]).rename(tmp_path / "c.qdqnpu")
    read = load(done.files[0])
    (context,) = compiled.contexts(read)
    context.attributes["ep_cache_context"] = ir.AttrString("ep_cache_context", name)
    with pytest.raises(ModelError):
        payload_bytes(context, read.meta.get(SOURCE))


def test_damaged_programs_are_found() -> None:
    made = qdqtool.compile(model(SMALL), target="generic_int8").model
    (context,) = compiled.contexts(made)
    data = payload_bytes(context, made.meta.get(SOURCE))
    context.attributes["ep_cache_context"] = ir.Attr("ep_cache_context", ir.AttributeType.STRING, data[:-9] + data[-8:])
    (finding,) = compiled.findings(made, None)
    assert (finding.level, finding.rule, finding.where) == ("error", "program", "npu_0")
    assert finding.message.startswith(f"expected a compiled program of {len(data)} bytes, found {len(data) - 1}")
