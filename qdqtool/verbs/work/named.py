"""Named inputs of pipelines from the command line: ``--ranges FILE`` binds ``@ranges``, ``--encodings FILE`` ``@encodings``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from qdq_passes.errors import UsageError

from qdqtool.calibrate.ranges import Ranges
from qdqtool.calibrate.statistics import Statistics
from qdqtool.encodings.files import bound, read_encodings, sha256_of, values_by_name
from qdqtool.io.files.edit_script import NamedInput, Script
from qdqtool.io.files.progress import Warn, pass_on
from qdqtool.io.files.read import sha256_of_file
from qdqtool.io.models.load import load
from qdqtool.quantization.reports import constants_of
from qdqtool.verbs.groups import Path


def bind(name: str, path: str, model: str, sha256: str = "") -> NamedInput:
    """The named input ``name`` from the file at ``path``.

    Args:
        name: ``ranges``, ``encodings``, ``statistics`` or ``float``.
        path: the file.
        model: the model that the pipeline runs on; some encodings files name no axis, the tensor tells it.
        sha256: what its content should hash to; anything when empty.

    Raises:
        UsageError: a name that no file is read for, or a file that changed since it was recorded.
    """
    given = _READERS[name](path, model) if name in _READERS else None
    if given is None:
        raise UsageError(f"@{name} is bound to no file", where=path, hint=f"there is {', '.join(_READERS)}")
    if sha256 and given.sha256 != sha256:
        raise UsageError("is not the file that was recorded", where=path, hint=f"bind it anyway with --{name} {path}")
    return given


def _ranges(path: str, model: str) -> NamedInput:
    found = Ranges.read(path)
    return NamedInput(value=found.bound, sha256=found.sha256, file=path)


def _encodings(path: str, model: str) -> NamedInput:
    found, values = read_encodings(path), values_by_name(load(model))
    return NamedInput(value=bound(found, values), sha256=sha256_of(found, values), file=path)


def _statistics(path: str, model: str) -> NamedInput:
    found = Statistics.read(path)
    return NamedInput(value=found.layers, sha256=found.sha256, file=path)


def _float(path: str, model: str) -> NamedInput:
    """The float model's constants, as they are where the quantized ``model`` has them: folded and fused alike."""
    from qdqtool.comparison.replaying import replay

    source = load(path)
    return NamedInput(value=constants_of(replay(source, load(model)).reference), sha256=sha256_of_file(path), file=path)


_READERS = {"encodings": _encodings, "float": _float, "ranges": _ranges, "statistics": _statistics}


def named_inputs(
    warn: Warn | None, model: str, script: Script, given: Mapping[str, Path | None], needed: Sequence[str]
) -> dict[str, NamedInput]:
    """What the passes of ``script`` read by name: from the options ``given``, or else from the files it was recorded with."""
    files = {name: os.fspath(path) for name, path in given.items() if path is not None}
    for name in files:
        if name not in needed:
            pass_on([f"no pass of the pipeline reads @{name}: --{name} is not used"], warn)
    recorded = {name: entry for name, entry in script.inputs.items() if name in needed and name not in files}
    return {
        **{name: bind(name, path, model) for name, path in files.items() if name in needed},
        **{name: bind(name, entry.file, model, entry.sha256) for name, entry in recorded.items()},
    }
