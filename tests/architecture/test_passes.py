"""Every pass: one class and one name, in a file of this name or a row of a table; a frozen dataclass whose docstring has the five parts."""

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
OWN = {name: entry for name, entry in PASSES.entries().items() if entry.origin.startswith("qdq_passes.")}
each_pass = pytest.mark.parametrize("name", OWN)


def pass_of(name: str) -> type[Pass]:
    """The pass that the file's name, or the row of its table, demands."""
    cls: type[Pass] = PASSES.load(name, among=OWN)
    return cls


@each_pass
def test_names_agree(name: str) -> None:
    """``fold_batch_norm.py`` = ``fold-batch-norm`` = ``FoldBatchNorm``, and the module's docstring starts with the name.

    In a table the row says the name, and a pass belongs to the table's file."""
    cls, origin = pass_of(name), OWN[name].origin
    assert cls.__name__ == camel_case(name)
    assert cls.name() == name
    module = inspect.getmodule(cls)
    assert module is not None
    assert cls.__module__ == origin
    if not hasattr(module, "PASSES"):
        assert origin.endswith(f".{name.replace('-', '_')}")
        assert (module.__doc__ or "").startswith(name)


@each_pass
def test_is_a_frozen_dataclass(name: str) -> None:
    cls = pass_of(name)
    assert issubclass(cls, Pass)
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    for field in dataclasses.fields(cls):
        assert describe(field_type(cls, field.name)), field.name
        assert re.fullmatch(r"[a-z][a-z0-9_]*", field.name)


@each_pass
def test_docstring_has_the_five_parts(name: str) -> None:
    """A summary, then Graph, Requires, Keeps and Skips, in this order."""
    doc = inspect.cleandoc(pass_of(name).__doc__ or "")
    summary = doc.split("\n\n")[0]
    assert summary.endswith((".", ":")), f"the summary is no sentence: {summary!r}"
    places = [doc.find(section) for section in SECTIONS]
    assert -1 not in places, f"lacks {[s for s, p in zip(SECTIONS, places, strict=True) if p < 0]}"
    assert places == sorted(places), f"the parts stand in another order than {SECTIONS}"


@each_pass
def test_keeps_is_honest(name: str) -> None:
    """A bound has a derivation, a change has a reason."""
    cls = pass_of(name)
    declared: object = cls.keeps
    required = [f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING]
    keeps = (
        declared if isinstance(declared, Keeps) else cls(**{name: Named(name) for name in required}).keeps
    )  # by options
    assert keeps.numerics in ("exact", "bounded", "changes")
    assert keeps.numerics == "exact" or keeps.why
    assert (keeps.bound > 0) == (keeps.numerics == "bounded")


def test_all_files_are_registered() -> None:
    """Every module of a family that is no helper is a pass, or a table of passes."""
    folders = {family: Path(importlib.import_module(family).__path__[0]) for family in PASSES.packages}
    modules = {f"{family}.{file.stem}" for family, folder in folders.items() for file in folder.glob("[a-z]*.py")}
    assert modules == {entry.origin for entry in OWN.values()}
