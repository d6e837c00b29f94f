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
    "tests/cases/samples.py": "ROOT / 'sample_models' / 'digits.onnx'",
    "passes/qdq_passes/clean/look/order.py": "",
    "passes/qdq_passes/legalize/limit_rank.py": "import qdq_passes.clean.look.order",
    "passes/qdq_passes/npu/program/operators.py": "from qdq_passes.npu import program",
    "passes/qdq_passes/npu/program/tables.py": "",
    "sample_models/build.py": "",
    "tests/conftest.py": "",
    "tests/golden/test_golden.py": "",
    "tests/npu/test_kernels.py": "",
    "tests/unit/conftest.py": "",
    "tests/unit/api/test_api.py": "from tests.cases import models",
    "tests/unit/io/test_read.py": "import tests.cases.samples",
    "tests/unit/refine/test_rank.py": "cli('opt', '-p', 'limit-rank')\nimport qdq_passes.npu.program.operators",
    "tests/unit/roles/test_documents.py": "Path('qdqtool/schemas')\nread(f'xint8_parity/{name}.onnx')",
    "tests/unit/npu/test_units.py": "import qdqtool.typed",
    "tests/unit/graph/test_uses.py": "from qdq_passes.graph.uses import f",
    "tests/unit/cli/test_opt.py": "cli('opt', '-p', 'remove-unused,sort-nodes', '--preset', 'int8-wide')",
    "tests/unit/cli/test_resort.py": "cli('opt', '-p', 'resort-nodes', '--preset', 'int8')",
    "tests/unit/docs/test_docs.py": "cli('opt', '--preset', 'int8-narrow')",
}
EVERY = [
    "api/test_api", "cli/test_opt", "cli/test_resort", "docs/test_docs", "golden", "graph/test_uses", "npu/test_kernels",
    "io/test_read", "npu/test_units", "refine/test_rank", "roles/test_documents",
]  # fmt: skip
NAMES = {
    "passes/qdq_passes/clean/sort_nodes.py": {"sort-nodes"},
    "passes/qdq_passes/legalize/limit_rank.py": {"limit-rank"},
    "qdqtool/presets/int8.toml": {"int8", "Int8 wide"},
}


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
    ("tests/unit/conftest.py", [test for test in EVERY if test not in ("golden", "npu/test_kernels")]),
    ("README.md", ["docs/test_docs"]),
    ("CHANGELOG.md", ["docs/test_docs"]),
    ("docs/adr/0001-why.md", ["docs/test_docs"]),
    ("docs/make_table.py", ["docs/test_docs"]),
    ("mkdocs.yml", ["docs/test_docs"]),
    ("LICENSE", []),
    ("pyproject.toml", EVERY),
    ("Makefile", EVERY),
    (".ci/run", EVERY),
    ("conftest.py", EVERY),
    ("qdqtool/presets/int8.toml", ["cli/test_opt", "cli/test_resort"]),
    ("qdqtool/gone.py", []),
    ("passes/qdq_passes/clean/look/order.py", ["golden", "refine/test_rank"]),
    ("passes/qdq_passes/npu/program/tables.py", ["refine/test_rank"]),
    ("sample_models/digits.onnx", ["io/test_read"]),
    ("sample_models/trained/vit.npz", ["io/test_read"]),
    ("sample_models/build.py", ["io/test_read"]),
    ("qdqtool/schemas/quantize.json", ["roles/test_documents"]),
    ("tests/data/xint8_parity/a.onnx", ["roles/test_documents"]),
])  # fmt: skip
def test_a_planted_change(tree: Tree, changed: str, reached: list[str]) -> None:
    found = {
        test.removesuffix(".py").removeprefix("tests/").removeprefix("unit/") for test in tree.reached([changed], NAMES)
    }
    assert sorted(found) == sorted("golden/test_golden" if name == "golden" else name for name in reached)


def test_this_tree() -> None:
    tree, names = Tree(ROOT), registered_names()
    assert all((ROOT / file).is_file() for file in names)
    assert names["qdqtool/targets/qnn_htp.toml"] == {"qnn_htp", "qnn_htp_v68"}
    assert names["qdqtool/presets/16a8w.toml"] >= {"16a8w", "16a4w", "16a4w-qat"}
    assert names["qdqtool/chips/qualcomm/snapdragon_8_gen_2.toml"] >= {
        "snapdragon_8_gen_2",
        "8 Gen 2",
        "Samsung Galaxy S23",
    }
    reached = tree.reached(["passes/qdq_passes/fuse/fold_batch_norm.py"], names)
    assert "tests/golden/test_golden.py" in reached
    assert "tests/unit/workers/test_local_workers.py" not in reached
    assert "tests/unit/dial/test_dial.py" in tree.reached(["tests/dial.py"], names)
    for data in (
        "sample_models/detector.onnx",
        "qdqtool/schemas/deploy.json",
        "tests/data/xint8_parity/a.onnx",
        "tests/data/rivals.json",
    ):
        assert 0 < len(tree.reached([data], names)) < 10, data
    bottom = tree.reached(["passes/qdq_passes/errors.py"], names)
    assert len(bottom) > len(tree.tests()) / 2
    assert set(tree.tests()) == tree.reached(["tests/conftest.py"], names)


def test_what_git_does_not_know() -> None:
    assert git.changed_since("no-such-commit") is None
