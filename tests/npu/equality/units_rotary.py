"""Random QDQ models of RotaryEmbedding: onnx's and com.microsoft's, of three and four axes, whole heads and parts of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from tests.npu.equality.random_units import Case
from tests.npu.equality.units_movement import WideBuilder

LENGTH, CONTEXT = 5, 16


def _angles(b: WideBuilder, half: int, batch: int) -> tuple[ir.Value, ir.Value, ir.Value | None, np.ndarray[Any, Any]]:
    """Cosines and sines behind pairs, and positions that choose among them."""
    angles = np.outer(np.arange(CONTEXT), 100.0 ** -(np.arange(half) / half))
    positions = b.rng.integers(0, CONTEXT, (batch, LENGTH)).astype(np.int64)
    tables = []
    for data in (np.cos(angles), np.sin(angles)):
        dtype = b.choose(*b.types)
        s = b.constant(np.array(b.scale(-8, -6) if dtype.endswith("8") else b.scale(-16, -14), np.float32))
        z = b.constant(np.array(b.zero_point(dtype), dtype))
        q = b.node("QuantizeLinear", [b.constant(data.astype(np.float32)), s, z])
        tables.append(b.node("DequantizeLinear", [q, s, z]))
    return tables[0], tables[1], b.steering("positions", positions), positions


def _heads(b: WideBuilder) -> tuple[ir.Value, Any, dict[str, int], int, int]:
    """(data behind a pair, its encoding, attributes, angles of a head, batch)"""
    flat, partial, batch, heads, size = b.rng.random() < 0.4, b.rng.random() < 0.4, b.choose(1, 2), 3, 8
    shape = (batch, LENGTH, heads * size) if flat else (batch, heads, LENGTH, size)
    x, like = b.stored(b.input(*shape))
    attributes = {"interleaved": b.choose(0, 1)}
    if flat or partial:
        attributes["num_heads"] = heads
    if partial:
        attributes["rotary_embedding_dim"] = 4
    return x, like, attributes, 2 if partial else 4, batch


def rotary(b: WideBuilder) -> ir.Model:
    """The operator of onnx: positions choose the angles, or the angles have their places already."""
    b.opset = 23
    x, like, attributes, half, batch = _heads(b)
    if b.rng.random() < 0.3:
        cos, sin = (b.data(batch, LENGTH, half, name=name) for name in ("cos", "sin"))
        y = b.node("RotaryEmbedding", [x, cos, sin], attributes)
    else:
        cos, sin, positions, _ = _angles(b, half, batch)
        y = b.node("RotaryEmbedding", [x, cos, sin, positions], attributes)
    return b.result(y, b.choose(like, None))


def contrib_rotary(b: WideBuilder) -> ir.Model:
    """The operator of com.microsoft: positions of each element, or the first of them."""
    b.domains = ("com.microsoft",)
    x, like, attributes, half, batch = _heads(b)
    cos, sin, positions, _ = _angles(b, half, batch)
    if b.rng.random() < 0.4:
        positions = b.constant(np.array([b.choose(0, 3)], np.int64))
    y = b.node("RotaryEmbedding", [x, positions, cos, sin], attributes)
    y.producer().domain = "com.microsoft"
    return b.result(y, b.choose(like, None))


def resize(b: WideBuilder) -> ir.Model:
    """A Resize that interpolates along one, two or three axes."""
    x, like = b.stored(b.input(1, 3, 5, 7))
    attributes = {
        "mode": b.choose("linear", "linear", "cubic"),
        "coordinate_transformation_mode": b.choose("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"),
    }
    if attributes["mode"] == "cubic":
        attributes |= {"exclude_outside": b.choose(0, 1), "cubic_coeff_a": b.choose(-0.75, -0.5)}
    if b.rng.random() < 0.5:
        inputs = [x, None, b.constant(np.array(b.choose([1, 1, 2, 2], [1, 1, 1.7, 0.6], [1, 1, 1, 3]), np.float32))]
    else:
        sizes = b.constant(np.array(b.choose([1, 3, 10, 9], [1, 6, 3, 11], [1, 3, 4, 7]), np.int64))
        inputs = [x, None, None, sizes]
    return b.result(b.node("Resize", inputs, attributes), b.choose(like, None))


#: Equations with the sizes of their operands.
EQUATIONS: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("ij,jk->ik", (4, 6), (6, 5)), ("bhqd,bhkd->bhqk", (1, 2, 4, 6), (1, 2, 3, 6)), ("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5)),
    ("bhqk,bkhd->bqhd", (2, 3, 4, 5), (2, 5, 3, 6)), ("...ij,...jk->...ik", (2, 3, 4, 5), (2, 3, 5, 2)), ("bsd,dhe->bshe", (2, 4, 6), (6, 3, 5)),
    ("bshe,hed->bsd", (2, 4, 3, 5), (3, 5, 6)), ("bi,bi->b", (3, 7), (3, 7)), ("i,j->ij", (4,), (5,)), ("abc,cd", (2, 3, 4), (4, 5)),
)  # fmt: skip


def einsum(b: WideBuilder) -> ir.Model:
    """Products of two operands: attention scores, layers with heads, outer products."""
    equation, left, right = b.choose(*EQUATIONS)
    x = b.data(*left)
    if b.rng.random() < 0.4:
        columns = equation in ("ij,jk->ik", "bsd,dhe->bshe", "bshe,hed->bsd")
        z = b.weight(*right, axis=len(right) - 1 if columns else None)[0]
    else:
        z = b.data(*right, name="z")
    return b.result(b.node("Einsum", [x, z], {"equation": equation}))


CASES: dict[str, Case] = {"rotary": rotary, "contrib_rotary": contrib_rotary, "resize": resize, "einsum": einsum}  # type: ignore[dict-item]
