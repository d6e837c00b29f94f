"""What authors of passes import: these names stay, wherever files move."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import qdq_passes

from qdqtool import api

NAMES = (
    "ALL", "Change", "EXACT", "Hook", "Keeps", "Pass", "Pipeline", "Selector", "add_path", "dump", "edit", "from_gs",
    "parse_pipeline", "qdq_pairs", "run_pipeline", "select_nodes", "select_values", "skip", "surgeon_pass", "to_gs", "uses",
    "verify",
)  # fmt: skip
#: What passes of others import from modules, as the documentation said before `qdq_passes` itself had these names.
DOCUMENTED = {
    "qdq_passes.analysis.uses": ("all_nodes", "constant_array", "is_standard"),
    "qdq_passes.core.base": ("EXACT", "Change", "Keeps", "Pass", "skip"),
    "qdq_passes.core.edit": ("Namer", "make_node", "replace_nodes", "own_initializer"),
    "qdq_passes.core.registry": ("add_path",),
    "qdq_passes.core.select": ("ALL", "Selector", "select_nodes"),
    "qdq_passes.numerics.rounding": ("Grid", "quadratic_error", "round_rows"),
    "qdqtool.calibrate.cluster": ("InProcess", "Workers", "open_workers"),
    "qdqtool.llm.devices": ("Device", "DeviceOptions", "Devices", "Piece"),
}


def test_the_facade_holds_its_names() -> None:
    assert sorted(NAMES) == sorted(qdq_passes.__all__)
    assert qdq_passes.edit is importlib.import_module("qdq_passes.graph.edit")
    for name in NAMES:
        assert getattr(qdq_passes, name) is getattr(qdq_passes, name)


@pytest.mark.parametrize("module", DOCUMENTED)
def test_documented_modules_are_found(module: str) -> None:
    found = importlib.import_module(module)
    for name in DOCUMENTED[module]:
        assert hasattr(found, name)
    assert importlib.import_module("qdq_passes.core.edit").Namer is qdq_passes.edit.Namer


#: What `qdqtool.api` has beside the verbs.
BESIDE = ("DEFAULT_PRESET", "Feeds", "Quantized", "QuantizedFolder", "Warn", "load", "save")


def test_the_verbs_and_what_they_take_and_give_are_named() -> None:
    assert sorted([*api.VERBS, *BESIDE]) == dir(api)
    for name in dir(api):
        assert getattr(api, name) is getattr(api, name)
    assert api.load is importlib.import_module("qdqtool.io.models.load").load
    assert api.Quantized.__module__ == "qdqtool.verbs.work.quantizing"


def test_what_was_never_documented_is_not_found() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import qdqtool, qdq_passes.analysis.units"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
