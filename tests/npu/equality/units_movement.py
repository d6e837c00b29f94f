"""Random QDQ models of what moves elements, in every type: gathers and scatters by computed indices, masks, caches, 16 and 4 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from tests.npu.equality.random_units import Array, Builder, Case

#: Type → its limits.
TYPES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}
#: Types of the activations of a case: narrow alone, wide alone, or mixed.
WIDTHS = {"narrow": ("int8", "uint8"), "wide": ("int16", "uint16"), "mixed": tuple(TYPES)}


class WideBuilder(Builder):
    """A builder of units of any of `TYPES`."""

    opset = 21
    domains: tuple[str, ...] = ()

    def zero_point(self, dtype: str) -> int:
        low, high = TYPES[dtype]
        middle = (low + high + 1) // 2
        return middle if self.symmetric or self.rng.random() < 0.3 else int(self.rng.integers(low, high + 1))

    def scale_of(self, dtype: str) -> float:
        """A scale with which a type holds a few units."""
        return self.scale(-7, -2) if dtype.endswith("8") else self.scale(-15, -10)

    def data(self, *shape: int, name: str = "x", spread: float = 1.0) -> ir.Value:
        """A graph input behind a pair."""
        return self.stored(self.input(*shape, name=name, spread=spread))[0]

    def stored(
        self, value: ir.Value, like: tuple[str, float, int] | None = None
    ) -> tuple[ir.Value, tuple[str, float, int]]:
        """``value`` behind a pair, and its type, scale and zero point: those of ``like`` where it is given."""
        dtype = self.choose(*self.types) if like is None else like[0]
        scale = self.scale_of(dtype) if like is None else like[1]
        zero = self.zero_point(dtype) if like is None else like[2]
        s, z = self.constant(np.array(scale, np.float32)), self.constant(np.array(zero, dtype))
        pair = self.node("DequantizeLinear", [self.node("QuantizeLinear", [value, s, z]), s, z])
        return pair, (dtype, scale, zero)

    def result(self, value: ir.Value, like: tuple[str, float, int] | None = None) -> ir.Model:
        """The model whose output is ``value`` behind a pair."""
        return self.model(self.stored(value, like)[0])

    def fed(self, name: str, data: Array) -> ir.Value:
        """A graph input of indices or a mask."""
        value = ir.Value(name=name, shape=ir.Shape(data.shape), type=ir.TensorType(ir.DataType.from_numpy(data.dtype)))
        self.inputs.append(value)
        self.feeds[name] = data
        return value

    def steering(self, name: str, data: Array) -> ir.Value:
        """Indices or a mask: a constant, or computed."""
        return self.constant(data) if self.rng.random() < 0.4 else self.fed(name, data)

    def model(self, *outputs: ir.Value) -> ir.Model:
        made = super().model(*outputs)
        made.opset_imports[""] = self.opset
        made.opset_imports.update(dict.fromkeys(self.domains, 1))
        made.ir_version = 11 if self.opset > 23 else 10
        return made


def indices(b: WideBuilder, high: int, *shape: int) -> Array:
    """Indices of an axis of ``high``, counted from either end."""
    found = b.rng.integers(-high, high, shape)
    return found.astype(b.choose(np.int64, np.int32))


def where(b: WideBuilder) -> ir.Model:
    """Of two activations, or an activation and a constant, with broadcasting."""
    shape = b.choose((2, 3, 8, 5), (1, 4, 6))
    mask = b.steering("mask", b.rng.random(b.choose(shape, (shape[-1],), (1, *shape[1:]), (*shape[:-1], 1))) < 0.5)
    x, like = b.stored(b.input(*shape))
    if b.rng.random() < 0.4:
        z = b.stored(b.constant((b.rng.standard_normal(b.choose((1,), shape[-1:])) * 2).astype(np.float32)))[0]
    else:
        z = b.data(*b.choose(shape, (shape[1], 1, 1)[: len(shape)], (1,)), name="z")
    return b.result(b.node("Where", [mask, *((x, z) if b.rng.random() < 0.5 else (z, x))]), b.choose(like, None))


def gather(b: WideBuilder) -> ir.Model:
    """An embedding: stored rows of 4, 8 or 16 bits, taken by computed indices; or an activation."""
    taken = indices(b, 11, *b.choose((3,), (2, 4), ()))
    if b.rng.random() < 0.3:
        ids = b.steering("ids", taken)
        x, like = b.stored(b.input(2, 11, 5))
        return b.result(b.node("Gather", [x, ids], {"axis": 1}), b.choose(like, None))
    dtype = b.choose(*b.types, "int4", "uint4")
    low, high = {"int4": (-8, 7), "uint4": (0, 15)}.get(dtype) or TYPES[dtype]
    scale, zero = b.scale_of(dtype + "8"), int(b.rng.integers(low, high + 1))
    kind = ir.DataType[dtype.upper()]
    data, z = (
        b.constant(np.asarray(array).astype(kind.numpy()))
        for array in (b.rng.integers(low, high + 1, (11, 6)), np.array(zero))
    )
    x = b.node("DequantizeLinear", [data, b.constant(np.array(scale, np.float32)), z])
    found = b.node("Gather", [x, b.fed("ids", taken)])
    return b.result(found, b.choose((dtype, scale, zero), None) if dtype in TYPES else None)


def gather_elements(b: WideBuilder) -> ir.Model:
    """Along any axis."""
    x, like = b.stored(b.input(3, 4, 6))
    axis, shape = b.choose((0, (5, 4, 6)), (1, (2, 7, 6)), (-1, (3, 4, 2)))
    picked = b.steering("picked", indices(b, (3, 4, 6)[axis], *shape))
    return b.result(b.node("GatherElements", [x, picked], {"axis": axis}), b.choose(like, None))


def gather_nd(b: WideBuilder) -> ir.Model:
    """Blocks, with and without axes in common."""
    x, like = b.stored(b.input(3, 4, 6))
    if b.rng.random() < 0.5:
        picked, batch = indices(b, 4, 3, b.choose(1, 5), 1).astype(np.int64), 1
    else:
        picked, batch = indices(b, 3, *b.choose((2, 2), (5, 3), (1, 2, 1))).astype(np.int64), 0
    return b.result(b.node("GatherND", [x, b.steering("picked", picked)], {"batch_dims": batch}), b.choose(like, None))


def scatter_elements(b: WideBuilder) -> ir.Model:
    """Each element at most once, in any order."""
    x, like = b.stored(b.input(3, 6, 5))
    axis, size, count = b.choose((1, 6, 4), (-1, 5, 3), (0, 3, 2))
    shape = [3, 6, 5]
    shape[axis] = count
    picked = np.argsort(b.rng.random((3, 6, 5)), axis=axis).take(range(count), axis=axis).astype(np.int64)
    picked -= size * (b.rng.random(shape) < 0.3)
    z = b.data(*shape, name="z")
    y = b.node("ScatterElements", [x, b.steering("picked", picked), z], {"axis": axis})
    return b.result(y, b.choose(like, None))


def scatter_nd(b: WideBuilder) -> ir.Model:
    """Rows of a cache, or single elements."""
    x, like = b.stored(b.input(4, 6, 5))
    if b.rng.random() < 0.5:
        rows = b.rng.permutation(24)[:7]
        picked, shape = np.stack([rows // 6, rows % 6], axis=-1), (7, 5)
    else:
        picked, shape = b.rng.permutation(4)[:2].reshape(2, 1), (2, 6, 5)
    y = b.node("ScatterND", [x, b.steering("picked", picked.astype(np.int64)), b.data(*shape, name="z")])
    return b.result(y, b.choose(like, None))


def tensor_scatter(b: WideBuilder) -> ir.Model:
    """A cache [B, heads, positions, size], written from a position on."""
    b.opset = 24
    axis, mode = b.choose(-2, 1), b.choose("linear", "circular")
    x, like = b.stored(b.input(2, 8, 8, 3))
    shape = [2, 8, 8, 3]
    shape[axis] = 3
    start = b.rng.integers(0, 8 if mode == "circular" else 6, 2).astype(np.int64)
    starts = [b.steering("start", start)] if b.rng.random() < 0.8 else []
    y = b.node("TensorScatter", [x, b.data(*shape, name="z"), *starts], {"axis": axis, "mode": mode})
    return b.result(y, b.choose(like, None))


def trilu(b: WideBuilder) -> ir.Model:
    """Either side of any diagonal."""
    x, like = b.stored(b.input(2, 5, b.choose(4, 7)))
    k = [b.constant(np.array(b.choose(-2, 0, 1, 9), np.int64))] if b.rng.random() < 0.7 else []
    return b.result(b.node("Trilu", [x, *k], {"upper": b.choose(0, 1)}), b.choose(like, None))


def concat(b: WideBuilder) -> ir.Model:
    """A cache, a constant and what is new, in encodings of their own."""
    x, like = b.stored(b.input(1, 2, 6, 4))
    z = b.stored(b.constant(b.rng.standard_normal((1, 2, 3, 4)).astype(np.float32)))[0]
    y = b.node("Concat", [x, z, b.data(1, 2, 1, 4, name="new")], {"axis": b.choose(2, -2)})
    return b.result(y, b.choose(like, None))


def moved(b: WideBuilder) -> ir.Model:
    """What moves all elements of one tensor."""
    x, like = b.stored(b.input(1, 4, 6, 8))
    kind = b.choose(
        "Transpose", "Reshape", "Slice", "Pad", "Tile", "Expand", "Unsqueeze", "DepthToSpace", "Resize", "Flatten"
    )
    ints = lambda *v: b.constant(np.array(v, np.int64))  # noqa: E731
    made: dict[str, Any] = {
        "Transpose": lambda: b.node(kind, [x], {"perm": [0, 2, 3, 1]}),
        "Reshape": lambda: b.node(kind, [x, ints(0, -1, 4)]),
        "Flatten": lambda: b.node(kind, [x], {"axis": 2}),
        "Unsqueeze": lambda: b.node(kind, [x, ints(1)]),
        "Slice": lambda: b.node(kind, [x, ints(1, 7), ints(4, 0), ints(1, 3), ints(1, -2)]),
        "Pad": lambda: b.node(
            kind, [x, ints(0, 0, 1, 2, 0, 1, 0, 1)], {"mode": b.choose("constant", "reflect", "edge")}
        ),
        "Tile": lambda: b.node(kind, [x, ints(2, 1, 1, 3)]),
        "Expand": lambda: b.node(kind, [x, ints(3, 4, 6, 8)]),
        "DepthToSpace": lambda: b.node(kind, [x], {"blocksize": 2}),
        "Resize": lambda: b.node(
            kind,
            [x, None, b.constant(np.array([1, 1, 2, 1.5], np.float32))],
            {"mode": "nearest", "nearest_mode": "floor"},
        ),
    }
    return b.result(made[kind](), b.choose(like, None))


def split(b: WideBuilder) -> ir.Model:
    """Two parts, each with an encoding of its own."""
    x, like = b.stored(b.input(1, 4, 6))
    sizes = b.constant(np.array([1, 3], np.int64))
    first, second = b.node("Split", [x, sizes], {"axis": 1}, outputs=2)
    return b.model(b.stored(first, like)[0], b.stored(second)[0])


CASES: dict[str, Case] = {
    case.__name__: case  # type: ignore[misc]
    for case in (
        where, gather, gather_elements, gather_nd, scatter_elements, scatter_nd, tensor_scatter, trilu, concat, moved, split,
    )
}  # fmt: skip
