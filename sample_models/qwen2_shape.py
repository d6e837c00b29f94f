"""Write a decoder of the shape of Qwen2-0.5B with random weights and external data, to try tools on 2 GB; needs no torch.

    python sample_models/qwen2_shape.py OUT.onnx
    python sample_models/qwen2_shape.py OUT.onnx --layers 2 --hidden 64 --heads 4 --kv-heads 2 --intermediate 128 --vocab 300

24 layers, width 896, 14 heads on 2 KV heads of size 64, SwiGLU of 4864, RoPE (theta 10^6), RMSNorm, biases on query, key and
value, vocabulary 151936, tied embedding: 494,032,768 parameters. Inputs, B batch, S new tokens, P cached: `input_ids` int64
[B, S], `attention_mask` int64 [B, P+S], `position_ids` int64 [B, S], `past_key_values.<i>.key|value` float32 [B, 2, P, 64];
outputs `logits` [B, S, V] and `present.<i>.key|value` [B, 2, P+S, 64].

The graph is written as exporters trace it, with what tools have to cope with: sizes by Shape and Gather in every layer, a mask
made of Range, comparisons, Expand and Where, heads repeated by Expand, caches grown by Concat. Weights are drawn from the seed,
written in pieces of 4 MiB to `OUT.onnx.data`, so memory does not grow with the size."""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from _build import IR_VERSION, GraphBuilder
from onnx import TensorProto, helper

