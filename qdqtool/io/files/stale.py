"""Hidden files and folders that killed runs leave: how they are called, who still writes them, and how they go away.

Whoever writes one holds a lock on it (`flock`), which the system drops with the process. Where the system has no locks, nothing
is taken away; nor, for a day, what another machine made: a network's folder may lock on each machine alone."""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import time
from contextlib import suppress

try:
    import fcntl
except ImportError:  # Windows
    CAN_LOCK = False
else:
    CAN_LOCK = True

#: Endings: what is being written; a folder whose place another is about to take.
TMP, OLD = ".tmp", ".old"
#: Seconds after which nobody writes what another machine made.
FOREIGN = 86_400.0
#: Bytes of a name that go into the hidden one.
LONGEST = 200
#: Hidden files and folders that this process makes, each from before it is there until it has its place, and the process.
_HIDDEN: dict[str, int] = {}
_HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:6]
_NAME = re.compile(r"\.(?P<name>.+)\.qdqtool-(?P<host>[0-9a-f]{6})-[0-9a-f]{12}(?P<end>\.tmp|\.old)", re.DOTALL)


def hidden_name(folder: str, name: str, end: str = TMP) -> str:
    """A path in ``folder`` that nothing has yet, for what is to be called ``name``; what ends in `TMP` goes with the process."""
    short = name.encode(errors="replace")[:LONGEST].decode(errors="ignore")
    path = os.path.join(folder, f".{short}.qdqtool-{_HOST}-{secrets.token_hex(6)}{end}")
    if end == TMP:
        _HIDDEN[path] = os.getpid()
    return path


def is_gone(path: str) -> None:
    """Forget the hidden ``path``: it has its place, or was taken away."""
    _HIDDEN.pop(path, None)


@atexit.register
def remove_hidden() -> None:
    """Take away what this process made under hidden names and neither put in its place nor took away: it was interrupted."""
    for path, process in [*_HIDDEN.items()]:
        if process == os.getpid() and os.path.lexists(path):
            with suppress(OSError):
                (shutil.rmtree if os.path.isdir(path) else os.unlink)(path)


def locked(path: str, handle: int) -> int | None:
    """Lock the open file or folder ``handle``, made just now as ``path``; None, and closed, where it is gone from there."""
    if CAN_LOCK:
        with suppress(OSError):  # a file system without locks: then nobody can take it for stale
            fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(handle)):
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)
        return None
    return handle


def remove_stale(folder: str) -> None:
    """Take away what runs that are dead left in ``folder``; a folder that one had moved aside, and put none in its place, goes
    back there."""
    if not CAN_LOCK:
        return
    with suppress(OSError), os.scandir(folder) as entries:
        found = [(entry.path, match) for entry in entries if (match := _NAME.fullmatch(entry.name))]
        for path, match in sorted(found, key=lambda each: each[0]):
            with suppress(OSError):
                _remove(path, match)


def _remove(path: str, name: re.Match[str]) -> None:
    status = os.lstat(path)
    is_folder = stat.S_ISDIR(status.st_mode)
    is_ours = status.st_uid == os.geteuid() and (is_folder or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1))
    if not is_ours or (name["host"] != _HOST and time.time() - status.st_mtime < FOREIGN):
        return
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(handle)):
            return
        if not is_folder:
            os.unlink(path)
        elif name["end"] == OLD and not os.path.lexists(place := os.path.join(os.path.dirname(path), name["name"])):
            if len(os.fsencode(name["name"])) < LONGEST:
                os.rename(path, place)
        else:
            shutil.rmtree(path)
    finally:
        os.close(handle)
