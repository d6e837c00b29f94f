"""The algebra of selectors, on any graph: `!` complements, `&` intersects, several selectors unite."""

from __future__ import annotations

import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes.graph.uses import all_nodes, all_values
from qdq_passes.select.selectors import Selection, Selector, select

from tests.dial import examples
from tests.properties.graphs import DETERMINISTIC, parse, texts

PROFILE = settings(DETERMINISTIC, max_examples=examples(60))

OPS = ("Conv", "Relu", "Gemm", "MatMul", "Add", "Concat", "Re*", "*")
node_atoms = st.one_of(
    st.sampled_from(OPS).map("op:{}".format),
    st.integers(0, 7).map("*_{}".format),
    st.integers(0, 7).map("re:_[0-{}]$".format),
    st.integers(0, 2).map("scope:layers.{}".format),
    st.integers(0, 2).map("layer:{}".format),
    st.sampled_from(OPS).map("after:op:{}".format),
    st.sampled_from(OPS).map("before:op:{}".format),
)
value_atoms = st.one_of(
    st.integers(0, 7).map("tensor:v{}".format),
    st.sampled_from(["w", "c", "x", ""]).map("tensor:{}*".format),
    st.sampled_from(OPS).map("in:op:{}".format),
    st.sampled_from(OPS).map("io:op:{}".format),
)


def hit(model: ir.Model, *selector: str) -> Selection:
    return select(model, Selector.of(*selector), allow_empty=True)


@PROFILE
@given(texts(), node_atoms)
def test_negation_of_nodes(text: str, atom: str) -> None:
    model = parse(text)
    everything, chosen, rest = set(all_nodes(model)), set(hit(model, atom).nodes), set(hit(model, f"!{atom}").nodes)
    assert rest == everything - chosen
    assert set(hit(model, f"!!{atom}").nodes) == chosen


@PROFILE
@given(texts(), value_atoms)
def test_negation_of_values(text: str, atom: str) -> None:
    model = parse(text)
    everything, chosen, rest = set(all_values(model)), set(hit(model, atom).values), set(hit(model, f"!{atom}").values)
    assert rest == everything - chosen


@PROFILE
@given(texts(), node_atoms, node_atoms)
def test_intersection_and_union_of_nodes(text: str, a: str, b: str) -> None:
    model = parse(text)
    left, right = set(hit(model, a).nodes), set(hit(model, b).nodes)
    assert set(hit(model, f"{a} & {b}").nodes) == left & right
    assert set(hit(model, f"{a}&!{b}").nodes) == left - right
    assert set(hit(model, a, b).nodes) == left | right


@PROFILE
@given(texts(), node_atoms | value_atoms, value_atoms)
def test_intersection_and_union_of_values(text: str, a: str, b: str) -> None:
    """With a value selector among them the terms intersect as values, nodes standing for what they write and their weights."""
    model = parse(text)
    left, right = set(hit(model, a).values), set(hit(model, b).values)
    assert set(hit(model, f"{a} & {b}").values) == left & right
    assert set(hit(model, a, b).values) == left | right


@PROFILE
@given(texts(), node_atoms | value_atoms)
def test_selections_are_in_the_order_of_the_graph(text: str, atom: str) -> None:
    model = parse(text)
    found = hit(model, atom)
    nodes, values = all_nodes(model), all_values(model)
    assert found.nodes == [n for n in nodes if n in set(found.nodes)]
    assert found.values == [v for v in values if v in set(found.values)]


@PROFILE
@given(texts(), st.sampled_from(OPS))
def test_before_and_after(text: str, op: str) -> None:
    """Both leave the selected nodes out; of a single node they share nothing; path: joins them at their ends."""
    model = parse(text)
    chosen = set(hit(model, f"op:{op}").nodes)
    after, before = set(hit(model, f"after:op:{op}").nodes), set(hit(model, f"before:op:{op}").nodes)
    assert not chosen & (after | before)
    for node in all_nodes(model)[:3]:
        name = node.name
        later, earlier = set(hit(model, f"after:{name}").nodes), set(hit(model, f"before:{name}").nodes)
        assert not later & earlier
        for other in later:
            path = set(hit(model, f"path:{name}..{other.name}").nodes)
            assert path == (later | {node}) & (set(hit(model, f"before:{other.name}").nodes) | {other})
