"""A finding made small: as few steps of damage, and as little of the model, as still end the same way; kept as a golden case."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import onnx
from google.protobuf import text_format
from google.protobuf.message import Message

from tests.fuzz.worker import Job, Outcome, Worker

FOUND = Path(__file__).with_name("found")
#: Command lines that are tried for one finding.
BUDGET = 400
#: Repeated fields that are thinned out, the largest things first.
_LISTS = (
    "functions",
    "node",
    "initializer",
    "value_info",
    "input",
    "output",
    "attribute",
    "metadata_props",
    "dims",
    "ints",
    "floats",
)


def minimised(outcome: Outcome, worker: Worker, without: Callable[[int], Job | None]) -> Job:
    """The smallest job found that ends as ``outcome`` did.

    Args:
        outcome: the finding.
        worker: what tries.
        without: the job without the damage of one step; None where there is no such step.
    """
    left = BUDGET
    best = outcome.job

    def fails(job: Job) -> bool:
        nonlocal left
        left -= 1
        return left > 0 and worker.check(job).signature == outcome.signature

    step = 0
    while (fewer := without(step)) is not None:
        if fails(fewer):
            best = fewer
            break
        step += 1
    try:
        model = onnx.ModelProto.FromString(best.files["m.onnx"])
    except Exception:  # noqa: BLE001 - the damage is to the bytes: whatever protobuf says, there is nothing to thin out
        return best
    for message in _messages(model):
        for name in _LISTS:
            if name in message.DESCRIPTOR.fields_by_name:
                best = _thinned(model, message, name, best, fails)
    return best


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for each, value in message.ListFields():
        if each.message_type is not None:
            for inner in list(value) if each.is_repeated else [value]:
                yield from _messages(inner)


def _thinned(model: onnx.ModelProto, message: Message, name: str, best: Job, fails: Callable[[Job], bool]) -> Job:
    """``best`` with a shorter list ``name`` of ``message``, which is part of ``model``."""
    size = len(getattr(message, name))
    while size:
        at = 0
        while at < len(values := getattr(message, name)):
            kept = [type(v).FromString(v.SerializeToString()) if isinstance(v, Message) else v for v in values]
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
    slug = re.sub(r"[^a-z0-9]+", "_", outcome.signature.lower()).strip("_")[:60]
    data = job.files["m.onnx"]
    line = " ".join(word.replace("m.onnx", "MODEL") for word in job.arguments)
    try:
        text = text_format.MessageToString(onnx.ModelProto.FromString(data))
        path = folder / f"{slug}.textproto"
    except Exception:  # noqa: BLE001 - no protobuf, or names that are no text: the bytes are kept
        path = folder / f"{slug}_{hashlib.sha256(data).hexdigest()[:8]}.onnx"
        path.write_bytes(data)
        path.with_suffix(".run").write_text(f"# RUN: {line}\n", encoding="utf-8")
        return path
    path.write_text(f"# RUN: {line}\n{text}", encoding="utf-8")
    return path
