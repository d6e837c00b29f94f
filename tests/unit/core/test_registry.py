"""Registries: a new file is a new pass; names that clash or do not exist are errors that help."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from qdq_passes import Change, parse_pipeline, run_pipeline
from qdq_passes.core import registry
from qdq_passes.core.names import camel_case, kebab_case, split_assignment
from qdq_passes.core.registry import PASSES, FolderRegistry, add_path, entry_point_entries, search_path
from qdq_passes.errors import SetupError, UsageError

from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

PASS = '''
"""{name}"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from qdq_passes import Change, Pass


@dataclass(frozen=True)
class {cls}(Pass):
    """Shout the names of all nodes."""

    suffix: str = "!"

    def run(self, model: ir.Model) -> Iterator[Change]:
        for node in model.graph:
            node.name = node.name.upper() + self.suffix
            yield Change("rename", node.name, "louder")
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for --path with an empty ``passes/``; the search path is put back afterwards."""
    monkeypatch.setattr(registry, "_added", [])
    monkeypatch.delenv("QDQTOOL_PATH", raising=False)
    (tmp_path / "passes").mkdir()
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("_qdqtool_path_")]:
        del sys.modules[name]


def write(folder: Path, stem: str, cls: str | None = None) -> Path:
    file = folder / "passes" / f"{stem}.py"
    file.write_text(PASS.format(name=stem, cls=cls or camel_case(stem)))
    return file


def test_a_new_pass_is_one_new_file(folder: Path) -> None:
    write(folder, "shout_names")
    assert "shout-names" not in PASSES.names()
    add_path(folder)
    assert "shout-names" in PASSES.names()
    relu = model("g (float[2] x) => (float[2] y) { [relu] y = Relu(x) }")
    report = run_pipeline(relu, 'shout-names{suffix="?"}')
    assert report.changes == [Change("rename", "RELU?", "louder")]
    assert report.passes[0].text == 'shout-names{suffix="?"}'
    assert str(parse_pipeline("shout-names")) == "shout-names"


def test_the_environment_names_folders_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "shout_names")
    monkeypatch.setenv("QDQTOOL_PATH", f"{folder}:{folder / 'missing'}")
    assert "shout-names" in PASSES.names()
    add_path(folder)
    assert search_path() == [folder, folder / "missing"]
    assert "shout-names" in PASSES.names()


def test_the_same_folder_twice_is_once(folder: Path) -> None:
    write(folder, "shout_names")
    add_path(folder)
    add_path(str(folder))
    assert search_path() == [folder]
    assert PASSES.load("shout-names") is PASSES.load("shout-names")


def test_files_with_an_underscore_are_helpers(folder: Path) -> None:
    write(folder, "_shared")
    add_path(folder)
    assert not any("shared" in name for name in PASSES.names())


def test_a_name_twice_is_an_error(folder: Path) -> None:
    write(folder, "sort")
    add_path(folder)
    with refusal(UsageError):
        PASSES.names()


def test_the_file_must_hold_the_class_of_its_name(folder: Path) -> None:
    write(folder, "shout_names", cls="Shout")
    add_path(folder)
    with refusal(UsageError):
        PASSES.load("shout-names")


def test_a_file_that_does_not_import_is_named(folder: Path) -> None:
    file = write(folder, "shout_names")
    file.write_text("import nothing_of_this_name\n")
    add_path(folder)
    assert "shout-names" in PASSES.names()
    for _ in range(2):
        with refusal(UsageError):
            PASSES.load("shout-names")


def test_listing_imports_nothing(folder: Path) -> None:
    write(folder, "shout_names").write_text("raise SystemExit('imported')\n")
    add_path(folder)
    entry = PASSES.entries()["shout-names"]
    assert entry.origin.endswith("shout_names.py")


TABLE = """

class Whisper(ShoutNames):
    pass


class Mumble(ShoutNames):
    pass


