"""What `explain` says of a planted fault: whom it names, for what cause, and whether its edit wins what it promised."""

from __future__ import annotations

import math
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from qdqtool.io.models.load import load
from qdqtool.verbs.story.explain import explain
from tests.bench.faults.fault import Fault, sqnr
from tests.cases.cli_helpers import cli

#: Words of `explain` that are right for a fault, by the fault's own word.
RIGHT = {
    "rounding": {"rounding", "shared"},
    "clipping": {"clipping"},
    "weight": {"weight"},
    "weight clipping": {"weight clipping"},
    "bias": {"bias"},
    "shared": {"shared", "rounding"},
    "axis": {"axis"},
    "outlier": {"outlier"},
    "boundary": {"boundary"},
    "another's grid": {"clipping", "rounding", "shared", "zero point"},
    "zero point": {"zero point"},
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a fault.

    Args:
        place: of the first culprit among what is told, from 1; infinite where none is.
        cause: told of a culprit, the right one if one has it; "" of none.
        is_right: whether that is the fault's.
        promised_db: what its best edit is said to win; 0 of none.
        won_db: what the printed command won.
    """

    place: float
    cause: str
    is_right: bool
    promised_db: float
    won_db: float

    @property
    def is_kept(self) -> bool:
        """Whether the edit won what was promised, within 20 % or 1 dB."""
        return self.place < math.inf and abs(self.won_db - self.promised_db) <= max(1.0, 0.2 * abs(self.promised_db))


def verdict(fault: Fault, worst: int = 3) -> Verdict:
    """Explain the fault, and make the edit that is printed for the culprit."""
    with tempfile.TemporaryDirectory() as folder:
        source, bad, mended = (str(Path(folder) / name) for name in ("float.onnx", "bad.onnx", "mended.onnx"))
        ir.save(fault.float_model, source)
        ir.save(fault.bad, bad)
        told = explain(bad, fault.data, float_model=source, worst=worst).told  # type: ignore[arg-type]
        places = [
            at for at, one in enumerate(told, 1) if fault.culprits & {one.record.name, getattr(one.record, "node", "")}
        ]
        hits = [one for one in told if fault.culprits & {one.record.name, getattr(one.record, "node", "")}]
        hit = next((one for one in hits if one.cause in RIGHT[fault.cause]), hits[0] if hits else None)
        promised = won = 0.0
        if hit is not None and hit.mends:
            promised = hit.mends[0].wins_db
            words = shlex.split(hit.mends[0].command)[1:]
            words[words.index("--output") + 1] = mended
            cli(*words, "-q")
            won = sqnr(fault.float_model, load(mended), fault.data) - sqnr(fault.float_model, fault.bad, fault.data)
    cause = "" if hit is None else hit.cause
    return Verdict(
        place=min(places, default=math.inf), cause=cause, is_right=cause in RIGHT[fault.cause],
        promised_db=promised, won_db=won,
    )  # fmt: skip
