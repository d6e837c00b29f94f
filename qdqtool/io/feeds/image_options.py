"""How an image becomes an array: what ``--image-size``, ``--image-mean`` and the like say."""

from __future__ import annotations

import enum
from typing import ClassVar

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.options import SAMPLED, option


class Order(enum.Enum):
    """Order of the color channels."""

    RGB = "rgb"
    BGR = "bgr"


class Layout(enum.Enum):
    """Order of the axes."""

    NCHW = "nchw"
    NHWC = "nhwc"


class Fit(enum.Enum):
    """How an image of another aspect ratio is brought to size.

    stretch: resized, the ratio is lost. letterbox: resized to fit inside, gray border. center-crop: resized to cover, the
    middle is kept.
    """

    STRETCH = "stretch"
    LETTERBOX = "letterbox"
    CENTER_CROP = "center-crop"


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.lower().partition("x")
    if not (height.isdigit() and (width.isdigit() or not width)):
        raise ValueError(f"{text!r} is no size; write 224x224 (height x width) or 224")
    return int(height), int(width or height)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is no list of numbers; write 0.485,0.456,0.406") from None


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How an image becomes an array: value = (pixel · scale − mean) / std."""

    section: ClassVar[str] = SAMPLED

    size: tuple[int, int] | None = option(
        None, "Size of images; by default from the model's input.", value="HxW", read=_size
    )
    mean: tuple[float, ...] = option((), "Subtracted after scaling, per channel.", value="M[,M,M]", read=_numbers)
    std: tuple[float, ...] = option((), "Divided by after the mean, per channel.", value="S[,S,S]", read=_numbers)
    scale: float | None = option(None, "Pixels 0..255 are multiplied by it first (1/255 = 0.00392157).", value="F")
    order: Order = option(Order.RGB, "Order of the colour channels.")
    layout: Layout | None = option(None, "Layout of the model's input.")
    fit: Fit = option(Fit.STRETCH, "How images are brought to size.")

    def __post_init__(self) -> None:
        if self.size is not None and min(self.size) < 1:
            raise UsageError(
                f"image size {self.size[0]}x{self.size[1]}", hint="--image-size takes HEIGHTxWIDTH in pixels"
            )
        if any(value == 0 for value in self.std):
            raise UsageError("a standard deviation of 0", hint="--image-std divides")