OPSET = 18
EPSILON = 1e-6
THETA = 1e6
PIECE = 1 << 20
PAGE = 4096


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of the decoder; those of Qwen2-0.5B.

    Args:
        layers: decoder layers.
        hidden: width; head size is width / heads.
        heads: query heads.
        kv_heads: key and value heads.
        intermediate: width inside of the MLP.
        vocabulary: rows of the embedding.
    """

    layers: int = 24
    hidden: int = 896
    heads: int = 14
    kv_heads: int = 2
    intermediate: int = 4864
    vocabulary: int = 151936

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


class Decoder(GraphBuilder):
    """The graph; weights are only declared, in the order they are written."""

    def __init__(self, shape: Shape, location: str) -> None:
        super().__init__("qwen2_shape")
        self.shape = shape
        self.location = location
        #: (dims, mean, deviation) of each weight in the data file.
        self.drawn: list[tuple[tuple[int, ...], float, float]] = []
        self.size = 0

    def external(self, name: str, dims: tuple[int, ...], deviation: float, mean: float = 0.0) -> str:
        """Declare a float32 weight of the data file, at the next page."""
        offset = -(-self.size // PAGE) * PAGE
        length = 4 * math.prod(dims)
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", self.location), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        self.initializers.append(tensor)
        self.drawn.append((dims, mean, deviation))
        self.size = offset + length
        return name

    def constant(self, value: object, dtype: type = np.int64) -> str:
        """A small constant, one for all that need it."""
        array = np.array(value, dtype)
        name = f"constant_{array.dtype}_{'_'.join(str(number) for number in array.reshape(-1)[:4])}_{array.ndim}"
        if all(tensor.name != name for tensor in self.initializers):
            self.weight(name, array)
        return name

    def dim(self, x: str, axis: int, name: str) -> str:
        """The size of `x` along `axis`, int64 [1]."""
        size = self.node("Gather", f"{name}/Gather", [self.node("Shape", f"{name}/Shape", [x]), self.constant(axis)])
        return self.node("Unsqueeze", f"{name}/Unsqueeze", [size, self.constant([0])])

    def sizes(self, parts: list[str | int], name: str) -> str:
        """A shape of numbers and computed sizes, int64 [n]."""
        inputs = [self.constant([part]) if isinstance(part, int) else part for part in parts]
        return self.node("Concat", f"{name}/Concat", inputs, axis=0)

    def linear(self, x: str, name: str, into: int, out: int, *, bias: bool = False) -> str:
        """x W (+ b), W [into, out]."""
        key = name.strip("/").replace("/", ".")
        weight = self.external(f"{key}.weight", (into, out), 1 / math.sqrt(into))
        product = self.node("MatMul", f"{name}/MatMul", [x, weight])
        if not bias:
            return product
        return self.node("Add", f"{name}/Add", [self.external(f"{key}.bias", (out,), 0.02), product])

    def norm(self, x: str, name: str) -> str:
        """x / sqrt(mean(x²) + ε) · γ."""
        square = self.node("Pow", f"{name}/Pow", [x, self.constant(2.0, np.float32)])
        mean = self.node("ReduceMean", f"{name}/ReduceMean", [square, self.constant([-1])], keepdims=1)
        root = self.node(
            "Sqrt", f"{name}/Sqrt", [self.node("Add", f"{name}/Add", [mean, self.constant(EPSILON, np.float32)])]
        )
        scaled = self.node("Mul", f"{name}/Mul", [x, self.node("Reciprocal", f"{name}/Reciprocal", [root])])
        gain = self.external(f"{name.strip('/').replace('/', '.')}.weight", (self.shape.hidden,), 0.1, 1.0)
        return self.node("Mul", f"{name}/Mul_1", [gain, scaled])

    def mask(self) -> str:
        """float [B, 1, S, T]: 0 where a real key is seen, the lowest float elsewhere."""
        name = "/model"
        batch, new = (self.dim("input_ids", axis, f"{name}/ids{axis}") for axis in (0, 1))
        past = self.dim("past_key_values.0.key", 2, f"{name}/past")
        total = self.node("Add", f"{name}/Add", [past, new])
        zero, one, axes = self.constant(0), self.constant(1), self.constant([0])
        first, end = (self.node("Squeeze", f"{name}/Squeeze{k}", [x, axes]) for k, x in enumerate((past, total)))
        queries = self.node("Range", f"{name}/Range", [first, end, one])
        column = self.node("Reshape", f"{name}/Reshape", [queries, self.constant([-1, 1])])
        keys = self.node("Range", f"{name}/Range_1", [zero, end, one])
        causal = self.node("LessOrEqual", f"{name}/LessOrEqual", [keys, column])
        causal = self.node("Unsqueeze", f"{name}/Unsqueeze", [causal, self.constant([0, 1])])
        shape = self.sizes([batch, 1, new, total], f"{name}/mask")
        causal = self.node("Expand", f"{name}/Expand", [causal, shape])
        real = self.node("Cast", f"{name}/Cast", ["attention_mask"], to=TensorProto.BOOL)
        real = self.node("Unsqueeze", f"{name}/Unsqueeze_1", [real, self.constant([1, 2])])
        seen = self.node("And", f"{name}/And", [causal, real])
        numbers = [self.constant(x, np.float32) for x in (0.0, np.finfo(np.float32).min)]
        return self.node("Where", f"{name}/Where", [seen, *numbers])

    def rotations(self) -> tuple[str, str]:
        """cos and sin of position · θ^(-2i/D), [B, 1, S, D]."""
        name, half = "/model/rotary_emb", self.shape.head_size // 2
        frequencies = self.weight(
            "rotary_emb.inv_freq", (THETA ** (-np.arange(half) / half)).astype(np.float32)[None, :, None]
        )
        batch = self.dim("position_ids", 0, name)
        spread = self.node("Expand", f"{name}/Expand", [frequencies, self.sizes([batch, half, 1], name)])
        places = self.node("Unsqueeze", f"{name}/Unsqueeze_1", ["position_ids", self.constant([1])])
        places = self.node("Cast", f"{name}/Cast", [places], to=TensorProto.FLOAT)
        angles = self.node(
            "Transpose", f"{name}/Transpose", [self.node("MatMul", f"{name}/MatMul", [spread, places])], perm=[0, 2, 1]
        )
        angles = self.node("Concat", f"{name}/Concat_1", [angles, angles], axis=-1)
        return tuple(
            self.node(
                "Unsqueeze", f"{name}/{op}_Unsqueeze", [self.node(op, f"{name}/{op}", [angles]), self.constant([1])]
            )
            for op in ("Cos", "Sin")
        )

    def rotate(self, x: str, cos: str, sin: str, name: str) -> str:
        """x cos + (-x₂, x₁) sin, halves of the last axis."""
        axes, step = self.constant([-1]), self.constant([1])
        half = self.node("Div", f"{name}/Div", [self.dim(x, 3, name), self.constant([2])])
        low = self.node("Slice", f"{name}/Slice", [x, self.constant([0]), half, axes, step])
        high = self.node("Slice", f"{name}/Slice_1", [x, half, self.constant([2**63 - 1]), axes, step])
        turned = self.node("Concat", f"{name}/Concat", [self.node("Neg", f"{name}/Neg", [high]), low], axis=-1)
        parts = [self.node("Mul", f"{name}/Mul_{k}", pair) for k, pair in enumerate(([x, cos], [turned, sin]))]
        return self.node("Add", f"{name}/Add", parts)

    def repeat(self, x: str, name: str) -> str:
        """[B, K, T, D] → [B, N, T, D]: each KV head for all the query heads that share it."""
        groups = self.shape.heads // self.shape.kv_heads
        dims = [self.dim(x, axis, f"{name}/{axis}") for axis in range(4)]
        apart = self.node("Unsqueeze", f"{name}/Unsqueeze", [x, self.constant([2])])
        wide = self.sizes([dims[0], dims[1], groups, dims[2], dims[3]], f"{name}/wide")
        spread = self.node("Expand", f"{name}/Expand", [apart, wide])
        return self.node("Reshape", f"{name}/Reshape", [spread, self.sizes([dims[0], -1, dims[2], dims[3]], name)])

    def attention(self, x: str, layer: int, cos: str, sin: str, mask: str) -> str:
        """Self-attention of one layer over its cache."""
        shape, name = self.shape, f"/model/layers.{layer}/self_attn"
        batch, new = (self.dim(x, axis, f"{name}/size{axis}") for axis in (0, 1))
        split = self.sizes([batch, new, -1, shape.head_size], f"{name}/split")
        heads = {}
        for part, count in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
            made = self.linear(x, f"{name}/{part}_proj", shape.hidden, count * shape.head_size, bias=True)
            made = self.node("Reshape", f"{name}/{part}_Reshape", [made, split])
            heads[part] = self.node("Transpose", f"{name}/{part}_Transpose", [made], perm=[0, 2, 1, 3])
        query, key = (self.rotate(heads[part], cos, sin, f"{name}/{part}_rope") for part in ("q", "k"))
        cached = [
            self.node(
                "Concat",
                f"{name}/{part}_Concat",
                [f"past_key_values.{layer}.{part}", made],
                f"present.{layer}.{part}",
                axis=-2,
            )
            for part, made in (("key", key), ("value", heads["v"]))
        ]
        keys, values = (
            self.repeat(made, f"{name}/{part}_repeat") for part, made in zip(("k", "v"), cached, strict=True)
        )
        turned = self.node("Transpose", f"{name}/Transpose", [keys], perm=[0, 1, 3, 2])
        scale = self.constant(shape.head_size**-0.25, np.float32)
        pair = [self.node("Mul", f"{name}/Mul_{k}", [side, scale]) for k, side in enumerate((query, turned))]
        scores = self.node("Add", f"{name}/Add", [self.node("MatMul", f"{name}/MatMul", pair), mask])
        shares = self.node("Softmax", f"{name}/Softmax", [scores], axis=-1)
        empty = self.node("IsNaN", f"{name}/IsNaN", [shares])
        shares = self.node("Where", f"{name}/Where", [empty, self.constant(0.0, np.float32), shares])
        mixed = self.node(
            "Transpose",
            f"{name}/Transpose_1",
            [self.node("MatMul", f"{name}/MatMul_1", [shares, values])],
            perm=[0, 2, 1, 3],
        )
        merged = self.node("Reshape", f"{name}/Reshape", [mixed, self.sizes([batch, new, -1], f"{name}/merge")])
        return self.linear(merged, f"{name}/o_proj", shape.hidden, shape.hidden)

    def layer(self, x: str, layer: int, cos: str, sin: str, mask: str) -> str:
        """One decoder layer."""
        shape, name = self.shape, f"/model/layers.{layer}"
        attended = self.attention(self.norm(x, f"{name}/input_layernorm"), layer, cos, sin, mask)
        x = self.node("Add", f"{name}/Add", [x, attended])
        normed = self.norm(x, f"{name}/post_attention_layernorm")
        gate, up = (
            self.linear(normed, f"{name}/mlp/{part}_proj", shape.hidden, shape.intermediate) for part in ("gate", "up")
        )
        gate = self.node(
            "Mul", f"{name}/mlp/act_fn/Mul", [gate, self.node("Sigmoid", f"{name}/mlp/act_fn/Sigmoid", [gate])]
        )
        inner = self.node("Mul", f"{name}/mlp/Mul", [gate, up])
        return self.node(
            "Add", f"{name}/Add_1", [x, self.linear(inner, f"{name}/mlp/down_proj", shape.intermediate, shape.hidden)]
        )

    def decoder(self) -> onnx.GraphProto:
        """The whole graph."""
        shape = self.shape
        table = self.external("model.embed_tokens.weight", (shape.vocabulary, shape.hidden), 0.02)
        x = self.node("Gather", "/model/embed_tokens/Gather", [table, "input_ids"])
        mask, (cos, sin) = self.mask(), self.rotations()
        for layer in range(shape.layers):
            x = self.layer(x, layer, cos, sin, mask)
        head = self.node("Transpose", "/lm_head/Transpose", [table], perm=[1, 0])
        self.node("MatMul", "/lm_head/MatMul", [self.norm(x, "/model/norm"), head], "logits")
        return self.graph(*self.ends())

    def ends(self) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
        """Inputs and outputs."""
        shape, total = self.shape, "past_sequence_length + sequence_length"
        rows = {"input_ids": "sequence_length", "attention_mask": total, "position_ids": "sequence_length"}
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch_size", size]) for name, size in rows.items()
        ]
        logits = ["batch_size", "sequence_length", shape.vocabulary]
        outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, logits)]
        for layer in range(shape.layers):
            for part in ("key", "value"):
                for values, name, size in (
                    (inputs, f"past_key_values.{layer}.{part}", "past_sequence_length"),
                    (outputs, f"present.{layer}.{part}", total),
                ):
                    dims = ["batch_size", shape.kv_heads, size, shape.head_size]
                    values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
        return inputs, outputs


def pieces(seed: int, number: int, dims: tuple[int, ...], mean: float, deviation: float) -> Iterator[np.ndarray]:
    """Weight `number` in pieces of up to 2^20 float32, evenly distributed about its mean."""
    rng = np.random.Generator(np.random.SFC64([seed, number]))
    left, span = math.prod(dims), np.float32(2 * math.sqrt(3) * deviation)
    while left:
        count = min(left, PIECE)
        yield (rng.random(count, np.float32) - np.float32(0.5)) * span + np.float32(mean)
        left -= count


def write(path: Path, shape: Shape = Shape(), seed: int = 0) -> None:
    """Write `path` and `path.data`; the model last, so that it never stands without its weights."""
    path.parent.mkdir(parents=True, exist_ok=True)
    builder = Decoder(shape, path.name + ".data")
    graph = builder.decoder()
    with path.with_name(path.name + ".data").open("wb") as out:
        for number, (dims, mean, deviation) in enumerate(builder.drawn):
            out.write(bytes(-out.tell() % PAGE))
            for piece in pieces(seed, number, dims, mean, deviation):
                out.write(piece.data)
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, producer_name="sample_models", ir_version=IR_VERSION, opset_imports=opsets)
    path.write_bytes(model.SerializeToString(deterministic=True))
    print(f"{path.name}: {len(graph.node)} nodes, {builder.size / 1e9:.3f} GB of weights")


def main() -> None:
    """Read the command line and write the model."""
    parser = argparse.ArgumentParser(description="Write a decoder of the shape of Qwen2-0.5B with random weights.")
    parser.add_argument("out", type=Path, metavar="OUT.onnx")
    defaults = Shape()
    for field, text in (
        ("layers", "decoder layers"), ("hidden", "width"), ("heads", "query heads"), ("kv_heads", "key and value heads"),
        ("intermediate", "width inside of the MLP"), ("vocabulary", "rows of the embedding"),
    ):  # fmt: skip
        option = "--vocab" if field == "vocabulary" else f"--{field.replace('_', '-')}"
        default = getattr(defaults, field)
        parser.add_argument(option, dest=field, type=int, default=default, help=f"{text} (default {default})")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    out, seed = options.pop("out"), options.pop("seed")
    write(out, Shape(**options), seed)


if __name__ == "__main__":
    main()
