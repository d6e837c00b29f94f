"""The main job on the bundled sample: quantize a CNN trained on handwritten digits, measure accuracy on held-out images."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.options import command
from qdqtool.cli.render import Out, megabytes, say, table

if TYPE_CHECKING:
    from pathlib import Path


@command()
@click.option(
    "-o", "--output", default="digits_int8.onnx", show_default=True, metavar="FILE", help="Where the int8 model goes."
)
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@click.option(
    "--files", "folder_out", metavar="DIR", help="Also put the float model and its data into DIR, to play with."
)
def demo(out: Out, output: str, overwrite: bool, folder_out: str | None) -> None:
    """The main job on the bundled sample: quantize a CNN trained on handwritten digits, measure accuracy on held-out images."""
    from importlib.resources import as_file, files

    import numpy as np
    import onnx.checker

    from qdqtool import api
    from qdqtool.cli.saving import refuse_output
    from qdqtool.runtime.session import load_check, open_session

    folder = files("qdqtool") / "_demo"
    with (
        as_file(folder / "digits.onnx") as source,
        as_file(folder / "calib.npz") as calib,
        as_file(folder / "test.npz") as test,
    ):
        refuse_output(output, overwrite, str(source))
        if folder_out is not None:
            _copy([source, calib, test], folder_out, overwrite)
        with out.progress("quantizing") as tick:
            done = api.quantize(source, output, data=str(calib), overwrite=overwrite, progress=tick)
        onnx.checker.check_model(output, full_check=True)
        refusal = load_check(output)
        with np.load(test) as held_out:
            images, labels = held_out["input"], held_out["labels"]
        accuracy = {}
        for name, path in (("fp32", str(source)), ("int8", output)):
            session = open_session(path)  # as written: the optimizer's int8 kernels saturate on some processors
            logits = session.run({session.input_names[0]: images})[session.output_names[0]]
            accuracy[name] = float((logits.argmax(axis=1) == labels).mean())
        sizes = {"fp32": source.stat().st_size}
    payload: dict[str, Any] = {
        **done.to_json(),
        "output": output,
        "held_out_images": len(labels),
        "accuracy": accuracy,
        "onnx_checker": "accepted",
        "onnxruntime": refusal or "loads",
    }

    def render() -> None:
        points = 100 * (accuracy["int8"] - accuracy["fp32"])
        table(
            ("model", "accuracy", "images", "QDQ pairs", "size"),
            [
                ("digits, fp32", f"{accuracy['fp32']:.2%}", len(labels), 0, megabytes(sizes["fp32"])),
                ("digits, int8 power-of-two", f"{accuracy['int8']:.2%}", len(labels), payload["pairs"], _size(output)),
            ],
        )
        say()
        say(f"int8 against fp32: {points:+.2f} points; SQNR of the logits {payload['sqnr_db']:.1f} dB")
        say(f"seconds: {payload['seconds']:.1f}")
        say(f"onnx.checker {payload['onnx_checker']}, onnxruntime {payload['onnxruntime']}: {output}")
        say(f"look at it: qdqtool view {output}")

    out.result(payload, render)


def _copy(paths: list[Path], folder: str, overwrite: bool) -> None:
    """Copy the bundled files into ``folder``."""
    from qdqtool.io.atomic import write_whole

    for path in paths:
        write_whole(os.path.join(folder, path.name), path.read_bytes(), overwrite=overwrite)


def _size(path: str) -> str:
    return megabytes(os.path.getsize(path))


command = demo
