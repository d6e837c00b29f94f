"""What onnxruntime says of its own operators: ``python -m tests.suites.contributed`` writes it down for `load`, which does not import it."""

from __future__ import annotations

import json
from pathlib import Path

from onnx import AttributeProto, defs

from qdqtool.io.models.signatures import _KINDS, MICROSOFT

FILE = Path(__file__).parents[2] / "qdqtool" / "io" / "models" / "contributed.json"


def text() -> str:
    """The file, an operator a line: least numbers of inputs and outputs, kinds of attributes, attributes that it must have."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    letters = {AttributeProto.AttributeType.Name(kind): letter for letter, kind in _KINDS.items()}
    found = {}
    for schema in sorted(get_all_operator_schema(), key=lambda s: (s.name, s.since_version)):
        if schema.domain == MICROSOFT or (not schema.domain and not defs.has(schema.name)):
            attributes = sorted(schema.attributes.items())
            found[f"{schema.domain}::{schema.name}"] = {
                "least": [schema.min_input, schema.min_output], "kinds": {name: letters[a.type.name] for name, a in attributes},
                "needed": [name for name, a in attributes if a.required],
            }  # fmt: skip
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in found.items()) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
