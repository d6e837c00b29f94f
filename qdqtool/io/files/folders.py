"""Folders that appear whole or not at all: filled beside their place under a hidden name, renamed last.

A process killed in between leaves the old folder (or none) and a hidden ``.<name>.<random>.tmp``; killed in the instant between
two renames, the old folder lies beside it under such a name that ends in ``.old``."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from qdq_passes.errors import UsageError

from qdqtool.io.files.atomic import folder_for, refuse_existing, sync_folder, writing


def files_left(folder: str, listing: str, listed: Callable[[str], Iterable[str]], *, overwrite: bool) -> frozenset[str]:
    """The files that an earlier run left in ``folder``, the one that lists them included.

    Args:
        folder: where a run is about to write.
        listing: name of the file in it that lists what a run wrote.
        listed: what that file, given by its path, lists.
        overwrite: whether they may be replaced.

    Raises:
        UsageError: it is a file, holds what an earlier run wrote and ``overwrite`` is off, or holds other things.
    """
    if os.path.isfile(folder):
        raise UsageError("is a file", where=folder, hint="give the name of a folder")
    if not os.path.isdir(folder) or not os.listdir(folder):
        return frozenset()
    path = os.path.join(folder, listing)
    if not os.path.isfile(path):
        raise UsageError("is a folder with other files", where=folder, hint="give a new or an empty folder")
    refuse_existing(path, overwrite=overwrite)
    return frozenset((*listed(path), listing))


def refuse_inside(folder: str, inputs: Iterable[object]) -> None:
    """Refuse to replace a folder that holds what the command reads; what names no file is not looked at.

    Raises:
        UsageError: one of ``inputs`` lies in it.
    """
    root = os.path.realpath(folder)
    for path in inputs:
        if isinstance(path, str | os.PathLike) and os.path.exists(path):
            real = os.path.realpath(path)
            if os.path.commonpath([root, real]) == root:
                hint = "write to another folder; inputs are never overwritten"
                raise UsageError("lies in the folder that is written", where=os.fspath(path), hint=hint)


@contextmanager
def whole_folder(path: str) -> Iterator[str]:
    """A hidden folder beside ``path`` to fill: it takes the place of what stands there when the body ends, and is taken away when
    the body fails.

    Raises:
        SetupError: the disk is full.
        UsageError: the place cannot be written.
    """
    target = os.path.realpath(path)
    with folder_for(target) as parent:
        hidden = os.path.join(parent, f".{os.path.basename(target)}.{secrets.token_hex(4)}")
        made = f"{hidden}.tmp"
        with writing(path):
            os.mkdir(made)
        try:
            yield made
            with writing(path):
                _put(made, target, f"{hidden}.old")
                sync_folder(parent)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise


def _put(made: str, target: str, old: str) -> None:
    """Give ``made`` the name ``target``; what stood there goes once the new folder is in its place."""
    if not os.path.lexists(target):
        os.rename(made, target)
        return
    os.rename(target, old)
    try:
        os.rename(made, target)
    except OSError:
        os.rename(old, target)
        raise
    shutil.rmtree(old)
