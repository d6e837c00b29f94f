"""The memory plan: weights once, the cache once, the peak of activations by hand, parts that fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import UsageError

from qdqtool import api
from qdqtool.llm.folder.manifest import read_manifest
from qdqtool.npu.memory import GraphMemory, graph_memory, plan_of
from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target
from tests.cases.cli_helpers import cli
from tests.cases.small_models import model as model_of
from tests.golden_messages.refusal import refusal
from tests.npu.language.test_language_models import TARGET, quantized

#: x [1,64] and y are alive over the first step, y and z over the second, then x is alive again: it is read last.
CHAIN = """<ir_version: 10, opset_import: ["" : 18]>
main (uint8[1,64] x) => (uint8[1,64] out)
<float s = {0.1}, uint8 z = {0}, float t = {0.01}, int8 v = {0}>
{
    [dx] a = DequantizeLinear(x, s, z)
    [dw] b = DequantizeLinear(w, t, v)
    [m1] c = MatMul(a, b)
    [q1] d = QuantizeLinear(c, s, z)
    [d1] e = DequantizeLinear(d, s, z)
    [dw2] f = DequantizeLinear(w2, t, v)
    [m2] g = MatMul(e, f)
    [q2] h = QuantizeLinear(g, s, z)
    [d2] i = DequantizeLinear(h, s, z)
    [add] j = Add(i, a)
    [q3] out = QuantizeLinear(j, s, z)
}"""


def chain() -> ir.Model:
    """`CHAIN` with its weights, w [64, 32] and w2 [32, 64]."""
    made = model_of(CHAIN.replace("(uint8[1,64] x)", "(uint8[1,64] x, int8[64,32] w, int8[32,64] w2)"))
    for name, shape in (("w", (64, 32)), ("w2", (32, 64))):
        value = next(v for v in made.graph.inputs if v.name == name)
        made.graph.inputs.remove(value)
        value.const_value = ir.tensor(np.ones(shape, np.int8), name=name)
        made.graph.register_initializer(value)
    return made


def small(limit: int, folder: Path) -> Target:
    path = folder / f"limit_{limit}.toml"
    figure = f'{{ value = {limit}, source = "the test", confidence = "assumed" }}'
    text = f'description = "d"\nversion = "1"\nextends = "{TARGET}"\n[memory]\naddressable_bytes = {figure}\n'
    path.write_text(text, encoding="utf-8")
    return load_target(path)


def test_the_peak_of_a_chain_by_hand() -> None:
    found = graph_memory(chain(), load_target(TARGET), name="chain")
    assert found.weight_bytes == 2 * 64 * 32
    assert found.kv_bytes == 0
    assert found.activations == 64 + 64 + 64, "x, which the Add reads last, h and out; before it x, d and h are 160"
    assert found.bytes == 4096 + 192
    assert found.parts == 1


def test_a_graph_that_is_no_decoder_needs_so_many_parts_at_least(tmp_path: Path) -> None:
    for limit, parts in ((4288, 1), (4287, 2), (2240, 2), (1600, 3), (192, None)):
        assert graph_memory(chain(), small(limit, tmp_path), name="chain").parts == parts


def test_weights_that_graphs_share_count_once() -> None:
    def graph(name: str, weights: dict[str, int], kv: int, activations: int) -> GraphMemory:
        return GraphMemory(graph=name, weights=weights, kv={"k": kv}, activations=activations)

    plan = plan_of(load_target(TARGET), [graph("p", {"a": 10, "b": 5}, 7, 3), graph("d", {"a": 10, "c": 1}, 6, 4)])
    assert (plan.weight_bytes, plan.unshared_weight_bytes) == (16, 26)
    assert plan.bytes == 16 + 7 + 4
    assert plan.fits
    assert plan.parts == 1


def test_a_folder_shares_its_weights() -> None:
    path = quantized("scatter")
    plan = api.memory_plan(path, target=TARGET)
    assert len(plan.graphs) == 2
    first, *others = plan.graphs
    assert all(other.weights == first.weights for other in others), "one file, the same tensors"
    assert plan.weight_bytes == first.weight_bytes
    assert plan.unshared_weight_bytes == 2 * first.weight_bytes
    assert plan.bytes <= plan.addressable_bytes


def test_the_number_of_parts_is_what_split_would_make(tmp_path: Path) -> None:
    """Cut into so many, each part fits into what the whole did not."""
    path = quantized("scatter")
    whole = max(api.memory_plan(path, target=TARGET).graphs, key=lambda graph: graph.bytes)
    assert whole.kv_bytes > whole.weight_bytes // 2, "parts that share the weights alone would be too large"
    limit = whole.activations + (whole.weight_bytes + whole.kv_bytes) * 3 // 4
    small(limit, tmp_path)
    plan = api.memory_plan(path, target=tmp_path / f"limit_{limit}.toml")
    assert plan.parts == 2
    assert not plan.fits
    assert any("--parts 2" in note for note in plan.notes)
    assert api.memory_plan(quantized("parts"), target=tmp_path / f"limit_{limit}.toml").fits
    small(whole.activations, tmp_path)
    none = api.memory_plan(path, target=tmp_path / f"limit_{whole.activations}.toml")
    assert none.parts is None
    assert any("no number of parts" in note for note in none.notes)


def test_parts_together_hold_what_the_whole_holds() -> None:
    """All parts have their share of the cache, and all lie in the memory; a quarter of it was counted once."""
    whole, halves = (api.memory_plan(quantized(name), target=TARGET) for name in ("scatter", "parts"))
    assert (
        sum({key: size for graph in halves.graphs for key, size in graph.kv.items()}.values())
        == whole.graphs[0].kv_bytes
    )
    assert halves.bytes == halves.weight_bytes + whole.graphs[0].kv_bytes + max(g.activations for g in halves.graphs)


def test_parts_that_do_not_fit_say_how_many_the_model_needs(tmp_path: Path) -> None:
    plan = api.memory_plan(quantized("parts"), target=TARGET)
    limit = max(graph.bytes for graph in plan.graphs) - 1
    small(limit, tmp_path)
    short = api.memory_plan(quantized("parts"), target=tmp_path / f"limit_{limit}.toml")
    assert not short.fits
    assert short.parts in (3, 4), "two there are already"


def test_an_arrangement_that_is_none() -> None:
    with refusal(UsageError):
        api.memory_plan(quantized("scatter"), target=TARGET, arrange="some")


def test_linear_arrangement_needs_no_cache_on_the_npu() -> None:
    plan = api.memory_plan(quantized("scatter"), target=TARGET, arrange="linear")
    assert all(graph.kv_bytes == 0 for graph in plan.graphs)
    assert all(graph.weight_bytes > 0 for graph in plan.graphs)


def test_the_command(tmp_path: Path) -> None:
    path = quantized("scatter")
    told = cli("analyze", path, "--target", TARGET, "--memory", "--json").json
    assert told["memory"]["parts"] == 1
    assert [g["graph"] for g in told["memory"]["graphs"]] == [m.parts[0].file for m in read_manifest(path).models]
    assert "no parts are needed" in cli("analyze", path, "--target", TARGET, "--memory").out
    graph = path / read_manifest(path).models[0].parts[0].file
    one = cli("analyze", graph, "--target", TARGET, "--memory", "--json").json
    assert one["memory"]["graphs"] == told["memory"]["graphs"][:1]
    assert one["nodes"]
    assert "memory" not in cli("analyze", graph, "--target", TARGET, "--json").json
    assert "--memory" in cli("analyze", path, "--target", TARGET, code=2).err
    assert api.analyze(graph, target=TARGET, memory=True).memory is not None
    json.dumps(one)


def test_a_folder_that_split_did_not_write(tmp_path: Path) -> None:
    with refusal(UsageError):
        api.memory_plan(tmp_path, target=TARGET)
