"""Files of other tools through list, remove and insert: nothing quantized is left, nothing else is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from qdq_passes.graph.annotate import ENCODING, STYLE, Style
from qdq_passes.graph.uses import all_values, constant_array
from qdq_passes.integers.look.quantized_table import Row, qdq_rows
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.verification.rules import verify

import qdqtool
from qdqtool.io.models.load import model_of
from qdqtool.runtime.session import open_session
from tests.cases.cli_helpers import cli
from tests.cases.quantized_files import CASES, DYNAMIC, QUARK, STATIC, marked, quantized_file


def feeds_of(path: Path) -> dict[str, Any]:
    """Two seeded samples for the one input of the file."""
    value = onnx.load(path).graph.input[0]
    shape = [d.dim_value or 2 for d in value.type.tensor_type.shape.dim]
    return {value.name: np.random.default_rng(5).normal(0, 1, shape).astype(np.float32)}


def counts(path: Path) -> dict[str, int]:
    """How often each operator occurs, with its domain."""
    found: dict[str, int] = {}
    for node in onnx.load(path).graph.node:
        key = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        found[key] = found.get(key, 0) + 1
    return found


def with_pairs_bypassed(path: Path, *, keep_weights: bool = False) -> onnx.ModelProto:
    """The model whose activations are not rounded, by the plainest surgery on protobufs: who reads a DequantizeLinear behind a
    QuantizeLinear reads what the QuantizeLinear reads. Stored integers stay behind their DequantizeLinear, and with
    ``keep_weights`` float weights behind their pair."""
    model = onnx.load(path)
    constants = {tensor.name for tensor in model.graph.initializer} if keep_weights else set()
    makers = {name: node for node in model.graph.node for name in node.output}
    source = {}
    for node in model.graph.node:
        maker = makers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if maker is not None and maker.op_type == "QuantizeLinear" and maker.input[0] not in constants:
            source[node.output[0]] = maker.input[0]
    ends = {value.name for value in model.graph.output}
    kept = []
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            while name in source:
                name = source[name]
            node.input[index] = name
        if node.output[0] in source and node.output[0] in ends:
            kept.append(onnx.helper.make_node("Identity", [source[node.output[0]]], list(node.output)))
        elif node.output[0] not in source:
            kept.append(node)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


#: Files that hold pairs, and so come back from encodings.
PAIRS = [case for case in CASES if case not in (DYNAMIC, "qoperator")]


def is_quantizer(op: str) -> bool:
    return "Quantize" in op or "QLinear" in op or "Integer" in op or op.endswith(("QGemm", "MatMulNBits"))


def run(model: onnx.ModelProto | Path | str, feed: dict[str, Any]) -> list[Any]:
    session = open_session(model_of(model) if isinstance(model, onnx.ModelProto) else qdqtool.load(model))
    return list(session.run(feed).values())


@pytest.mark.parametrize("case", marked(CASES))
def test_remove_all_leaves_the_float_model(case: str, tmp_path: Path) -> None:
    source, bare = quantized_file(case), tmp_path / "float.onnx"
    cli("qdq", "remove", source, "--all", "-o", bare)
    assert [op for op in counts(bare) if is_quantizer(op)] == []
    onnx.checker.check_model(str(bare), full_check=True)
    assert verify(qdqtool.load(bare), minimum="warning") == []
    before, after = onnx.load(source), onnx.load(bare)
    assert [v.name for v in before.graph.input] == [v.name for v in after.graph.input]
    assert [v.name for v in before.graph.output] == [v.name for v in after.graph.output]
    names = Counter(n.name for n in after.graph.node if n.name) + Counter(t.name for t in after.graph.initializer)
    assert max(names.values()) == 1


@pytest.mark.parametrize("case", marked(PAIRS))
def test_what_remains_computes_with_the_dequantized_weights(case: str, tmp_path: Path) -> None:
    """Max difference 0 to the model whose pairs are bypassed by hand, its dropped Relus with them."""
    source, bare = quantized_file(case), tmp_path / "float.onnx"
    cli("qdq", "remove", source, "--all", "--keep-dropped", "-o", bare)
    reference = with_pairs_bypassed(source)
    if case == QUARK:  # whose nodes are out of order
        onnx.save(reference, tmp_path / "reference.onnx")
        cli("opt", tmp_path / "reference.onnx", "-p", "sort", "-o", tmp_path / "sorted.onnx")
        reference = onnx.load(tmp_path / "sorted.onnx")
    feed = feeds_of(source)
    for expected, got in zip(run(reference, feed), run(bare, feed), strict=True):
        assert np.array_equal(expected, got)


def test_float_weights_under_a_pair_are_what_they_were_or_rounded(tmp_path: Path) -> None:
    source, feed = quantized_file("pair_on_weights"), feeds_of(quantized_file("pair_on_weights"))
    for options, keep_weights in (([], False), (["--round-weights"], True)):
        bare = tmp_path / f"float{len(options)}.onnx"
        cli("qdq", "remove", source, "--all", "--keep-dropped", *options, "-o", bare)
        expected = run(with_pairs_bypassed(source, keep_weights=keep_weights), feed)
        assert all(np.array_equal(a, b) for a, b in zip(expected, run(bare, feed), strict=True))
    weights = [
        {t.name: t for t in onnx.load(p).graph.initializer}["head.fc.weight"]
        for p in (source, tmp_path / "float0.onnx")
    ]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("case", marked(PAIRS))
def test_recorded_encodings_bring_the_pairs_back(case: str) -> None:
    source = qdqtool.load(quantized_file(case))
    run_pipeline(source, "sort")
    recorded, stored = qdq_rows(source), integers_of(source)
    run_pipeline(source, "remove-qdq")
    assert qdq_rows(source) == []
    values = {value.name: value for value in all_values(source)}
    for row in recorded:
        value = values[row.tensor]
        assert row.encoding is not None
        ENCODING.set(value, row.encoding)
        if row.stored is not None:
            STYLE.set(value, Style(stored=row.form == "stored"))
    domain = "{domain=com.microsoft}" if case == "contrib_ops" else ""
    run_pipeline(source, f"insert-qdq{domain}")
    assert {key(row) for row in qdq_rows(source)} == {key(row) for row in recorded}
    again = integers_of(source)
    assert {name: array.tobytes() for name, array in again.items()} == {n: a.tobytes() for n, a in stored.items()}


def key(row: Row) -> tuple[Any, ...]:
    return (row.tensor, row.kind, row.form, row.domain, row.encoding)


def integers_of(model: ir.Model) -> dict[str, Any]:
    """The stored integers, by the name of their float tensor."""
    values = {value.name: value for value in all_values(model)}
    found = {row.tensor: constant_array(values[row.stored]) for row in qdq_rows(model) if row.form == "stored"}
    return {name: array for name, array in found.items() if array is not None}


@pytest.mark.parametrize("case", marked(CASES))
def test_list_sees_every_node_that_quantizes(case: str) -> None:
    """Every Q, every DQ and every integer operator of the file is in some row, and every row has what people ask for."""
    path = quantized_file(case)
    rows = cli("qdq", "list", path, "--json").json["pairs"]
    graph = onnx.load(path).graph
    quantizers = {n.name for n in graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")}
    shown = {row[end] for row in rows for end in ("node_q", "node_dq")}
    assert quantizers <= shown
    parameters = {t.name for t in graph.initializer if t.data_type in (2, 3, 5, 21, 22) and list(t.dims)}
    zero_points = {name for n in graph.node for name in n.input if "zero_point" in name}
    assert parameters - zero_points <= {row["initializer"] for row in rows}
    if case in STATIC:
        weights = [row for row in rows if row["kind"] == "weight"]
        types = {"weight_type": weights, "activation_type": [r for r in rows if r["kind"] == "activation"]}
        for option, found in types.items():
            wanted = STATIC[case][option].tensor_type
            assert {row["dtype"] for row in found} == {onnx.TensorProto.DataType.Name(wanted).lower()}
        assert any(isinstance(row["scale"], list) for row in weights) == bool(STATIC[case].get("per_channel"))
