"""What `analyze` says of a model: verdicts, partitions, findings, advice; and when it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import TARGET

import qdqtool
from qdqtool.npu.report import Analysis
from tests.cases.cli_helpers import Result, cli, same_outputs
from tests.cases.small_models import HEADER, chain, model
from tests.golden_messages.refusal import refusal, told

TAKES = ("Add", "Concat", "Conv", "MatMul", "Relu", "Sigmoid", "Softmax", "Tanh")


def target_file(folder: Path, text: str = "", takes: tuple[str, ...] = TAKES) -> str:
    """A target that takes these operators in int8; ``text`` says more of it."""
    types = ", ".join(f'"{op}"' for op in takes)
    file = folder / "tester.toml"
    file.write_text(
        f'description = "for tests"\nversion = "7"\n{text}\n[[op]]\ntypes = [{types}]\n[[op.scheme]]\n'
        'activations = ["int8"]\nweights = ["int8"]\nbias = ["int8", "int32"]\n'
    )
    return str(file)


def run(*arguments: str) -> Result:
    """The command, whatever its exit code."""
    return cli(*arguments, code=None)


def analyzed(tmp_path: Path, text: str, more: str = "", **options: Any) -> Analysis:
    return qdqtool.analyze(model(text), target=target_file(tmp_path, more), **options)


def saved(tmp_path: Path, text: str, name: str = "m.onnx") -> str:
    qdqtool.save(model(text), tmp_path / name)
    return str(tmp_path / name)


def test_the_keys_of_the_contract(tmp_path: Path) -> None:
    file, target = saved(tmp_path, chain("Relu", "Softplus", "Tanh")), target_file(tmp_path)
    result = run("analyze", file, "--target", target, "--json")
    assert result.code == 0
    report = result.json
    assert {"nodes", "partitions", "npu_nodes", "cpu_nodes", "boundary_bytes", "findings"} <= report.keys()
    keys = {"name", "op", "scope", "device", "verdict", "rule", "reason", "suggestion", "partition"}
    assert all(keys <= node.keys() for node in report["nodes"])
    assert {"id", "nodes", "inputs", "outputs", "macs", "weight_bytes"} <= report["partitions"][0].keys()
    assert [(n["name"], n["device"], n["verdict"], n["partition"]) for n in report["nodes"]] == [
        ("qx", "CPU", "fallback", None), ("dx", "NPU", "npu-int", 0), ("Relu0", "NPU", "npu-int", 0), ("q0", "NPU", "npu-int", 0),
        ("dq0", "CPU", "fallback", None), ("Softplus1", "CPU", "fallback", None), ("q1", "CPU", "fallback", None),
        ("dq1", "NPU", "npu-int", 1), ("Tanh2", "NPU", "npu-int", 1), ("q2", "NPU", "npu-int", 1), ("dq2", "CPU", "fallback", None),
    ]  # fmt: skip
    assert (report["npu_nodes"], report["cpu_nodes"]) == (6, 5)
    assert (report["npu_compute_nodes"], report["compute_nodes"]) == (2, 3)
    assert report["partitions"][0]["inputs"] == [{"name": "xq", "dtype": "int8", "shape": [1, 4], "bytes": 4}]
    assert report["boundary_bytes"] == 16
    assert report["verdict"] == "fallback"
    assert (report["target"], report["target_version"], report["model"]) == ("tester", "7", file)


def test_partitions_have_macs_and_weights(tmp_path: Path) -> None:
    text = f"""{HEADER}
    g (float[1,2,4,4] x) => (float[1,3,4,4] y) <float s = {{0.5}}, int8 z = {{0}}, int8[3,2,1,1] wq = {{1,2,3,4,5,6}},
        int32[3] bq = {{1,2,3}}, float t = {{0.25}}, int32 zb = {{0}}> {{
      [qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z)
      [dw] w = DequantizeLinear(wq, s, z) [db] b = DequantizeLinear(bq, t, zb)
      [conv] c = Conv(xd, w, b) [relu] r = Relu(c) [qr] rq = QuantizeLinear(r, s, z) [dr] y = DequantizeLinear(rq, s, z)
    }}"""
    [partition] = analyzed(tmp_path, text).partitions
    assert (partition.macs, partition.weight_bytes) == (3 * 16 * 2, 6 + 3 * 4)
    assert partition.nodes == ("dx", "dw", "db", "conv", "relu", "qr")
    assert partition.boundary_bytes == 2 * 16 + 3 * 16


def test_who_is_required_to_be_on_the_npu(tmp_path: Path) -> None:
    file, target = saved(tmp_path, chain("Relu", "Softplus", "Tanh", "Relu")), target_file(tmp_path)
    assert run("analyze", file, "--target", target, "--require-npu", "75%").code == 0
    result = run("analyze", file, "--target", target, "--require-npu", "80%")
    assert result.code == 1
    assert result.out.splitlines()[-1] == "failed: 75.0 % of the operators are on the NPU, required are 80 %"


@pytest.mark.parametrize("share", ["101%", "most", "-1"])
def test_a_share_that_is_none(tmp_path: Path, share: str) -> None:
    file, target = saved(tmp_path, chain("Relu")), target_file(tmp_path)
    result = run("analyze", file, "--target", target, f"--require-npu={share}")
    assert result.code == 2
    told(result.error)


SYMMETRIC_SOFTMAX = 'traps = ["softmax-symmetric-output", "activation-without-pair"]'


def test_what_is_silently_wrong_is_an_error_and_no_verdict(tmp_path: Path) -> None:
    file, target = saved(tmp_path, chain("Softmax")), target_file(tmp_path, SYMMETRIC_SOFTMAX)
    result = run("analyze", file, "--target", target, "--json")
    assert result.code == 1
    assert result.json["verdict"] == "npu-int"
    assert [(f["level"], f["rule"], f["where"]) for f in result.json["findings"]] == [
        ("error", "softmax-symmetric-output", "Softmax0")
    ]
    assert result.json["failures"] == ["softmax-symmetric-output at Softmax0"]
    checked = run("check", file, "--target", target, "--no-runtime", "--json")
    assert [(f["level"], f["rule"]) for f in checked.json["findings"]] == [("warning", "softmax-symmetric-output")]


def test_what_is_computed_in_float_stays_a_note(tmp_path: Path) -> None:
    text = f"""{HEADER}
    g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float s = {{0.5}}, int8 z = {{0}}, int8[1,1,1,1] wq = {{1}}> {{
      [qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z) [dw] w = DequantizeLinear(wq, s, z)
      [conv] c = Conv(xd, w) [relu] r = Relu(c) [qr] rq = QuantizeLinear(r, s, z) [dr] y = DequantizeLinear(rq, s, z)
    }}"""
    found = analyzed(tmp_path, text, SYMMETRIC_SOFTMAX)
    assert [(f.level, f.rule) for f in found.findings] == [("note", "activation-without-pair")]
    assert found.failures == ()


def baseline_of(tmp_path: Path, text: str, target: str) -> str:
    file = str(tmp_path / "baseline.json")
    run("analyze", saved(tmp_path, text, "old.onnx"), "--target", target, "--json-out", file, "--overwrite")
    return file


@pytest.mark.parametrize(
    ("old", "new", "code", "failure"),
    [
        (("Softmax",), ("Softmax",), 0, ""),
        (("Softmax", "Relu"), ("Softmax",), 0, ""),
        (("Relu",), ("Softmax",), 1, "softmax-symmetric-output at Softmax0"),
        (("Relu", "Softplus"), ("Relu", "Softplus"), 0, ""),
        (("Relu", "Relu"), ("Relu", "Softplus"), 1, "50.0 % of the operators are on the NPU, were 100.0 %"),
    ],
)
def test_a_baseline_forgives_what_it_has(
    tmp_path: Path, old: tuple[str, ...], new: tuple[str, ...], code: int, failure: str
) -> None:
    target = target_file(tmp_path, SYMMETRIC_SOFTMAX)
    before = baseline_of(tmp_path, chain(*old), target)
    result = run("analyze", saved(tmp_path, chain(*new)), "--target", target, "--baseline", before, "--json")
    assert result.code == code
    assert result.json["failures"] == ([failure] if failure else [])
    assert result.json["known_errors"] == (1 if "Softmax" in old and "Softmax" in new else 0)


def test_a_node_with_a_worse_verdict_than_in_the_baseline(tmp_path: Path) -> None:
    before = baseline_of(tmp_path, chain("Relu", "Tanh"), target_file(tmp_path))
    file, target = saved(tmp_path, chain("Relu", "Tanh")), target_file(tmp_path, takes=("Relu",))
    result = run("analyze", file, "--target", target, "--baseline", before, "--require-npu", "10%")
    assert result.code == 1
    assert result.out.splitlines()[-1] == "failed: Tanh1: fallback, was npu-int in the baseline"
    assert run("analyze", file, "--target", target, "--require-npu", "100%").code == 1
    same = baseline_of(tmp_path, chain("Relu", "Tanh"), target)
    assert run("analyze", file, "--target", target, "--baseline", same, "--require-npu", "100%").code == 0


@pytest.mark.parametrize("text", ["{}", "[]", "no json", '{"findings": [], "nodes": 3}'])
def test_a_baseline_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "b.json").write_text(text)
    result = run(
        "analyze",
        saved(tmp_path, chain("Relu")),
        "--target",
        target_file(tmp_path),
        "--baseline",
        str(tmp_path / "b.json"),
    )
    assert result.code == 2
    told(result.error)


def test_a_region_names_its_culprit_and_what_mending_it_brings(tmp_path: Path) -> None:
    found = analyzed(tmp_path, chain("Relu", "Tanh", "Softplus", "Tanh", "Relu"), 'policy = "region"')
    assert found.npu_compute_nodes == 0
    reasons = {reason.placement.rule: len(reason.nodes) for reason in found.reasons()}
    assert reasons == {"region": 4, "no-rule": 1}
    [repair] = found.repairs
    assert (repair.nodes, repair.ops) == (("Softplus2",), ("Softplus",))
    assert (repair.after.npu_compute_nodes, repair.after.compute_nodes, repair.after.partitions) == (5, 5, 1)
    assert found.cut is None  # three of five operators would go


def test_the_most_profitable_repair_comes_first(tmp_path: Path) -> None:
    """One Softplus costs a cut; so do two Erfs side by side, which are two nodes to mend."""
    found = analyzed(tmp_path, chain("Relu", "Erf", "Erf", "Relu", "Softplus", "Relu"))
    assert [(repair.ops, repair.after.partitions) for repair in found.repairs] == [(("Softplus",), 2), (("Erf",), 1)]
    assert [repair.after.boundary_tensors for repair in found.repairs] == [4, 2]


def test_a_declined_end_costs_no_repair_when_nothing_is_won(tmp_path: Path) -> None:
    found = analyzed(tmp_path, chain("Relu", "Tanh"))
    assert (found.repairs, found.cut) == ((), None)


def test_a_head_may_be_cut_off(tmp_path: Path) -> None:
    text = chain("Relu", "Tanh", "Relu", "Tanh", "Relu", "Softplus", "Relu")
    file, target = saved(tmp_path, text, "with space.onnx"), target_file(tmp_path, 'policy = "region"')
    found = qdqtool.analyze(file, target=target)
    assert found.cut is not None
    assert (found.cut.nodes, found.cut.outputs) == (2, ("d4",))
    assert found.cut.command == f"qdqtool extract '{file}' -o body.onnx --outputs d4"
    body = str(tmp_path / "body.onnx")
    assert run("extract", file, "-o", body, "--outputs", ",".join(found.cut.outputs)).code == 0
    rest = qdqtool.analyze(body, target=target)
    then = found.cut.after
    assert (rest.npu_compute_nodes, rest.compute_nodes, len(rest.partitions)) == (5, 5, 1)
    assert (then.npu_compute_nodes, then.compute_nodes, then.partitions, then.boundary_bytes) == (
        5,
        5,
        1,
        rest.boundary_bytes,
    )


def test_what_needs_no_head_is_an_output_of_the_cut(tmp_path: Path) -> None:
    text = chain("Relu", "Tanh", "Relu", "Softplus").replace("(float[1,4] y)", "(float[1,4] y, float[1,4] d1)")
    found = analyzed(tmp_path, text, 'policy = "region"')
    assert found.cut is not None
    assert found.cut.outputs == ("d2", "d1")


def test_annotate_writes_what_netron_shows(tmp_path: Path) -> None:
    file, target, output = (
        saved(tmp_path, chain("Relu", "Softplus")),
        target_file(tmp_path),
        str(tmp_path / "out" / "a.onnx"),
    )
    assert run("analyze", file, "--target", target, "--annotate", "-o", output).code == 0
    props = {node.name: {p.key: p.value for p in node.metadata_props} for node in onnx.load(output).graph.node}
    placed = {name: json.loads(entries["qdqtool.target"]) for name, entries in props.items()}
    assert placed["Relu0"] == {"device": "NPU", "partition": 0, "rule": "relu", "verdict": "npu-int"}
    assert placed["Softplus1"]["reason"] == "Softplus is not supported on tester"
    assert all(TARGET.get(node) is not None for node in qdqtool.load(output).graph)
    assert run("analyze", file, "--target", target, "--annotate", "-o", output).code == 2
    assert run("analyze", file, "--target", target, "--annotate", "-o", output, "--overwrite").code == 0


def test_outline_is_one_box_that_computes_the_same(tmp_path: Path) -> None:
    file, target, output = (
        saved(tmp_path, chain("Relu", "Tanh", "Softplus")),
        target_file(tmp_path),
        str(tmp_path / "b.onnx"),
    )
    assert run("analyze", file, "--target", target, "--outline", "-o", output).code == 0
    written = qdqtool.load(output)
    assert [node.op_type for node in written.graph] == [
        "QuantizeLinear",
        "partition_0",
        "DequantizeLinear",
        "Softplus",
        "QuantizeLinear",
        "DequantizeLinear",
    ]
    x = np.linspace(-3, 3, 4, dtype=np.float32).reshape(1, 4)
    same_outputs(file, output, {"x": x})


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--annotate"], id="nowhere"),
        pytest.param(["-o", "OUT"], id="nothing"),
    ],
)
def test_what_is_written_must_be_said(tmp_path: Path, arguments: list[str]) -> None:
    result = run("analyze", saved(tmp_path, chain("Relu")), "--target", target_file(tmp_path), *arguments)
    assert result.code == 2
    told(result.error)


def test_the_table_groups_reasons_and_shows_the_rest_with_v(tmp_path: Path) -> None:
    file, target = saved(tmp_path, chain(*["Relu", "Softplus"] * 15)), target_file(tmp_path)
    lines = run("analyze", file, "--target", target).out.splitlines()
    assert len(lines) < 30
    assert (
        lines[0]
        == "tester: 15 of 30 operators on the NPU (50.0 %), 15 partitions, 120 B across their edges; verdict fallback"
    )
    assert "fallback  15 × Softplus  [no-rule]  Softplus1, Softplus3, Softplus5 and 12 more" in lines
    assert "and 5 more partitions (-v)" in lines
    everything = run("analyze", file, "--target", target, "-v").out
    assert "Softplus29" in everything
    assert everything.count("\n") > 100


def test_a_float_model_is_told_to_be_quantized(tmp_path: Path) -> None:
    file = saved(tmp_path, f"{HEADER}\ng (float[1,4] x) => (float[1,4] y) {{ y = Relu(x) }}")
    result = run("analyze", file, "--target", target_file(tmp_path))
    assert (
        f"the model has no Q and DQ nodes: quantize it first, `qdqtool quantize {file} --target tester --data DATA"
        in result.out
    )
    assert result.code == 0


def test_nodes_of_bodies_are_in_the_report(tmp_path: Path) -> None:
    text = f"""{HEADER}
    g (bool c, float[2] x) => (float[2] y) {{
      [if] y = If(c) <then_branch = t () => (float[2] p) {{ [neg] p = Neg(x) }}, else_branch = e () => (float[2] q) {{ [same] q = Identity(x) }}>
    }}"""
    found = analyzed(tmp_path, text)
    assert {node.name: node.placement.rule for node in found.nodes} == {
        "if": "no-rule",
        "neg": "inner-graph",
        "same": "inner-graph",
    }
    assert (found.compute_nodes, found.npu_compute_nodes) == (3, 0)


def test_functions_are_inlined_and_the_model_stays_as_it_is(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
    g (float[1,4] x) => (float[1,4] y) { [call] y = local.Block(x) }
    <domain: "local", opset_import: ["" : 21]>
    Block (a) => (b) { [inside] b = Relu(a) }"""
    graph = model(text)
    found = qdqtool.analyze(graph, target=target_file(tmp_path))
    assert [node.op for node in found.nodes] == ["Relu"]
    assert [node.op_type for node in graph.graph] == ["Block"]
    assert all(TARGET.get(node) is None for node in graph.graph)


