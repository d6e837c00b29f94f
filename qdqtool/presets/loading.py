"""Preset files: TOML → `Preset`, with a line that names file, table and key for whatever is wrong."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping

from qdq_passes.core.base import Named, Pass
from qdq_passes.core.pipeline_text import make_pass, parse_passes
from qdq_passes.core.select import Selector
from qdq_passes.core.toml_registry import TomlFile, TomlRegistry
from qdq_passes.core.toml_table import TomlTable
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.qdq.annotate_encodings import AnnotateEncodings
from qdq_passes.qdq.insert_qdq import InsertQdq

from qdqtool.presets.preset import Preset

PRESETS = TomlRegistry("presets", "qdqtool.presets")

#: Options of annotate-encodings and of insert-qdq that a preset may set.
POLICY = ("activations", "weights", "bias", "scales", "symmetric")
INSERT = ("weights",)

_METHOD = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def preset_names() -> dict[str, str]:
    """Name → description of every preset there is, sorted by name.

    Raises:
        UsageError: a name is defined twice.
        ModelError: one of the files is broken.
    """
    return {name: load_preset(name).description for name in PRESETS.names()}


def load_preset(name_or_path: str | os.PathLike[str]) -> Preset:
    """The preset of that name or, when it ends in ``.toml``, in that file.

    Raises:
        UsageError: there is no such name or file.
        ModelError: the file is broken; the message names file, table and key.
    """
    return _preset(PRESETS.read(name_or_path))


def _preset(file: TomlFile) -> Preset:
    root = file.root("description", "calibration", "pipeline", "encodings", "insert", "selection")
    return Preset(
        name=file.name,
        description=root.text("description"),
        method=_method(root.table("calibration", "method")),
        before=_before(root.table("pipeline", "before")),
        annotate=_annotate(root.table("encodings", *POLICY), root.table("selection", "ops", "exclude")),
        insert=_insert(root.table("insert", *INSERT)),
        sha256=file.sha256,
    )


def _method(table: TomlTable) -> str:
    method = table.text("method")
    if not _METHOD.fullmatch(method):
        raise table.error(f"'method' cannot be {method!r}", hint="see `qdqtool list methods`")
    return method


def _before(table: TomlTable) -> tuple[Pass, ...]:
    text = table.long_text("before")
    try:
        return tuple(parse_passes(text)) if text.strip() else ()
    except (UsageError, UnsupportedError) as error:
        raise table.error(f"'before': {error.message}", hint=error.hint) from error


def _annotate(policy: TomlTable, selection: TomlTable) -> AnnotateEncodings:
    annotate = _make(policy, "annotate-encodings", {"encodings": Named("ranges"), **policy.scalars()})
    assert isinstance(annotate, AnnotateEncodings)
    if annotate.scales == "pow2" and not annotate.symmetric:
        raise policy.error("power-of-two scales are symmetric", hint='write scales = "any" or symmetric = true')
    try:
        exclude = Selector.of(*selection.texts("exclude"))
    except (UsageError, UnsupportedError) as error:
        raise selection.error(f"'exclude': {error.message}", hint=error.hint) from error
    return dataclasses.replace(
        annotate,
        ops=selection.texts("ops") or annotate.ops,
        exclude=annotate.exclude if exclude.is_all else exclude,
    )


def _insert(table: TomlTable) -> InsertQdq:
    insert = _make(table, "insert-qdq", table.scalars())
    assert isinstance(insert, InsertQdq)
    return insert


def _make(table: TomlTable, name: str, options: Mapping[str, object]) -> Pass:
    """The pass with ``options``; what it refuses is an error about ``table``."""
    try:
        return make_pass(name, dict(options))
    except UsageError as error:
        raise table.error(error.message, hint=error.hint) from error
