"""Partitions: convex whatever the graph, whole where they can be, and with the Q and DQ nodes that belong to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes import run_pipeline
from qdq_passes.graph.convex import convex_groups, joined_siblings
from qdq_passes.graph.uses import main_nodes, reach
from qdq_passes.npu.partitions.partition_graph import bytes_of
from qdq_passes.npu.partitions.partitions import Partitioning, partitions
from qdq_passes.npu.units.units import Unit, units_of
from qdq_passes.npu.units.verdict import Boundary, Policy, Verdict

from tests.cases.small_models import chain, model
from tests.dial import examples
from tests.properties.qdq_graphs import qdq_texts

Graph = tuple[list[list[int]], list[bool]]
Grouped = Callable[[list[list[int]], list[bool]], list[int | None]]


@st.composite
def dags(draw: st.DrawFn) -> Graph:
    """(what each item reads, which are taken): up to 14 items."""
    count = draw(st.integers(1, 14))
    before = [
        draw(st.lists(st.integers(0, item - 1), max_size=3, unique=True)) if item else [] for item in range(count)
    ]
    return before, draw(st.lists(st.sampled_from([True, True, False]), min_size=count, max_size=count))


def after(before: Sequence[Sequence[int]]) -> list[set[int]]:
    """All items that depend on each item."""
    found: list[set[int]] = [set() for _ in before]
    for item in reversed(range(len(before))):
        for other in before[item]:
            found[other] |= {item} | found[item]
    return found


def joined(before: list[list[int]], taken: list[bool]) -> list[int | None]:
    """Groups, siblings in one."""
    return joined_siblings(before, convex_groups(before, taken))


@pytest.mark.parametrize("grouped", [convex_groups, joined])
@settings(max_examples=examples(300), deadline=None)
@given(graph=dags())
def test_groups_are_convex(grouped: Grouped, graph: Graph) -> None:
    before, taken = graph
    groups, later = grouped(before, taken), after(before)
    for one in range(len(before)):
        assert (groups[one] is None) != taken[one]
        for other in later[one]:
            if groups[one] is None or groups[one] != groups[other]:
                continue
            assert all(groups[mid] == groups[one] for mid in later[one] if other in later[mid])


@pytest.mark.parametrize("grouped", [convex_groups, joined])
@settings(max_examples=examples(300), deadline=None)
@given(graph=dags())
def test_groups_do_not_wait_for_each_other_in_a_circle(grouped: Grouped, graph: Graph) -> None:
    before, taken = graph
    groups = grouped(before, taken)
    names = [("alone", item) if group is None else ("group", group) for item, group in enumerate(groups)]
    edges = {
        (names[other], names[item]) for item, read in enumerate(before) for other in read if names[other] != names[item]
    }
    while edges:
        ends = {a for a, _ in edges} - {b for _, b in edges}
        assert ends, f"a circle: {edges}"
        edges = {(a, b) for a, b in edges if a not in ends}


@pytest.mark.parametrize("grouped", [convex_groups, joined])
@settings(max_examples=examples(100), deadline=None)
@given(graph=dags())
def test_groups_are_numbered_by_their_first_item(grouped: Grouped, graph: Graph) -> None:
    groups = [group for group in grouped(*graph) if group is not None]
    assert list(dict.fromkeys(groups)) == list(range(len(set(groups))))


@pytest.mark.parametrize(
    ("before", "taken", "expected"),
    [
        ([[], [0], [1]], "111", [0, 0, 0]),
        ([[], [0], [1]], "101", [0, None, 1]),
        ([[], [0], [0, 1]], "101", [0, None, 1]),
        ([[], [0], [1]], "011", [None, 0, 0]),
        ([[], [], [0, 1]], "011", [None, 0, 0]),
        ([[], [0], [], [1, 2]], "1011", [0, None, 1, 1]),  # 2 waits for the second group, which reads it
        ([[], [0], [], [1, 2], [2]], "10110", [0, None, 1, 2, None]),  # … unless another reads it before
        ([[], []], "11", [0, 1]),
    ],
)  # fmt: skip
def test_groups(before: list[list[int]], taken: str, expected: list[int | None]) -> None:
    assert convex_groups(before, [t == "1" for t in taken]) == expected


@pytest.mark.parametrize(
    ("before", "taken", "expected"),
    [
        ([[], [0], [0], [0], [1, 2, 3]], "01110", [None, 0, 0, 0, None]),  # q, k and v of one norm
        ([[], [0], [0, 1]], "101", [0, None, 1]),  # the last waits for the first as well
        ([[], [], [0], [0, 1]], "0011", [None, None, 0, 1]),  # the second would begin later
        ([[], []], "11", [0, 1]),
    ],
)
def test_siblings(before: list[list[int]], taken: str, expected: list[int | None]) -> None:
    assert joined(before, [t == "1" for t in taken]) == expected


def placed(
    graph: ir.Model,
    takes: Callable[[Unit], bool] = lambda unit: unit.is_quantized,
    policy: Policy = "node",
    boundary: Boundary = "cpu",
    minimum_group: int = 1,
) -> Partitioning:
    """``graph`` on an NPU that takes what ``takes`` says."""
    run_pipeline(graph, "infer-shapes")
    units = units_of(graph)
    taken = Verdict(kind="npu-int", engine="npu", rule="takes")
    declined = Verdict(
        kind="fallback", engine="CPU", rule="declines", reason="is not to its taste", suggestion="try another"
    )
    verdicts = [taken if takes(unit) else declined for unit in units]
    return partitions(main_nodes(graph), units, verdicts, policy, boundary, minimum_group)


def names(found: Partitioning) -> list[list[str]]:
    return [[str(node.name) for node in partition.nodes] for partition in found.partitions]


def ends(found: Partitioning) -> list[tuple[list[str], list[str]]]:
    return [([str(v.name) for v in p.inputs], [str(v.name) for v in p.outputs]) for p in found.partitions]


def rules(found: Partitioning) -> list[str]:
    return [f"{unit.core.name}: {verdict.rule}" for unit, verdict in zip(found.units, found.verdicts, strict=True)]


def not_softplus(unit: Unit) -> bool:
    return unit.core.op_type != "Softplus" and unit.is_quantized


def test_a_model_that_is_taken_is_one_partition() -> None:
    found = placed(model(chain("Relu", "Sigmoid")))
    assert names(found) == [["dx", "Relu0", "q0", "dq0", "Sigmoid1", "q1"]]
    assert ends(found) == [(["xq"], ["i1"])]
    assert found.partitions[0].indices == (1, 2, 3, 4, 5, 6)
    assert found.boundary_bytes == 8


def test_ends_may_run_on_the_npu() -> None:
    found = placed(model(chain("Relu")), boundary="npu")
    assert names(found) == [["qx", "dx", "Relu0", "q0", "dq0"]]
    assert ends(found) == [(["x"], ["y"])]
    assert found.boundary_bytes == 32


def test_what_is_declined_splits() -> None:
    found = placed(model(chain("Relu", "Softplus", "Tanh")), not_softplus)
    assert names(found) == [["dx", "Relu0", "q0"], ["dq1", "Tanh2", "q2"]]
    assert ends(found) == [(["xq"], ["i0"]), (["i1"], ["i2"])]
    assert rules(found) == ["Relu0: takes", "Softplus1: declines", "Tanh2: takes"]


@pytest.mark.parametrize("ops", [("Softplus", "Relu"), ("Relu", "Softplus"), ("Softplus", "Softplus")])
def test_what_is_declined_first_last_and_everywhere(ops: tuple[str, ...]) -> None:
    found = placed(model(chain(*ops)), not_softplus)
    assert sum(p.compute_nodes for p in found.partitions) == ops.count("Relu")


@pytest.mark.parametrize("policy", ["region", "whole-model"])
def test_one_culprit_takes_the_rest_along(policy: Policy) -> None:
    found = placed(model(chain("Relu", "Softplus", "Tanh")), not_softplus, policy)
    assert found.partitions == ()
    assert rules(found) == [f"Relu0: {policy}", "Softplus1: declines", f"Tanh2: {policy}"]
    assert "Softplus1 (Softplus), which the NPU does not take: is not to its taste" in found.verdicts[0].reason
    assert found.verdicts[0].suggestion == "try another"


FLOAT_BETWEEN = """g (float[1,4] x) => (float[1,4] y) <float s = {0.5}, int8 z = {0}> {
  [qx] xq = QuantizeLinear(x, s, z) [dx] a = DequantizeLinear(xq, s, z)
  [soft] b = Softplus(a) [qb] bq = QuantizeLinear(b, s, z) [db] c = DequantizeLinear(bq, s, z)
  [exp] h = Exp(c) [neg] e = Neg(h)
  [qe] eq = QuantizeLinear(e, s, z) [de] f = DequantizeLinear(eq, s, z)
  [relu] g = Relu(f) [qg] gq = QuantizeLinear(g, s, z) [dg] y = DequantizeLinear(gq, s, z)
}"""


def test_a_float_node_bounds_a_region_and_costs_a_whole_model() -> None:
    assert rules(placed(model(FLOAT_BETWEEN), not_softplus, "region")) == [
        "soft: declines",
        "exp: declines",
        "neg: declines",
        "relu: takes",
    ]
    assert rules(placed(model(FLOAT_BETWEEN), not_softplus, "whole-model"))[3] == "relu: whole-model"


def test_a_mask_that_becomes_floats_costs_no_region() -> None:
    text = """g (float[1,4] x, bool[1,4] m) => (float[1,4] y) <float s = {0.5}, int8 z = {0}> {
      [cast] f = Cast<to: int = 1>(m) [qf] fq = QuantizeLinear(f, s, z) [df] k = DequantizeLinear(fq, s, z)
      [qx] xq = QuantizeLinear(x, s, z) [dx] a = DequantizeLinear(xq, s, z)
      [mul] g = Mul(a, k) [qg] gq = QuantizeLinear(g, s, z) [dg] y = DequantizeLinear(gq, s, z)
    }"""
    found = placed(model(text), lambda unit: unit.core.op_type != "Cast", "region")
    assert rules(found) == ["cast: declines", "mul: takes"]


def test_shapes_do_not_cost_a_whole_model() -> None:
    text = """g (float[1,4] x) => (float[1,4] y, int64[2] n) <float s = {0.5}, int8 z = {0}> {
      [qx] xq = QuantizeLinear(x, s, z) [dx] a = DequantizeLinear(xq, s, z) [shape] n = Shape(x)
      [relu] g = Relu(a) [qg] gq = QuantizeLinear(g, s, z) [dg] y = DequantizeLinear(gq, s, z)
    }"""
    assert rules(placed(model(text), policy="whole-model")) == ["shape: declines", "relu: takes"]


def test_indices_that_the_cpu_makes_begin_no_group() -> None:
    text = """g (int64[1,4] i) => (float[1,4,2] y) <float s = {0.5}, int8 z = {0}, int8[8,2] t = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}, int64 one = {1}> {
      [sign] j = Sign(i) [add] k = Add(j, one) [again] l = Sign(k) [dt] table = DequantizeLinear(t, s, z)
      [rows] a = Gather(table, k) [qa] aq = QuantizeLinear(a, s, z) [da] b = DequantizeLinear(aq, s, z)
      [others] c = Gather(table, l) [qc] cq = QuantizeLinear(c, s, z) [dc] d = DequantizeLinear(cq, s, z)
      [sum] e = Add(b, d) [qe] eq = QuantizeLinear(e, s, z) [de] y = DequantizeLinear(eq, s, z)
    }"""
    found = placed(model(text), lambda unit: unit.core.op_type != "Sign", minimum_group=2)
    assert [p.compute_nodes for p in found.partitions] == [3]


def test_small_groups_stay_on_the_cpu() -> None:
    found = placed(model(chain("Relu", "Softplus", "Tanh", "Relu")), not_softplus, minimum_group=2)
    assert names(found) == [["dq1", "Tanh2", "q2", "dq2", "Relu3", "q3"]]
    assert [p.id for p in found.partitions] == [0]
    assert found.verdicts[0] == Verdict(
        kind="fallback", engine="CPU", rule="minimum-group",
        reason="would be in a partition of 1 operator, fewer than 2",
        suggestion="mend Softplus1 (Softplus) beside it, so that they run together: try another",
    )  # fmt: skip


SHARED = """g (float[1,4] x) => (float[1,4] y, float[1,4] w) <float s = {0.5}, int8 z = {0}, int8[4] c = {1,2,3,4}> {
  [qx] xq = QuantizeLinear(x, s, z) [dx] a = DequantizeLinear(xq, s, z) [dc] k = DequantizeLinear(c, s, z)
  [add1] b = Add(a, k) [qb] bq = QuantizeLinear(b, s, z) [db] d = DequantizeLinear(bq, s, z)
  [soft] e = Softplus(d) [qe] eq = QuantizeLinear(e, s, z) [de] f = DequantizeLinear(eq, s, z)
  [add2] h = Add(f, k) [qh] hq = QuantizeLinear(h, s, z) [dh] y = DequantizeLinear(hq, s, z)
  [relu] i = Relu(d) [qi] iq = QuantizeLinear(i, s, z) [di] w = DequantizeLinear(iq, s, z)
}"""


def test_who_has_a_shared_dequantize() -> None:
    found = placed(model(SHARED), not_softplus)
    assert names(found) == [["dx", "add1", "qb", "db", "relu", "qi"], ["de", "add2", "qh"]]
    assert ends(found) == [(["xq"], ["d", "iq"]), (["eq"], ["hq"])]
    assert [[node.name for node in p.copies] for p in found.partitions] == [["dc"], ["dc"]]


def test_a_dequantize_with_readers_in_two_partitions_stays_outside() -> None:
    text = SHARED.replace("Relu(d)", "Relu(a)").replace("[add2] h = Add(f, k)", "[add2] h = Add(f, a)")
    found = placed(model(text), not_softplus)
    assert names(found) == [["dc", "add1", "qb"], ["de", "add2", "qh"], ["relu", "qi"]]
    assert ends(found)[0] == (["a"], ["bq"])


def test_a_pair_on_a_float_weight_joins_its_reader() -> None:
    text = """g (float[1,4] x) => (float[1,4] y) <float s = {0.5}, int8 z = {0}, float[4] c = {1,2,3,4}> {
      [qc] cq = QuantizeLinear(c, s, z) [qx] xq = QuantizeLinear(x, s, z) [dx] a = DequantizeLinear(xq, s, z)
      [dc] k = DequantizeLinear(cq, s, z) [add] b = Add(a, k) [qb] bq = QuantizeLinear(b, s, z) [db] y = DequantizeLinear(bq, s, z)
    }"""
    found = placed(model(text))
    assert names(found) == [["qc", "dx", "dc", "add", "qb"]]
    assert ends(found) == [(["xq"], ["bq"])]


def test_an_initializer_that_is_a_graph_input_comes_from_outside() -> None:
    text = """g (float[1,4] x, int8[4] c) => (float[1,4] y) <float s = {0.5}, int8 z = {0}, int8[4] c = {1,2,3,4}> {
      [qx] xq = QuantizeLinear(x, s, z) [dx] a = DequantizeLinear(xq, s, z)
      [dc] k = DequantizeLinear(c, s, z) [add] b = Add(a, k) [qb] bq = QuantizeLinear(b, s, z) [db] y = DequantizeLinear(bq, s, z)
    }"""
    assert ends(placed(model(text))) == [(["xq", "c"], ["bq"])]


def test_bodies_are_declined_and_bound_what_they_read() -> None:
    text = """g (float[1,4] x, bool c) => (float[1,4] y) <float s = {0.5}, int8 z = {0}> {
      [qx] xq = QuantizeLinear(x, s, z) [dx] a = DequantizeLinear(xq, s, z)
      [relu] b = Relu(a) [qb] bq = QuantizeLinear(b, s, z) [db] d = DequantizeLinear(bq, s, z)
      [if] o = If(c) <then_branch = t () => (float[1,4] p) { [neg] p = Neg(d) }, else_branch = e () => (float[1,4] q) { [same] q = Identity(d) }>
      [qo] oq = QuantizeLinear(o, s, z) [do] e2 = DequantizeLinear(oq, s, z)
      [add] f = Add(e2, d) [qf] fq = QuantizeLinear(f, s, z) [df] y = DequantizeLinear(fq, s, z)
    }"""
    found = placed(model(text), lambda unit: unit.is_quantized or unit.core.op_type == "If")
    assert names(found) == [["dx", "relu", "qb"], ["do", "add", "qf"]]
    assert rules(found)[1] == "if: inner-graph"
    assert {node.name: verdict.rule for node, verdict in found.inner.items()} == {
        "neg": "inner-graph",
        "same": "inner-graph",
    }
    assert next(iter(found.inner.values())).reason == "is in a body of if, and bodies run on the CPU"


def test_a_computed_scale_keeps_its_quantize_outside() -> None:
    text = """g (float[1,4] x) => (float[1,4] y) <float s = {0.5}, int8 z = {0}> {
      [qx] xq = QuantizeLinear(x, s, z) [dx] a = DequantizeLinear(xq, s, z)
      [relu] b = Relu(a) [max] m = ReduceMax<keepdims: int = 0>(b) [qb] bq = QuantizeLinear(b, m, z) [db] d = DequantizeLinear(bq, m, z)
      [tanh] e = Tanh(d) [qe] eq = QuantizeLinear(e, s, z) [de] y = DequantizeLinear(eq, s, z)
    }"""
    found = placed(model(text), lambda unit: unit.core.op_type in ("Relu", "Tanh"))
    assert names(found) == [["dx", "relu"], ["db", "tanh", "qe"]]
    assert is_convex(found, model_of(found))


def test_a_file_out_of_order_gives_the_same_partition() -> None:
    graph = model(chain("Relu", "Sigmoid"))
    nodes = list(graph.graph)
    graph.graph.remove(nodes[2])
    graph.graph.append(nodes[2])
    found = placed(graph)
    assert names(found) == [["dx", "q0", "dq0", "Sigmoid1", "q1", "Relu0"]]
    assert ends(found) == [(["xq"], ["i1"])]


def test_bytes_of_integers_without_a_shape_are_those_of_their_pair() -> None:
    graph = model(chain("Relu"))
    values = {v.name: v for node in graph.graph for v in node.outputs}
    assert values["xq"].shape is None
    assert bytes_of(values["xq"]) == 4
    assert bytes_of(graph.graph.inputs[0]) == 16


def model_of(found: Partitioning) -> ir.Graph:
    graph = found.units[0].core.graph
    assert isinstance(graph, ir.Graph)
    return graph


def is_convex(found: Partitioning, graph: ir.Graph) -> bool:
    """Whether no path of nodes, Q and DQ included, leaves a partition and comes back."""
    edges = reach(graph)
    for partition in found.partitions:
        inside = set(partition.nodes)
        if (edges.after(inside) - inside) & (edges.before(inside) - inside):
            return False
    return True


@settings(max_examples=examples(60), deadline=None)
@given(qdq_texts(), st.integers(0, 2**30), st.sampled_from(["cpu", "npu"]), st.booleans())
def test_partitions_of_random_models_are_convex(text: str, seed: int, boundary: Boundary, floats: bool) -> None:
    graph = model(text)
    order = {node: i for i, node in enumerate(graph.graph)}
    found = placed(
        graph, lambda unit: (floats or unit.is_quantized) and bool(seed >> order[unit.core] % 30 & 1), boundary=boundary
    )
    assert is_convex(found, graph.graph)
    held = [node for p in found.partitions for node in p.nodes]
    assert len(held) == len(set(held))
    for p in found.partitions:
        assert [graph.graph[i] for i in p.indices] == list(p.nodes)
        assert {node for unit in p.units for node in unit.nodes} <= set(p.nodes)
        read = {
            v for node in p.nodes for v in node.inputs if v is not None and v.producer() not in (*p.nodes, *p.copies)
        }
        assert set(p.inputs) == {
            v for v in read if not (v.const_value is not None and not v.is_graph_input()) and not _is_constant_node(v)
        }
    again = placed(
        model(text),
        lambda unit: (floats or unit.is_quantized) and bool(seed >> _place(unit) % 30 & 1),
        boundary=boundary,
    )
    assert names(again) == names(found)


def _place(unit: Unit) -> int:
    assert unit.core.graph is not None
    return next(i for i, node in enumerate(unit.core.graph) if node is unit.core)


def _is_constant_node(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == "Constant"
