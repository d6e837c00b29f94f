"""What costs no transfer in the estimate: a KV cache that stays on the device, and heads repeated for grouped queries."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from qdq_passes import run_pipeline
from qdq_passes.decoder.look.record import DECODER, CacheTensor, Decoder, Layout
from qdq_passes.npu.partitions.partitions import partition_for

from qdqtool.npu.estimate import REPEATS, estimate
from qdqtool.npu.estimated import Estimate
from qdqtool.targets.loading import load_target
from tests.cases.small_models import model

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


def estimated(graph: ir.Model) -> Estimate:
    run_pipeline(graph, "give-names,infer-shapes")
    target = load_target("qnn_htp")
    return estimate(target, partition_for(graph, target, simulated=False))


def test_repeated_heads_are_read_once_by_the_product() -> None:
    found = {node.op: node for node in estimated(model(REPEATED % ("", ""))).nodes}
    assert {op for op, node in found.items() if node.note == REPEATS} == {"Unsqueeze", "Expand", "Reshape", "Transpose"}
    assert [found[op].us for op in ("Unsqueeze", "Expand", "Reshape", "Transpose")] == [0, 0, 0, 0]
    assert found["MatMul"].dram_bytes == Q + K + Y
    assert found["MatMul"].macs == 6 * 64 * 8


def test_repeated_heads_that_are_read_otherwise_too_are_moved() -> None:
    for ends in ((", float[1,2,3,64,8] b", ""), (", float[1,6,64,8] z", "z = Relu(c)")):
        found = {node.op: node for node in estimated(model(REPEATED % ends)).nodes}
        assert REPEATS not in {node.note for node in found.values()}
        assert found["Expand"].us > 0


def test_a_cache_that_grows_is_assumed_to_stay_on_the_device() -> None:
    found = estimated(model(GROWING))
    (part,) = found.partitions
    assert (part.in_bytes, part.out_bytes) == (ROW, ROW)
    assert found.notes[-1].startswith(f"assumed: the KV cache stays on the device, {2 * (63 + 64) * ROW} bytes")
    update = next(node for node in found.nodes if node.op == "Concat")
    assert update.dram_bytes == ROW  # written, and read beside the engines


@pytest.mark.parametrize(("layout", "is_kept"), [("in-place", True), ("slide", False)])
def test_the_record_of_a_static_graph_says_whether_the_cache_stays(layout: Layout, is_kept: bool) -> None:
    graph = model(GROWING)
    key = CacheTensor(past="past_key", present="present_key", layer=0, part="key", axis=2)
    cache = (key, CacheTensor(past="past_value", present="present_value", layer=0, part="value", axis=2))
    record = Decoder(
        layout=layout, phase="decode", batch_size=1, seq_len=1, ctx_len=64, ids="ids", logits="y", cache=cache
    )
    DECODER.set(graph.graph, record)
    (part,) = (found := estimated(graph)).partitions
    assert (part.in_bytes == ROW) is is_kept
    assert any("KV cache" in note for note in found.notes) is is_kept
