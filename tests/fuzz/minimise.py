"""A finding made small: as few steps of damage, and as little of the model, as still end the same way; kept as a golden case."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import onnx
from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message

from tests.fuzz.mutators import walk
from tests.fuzz.worker import Job, Outcome, Worker

FOUND = Path(__file__).with_name("found")
#: Command lines that are tried for one finding.
BUDGET = 1000


def minimised(outcome: Outcome, worker: Worker, simpler: Sequence[Job]) -> Job:
    """The smallest job found that ends as ``outcome`` did.

    Args:
        outcome: the finding.
        worker: what tries.
        simpler: jobs that may end so as well, of which the first that does is made small.
    """
    left = BUDGET

    def fails(job: Job) -> bool:
        nonlocal left
        left -= 1
        return left > 0 and worker.check(job).signature == outcome.signature

    best = next(filter(fails, simpler), outcome.job)
    try:
        model = onnx.ModelProto.FromString(best.files["m.onnx"])
    except DecodeError:  # the damage is to the bytes: there is nothing to thin out
        return best
    for message in chain((model.graph,), walk(model)):  # nodes go once the outputs that name them are gone
        for each in message.DESCRIPTOR.fields:
            if each.is_repeated:
                best = _thinned(model, message, each.name, best, fails)
    return best


def _thinned(model: onnx.ModelProto, message: Message, name: str, best: Job, fails: Callable[[Job], bool]) -> Job:
    """``best`` with a shorter list ``name`` of ``message``, which is part of ``model``."""
    size = len(getattr(message, name))
    while size:
        at = 0
        while at < len(values := getattr(message, name)):
            kept = copy.deepcopy(list(values))
            del values[at : at + size]
            job = replace(best, files={**best.files, "m.onnx": model.SerializeToString()})
            if fails(job):
                best = job
            else:
                message.ClearField(name)
                getattr(message, name).extend(kept)
                at += size
        size //= 2
    return best


def keep(job: Job, outcome: Outcome, folder: Path = FOUND) -> Path:
    """Write ``job`` as a golden case, whose command must end with one of the codes of a refusal; the path."""
    folder.mkdir(exist_ok=True)
    data = job.files["m.onnx"]
    slug = re.sub(r"[^a-z0-9]+", "_", outcome.signature.lower()).strip("_")[:60]
    path = folder / f"{slug}_{hashlib.sha256(data).hexdigest()[:8]}.textproto"
    line = "# RUN: " + " ".join(job.arguments).replace("m.onnx", "MODEL") + "\n"
    try:
        path.write_text(line + text_format.MessageToString(onnx.ModelProto.FromString(data)), encoding="utf-8")
    except (DecodeError, ValueError):  # no protobuf, or names that are no text: the bytes are kept
        path = path.with_suffix(".onnx")
        path.write_bytes(data)
        path.with_suffix(".run").write_text(line, encoding="utf-8")
    return path
