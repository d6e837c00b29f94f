"""What commands print fits the schema that comes with the installation, and every command that prints a document has one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from qdqtool import schemas
from tests.cases import documents
from tests.cases.cli_helpers import DIGITS, cli, every_command
from tests.cases.json_schemas import check_document, described, text, united


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return dict(documents.documents(tmp_path_factory.mktemp("documents")))


def test_documents_fit_their_schemas(found: dict[str, list[Any]]) -> None:
    assert {name.replace(" ", "-") for name in found} == set(schemas.names())
    for name, values in found.items():
        validator = jsonschema.Draft202012Validator(schemas.schema(name))
        for value in values:
            errors = [f"{name} {error.json_path}: {error.message[:200]}" for error in validator.iter_errors(value)]
            assert not errors


@pytest.mark.parametrize("key", ["npu_percent", "nodes", "findings"])
def test_a_document_without_a_required_key_is_refused(found: dict[str, list[Any]], key: str) -> None:
    value = {name: item for name, item in found["analyze"][0].items() if name != key}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, schemas.schema("analyze"))


def test_every_command_has_a_schema_or_a_reason() -> None:
    names = {name for name, _ in every_command()}
    assert names - set(documents.runs(Path())) - documents.WITHOUT == set()
    assert set(documents.runs(Path())) <= names


@pytest.mark.parametrize(("values", "schema"), [
    ([1, 2], {"type": "integer"}),
    ([1, 2.5], {"type": ["null", "number"]}),
    ([None, "a"], {"type": ["null", "string"]}),
    ([[], [1]], {"type": "array", "items": {"type": "integer"}}),
    ([{"a": 1, "b": 1}, {"a": "x"}],
     {"type": "object", "properties": {"a": {"type": ["integer", "string"]}, "b": {"type": "integer"}}, "required": ["a"]}),
    ([{"ops": {"Conv": 1}}, {"ops": {}}],
     {"type": "object", "properties": {"ops": {"type": "object", "additionalProperties": {"type": "integer"}}}, "required": ["ops"]}),
    ([{"level": "error"}, {"level": None}],
     {"type": "object", "properties": {"level": {"type": ["null", "string"], "enum": ["error", "fatal", "note", "warning", None]}},
      "required": ["level"]}),
    ([{"level": "error"}, {"level": "another"}], {"type": "object", "properties": {"level": {"type": "string"}}, "required": ["level"]}),
])  # fmt: skip
def test_a_schema_of_several_documents(values: list[Any], schema: dict[str, Any]) -> None:
    found = united(map(described, values))
    assert found == schema
    assert united([found, *map(described, values)]) == found
    for value in values:
        jsonschema.validate(value, found)


def test_what_a_test_prints_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    document = cli("analyze", DIGITS, "--target", "vitis_xint8", "--json").json
    document["nodes"][0]["verdict"] = "npu"
    monkeypatch.setenv("SCHEMAS", "check")
    with pytest.raises(AssertionError, match="'npu' is not one of"):
        check_document(["analyze", DIGITS], document)


def test_what_was_null_in_all_documents_may_be_anything() -> None:
    assert json.loads(text("x", described({"a": None, "b": [None]})))["properties"] == {
        "a": {},
        "b": {"items": {}, "type": "array"},
    }
