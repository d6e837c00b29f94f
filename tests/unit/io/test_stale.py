"""Hidden files of killed runs go away with the next run into the folder; those of a run that lives, and what is not ours, stay."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from qdqtool.io.files import atomic, folders, stale
from qdqtool.io.files.atomic import HiddenFile, write_whole
from qdqtool.io.files.folders import whole_folder
from qdqtool.io.files.stale import OLD, hidden_name

pytestmark = pytest.mark.skipif(not stale.CAN_LOCK, reason="no locks on this system")


def test_what_is_dead_goes_and_what_lives_stays(tmp_path: Path) -> None:
    alive = HiddenFile(str(tmp_path), "a")
    Path(hidden_name(str(tmp_path), "dead")).write_text("half")
    (Path(hidden_name(str(tmp_path), "dead")) / "folder").mkdir(parents=True)
    (link := Path(hidden_name(str(tmp_path), "link"))).symlink_to("m.onnx")
    foreign = tmp_path / hidden_name("", "m").replace(f"-{stale._HOST}-", "-000000-")
    (other := tmp_path / ".m.1234abcd.tmp").write_text("not ours")
    foreign.write_text("of another machine")
    with whole_folder(str(tmp_path / "d")) as living:
        write_whole(tmp_path / "new", b"new")
        assert set(tmp_path.iterdir()) == {Path(alive.path), Path(living), link, foreign, other, tmp_path / "new"}
    alive.discard()
    os.utime(foreign, (0, 0))
    write_whole(tmp_path / "new", b"new")
    assert set(tmp_path.iterdir()) == {link, other, tmp_path / "d", tmp_path / "new"}


@pytest.mark.parametrize("exchange", [folders._exchange, lambda one, other: False], ids=["at once", "one by one"])
def test_one_folder_for_another(exchange: Callable[..., bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_exchange", exchange)
    for version in ("1", "2"):
        with whole_folder(str(tmp_path / "d")) as hidden:
            (Path(hidden) / version).write_text(version)
    assert [path.name for path in tmp_path.rglob("*")] == ["d", "2"]


def test_a_folder_that_was_moved_aside_comes_back(tmp_path: Path) -> None:
    aside = Path(hidden_name(str(tmp_path), "d", OLD))
    aside.mkdir()
    (aside / "old").write_text("old")
    assert folders.files_left(str(tmp_path / "d"), "old", lambda path: (), overwrite=True) == {"old"}
    aside.mkdir()
    write_whole(tmp_path / "x", b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "x"]


def test_a_file_that_was_taken_before_it_was_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its making and its lock another run may take it for stale."""

    def steal(handle: int, kind: int) -> None:
        monkeypatch.undo()
        for path in tmp_path.iterdir():
            path.unlink()

    monkeypatch.setattr(stale.fcntl, "flock", steal)
    write_whole(tmp_path / "m", b"whole")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"whole"]


@pytest.mark.parametrize("instant", ["before it is there", "before it is locked", "before anybody knows it"])
def test_a_signal_at_any_instant_leaves_nothing(instant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the exception of the signal comes up nobody holds the file: the process takes it away when it ends."""

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    if instant == "before it is there":
        monkeypatch.setattr(os, "open", interrupt)
    elif instant == "before it is locked":
        monkeypatch.setattr(atomic, "locked", interrupt)
    with suppress(KeyboardInterrupt):
        HiddenFile(str(tmp_path), "a").file.close()
    monkeypatch.undo()
    monkeypatch.setattr(folders, "_locking", interrupt)
    made = tmp_path / "made"
    with suppress(KeyboardInterrupt), whole_folder(str(tmp_path / "d")):
        pass
    Path(hidden := hidden_name(str(tmp_path), "d")).mkdir()
    (Path(hidden) / "file").touch()
    write_whole(made, b"whole")
    stale.remove_hidden()
    assert list(tmp_path.iterdir()) == [made]


def test_what_a_fork_inherits_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = HiddenFile(str(tmp_path), "a")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    stale.remove_hidden()
    assert [str(path) for path in tmp_path.iterdir()] == [hidden.path]
    hidden.discard()


def test_one_run_at_a_time_writes_into_a_folder(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    folder = tmp_path / "d"
    with folders.one_writer(str(folder / "list")):
        other = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_a_folder_that_another_run_put_first_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not there a moment ago."""
    with whole_folder(str(tmp_path / "d")) as hidden:
        (Path(hidden) / "second").touch()
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "first").touch()
        lexists = os.path.lexists
        monkeypatch.setattr(os.path, "lexists", lambda path: path != str(tmp_path / "d") and lexists(path))
    assert [path.name for path in tmp_path.rglob("*")] == ["d", "second"]
