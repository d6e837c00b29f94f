"""Write the JSON schemas of what commands print: ``python docs/make_schemas.py``, from the documents that the test runs make.

A key that every document has is required, one that some lack is not. Where names of a model are keys, the schema says what each
value is. Further keys may come with other options and later versions."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SCHEMAS = ROOT / "qdqtool" / "schemas"
#: Keys whose values are keyed by names of a model, of files or of pieces of work.
MAPS = {
    "outputs", "ops", "seconds", "missing_files", "noise", "causes", "price", "mac_shares", "encodings", "settings", "domains",
    "macs_per_cycle", "tensors_by_name", "shapes", "axes", "dims", "options", "session", "min_output", "levels", "inputs_sha256",
}  # fmt: skip
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def described(values: list[Any], key: str = "") -> dict[str, Any]:
    """The schema that all of ``values`` fit."""
    kinds = {_NAMES[type(value)] for value in values if type(value) in _NAMES}
    kinds -= {"integer"} if "number" in kinds else set()
    kinds |= {"null"} if "number" in kinds else set()  # what is infinite, as the SQNR of equal outputs
    found: dict[str, Any] = {}
    objects = [value for value in values if isinstance(value, dict)]
    if objects:
        kinds.add("object")
        if key in MAPS:
            inner = [item for value in objects for item in value.values()]
            found["additionalProperties"] = described(inner) if inner else True
        else:
            names = sorted({name for value in objects for name in value})
            found["properties"] = {name: described([v[name] for v in objects if name in v], name) for name in names}
            found["required"] = [name for name in names if all(name in value for value in objects)]
    lists = [value for value in values if isinstance(value, list)]
    if lists:
        kinds.add("array")
        inner = [item for value in lists for item in value]
        found |= {"items": described(inner)} if inner else {}
    return {"type": sorted(kinds), **found} if len(kinds) > 1 else {"type": min(kinds), **found} if kinds else {}


def text(command: str, values: list[Any]) -> str:
    """The file of ``command``."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"qdqtool {command} --json"}
    return json.dumps({**head, **described(values)}, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from tests.cases.documents import documents

    with tempfile.TemporaryDirectory() as folder:
        for name, values in documents(Path(folder)):
            (SCHEMAS / f"{name.replace(' ', '-')}.json").write_text(text(name, values), encoding="utf-8")
