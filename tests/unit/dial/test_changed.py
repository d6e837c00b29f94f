"""Tests that changed files reach, on a small planted tree and on this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.places import ROOT
from tests.changed import Tree, registered_names
from tests.extra import changed as git

FILES = {
    "passes/qdq_passes/__init__.py": "",
    "passes/qdq_passes/graph/__init__.py": "",
    "passes/qdq_passes/graph/uses.py": "def f(): ...",
    "passes/qdq_passes/clean/sort_nodes.py": "from qdq_passes.graph.uses import f",
    "qdqtool/api.py": "def run():\n    from qdq_passes.clean import sort_nodes",
    "qdqtool/typed.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from qdq_passes.graph import uses\nelse:\n    import qdqtool.api",
    "tests/cases/models.py": "import qdqtool.api as api",
    "tests/conftest.py": "",
    "tests/golden/test_golden.py": "",
    "tests/npu/test_kernels.py": "",
    "tests/unit/conftest.py": "",
    "tests/unit/api/test_api.py": "from tests.cases import models",
    "tests/unit/npu/test_units.py": "import qdqtool.typed",
    "tests/unit/graph/test_uses.py": "from qdq_passes.graph.uses import f",
    "tests/unit/cli/test_opt.py": "cli('opt', '-p', 'remove-unused,sort-nodes')",
    "tests/unit/cli/test_resort.py": "cli('opt', '-p', 'resort-nodes')",
}
NAMES = {"passes/qdq_passes/clean/sort_nodes.py": "sort-nodes"}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Tree(tmp_path)


@pytest.mark.parametrize(("changed", "reached"), [
    ("tests/unit/cli/test_opt.py", ["cli/test_opt"]),
    ("tests/cases/models.py", ["api/test_api"]),
    ("qdqtool/api.py", ["api/test_api", "npu/test_units"]),
    ("passes/qdq_passes/graph/uses.py", ["api/test_api", "graph/test_uses", "npu/test_units"]),
    ("passes/qdq_passes/graph/__init__.py", ["api/test_api", "graph/test_uses", "npu/test_units"]),
    ("passes/qdq_passes/clean/sort_nodes.py", ["api/test_api", "cli/test_opt", "golden", "npu/test_units"]),
    ("qdqtool/typed.py", ["npu/test_units"]),
    ("qdqtool/npu/ep/kernels/a.cc", ["npu/test_kernels", "npu/test_units"]),
    ("tests/golden/sort-nodes/acts.onnxtxt", ["golden"]),
    ("tests/unit/conftest.py", ["api/test_api", "cli/test_opt", "cli/test_resort", "graph/test_uses", "npu/test_units"]),
    ("README.md", []),
    ("qdqtool/gone.py", []),
])  # fmt: skip
def test_a_planted_change(tree: Tree, changed: str, reached: list[str]) -> None:
    found = {
        test.removesuffix(".py").removeprefix("tests/").removeprefix("unit/") for test in tree.reached([changed], NAMES)
    }
    assert sorted(found) == sorted("golden/test_golden" if name == "golden" else name for name in reached)


def test_this_tree() -> None:
    tree, names = Tree(ROOT), registered_names()
    assert names.keys() <= tree.files.keys()
    reached = tree.reached(["passes/qdq_passes/fuse/fold_batch_norm.py"], names)
    assert "tests/golden/test_golden.py" in reached
    assert "tests/unit/workers/test_local_workers.py" not in reached
    assert "tests/unit/dial/test_dial.py" in tree.reached(["tests/dial.py"], names)
    bottom = tree.reached(["passes/qdq_passes/errors.py"], names)
    assert len(bottom) > len(tree.tests()) / 2
    assert set(tree.tests()) == tree.reached(["tests/conftest.py"], names)


def test_what_git_does_not_know() -> None:
    assert git.changed_since("no-such-commit") is None
