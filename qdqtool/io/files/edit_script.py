"""Pipelines in files: plain pipeline text, or a TOML edit script of ``[[pass]]`` tables (``name`` and the pass's options).

source_sha256 = "…"                               # recorded scripts: the model before, and after the last edit
result_sha256 = "…"
[inputs]
ranges = { file = "ranges.json", sha256 = "…" }   # named inputs, read from beside the script
[quantize]
exclude = ["/head/*"]                             # options of `quantize`, which `--picks` reads and `opt` leaves alone
[[pass]]
name = "insert-qdq"
select = ["tensor:x"]
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Pass
from qdq_passes.errors import UsageError
from qdq_passes.numerics.documents import sha256_in, toml_of
from qdq_passes.pipeline.option_types import plain_value
from qdq_passes.pipeline.text import is_default, make_pass, parse_passes

from qdqtool.io.files.atomic import refuse_unwritable, write_whole
from qdqtool.io.files.read import read_text

#: A table of an edit script; pipeline text has none.
_TABLE = re.compile(r"^[ \t]*\[\[?[ \t]*pass[ \t]*\]", re.MULTILINE)
_HEAD = "# Edits of a model, in order; `qdqtool opt MODEL -o OUTPUT -p @THIS_FILE` does them again.\n"


@dataclass(frozen=True, kw_only=True)
class ScriptInput:
    """A named input of a script.

    Args:
        file: its file, found from where the script lies.
        sha256: hex SHA-256 of its content, empty when the script does not say.
    """

    file: str
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a pipeline file says.

    Args:
        passes: the passes, in order.
        inputs: named inputs that it brings along.
        source_sha256: hex SHA-256 of the model it was recorded on, empty when not recorded.
        result_sha256: hex SHA-256 of the model after the last recorded edit.
        options: selectors that `quantize` takes, by the option's name.
    """

    passes: tuple[Pass, ...]
    inputs: Mapping[str, ScriptInput] = field(default_factory=dict)
    source_sha256: str = ""
    result_sha256: str = ""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def has_script(path: str | os.PathLike[str]) -> bool:
    """Whether there is a script at ``path``: a file that is empty is one to be written."""
    return os.path.lexists(path) and not (os.path.isfile(path) and os.path.getsize(path) == 0)


def read_script(path: str | os.PathLike[str]) -> Script:
    """What a pipeline file says. Lines that start with ``#`` are comments.

    Raises:
        ModelError: no such file, empty, or not UTF-8.
        UsageError: it cannot be read as a pipeline.
    """
    name = os.fspath(path)
    text = read_text(name)
    if name.endswith(".toml") or _TABLE.search(text):
        return _from_toml(text, name)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    try:
        return Script(passes=tuple(parse_passes(" ".join(lines).strip())))
    except UsageError as error:
        error.where = error.where or name
        raise


