"""Packages and layers: each package has a layer in pyproject.toml. `make check` runs the contracts themselves."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from tests.architecture.places import ROOT, python_files, short, tree_of

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


#: What serializes, or hands over, a model or a part of one → files that may call it. Others take `graph.foreign` or
#: `io.models.save`: a tensor in a file would be looked for in the current directory.
HANDING_OVER = {
    "to_proto": {"passes/qdq_passes/graph/foreign.py"},
    "serialize_tensor": {"passes/qdq_passes/graph/foreign.py"},
    "serialize_model": {"qdqtool/io/models/save.py", "qdqtool/runtime/blocked.py"},  # of what onnxruntime itself wrote
    "serialize_node": set(),
    "serialize_graph": set(),
    "serialize_function": set(),
    "ConvertVersionPass": {"passes/qdq_passes/clean/convert_opset.py"},
    "InferenceSession": {f"qdqtool/runtime/{name}.py" for name in ("bound", "plugin", "session")},
}


def test_models_are_handed_over_in_one_place() -> None:
    files = [file for file in python_files() if short(file).startswith(("passes/", "qdqtool/"))]
    found = {
        (short(file), node.attr if isinstance(node, ast.Attribute) else node.id)
        for file in files
        for node in ast.walk(tree_of(file))
        if (isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"))
        or (isinstance(node, ast.Name) and node.id in ("ConvertVersionPass", "InferenceSession"))
    }
    calls = {(file, name) for file, name in found if name in HANDING_OVER}
    assert {name for _, name in calls} == {name for name, places in HANDING_OVER.items() if places}
    assert sorted((file, name) for file, name in calls if file not in HANDING_OVER[name]) == []
