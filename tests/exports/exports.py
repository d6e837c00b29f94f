"""Reading the exports: weights are drawn anew, of the mean, deviation and reach that stand in their place.

Placement and rewriting hang on graphs, not on weights. What is small or no noise (shapes, masks, epsilons, indices) is as exported.
"""

from __future__ import annotations

import json
import lzma
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

DATA = Path(__file__).parent / "data"
#: Key of the metadata of a tensor that says how its numbers are drawn: mean, deviation, smallest, largest.
DRAWN = "qdqtool.tests.drawn"
#: Samples of a file.
SAMPLES = 16


def names() -> list[str]:
    """``ARCHITECTURE.EXPORTER`` of each export."""
    return sorted(path.name.removesuffix(".onnx.xz") for path in DATA.glob("*.onnx.xz"))


def model(name: str) -> onnx.ModelProto:
    """The export ``name`` with its weights drawn; the same bytes each time."""
    proto = onnx.load_model_from_string(lzma.decompress((DATA / f"{name}.onnx.xz").read_bytes()))
    for tensor in proto.graph.initializer:
        _draw(tensor)
    return proto


def samples(name: str, count: int = SAMPLES) -> dict[str, NDArray[Any]]:
    """``count`` samples for the export ``name``: an array for each input, the first axis the samples'."""
    rng = np.random.default_rng(zlib.crc32(name.partition(".")[0].encode()))
    inputs: Mapping[str, Mapping[str, Any]] = _inputs()[name.partition(".")[0]]
    arrays = {key: _sample(rng, said) for key, said in inputs.items()}
    return {key: array[:count] for key, array in arrays.items()}


def write(name: str, folder: Path, count: int = SAMPLES) -> tuple[Path, Path]:
    """The export ``name`` and ``count`` samples as files of ``folder``: (model, samples)."""
    path, data = folder / f"{name}.onnx", folder / f"{name}.npz"
    onnx.save(model(name), path)
    np.savez(data, allow_pickle=False, **samples(name, count))
    return path, data


@cache
def _inputs() -> dict[str, dict[str, dict[str, Any]]]:
    """Shape of one sample, type and reach of each input of each architecture."""
    text = (DATA / "inputs.json").read_text(encoding="utf-8")
    read: dict[str, dict[str, dict[str, Any]]] = json.loads(text)
    return read


def _draw(tensor: onnx.TensorProto) -> None:
    said = next((entry for entry in tensor.metadata_props if entry.key == DRAWN), None)
    if said is None:
        return
    mean, deviation, low, high = (float(word) for word in said.value.split())
    rng = np.random.default_rng(zlib.crc32(tensor.name.encode()))
    drawn = rng.normal(mean, deviation, tuple(tensor.dims)).clip(low, high)
    filled = numpy_helper.from_array(drawn.astype(np.float32), tensor.name)
    tensor.raw_data = filled.raw_data
    tensor.metadata_props.remove(said)


def _sample(rng: np.random.Generator, said: Mapping[str, Any]) -> NDArray[Any]:
    """An input: a prefix of ones for masks, whole numbers for ids, smooth noise for what is seen or heard."""
    shape, low, high = (SAMPLES, *said["shape"]), said["low"], said["high"]
    if said["kind"] == "mask":
        lengths = rng.integers(shape[1] // 2, shape[1] + 1, (SAMPLES, 1))
        lengths[0] = shape[1]
        kept = np.broadcast_to(np.arange(shape[1]), shape) < (lengths if low == 0 else shape[1])
        return kept.astype(said["dtype"])
    if said["kind"] == "ids":
        return rng.integers(low, high + 1, shape).astype(said["dtype"])
    coarse = rng.uniform(low, high, (*shape[:-1], -(-shape[-1] // 4)))
    noise = np.repeat(coarse, 4, axis=-1)[..., : shape[-1]] * 0.9 + rng.uniform(low, high, shape) * 0.1
    return noise.clip(low, high).astype(said["dtype"])
