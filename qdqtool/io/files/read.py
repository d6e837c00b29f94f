"""Reading a file that a person named: one clear line for everything that can be wrong with it."""

from __future__ import annotations

import os

from qdq_passes.errors import ModelError

#: Bytes that are read at a time of files that may be large.
PIECE = 1 << 20


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular, non-empty file.

    Raises:
        ModelError: missing (with the nearest names), a folder, no permission, empty, not a regular file.
    """
    where = os.fspath(path)
    try:
        refuse_special(where)
        if os.path.isdir(where):
            raise ModelError("is a folder", where=where, hint=_nearest(where, "a folder") or "give the name of a file")
        with open(where, "rb") as file:
            data = file.read()
    except FileNotFoundError as error:
        raise ModelError("no such file", where=where, hint=_nearest(where, "") or "check the path") from error
    except PermissionError as error:
        raise ModelError("permission denied", where=where, hint=f"chmod +r {where}") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot be read ({error})", where=where, hint="check the path") from error
    if not data:
        raise ModelError("is empty (0 bytes)", where=where, hint="the copy or download broke off: fetch it again")
    return data


def refuse_special(path: str | os.PathLike[str]) -> None:
    """Refuse what is there and neither a file nor a folder: opening a named pipe waits for somebody who writes into it.

    Raises:
        ModelError: it is a pipe, a device, a socket.
    """
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise ModelError("is no regular file", where=os.fspath(path), hint="give the name of a file")


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a UTF-8 file.

    Raises:
        ModelError: as `read_bytes`, or not UTF-8.
    """
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ModelError("is not UTF-8 text", where=os.fspath(path), hint="save it as UTF-8") from error


def sha256_of_file(path: str | os.PathLike[str]) -> str:
    """Hex SHA-256 of a file, read in chunks.

    Raises:
        ModelError: the file cannot be read.
    """
    import hashlib

    digest = hashlib.sha256()
    refuse_special(path)
    try:
        with open(path, "rb") as file:
            while chunk := file.read(PIECE):
                digest.update(chunk)
    except OSError as error:
        raise ModelError(f"cannot be read ({error.strerror})", where=os.fspath(path), hint="check the path") from error
    return digest.hexdigest()


def holds(path: str | os.PathLike[str], word: bytes) -> bool:
    """Whether the bytes ``word`` occur in the file; it is read in pieces."""
    refuse_special(path)
    tail = b""
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            if word in tail + piece[: len(word)] or word in piece:
                return True
            tail = piece[-len(word) :]
    return False


def _nearest(path: str, what: str) -> str:
    """Names like ``path`` that exist beside it, or the models inside it when it is a folder."""
    folder, name = (path, "") if what == "a folder" else os.path.split(path)
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:
        return f"there is no folder {folder}" if not os.path.isdir(folder) else ""
    if what == "a folder":
        close = [n for n in names if n.endswith((".onnx", ".onnxtxt"))][:3]
        return f"it holds {', '.join(close)}" if close else ""
    import difflib

    close = difflib.get_close_matches(name, names, n=3)
    return f"did you mean {', '.join(close)}?" if close else ""
