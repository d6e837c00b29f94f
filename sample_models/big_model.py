"""Write a model of any size with external data, to try tools on files beyond 2 GB.

    python sample_models/big_model.py OUT.onnx --gigabytes 2.4

A chain of MatMul and Relu with square weights [4096, 4096] float32 (64 MiB each), input `input` [N, 4096], output
`output` [N, 4096]. Weights are drawn from the seed and written in pieces of 4 MiB to `OUT.onnx.data`, so memory does
not grow with the size. Every third Relu has no name and every eighth layer has a dead branch without weights:
`remove-unused,give-names` has something to do.

With `--decoder` the weights are those of a decoder: `ids` [N] → table [V, D] → layers → head [D, V] → `logits` [N, V], each layer
with q and o [D, D], k and v [D, D/4], gate and up [D, F], down [F, D]; D = 2048, F = 5632, V = 32000. What stands between them
has no weights, and is no attention: k and v are added to q. The table and the head are 0.52 GB, a layer is 0.18 GB.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from _build import IR_VERSION, OPSET, floats
from onnx import TensorProto, helper

WIDTH = 4096
ROWS = 256
LAYER_BYTES = WIDTH * WIDTH * 4
#: Sizes of the decoder: hidden, inner and vocabulary.
HIDDEN, INNER, VOCABULARY = 2048, 5632, 32000
#: Weights of one of its layers, by name.
PROJECTIONS = {
    "q": (HIDDEN, HIDDEN), "k": (HIDDEN, HIDDEN // 4), "v": (HIDDEN, HIDDEN // 4), "o": (HIDDEN, HIDDEN),
    "gate": (HIDDEN, INNER), "up": (HIDDEN, INNER), "down": (INNER, HIDDEN),
}  # fmt: skip


def layer_count(gigabytes: float) -> int:
    """Layers that hold at least `gigabytes` (10^9 bytes) of weights."""
    return max(1, math.ceil(gigabytes * 1e9 / LAYER_BYTES))


def pieces(seed: int, layer: int) -> Iterator[np.ndarray]:
    """Weights of one layer in pieces [256, 4096] float32; deviation sqrt(2 / 4096) keeps activations at their size."""
    rng = np.random.default_rng([seed, layer])
    for _ in range(WIDTH // ROWS):
        yield rng.standard_normal((ROWS, WIDTH), np.float32) * np.float32(math.sqrt(2 / WIDTH))


def external(name: str, location: str, offset: int, shape: tuple[int, int] = (WIDTH, WIDTH)) -> onnx.TensorProto:
    """An initializer whose bytes lie at `offset` of the file `location`."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", math.prod(shape) * 4)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def graph(layers: int, location: str) -> onnx.GraphProto:
    """The chain, with its nameless nodes and dead branches."""
    nodes, weights, x = [], [], "input"
    for layer in range(layers):
        weights.append(external(f"layers.{layer}.weight", location, layer * LAYER_BYTES))
        product = f"/layers.{layer}/matmul_output_0"
        nodes.append(helper.make_node("MatMul", [x, weights[-1].name], [product], name=f"/layers.{layer}/matmul"))
        x = "output" if layer == layers - 1 else f"/layers.{layer}/relu_output_0"
        nodes.append(helper.make_node("Relu", [product], [x], name="" if layer % 3 == 0 else f"/layers.{layer}/relu"))
        if layer % 8 == 0:
            dead = f"/layers.{layer}/dead"
            nodes.append(helper.make_node("Abs", [product], [f"{dead}/abs_output_0"], name=f"{dead}/abs"))
            nodes.append(
                helper.make_node("Sqrt", [f"{dead}/abs_output_0"], [f"{dead}/sqrt_output_0"], name=f"{dead}/sqrt")
            )
    return helper.make_graph(nodes, "big_model", [floats("input", "N", WIDTH)], [floats("output", "N", WIDTH)], weights)


