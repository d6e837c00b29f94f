"""Write a model of any size with external data, to try tools on files beyond 2 GB.

    python sample_models/big_model.py OUT.onnx --gigabytes 2.4

A chain of MatMul and Relu with square weights [4096, 4096] float32 (64 MiB each), input `input` [N, 4096], output
`output` [N, 4096]. Weights are drawn from the seed and written in pieces of 4 MiB to `OUT.onnx.data`, so memory does
not grow with the size. Every third Relu has no name and every eighth layer has a dead branch without weights:
`remove-unused,give-names` has something to do.
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


def layer_count(gigabytes: float) -> int:
    """Layers that hold at least `gigabytes` (10^9 bytes) of weights."""
    return max(1, math.ceil(gigabytes * 1e9 / LAYER_BYTES))


def pieces(seed: int, layer: int) -> Iterator[np.ndarray]:
    """Weights of one layer in pieces [256, 4096] float32; deviation sqrt(2 / 4096) keeps activations at their size."""
    rng = np.random.default_rng([seed, layer])
    for _ in range(WIDTH // ROWS):
        yield rng.standard_normal((ROWS, WIDTH), np.float32) * np.float32(math.sqrt(2 / WIDTH))


def external(name: str, location: str, offset: int) -> onnx.TensorProto:
    """A [4096, 4096] initializer whose bytes lie at `offset` of the file `location`."""
    tensor = TensorProto(
        name=name, data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH], data_location=TensorProto.EXTERNAL
    )
    for key, value in (("location", location), ("offset", offset), ("length", LAYER_BYTES)):
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


def write(path: Path, gigabytes: float, seed: int) -> None:
    """Write `path` and `path.data`; the model last, so that it never stands without its weights."""
    layers = layer_count(gigabytes)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".data").open("wb") as out:
        for layer in range(layers):
            for piece in pieces(seed, layer):
                out.write(piece.data)
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(
        graph(layers, path.name + ".data"), producer_name="sample_models", ir_version=IR_VERSION, opset_imports=opsets
    )
    path.write_bytes(model.SerializeToString(deterministic=True))
    onnx.checker.check_model(str(path), full_check=True)
    print(f"{path.name}: {layers} layers, {layers * LAYER_BYTES / 1e9:.2f} GB of weights")


def main() -> None:
    """Read the command line and write the model."""
    parser = argparse.ArgumentParser(description="Write a chain of MatMul and Relu of a given size with external data.")
    parser.add_argument("out", type=Path, metavar="OUT.onnx")
    parser.add_argument("--gigabytes", type=float, default=2.4, help="weights, in 10^9 bytes (default 2.4)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write(options.out, options.gigabytes, options.seed)


if __name__ == "__main__":
    main()
