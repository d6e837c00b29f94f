"""Move the profiles of a chip by own measured times, and tell which of them contradict it."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.render import Out, plural, say, table
from qdqtool.options import metadata_of, option
from qdqtool.verbs.calibrate_chip import CalibrateChip

if TYPE_CHECKING:
    from qdqtool.cost.contradictions import Checked
    from qdqtool.verbs.calibrate_chip import CalibratedChip


@dataclass(frozen=True, kw_only=True)
class CalibrateChipCommand(CalibrateChip):
    """`CalibrateChip` as a command: writes the chip's file."""

    output: str = field(
        metadata=metadata_of(
            "Where to write the chip (TOML).", value="FILE", use="file", flags=("-o", "--output"), required=True
        )
    )
    overwrite: bool = option(False, "Replace FILE if it exists.")


@command_of(CalibrateChipCommand)
def calibrate_chip(out: Out, asked: CalibrateChipCommand) -> None:
    from qdqtool.io.files.atomic import write_whole

    found = ran(out, asked, "calibrating")
    write_whole(asked.output, found.text.encode(), overwrite=asked.overwrite)
    odd = [one.text(_place(found, one.own.stack)) for one in found.contradictions]
    payload = {
        "output": asked.output, "chip": found.chip.name, "base": found.base.file, "why": found.why,
        "rows": [_row(one) for one in found.used],
        "passed": [{"row": row.id, "reason": reason} for row, reason in found.passed],
        "contradictions": [
            {"row": one.own.row.id, "ms": one.own.ms, "expected_ms": round(one.ms, 4), "factor": round(one.factor, 4),
             "outside": round(one.outside, 4), "causes": list(one.causes), "used": not one.unusable, "text": text}
            for one, text in zip(found.contradictions, odd, strict=True)
        ],
    }  # fmt: skip
    out.result(payload, lambda: _render(payload, odd))


def _place(found: CalibratedChip, stack: str) -> str:
    return f"{found.base.name} with {stack}"


def _row(one: Checked) -> dict[str, Any]:
    ms = {"ms": one.own.ms, "before": one.before, "after": one.after, "left_out": one.left_out}
    what = " ".join(part for part in (one.own.name, one.own.row.precision, one.own.row.phase) if part)
    return {"row": one.own.row.id, "what": what, **{key: float(f"{value:.4g}") for key, value in ms.items()}}


def _render(payload: dict[str, Any], odd: list[str]) -> None:
    table(
        ("row", "what", "ms", "before", "after", "by the others"),
        [
            (row["row"], row["what"], f"{row['ms']:.4g}", *(_off(row, key) for key in ("before", "after", "left_out")))
            for row in payload["rows"]
        ],
    )
    say()
    for text, one in zip(odd, payload["contradictions"], strict=True):
        say(f"contradicts: {text}{'' if one['used'] else ' (left out)'}")
    for one in payload["passed"]:
        say(f"not used: {one['row']}: {one['reason']}")
    say(
        f"{payload['chip']}: {plural(len(payload['rows']), 'row')} on the profiles of {payload['base']} ({payload['why']})"
    )
    say(f"wrote {payload['output']}")


def _off(row: dict[str, Any], key: str) -> str:
    """What is predicted, and how far that is off."""
    return f"{row[key]:.4g} ({100 * (row[key] / row['ms'] - 1):+.1f} %)" if row[key] else "-"


command = calibrate_chip