def _from_toml(text: str, name: str) -> Script:
    try:
        data = toml_of(text)
    except ValueError as error:
        raise UsageError(f"is no TOML: {error}", where=name) from error
    tables: Any = data.get("pass", [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise UsageError("pass is no list of tables", where=name, hint="write [[pass]] before each pass")
    chosen = _options(data.get("quantize", {}), name)
    if not tables and not chosen:
        raise UsageError("holds no [[pass]]", where=name, hint='write [[pass]] and name = "fold-batch-norm"')
    passes = []
    for index, table in enumerate(tables, 1):
        options = dict(table)
        pass_name = options.pop("name", None)
        if not isinstance(pass_name, str):
            raise UsageError(f"[[pass]] number {index} has no name", where=name, hint='write name = "fold-batch-norm"')
        try:
            passes.append(make_pass(pass_name, options))
        except UsageError as error:
            raise UsageError(f"[[pass]] number {index}: {error.message}", where=name, hint=error.hint) from error
    return Script(
        passes=tuple(passes),
        inputs=_inputs(data.get("inputs", {}), name),
        source_sha256=_hash(data, "source_sha256", name),
        result_sha256=_hash(data, "result_sha256", name),
        options=chosen,
    )


def _options(table: Any, name: str) -> dict[str, tuple[str, ...]]:
    """``[quantize]``: a list of selectors per option."""
    is_table = isinstance(table, dict) and all(isinstance(each, list) for each in table.values())
    if not is_table or not all(isinstance(text, str) for each in table.values() for text in each):
        raise UsageError(
            "quantize is no table of lists of selectors",
            where=name,
            hint='write [quantize] and exclude = ["op:Softmax"]',
        )
    return {key: tuple(texts) for key, texts in table.items()}


def _inputs(table: Any, name: str) -> dict[str, ScriptInput]:
    """``[inputs]``: a file name, or a table of ``file`` and ``sha256``, per named input."""
    if not isinstance(table, dict):
        raise UsageError("inputs is no table", where=name, hint='write [inputs] and ranges = "ranges.json"')
    found = {}
    for key, value in table.items():
        entry = {"file": value} if isinstance(value, str) else value
        if not isinstance(entry, dict) or not isinstance(entry.get("file"), str):
            raise UsageError(f"inputs.{key} names no file", where=name, hint=f'write {key} = "{key}.json"')
        file = os.path.join(os.path.dirname(name), entry["file"])
        found[key] = ScriptInput(file=file, sha256=_hash(entry, "sha256", name))
    return found


def _hash(table: Mapping[str, Any], key: str, name: str) -> str:
    try:
        return sha256_in(table.get(key), key)
    except ValueError as error:
        raise UsageError(str(error), where=name, hint=f"leave {key} out") from error


def refuse_append(path: str, source_sha256: str, inputs: NamedInputs) -> None:
    """Refuse what `append_script` could not write, before the edit is made.

    Args:
        path: the script.
        source_sha256: hex SHA-256 of the model before the edit.
        inputs: named inputs of the edit.

    Raises:
        UsageError: no file can be written there, the script records edits of another model, or binds a name to another content.
    """
    refuse_unwritable(path)
    if not has_script(path):
        return
    script = read_script(path)
    if script.result_sha256 != source_sha256:
        problem = "records edits of another model" if script.result_sha256 else "is no recorded script"
        raise UsageError(
            f"{problem}; this edit starts elsewhere", where=path, hint="give --record another file, or remove this one"
        )
    _bound(script, path, inputs)


def append_script(
    path: str,
    passes: Sequence[Pass],
    *,
    source_sha256: str,
    result_sha256: str,
    inputs: NamedInputs,
    options: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write the script at ``path``, or append to it; see `refuse_append`.

    Args:
        path: the script.
        passes: the edit.
        source_sha256: hex SHA-256 of the model before.
        result_sha256: hex SHA-256 of the model after.
        inputs: named inputs of the edit; their files are named relative to the script.
        options: selectors for `quantize`, by the option's name.

    Raises:
        UsageError: the script already binds a name to another content.
    """
    old = read_script(path) if has_script(path) else Script(passes=())
    bound = _bound(old, path, inputs)
    lines = [f"source_sha256 = {_toml(old.source_sha256 or source_sha256)}", f"result_sha256 = {_toml(result_sha256)}"]
    if bound:
        lines += ["", "[inputs]"]
        lines += [f"{k} = {{ file = {_toml(file)}, sha256 = {_toml(sha)} }}" for k, (file, sha) in bound.items()]
    chosen = {
        key: [*old.options.get(key, ()), *(options or {}).get(key, ())] for key in {**old.options, **(options or {})}
    }
    if chosen:
        lines += ["", "[quantize]", *(f"{_toml(key)} = {_toml(texts)}" for key, texts in sorted(chosen.items()))]
    for pass_ in [*old.passes, *passes]:
        lines += ["", "[[pass]]", *(f"{key} = {_toml(value)}" for key, value in _table(pass_).items())]
    write_whole(path, (_HEAD + "\n".join(lines) + "\n").encode())


def _bound(script: Script, path: str, inputs: NamedInputs) -> dict[str, tuple[str, str]]:
    """(file, SHA-256) of the named inputs of ``script`` at ``path`` and those of a new edit, named relative to the script.

    Raises:
        UsageError: the script already binds a name to another content.
    """
    folder = os.path.dirname(os.path.abspath(path))
    bound = {name: (os.path.relpath(entry.file, folder), entry.sha256) for name, entry in script.inputs.items()}
    for name, given in inputs.items():
        if name in bound and bound[name][1] != given.sha256:
            raise UsageError(f"binds @{name} to {bound[name][0]}", where=path, hint="record this edit in another file")
        bound[name] = (os.path.relpath(given.file, folder), given.sha256)
    return bound


def _table(pass_: Pass) -> dict[str, Any]:
    """A pass as a table: its name, and its options that are not the default."""
    given = {f.name: getattr(pass_, f.name) for f in dataclasses.fields(pass_) if not is_default(pass_, f)}
    options = {key.replace("_", "-"): plain_value(value, key) for key, value in given.items()}
    return {"name": type(pass_).name(), **options}


def _toml(value: Any) -> str:
    """``value`` (text, number, boolean, list of these) in TOML; a JSON string is a TOML string but for DEL."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return json.dumps(value) if isinstance(value, bool) else repr(value)


@dataclass(frozen=True, kw_only=True)
class NamedInput:
    """A value that a pipeline reads by name.

    Args:
        value: what the passes get.
        sha256: hex SHA-256 of its content, for provenance and edit scripts.
        file: where it was read.
    """

    value: Any
    sha256: str
    file: str


NamedInputs = Mapping[str, NamedInput]
