"""The verb `import_encodings`, which is called ``encodings import``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar, Literal

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import metadata_of, option
from qdqtool.verbs.encodings.export_encodings import Hints
from qdqtool.verbs.groups import DATA, MODEL, OUTPUT_NEEDED, Findings, Path, Reports, Samples, Saving, Threaded
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from qdqtool.calibrate.observer import Range
    from qdqtool.encodings.entries import Encodings
    from qdqtool.encodings.importing import Imported
    from qdqtool.io.feeds.feeds import FeedSpec
    from qdqtool.io.models.working import ModelOrPath


@dataclass(frozen=True, kw_only=True)
class ImportEncodings(Saving, Hints, Findings, Samples, Threaded, Reports, Verb["Imported"]):
    """Put the encodings of FILE into the float model MODEL."""

    leads: ClassVar[tuple[type, ...]] = (Saving,)

    model: ModelOrPath = field(kw_only=False, metadata=MODEL)
    encodings: Encodings | Path = field(
        kw_only=False,
        metadata=metadata_of(
            "The encodings; the format is found by content.", value="FILE", use="read", required=True, before="output"
        ),
    )
    output: Path | None = field(default=None, kw_only=False, metadata=OUTPUT_NEEDED)
    weights: Literal["qdq", "dq"] | None = option(None, "Pair on the float weight, or stored integers.")
    missing: Literal["error", "propagate", "float", "calibrate"] = option(
        "float", "What becomes of tensors that operators want quantized and that FILE leaves out.", shown=True
    )
    bias: Literal["auto", "file", "int32"] = option(
        "auto",
        "int32: biases that FILE leaves out get s_x·s_w; auto: for the format ort, whose reader makes them so.",
        shown=True,
    )
    names_of: ModelOrPath | None = option(
        None, "The float model FILE was made for: names that changed are found by structure.", value="OLD", use="read"
    )
    renames: Mapping[str, str] | Path | None = option(
        None, 'JSON {"old name": "new name", …}.', value="FILE", use="read", flags=("--map",)
    )
    boundaries: bool | None = option(
        None,
        "Where tensors of one width meet operators of another, insert the converting pair; by default, unless the model FILE "
        "was made of had none there.",
    )
    method: str = option("minmax", "Calibration method.", value="NAME", shown=True, before="allow_findings")
    data: FeedSpec | None = field(default=None, metadata=DATA)

    def run(self) -> Imported:
        """The model, and what became of each encoding.

        Raises:
            QdqError: bad model, file or options; see each class's exit code.
        """
        from qdq_passes.verification.rules import verify

        from qdqtool.encodings.alignment import align
        from qdqtool.encodings.entries import Encodings
        from qdqtool.encodings.files import read_encodings, read_names, sha256_of
        from qdqtool.encodings.importing import put_in
        from qdqtool.encodings.pair_extraction import as_float
        from qdqtool.encodings.tensors import values_by_name
        from qdqtool.io.models.save import refuse_own_data, save
        from qdqtool.io.models.working import opened, provenance_of, refuse_errors, repair

        work, source = opened(self.model)
        repairs = repair(work, self.warn)
        if self.output is not None:
            refuse_own_data(work, self.output)
        known = verify(work, minimum="error")
        file = self.encodings if isinstance(self.encodings, Encodings) else read_encodings(self.encodings)
        given = self.renames if isinstance(self.renames, Mapping) or self.renames is None else read_names(self.renames)
        reference = None if self.names_of is None else as_float(opened(self.names_of)[0])
        digest = "" if self.output is None else sha256_of(file, values_by_name(work))
        done = put_in(
            work, file, align(file.by_name, work, reference=reference, renames=given), weights=self.weights,
            missing=self.missing, bias=self.bias, hints=self.hints, boundaries=self.boundaries,
            calibrate=None if self.data is None else lambda names: self._ranges(work, names),
        )  # fmt: skip
        refuse_errors(work, known, allow_findings=self.allow_findings)
        if self.output is not None:
            ran = ",".join([*repairs, done.pipeline])
            entry = None if self.no_provenance else provenance_of(ran, source, {"encodings": digest})
            save(work, self.output, overwrite=self.overwrite, provenance=entry, copy_data=self.copy_data)
        return done

    def _ranges(self, model: ir.Model, names: list[str]) -> Mapping[str, Range]:
        """Ranges of the tensors that the file leaves out."""
        from qdqtool.calibrate.collect import collect
        from qdqtool.io.feeds.feeds import open_feeds
        from qdqtool.io.feeds.spec import input_specs
        from qdqtool.io.files.progress import pass_on, stage

        assert self.data is not None
        feeds = open_feeds(self.data, input_specs(model), samples=self.samples, seed=self.seed, image=self.image)
        ticks = stage(self.progress, "calibrating")
        found = collect(model, feeds, self.method, tensors=names, threads=self.jobs, progress=ticks)
        pass_on(feeds.warnings, self.warn)
        return found.bound


import_encodings = function_of(ImportEncodings)
