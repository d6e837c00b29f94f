"""Names that changed between two exports of one net: found by structure, by a map, or not at all, and then with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.graph.edit import copy_model
from qdq_passes.qdq.look.pairs import qdq_pairs

import qdqtool
from qdqtool.encodings.alignment import Alignment, align
from qdqtool.encodings.files import read_names, values_by_name
from qdqtool.encodings.formats import read_document
from qdqtool.encodings.structure import match_structure
from qdqtool.runtime.session import open_session
from tests.cases.cli_helpers import DIGITS, SAMPLES
from tests.cases.encodings_helpers import there
from tests.cases.quantized_files import quantized_file
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

CHAIN = """g (float[1,2] {x}) => (float[1,2] {y}) <float[2,2] {w} = {{1, 2, 3, 4}}, float[2,2] {v} = {{5, 6, 7, 8}}>
  {{ [{n}1] {t} = MatMul({x}, {w}) [{n}2] {u} = Relu({t}) [{n}3] {p} = MatMul({u}, {v}) [{n}4] {y} = Relu({p}) }}"""


def chain(**names: str) -> ir.Model:
    return model(CHAIN.format(**{**{k: k for k in "xywvntup"}, **names}))


def renamed(graph: ir.Model) -> tuple[ir.Model, dict[str, str]]:
    """A copy in which every tensor and every node has another name, and the map from old to new tensor names."""
    copy, names = copy_model(graph), {}
    for number, (name, value) in enumerate(sorted(values_by_name(copy).items())):
        value.name = names[name] = f"renamed/{number}"
    for number, node in enumerate(copy.graph.all_nodes()):
        node.name = f"operator_{number}"
    return copy, names


def tensors(alignment: Alignment) -> dict[str, str | None]:
    return {name: match.tensor for name, match in alignment.matches.items()}


@pytest.mark.parametrize(
    "path",
    [DIGITS, *(str(SAMPLES / f"{name}.onnx") for name in ("mobilenet_block", "vit_block", "if_branch", "loop_body"))],
)
def test_every_tensor_of_a_renamed_net_is_found(path: str) -> None:
    """Whatever two tensors have in common with each other is told apart by weights; what plays the same part is not."""
    old = qdqtool.load(path)
    new, names = renamed(old)
    found = match_structure(old, new)
    assert {name: found.pairs[name] for name in found.pairs} == {name: names[name] for name in found.pairs}
    alike = set(names) - set(found.pairs)
    assert all(found.alike[name] > 1 for name in alike)
    assert len(alike) <= len(names) // 20, alike


def test_a_net_is_matched_with_itself() -> None:
    old = qdqtool.load(DIGITS)
    alignment = align(values_by_name(old), copy_model(old), reference=old)
    report = alignment.to_json()
    assert report == {"exact": len(alignment.matches), "by_structure": [], "by_map": [], "unmatched": []}


def test_numbers_that_moved() -> None:
    """In the new export "v2" is what "v1" was: the name alone would be found, at the wrong place."""
    old, new = chain(t="v1", u="v2", p="v3"), chain(t="v2", u="v3", p="v4")
    assert tensors(align(["v1", "v2", "v3"], new)) == {"v1": None, "v2": "v2", "v3": "v3"}
    alignment = align(["v1", "v2", "v3"], new, reference=old)
    assert tensors(alignment) == {"v1": "v2", "v2": "v3", "v3": "v4"}
    assert alignment.to_json()["by_structure"] == [
        {"name": "v1", "tensor": "v2"}, {"name": "v2", "tensor": "v3"}, {"name": "v3", "tensor": "v4"}
    ]  # fmt: skip


def test_weights_may_have_changed() -> None:
    """Retrained: nothing but structure and shapes is left to go by."""
    old, new = chain(), chain(w="a", v="b", t="c", u="d", p="e")
    for value in new.graph.initializers.values():
        assert value.const_value is not None
        value.const_value = ir.tensor(value.const_value.numpy() * 3 + 1)
    alignment = align(["w", "v", "t", "u", "p", "x", "y"], new, reference=old)
    assert tensors(alignment) == {"w": "a", "v": "b", "t": "c", "u": "d", "p": "e", "x": "x", "y": "y"}


def test_tensors_that_play_one_part_are_not_guessed() -> None:
    """Two branches with the same weight that end in nothing different: t and u cannot be told apart, unless by their names."""
    twins = """g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {{1, 2, 3, 4}}>
      {{ [a] {t} = MatMul(x, w) [b] {u} = MatMul(x, w) [c] y = Max({t}, {u}, {t}, {u}) }}"""
    symmetric = """g (float[1,2] x) => (float[1,2] y, float[1,2] z) <float[2,2] w = {{1, 2, 3, 4}}>
      {{ [a] {t} = MatMul(x, w) [b] {u} = MatMul(x, w) [c] y = Add({t}, {u}) [d] z = Add({u}, {t}) }}"""
    old, new = model(twins.format(t="t", u="u")), model(twins.format(t="t2", u="u2"))
    assert tensors(align("tu", new, reference=old)) == {
        "t": "t2",
        "u": "u2",
    }  # the place among the inputs tells them apart
    old, new = model(symmetric.format(t="t", u="u")), model(symmetric.format(t="t2", u="u2"))
    assert tensors(align("tu", new, reference=old)) == {"t": "t2", "u": "u2"}  # so do the outputs they feed
    same = """g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {{1, 2, 3, 4}}>
      {{ [a] {t} = MatMul(x, w) [b] {u} = MatMul(x, w) [r] {p} = Relu({t}) [s] {q} = Relu({u}) [l] y = Identity(x) }}"""
    old, new = model(same.format(t="t", u="u", p="p", q="q")), model(same.format(t="t2", u="u2", p="p2", q="q2"))
    alignment = align(["t", "q", "y"], new, reference=old)
    assert tensors(alignment) == {"t": None, "q": None, "y": "y"}
    assert [m.reason for m in alignment.matches.values()] == ["2 tensors play its part"] * 2 + [""]
    kept = align("tu", model(same.format(t="u", u="t", p="p", q="q")), reference=old)
    assert tensors(kept) == {"t": "t", "u": "u"}


def test_a_net_that_grew() -> None:
    """An operator more in the middle: its neighbours are found all the same, it has no partner."""
    old = chain()
    grown = model("""g (float[1,2] x) => (float[1,2] y) <float[2,2] a = {1, 2, 3, 4}, float[2,2] b = {5, 6, 7, 8}>
      { [k] c = MatMul(x, a) [l] d = Relu(c) [m] f = Sigmoid(d) [n] e = MatMul(f, b) [o] y = Relu(e) }""")
    alignment = align(["w", "v", "t", "p"], grown, reference=old)
    assert tensors(alignment) == {"w": "a", "v": "b", "t": "c", "p": "e"}
    assert "f" not in tensors(align(["u"], grown, reference=old)).values()


def stack(prefix: str, layers: range) -> ir.Model:
    """Layers of one shape, told apart by their weights alone."""
    weights = ", ".join(f"float[2,2] {prefix}w{k} = {{{k}, 1, 2, {k}}}" for k in layers)
    nodes, last = [], "x"
    for k in layers:
        nodes += [
            f"[{prefix}m{k}] {prefix}t{k} = MatMul({last}, {prefix}w{k})",
            f"[{prefix}r{k}] {prefix}u{k} = Relu({prefix}t{k})",
        ]
        last = f"{prefix}u{k}"
    return model(
        f"g (float[1,2] x) => (float[1,2] y) <{weights}> {{ {' '.join(nodes)} [{prefix}end] y = Neg({last}) }}"
    )


@pytest.mark.parametrize("layers", [range(1, 7), range(6), range(2, 6)])
def test_layers_added_at_an_end(layers: range) -> None:
    """Counted from the other end every layer would be another's: weights say which is which."""
    old, new = stack("a", range(1, 6)), stack("b", layers)
    found = tensors(align([f"a{v}{k}" for k in range(1, 6) for v in "wtu"], new, reference=old))
    for name, tensor in found.items():
        assert tensor in (None, f"b{name[1:]}"), (name, tensor)
    assert all(found[f"aw{k}"] == f"bw{k}" for k in range(2, 6))


