"""Exchange encodings with AIMET, QNN and onnxruntime: export, import, convert."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from qdq_passes._lazy_dataclass import dataclass

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.main import SubCommands
from qdqtool.cli.options import text
from qdqtool.cli.render import Out, plural, say, table
from qdqtool.options import option
from qdqtool.verbs.encodings.convert_encodings import ConvertEncodings
from qdqtool.verbs.encodings.export_encodings import ExportEncodings
from qdqtool.verbs.encodings.import_encodings import ImportEncodings

if TYPE_CHECKING:
    from qdqtool.encodings.exporting import Exported
    from qdqtool.encodings.importing import Imported

#: Tensors that a table shows; ``-v`` shows all.
SHOWN = 12


@click.group(name="encodings", cls=SubCommands)
def encodings() -> None:
    """Exchange encodings with AIMET, QNN and onnxruntime: export, import, convert."""


@command_of(ExportEncodings, group=encodings, name="export")
def export(out: Out, asked: ExportEncodings) -> None:
    output, float_model = text(asked.output), asked.float_model
    done = ran(out, asked, "exporting")
    for note in done.notes:
        out.warn(note)
    for node, reason in done.left:
        out.warn(f"{node} stays in the float model: {reason}")
    payload = {**done.to_json(), "output": output, "float_model": float_model}
    out.result(payload, lambda: _show_export(done, text(asked.model), output, float_model))


def _show_export(done: Exported, model: str, output: str, float_model: str | os.PathLike[str] | None) -> None:
    from qdqtool.cli.tables.saving import files_of

    found = done.to_json()
    say(
        f"{plural(found['tensors'], 'encoding')}: {found['activations']} of activations, {found['params']} of parameters"
    )
    if done.derived:
        say(f"{plural(len(done.derived), 'int32 bias')} left to onnxruntime, which makes them of the other scales")
    say(f"wrote {output}" + (f" and {files_of(text(float_model), model)}" if float_model is not None else ""))


@dataclass(frozen=True, kw_only=True)
class ImportCommand(ImportEncodings):
    """`ImportEncodings` as a command."""

    report: str | None = option(
        None, "Write the report on coverage and alignment, as JSON.", value="FILE", use="file", before="hints"
    )


@command_of(ImportCommand, group=encodings, name="import")
def import_(out: Out, asked: ImportCommand) -> None:
    from qdqtool.io.files.artifacts import write_document

    output = text(asked.output)
    if asked.data is not None and asked.missing != "calibrate":
        out.warn("--data is not used: it goes with --missing calibrate")
    done = ran(out, asked, "importing")
    _warn(out, done)
    payload = {**done.to_json(), "output": output, "warnings": list(out.warned)}
    if asked.report is not None:
        write_document(asked.report, payload, overwrite=asked.overwrite)
    out.result(payload, lambda: _show_import(out, done, text(asked.model), output))


def _warn(out: Out, done: Imported) -> None:
    for note in done.notes:
        out.warn(note)
    for name, match in done.alignment.matches.items():
        if match.tensor is None:
            out.warn(f"{name} of the file is not used: {match.reason}")
    for name, reason in done.declined:
        out.warn(f"{name} stays float: {reason}")


def _show_import(out: Out, done: Imported, model: str, output: str) -> None:
    from qdqtool.cli.tables.saving import files_of

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
    say(f"wrote {files_of(output, model)}")


def _section(out: Out, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    say()
    shown = rows if out.verbose else rows[:SHOWN]
    table(columns, shown)
    if len(rows) > len(shown):
        say(f"and {len(rows) - len(shown)} more (-v, or --report FILE)")


@command_of(ConvertEncodings, group=encodings, name="convert")
def convert(out: Out, asked: ConvertEncodings) -> None:
    from qdqtool.encodings.files import read_encodings

    file, output = text(asked.encodings), text(asked.output)
    read = read_encodings(file)
    replace(asked, encodings=read).run()
    if asked.format == "ort" and read.extra:
        out.warn(f"{', '.join(sorted(read.extra))} of {file} have no place in ort")
    payload = {"input_format": read.format, "format": asked.format, "tensors": len(read.entries), "output": output}
    what = f"{plural(len(read.entries), 'encoding')}, {read.format} → {asked.format}"
    out.result(payload, lambda: say(f"{what}: wrote {output}"))


command = encodings
