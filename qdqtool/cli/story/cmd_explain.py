"""Tell what quantized tensors cost at the outputs, why, and which edit mends that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.reencode import real_range
from qdq_passes.qdq.look.grids import grid_text

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.render import Out, plural, say, table
from qdqtool.record.record import TensorRecord
from qdqtool.verbs.story.explain import Explain
from qdqtool.verbs.work.explaining import Explained, Told
from qdqtool.verbs.work.mends import Mend

#: Bars of a histogram, from nothing to most.
BARS = " ▁▂▃▄▅▆▇█"
#: Of a histogram, in characters.
WIDTH = 48


@command_of(Explain)
def explain(out: Out, asked: Explain) -> int:
    """Tell what quantized tensors cost at the outputs, why, and which edit mends that."""
    found = ran(out, asked, "pricing")
    out.result(found.to_json, lambda: _render(found, everything=out.verbose))
    return 0


def _render(found: Explained, *, everything: bool) -> None:
    record = found.record
    total = sum(record.noise.values())
    noise = "exact" if found.noise_db is None else f"{found.noise_db:.2f} dB"
    say(f"outputs: SQNR {noise} on {plural(record.samples, 'sample')}")
    if total > 0:
        shares = [
            f"{cause} {100 * power / total:.1f} %" for cause, power in record.causes.items() if power > 0.0005 * total
        ]
        say(f"noise there by cause: {', '.join(shares)}")
    for one in found.told:
        say()
        _tell(one, everything=everything)
    if found.written:
        say()
        say(f"written: {found.written}")


def _tell(one: Told, *, everything: bool) -> None:
    record = one.record
    what = (
        f"{record.kind}{f', {record.node}' if record.node else ''}" if isinstance(record, TensorRecord) else record.op
    )
    say(f"{record.name} ({what}): {100 * one.share:.1f} % of the noise")
    say(f"  {one.cause}: {one.why}")
    if isinstance(record, TensorRecord) and record.histogram is not None and record.encoding is not None:
        say(f"  values {record.low:.5g} to {record.high:.5g}   |{_bars(record.histogram.counts)}|")
        say(f"  grid   {_grid(record.encoding)}")
    for move in record.moved if isinstance(record, TensorRecord) else ():
        before = f"{_scale(move.before)} to " if move.before else ""
        because = f": {move.because}" if move.because and move.before else ""
        say(f"  {move.by}: {before}{_scale(move.after) or 'very many scales'}{because}")
    rows = _rows(mend for mend in one.mends if everything or mend.wins_db > 0)
    if rows:
        table(("dB", "edit"), rows)
    else:
        say("  no edit of it that was tried wins anything")
    if one.anew:
        table(("dB", "from the start"), _rows(one.anew))
    for text in one.refused if everything else ():
        say(f"  cannot be made: {text}")


def _rows(mends: Iterable[Mend]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for mend in mends:
        rows += [(f"{mend.wins_db:+.2f}", mend.command), *([("", f"  {mend.judged.said}")] if mend.judged.said else [])]
    return rows


def _bars(counts: tuple[int, ...]) -> str:
    step = max(1, len(counts) // WIDTH)
    sums = [sum(counts[at : at + step]) for at in range(0, len(counts), step)]
    most = max(sums) or 1
    return "".join(BARS[0 if not count else max(1, round((len(BARS) - 1) * (count / most) ** 0.5))] for count in sums)


def _grid(encoding: Mapping[str, Any]) -> str:
    found = Encoding.from_json(dict(encoding))
    low, high = (float(np.min(real_range(found)[0])), float(np.max(real_range(found)[1])))
    return f"{low:.5g} to {high:.5g}: {_scale(encoding)}"


def _scale(encoding: Mapping[str, Any] | None) -> str:
    return "" if encoding is None else grid_text(Encoding.from_json(dict(encoding)))


command = explain
