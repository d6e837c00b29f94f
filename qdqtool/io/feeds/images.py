"""A folder of images as feeds: decoded, resized, normalized, laid out as the model's input wants it.

    value = (pixel · scale − mean) / std        pixel 0..255; mean and std per channel, in the order of ``order``

Wrong preprocessing is the commonest cause of bad ranges: use what the model was trained with. Size, layout and channels
default to those of the model's input; grayscale where its channel dimension is 1. Pixels are taken as stored (an EXIF
orientation is not applied)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core import budget
from qdq_passes.errors import ModelError, SetupError, UnsupportedError, UsageError
from qdq_passes.numerics.arrays import Array

from qdqtool.io.feeds.image_options import Fit, ImageOptions, Layout, Order
from qdqtool.io.feeds.sources import Source
from qdqtool.io.feeds.spec import InputSpec, format_shape, is_float
from qdqtool.io.files.progress import Warn
from qdqtool.io.files.read import refuse_special

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp"})
#: Gray that fills the border of ``letterbox``, as YOLO models are trained with.
LETTERBOX_GRAY = 114


@dataclass(frozen=True)
class _Plan:
    """`ImageOptions` with the model's input filled in; ``size`` is (height, width)."""

    spec: InputSpec
    size: tuple[int, int]
    channels: int
    layout: Layout
    scale: float
    options: ImageOptions


def image_feeds(files: Sequence[Path], inputs: Sequence[InputSpec], options: ImageOptions, warn: Warn) -> Source:
    """Feeds of ``files`` in the order given, as many images each as the model's batch.

    Raises:
        SetupError: Pillow is not installed.
        UsageError: the model's input is no image, or its size or layout must be said.
    """
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise SetupError("images need Pillow", hint="pip install qdqtool[images]") from error
    plan = _plan(inputs, options)
    if is_float(plan.spec.dtype) and options.scale is None and not options.mean and not options.std:
        warn("images: pixels divided by 255, no mean or std; see --image-scale, --image-mean, --image-std")
    batch = plan.spec.batch
    count, left = divmod(len(files), batch)
    if not count:
        raise UsageError(f"{len(files)} images for a batch of {batch}", hint="give more, or bind a smaller batch")
    if left:
        warn(f"the last {left} of {len(files)} images do not fill a batch of {batch}: dropped")

    def read(first: int = 0) -> Iterator[tuple[str, dict[str, Array]]]:
        for start in range(first * batch, count * batch, batch):
            group = files[start : start + batch]
            label = group[0].name if batch == 1 else f"{group[0].name} … {group[-1].name}"
            yield label, {plan.spec.name: np.stack([_pixels(file, plan) for file in group])}

    return Source(read, count, read)


def _plan(inputs: Sequence[InputSpec], options: ImageOptions) -> _Plan:
    """What the model wants, with ``options`` over it."""
    if len(inputs) != 1:
        names = ", ".join(spec.name for spec in inputs)
        raise UsageError(
            f"images serve models with one input, this one has {len(inputs)}: {names}", hint="use .npz files"
        )
    spec = inputs[0]
    where = f"input {spec.name!r}"
    if spec.shape is None or len(spec.shape) != 4:
        raise UsageError(f"shape {format_shape(spec.shape)} is no image", where=where, hint="images are [N, C, H, W]")
    _, second, third, last = spec.shape
    layout = options.layout
    if layout is None:
        if (second in (1, 3)) == (last in (1, 3)):
            hint = "say --image-layout nchw or nhwc"
            raise UsageError(f"shape {format_shape(spec.shape)} does not tell its layout", where=where, hint=hint)
        layout = Layout.NCHW if second in (1, 3) else Layout.NHWC
    channels, height, width = (second, third, last) if layout is Layout.NCHW else (last, second, third)
    if channels not in (1, 3):
        if isinstance(channels, int):
            raise UnsupportedError(f"{channels} channels; images have 1 or 3", where=where, hint="use .npz files")
        channels = 3
    for name, values in (("mean", options.mean), ("std", options.std)):
        if len(values) not in (0, 1, channels):
            raise UsageError(f"{len(values)} values of --image-{name} for {channels} channels", where=where)
    size = options.size or (height, width)
    if not (isinstance(size[0], int) and isinstance(size[1], int)):
        hint = "say --image-size HEIGHTxWIDTH"
        raise UsageError(f"shape {format_shape(spec.shape)} does not tell the image size", where=where, hint=hint)
    budget.demand(16 * channels * size[0] * size[1], "an image of its size", where=where)
    scale = options.scale if options.scale is not None else 1 / 255 if is_float(spec.dtype) else 1.0
    return _Plan(spec, (size[0], size[1]), channels, layout, scale, options)


def _pixels(file: Path, plan: _Plan) -> Array:
    """One image as an array without batch axis, in the model's type and layout."""
    pixels: npt.NDArray[Any] = np.asarray(_fitted(_decode(file, plan.channels), plan.size, plan.options.fit))
    pixels = pixels.reshape(*plan.size, plan.channels)
    if plan.options.order is Order.BGR:
        pixels = pixels[..., ::-1]
    values: Array = pixels.astype(np.float32) * np.float32(plan.scale)
    if plan.options.mean:
        values -= np.array(plan.options.mean, np.float32)
    if plan.options.std:
        values /= np.array(plan.options.std, np.float32)
    if plan.layout is Layout.NCHW:
        values = values.transpose(2, 0, 1)
    if not is_float(plan.spec.dtype):
        limits = np.iinfo(plan.spec.dtype)
        values = np.clip(np.rint(values), limits.min, limits.max)
    return values.astype(plan.spec.dtype)


def _decode(file: Path, channels: int) -> Image.Image:
    from PIL import Image

    refuse_special(file)
    try:
        with Image.open(file) as image:
            budget.demand(8 * image.width * image.height, "the image", where=str(file))
            if image.mode.startswith(("I", "F")):
                raise UnsupportedError(
                    f"pixels of mode {image.mode}, not 8 bit", where=str(file), hint="use .npz files"
                )
            return image.convert("L" if channels == 1 else "RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ModelError(f"cannot be read as an image: {error}", where=str(file)) from error


def _fitted(image: Image.Image, size: tuple[int, int], fit: Fit) -> Image.Image:
    """``image`` at ``size`` (height, width), bilinear."""
    from PIL import Image

    height, width = size
    if fit is Fit.STRETCH:
        return image.resize((width, height), Image.Resampling.BILINEAR)
    ratios = (width / image.width, height / image.height)
    ratio = min(ratios) if fit is Fit.LETTERBOX else max(ratios)
    scaled = (max(1, round(image.width * ratio)), max(1, round(image.height * ratio)))
    resized = image.resize(scaled, Image.Resampling.BILINEAR)
    left, top = (width - scaled[0]) // 2, (height - scaled[1]) // 2
    gray: int | tuple[int, ...] = LETTERBOX_GRAY if image.mode == "L" else (LETTERBOX_GRAY,) * 3
    canvas = Image.new(image.mode, (width, height), gray)
    canvas.paste(resized, (left, top))
    return canvas
