"""Take the weights out of exports: ``python -m tests.exports.strip FOLDER`` reads FOLDER/NAME.EXPORTER.onnx and FOLDER/NAME.npz.

Numbers that are noise become their mean, deviation and reach; so do samples. Of the exporter's metadata the module path stays, which
`scope:` reads; its stack traces go.
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tests.exports.exports import DATA, DRAWN

#: Tensors of so few elements stay as they are, and so do those with few different ones.
_SMALL, _FEW = 64, 0.125
_KEPT = ("pkg.torch.onnx.name_scopes",)


def main(folder: Path) -> None:
    """Write what `tests.exports.exports` reads."""
    DATA.mkdir(exist_ok=True)
    for path in sorted(folder.glob("*.onnx")):
        proto = stripped(onnx.load(path))
        (DATA / f"{path.name}.xz").write_bytes(lzma.compress(proto.SerializeToString(deterministic=True), preset=9))
    inputs = {path.stem: _described(path) for path in sorted(folder.glob("*.npz"))}
    text = json.dumps(inputs, indent=1, sort_keys=True)
    (DATA / "inputs.json").write_text(text + "\n", encoding="utf-8")


def stripped(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto`` without the numbers of its weights."""
    graph = proto.graph
    for tensor in graph.initializer:
        array = numpy_helper.to_array(tensor)
        if is_noise(array):
            reach = (array.mean(dtype=np.float64), array.std(dtype=np.float64), array.min(), array.max())
            tensor.ClearField("raw_data")
            tensor.ClearField("float_data")
            tensor.metadata_props.add(key=DRAWN, value=" ".join(f"{float(number):.6g}" for number in reach))
    for thing in (*graph.node, *graph.value_info, *graph.input, *graph.output, graph):
        kept = [(p.key, p.value) for p in thing.metadata_props if p.key in _KEPT]
        del thing.metadata_props[:]
        for key, value in kept:
            thing.metadata_props.add(key=key, value=value)
    for node in graph.node:
        node.doc_string = ""
    return proto


def is_noise(array: NDArray[Any]) -> bool:
    """Whether ``array`` is weights: many different finite floats, none so large as a mask's."""
    if array.dtype != np.float32 or array.size <= _SMALL:
        return False
    return len(np.unique(array)) > array.size * _FEW and bool(np.abs(array).max() < 1e4)


def _described(path: Path) -> dict[str, dict[str, Any]]:
    described = {}
    with np.load(path, allow_pickle=False) as arrays:
        for name in sorted(arrays.files):
            array = arrays[name]
            kind = "mask" if "mask" in name else "ids" if array.dtype.kind in "iu" else "signal"
            low, high = (entry.item() for entry in (array.min(), array.max()))
            described[name] = {
                "kind": kind, "dtype": str(array.dtype), "shape": list(array.shape[1:]), "low": low, "high": high,
            }  # fmt: skip
    return described


if __name__ == "__main__":
    main(Path(sys.argv[1]))
