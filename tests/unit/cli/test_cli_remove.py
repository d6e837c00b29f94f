"""`qdq list` and `qdq remove` name and remove the same, whatever form it has; what stays is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cases.cli_helpers import cli, write
from tests.cases.integer_models import feed_of
from tests.cases.quantized_files import quantized_dynamic, quantized_static
from tests.cases.small_models import run
from tests.dial import some

HEADER = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "local": 1]>'


def rows(path: Path, *options: str) -> list[str]:
    return [row["tensor"] for row in cli("qdq", "list", path, "--json", *options).json["pairs"]]


@pytest.mark.newest
@pytest.mark.parametrize("make", [quantized_static, quantized_dynamic])
def test_every_listed_tensor_can_be_selected_and_removed(make: object, tmp_path: Path) -> None:
    source, removed = tmp_path / "q.onnx", tmp_path / "r.onnx"
    assert callable(make)
    model = make(source)
    names = rows(source)
    assert len(names) > 5
    feed = feed_of(model)
    for name in some([*dict.fromkeys(names)], 5):
        select = ("--select", f"tensor:{name}")
        assert set(rows(source, *select)) == {name}
        done = cli("qdq", "remove", source, *select, "-o", removed, "--overwrite")
        left = rows(removed)
        assert name not in left or "still quantized" in done.err, name
        assert set(names) - set(left) <= {name}, name
        run(onnx.load(removed), feed)


def test_a_stored_weight_of_integers_keeps_its_numbers(tmp_path: Path) -> None:
    source, pairs, removed = tmp_path / "q.onnx", tmp_path / "p.onnx", tmp_path / "r.onnx"
    feed = feed_of(quantized_static(source))
    cli("qdq", "convert", source, "--qoperators", "--select", "tensor:w", "-o", pairs)
    kept = [n.op_type for n in onnx.load(pairs).graph.node]
    assert kept.count("Conv") == 1
    assert "QLinearConv" not in kept
    assert "QLinearAdd" in kept
    cli("qdq", "remove", source, "--select", "tensor:w", "-o", removed)
    expected, got = run(onnx.load(pairs), feed), run(onnx.load(removed), feed)
    for name, array in expected.items():  # the weight is the same number, stored or dequantized
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize("op", ["QLinearConv", "QLinearAdd", "QLinearMatMul", "QGemm"])
def test_selected_operators_go(op: str, tmp_path: Path) -> None:
    source, removed = tmp_path / "q.onnx", tmp_path / "r.onnx"
    quantized_static(source)
    assert op in {n.op_type for n in onnx.load(source).graph.node}
    cli("qdq", "remove", source, "--select", f"op:{op}", "-o", removed)
    assert op not in {n.op_type for n in onnx.load(removed).graph.node}


@pytest.mark.parametrize("options", [[], ["--per-token"]])
def test_dynamic_quantization_of_ours_goes(options: list[str], tmp_path: Path) -> None:
    text = "g (float[2,4] x) => (float[2,2] y) <float[4,2] w = {1,2,3,4,5,6,7,8}> { h = Relu(x) y = MatMul(h, w) }"
    source = write(tmp_path / "m.onnx", f"{HEADER} {text}")
    cli("qdq", "insert", source, "--dynamic", *options, "-o", tmp_path / "d.onnx")
    assert "h" in rows(tmp_path / "d.onnx", "--select", "tensor:h")
    cli("qdq", "remove", tmp_path / "d.onnx", "--select", "tensor:h", "-o", tmp_path / "r.onnx")
    assert "h" not in rows(tmp_path / "r.onnx")


def test_what_stays_is_said(tmp_path: Path) -> None:
    text = "g (uint8[2,4] a, uint8[4,4] b) => (int32[2,4] y) { [mm] y = MatMulInteger(a, b) }"
    source = write(tmp_path / "m.onnx", f"{HEADER} {text}")
    for option in (("--all",), ("--select", "op:MatMulInteger")):
        done = cli("qdq", "remove", source, *option, "-o", tmp_path / "r.onnx", "--overwrite")
        assert done.err.startswith("warning: still quantized: mm: its int32 result"), done.err


def test_parameters_that_a_function_is_called_with(tmp_path: Path) -> None:
    text = (
        "g (float[2,4] x) => (float[2,4] y) <int8[4,4] wq = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}, float s = {0.5}> "
        "{ [f] y = local.Block(x, wq, s) } "
        '<domain: "local", opset_import: ["": 21]> Block (x, w, s) => (y) '
        "{ q = QuantizeLinear(x, s) d = DequantizeLinear(q, s) f = DequantizeLinear(w, s) y = MatMul(d, f) }"
    )
    source = write(tmp_path / "m.onnx", f"{HEADER} {text}")
    done = cli("qdq", "remove", source, "--all", "-o", tmp_path / "r.onnx")
    assert "still quantized" not in done.err
    assert [n.op_type for n in onnx.load(tmp_path / "r.onnx").graph.node] == ["MatMul"]


def test_channels_last_behind_a_shape_that_is_only_inferred(tmp_path: Path) -> None:
    text = (
        "g (float[1,4,4,2] x) => (float[1,1,1,2] y) <float s = {0.5}, uint8 z = {3}, int64[4] sh = {1,4,4,2}> "
        "{ q = QuantizeLinear(x, s, z) r = Reshape(q, sh) "
        "p = com.microsoft.QLinearGlobalAveragePool<channels_last = 1>(r, s, z, s, z) y = DequantizeLinear(p, s, z) }"
    )
    source = write(tmp_path / "m.onnx", f"{HEADER} {text}")
    done = cli("qdq", "remove", source, "--all", "-o", tmp_path / "r.onnx")
    assert "still quantized" not in done.err
    assert rows(tmp_path / "r.onnx") == []


def test_only_passes_that_changed_something_are_warned_of(tmp_path: Path) -> None:
    """Of two models that went through the same passes, one has a Clip whose bounds are no integers."""
    graph = "g (float[2] x) => (float[2] y) <float low = {-1}, float high = {%s}> { y = Clip(x, low, high) }"
    for bound, is_told in (("1.9", True), ("2", False)):
        source, made, removed = (tmp_path / f"{name}{bound}.onnx" for name in "abc")
        write(source, HEADER + graph % bound)
        cli("opt", source, "-p", "round-clip-bounds{operators=all},give-names", "-o", made)
        assert ("round-clip-bounds" in cli("qdq", "remove", made, "--all", "-o", removed).err) is is_told