def test_a_long_stack_with_other_weights() -> None:
    """400 layers, retrained: found from both ends, in no time."""
    old, new = stack("a", range(1, 401)), stack("b", range(1, 401))
    for value in new.graph.initializers.values():
        assert value.const_value is not None
        value.const_value = ir.tensor(value.const_value.numpy() + 1000)
    found = tensors(align([f"au{k}" for k in range(1, 401)], new, reference=old))
    assert found == {f"au{k}": f"bu{k}" for k in range(1, 401)}


def test_a_name_that_means_something_else_now_is_not_taken() -> None:
    """ "u" was a Relu's result, and is a Sigmoid's now; nothing plays its part."""
    old = chain()
    new = model("""g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {1, 2, 3, 4}, float[2,2] v = {5, 6, 7, 8}>
      { [n1] t = MatMul(x, w) [n2] u = Sigmoid(t) [n3] p = MatMul(u, v) [n4] y = Relu(p) }""")
    alignment = align("tu", new, reference=old)
    assert tensors(alignment) == {"t": "t", "u": None}
    assert alignment.matches["u"].reason == "no tensor plays its part"


def test_the_map_comes_first() -> None:
    new = chain(t="c", u="d")
    alignment = align("twu", new, renames={"t": "c", "w": "nothing"})
    assert tensors(alignment) == {"t": "c", "w": None, "u": None}
    assert alignment.matches["w"].reason == "the map says nothing, no such tensor"
    assert alignment.to_json()["by_map"] == [{"name": "t", "tensor": "c"}]
    over = align(["t"], chain(t="c", u="d"), reference=chain(), renames={"t": "d"})
    assert tensors(over) == {"t": "d"}


