"""Chip files: TOML → `Chip`, with a line that names file, table and key for whatever is wrong."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from typing import Any, cast, get_args

import numpy as np
from qdq_passes.core.toml_registry import TomlFile
from qdq_passes.core.toml_table import TomlTable
from qdq_passes.errors import UsageError
from qdq_passes.numerics.documents import toml_of

from qdqtool.chips import CHIPS
from qdqtool.chips.chip import HARDWARE, Array, Chip, Dated, Fitted, Measured, Profile
from qdqtool.targets.cost import Confidence

ROOT = ("name", "vendor", "npu", "target", "aliases", "boards", "like", "hardware", "watts", "profile")
DATED = ("value", "source", "confidence", "date")
FITTED = ("coefficients", "errors", "correlations")
PROFILE = (
    "stack", "precision", "form", "version", "date", "rows", "noise", "unseen", "scale", "training", "family",
    "datasets", "shifted", "measured", "carried", *FITTED,
)  # fmt: skip
MEASURED = ("model", "precision", "phase", "tokens", "context", "ms")
#: Columns of a measured row that is a mean over a data set.
OF_MEAN = (*MEASURED, "dataset")
#: Tables of pairs of numbers by name; what a pair is.
PAIRS = {"training": "[lowest, highest]", "datasets": "[factor, deviation]", "shifted": "[ms, deviation]"}
_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")


def load_chip(name_or_path: str | os.PathLike[str]) -> Chip:
    """The chip of that name, alias or board or, when it ends in ``.toml``, in that file.

    Raises:
        UsageError: there is no such name or file; the nearest names are given.
        ModelError: the file is broken; the message names file, table and key.
    """
    text = os.fspath(name_or_path)
    return _chip(CHIPS.read(text)) if text.endswith(".toml") else _known(_names().get(_key(text), text))


def chip_names() -> tuple[str, ...]:
    """File names of all chips, sorted."""
    return tuple(CHIPS.names())


def all_known() -> tuple[Chip, ...]:
    """Every chip, by the name of its file."""
    return tuple(_known(file) for file in chip_names())


def find_chip(name: str) -> Chip | None:
    """The chip of that name, alias or board, or None."""
    file = _names().get(_key(name))
    return None if file is None else _known(file)


def _known(file: str) -> Chip:
    return _at(file, str(CHIPS.path(file)))


@functools.cache
def _at(file: str, path: str) -> Chip:
    """A chip is read once from where it lies."""
    return _chip(CHIPS.read(file))


def _names() -> dict[str, str]:
    """Key of a name, alias or board → file; what stands before the profiles tells it, and they are most of the text."""
    found: dict[str, str] = {}
    for file, entry in CHIPS.entries().items():
        head = _head(file, entry.load())
        for name in (file, head.get("name"), *_texts(head, "aliases"), *_texts(head, "boards")):
            other = found.setdefault(_key(str(name)), file)
            if other != file:
                raise UsageError(f"two chips are called {name!r}", hint=f"{other} and {file}: take the name out of one")
    return found


def _head(file: str, path: Traversable) -> Mapping[str, Any]:
    """Return the tables of a chip file that come before its profiles. The same text is parsed once."""
    try:
        return _parsed_head(path.read_text(encoding="utf-8").partition("\n[[profile]]")[0])
    except (OSError, ValueError):
        return CHIPS.read(file).data  # which says what is wrong with it


@functools.cache
def _parsed_head(text: str) -> Mapping[str, Any]:
    return toml_of(text)


def _texts(data: Mapping[str, Any], key: str) -> list[Any]:
    found = data.get(key)
    return found if isinstance(found, list) else []


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _chip(file: TomlFile) -> Chip:
    root = file.root(*ROOT)
    text = {key: root.text(key) for key in ("name", "vendor", "npu", "target")}
    hardware = {key: _dated(root.table("hardware", *HARDWARE).table(key, *DATED)) for key in _mapping(root, "hardware")}
    watts = _mapping(root, "watts")
    return Chip(
        **text,
        file=file.name,
        aliases=root.texts("aliases"),
        boards=root.texts("boards"),
        like=root.text("like") if "like" in file.data else "",
        hardware=hardware,
        watts={key: _dated(root.table("watts", *watts).table(key, *DATED)) for key in watts},
        profiles=tuple(
            _profile(table) for table in (root.tables("profile", *PROFILE) if "profile" in file.data else ())
        ),
    )


def _dated(table: TomlTable) -> Dated:
    value = number_of(table, "value")
    date = table.text("date")
    if not _DATE.fullmatch(date):
        raise table.error(f"date is {date!r}", hint="write 2026-02")
    confidence = cast(Confidence, table.choice("confidence", get_args(Confidence)))
    return Dated(value=value, source=table.text("source"), confidence=confidence, date=date)


def number_of(table: TomlTable, key: str, *, least: float = 0.0) -> float:
    """A finite number above ``least``."""
    value = table.data.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= least:
        raise table.error(f"{key} is {value!r}", hint=f"write a number above {least:g}")
    return float(value)


def _profile(table: TomlTable) -> Profile:
    data = table.data
    inner = TomlTable.of(families := _mapping(table, "family"), where=f"{table.where} family", keys=families)

    def text(key: str) -> str:
        return table.text(key) if key in data else ""

    return Profile(
        stack=table.text("stack"),
        precision=text("precision"),
        form=table.text("form"),
        version=text("version"),
        date=text("date"),
        carried=text("carried"),
        unseen=number_of(table, "unseen") if "unseen" in data else 0.0,
        scale=number_of(table, "scale") if "scale" in data else 1.0,
        rows=table.number("rows"),
        fitted=fitted_of(table),
        families={name: fitted_of(inner.table(name, *FITTED)) for name in families},
        noise=_numbers(table, "noise"),
        training=_pairs(table, "training"),
        datasets=_pairs(table, "datasets"),
        shifted=_pairs(table, "shifted"),
        measured=tuple(_measured(table)),
    )


def fitted_of(table: TomlTable) -> Fitted:
    """Coefficients, the standard errors of their logarithms, and the correlations of these below the diagonal, in percent."""
    coefficients, errors = _numbers(table, "coefficients"), _numbers(table, "errors")
    if not coefficients or coefficients.keys() != errors.keys():
        raise table.error("coefficients and errors do not name the same", hint="give an error for each coefficient")
    n = len(coefficients)
    lower = table.data.get("correlations", [0] * (n * (n - 1) // 2))
    if (
        not isinstance(lower, list)
        or len(lower) != n * (n - 1) // 2
        or not all(type(c) is int and abs(c) <= 100 for c in lower)
    ):
        raise table.error(
            f"correlations are not {n * (n - 1) // 2} whole percents", hint="row by row below the diagonal"
        )
    correlation: Array = np.eye(n)
    correlation[np.tril_indices(n, -1)] = np.array(lower, dtype=float) / 100
    correlation += np.tril(correlation, -1).T
    sd = np.array([errors[name] for name in coefficients])
    return Fitted(tuple(coefficients), np.log(np.array(list(coefficients.values()))), correlation * np.outer(sd, sd))


def _numbers(table: TomlTable, key: str) -> dict[str, float]:
    inner = _mapping(table, key)
    named = TomlTable.of(inner, where=f"{table.where} {key}", keys=inner)
    return {name: number_of(named, name) for name in inner}


def _pairs(table: TomlTable, key: str) -> dict[str, tuple[float, float]]:
    found = {}
    least = -math.inf if key == "training" else 0.0
    for name, pair in _mapping(table, key).items():
        if not isinstance(pair, list) or len(pair) != 2:
            raise table.error(f"{key}.{name} is {pair!r}", hint=f"write {PAIRS[key]}")
        low, high = (
            number_of(TomlTable.of({name: end}, where=f"{table.where} {key}", keys=(name,)), name, least=least)
            for end in pair
        )
        found[name] = (low, high)
    return found


def _measured(table: TomlTable) -> list[Measured]:
    """Of networks ``{ resnet18 = 0.4 }``, ms; of language models lists of ``[model, precision, phase, tokens, context, ms]``;
    with its name behind where it is a mean over a data set."""
    data = table.data.get("measured", {})
    if isinstance(data, Mapping):
        return [Measured(model=name, ms=ms) for name, ms in _numbers(table, "measured").items()]
    lengths = (len(MEASURED), len(OF_MEAN))
    if not isinstance(data, list) or not all(isinstance(row, list) and len(row) in lengths for row in data):
        raise table.error("measured is no list of rows", hint=f"write [{', '.join(MEASURED)}]")
    found = []
    for number, row in enumerate(data, 1):
        values = dict(zip(OF_MEAN, row, strict=False))
        one = TomlTable.of(values, where=f"{table.where} measured {number}", keys=OF_MEAN)
        precision = one.text("precision") if row[1] else ""
        found.append(
            Measured(
                model=one.text("model"), precision=precision, phase=one.choice("phase", ("prefill", "decode")),
                tokens=one.number("tokens"), context=one.number("context"), ms=number_of(one, "ms"),
                dataset=one.text("dataset") if "dataset" in values else "",
            )
        )  # fmt: skip
    return found


def _mapping(table: TomlTable, key: str) -> Mapping[str, Any]:
    """The table ``key`` in ``table``; empty where it is not there."""
    found = table.data.get(key, {})
    if not isinstance(found, Mapping):
        raise table.error(f"{key} is no table", hint=f"write {key} = {{ name = … }}")
    return found