def test_a_missing_target_names_those_there_are(tmp_path: Path) -> None:
    with refusal(UsageError):
        qdqtool.analyze(model(chain("Relu")), target="generic_int88")


def test_what_is_not_simulated_is_a_note_and_on_the_cpu_where_that_is_asked(tmp_path: Path) -> None:
    text = (
        chain("Relu", "TopK")
        .replace("f1 = TopK(d0)", "f1, i = TopK(d0, k)")
        .replace("int8 z = {0}", "int8 z = {0}, int64[1] k = {4}")
    )
    target = target_file(tmp_path, takes=("Relu", "TopK"))
    found = qdqtool.analyze(model(text), target=target)
    assert [(f.level, f.rule, f.where) for f in found.findings] == [("note", "not-simulated", "TopK1")]
    assert {node.name: node.placement.device for node in found.nodes if node.is_compute} == {
        "Relu0": "NPU",
        "TopK1": "NPU",
    }
    simulated = qdqtool.analyze(model(text), target=target, simulated=True)
    placed = {node.name: node.placement for node in simulated.nodes if node.is_compute}
    assert (placed["TopK1"].device, placed["TopK1"].verdict, placed["TopK1"].rule) == (
        "CPU",
        "npu-int",
        "not-simulated",
    )
    assert placed["Relu0"].device == "NPU"


