"""The estimate of the time on a target: work counted by hand, cycles from a target's numbers, and the timeline."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import onnx_ir as ir
import pytest
from qdq_passes import run_pipeline
from qdq_passes.decoder.look.record import DECODER, CacheTensor, Decoder, Layout
from qdq_passes.graph.operators.fused_products import Products
from qdq_passes.graph.operators.macs import macs_of
from qdq_passes.npu.partitions.partitions import partition_for
from qdq_passes.npu.units.units import Unit, units_of
from qdq_passes.npu.units.verdict import Verdict

from qdqtool.io.models.load import load
from qdqtool.npu.estimate import REPEATS, estimate
from qdqtool.npu.estimated import Estimate
from qdqtool.npu.trace import trace
from qdqtool.npu.work import Work, work_of
from qdqtool.targets.cost import Cost, Figure, Memory
from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target
from tests.cases.cli_helpers import OURS
from tests.cases.small_models import model


def sure(value: Any) -> Figure[Any]:
    return Figure(value=value, source="this test", confidence="documented")


#: Round numbers: 1 MHz makes a cycle a microsecond.
COST = Cost(
    clock_mhz=sure(1),
    macs_per_cycle={"8": sure(64), "16": sure(16), "float": sure(8)},
    vector_elements_per_cycle=sure(4),
    dram_bytes_per_cycle=sure(2),
    dispatch_us=sure(7),
    boundary_bytes_per_us=sure(10),
    per_group_penalty=sure(3),
    blocked_penalty=sure(5),
)
MEMORY = Memory(tile=sure((4, 4, 4)), tile_bytes=sure(1 << 20), addressable_bytes=sure(1 << 30))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip(Target):
    """A target that computes everything that is quantized, but what it is told not to."""

    declined: tuple[str, ...] = ()
    floating: tuple[str, ...] = ()

    def judge(self, unit: Unit) -> Verdict:
        if not unit.is_quantized or unit.core.op_type in self.declined:
            return Verdict(kind="fallback", engine="CPU", rule="test")
        kind = "npu-float" if unit.core.op_type in self.floating else "npu-int"
        return Verdict(kind=kind, engine="engine", rule="test")


def chip(**changed: Any) -> Chip:
    return Chip(
        name="chip", description="", version="1", rules=(), sha256="", **{"cost": COST, "memory": MEMORY, **changed}
    )


def quantized(op: str, x: str, w: str | None, y: str) -> ir.Model:
    """int8 → ``op`` (reading ``a``, and ``b`` for a constant of shape ``w``) → int8."""
    weight = "" if w is None else "b = DequantizeLinear(w, s, z)"
    constants = "" if w is None else f", int8[{w}] w = {{{','.join('1' * _size(w))}}}"
    found = model(f"""g (int8[{x}] x) => (int8[{y}] y) <float s = {{0.5}}, int8 z = {{0}}{constants}> {{
        a = DequantizeLinear(x, s, z)  {weight}  f = {op}  y = QuantizeLinear(f, s, z) }}""")
    run_pipeline(found, "infer-shapes")
    return found


def _size(shape: str) -> int:
    size = 1
    for dim in shape.split(","):
        size *= int(dim)
    return size


def estimated(graph: ir.Model, target: Chip | None = None) -> Estimate:
    target = target or chip()
    return estimate(target, partition_for(graph, target, simulated=False))


CONV = ("Conv<pads: ints = [1,1,1,1]>(a, b)", "1,4,4,4", "8,4,3,3", "1,8,4,4")
DEPTHWISE = ("Conv<pads: ints = [1,1,1,1], group: int = 4>(a, b)", "1,4,4,4", "4,1,3,3", "1,4,4,4")


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (CONV, Products(count=1, rows=16, depth=36, columns=8)),
        (DEPTHWISE, Products(count=4, rows=16, depth=9, columns=1)),
        (("ConvTranspose(a, b)", "1,4,5,5", "4,3,2,2", "1,3,6,6"), Products(count=1, rows=25, depth=4, columns=12)),
        (("Gemm<transB: int = 1>(a, b)", "3,5", "7,5", "3,7"), Products(count=1, rows=3, depth=5, columns=7)),
        (("Gemm<transA: int = 1>(a, b)", "5,3", "5,7", "3,7"), Products(count=1, rows=3, depth=5, columns=7)),
        (("MatMul(a, b)", "2,4,3,5", "5,7", "2,4,3,7"), Products(count=1, rows=24, depth=5, columns=7)),
        (("MatMul(a, b)", "2,1,3,5", "4,5,7", "2,4,3,7"), Products(count=8, rows=3, depth=5, columns=7)),
        (("MatMul(a, b)", "5", "5,7", "7"), Products(count=1, rows=1, depth=5, columns=7)),
    ],
)
def test_products(case: tuple[str, str, str, str], expected: Products) -> None:
    graph = quantized(*case)
    (unit,) = units_of(graph)
    work = work_of(unit)
    assert isinstance(work, Work)
    assert work.products == expected
    assert work.macs == macs_of(unit.core)


@pytest.mark.parametrize("path", [p for p in OURS if p.stem != "loop_body"], ids=lambda path: path.stem)
def test_work_counts_the_multiplications_that_analyze_counts(path: Any) -> None:
    graph = load(path)
    sizes = {d.value for v in graph.graph.inputs for d in v.shape or () if isinstance(d, ir.SymbolicDim)}
    dims = [f"{name}=2" for name in sorted(filter(None, sizes))]
    run_pipeline(graph, f"inline-functions,fix-shapes{{dims={json.dumps(dims)}}}" if dims else "infer-shapes")
    counted = [(unit, work) for unit in units_of(graph) if isinstance(work := work_of(unit), Work)]
    assert counted
    for unit, work in counted:
        assert work.macs == macs_of(unit.core), unit.core.name


def test_tiles_are_filled_up() -> None:
    products = Products(count=2, rows=5, depth=4, columns=9)
    assert products.tiles((4, 4, 4)) == 2 * 2 * 1 * 3
    assert Products(count=1, rows=8, depth=8, columns=8).tiles((4, 4, 4)) == 8


def test_a_convolution_by_hand() -> None:
    found = estimated(quantized(*CONV))
    (node,) = found.nodes
    assert node.macs == 16 * 36 * 8
    assert node.tiles == 4 * 9 * 2
    assert node.utilisation == 1.0
    assert node.weight_bytes == 8 * 36
    assert node.dram_bytes == 288 + 64 + 128  # weights, input, output: both cross the edge of the partition
    assert node.cycles == {"matrix": 72 * 64 / 64, "vector": 128 / 4, "dram": 480 / 2}
    assert node.bound_by == "dram"
    assert node.us == 240
    (part,) = found.partitions
    assert (part.dispatch_us, part.in_us, part.out_us) == (7, 6.4, 12.8)
    assert found.us == pytest.approx(7 + 6.4 + 240 + 12.8)


def test_utilisation_is_the_share_of_the_tiles_that_is_needed() -> None:
    (node,) = estimated(quantized("MatMul(a, b)", "3,5", "5,7", "3,7")).nodes
    assert node.tiles == 1 * 2 * 2
    assert node.utilisation == pytest.approx(3 * 5 * 7 / (4 * 64))


def test_a_grouped_convolution_takes_the_quicker_unit() -> None:
    (slow,) = estimated(quantized(*DEPTHWISE)).nodes
    # 4 products of 16×9×1: 4 tiles of rows, 3 of depth, 1 of columns each, and 3 cycles a group
    assert slow.cycles["matrix"] == 4 * 12 + 4 * 3
    assert slow.tiles == 48
    assert "4 groups, 3 cycles each" in slow.note
    quick = dataclasses.replace(COST, vector_elements_per_cycle=sure(64))
    (node,) = estimated(quantized(*DEPTHWISE), chip(cost=quick)).nodes
    assert node.cycles["matrix"] == 0
    assert node.cycles["vector"] == (16 * 36 + 64) / 64
    assert node.utilisation is None
    assert "on the vector unit" in node.note


def test_a_scale_per_block_is_slow() -> None:
    text = """g (int8[4,8] x) => (int8[4,4] y) <float s = {0.5}, int8 z = {0}, int8[8,4] w = {%s}, float[2,4] t = {%s}> {
        a = DequantizeLinear(x, s, z)  b = DequantizeLinear<axis: int = 0, block_size: int = 4>(w, t)
        f = MatMul(a, b)  y = QuantizeLinear(f, s, z) }"""
    graph = model(text % (",".join("1" * 32), ",".join(["0.5"] * 8)))
    run_pipeline(graph, "infer-shapes")
    (node,) = estimated(graph).nodes
    assert node.cycles["matrix"] == 5 * 2
    assert "5 times the time of 8 bits" in node.note
    for penalty, cycles in ((5, 16), (100, 200)):  # 2 cycles in 8 bits, 16 in floating point
        slow = dataclasses.replace(COST, blocked_penalty=sure(penalty))
        (node,) = estimated(graph, chip(cost=slow, floating=("MatMul",))).nodes
        assert node.cycles["matrix"] == cycles


def test_floating_point_is_slow() -> None:
    (node,) = estimated(quantized(*CONV), chip(floating=("Conv",))).nodes
    assert node.cycles["matrix"] == 72 * 64 / 8
    assert node.cycles["vector"] == 128 / 2
    assert "floating point" in node.note


CHAIN = """g (int8[1,64] x) => (int8[1,64] y) <float s = {0.5}, int8 z = {0}> {
    a = DequantizeLinear(x, s, z)  f = Relu(a)  p = QuantizeLinear(f, s, z)
    b = DequantizeLinear(p, s, z)  g = Neg(b)   q = QuantizeLinear(g, s, z)
    c = DequantizeLinear(q, s, z)  h = Abs(c)   y = QuantizeLinear(h, s, z) }"""


def chain() -> ir.Model:
    graph = model(CHAIN)
    run_pipeline(graph, "infer-shapes")
    return graph


def test_what_stays_beside_the_engines_is_not_read_again() -> None:
    inside = estimated(chain())
    assert [node.dram_bytes for node in inside.nodes] == [64, 0, 64]
    small = estimated(chain(), chip(memory=dataclasses.replace(MEMORY, tile_bytes=sure(127))))
    assert [node.dram_bytes for node in small.nodes] == [128, 128, 128]
    room = estimated(chain(), chip(memory=dataclasses.replace(MEMORY, tile_bytes=sure(128))))
    assert [node.dram_bytes for node in room.nodes] == [64, 0, 64]


def test_the_cheaper_side_is_read_again_where_nothing_fits() -> None:
    graph = quantized("MatMul(a, b)", "8,8", "8,16", "8,16")
    little = chip(memory=dataclasses.replace(MEMORY, tile_bytes=sure(32)))
    (node,) = estimated(graph, little).nodes
    # weights 128 in 4 pieces, inputs 64 in 2: the inputs three times more, or the weights once more
    assert node.dram_bytes == 128 + 64 + 128 + min(3 * 64, 1 * 128)


def test_nodes_of_the_cpu_are_listed_without_an_estimate() -> None:
    found = estimated(chain(), chip(declined=("Neg",)))
    first, cpu, last = found.nodes
    assert (cpu.device, cpu.us, cpu.partition) == ("CPU", None, None)
    assert cpu.note == "on the CPU: no estimate"
    assert (first.partition, last.partition) == (0, 1)
    assert len(found.partitions) == 2
    assert found.us == pytest.approx(sum(p.us or 0 for p in found.partitions))
    assert found.notes == (f"not in the estimate: what runs on the CPU, {cpu.name}",)
    nothing = estimated(chain(), chip(declined=("Neg", "Relu", "Abs")))
    assert nothing.us == 0.0
    assert nothing.to_json()["us"] == 0.0
    assert nothing.notes[0] == "nothing runs on the NPU: 0 µs there"
    assert nothing.notes[1].startswith("not in the estimate: what runs on the CPU, ")


def test_a_node_is_shown_on_the_engine_that_computes_it() -> None:
    """Not on the one that computes most of its partition."""
    text = """g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float s = {0.5}, uint8 z = {0}, int8 o = {0}, int8[2,2,1,1] wq = {1,2,3,4}> {
      xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) w = DequantizeLinear(wq, s, o) c = Conv(xd, w)
      cq = QuantizeLinear(c, s, z) cd = DequantizeLinear(cq, s, z) r = Relu(cd) rq = QuantizeLinear(r, s, z) rd = DequantizeLinear(rq, s, z)
      t = Tanh(rd) yq = QuantizeLinear(t, s, z) y = DequantizeLinear(yq, s, z) }"""
    graph = model(text)
    run_pipeline(graph, "infer-shapes")
    found = estimate(load_target("qnn_htp"), partition_for(graph, load_target("qnn_htp")))
    assert [(node.op, node.device) for node in found.nodes] == [("Conv", "HMX"), ("Relu", "HVX"), ("Tanh", "HVX")]


def test_a_dynamic_shape_has_no_estimate() -> None:
    graph = model(CHAIN.replace("[1,64]", "[N,64]"))
    run_pipeline(graph, "infer-shapes")
    found = estimated(graph)
    assert found.us is None
    assert found.nodes[0].note == "the shape of a is not static"


def test_what_the_target_cannot_address_is_said() -> None:
    found = estimated(quantized(*CONV), chip(memory=dataclasses.replace(MEMORY, addressable_bytes=sure(400))))
    assert found.notes == ("partition 0 needs 480 bytes at once, the target addresses 400: cut it",)


def test_json_says_that_it_is_an_estimate_and_where_its_numbers_come_from() -> None:
    data = estimated(quantized(*CONV)).to_json()
    json.dumps(data, allow_nan=False)
    assert "not a measurement" in data["estimate"]
    sources = {a["key"]: (a["value"], a["confidence"]) for a in data["assumptions"]}
    assert sources["memory.tile"] == ([4, 4, 4], "documented")
    assert sources["cost.macs_per_cycle.8"] == (64, "documented")
    named = {field.name for cls in (Cost, Memory) for field in dataclasses.fields(cls)}
    named = {name for name in named if not name.startswith("cpu_")}  # of the CPU, which is not in this estimate
    assert {key.split(".")[1] for key in sources} == named


def test_the_timeline_adds_up_and_says_that_it_is_an_estimate() -> None:
    found = estimated(chain(), chip(declined=("Neg",)))
    data = json.loads(json.dumps(trace(found), allow_nan=False))
    events = data["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert all("estimate" in name for name in rows.values())
    assert "ESTIMATE" in next(e["args"]["name"] for e in events if e["name"] == "process_name")
    spans = [e for e in events if e["ph"] == "X"]
    assert all(e["args"]["estimate"] and e["dur"] >= 0 for e in spans)
    serial = [e for e in spans if rows[e["tid"]] in ("estimate: nodes", "estimate: dispatch and transfers")]
    clock = 0.0
    for event in serial:
        assert event["ts"] == pytest.approx(clock)
        clock += event["dur"]
    assert clock == pytest.approx(found.us)
    by_node = {e["name"]: e for e in serial}
    for event in spans:
        if event["name"] in by_node:
            assert event["dur"] <= by_node[event["name"]]["dur"] + 1e-9
    assert [e["name"] for e in events if e["ph"] == "i"] == [found.nodes[1].name]


@pytest.mark.parametrize("name", ["generic_int8", "vitis_xint8", "qnn_htp"])
def test_targets_that_come_along_have_numbers(name: str) -> None:
    target = load_target(name)
    found = estimate(target, partition_for(quantized(*CONV), chip()))
    assert found.us is not None
    assert found.us > 0


#: Scores of three queries a key: k [1, 2, 64, 8] is repeated to [1, 6, 64, 8].
REPEATED = """g (float[1,6,1,8] q, float[1,2,64,8] k) => (float[1,6,1,64] y%s)
    <int64[1] two = {2}, int64[5] wide = {1,2,3,64,8}, int64[4] heads = {1,6,64,8}> {
    a = Unsqueeze(k, two)  b = Expand(a, wide)  c = Reshape(b, heads)
    d = Transpose<perm: ints = [0,1,3,2]>(c)  y = MatMul(q, d) %s }"""
K, Q, Y = 4 * 2 * 64 * 8, 4 * 6 * 8, 4 * 6 * 64
#: An attention whose cache of 63 rows gains one.
GROWING = """g (float[1,1,1,8] x, float[1,1,63,8] past_key, float[1,1,63,8] past_value)
    => (float[1,1,1,8] y, float[1,1,64,8] present_key, float[1,1,64,8] present_value) {
    n = Relu(x)  present_key = Concat<axis: int = 2>(past_key, n)  present_value = Concat<axis: int = 2>(past_value, n)
    d = Transpose<perm: ints = [0,1,3,2]>(present_key)  f = MatMul(n, d)  s = Softmax(f)  y = MatMul(s, present_value) }"""
ROW = 4 * 8


def on_htp(graph: ir.Model) -> Estimate:
    run_pipeline(graph, "give-names,infer-shapes")
    target = load_target("qnn_htp")
    return estimate(target, partition_for(graph, target, simulated=False))


def test_repeated_heads_are_read_once_by_the_product() -> None:
    found = {node.op: node for node in on_htp(model(REPEATED % ("", ""))).nodes}
    assert {op for op, node in found.items() if node.note == REPEATS} == {"Unsqueeze", "Expand", "Reshape", "Transpose"}
    assert [found[op].us for op in ("Unsqueeze", "Expand", "Reshape", "Transpose")] == [0, 0, 0, 0]
    assert found["MatMul"].dram_bytes == (Q + K + Y) / 2  # the target holds floats in 16 bits
    assert found["MatMul"].macs == 6 * 64 * 8


def test_repeated_heads_that_are_read_otherwise_too_are_moved() -> None:
    for ends in ((", float[1,2,3,64,8] b", ""), (", float[1,6,64,8] z", "z = Relu(c)")):
        found = {node.op: node for node in on_htp(model(REPEATED % ends)).nodes}
        assert REPEATS not in {node.note for node in found.values()}
        assert found["Expand"].us > 0


def test_a_cache_that_grows_is_assumed_to_stay_on_the_device() -> None:
    found = on_htp(model(GROWING))
    (part,) = found.partitions
    assert (part.in_bytes, part.out_bytes) == (ROW, ROW)
    assert found.notes[-1].startswith(f"assumed: the KV cache stays on the device, {2 * (63 + 64) * ROW} bytes")
    update = next(node for node in found.nodes if node.op == "Concat")
    assert update.dram_bytes == ROW / 2  # in 16 bits, written; it is read beside the engines


@pytest.mark.parametrize(("layout", "is_kept"), [("in-place", True), ("slide", False)])
def test_the_record_of_a_static_graph_says_whether_the_cache_stays(layout: Layout, is_kept: bool) -> None:
    graph = model(GROWING)
    key = CacheTensor(past="past_key", present="present_key", layer=0, part="key", axis=2)
    cache = (key, CacheTensor(past="past_value", present="present_value", layer=0, part="value", axis=2))
    record = Decoder(
        layout=layout, phase="decode", batch_size=1, seq_len=1, ctx_len=64, ids="ids", logits="y", cache=cache
    )
    DECODER.set(graph.graph, record)
    (part,) = (found := on_htp(graph)).partitions
    assert (part.in_bytes == ROW) is is_kept
    assert any("KV cache" in note for note in found.notes) is is_kept
