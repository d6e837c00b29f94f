"""Encoders of the published rows as graphs without weights, from their public configurations: ``python … OUT_DIR``.

Of each there is the graph alone: its tensors name a data file that is not written. Profiles of chips are fitted on them
(`tests/bench/chip_fit.py`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

FLOAT = ir.TensorType(ir.DataType.FLOAT)


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []

    def weight(self, *shape: int) -> ir.Value:
        """A tensor whose values are nowhere."""
        name = f"w{len(self.constants)}"
        size = 4 * int(np.prod(shape))
        tensor = ir.ExternalTensor(
            "weights_left_out.data", 0, size, ir.DataType.FLOAT, shape=ir.Shape(shape), name=name, base_dir="."
        )
        return self._constant(ir.Value(name=name, shape=ir.Shape(shape), type=FLOAT, const_value=tensor))

    def constant(self, values: Any) -> ir.Value:
        """A tensor with values."""
        tensor = ir.tensor(np.asarray(values), name=f"c{len(self.constants)}")
        kind = ir.TensorType(tensor.dtype)
        return self._constant(ir.Value(name=tensor.name, shape=tensor.shape, type=kind, const_value=tensor))

    def _constant(self, value: ir.Value) -> ir.Value:
        self.constants.append(value)
        return value

    def op(self, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """A node; its output."""
        node = ir.node(op_type, list(inputs), attributes, name=f"{op_type}_{len(self.nodes)}")
        node.outputs[0].name = f"v{len(self.nodes)}"
        self.nodes.append(node)
        return node.outputs[0]

    def linear(self, x: ir.Value, width: int, to: int) -> ir.Value:
        return self.op("Add", self.weight(to), self.op("MatMul", x, self.weight(width, to)))

    def norm(self, x: ir.Value, width: int) -> ir.Value:
        return self.op("LayerNormalization", x, self.weight(width), self.weight(width), axis=-1)

    def gelu(self, x: ir.Value) -> ir.Value:
        erf = self.op("Erf", self.op("Div", x, self.constant(np.float32(2**0.5))))
        doubled = self.op("Mul", x, self.op("Add", erf, self.constant(np.float32(1))))
        return self.op("Mul", doubled, self.constant(np.float32(0.5)))

    def attention(self, x: ir.Value, tokens: int, width: int, heads: int, bias: ir.Value) -> ir.Value:
        """Of ``heads`` heads, with ``bias`` on the scores and the projection behind."""
        parts = [self.linear(x, width, width) for _ in range(3)]
        split = self.constant(np.array([1, tokens, heads, width // heads]))
        orders = [0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]
        q, k, v = (
            self.op("Transpose", self.op("Reshape", p, split), perm=o) for p, o in zip(parts, orders, strict=True)
        )
        scores = self.op("Div", self.op("MatMul", q, k), self.constant(np.float32(8)))
        weights = self.op("Softmax", self.op("Add", scores, bias), axis=-1)
        joined = self.op("Transpose", self.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        return self.linear(self.op("Reshape", joined, self.constant(np.array([1, tokens, width]))), width, width)

    def save(self, inputs: list[ir.Value], output: ir.Value, path: Path) -> None:
        graph = ir.Graph(
            inputs, [output], nodes=self.nodes, initializers=self.constants, opset_imports={"": 17}, name=path.stem
        )
        ir.save(ir.Model(graph, ir_version=8), path)


def _input(name: str, shape: list[int], kind: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(kind))


def bert(path: Path, *, layers: int, vocab: int, embedding: int = 768, head: bool = True) -> None:
    """An encoder of 768 channels on 384 tokens, with the head of a masked language model, or of a discriminator."""
    tokens, width, heads, inner = 384, 768, 12, 3072
    g = _Graph()
    ids, mask = _input("ids", [1, tokens], ir.DataType.INT64), _input("mask", [1, 1, 1, tokens])
    x = g.op("Add", g.op("Gather", g.weight(vocab, embedding), ids), g.weight(1, tokens, embedding))
    x = g.norm(x, embedding)
    if embedding != width:
        x = g.linear(x, embedding, width)
    hidden = g.op("Mul", g.op("Sub", g.constant(np.float32(1)), mask), g.constant(np.float32(-1e4)))
    for _ in range(layers):
        x = g.norm(g.op("Add", g.attention(x, tokens, width, heads, hidden), x), width)
        x = g.norm(g.op("Add", g.linear(g.gelu(g.linear(x, width, inner)), inner, width), x), width)
    if head:
        x = g.linear(g.norm(g.gelu(g.linear(x, width, embedding)), embedding), embedding, vocab)
    else:
        x = g.linear(g.gelu(g.linear(x, width, width)), width, 1)
    g.save([ids, mask], x, path)


def beit(path: Path) -> None:
    """BEiT base: patches of 16 on 224, a bias of relative positions on the scores, scaled residuals."""
    tokens, width, heads, inner = 197, 768, 12, 3072
    g = _Graph()
    image = _input("image", [1, 3, 224, 224])
    x = g.op("Conv", image, g.weight(width, 3, 16, 16), g.weight(width), kernel_shape=[16, 16], strides=[16, 16])
    x = g.op("Transpose", g.op("Reshape", x, g.constant(np.array([1, width, tokens - 1]))), perm=[0, 2, 1])
    x = g.op("Concat", g.weight(1, 1, width), x, axis=1)
    for _ in range(12):
        inside = g.attention(g.norm(x, width), tokens, width, heads, g.weight(1, heads, tokens, tokens))
        x = g.op("Add", g.op("Mul", inside, g.weight(width)), x)
        inside = g.linear(g.gelu(g.linear(g.norm(x, width), width, inner)), inner, width)
        x = g.op("Add", g.op("Mul", inside, g.weight(width)), x)
    x = g.op("ReduceMean", x, axes=[1], keepdims=0)
    g.save([image], g.linear(g.norm(x, width), width, 1000), path)


def main(folder: Path) -> None:
    """Write all five."""
    folder.mkdir(parents=True, exist_ok=True)
    bert(folder / "bert_base_uncased_hf.onnx", layers=12, vocab=30522)
    bert(folder / "distil_bert_base_uncased_hf.onnx", layers=6, vocab=30522)
    bert(folder / "electra_bert_base_discrim_google.onnx", layers=12, vocab=30522, head=False)
    bert(folder / "albert_base_v2_hf.onnx", layers=12, vocab=30000, embedding=128)
    beit(folder / "beit.onnx")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
