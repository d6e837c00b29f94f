"""What the tests of encodings share: a model as comparable facts, models in ONNX text, and the way there and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir as ir
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.uses import all_graphs
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import qdq_pairs
from qdq_passes.verification.rules import verify

import qdqtool
from qdqtool.encodings.alignment import align
from qdqtool.encodings.exporting import Exported, export
from qdqtool.encodings.formats import read_document
from qdqtool.encodings.importing import Imported, put_in
from qdqtool.encodings.tensors import values_by_name
from qdqtool.io.files.artifacts import canonical_json

DATA = Path(__file__).parents[1] / "data" / "encodings"
AIMET = ("aimet-0.6.1", "aimet-1.0.0", "aimet-2.0.0", "aimet-2.1.0")


def facts(model: ir.Model) -> list[str]:
    """Every node with its name, wiring and attributes, every constant bit for bit, every end of the graph; sorted."""
    found = []
    for graph in all_graphs(model):
        for node in graph:
            attributes = sorted(str(a) for a in node.attributes.values() if a.type != ir.AttributeType.GRAPH)
            reads = ", ".join("" if v is None else v.name or "" for v in node.inputs)
            writes = ", ".join(v.name or "" for v in node.outputs)
            found.append(f"{writes} = {node.domain}::{node.op_type}({reads}) {attributes} @{node.name}")
        for value in graph.initializers.values():
            tensor = value.const_value
            assert tensor is not None
            found.append(f"{value.name}: {tensor.dtype.name}{list(tensor.shape)} = {tensor.tobytes().hex()}")
        found += [f"in {v.name}: {v.dtype}" for v in graph.inputs] + [f"out {v.name}: {v.dtype}" for v in graph.outputs]
    return sorted(found)


def there(model: ir.Model, format_name: str, **options: Any) -> tuple[ir.Model, Any, Exported]:
    """The float model, the file's document as JSON gives it back, and what `export` said; ``model`` stays."""
    work = copy_model(model)
    done = export(work, format_name, **options)
    return work, json.loads(canonical_json(done.document)), done


def back(model: ir.Model, document: Any, **options: Any) -> Imported:
    """The float ``model`` (which stays) with the encodings of ``document`` in it."""
    work, file = copy_model(model), read_document(document)
    done = put_in(work, file, align(file.by_name, work), **options)
    assert verify(work, minimum="error") == []
    return done


def there_and_back(model: ir.Model, format_name: str, **options: Any) -> ir.Model:
    """A QDQ model by way of its float model and an encodings file."""
    bare, document, _ = there(model, format_name)
    return back(bare, document, **options).model


NET = """g (float[1,2,2,2] x) => (float[1,2] y)
  <float[2,2,1,1] w = {0.5, -1, 0.25, 1}, float[2] b = {0.3, -0.7}, float[8,2] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}>
  { [conv] c = Conv(x, w, b) [relu] r = Relu(c) [flat] f = Flatten(r) [mm] y = MatMul(f, v) }"""


def uint8(name: str, scale: float = 0.5, zero_point: int = 128) -> dict[str, Any]:
    return {"name": name, "output_dtype": "uint8", "y_scale": scale, "y_zero_point": zero_point}


def int8(name: str, scale: float | list[float] = 0.5, **more: Any) -> dict[str, Any]:
    return {"name": name, "output_dtype": "int8", "y_scale": scale, **more}


def file(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"version": "2.0.0", "encodings": list(entries)}


ALL = (uint8("x"), int8("w", [0.5, 0.25], axis=0), uint8("r", 0.25, 0), int8("v", 1.0), int8("y"))


def encodings(done: Imported) -> dict[str, Encoding | None]:
    return {pair.tensor: pair.encoding for pair in qdq_pairs(done.model)}


def missing(done: Imported) -> list[str]:
    return [one.value.name or "" for one in done.missing]


def per_axis(dtype: ir.DataType, scale: tuple[float, ...], axis: int = 0) -> Encoding:
    return Encoding(dtype=dtype, scale=scale, zero_point=(0,) * len(scale), shape=(len(scale),), axis=axis)


def values() -> dict[str, ir.Value]:
    return values_by_name(qdqtool.load(DATA / "model.onnxtxt"))


def as_json(document: Any) -> Any:
    """As the file gives it back: tuples are lists."""
    return json.loads(json.dumps(document))
