"""The main job on the bundled sample: quantize a CNN that reads digits, measure it, run it on the simulated NPU."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.options import command
from qdqtool.cli.render import Out, megabytes, say, table
from qdqtool.verbs.npu.simulate import Simulate
from qdqtool.verbs.quantize import Quantize

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from qdqtool.io.files.progress import StageProgress

#: What the int8 model is made for, and how many images the slow reference checks it on.
TARGET, CHECKED = "vitis_xint8", 32


@command(uses={"output": "file", "folder_out": "into"})
@click.option(
    "-o", "--output", default="digits_int8.onnx", show_default=True, metavar="FILE", help="Where the int8 model goes."
)
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@click.option(
    "--files", "folder_out", metavar="DIR", help="Also put the float model and its data into DIR, to play with."
)
def demo(out: Out, output: str, overwrite: bool, folder_out: str | None) -> None:
    """The main job on the bundled sample: quantize a CNN that reads digits, measure it, run it on the simulated NPU."""
    from importlib.resources import as_file, files

    import numpy as np
    import onnx.checker

    from qdqtool.runtime.session import load_check, open_session

    folder = files("qdqtool") / "_demo"
    with (
        as_file(folder / "digits.onnx") as source,
        as_file(folder / "calib.npz") as calib,
        as_file(folder / "test.npz") as test,
    ):
        if folder_out is not None:
            _copy([source, calib, test], folder_out, overwrite)
        with out.progress("quantizing") as tick:
            done = Quantize(source, output, data=str(calib), overwrite=overwrite, progress=tick).run()
        onnx.checker.check_model(output, full_check=True)
        refusal = load_check(output)
        with np.load(test) as held_out:
            images, labels = held_out["input"], held_out["labels"]
        accuracy = {}
        for name, path in (("fp32", str(source)), ("int8", output)):
            session = open_session(path)  # as written: the optimizer's int8 kernels saturate on some processors
            logits = session.run({session.input_names[0]: images})[session.output_names[0]]
            accuracy[name] = float((logits.argmax(axis=1) == labels).mean())
        with out.progress("simulating") as tick:
            npu = _on_npu(output, images, labels, tick)
        sizes = {"fp32": source.stat().st_size}
    payload: dict[str, Any] = {
        **done.to_json(),
        "output": output,
        "held_out_images": len(labels),
        "accuracy": accuracy,
        "onnx_checker": "accepted",
        "onnxruntime": refusal or "loads",
        "npu": npu,
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
        say(_npu_words(npu, len(labels)))
        say(f"seconds: {payload['seconds']:.1f}")
        say(f"onnx.checker {payload['onnx_checker']}, onnxruntime {payload['onnxruntime']}: {output}")
        say(f"look at it: qdqtool view {output}")

    out.result(payload, render)


def _on_npu(
    path: str, images: npt.NDArray[np.float32], labels: npt.NDArray[np.integer], tick: StageProgress
) -> dict[str, Any]:
    """Run the int8 model on the simulated NPU: accuracy on all images, agreement with the reference on some."""
    from qdq_passes.pipeline.pipeline import run_pipeline

    from qdqtool.io.models.load import load
    from qdqtool.npu.devices import simulated_npu

    model = load(path)
    run_pipeline(model, 'fix-shapes{dims=["N=1"]}')  # the target takes one image at a time
    session = simulated_npu(model, TARGET, None).session
    found = Simulate(model, {"input": images}, target=TARGET, samples=CHECKED, progress=tick).run()
    (output,) = found.outputs
    accuracy = None
    if session is not None:
        name = session.input_names[0]
        logits = [session.run({name: image[None]})[output.name] for image in images]
        accuracy = sum(int(row.argmax()) == label for row, label in zip(logits, labels, strict=True)) / len(labels)
    placement, estimate = found.placement, found.estimate
    assert placement is not None
    assert estimate is not None
    return {
        "target": found.target,
        "device": found.device,
        "accuracy": accuracy,
        "npu_nodes": placement.npu_nodes,
        "nodes": len(placement.nodes),
        "partitions": placement.partitions,
        "compared_with": found.base,
        "checked_images": found.samples,
        "max_lsb": output.max_lsb,
        "exact": output.exact,
        "estimated_us": estimate.us,
        "wall_s": found.wall_s,
        "notes": list(found.notes),
    }


def _npu_words(npu: dict[str, Any], images: int) -> str:
    if npu["accuracy"] is None:
        return f"on the simulated NPU: not run; {'; '.join(npu['notes'])}"
    return (
        f"on the simulated NPU ({npu['target']}): {npu['accuracy']:.2%} of {images} images, {npu['npu_nodes']} of {npu['nodes']}"
        f" operators on the NPU, max LSB {npu['max_lsb']} against the reference on {npu['checked_images']} images"
    )


def _copy(paths: list[Path], folder: str, overwrite: bool) -> None:
    """Copy the bundled files into ``folder``."""
    from qdqtool.io.files.atomic import write_whole

    for path in paths:
        write_whole(os.path.join(folder, path.name), path.read_bytes(), overwrite=overwrite)


def _size(path: str) -> str:
    return megabytes(os.path.getsize(path))


command = demo