def decoder_shapes(gigabytes: float) -> dict[str, tuple[int, int]]:
    """Name → shape of the weights of a decoder of at least `gigabytes`, in the order of the file."""
    ends = {"embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (HIDDEN, VOCABULARY)}
    layer = sum(math.prod(shape) for shape in PROJECTIONS.values())
    left = gigabytes * 1e9 / 4 - sum(math.prod(shape) for shape in ends.values())
    layers = range(max(1, math.ceil(left / layer)))
    inner = {f"layers.{n}.{name}.weight": shape for n in layers for name, shape in PROJECTIONS.items()}
    return {"embed_tokens.weight": ends["embed_tokens.weight"], **inner, "lm_head.weight": ends["lm_head.weight"]}


def decoder_graph(shapes: dict[str, tuple[int, int]], location: str) -> onnx.GraphProto:
    """The decoder; every MatMul reads a weight of `shapes`."""
    nodes, weights, offset = [], [], 0
    for name, shape in shapes.items():
        weights.append(external(name, location, offset, shape))
        offset += math.prod(shape) * 4

    def node(op_type: str, name: str, *inputs: str, **attributes: int) -> str:
        nodes.append(helper.make_node(op_type, inputs, [f"{name}_output_0"], name=name, **attributes))
        return f"{name}_output_0"

    x = node("Gather", "/embed_tokens", "embed_tokens.weight", "ids")
    for n in range((len(shapes) - 2) // len(PROJECTIONS)):
        q, k, v = (node("MatMul", f"/layers.{n}/{p}", x, f"layers.{n}.{p}.weight") for p in "qkv")
        wide = node("Concat", f"/layers.{n}/concat", k, v, k, v, axis=-1)
        mixed = node("Tanh", f"/layers.{n}/tanh", node("Add", f"/layers.{n}/mix", q, wide))
        x = node("Add", f"/layers.{n}/add", x, node("MatMul", f"/layers.{n}/o", mixed, f"layers.{n}.o.weight"))
        gate, up = (node("MatMul", f"/layers.{n}/{p}", x, f"layers.{n}.{p}.weight") for p in ("gate", "up"))
        gated = node("Mul", f"/layers.{n}/mul", node("Sigmoid", f"/layers.{n}/sigmoid", gate), up)
        down = node("MatMul", f"/layers.{n}/down", gated, f"layers.{n}.down.weight")
        x = node("Add", f"/layers.{n}/add_1", x, down)
    nodes.append(helper.make_node("MatMul", [x, "lm_head.weight"], ["logits"], name="/lm_head"))
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["N"])
    return helper.make_graph(nodes, "big_decoder", [ids], [floats("logits", "N", VOCABULARY)], weights)


def write(path: Path, gigabytes: float, seed: int, *, decoder: bool = False) -> None:
    """Write `path` and `path.data`; the model last, so that it never stands without its weights."""
    layers, shapes = layer_count(gigabytes), decoder_shapes(gigabytes) if decoder else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".data").open("wb") as out:
        for number, shape in enumerate(shapes.values()):
            for _ in range(0, shape[0], ROWS):
                rng = np.random.default_rng([seed, number, out.tell()])
                size = (min(ROWS, shape[0]), shape[1])
                out.write((rng.standard_normal(size, np.float32) * np.float32(math.sqrt(1 / shape[0]))).data)
        for layer in range(0 if decoder else layers):
            for piece in pieces(seed, layer):
                out.write(piece.data)
    opsets = [helper.make_opsetid("", OPSET)]
    location = path.name + ".data"
    made = decoder_graph(shapes, location) if decoder else graph(layers, location)
    model = helper.make_model(made, producer_name="sample_models", ir_version=IR_VERSION, opset_imports=opsets)
    path.write_bytes(model.SerializeToString(deterministic=True))
    onnx.checker.check_model(str(path), full_check=True)
    size = path.with_name(location).stat().st_size
    print(f"{path.name}: {len(shapes) or layers} {'weights' if decoder else 'layers'}, {size / 1e9:.2f} GB of weights")


def main() -> None:
    """Read the command line and write the model."""
    parser = argparse.ArgumentParser(description="Write a chain of MatMul and Relu of a given size with external data.")
    parser.add_argument("out", type=Path, metavar="OUT.onnx")
    parser.add_argument("--gigabytes", type=float, default=2.4, help="weights, in 10^9 bytes (default 2.4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--decoder", action="store_true", help="the weights of a decoder instead of square ones")
    options = parser.parse_args()
    write(options.out, options.gigabytes, options.seed, decoder=options.decoder)


if __name__ == "__main__":
    main()