def test_two_names_for_one_tensor() -> None:
    alignment = align(["c", "t"], chain(), renames={"c": "t"})
    assert tensors(alignment) == {"c": "t", "t": None}
    assert alignment.matches["t"].reason == "t is what c means already"


def test_a_name_of_neither_model() -> None:
    alignment = align(["relu"], chain(), reference=chain())
    assert alignment.matches["relu"].reason == "neither model has such a tensor"


def test_inside_bodies() -> None:
    body = """g (bool c, float[2] x) => (float[2] y) {{ [i] y = If(c) <then_branch = p () => (float[2] u)
      {{ [e] {t} = Exp(x) [r] u = Relu({t}) }}, else_branch = o () => (float[2] v) {{ [n] {s} = Neg(x) [m] v = Abs({s}) }}> }}"""
    alignment = align("ts", model(body.format(t="a", s="b")), reference=model(body.format(t="t", s="s")))
    assert tensors(alignment) == {"t": "a", "s": "b"}


@pytest.mark.parametrize("case", ["u8s8", "s8s8_per_axis", "dedicated"])
def test_encodings_arrive_at_a_renamed_net(case: str) -> None:
    """As many pairs with the same encodings and the same integers, and the readers that hints name are found as well."""
    before = qdqtool.load(quantized_file(case))
    bare, document, _ = there(before, "aimet-2.0.0")
    new, names = renamed(bare)
    done = qdqtool.import_encodings(new, read_document(document), names_of=bare)
    mine, theirs = (sorted(map(str, (p.encoding for p in qdq_pairs(m)))) for m in (before, done.model))
    assert mine == theirs
    assert done.alignment.to_json()["unmatched"] == []
    by_map = qdqtool.import_encodings(new, read_document(document), renames=names)
    assert sorted(str(p.encoding) for p in qdq_pairs(by_map.model)) == mine
    quantized = qdqtool.import_encodings(
        new, read_document(document), names_of=before
    )  # the names are those of its float model
    assert sorted(str(p.encoding) for p in qdq_pairs(quantized.model)) == mine


def test_a_map_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"t": "c"}), encoding="utf-8")
    assert read_names(path) == {"t": "c"}
    path.write_text(json.dumps({"t": 3}), encoding="utf-8")
    with refusal(UsageError):
        read_names(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match="is not JSON"):
        read_names(path)


def test_equal_small_constants_are_no_anchors() -> None:
    """Two scalars of one value in each model: data alone do not make a match."""
    text = "g (float[2] x) => (float[2] y) <float {a} = {{2}}, float {b} = {{2}}> {{ [m] t = Mul(x, {a}) [n] y = Add(t, {b}) }}"
    alignment = align("ab", model(text.format(a="p", b="q")), reference=model(text.format(a="a", b="b")))
    assert tensors(alignment) == {"a": "p", "b": "q"}  # told apart by Mul and Add


def test_back_and_forth_of_the_values() -> None:
    """The renamed net computes what the old one does: the encodings stand at the right places."""
    before = qdqtool.load(quantized_file("u8s8"))
    bare, document, _ = there(before, "aimet-2.0.0")
    new = renamed(bare)[0]
    image = np.random.default_rng(3).normal(0, 1, (2, 1, 8, 8)).astype(np.float32)
    feeds = [{m.graph.inputs[0].name or "": image} for m in (before, new)]
    done = qdqtool.import_encodings(new, read_document(document), names_of=bare)
    expected, got = (list(open_session(m).run(f).values()) for m, f in zip((before, done.model), feeds, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(expected, got, strict=True))