PASSES = {
    "whisper": Whisper,
    "mumble": Mumble,
}
"""


def test_a_file_may_hold_a_table(folder: Path) -> None:
    """Its rows are passes, the file itself is none; what is listed is read from the text, and follows it."""
    file = write(folder, "quiet_names", cls="ShoutNames")
    add_path(folder)
    assert "quiet-names" in PASSES.names()
    file.write_text(file.read_text() + TABLE)
    names = PASSES.names()
    assert {"whisper", "mumble"} <= set(names)
    assert "quiet-names" not in names
    assert PASSES.entries()["whisper"].origin == str(file)
    assert PASSES.load("mumble").name() == "mumble"
    relu = model("g (float[2] x) => (float[2] y) { [relu] y = Relu(x) }")
    assert run_pipeline(relu, "whisper").changes == [Change("rename", "RELU!", "louder")]


def test_listing_a_table_imports_nothing(folder: Path) -> None:
    write(folder, "quiet_names").write_text("raise SystemExit('imported')\nPASSES = {'whisper': None}\n")
    add_path(folder)
    assert "whisper" in PASSES.names()


def test_a_broken_table_is_named(folder: Path) -> None:
    write(folder, "quiet_names").write_text("PASSES = {'whisper': None}\n\nPASSES = {\n")
    add_path(folder)
    with pytest.raises(UsageError, match=r"quiet_names\.py: cannot be imported: SyntaxError"):
        PASSES.load("quiet-names")


def test_a_broken_file_is_named_in_a_pipeline(folder: Path) -> None:
    file = write(folder, "quiet_names")
    file.write_text("import no_such_module\n")
    add_path(folder)
    with pytest.raises(UsageError, match=r"quiet_names\.py: cannot be imported: ModuleNotFoundError") as error:
        parse_pipeline("infer-shapes,quiet-names{a=1}")
    assert str(error.value).endswith("^")
    assert error.value.where == str(file)


def test_no_such_folder(folder: Path) -> None:
    with refusal(UsageError):
        add_path(folder / "missing")
    assert search_path() == []


@pytest.mark.parametrize("name", ["remove_qdq", "fold-batchnorm", "xyzzy", ""])
def test_did_you_mean(name: str) -> None:
    with refusal(UsageError):
        PASSES.load(name)


def install(folder: Path, group: str, *lines: str) -> None:
    """A distribution as pip leaves it: a dist-info folder with entry points."""
    info = folder / "acme_passes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-passes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n" + "\n".join(lines) + "\n")


def test_packages_add_passes_by_entry_points(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "acme_passes.py").write_text(PASS.format(name="whisper-names", cls="WhisperNames"))
    install(
        folder,
        "qdqtool.passes",
        "whisper-names = acme_passes:WhisperNames",
        "gone = acme_passes:Gone",
        "lost = no_such:X",
    )
    monkeypatch.syspath_prepend(str(folder))
    assert {"whisper-names", "gone", "lost"} <= set(PASSES.names())
    assert PASSES.load("whisper-names").name() == "whisper-names"
    relu = model("g (float[2] x) => (float[2] y) { [relu] y = Relu(x) }")
    assert run_pipeline(relu, "whisper-names").modified
    for name in ("gone", "lost"):
        with refusal(SetupError):
            PASSES.load(name)
    monkeypatch.delitem(sys.modules, "acme_passes")


def test_other_groups_are_not_ours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(folder, "qdqtool.presets", "mine = acme:MINE")
    monkeypatch.syspath_prepend(str(folder))
    assert entry_point_entries("passes") == []
    assert [entry.name for entry in entry_point_entries("presets")] == ["mine"]


def test_prefix_and_attribute(folder: Path) -> None:
    """As commands are found: ``cmd_split.py`` holds ``command`` and is called split."""
    (folder / "commands").mkdir()
    (folder / "commands" / "cmd_split_up.py").write_text("command = 42\n")
    add_path(folder)
    commands = FolderRegistry("commands", (), prefix="cmd_", attribute="command")
    assert commands.names() == ["split-up"]
    assert commands.load("split-up") == 42


@pytest.mark.parametrize(
    "names", [("fold-batch-norm", "FoldBatchNorm"), ("round-scales-pow2", "RoundScalesPow2"), ("sort", "Sort")]
)
def test_the_name_rule(names: tuple[str, str]) -> None:
    kebab, camel = names
    assert camel_case(kebab) == camel_case(kebab.replace("-", "_")) == camel
    assert kebab_case(camel) == kebab


def test_pairs_of_names() -> None:
    assert split_assignment("a = b") == ("a", "b")
    assert split_assignment("a=b=c") == ("a=b", "c")
    for text in ("a", "=b", "a=", "", " = "):
        with refusal(UsageError):
            split_assignment(text)