def test_a_model_without_operators_says_so(tmp_path: Path) -> None:
    file = saved(tmp_path, f"{HEADER}\ng (float[1,4] x) => (float[1,4] x) {{ }}")
    result = run("analyze", file, "--target", target_file(tmp_path))
    assert result.code == 0
    assert "the model has no operators that compute or move data" in result.out
    assert "quantize it first" not in result.out


def test_pairs_are_shown_on_the_engine_of_their_operator(tmp_path: Path) -> None:
    engines = '[[engine]]\nname = "array"\nkind = "int"\ntypes = ["Softmax"]\n[[engine]]\nname = "lanes"\nkind = "int"'
    found = analyzed(tmp_path, chain("Relu", "Softmax", "Relu"), engines)
    devices = {node.name: node.placement.device for node in found.nodes}
    assert {name: devices[name] for name in ("dx", "Relu0", "q0", "dq0", "Softmax1", "q1", "dq1", "Relu2", "q2")} == {
        "dx": "lanes", "Relu0": "lanes", "q0": "lanes", "dq0": "array", "Softmax1": "array", "q1": "array", "dq1": "lanes",
        "Relu2": "lanes", "q2": "lanes",
    }  # fmt: skip


def test_a_group_of_several_suggestions_says_that_it_shows_one(tmp_path: Path) -> None:
    file = saved(tmp_path, chain("Relu", "Softplus", "Softplus"))
    lines = run("analyze", file, "--target", target_file(tmp_path)).out.splitlines()
    [shown] = [line for line in lines if line.startswith("    → ")]
    assert f"`qdqtool extract {file} -o mended.onnx --outputs d0`; tried without success" in shown
    assert shown.endswith(" (the first; --json has that of each)")


def test_shape_arithmetic_is_computed_before_it_is_judged() -> None:
    text = """g (float[2,3,4] x) => (float[2,1000] y) <int64[1] i = {0}, int64[1] j = {1}, int64[1] k = {2}, float[1000,12] w> {
        [s] s = Shape(x)  [g0] n = Gather(s, i)  [g1] h = Gather(s, j)  [g2] v = Gather(s, k)  [m] m = Mul(h, v)
        [c] c = Concat<axis: int = 0>(n, m)  [r] r = Reshape(x, c)  [t] t = Transpose(w)  [p] y = MatMul(r, t) }"""
    graph = model(text, {"w": np.ones((1000, 12), np.float32)})
    found = qdqtool.analyze(graph, target="qnn_htp")
    assert [node.name for node in found.nodes] == ["r", "t", "p"]  # the weight is no shape: it is not read
    assert found.npu_percent == 100
    assert len(graph.graph) == 9
    assert "s" in {node.name for node in qdqtool.analyze(graph, target="qnn_htp", simulated=True).nodes}
