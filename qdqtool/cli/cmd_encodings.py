"""Exchange encodings with AIMET, QNN and onnxruntime: export, import, convert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.main import SubCommands
from qdqtool.cli.options import command, data_options, image_settings, model_argument, output_options, threads_option
from qdqtool.cli.render import Out, plural, say, table

if TYPE_CHECKING:
    from qdqtool.encodings.exporting import Exported
    from qdqtool.encodings.importing import Imported

#: Spelled here so that ``--help`` imports nothing; a test holds them to `qdqtool.encodings.formats.FORMATS`.
FORMATS = ("aimet-0.6.1", "aimet-1.0.0", "aimet-2.0.0", "aimet-2.1.0", "qnn", "ort")
#: Tensors that a table shows; ``-v`` shows all.
SHOWN = 12

format_option = click.option(
    "--format", "format_name", required=True, type=click.Choice(FORMATS),
    help="AIMET's versions, QNN's quantization_overrides, onnxruntime's TensorQuantOverrides.",
)  # fmt: skip
hints_option = click.option(
    "--hints/--no-hints", default=True, help="What only qdqtool writes and reads: names and style of the pairs."
)


@click.group(name="encodings", cls=SubCommands)
def encodings() -> None:
    """Exchange encodings with AIMET, QNN and onnxruntime: export, import, convert."""


@command(encodings, name="export")
@model_argument
@click.option("-o", "--output", metavar="FILE", required=True, help="Where to write the encodings.")
@format_option
@click.option("--float-model", metavar="FILE", help="Also write the model without its pairs.")
@click.option(
    "--activations",
    type=click.Choice(["as-is", "unsigned"]),
    default="as-is",
    show_default=True,
    help="unsigned counts signed activations as unsigned, the same grid, as QNN's converter wants them.",
)
@hints_option
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@click.option("--no-provenance", is_flag=True, help="Leave out the metadata entry of the float model.")
@click.option("--allow-findings", is_flag=True, help="Save although the model has errors that it came with.")
def export(
    out: Out, model: str, output: str, format_name: str, float_model: str | None, overwrite: bool, **options: Any
) -> None:  # fmt: skip
    """Write the encodings of the QDQ model MODEL to a file, and its float model to another."""
    from qdqtool import api
    from qdqtool.cli.saving import refuse_output

    refuse_output(output, overwrite, model)
    if float_model is not None:
        refuse_output(float_model, overwrite, model, output)
    with out.progress("exporting"):
        done = api.export_encodings(
            model, output, format=format_name, float_model=float_model, overwrite=overwrite, warn=out.warn, **options
        )
    for note in done.notes:
        out.warn(note)
    for node, reason in done.left:
        out.warn(f"{node} stays in the float model: {reason}")
    files = [output] if float_model is None else [output, float_model]
    out.result({**done.to_json(), "output": output, "float_model": float_model}, lambda: _show_export(done, files))


def _show_export(done: Exported, files: list[str]) -> None:
    found = done.to_json()
    say(
        f"{plural(found['tensors'], 'encoding')}: {found['activations']} of activations, {found['params']} of parameters"
    )
    if done.derived:
        say(f"{plural(len(done.derived), 'int32 bias')} left to onnxruntime, which makes them of the other scales")
    say(f"wrote {' and '.join(files)}")


@command(encodings, name="import")
@model_argument
@click.option(
    "--encodings", "file", metavar="FILE", required=True, help="The encodings; the format is found by content."
)
@output_options
@click.option("--weights", type=click.Choice(["qdq", "dq"]), help="Pair on the float weight, or stored integers.")
@click.option(
    "--missing",
    type=click.Choice(["error", "propagate", "float", "calibrate"]),
    default="float",
    show_default=True,
    help="What becomes of tensors that operators want quantized and that FILE leaves out.",
)
@click.option(
    "--bias",
    type=click.Choice(["auto", "file", "int32"]),
    default="auto",
    show_default=True,
    help="int32: biases that FILE leaves out get s_x·s_w; auto: for the format ort, whose reader makes them so.",
)
@click.option(
    "--names-of", metavar="OLD", help="The float model FILE was made for: names that changed are found by structure."
)
@click.option("--map", "renames", metavar="FILE", help='JSON {"old name": "new name", …}.')
@click.option(
    "--boundaries/--no-boundaries",
    default=None,
    help="Where tensors of one width meet operators of another, insert the converting pair; by default, unless the model FILE "
    "was made of had none there.",
)
@click.option("--report", metavar="FILE", help="Write the report on coverage and alignment, as JSON.")
@hints_option
@click.option("--method", default="minmax", show_default=True, metavar="NAME", help="Calibration method.")
@click.option("--allow-findings", is_flag=True, help="Save although the model has errors that it came with.")
@data_options
@threads_option
def import_(
    out: Out, model: str, file: str, output: str, overwrite: bool, report: str | None, **options: Any
) -> None:  # fmt: skip
    """Put the encodings of FILE into the float model MODEL."""
    from qdqtool import api
    from qdqtool.cli.saving import refuse_output
    from qdqtool.io.files.artifacts import write_document

    inputs = (model, file, options["names_of"], options["renames"], options["data"])
    refuse_output(output, overwrite, *inputs)
    if report is not None:
        refuse_output(report, overwrite, *inputs, output)
    if options["data"] is not None and options["missing"] != "calibrate":
        out.warn("--data is not used: it goes with --missing calibrate")
    options["image"] = image_settings(options)
    with out.progress("importing") as tick:
        done = api.import_encodings(model, file, output, overwrite=overwrite, progress=tick, warn=out.warn, **options)
    payload = {**done.to_json(), "output": output}
    if report is not None:
        write_document(report, payload, overwrite=overwrite)
    _warn(out, done)
    out.result(payload, lambda: _show_import(out, done, output))


def _warn(out: Out, done: Imported) -> None:
    for note in done.notes:
        out.warn(note)
    for name, match in done.alignment.matches.items():
        if match.tensor is None:
            out.warn(f"{name} of the file is not used: {match.reason}")
    for name, reason in done.declined:
        out.warn(f"{name} stays float: {reason}")


def _show_import(out: Out, done: Imported, output: str) -> None:
    found = done.alignment.to_json()
    counts = {
        "names as they are": found["exact"],
        "names found by structure": len(found["by_structure"]),
        "names by the map": len(found["by_map"]),
        "names not used": len(found["unmatched"]),
        "left float by the file": len(done.floats),
        "filled in": len(done.filled),
        "without an encoding": len(done.missing),
    }
    rows = [("encoded tensors", str(len(done.encoded))), *((word, str(n)) for word, n in counts.items() if n)]
    table(("", ""), rows)
    changed = [*found["by_structure"], *found["by_map"]]
    _section(out, ("name in the file", "tensor"), [(c["name"], c["tensor"]) for c in changed])
    _section(out, ("filled in", "from"), list(done.filled.items()))
    missing = [(one.value.name or "", one.role, ", ".join(one.nodes[:3])) for one in done.missing]
    _section(out, ("without an encoding", "role", "wanted by"), missing)
    if out.verbose:
        _section(out, ("inside a fused layer",), [(name,) for name in done.fused])
    say(f"wrote {output}")


def _section(out: Out, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    say()
    shown = rows if out.verbose else rows[:SHOWN]
    table(columns, shown)
    if len(rows) > len(shown):
        say(f"and {len(rows) - len(shown)} more (-v, or --report FILE)")


@command(encodings, name="convert")
@click.argument("file", metavar="FILE")
@click.option("-o", "--output", metavar="FILE", required=True, help="Where to write the encodings.")
@format_option
@click.option("--model", metavar="M", help="The model they are for; it tells the axis that 0.6.1 and 1.0.0 leave out.")
@hints_option
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
def convert(
    out: Out, file: str, output: str, format_name: str, model: str | None, hints: bool, overwrite: bool
) -> None:  # fmt: skip
    """Rewrite the encodings in FILE in another format."""
    from qdqtool import api
    from qdqtool.cli.saving import refuse_output
    from qdqtool.encodings.files import read_encodings

    refuse_output(output, overwrite, file, model)
    read = read_encodings(file)
    api.convert_encodings(read, output, format=format_name, model=model, hints=hints, overwrite=overwrite)
    if format_name == "ort" and read.extra:
        out.warn(f"{', '.join(sorted(read.extra))} of {file} have no place in ort")
    payload = {"input_format": read.format, "format": format_name, "tensors": len(read.entries), "output": output}
    out.result(
        payload, lambda: say(f"{plural(len(read.entries), 'encoding')}, {read.format} → {format_name}: wrote {output}")
    )


command = encodings
