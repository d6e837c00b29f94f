"""Objects of the user's own Python: ``module:name`` or ``file.py:name``, imported from the search path and the current folder."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from qdq_passes.core.registry import import_file
from qdq_passes.errors import QdqError, UsageError


def import_object(text: str, *, where: str) -> Any:
    """What ``module:name`` names; the module may be a file that ends in ``.py``, the name may be dotted.

    Args:
        text: as the user wrote it.
        where: what the message begins with, as in ``--data mine:feeds``.

    Raises:
        UsageError: it is not of that form, there is no such module or name, or importing it fails.
    """
    module_name, _, attribute = text.rpartition(":")
    if not module_name or not attribute:
        raise UsageError("is not of the form module:name", where=where, hint="as in mine:function or mine.py:function")
    module = _imported(module_name, where)
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError:
        raise UsageError(f"module {module_name!r} has no {attribute!r}", where=where) from None


def _imported(name: str, where: str) -> Any:
    if name.endswith(".py"):
        return import_file(Path(name))
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except QdqError:
        raise
    except Exception as error:
        raise UsageError(f"module {name!r} cannot be imported: {error}", where=where) from error
    finally:
        sys.path.remove(here)
