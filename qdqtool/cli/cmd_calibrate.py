"""Run MODEL over --data and write the ranges of its tensors; or merge ranges: --merge A.json B.json -o R.json."""

from __future__ import annotations

from dataclasses import field

import click
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.options import text
from qdqtool.cli.render import Out, plural, say
from qdqtool.options import metadata_of, option
from qdqtool.verbs.calibrate import Calibrate


@dataclass(frozen=True, kw_only=True)
class CalibrateCommand(Calibrate):
    """`Calibrate` as a command: writes a file, or merges several."""

    output: str = field(
        metadata=metadata_of(
            "Where to write the ranges (JSON).", value="FILE", use="file", flags=("-o", "--output"), required=True
        )
    )
    overwrite: bool = option(False, "Replace FILE if it exists.")
    merge_files: bool = option(
        False, "Merge ranges files (given instead of MODEL) into one.", flags=("--merge",), before="select"
    )
    more: tuple[str, ...] = field(default=(), metadata=metadata_of(kind="argument", value="[RANGES...]", use="read"))


@command_of(CalibrateCommand)
def calibrate(out: Out, asked: CalibrateCommand) -> None:
    from qdqtool.calibrate.ranges import Ranges, merge

    if asked.model is None:
        raise UsageError("no model", hint="give MODEL --data D, or --merge A.json B.json")
    if asked.merge_files:
        if not asked.more:
            raise UsageError("one file to merge", hint="--merge A.json B.json -o R.json")
        found = merge(*(Ranges.read(path) for path in (text(asked.model), *asked.more)))
    else:
        if asked.more:
            raise click.UsageError(f"unexpected arguments {' '.join(asked.more)}")
        found = ran(out, asked, "calibrating")
    found.write(asked.output, overwrite=asked.overwrite)
    payload = {
        "output": asked.output, "method": found.method, "samples": found.samples, "tensors": len(found.tensors),
        "ranges_sha256": found.sha256, "unobserved": list(found.unobserved),
    }  # fmt: skip
    ranges, samples = plural(len(found.tensors), "range"), plural(found.samples, "sample")
    out.result(payload, lambda: say(f"{ranges} over {samples} ({found.method}) in {asked.output}"))


command = calibrate
