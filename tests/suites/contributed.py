"""What onnxruntime says of its own operators: ``python -m tests.suites.contributed`` writes it down for `load`, which does not import it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[2] / "qdqtool" / "io" / "models" / "contributed.json"
DOMAIN = "com.microsoft"
#: Letters of `onnx.AttributeProto.AttributeType`, as the file has them.
LETTERS = {
    "FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g", "FLOATS": "F", "INTS": "I", "STRINGS": "S",
}  # fmt: skip


def signatures() -> dict[str, dict[str, Any]]:
    """Operator → least numbers of inputs and outputs, kinds of attributes, attributes that it must have."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    found = {}
    for schema in sorted(get_all_operator_schema(), key=lambda s: (s.name, s.since_version)):
        if schema.domain == DOMAIN:
            kinds = {a.name: LETTERS[a.type.name] for a in schema.attributes.values()}
            needed = sorted(a.name for a in schema.attributes.values() if a.required)
            found[schema.name] = {
                "least": [schema.min_input, schema.min_output], "kinds": dict(sorted(kinds.items())), "needed": needed,
            }  # fmt: skip
    return found


def text() -> str:
    """The file: an operator a line."""
    rows = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in signatures().items())
    return "{\n" + ",\n".join(rows) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
