"""What is done to win back accuracy: the table ``[recovery]`` of a preset, and the options of the same names.

[recovery]
rotate = true               # rotate-decoder
equalize = "keep"           # equalize-layers; or bounds, relu: what becomes of a Clip between two layers
smooth = 0.5                # smooth-activations with that alpha
cut_ranges = true           # observe{cut=true}
search_scales = true        # search-scales
round_weights = true        # round-weights
learn_rounding = true       # learn-rounding, in the place of round-weights and correct-bias
correct_bias = true         # correct-bias
tune_weights = 1000         # tune-weights, so many steps"""

from __future__ import annotations

from dataclasses import fields
from typing import ClassVar, Literal, get_args

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.toml_table import TomlTable
from qdq_passes.errors import UsageError

from qdqtool.options import ACCURACY, option

#: What becomes of a Clip between two layers that are equalized.
Clips = Literal["keep", "bounds", "relu"]
#: Alpha of smoothing: False for none, None where nothing is said.
Alpha = float | Literal[False] | None
#: Steps of tuning: False for none, None where nothing is said.
Steps = int | Literal[False] | None
KEYS = (
    "rotate",
    "equalize",
    "smooth",
    "cut_ranges",
    "search_scales",
    "round_weights",
    "learn_rounding",
    "correct_bias",
    "tune_weights",
)


def _clips(word: str) -> str | bool:
    words = (*get_args(Clips), "no")
    if word not in words:
        raise ValueError(f"{word!r} is none of {', '.join(words)}")
    return False if word == "no" else word


def _alpha(text: str) -> float | bool:
    if text == "no":
        return False
    try:
        alpha = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number; write --smooth=0.5, or --smooth no") from None
    if not 0 <= alpha <= 1:
        raise ValueError(f"{text} is not between 0 and 1")
    return alpha


def _steps(text: str) -> int | bool:
    if text == "no":
        return False
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is no number of steps; write --tune-weights=1000, or --tune-weights no")
    return int(text)


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What is asked for; None where nothing is said, False where a pass of the preset is left out."""

    section: ClassVar[str] = ACCURACY

    rotate: bool | None = option(
        None, "Rotate what the layers of a decoder hand on, so that no channel stands out; within rounding the same."
    )
    equalize: Clips | Literal[False] | None = option(
        None,
        "Make weights of neighbouring layers alike, channel by channel; exact. A Clip (Relu6) between two layers is kept "
        "(they are left alone), made a Relu and a Min by bounds, or a Relu.",
        value="[keep|bounds|relu|no]", alone="keep", read=_clips,
    )  # fmt: skip
    smooth: Alpha = option(
        None,
        "Move outliers of activations into weights, that share of them; exact.  [0.5 where no number follows]",
        value="[ALPHA|no]", alone="0.5", read=_alpha,
    )  # fmt: skip
    cut_ranges: bool | None = option(
        None, "Leave out of ranges what no reader tells apart: all below -3 in front of a HardSwish, which is 0 there."
    )
    search_scales: bool | None = option(
        None, "Choose scales of weights for the least error of what each layer computes on --data, not of the weights."
    )
    round_weights: bool | None = option(
        None, "Round weights so that their errors compensate each other on --data, not each to the nearest."
    )
    learn_rounding: bool | None = option(
        None, "Learn weights and biases layer by layer on --data, from what the quantized layers before give; does what "
        "--round-weights and --correct-bias do, too.",
    )  # fmt: skip
    correct_bias: bool | None = option(
        None, "Give biases what rounding the weights takes from the mean of each output."
    )
    tune_weights: Steps = option(
        None, "Tune all weights together on --data, by gradient, for what the model gives; so many steps.  [1000 where no number "
        "follows]", value="[STEPS|no]", alone="1000", read=_steps,
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.smooths and not (isinstance(self.smooth, int | float) and 0 <= self.smooth <= 1):
            raise UsageError(f"--smooth {self.smooth} is not between 0 and 1", hint="0.5 shares evenly")
        steps = self.tune_weights
        if steps is not None and steps is not False and (type(steps) is not int or steps < 1):
            raise UsageError(f"--tune-weights {self.tune_weights} is no number of steps", hint="1000 are usual")

    def over(self, other: Recovery) -> Recovery:
        """This, and what ``other`` says where this says nothing."""
        said = {f.name: getattr(self, f.name) for f in fields(Recovery)}
        return Recovery(**{name: getattr(other, name) if value is None else value for name, value in said.items()})

    @property
    def smooths(self) -> bool:
        """Whether activations are smoothed; alpha may be 0."""
        return self.smooth is not None and self.smooth is not False

    def explain(self) -> list[tuple[str, str]]:
        """Rows of (what, how), for people; none where nothing is done."""
        done = ["rotated decoder"] if self.rotate else []
        if self.equalize:
            done.append("equalized layers")
        if self.smooths:
            done.append(f"smoothed activations (alpha {self.smooth:g})")
        done += ["cut ranges"] if self.cut_ranges else []
        done += ["searched scales of weights"] if self.search_scales else []
        if self.learn_rounding:
            done.append("learned rounding of weights and biases")
        else:
            done += ["error-compensating rounding of weights"] if self.round_weights else []
            done += ["corrected biases"] if self.correct_bias else []
        done += [f"tuned weights ({self.tune_weights} steps)"] if self.tune_weights else []
        return [("accuracy recovery", ", ".join(done))] if done else []


NO_RECOVERY = Recovery()


def recovery_of(table: TomlTable) -> Recovery:
    """The table ``[recovery]``.

    Raises:
        ModelError: a key has another type or value.
    """
    found: dict[str, object] = {}
    for key, value in table.data.items():
        if key == "equalize" and value not in ("keep", "bounds", "relu", False):
            raise table.error(f"'equalize' cannot be {value!r}", hint="write keep, bounds, relu or false")
        if key == "smooth" and not (
            value is False or (isinstance(value, int | float) and value is not True and 0 <= value <= 1)
        ):
            raise table.error(f"'smooth' cannot be {value!r}", hint="write a number between 0 and 1, or false")
        if key == "tune_weights" and value is not False and (not isinstance(value, int) or value is True or value < 1):
            raise table.error(f"'tune_weights' cannot be {value!r}", hint="write a number of steps, or false")
        if key in KEYS and key not in ("equalize", "smooth", "tune_weights") and not isinstance(value, bool):
            raise table.error(f"{key!r} cannot be {value!r}", hint="write true or false")
        found[key] = (
            float(value) if key == "smooth" and value is not False and isinstance(value, int | float) else value
        )
    return Recovery(**found)  # type: ignore[arg-type]
