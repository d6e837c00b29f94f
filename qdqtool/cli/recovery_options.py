"""Options that win back accuracy: --equalize, --smooth, --round-weights, --correct-bias, and the statistics that they read."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.options import stack


class AlphaType(click.ParamType[Any]):
    """A number between 0 and 1, or ``no``."""

    name = "alpha"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; False of ``no``."""
        if value == "no" or value is False:
            return False
        try:
            alpha = float(value)
        except ValueError:
            self.fail(f"{value!r} is no number; write --smooth=0.5, or --smooth no", param, ctx)
        return alpha if 0 <= alpha <= 1 else self.fail(f"{value} is not between 0 and 1", param, ctx)


class ClipsType(click.Choice[str]):
    """What becomes of a Clip between two layers, or ``no``."""

    name = "clips"

    def __init__(self) -> None:
        super().__init__(["keep", "bounds", "relu", "no"])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word; False of ``no``."""
        if value is False:
            return False
        found = super().convert(value, param, ctx)
        return False if found == "no" else found


recovery_options = stack(
    click.option(
        "--equalize", is_flag=False, flag_value="keep", type=ClipsType(), metavar="[keep|bounds|relu|no]",
        help="Make weights of neighbouring layers alike, channel by channel; exact. A Clip (Relu6) between two layers is kept "
        "(they are left alone), made a Relu and a Min by bounds, or a Relu.",
    ),
    click.option(
        "--smooth", is_flag=False, flag_value=0.5, type=AlphaType(), metavar="[ALPHA|no]",
        help="Move outliers of activations into weights, that share of them; exact.  [0.5 where no number follows]",
    ),
    click.option(
        "--round-weights/--no-round-weights", default=None,
        help="Round weights so that their errors compensate each other on --data, not each to the nearest.",
    ),
    click.option(
        "--correct-bias/--no-correct-bias", default=None,
        help="Give biases what rounding the weights takes from the mean of each output.",
    ),
    click.option("--statistics", metavar="FILE", help="Statistics for these, of --save-statistics, instead of collecting them."),
    click.option("--save-statistics", metavar="FILE", help="Also write the statistics that were used (.npz)."),
)  # fmt: skip
