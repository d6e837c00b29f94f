"""The public verbs: export, import and convert encodings, on files or in memory."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping

import onnx_ir as ir
from qdq_passes.qdq.look.pairs import qdq_pairs
from qdq_passes.verification.rules import verify

from qdqtool.calibrate.collect import collect
from qdqtool.calibrate.observer import Range
from qdqtool.encodings.alignment import align
from qdqtool.encodings.entries import Encodings
from qdqtool.encodings.exporting import Activations, Exported, export
from qdqtool.encodings.files import read_encodings, read_names, sha256_of, write_encodings
from qdqtool.encodings.fill_missing import BiasMode, MissingMode
from qdqtool.encodings.formats import write_document
from qdqtool.encodings.hints import Weights
from qdqtool.encodings.importing import Imported, put_in
from qdqtool.encodings.pair_extraction import extract_pairs
from qdqtool.encodings.tensors import place, values_by_name
from qdqtool.io.feeds.feeds import FeedSpec, open_feeds
from qdqtool.io.feeds.images import ImageOptions
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files import artifacts
from qdqtool.io.files.progress import StageProgress, Warn
from qdqtool.io.models.save import refuse_own_data, save
from qdqtool.io.models.working import ModelOrPath, opened, provenance_of, refuse_errors, repair

Path = str | os.PathLike[str]


def export_encodings(
    model: ModelOrPath,
    output: Path | None = None,
    *,
    format: str,
    float_model: Path | None = None,
    activations: Activations = "as-is",
    hints: bool = True,
    allow_findings: bool = False,
    overwrite: bool = False,
    no_provenance: bool = False,
    warn: Warn | None = None,
) -> Exported:
    """Write the encodings of a QDQ model to a file, and the model without its pairs to another.

    Args:
        model: path, or a model in memory (which stays as it is).
        output: the encodings file; None writes none.
        format: one of `qdqtool.encodings.formats.FORMATS`.
        float_model: where to write the float model; None writes none.
        activations: ``"unsigned"`` counts signed activations as unsigned, the same grid (QNN's converter wants that).
        hints: also write what only qdqtool reads, so that importing gives the same QDQ model.
        allow_findings: save although the model has errors that it came with.
        overwrite: replace existing files.
        no_provenance: leave out the metadata entry of the float model.
        warn: called with each warning.

    Raises:
        UnsupportedError: something the format cannot say; the message names the tensor and the format that can.
        ModelError: an encoding that is not constant.
    """
    work, source = opened(model)
    repairs = repair(work, warn)
    if float_model is not None:
        refuse_own_data(work, float_model)
    known = verify(work, minimum="error")
    done = export(work, format, activations=activations, hints=hints)
    if float_model is not None:
        refuse_errors(work, known, allow_findings=allow_findings)
        entry = None if no_provenance else provenance_of(",".join([*repairs, "remove-qdq{float-io=true}"]), source)
        save(work, float_model, overwrite=overwrite, provenance=entry)
    if output is not None:
        artifacts.write_document(output, done.document, overwrite=overwrite)
    return done


def import_encodings(
    model: ModelOrPath,
    encodings: Encodings | Path,
    output: Path | None = None,
    *,
    weights: Weights | None = None,
    missing: MissingMode = "float",
    bias: BiasMode = "auto",
    hints: bool = True,
    boundaries: bool | None = None,
    names_of: ModelOrPath | None = None,
    renames: Mapping[str, str] | Path | None = None,
    data: FeedSpec | None = None,
    method: str = "minmax",
    samples: int | None = None,
    seed: int = 0,
    image: ImageOptions | None = None,
    allow_findings: bool = False,
    overwrite: bool = False,
    no_provenance: bool = False,
    jobs: int = 1,
    progress: StageProgress | None = None,
    warn: Warn | None = None,
) -> Imported:
    """Put the encodings of a file into a float model.

    Args:
        model: path, or a model in memory (which stays as it is).
        encodings: file of any known format, or what was read from one.
        output: where to write the QDQ model; None leaves it in memory.
        weights: ``"qdq"`` (pair on the float weight) or ``"dq"`` (stored integers); by default as the model was that the file
            was made of, else ``"dq"``.
        missing: what becomes of tensors that operators want quantized and that the file leaves out: ``"float"``, ``"error"``,
            ``"propagate"`` (through data movement) or ``"calibrate"`` (on ``data``, by the rule that the file follows).
        bias: ``"int32"`` gives biases that the file leaves out the scale s_x·s_w; ``"auto"`` does so for onnxruntime's overrides.
        hints: honour what qdqtool wrote beside the encodings.
        boundaries: insert the converting pair where operators of one width read tensors of another; by default unless a hint says
            that the model the file was made of had none there.
        names_of: the float model that the file was made for, where names changed since: tensors are matched by structure.
        renames: old name → new name, or a JSON file of that.
        data: samples, in any form of ``--data``.
        method: calibration method.
        samples: take the first so many.
        seed: seed of random data.
        image: how images become inputs.
        allow_findings: save although the model has errors that it came with.
        overwrite: replace an existing ``output``.
        no_provenance: leave out the metadata entry.
        jobs: threads inside an operator.
        progress: called with (stage, done, total).
        warn: called with each warning.

    Raises:
        QdqError: bad model, file or options; see each class's exit code.
    """
    work, source = opened(model)
    repairs = repair(work, warn)
    if output is not None:
        refuse_own_data(work, output)
    known = verify(work, minimum="error")
    file = encodings if isinstance(encodings, Encodings) else read_encodings(encodings)
    given = renames if isinstance(renames, Mapping) or renames is None else read_names(renames)
    reference = None if names_of is None else _float(opened(names_of)[0])
    digest = "" if output is None else sha256_of(file, values_by_name(work))
    alignment = align(file.by_name, work, reference=reference, renames=given)

    def calibrate(names: list[str]) -> Mapping[str, Range]:
        assert data is not None
        feeds = open_feeds(data, input_specs(work), samples=samples, seed=seed, image=image)
        ticks = None if progress is None else functools.partial(progress, "calibrating")
        found = collect(work, feeds, method, tensors=names, threads=jobs, progress=ticks)
        for text in feeds.warnings:
            (warn or _ignore)(text)
        return found.bound

    done = put_in(
        work, file, alignment, weights=weights, missing=missing, bias=bias, hints=hints, boundaries=boundaries,
        calibrate=None if data is None else calibrate,
    )  # fmt: skip
    refuse_errors(work, known, allow_findings=allow_findings)
    if output is not None:
        entry = (
            None if no_provenance else provenance_of(",".join([*repairs, done.pipeline]), source, {"encodings": digest})
        )
        save(work, output, overwrite=overwrite, provenance=entry)
    return done


def convert_encodings(
    encodings: Encodings | Path,
    output: Path | None = None,
    *,
    format: str,
    model: ModelOrPath | None = None,
    hints: bool = True,
    overwrite: bool = False,
) -> Encodings:
    """Rewrite an encodings file in another format; fields that are not known stay, where the format has a place for them.

    Args:
        encodings: file of any known format, or what was read from one.
        output: the new file; None writes none.
        format: one of `qdqtool.encodings.formats.FORMATS`.
        model: the model (with or without pairs) that the encodings are for; it tells the axis that 0.6.1 and 1.0.0 leave out.
        hints: keep what only qdqtool reads.
        overwrite: replace an existing ``output``.

    Raises:
        UnsupportedError: something the format cannot say; the message names the tensor and the format that can.
        UsageError: the model is needed and not given.
    """
    file = encodings if isinstance(encodings, Encodings) else read_encodings(encodings)
    values = None if model is None else values_by_name(_float(opened(model)[0]))
    if values is not None:
        entries = [
            dataclasses.replace(entry, holds=place(entry.holds, values[entry.name])) if entry.name in values else entry
            for entry in file.entries
        ]
        file = dataclasses.replace(file, entries=tuple(entries))
    if not hints:
        file = dataclasses.replace(file, hints={})
    if output is None:
        write_document(file, format, values)
    else:
        write_encodings(output, file, format, values, overwrite=overwrite)
    return file if file.format == format else _as_format(file, format)


def _as_format(file: Encodings, format: str) -> Encodings:
    """``file`` as if it had been read in ``format``: its entries no longer stand as they stood."""
    entries = tuple(dataclasses.replace(entry, raw=None) for entry in file.entries)
    return dataclasses.replace(file, format=format, entries=entries)


def _ignore(text: str) -> None:
    """Nobody listens to warnings."""


def _float(model: ir.Model) -> ir.Model:
    """``model`` without its pairs: names of encodings are those of the float model."""
    if qdq_pairs(model):
        extract_pairs(model)
    return model
