"""Folders that appear whole or not at all: filled beside their place under a hidden name, renamed last.

A process killed in between leaves the old folder (or none) and a hidden one, see `stale`, which the next run takes away. Where
the system cannot exchange two folders, one killed between two renames leaves the old folder under a hidden name that ends in
``.old``, and the next run puts it back."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from qdq_passes.errors import ModelError, UsageError

from qdqtool.io.files.atomic import PUT, folder_for, refuse_existing, sync_folder, writing
from qdqtool.io.files.stale import CAN_LOCK, OLD, hidden_name, is_gone, locked, remove_stale


def files_left(folder: str, listing: str, listed: Callable[[str], Iterable[str]], *, overwrite: bool) -> frozenset[str]:
    """The files that an earlier run left in ``folder``, the one that lists them included.

    Args:
        folder: where a run is about to write.
        listing: name of the file in it that lists what a run wrote.
        listed: what that file, given by its path, lists.
        overwrite: whether they may be replaced.

    Raises:
        UsageError: it is a file, holds what an earlier run wrote and ``overwrite`` is off, or holds other things.
        ModelError: what is listed does not lie in it.
    """
    remove_stale(os.path.dirname(os.path.realpath(folder)))
    if os.path.isfile(folder):
        raise UsageError("is a file", where=folder, hint="give the name of a folder")
    if not os.path.isdir(folder) or not os.listdir(folder):
        return frozenset()
    path = os.path.join(folder, listing)
    if not os.path.isfile(path):
        raise UsageError("is a folder with other files", where=folder, hint="give a new or an empty folder")
    refuse_existing(path, overwrite=overwrite)
    return frozenset((*(name for name in listed(path) if path_inside(folder, name, where=path)), listing))


def refuse_outside(name: str, *, where: str) -> None:
    """Refuse a name that the file ``where`` lists of its folder, and that is none of a file in it or below.

    Raises:
        ModelError: it is absolute, or leads out of the folder.
    """
    parts = name.split("/")
    is_plain = os.path.normpath(name) == name and name.isprintable() and not {"", os.curdir, os.pardir} & set(parts)
    if not is_plain or os.path.isabs(name):
        raise ModelError(f"names {name!r}, which is not in the folder", where=where, hint="do not run this folder")


def path_inside(folder: str, name: str, *, where: str) -> str:
    """The path of ``name``, which a file lists, in ``folder``: a plain name, no folder on the way a link.

    Args:
        folder: the folder.
        name: as it is listed: parts with ``/`` between them.
        where: the file that lists it.

    Raises:
        ModelError: it is absolute, leads out of the folder, or through a link.
    """
    refuse_outside(name, where=where)
    parts = name.split("/")
    for count in range(1, len(parts)):
        way = os.path.join(folder, *parts[:count])
        if os.path.islink(way):
            hint = "do not write into a stranger's folder: give a new one"
            raise ModelError(f"names {name!r}, which is behind the link {way}", where=where, hint=hint)
    return os.path.join(folder, name)


def remove_inside(folder: str, names: Iterable[str], *, where: str) -> None:
    """Take away the files ``names`` of ``folder``, see `path_inside`; those that are gone already are no error."""
    for name in sorted(names):
        with suppress(FileNotFoundError), writing(name):
            os.unlink(path_inside(folder, name, where=where))


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
        with writing(path):
            remove_stale(parent)
            made = hidden_name(parent, os.path.basename(target))
            os.mkdir(made)
        try:
            with _locking(made):
                yield made
                with writing(path):
                    _put(made, target)
                    PUT.append(target)
                    sync_folder(parent)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        is_gone(made)


@contextmanager
def one_writer(listing: str) -> Iterator[None]:
    """Make the folder of the file ``listing``, and let no other run write into it while the block runs: it waits."""
    refuse_existing(listing, overwrite=True)
    with folder_for(listing) as folder, _locking(folder):
        yield


@contextmanager
def _locking(folder: str) -> Iterator[None]:
    """Lock ``folder`` while the block runs, so that nobody takes it for what a dead run left."""
    handle = locked(folder, os.open(folder, os.O_RDONLY)) if CAN_LOCK else None
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _put(made: str, target: str) -> None:
    """Give ``made`` the name ``target``; what stood there goes once the new folder is in its place."""
    if not os.path.lexists(target):
        with suppress(OSError):  # another run was quicker
            os.rename(made, target)
            return
    if _exchange(made, target):
        shutil.rmtree(made, ignore_errors=True)  # another run may take it for stale, and be quicker
        return
    old = hidden_name(os.path.dirname(target), os.path.basename(target), OLD)
    with _locking(target):
        os.rename(target, old)
        try:
            os.rename(made, target)
        except BaseException:
            if not os.path.lexists(target):
                os.rename(old, target)
            raise
        shutil.rmtree(old)


def _exchange(one: str, other: str) -> bool:
    """Swap two folders at once, without an instant in which either is missing; False where the system cannot."""
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if not sys.platform.startswith("linux"):
        return False
    try:
        return bool(ctypes.CDLL(None).renameat2(here, os.fsencode(one), here, os.fsencode(other), swap) == 0)
    except AttributeError:  # an old C library
        return False
