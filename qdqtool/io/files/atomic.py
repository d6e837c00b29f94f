"""Files that appear whole or not at all: written beside their place under a hidden name, synced, renamed last.

A process killed in between leaves the old file (or none) and a hidden ``.<name>.qdqtool-<host>-<random>.tmp``, which nothing
reads. It is locked as long as its writer lives; the next run that writes into the folder takes those away that nobody locks."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, ClassVar

from qdq_passes.errors import QdqError, SetupError, UsageError

from qdqtool.io.files.stale import CAN_LOCK, hidden_name, is_gone, locked, remove_stale

#: Create, never follow or truncate what somebody else put there.
CREATE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
#: Paths that this process put a file or a folder at, in order; what lay in a folder for temporary files is gone from there.
PUT: deque[str] = deque(maxlen=100)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def refuse_existing(path: str, *, overwrite: bool) -> None:
    """Refuse to write to ``path`` when it is a folder, or exists and may not be overwritten.

    Raises:
        UsageError: it must not be written.
    """
    if os.path.isdir(path):
        raise UsageError("is a folder", where=path, hint="give the name of a file")
    folder = os.path.realpath(os.path.dirname(path) or os.curdir)
    if folder == "/dev" or folder.startswith("/proc/") or (os.path.exists(path) and not os.path.isfile(path)):
        hint = "give the name of a file" + ("; --json prints on stdout" if folder == "/dev" else "")
        raise UsageError("is no regular file", where=path, hint=hint)
    if not overwrite and os.path.lexists(path):
        raise UsageError("exists", where=path, hint="pass --overwrite")


def refuse_name(path: str, *, is_folder: bool = False) -> None:
    """Refuse what is no name of a file, or with ``is_folder`` of a folder.

    Raises:
        UsageError: it is none.
    """
    what = "folder" if is_folder else "file"
    if not path.strip() or "\0" in path:
        raise UsageError(f"{path!r} is no name of a {what}", hint=f"give the name of a {what}")
    if path == "-":
        raise UsageError(
            f"is no name of a {what}", where=path, hint="nothing but --json is written to stdout; ./- is a name"
        )
    if not is_folder and (
        path.endswith((os.sep, os.altsep or os.sep)) or os.path.basename(path) in (os.curdir, os.pardir)
    ):
        raise UsageError("is the name of a folder", where=path, hint="give the name of a file")


def refuse_inputs(written: str, inputs: Iterable[object]) -> None:
    """Refuse to write to a file that the command reads, whatever ``--overwrite`` says; before any work is done.

    Raises:
        UsageError: it is one of ``inputs`` (what names no file is not looked at).
    """
    if not os.path.exists(written):
        return
    for path in inputs:
        if isinstance(path, str | os.PathLike) and os.path.isfile(path) and os.path.samefile(path, written):
            raise UsageError("is an input", where=written, hint="write to another file; inputs are never overwritten")


def refuse_output(output: object, overwrite: bool, *inputs: object) -> None:
    """Refuse an output that is one of ``inputs``, or that exists without ``--overwrite``; before any work is done.

    Raises:
        UsageError: either of the two, or it is a folder.
    """
    assert isinstance(output, str | os.PathLike)
    written = os.fspath(output)
    refuse_inputs(written, inputs)
    refuse_existing(written, overwrite=overwrite)


def refuse_unwritable(path: str) -> None:
    """Refuse to write to ``path`` where no file can come to lie; an empty hidden file in its folder, or above, tries it.

    Raises:
        UsageError: it is a folder, or the place cannot be written.
        SetupError: the disk is full.
    """
    target = os.path.abspath(path)
    refuse_existing(target, overwrite=True)
    folder = os.path.dirname(target)
    with writing(path):
        with suppress(FileNotFoundError):
            os.lstat(target)
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        HiddenFile(folder, os.path.basename(target)).discard()


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn what the operating system says while ``path`` is written into one clear line.

    Raises:
        SetupError: the disk is full.
        UsageError: the place cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise _write_error(path, error) from error


def _write_error(path: str, error: OSError) -> QdqError:
    if error.errno in NO_ROOM:
        return SetupError("no room left on the disk", where=path, hint="free some, or write elsewhere")
    if isinstance(error, PermissionError):
        return UsageError("permission denied", where=path, hint="write to a folder of yours")
    if isinstance(error, NotADirectoryError | FileExistsError):
        return UsageError("a parent of it is a file, not a folder", where=path, hint="give another path")
    return UsageError(f"cannot be written ({error.strerror or error})", where=path, hint="give another path")


@contextmanager
def folder_for(path: str) -> Iterator[str]:
    """The folder of ``path``, made when missing, and taken away again when the body fails and left it empty."""
    folder = os.path.dirname(os.path.abspath(path))
    missing = []
    ancestor = folder
    while not os.path.lexists(ancestor):
        missing.append(ancestor)
        ancestor = os.path.dirname(ancestor)
    try:
        with writing(path):
            os.makedirs(folder, exist_ok=True)
        yield folder
    except BaseException:
        for made in missing:
            with suppress(OSError):
                os.rmdir(made)
        raise


class HiddenFile:
    """An open file under a hidden name in ``folder``, until `keep_as` gives it its own or `discard` takes it away."""

    def __init__(self, folder: str, name: str) -> None:
        """Open a file of a hidden name, locked, nothing in it yet; those of writers that are dead are taken away."""
        remove_stale(folder)
        handle = None
        while handle is None:  # where another run took it for stale before it was locked, another name
            self.path = hidden_name(folder, name)
            handle = locked(self.path, os.open(self.path, CREATE, 0o666))
        self.file: BinaryIO = os.fdopen(handle, "wb")

    def sync(self) -> None:
        """Bring what was written onto the disk; nothing more can be written."""
        if not self.file.closed:
            self.file.flush()
            os.fsync(self.file.fileno())
            if not CAN_LOCK:  # such systems rename no open file
                self.file.close()

    def keep_as(self, path: str) -> None:
        """Put the file in its place, replacing what stands there: a link is replaced, never followed."""
        self.sync()
        outputs = Outputs.current
        if outputs is not None:
            outputs.keep(path)
        os.replace(self.path, path)
        is_gone(self.path)
        PUT.append(path)
        self.file.close()
        sync_folder(os.path.dirname(path))

    def discard(self) -> None:
        """Take the file away; nothing happens when it has been kept."""
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            os.unlink(self.path)
        is_gone(self.path)


class Outputs:
    """The files that a command was told to write: where it fails, each is as it was before, so that they appear together."""

    #: Those of the command that runs.
    current: ClassVar[Outputs | None] = None

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = {os.path.abspath(path) for path in paths}
        #: What was put → the path at which its predecessor is kept, and the lock of that; None where there was none.
        self._put: dict[str, tuple[str, int | None] | None] = {}

    def keep(self, path: str) -> None:
        """Keep what stands at ``path``, about to be replaced, where it is one of the files, or data of a model that is."""
        stems = (os.path.splitext(each)[0] + "." for each in self._paths)
        is_data = path.endswith(".data") and any(path.startswith(stem) for stem in stems)
        if path in self._put or not (path in self._paths or is_data):
            return
        if not os.path.lexists(path):
            self._put[path] = None
            return
        before = hidden_name(os.path.dirname(path), os.path.basename(path))
        with suppress(OSError):  # a file system without links: then the new file stays
            os.link(path, before, follow_symlinks=False)
            self._put[path] = before, locked(before, os.open(before, os.O_RDONLY)) if CAN_LOCK else None

    def settle(self) -> None:
        """All are written: nothing is taken back."""
        for kept in self._put.values():
            if kept is not None:
                self._forget(*kept)
        self._put.clear()

    def take_back(self) -> None:
        """Put what was there before in place of what was written."""
        for path, kept in self._put.items():
            with suppress(OSError):
                os.unlink(path) if kept is None else os.replace(kept[0], path)
        self.settle()

    @staticmethod
    def _forget(path: str, handle: int | None) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)
        is_gone(path)
        if handle is not None:
            os.close(handle)


@contextmanager
def together(paths: Iterable[str]) -> Iterator[None]:
    """Let the files at ``paths`` appear together: those that the block has put are taken back where it fails."""
    outer, Outputs.current = Outputs.current, (outputs := Outputs(paths))
    try:
        yield
    except BaseException:
        outputs.take_back()
        raise
    else:
        outputs.settle()
    finally:
        Outputs.current = outer


def sync_folder(folder: str) -> None:
    """Bring a rename in ``folder`` onto the disk, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def whole_file(path: str | os.PathLike[str], *, overwrite: bool = True) -> Iterator[BinaryIO]:
    """A file whose content is at ``path`` (parents are made) once the body is done; until then the old one is, whole.

    Raises:
        UsageError: the file exists and ``overwrite`` is off, or the place cannot be written.
        SetupError: the disk is full.
    """
    target = os.path.abspath(os.fspath(path))
    refuse_existing(target, overwrite=overwrite)
    with folder_for(target) as folder, writing(target):
        hidden = HiddenFile(folder, os.path.basename(target))
        try:
            yield hidden.file
            refuse_existing(target, overwrite=overwrite)
            hidden.keep_as(target)
        except BaseException:
            hidden.discard()
            raise


def write_whole(path: str | os.PathLike[str], data: bytes, *, overwrite: bool = True) -> None:
    """Write ``data`` to ``path`` as a `whole_file`.

    Raises:
        UsageError: the file exists and ``overwrite`` is off, or the place cannot be written.
        SetupError: the disk is full.
    """
    with whole_file(path, overwrite=overwrite) as file:
        file.write(data)


def write_hashed(path: str | os.PathLike[str], data: bytes, *, overwrite: bool = True) -> str:
    """Write ``data`` to ``path`` as `write_whole`, and return the hex SHA-256 of it; the file is not read again for that."""
    write_whole(path, data, overwrite=overwrite)
    return hashlib.sha256(data).hexdigest()
