"""Options that the commands share which measure many variants of one quantization."""

from __future__ import annotations

import click

from qdqtool.cli.cmd_quantize import quantize
from qdqtool.cli.options import stack

#: Options of `quantize` that say where to write and what to show, not what to quantize; and those that both commands spell out.
_OWN = frozenset(
    {
        "allow_findings", "as_json", "cluster", "jobs", "json_out", "model", "no_provenance", "output", "overwrite", "path",
        "print_pipeline", "quiet", "recipe", "report", "save_ranges", "save_statistics", "verbose",
    }
)  # fmt: skip

judging_options = stack(
    click.option(
        "--eval-data", metavar="D", help="Samples to judge on, in any form of --data; by default those of --data."
    ),
    click.option(
        "--eval-samples", type=click.IntRange(min=1), metavar="N",
        help="Judge on the first N; by default --samples, else up to 16 for SQNR and all for another metric.",
    ),
    click.option(
        "--resume", metavar="FILE", help="Go on with the measurements in FILE; begin it where it does not exist."
    ),
)  # fmt: skip


def with_plan_options(command: click.Command) -> click.Command:
    """``command`` with every option of `quantize` that says what is quantized and how, and on what data."""
    own = {parameter.name for parameter in command.params}
    command.params += [p for p in quantize.params if p.name not in _OWN and p.name not in own]
    return command
