"""`qdqtool view` in a real browser: what Netron shows of encodings when nodes and tensors are clicked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest

from tests.browser.netron_page import NO_BROWSER, NetronPage, browser_path, opened, screenshots, served, started
from tests.cases.cli_helpers import CALIB, DIGITS, cli, write

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [pytest.mark.skipif(browser_path() is None, reason=NO_BROWSER), pytest.mark.product(days=3)]

#: A weight per axis, blocked 4-bit weights, an int32 bias, activations of uint8, a graph input and a graph output.
EVERY_KIND = """
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[1,4] x) => (float[1,2] y)
    <float s = {0.1}, uint8 z = {128}, int8[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}, float[4] ws = {0.5, 0.25, 0.125, 1},
     int8[4] wz = {0,0,0,0}, int32[4] b = {1,2,3,4}, float[4] bs = {0.05, 0.025, 0.0125, 0.1}, int32[4] bz = {0,0,0,0},
     uint4[4,2] k = {1,2,3,4}, float[2,2] ks = {0.5, 0.3, 0.2, 0.1}, uint4[2,2] kz = {8, 7}>
    { [q0] i = QuantizeLinear(x, s, z) [d0] f = DequantizeLinear(i, s, z)
      [dw] v = DequantizeLinear<axis: int = 1>(w, ws, wz) [db] c = DequantizeLinear<axis: int = 0>(b, bs, bz)
      [gemm] t = Gemm(f, v, c) [q1] j = QuantizeLinear(t, s, z) [d1] g = DequantizeLinear(j, s, z)
      [dk] m = DequantizeLinear<axis: int = 0, block_size: int = 2>(k, ks, kz) [matmul] y = MatMul(g, m) }"""


#: Pairs in the body of an If, called p, and in a local function.
INSIDE = """
    <ir_version: 10, opset_import: ["" : 21, "local" : 1]>
    g (bool c, float[2] x) => (float[2] y) <float s = {0.5}, int8 z = {0}>
    { [call] u = local.Block(x) [choice] y = If(c) <
      then_branch = p () => (float[2] a) { [exp] t = Exp(u) [q] i = QuantizeLinear(t, s, z) [d] a = DequantizeLinear(i, s, z) },
      else_branch = r () => (float[2] b) { [neg] b = Neg(u) }> }
    <domain: "local", opset_import: ["" : 21]> Block (p) => (o)
    { s = Constant<value: tensor = float {0.25}>() z = Constant<value: tensor = uint8 {7}>()
      [fq] i = QuantizeLinear(p, s, z) [fd] v = DequantizeLinear(i, s, z) [fr] o = Relu(v) }"""


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("view") / "digits_int8.onnx"
    cli("quantize", DIGITS, "--data", CALIB, "--samples", "8", "-o", path)
    return str(path)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def digits(browser: Browser, quantized: str) -> Iterator[NetronPage]:
    with served(quantized) as url, opened(browser, url) as page:
        yield page


@pytest.fixture(scope="module")
def every_kind(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetronPage]:
    model = write(tmp_path_factory.mktemp("view") / "every_kind.onnx", EVERY_KIND)
    with served(model) as url, opened(browser, url) as page:
        yield page


def test_a_quantized_network(digits: NetronPage, quantized: str, tmp_path: Path) -> None:
    """Every node is drawn, and a Q shows its encoding as the model has it; the picture of the docs."""
    graph = onnx.load(quantized).graph
    drawn = digits.operators()
    assert drawn.count("QuantizeLinear") == sum(node.op_type == "QuantizeLinear" for node in graph.node)
    pair = next(p for p in cli("qdq", "list", quantized, "--json").json["pairs"] if p["kind"] == "activation")
    digits.click_node(pair["node_q"])
    rows = digits.sidebar()
    assert {key.removeprefix("qdq."): text for key, text in rows.items() if key.startswith("qdq.")} == {
        "tensor": pair["tensor"], "kind": "activation", "dtype": "int8", "zero_point": "0",
        "scale": f"2^{-pair['position']} ({pair['scale']:g})", "position": str(pair["position"]),
        "range": f"{-128 * pair['scale']:g} to {127 * pair['scale']:g}",
    }  # fmt: skip
    picture = screenshots(tmp_path) / "netron.png"
    digits.screenshot(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_an_operator_shows_what_it_reads_and_writes(digits: NetronPage) -> None:
    digits.click_node("/stem/conv")
    rows = digits.sidebar()
    assert rows["qdq.input[0]"].endswith(", activation")
    assert rows["qdq.input[1]"].endswith(", weight")
    assert rows["qdq.input[2]"].endswith(", bias")
    assert "encoding: int8, scale 2^" in rows["X"]
    assert "SCALE_TENSOR = " in rows["W"]


def test_tensors(every_kind: NetronPage) -> None:
    """The float tensor before Q, the stored integers, and the value that is read instead of them."""
    every_kind.click_node("q1")
    rows = every_kind.sidebar()
    assert "encoding: uint8, scale 0.1, zero point 128, activation" in rows["x"]
    assert "SCALE_TENSOR = s\nZERO_POINT_TENSOR = z" in rows["x"]
    every_kind.click_value("t")
    connection = every_kind.sidebar()
    assert connection["name"] == "t"
    assert "encoding: uint8, scale 0.1, zero point 128, activation" in connection["type"]
    every_kind.click_node("dw")
    rows = every_kind.sidebar()
    text = "encoding: int8, 4 scales 2^-3 to 2^0 on axis 1, zero point 0, weight"
    assert text in rows["x"]
    assert text in rows["y"]
    assert (rows["qdq.scale"], rows["qdq.position"], rows["qdq.axis"]) == ("4 values, 2^-3 to 2^0", "0 to 3", "1")


def test_blocked_and_bias(every_kind: NetronPage) -> None:
    every_kind.click_node("dk")
    rows = every_kind.sidebar()
    assert rows["qdq.dtype"] == "uint4"
    assert (rows["qdq.block_size"], rows["qdq.axis"]) == ("2", "0")
    assert (rows["qdq.scale"], rows["qdq.zero_point"]) == ("4 values, 0.1 to 0.5", "0 to 8")
    every_kind.click_node("db")
    assert every_kind.sidebar()["qdq.kind"] == "bias"


def test_the_graph_input(every_kind: NetronPage) -> None:
    """Of inputs and outputs Netron shows metadata as well."""
    every_kind.click_node("q0")
    every_kind.click_value("x")
    rows = every_kind.sidebar()
    assert (rows["qdq.dtype"], rows["qdq.scale"], rows["qdq.range"]) == ("uint8", "0.1", "-12.8 to 12.7")


def test_a_model_without_pairs(browser: Browser) -> None:
    with served(DIGITS) as url, opened(browser, url) as page:
        page.click_node("/stem/conv")
        rows = page.sidebar()
        assert rows["type"].endswith("Conv")
        assert not [key for key in rows if key.startswith("qdq.")]


@pytest.mark.parametrize(
    ("holder", "sign", "node", "dtype", "line"),
    [
        (
            "p",
            "+",
            "q",
            "int8",
            "encoding: int8, scale 2^-1, zero point 0, activation\nquantization: annotation\nSCALE_TENSOR = s",
        ),
        ("call", "ƒ", "fq", "uint8", "encoding: uint8, scale 2^-2, zero point 7, activation"),
    ],
)
def test_bodies_and_functions(
    browser: Browser, tmp_path: Path, holder: str, sign: str, node: str, dtype: str, line: str
) -> None:
    model = write(tmp_path / "inside.onnx", INSIDE)
    with served(model) as url, opened(browser, url) as page:
        page.open_inside(holder, sign, node)
        page.click_node(node)
        rows = page.sidebar()
        assert rows["qdq.dtype"] == dtype
        assert line in rows["y"]
