"""Options that several commands share, spelled once."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from qdq_passes.errors import UsageError

from qdqtool.cli.main import _add_paths
from qdqtool.cli.render import Out

if TYPE_CHECKING:
    import onnx_ir as ir

    from qdqtool.io.feeds.images import ImageOptions

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]


def stack(*decorators: Callable[[Any], Any]) -> Decorator[Any]:
    """Several decorators as one, applied so that options show in the order given."""
    return lambda function: functools.reduce(lambda f, d: d(f), reversed(decorators), function)


def command(group: click.Group | None = None, name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function ``f(out, …)``: adds ``--json --json-out -v -q --path`` and passes an `Out` first."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def call(as_json: bool, json_out: str | None, verbose: bool, quiet: bool, **options: Any) -> Any:
            if json_out is not None:
                refuse_inputs(json_out, [v for v in options.values() if isinstance(v, str)])
            return function(Out(as_json, json_out, verbose, quiet), **options)

        options = stack(
            click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else there."),
            click.option("--json-out", metavar="FILE", help="Write the JSON document to FILE."),
            click.option("-v", "--verbose", is_flag=True, help="Show what was skipped and why; tracebacks on errors."),
            click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors and warnings."),
            click.option(
                "--path", multiple=True, metavar="DIR", is_eager=True, expose_value=False, callback=_add_paths,
                help="Also search DIR for own passes, presets, targets, methods, commands.",
            ),
        )  # fmt: skip
        make = click.command if group is None else group.command
        made: click.Command = make(name)(options(call))
        return made

    return decorate


def refuse_inputs(written: str, inputs: Iterable[str | None]) -> None:
    """Refuse to write to a file that the command reads, whatever ``--overwrite`` says; before any work is done.

    Raises:
        UsageError: it is one of ``inputs`` (names that are no files are not looked at).
    """
    if not os.path.exists(written):
        return
    for path in inputs:
        if path is not None and os.path.isfile(path) and os.path.samefile(path, written):
            raise UsageError("is an input", where=written, hint="write to another file; inputs are never overwritten")


model_argument = click.argument("model", metavar="MODEL")

output_options = stack(
    click.option(
        "-o", "--output", metavar="FILE", required=True, help="Where to write the model; parent folders are made."
    ),
    click.option("--overwrite", is_flag=True, help="Replace FILE if it exists."),
    click.option("--no-provenance", is_flag=True, help="Leave out the metadata entry that says what was done."),
)

select_option = click.option(
    "--select", "select", multiple=True, metavar="SEL", help="What the command acts on (selector; repeat to unite)."
)
allow_empty_option = click.option(
    "--allow-empty", is_flag=True, help="A selector that matches nothing is a warning, not an error."
)

exclude_options = stack(
    click.option("--exclude", multiple=True, metavar="SEL", help="Nodes that stay float (selector; repeat to unite)."),
    click.option("--only", multiple=True, metavar="SEL", help="The only nodes that may be quantized."),
    click.option("--isolate", is_flag=True, help="Values of excluded nodes stay float even if a neighbour wants them."),
    allow_empty_option,
)

annotation_options = stack(
    click.option(
        "--discard", multiple=True, metavar="SEL",
        help="Nodes that are not annotated: ExecuTorch's word for --exclude, which does the same; a name, or op:TYPE (repeat).",
    ),
    click.option(
        "--annotate", multiple=True, metavar="M:F",
        help="Function F of module M (or file.py): gets the prepared model, returns {tensor: {\"dtype\": …}} (repeat).",
    ),
    click.option(
        "--per-axis-conv/--no-per-axis-conv", default=None,
        help="Weights of Conv and ConvTranspose with a scale per output channel, or one each, whatever the preset says.",
    ),
    click.option(
        "--per-axis-linear/--no-per-axis-linear", default=None, help="Likewise the weights of Gemm and MatMul."
    ),
)  # fmt: skip

precision_options = stack(
    click.option("--int16", multiple=True, metavar="SEL", help="What these nodes write is 16 bit (selector; repeat)."),
    click.option(
        "--int8", multiple=True, metavar="SEL", help="What these nodes write is 8 bit, under a 16-bit preset."
    ),
    click.option("--fp16", multiple=True, metavar="SEL", help="These nodes compute in float16, between Casts."),
    click.option("--bf16", multiple=True, metavar="SEL", help="These nodes compute in bfloat16: for chips that do."),
    click.option("--float", multiple=True, metavar="SEL", help="These nodes stay float, whatever the preset says."),
    click.option(
        "--switch", multiple=True, metavar="NAME", help="Turn on a switch of the preset (`list presets NAME`)."
    ),
    click.option("--no-switch", multiple=True, metavar="NAME", help="Turn off a switch of the preset."),
)

image_options = stack(
    click.option("--image-size", metavar="HxW", help="Size of images; by default from the model's input."),
    click.option("--image-mean", metavar="M[,M,M]", help="Subtracted after scaling, per channel."),
    click.option("--image-std", metavar="S[,S,S]", help="Divided by after the mean, per channel."),
    click.option(
        "--image-scale", type=float, metavar="F", help="Pixels 0..255 are multiplied by it first (1/255 = 0.00392157)."
    ),
    click.option("--image-order", type=click.Choice(["rgb", "bgr"]), help="Order of the colour channels."),
    click.option("--image-layout", type=click.Choice(["nchw", "nhwc"]), help="Layout of the model's input."),
    click.option(
        "--image-fit",
        type=click.Choice(["stretch", "letterbox", "center-crop"]),
        help="How images are brought to size.",
    ),
)


def sample_options(samples: int | None = None) -> Decorator[Any]:
    """How samples are taken from data; ``samples`` of them by default, None for all."""
    return stack(
        click.option(
            "--samples", type=click.IntRange(min=1), metavar="N", default=samples, show_default=samples is not None,
            help="Take the first N samples.",
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="Seed of random data."),
        image_options,
    )  # fmt: skip


data_options = stack(
    click.option(
        "--data", metavar="D",
        help="Samples: file.npz, a folder of .npz or of images, a text (.txt) of a language model, module:function, or "
        "random:N[:SEED].",
    ),
    sample_options(),
)  # fmt: skip

tokenizer_option = click.option(
    "--tokenizer", metavar="FILE|DIR",
    help="tokenizer.json for a text as --data, or a folder with one; by default beside the model.",
)  # fmt: skip

decoder_options = stack(
    tokenizer_option,
    click.option(
        "--kv-cache", type=click.Choice(["float", "int8", "uint8"]), default="float", show_default=True,
        help="Type of a decoder's cache: past and present are such integers, in one encoding a layer.",
    ),
    click.option(
        "--lm-head", type=click.Choice(["preset", "float", "int8"]), default="preset", show_default=True,
        help="The last projection: as the preset says, float, or with int8 weights, a scale per output channel.",
    ),
    click.option(
        "--bound-masks/--no-bound-masks", default=None,
        help="Attention masks of -1e9 hide by a bound that a grid can hold; by default of language models on a text.",
    ),
    click.option(
        "--integer-io/--float-io", default=False,
        help="Inputs and outputs that have an encoding are integers, not floats behind a pair.  [default: float-io]",
    ),
)  # fmt: skip

worker_options = stack(
    click.option(
        "--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
        help="Processes of this machine that share the work, of one thread each. The result is the same, byte for byte.",
    ),
    click.option(
        "--cluster", metavar="ADDRESS",
        help="Let the workers of a Dask cluster share the work: tcp://HOST:8786, or the scheduler's file.",
    ),
)  # fmt: skip

threads_option = click.option(
    "--threads", "--jobs", "jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
    help="Threads inside an operator. Equal N gives equal bytes; with another N figures may differ in the last bit.",
)  # fmt: skip

IMAGE_KEYS = ("image_size", "image_mean", "image_std", "image_scale", "image_order", "image_layout", "image_fit")


def image_settings(options: dict[str, Any]) -> ImageOptions | None:
    """Take the image options out of ``options``; None when none was given.

    Raises:
        UsageError: a size or a list of numbers cannot be read.
    """
    given = {key.removeprefix("image_"): options.pop(key) for key in IMAGE_KEYS}
    given = {key: value for key, value in given.items() if value is not None}
    if not given:
        return None
    from qdqtool.io.feeds.images import Fit, ImageOptions, Layout, Order

    read: dict[str, Callable[[Any], Any]] = {
        "size": _size,
        "mean": _numbers,
        "std": _numbers,
        "scale": float,
        "order": Order,
        "layout": Layout,
        "fit": Fit,
    }
    return ImageOptions(**{key: read[key](value) for key, value in given.items()})


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.lower().partition("x")
    if not (height.isdigit() and (width.isdigit() or not width)):
        raise click.UsageError(f"--image-size {text!r} is no size; write 224x224 (height x width) or 224")
    return int(height), int(width or height)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise click.UsageError(f"{text!r} is no list of numbers; write 0.485,0.456,0.406") from None


def load_model(path: str) -> ir.Model:
    """Load a model for a command."""
    from qdqtool.io.models.load import load

    return load(path)
