"""Every pass: one file, one class, one name; a frozen dataclass whose docstring has the five parts."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest
from qdq_passes.core.base import Keeps, Named, Pass
from qdq_passes.core.names import camel_case
from qdq_passes.core.registry import PASSES
from qdq_passes.pipeline.option_types import describe, field_type

SECTIONS = ("Graph:", "Requires:", "Keeps:", "Skips:")
FAMILIES = PASSES.packages
FILES = [
    file for family in FAMILIES for file in sorted(Path(importlib.import_module(family).__path__[0]).glob("[a-z]*.py"))
]
each_file = pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])


def pass_of(file: Path) -> type[Pass]:
    """The pass that the file's name demands."""
    name = file.stem.replace("_", "-")
    cls: type[Pass] = PASSES.load(name)
    return cls


@each_file
def test_names_agree(file: Path) -> None:
    """``fold_batch_norm.py`` = ``fold-batch-norm`` = ``FoldBatchNorm``, and the module's docstring starts with the name."""
    cls = pass_of(file)
    name = file.stem.replace("_", "-")
    assert cls.__name__ == camel_case(name)
    assert cls.name() == name
    assert inspect.getmodule(cls) is not None
    assert cls.__module__.endswith(f".{file.stem}")
    assert (inspect.getmodule(cls).__doc__ or "").startswith(name)


@each_file
def test_is_a_frozen_dataclass(file: Path) -> None:
    cls = pass_of(file)
    assert issubclass(cls, Pass)
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    for field in dataclasses.fields(cls):
        assert describe(field_type(cls, field.name)), field.name
        assert re.fullmatch(r"[a-z][a-z0-9_]*", field.name)


@each_file
def test_docstring_has_the_five_parts(file: Path) -> None:
    """A summary, then Graph, Requires, Keeps and Skips, in this order."""
    doc = inspect.cleandoc(pass_of(file).__doc__ or "")
    summary = doc.split("\n\n")[0]
    assert summary.endswith((".", ":")), f"the summary is no sentence: {summary!r}"
    places = [doc.find(section) for section in SECTIONS]
    assert -1 not in places, f"lacks {[s for s, p in zip(SECTIONS, places, strict=True) if p < 0]}"
    assert places == sorted(places), f"the parts stand in another order than {SECTIONS}"


@each_file
def test_keeps_is_honest(file: Path) -> None:
    """A bound has a derivation, a change has a reason."""
    cls = pass_of(file)
    declared: object = cls.keeps
    required = [f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING]
    keeps = (
        declared if isinstance(declared, Keeps) else cls(**{name: Named(name) for name in required}).keeps
    )  # by options
    assert keeps.numerics in ("exact", "bounded", "changes")
    assert keeps.numerics == "exact" or keeps.why
    assert (keeps.bound > 0) == (keeps.numerics == "bounded")


def test_all_files_are_registered() -> None:
    assert sorted(file.stem.replace("_", "-") for file in FILES) == [
        name for name, entry in PASSES.entries().items() if entry.origin.startswith("qdq_passes.")
    ]
