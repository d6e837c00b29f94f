"""JSON schemas of documents: inferred from values, widened by further ones, with the closed sets that the code has."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import jsonschema
from qdq_passes.core.findings import Level
from qdq_passes.npu.units.verdict import VerdictKind
from qdq_passes.qdq.look.pairs import Kind as PairKind

from qdqtool import schemas
from qdqtool.npu.shares import NodeKind
from qdqtool.npu.simulated import PlacementSource
from qdqtool.search.goal.standing import Verdict
from tests.architecture.places import ROOT

FOLDER = ROOT / "qdqtool" / "schemas"
#: Keys whose values are keyed by names of a model, of files or of pieces of work.
MAPS = {
    "outputs", "ops", "seconds", "missing_files", "noise", "causes", "price", "mac_shares", "encodings", "settings", "domains",
    "macs_per_cycle", "tensors_by_name", "shapes", "axes", "dims", "options", "session", "min_output", "levels", "inputs_sha256",
}  # fmt: skip
#: Closed sets of texts. A key stands for one only where all values are of the set.
SETS = (
    {"cumulative", "local", "dumps"}, *map(set, map(get_args, (Level, NodeKind, PairKind, PlacementSource, Verdict, VerdictKind))),
)  # fmt: skip
CLOSED = {"verdict", "level", "kind", "mode", "placement_source", "standing"}
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}

Schema = dict[str, Any]


def described(value: Any, key: str = "") -> Schema:
    """Return the schema that ``value`` of ``key`` fits; {} where it shows nothing."""
    if isinstance(value, dict):
        if key in MAPS:
            return {"type": "object", "additionalProperties": united(map(described, value.values()))}
        properties = {name: described(item, name) for name, item in value.items()}
        return {"type": "object", "properties": properties, "required": sorted(value)}
    if isinstance(value, list):
        return {"type": "array", "items": united(map(described, value))}
    if isinstance(value, float):
        return {"type": ["null", "number"]}  # null is infinite, as the SQNR of equal outputs
    found: Schema = {"type": _NAMES[type(value)]}
    closed = next((each for each in SETS if key in CLOSED and isinstance(value, str) and value in each), None)
    return found if closed is None else {**found, "enum": sorted(closed)}


def united(found: Iterable[Schema]) -> Schema:
    """Return the schema of what fits one of ``found``."""
    return functools.reduce(widened, found, {})


def widened(one: Schema, other: Schema) -> Schema:
    """Return the schema of what fits ``one`` or ``other``; an empty one adds nothing."""
    if not one or not other:
        return one or other
    types = _types(one) | _types(other)
    types -= {"integer"} if "number" in types else set()
    found: Schema = {"type": sorted(types) if len(types) > 1 else min(types)}
    texts = [each for each in (one, other) if "string" in _types(each)]
    if texts and all("enum" in each for each in texts) and types <= {"string", "null"}:
        found["enum"] = sorted({value for each in texts for value in each["enum"]} - {None}) + [None] * (
            "null" in types
        )
    objects = [each for each in (one, other) if "properties" in each]
    if objects:
        names = sorted({name for each in objects for name in each["properties"]})
        found["properties"] = {name: united(each["properties"].get(name, {}) for each in objects) for name in names}
        found["required"] = sorted(set.intersection(*(set(each["required"]) for each in objects)))
    for part in ("items", "additionalProperties"):
        if parts := [each[part] for each in (one, other) if part in each]:
            found[part] = united(parts)
    return found


def _types(schema: Schema) -> set[str]:
    return {schema["type"]} if isinstance(schema["type"], str) else set(schema["type"])


def text(command: str, schema: Schema) -> str:
    """Return the file of ``command``."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"qdqtool {command} --json"}
    return json.dumps({**_open(schema), **head}, indent=1, sort_keys=True) + "\n"


def _open(schema: Schema) -> Schema:
    """Return ``schema`` without the type of what was null in all documents, which is not always so."""
    if schema.get("type") == "null":
        return {}
    found = dict(schema)
    for part in ("items", "additionalProperties"):
        if part in found:
            found[part] = _open(found[part])
    if "properties" in found:
        found["properties"] = {name: _open(inner) for name, inner in found["properties"].items()}
    return found


def path_of(command: str) -> Path:
    """Return the path of the schema of ``command``."""
    return FOLDER / f"{command.replace(' ', '-')}.json"


@functools.cache
def _validator(command: str) -> Any:
    return jsonschema.Draft202012Validator(schemas.schema(command))


def check_document(words: list[str], document: Any) -> None:
    """Check that what the command of ``words`` printed fits the schema that is shipped, where the environment says ``SCHEMAS=check``;
    ``SCHEMAS=write`` widens it instead.

    The tests of a day are a part of all, and schemas know the documents that were printed when they were written."""
    asked = os.environ.get("SCHEMAS")
    if asked not in ("check", "write"):
        return
    command = next((name for count in (2, 1) if path_of(name := " ".join(words[:count])).is_file()), None)
    if command is None:
        return
    errors = [f"{error.json_path}: {error.message[:200]}" for error in _validator(command).iter_errors(document)]
    if errors and asked == "write":
        schema = schemas.schema(command)
        path_of(command).write_text(text(command, widened(schema, described(document))), encoding="utf-8")
        _validator.cache_clear()
        return
    assert not errors, f"{command} --json does not fit its schema (SCHEMAS=write widens it): {errors[:5]}"
