"""Small float nets of several architectures, with seeded weights and samples, as files: what is quantized where the kind of net matters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.cases.small_models import Array, parsed

#: What a shell, a glob or a selector would take apart.
WICKED = "a b/it's [0] & !x*"

#: Down, up and joined again: ConvTranspose, Resize, Concat of values of very different size.
UNET = """
    g (float[1,3,8,8] x) => (float[1,2,8,8] y) <float[4] sizes = {1, 1, 2, 2}, int64[1] one = {1}> {
      [down] d = Conv <pads = [1,1,1,1], strides = [2,2]> (x, w0, b0)  [act] a = LeakyRelu <alpha = 0.1> (d)
      [up] u = ConvTranspose <kernel_shape = [2,2], strides = [2,2]> (a, w1)
      [wide] r = Resize <mode = "nearest"> (a, , sizes)  [join] c = Concat <axis = 1> (u, r, x)
      [last] l = Conv (c, w2, b2)  [end] y = Tanh(l) }"""
#: Gates: a squeeze to one number a channel, Sigmoid and Mul, depthwise convolution, a sum.
GATED = """
    g (float[1,6,6,6] x) => (float[1,4] y) {
      [depth] d = Conv <pads = [1,1,1,1], group = 6> (x, w0, b0)  [clip] k = Clip(d, low, high)
      [pool] p = GlobalAveragePool(k)  [less] q = Conv(p, w1, b1)  [gate] s = Sigmoid(q)
      [mul] m = Mul(k, s)  [sum] t = Add(m, x)  [pool2] o = GlobalAveragePool(t)  [flat] f = Flatten(o)
      [fc] y = Gemm(f, w2, b2) }"""
#: One head of attention behind a norm, with a mask, and a gated MLP.
ATTENTION = """
    g (float[1,5,8] x) => (float[1,5,8] y) {
      [norm] n = LayerNormalization <axis = -1> (x, gain, shift)
      [q] q = MatMul(n, wq)  [k] k = MatMul(n, wk)  [v] v = MatMul(n, wv)  [turn] kt = Transpose <perm = [0,2,1]> (k)
      [scores] s = MatMul(q, kt)  [less] d = Mul(s, scale)  [mask] e = Add(d, masked)  [soft] p = Softmax <axis = -1> (e)
      [out] o = MatMul(p, v)  [sum] r = Add(o, x)
      [up] u = MatMul(r, wu)  [gate] g1 = MatMul(r, wg)  [sig] g2 = Sigmoid(g1)  [silu] g3 = Mul(g1, g2)
      [mul] h = Mul(g3, u)  [down] z = MatMul(h, wd)  [end] y = Add(z, r) }"""
#: A recurrent operator, which stays float, between quantized ones; two outputs.
RECURRENT = """
    g (float[6,1,4] x) => (float[6,1,3] y, float[1,1,5] last) <int64[1] one = {1}> {
      [in] i = MatMul(x, w0)  [relu] r = Relu(i)  [gru] s, last = GRU <hidden_size = 5> (r, wx, wr)
      [flat] f = Squeeze(s, one)  [out] m = MatMul(f, w1)  [end] y = Add(m, b1) }"""
#: Names that must be quoted.
QUOTED = """
    g (float[1,3,4,4] x) => (float[1,4,1,1] y) {
      [first] a = Conv <pads = [1,1,1,1]> (x, w0, b0)  [act] r = Relu(a)  [second] b = Conv(r, w1, b1)
      [pool] y = GlobalAveragePool(b) }"""

_SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "unet": {"w0": (6, 3, 3, 3), "b0": (6,), "w1": (6, 4, 2, 2), "w2": (2, 13, 1, 1), "b2": (2,)},
    "gated": {"w0": (6, 1, 3, 3), "b0": (6,), "w1": (6, 6, 1, 1), "b1": (6,), "w2": (6, 4), "b2": (4,)},
    "attention": {
        "shift": (8,), **dict.fromkeys(("wq", "wk", "wv"), (8, 8)), "wu": (8, 16), "wg": (8, 16), "wd": (16, 8),
    },
    "recurrent": {"w0": (4, 6), "wx": (1, 15, 6), "wr": (1, 15, 5), "w1": (5, 3), "b1": (3,)},
    "quoted": {"w0": (8, 3, 3, 3), "b0": (8,), "w1": (4, 8, 1, 1), "b1": (4,)},
}  # fmt: skip
_FIXED: dict[str, dict[str, Any]] = {
    "gated": {"low": np.float32(0), "high": np.float32(6)},
    "attention": {
        "gain": np.linspace(0.2, 3, 8, dtype=np.float32), "scale": np.float32(8**-0.5),
        "masked": np.triu(np.full((5, 5), -1e9, np.float32), 1),
    },
}  # fmt: skip
_TEXTS = {"unet": UNET, "gated": GATED, "attention": ATTENTION, "recurrent": RECURRENT, "quoted": QUOTED}
NETS = tuple(_TEXTS)


def small_net(name: str, folder: Path, *, samples: int = 16, seed: int = 0) -> tuple[Path, Path]:
    """The net, one of `NETS`, and its samples, as ``NAME.onnx`` and ``NAME.npz`` in ``folder``."""
    random = np.random.default_rng(seed)
    weights: dict[str, Any] = {
        key: (random.normal(size=shape) * (2 / np.prod(shape[1:])) ** 0.5).astype(np.float32)
        for key, shape in _SIZES[name].items()
    }
    proto = parsed(_TEXTS[name], weights | _FIXED.get(name, {}))
    if name == "quoted":
        _rename(proto, {"r": WICKED, "w1": f"{WICKED}.weight", "second": f"{WICKED}/conv"})
    source, data = folder / f"{name}.onnx", folder / f"{name}.npz"
    onnx.save(proto, source)
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    np.savez(data, x=_samples(random, shape, samples))
    return source, data


def _samples(random: np.random.Generator, shape: list[int], count: int) -> Array:
    """One array, its first axis that of the samples; of sizes that differ by a factor of 3 between samples."""
    sizes = np.exp(random.uniform(0, np.log(3), count))
    found = [random.normal(size=shape) * size for size in sizes]
    return np.concatenate(found).astype(np.float32)


def _rename(proto: onnx.ModelProto, names: Mapping[str, str]) -> None:
    for node in proto.graph.node:
        node.name = names.get(node.name, node.name)
        for field in (node.input, node.output):
            for at, value in enumerate(field):
                field[at] = names.get(value, value)
    for tensor in proto.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
