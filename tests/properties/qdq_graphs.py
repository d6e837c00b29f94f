"""Hypothesis strategies for models with QDQ pairs: operators that move, choose and compute, pairs of few encodings between them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from tests.properties.graphs import HEADER, Shape

#: Storage type → zero points to choose from; on the values of a test input, [-2, 2), the scales below clip some and reach all.
ZERO_POINTS = {
    "int8": (0, -128, 17), "uint8": (0, 128, 3), "int16": (0, -32768, 1000), "uint16": (0, 32768, 77), "int4": (0,), "uint4": (0,),
}  # fmt: skip
SCALES = {8: (0.0078125, 0.013, 0.1), 16: (0.00003, 0.001), 4: (0.1, 0.25)}


@dataclass
class QdqText:
    """A graph while it is written."""

    random: np.random.Generator
    values: list[tuple[str, Shape]]
    nodes: list[str] = field(default_factory=list)
    initializers: list[str] = field(default_factory=list)

    def fresh(self, prefix: str) -> str:
        """A name."""
        return f"{prefix}{len(self.nodes)}_{len(self.initializers)}"

    def constant(self, kind: str, shape: Shape, numbers: list[float] | list[int]) -> str:
        """An initializer, or now and then a Constant node."""
        name, dims = self.fresh("c"), ",".join(map(str, shape))
        data = f"{kind}[{dims}]" if shape else kind
        listed = ", ".join(map(str, numbers))
        if self.random.integers(4) == 0 and "4" not in kind.removesuffix("64"):
            self.nodes.append(f"[n{name}] {name} = Constant<value: tensor = {data} {{{listed}}}>()")
        else:
            self.initializers.append(f"{data} {name} = {{{listed}}}")
        return name

    def node(self, op: str, inputs: list[str], shape: Shape, attributes: str = "") -> str:
        """A node with one output, now the newest value."""
        name = self.fresh("v")
        self.nodes.append(f"[n{name}] {name} = {op}{f'<{attributes}>' if attributes else ''}({', '.join(inputs)})")
        self.values.append((name, shape))
        return name

    def text(self, outputs: list[str]) -> str:
        """The model."""
        shapes = dict(self.values)
        typed = ", ".join(f"float[{','.join(map(str, shapes[o]))}] {o}" for o in outputs)
        name, shape = self.values[0]
        body = "\n  ".join(self.nodes)
        weights = ", ".join(self.initializers)
        return f"{HEADER}\ng (float[{','.join(map(str, shape))}] {name}) => ({typed})\n<{weights}>\n{{\n  {body}\n}}"


@dataclass(frozen=True)
class Palette:
    """An encoding that pairs of one model may have."""

    dtype: str
    scale: float
    zero_point: int
    per_axis: bool


@st.composite
def palettes(draw: st.DrawFn) -> list[Palette]:
    """One or two encodings."""
    found = []
    for _ in range(draw(st.sampled_from([1, 1, 2]))):
        dtype = draw(st.sampled_from(sorted(ZERO_POINTS)))
        bits = int(dtype.removeprefix("u").removeprefix("int"))
        found.append(
            Palette(
                dtype,
                draw(st.sampled_from(SCALES[bits])),
                draw(st.sampled_from(ZERO_POINTS[dtype])),
                draw(st.sampled_from([False, False, True])),
            )
        )
    return found


@st.composite
def qdq_texts(draw: st.DrawFn, operators: tuple[str, ...] = ()) -> str:
    """Text of a model with one input, some operators (of all there are by default) and pairs on some values."""
    start: Shape = draw(st.sampled_from([(1, 4, 4, 4), (2, 4, 2, 6), (2, 3, 4), (4, 6), (3,)]))
    text = QdqText(np.random.default_rng(draw(st.integers(0, 2**16))), [("x", start)])
    choices = draw(palettes())
    names = sorted(OPERATORS) if not operators else list(operators)
    for _ in range(draw(st.integers(2, 7))):
        for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
            _pair(draw, text, draw(st.sampled_from(choices)), draw(st.integers(1, 2)))
        recent = text.values[-3:]
        name, shape = draw(st.sampled_from([recent[-1], recent[-1], *recent]))
        wanted = draw(st.sampled_from(names))
        if not OPERATORS[wanted](draw, text, name, shape):
            text.node("Identity", [name], shape)
    if draw(st.booleans()):
        _pair(draw, text, draw(st.sampled_from(choices)), 1)
    produced = [name for name, _ in text.values[1:]]
    middle = draw(st.sets(st.sampled_from(produced), max_size=2))
    return text.text(sorted({produced[-1], *middle}))


def _pair(draw: st.DrawFn, text: QdqText, palette: Palette, readers: int) -> None:
    """A pair on one of the newest values: one Q with ``readers`` DQ, the newest values then."""
    name, shape = draw(st.sampled_from(text.values[-2:]))
    axis = draw(st.integers(0, len(shape) - 1)) if shape else 0
    attributes, count = "", 1
    dims: Shape = ()
    if palette.per_axis and shape and shape[axis] > 1:
        count = shape[axis]
        dims = (count,)
        attributes = f"axis: int = {draw(st.sampled_from([axis, axis - len(shape)]))}"
    scales = [palette.scale * (1 + i % 3) for i in range(count)]
    zeros = [palette.zero_point] * count if "4" not in palette.dtype else [0] * math.ceil(count / 2)
    scale = text.constant("float", dims, scales)
    zero = text.constant(palette.dtype, dims, zeros)
    integers = text.fresh("i")
    options = f"<{attributes}>" if attributes else ""
    text.nodes.append(f"[n{integers}] {integers} = QuantizeLinear{options}({name}, {scale}, {zero})")
    for _ in range(readers):
        text.node("DequantizeLinear", [integers, scale, zero], shape, attributes)


def _ints(text: QdqText, numbers: list[int]) -> str:
    return text.constant("int64", (len(numbers),), numbers)


Writer = Callable[[st.DrawFn, QdqText, str, Shape], bool]


def _unary(op: str, attributes: str = "") -> Writer:
    def write(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
        text.node(op, [name], shape, attributes)
        return True

    return write


def _transpose(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    perm = draw(st.permutations(range(len(shape))))
    given = draw(st.booleans())
    perm = perm if given else list(range(len(shape)))[::-1]
    text.node("Transpose", [name], tuple(shape[p] for p in perm), f"perm: ints = {perm}" if given else "")
    return True


def _reshape(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    cut = draw(st.integers(0, len(shape)))
    new = (*shape[:cut], math.prod(shape[cut:])) if draw(st.booleans()) else (*shape[:cut], 1, *shape[cut:])
    text.node("Reshape", [name, _ints(text, list(new))], new)
    return True


def _flatten(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    axis = draw(st.integers(0, len(shape)))
    text.node("Flatten", [name], (math.prod(shape[:axis]), math.prod(shape[axis:])), f"axis: int = {axis}")
    return True


def _unsqueeze(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    axis = draw(st.integers(-len(shape) - 1, len(shape)))
    place = axis % (len(shape) + 1)
    text.node("Unsqueeze", [name, _ints(text, [axis])], (*shape[:place], 1, *shape[place:]))
    return True


def _squeeze(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    ones = [i for i, d in enumerate(shape) if d == 1]
    if not ones:
        return False
    axis = draw(st.sampled_from(ones))
    text.node("Squeeze", [name, _ints(text, [axis - len(shape)])], (*shape[:axis], *shape[axis + 1 :]))
    return True


def _slice(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    axis = draw(st.integers(0, len(shape) - 1))
    new = (*shape[:axis], (shape[axis] + 1) // 2, *shape[axis + 1 :])
    text.node("Slice", [name, _ints(text, [0]), _ints(text, [shape[axis]]), _ints(text, [axis]), _ints(text, [2])], new)
    return True


def _gather(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    axis = draw(st.integers(0, len(shape) - 1))
    indices = text.constant("int64", (2, 1), [0, shape[axis] - 1])
    text.node("Gather", [name, indices], (*shape[:axis], 2, 1, *shape[axis + 1 :]), f"axis: int = {axis - len(shape)}")
    return True


def _split(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    axis = draw(st.integers(0, len(shape) - 1))
    if shape[axis] % 2:
        return False
    half = (*shape[:axis], shape[axis] // 2, *shape[axis + 1 :])
    one, two = text.fresh("a"), text.fresh("b")
    text.nodes.append(f"[n{one}] {one}, {two} = Split<axis: int = {axis}, num_outputs: int = 2>({name})")
    text.values += [(one, half), (two, half)]
    return True


def _tile(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    axis = draw(st.integers(0, len(shape) - 1))
    repeats = [2 if i == axis and math.prod(shape) < 200 else 1 for i in range(len(shape))]
    text.node("Tile", [name, _ints(text, repeats)], tuple(d * r for d, r in zip(shape, repeats, strict=True)))
    return True


def _expand(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    new = (2, *(3 if d == 1 else d for d in shape))
    if math.prod(new) > 500:
        return False
    text.node("Expand", [name, _ints(text, list(new))], new)
    return True


def _concat(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    others = [other for other, have in text.values if have == shape]
    axis = draw(st.integers(0, len(shape) - 1))
    inputs = [name, draw(st.sampled_from(others))]
    if draw(st.integers(0, 3)) == 0:
        inputs.append(text.constant("float", shape, [0.5] * math.prod(shape)))
    new = (*shape[:axis], len(inputs) * shape[axis], *shape[axis + 1 :])
    text.node("Concat", inputs, new, f"axis: int = {axis - len(shape)}")
    return True


def _choose(op: str) -> Writer:
    def write(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
        others = [other for other, have in text.values if have == shape]
        scalar = text.constant("float", (), [draw(st.sampled_from([0.0, 1.0, -100.0, 100.0, 0.123]))])
        text.node(op, [name, scalar if draw(st.booleans()) else draw(st.sampled_from(others))], shape)
        return True

    return write


def _clip(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    low = text.constant("float", (), [draw(st.sampled_from([0.0, -100.0, -0.5, 0.3]))])
    high = text.constant("float", (), [draw(st.sampled_from([1.0, 100.0, 0.7]))])
    text.node("Clip", draw(st.sampled_from([[name, low], [name, '""', high], [name, low, high]])), shape)
    return True


def _max_pool(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    if len(shape) != 4 or min(shape[2:]) < 2:
        return False
    pad, ceil, dilation = draw(st.sampled_from([(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1), (1, 0, 2), (0, 0, 2)]))
    size = 2 * dilation - dilation + 1
    if min(shape[2:]) < size:
        return False
    up = math.ceil if ceil else math.floor
    new = [up((d + 2 * pad - size) / 2) + 1 for d in shape[2:]]
    if ceil:  # a window that would start in the padding at the end is left out
        new = [n - ((n - 1) * 2 >= d + pad) for n, d in zip(new, shape[2:], strict=True)]
    attributes = f"kernel_shape: ints = [2,2], strides: ints = [2,2], pads: ints = [{pad},{pad},{pad},{pad}], "
    attributes += f"ceil_mode: int = {ceil}, dilations: ints = [{dilation},{dilation}]"
    text.node("MaxPool", [name], (*shape[:2], *new), attributes)
    return True


def _pool(op: str) -> Writer:
    def write(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
        if len(shape) != 4:
            return False
        text.node(op, [name], (*shape[:2], 1, 1))
        return True

    return write


def _pad(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    axis = draw(st.integers(0, len(shape) - 1))
    if math.prod(shape) > 300:
        return False
    mode = draw(st.sampled_from(["constant", "edge"]))
    pads = [int(i % len(shape) == axis) for i in range(2 * len(shape))]
    value = [text.constant("float", (), [draw(st.sampled_from([0.0, 0.3, 0.5]))])] if draw(st.booleans()) else []
    new = (*shape[:axis], shape[axis] + 2, *shape[axis + 1 :])
    text.node("Pad", [name, _ints(text, pads), *value], new, f'mode: string = "{mode}"')
    return True


def _resize(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    if len(shape) != 4 or math.prod(shape) > 200:
        return False
    mode = draw(st.sampled_from(["nearest", "linear"]))
    scales = text.constant("float", (4,), [1.0, 1.0, 2.0, 2.0])
    text.node("Resize", [name, '""', scales], (*shape[:2], 2 * shape[2], 2 * shape[3]), f'mode: string = "{mode}"')
    return True


def _reduce(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    axis, keep = draw(st.integers(0, len(shape) - 1)), draw(st.integers(0, 1))
    op = draw(st.sampled_from(["ReduceMax", "ReduceMin", "ReduceMean"]))
    new = (*shape[:axis], *([1] * keep), *shape[axis + 1 :])
    if not new:
        return False
    text.node(op, [name, _ints(text, [axis])], new, f"keepdims: int = {keep}")
    return True


def _where(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    others = [other for other, have in text.values if have == shape]
    condition = text.constant("bool", (shape[-1],), [int(i % 2) for i in range(shape[-1])])
    text.node("Where", [condition, name, draw(st.sampled_from(others))], shape)
    return True


def _depth(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    if len(shape) != 4 or shape[1] % 4:
        return False
    text.node("DepthToSpace", [name], (shape[0], shape[1] // 4, 2 * shape[2], 2 * shape[3]), "blocksize: int = 2")
    return True


def _scatter(draw: st.DrawFn, text: QdqText, name: str, shape: Shape) -> bool:
    reduction = draw(st.sampled_from(["none", "max", "add"]))
    indices = text.constant("int64", tuple(1 for _ in shape), [0])
    updates = text.constant("float", tuple(1 for _ in shape), [draw(st.sampled_from([0.0, 0.3]))])
    text.node("ScatterElements", [name, indices, updates], shape, f'reduction: string = "{reduction}"')
    return True


#: What writes a node of each kind behind a value; False where the shape does not allow it.
OPERATORS: dict[str, Writer] = {
    "Identity": _unary("Identity"), "Relu": _unary("Relu"), "Sigmoid": _unary("Sigmoid"), "Dropout": _unary("Dropout"),
    "Transpose": _transpose, "Reshape": _reshape, "Flatten": _flatten, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze,
    "Slice": _slice, "Gather": _gather, "Split": _split, "Tile": _tile, "Expand": _expand, "Concat": _concat, "Max": _choose("Max"),
    "Min": _choose("Min"), "Add": _choose("Add"), "Clip": _clip, "MaxPool": _max_pool, "Pad": _pad, "Resize": _resize,
    "GlobalMaxPool": _pool("GlobalMaxPool"), "GlobalAveragePool": _pool("GlobalAveragePool"), "Reduce": _reduce, "Where": _where,
    "DepthToSpace": _depth, "ScatterElements": _scatter,
}  # fmt: skip
