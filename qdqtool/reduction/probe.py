"""A process that runs models: what it dies of kills nobody else. It reads jobs, a line of JSON each, and answers so."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from qdq_passes.errors import QdqError
from qdq_passes.numerics.agreement import Accumulator, worst
from qdq_passes.numerics.arrays import Array

from qdqtool.io.feeds.array_store import write_npz
from qdqtool.io.models.load import load
from qdqtool.runtime.session import open_session
from qdqtool.runtime.taps import Taps

#: What differs from one part of a model to the next in the message about one fault.
_NAMES = re.compile(r"'[^']*'|\"[^\"]*\"|\([^)]*\)|\{[^}]*\}|\d+|\S*/\S*")


def serve() -> None:
    """Do jobs until there are no more; what else is printed goes to the errors."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(_done(json.loads(line))), file=answers, flush=True)


def _done(job: Mapping[str, Any]) -> dict[str, Any]:
    """What came of a job: ``run`` a model on a feed, ``record`` its tensors, or measure its ``sqnr``."""
    with np.load(job["feeds"]) as arrays:
        feed = {name: arrays[name] for name in arrays.files}
    stage = "load"
    try:
        if job["what"] == "record":
            write_npz(job["into"], Taps(load(job["model"]), job["names"]).run(feed))
            return {}
        session = open_session(job["model"], optimize=job.get("optimize", False))
        stage = "run"
        outputs = list(session.run({name: feed[name] for name in session.input_names}).values())
        return {} if job["what"] == "run" else {"sqnr_db": _sqnr(job["reference"], feed, outputs)}
    except QdqError as error:
        return {"failure": f"{stage}: {_NAMES.sub('', error.message)}", "message": str(error)}


def _sqnr(reference: str, feed: Mapping[str, Array], outputs: list[Array]) -> float | None:
    """SQNR of the worst of ``outputs`` to what ``reference`` gives, matched by position; None where all are equal."""
    session, figures = open_session(reference), []
    wanted = session.run({name: feed[name] for name in session.input_names})
    for x, y in zip(wanted.values(), outputs, strict=True):
        total = Accumulator()
        total.add(x, y)
        figures.append(total.result().sqnr_db)
    return worst(figures)
