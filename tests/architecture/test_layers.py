"""Packages and layers: each package has a layer in pyproject.toml. `make check` runs the contracts themselves."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.architecture.places import ROOT

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
#: Packages that belong to no layer: they hold data only.
WITHOUT_LAYER = {"qdqtool._demo"}


def packages(folder: Path) -> list[str]:
    """``folder`` holds the code of one top-level package: its sub-packages."""
    return [f"{folder.name}.{p.name}" for p in sorted(folder.iterdir()) if p.is_dir() and any(p.glob("*.py"))]


def test_every_package_has_a_layer() -> None:
    """A new package must be put into the layers, or nothing would hold its imports."""
    layered = " ".join(next(c for c in CONTRACTS if c["type"] == "layers")["layers"])
    words = set(layered.replace("|", " ").replace("(", " ").replace(")", " ").split())
    for package in [*packages(ROOT / "qdqtool"), *packages(ROOT / "passes" / "qdq_passes")]:
        assert package in words | WITHOUT_LAYER, f"{package} stands in no layer of pyproject.toml"


def test_lonely_modules_are_few() -> None:
    """Modules directly under the two packages: the public doors, what everyone may import, what is there before all imports."""
    qdqtool = {file.stem for file in (ROOT / "qdqtool").glob("*.py")}
    passes = {file.stem for file in (ROOT / "passes" / "qdq_passes").glob("*.py")}
    assert qdqtool == {"__init__", "api", "interrupts", "options", "passes"}
    assert passes == {"__init__", "_former_modules", "_lazy_dataclass", "_lazy_sympy", "errors"}
