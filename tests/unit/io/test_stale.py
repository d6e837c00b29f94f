"""Hidden files of killed runs go away with the next run into the folder; those of a run that lives, and what is not ours, stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qdqtool.io.files import folders, stale
from qdqtool.io.files.atomic import HiddenFile, write_whole
from qdqtool.io.files.folders import whole_folder
from qdqtool.io.files.stale import OLD, hidden_name

if not stale.CAN_LOCK:
    pytest.skip("no locks on this system", allow_module_level=True)


def made(folder: Path, name: str = "m", end: str = ".tmp", *, is_folder: bool = False) -> Path:
    """What a dead run left."""
    path = Path(hidden_name(str(folder), name, end))
    if is_folder:
        path.mkdir()
        (path / "old").write_text("old")
    else:
        path.write_text("half")
    return path


def test_what_is_dead_goes_and_what_lives_stays(tmp_path: Path) -> None:
    alive, dead, dead_folder = HiddenFile(str(tmp_path), "a"), made(tmp_path), made(tmp_path, is_folder=True)
    alive.sync()
    foreign = tmp_path / hidden_name("", "m").replace(f"-{stale._HOST}-", "-000000-")
    foreign.write_text("of another machine")
    others = [tmp_path / ".m.tmp", tmp_path / ".m.1234abcd.tmp", Path(hidden_name(str(tmp_path), "link"))]
    for path in others[:2]:
        path.write_text("not ours")
    others[2].symlink_to("m.onnx")
    with whole_folder(str(tmp_path / "d")) as living:
        write_whole(tmp_path / "new", b"new")
        assert not (dead.exists())
        assert not (dead_folder.exists())
        assert all(os.path.lexists(path) for path in (alive.path, living, foreign, *others))
    alive.keep_as(str(tmp_path / "a"))
    os.utime(foreign, (0, 0))
    write_whole(tmp_path / "new", b"new")
    assert not foreign.exists()
    assert (tmp_path / "a").exists()


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_takes_the_place_of_another(
    can_exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_exchange:
        monkeypatch.setattr(folders, "_exchange", lambda one, other: False)
    for version in ("1", "2"):
        with whole_folder(str(tmp_path / "d")) as hidden:
            (Path(hidden) / version).write_text(version)
    assert [path.name for path in tmp_path.rglob("*")] == ["d", "2"]


def test_a_folder_that_was_moved_aside_comes_back(tmp_path: Path) -> None:
    made(tmp_path, "d", OLD, is_folder=True)
    assert folders.files_left(str(tmp_path / "d"), "old", lambda path: (), overwrite=True) == {"old"}
    made(tmp_path, "d", OLD, is_folder=True)
    write_whole(tmp_path / "x", b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "x"]


def test_a_file_that_was_taken_before_it_was_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its making and its lock another run may take it for stale."""
    lock, taken = stale.fcntl.flock, []

    def steal(handle: int, kind: int) -> None:
        if not taken:
            (path,) = tmp_path.iterdir()
            taken.append(path)
            path.unlink()
        lock(handle, kind)

    monkeypatch.setattr(stale.fcntl, "flock", steal)
    write_whole(tmp_path / "m", b"whole")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"whole"]
