"""Annotations: facts on values and nodes, through a file and back."""

from __future__ import annotations

import json

import onnx
import onnx_ir as ir
import pytest
from qdq_passes.graph.annotate import (
    DEMAND,
    ENCODING,
    FUSED,
    ORIGIN,
    PART,
    Annotation,
    Demand,
    Fused,
    Origin,
    Part,
    annotation_kinds,
    holders,
    read_metadata,
    write_metadata,
)
from qdq_passes.graph.dump import dump
from qdq_passes.graph.uses import all_nodes, all_values
from qdq_passes.numerics.encoding import Encoding

from tests.cases.small_models import model

NETWORK = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
g (bool c, float[2] x) => (float[2] y) <float[2] w = {1,2}>
{
  [add] s = Add(x, w)
  [call] t = local.Block(s)
  [if] y = If(c) <
    then_branch = yes () => (float[2] a) <float[2] inner = {3, 4}> { [mul] a = Mul(t, inner) },
    else_branch = no () => (float[2] b) { [id] b = Identity(t) }
  >
}
<domain: "local", opset_import: ["" : 21]>
Block (p) => (q) { [exp] h = Exp(p) [relu] q = Relu(h) }
"""
ENCODINGS = [
    Encoding.per_tensor(ir.DataType.INT8, 0.1),
    Encoding.per_tensor(ir.DataType.UINT16, 2.0**-14, 32768),
    Encoding(dtype=ir.DataType.INT4, scale=(0.5, 0.25), zero_point=(0, -8), shape=(2,), axis=0),
    Encoding(dtype=ir.DataType.INT4, scale=(0.5, 0.25), zero_point=(0, 0), shape=(2, 1), axis=0, block_size=16),
    Encoding(dtype=ir.DataType.FLOAT8E4M3FN, scale=(1.5,), zero_point=(0.5,)),
]


def through_a_file(graph: ir.Model) -> ir.Model:
    """Protobuf bytes and back: ``meta`` is lost, ``metadata_props`` are not."""
    data = ir.serde.serialize_model(graph).SerializeToString()
    return ir.serde.deserialize_model(onnx.ModelProto.FromString(data))


def value(graph: ir.Model, name: str) -> ir.Value:
    found = [v for node in all_nodes(graph) for v in (*node.inputs, *node.outputs) if v is not None and v.name == name]
    return found[0]


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
@pytest.mark.parametrize("name", ["x", "w", "s", "y", "inner", "a"])
def test_encodings_survive_a_file_wherever_they_stand(encoding: Encoding, name: str) -> None:
    graph = model(NETWORK)
    ENCODING.set(value(graph, name), encoding)
    assert write_metadata(graph) == 1
    read = through_a_file(graph)
    assert ENCODING.get(value(read, name)) is None
    assert read_metadata(read) == 1
    assert ENCODING.get(value(read, name)) == encoding
    assert ENCODING.key not in value(read, name).metadata_props


@pytest.mark.parametrize(
    ("annotation", "thing"),
    [
        (FUSED, Fused("add")),
        (FUSED, Fused("add", whole=True)),
        (PART, Part("add", "Gelu")),
        (PART, Part("add", "LayerNormalization", weight=0)),
        (PART, Part("add", "LayerNormalization", bias=1)),
        (DEMAND, Demand(("add", "call"))),
        (ORIGIN, Origin(("one", "two", "ünï"))),
    ],
    ids=["fused", "whole", "part", "weight", "bias", "demand", "origin"],
)
def test_the_others_do_too(annotation: Annotation[object], thing: object) -> None:
    graph = model(NETWORK)
    for node in all_nodes(graph):
        annotation.set(node, thing)
    count = len(list(all_nodes(graph)))
    assert write_metadata(graph) == count
    read = through_a_file(graph)
    assert read_metadata(read) == count
    assert all(annotation.get(node) == thing for node in all_nodes(read))


def test_dump_is_the_same_after_a_file() -> None:
    graph = model(NETWORK)
    for encoding, each in zip(ENCODINGS, ("x", "s", "t", "a", "w"), strict=True):
        ENCODING.set(value(graph, each), encoding)
    before = dump(graph)
    write_metadata(graph)
    read = through_a_file(graph)
    assert dump(read) != before
    read_metadata(read)
    assert dump(read) == before


def test_the_text_is_canonical_json() -> None:
    graph = model(NETWORK)
    ENCODING.set(value(graph, "s"), ENCODINGS[3])
    write_metadata(graph)
    text = value(graph, "s").metadata_props["qdqtool.encoding"]
    assert text == (
        '{"axis":0,"block_size":16,"dtype":"int4","scale":[[0.5],[0.25]],"zero_point":[[0],[0]]}'
    )  # nested lists, sorted keys, no spaces
    assert json.loads(text)["scale"] == [[0.5], [0.25]]


def test_writing_twice_and_keeping() -> None:
    graph = model(NETWORK)
    FUSED.set(value(graph, "s"), Fused("add"))
    assert write_metadata(graph) == write_metadata(graph) == 1
    assert read_metadata(graph, keep=True) == 1
    assert value(graph, "s").metadata_props == {"qdqtool.fused": '{"group":"add"}'}
    FUSED.clear(value(graph, "s"))
    assert value(graph, "s").metadata_props == {}
    assert FUSED.get(value(graph, "s")) is None
    FUSED.clear(value(graph, "s"))


def test_what_has_been_taken_off_is_not_written_again() -> None:
    """A file's annotation that a pass cleared in memory must not come back through the metadata."""
    graph = model(NETWORK)
    FUSED.set(value(graph, "s"), Fused("add"))
    write_metadata(graph)
    FUSED.clear(value(graph, "s"))
    read = through_a_file(graph)
    assert read_metadata(read) == 0


def test_a_broken_annotation_is_an_error_of_json() -> None:
    graph = model(NETWORK)
    value(graph, "s").metadata_props["qdqtool.encoding"] = "{"
    with pytest.raises(ValueError, match="Expecting property name"):
        read_metadata(graph)


def test_holders_are_everything_once() -> None:
    """Nodes and values of the main graph, of bodies and of functions, and the graphs themselves."""
    graph = model(NETWORK)
    found = holders(graph)
    assert len({id(holder) for holder in found}) == len(found)
    names = {getattr(holder, "name", None) for holder in found}
    assert {"g", "yes", "no", "add", "exp", "c", "x", "w", "s", "inner", "a", "p", "h", "q", "y"} <= names
    assert {v.name for v in all_values(graph)} <= names


def test_keys_are_ours_and_distinct() -> None:
    keys = [annotation.key for annotation in annotation_kinds()]
    assert len(set(keys)) == len(keys)
    assert all(key.startswith("qdqtool.") for key in keys)
