"""The verb `export_encodings`, which is called ``encodings export``."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Literal

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import metadata_of, option
from qdqtool.verbs.groups import MODEL, Findings, Path, Warns
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.encodings.exporting import Exported
    from qdqtool.io.models.working import ModelOrPath

#: Metadata of ``--format``.
FORMAT = metadata_of(
    "AIMET's versions, QNN's quantization_overrides, onnxruntime's TensorQuantOverrides.", required=True, before="hints"
)
Format = Literal["aimet-0.6.1", "aimet-1.0.0", "aimet-2.0.0", "aimet-2.1.0", "qnn", "ort"]


@dataclass(frozen=True, kw_only=True)
class Hints:
    """What becomes of what only qdqtool reads."""

    hints: bool = option(True, "What only qdqtool writes and reads: names and style of the pairs.")


@dataclass(frozen=True, kw_only=True)
class ExportEncodings(Hints, Findings, Warns, Verb["Exported"]):
    """Write the encodings of the QDQ model MODEL to a file, and its float model to another."""

    model: ModelOrPath = field(kw_only=False, metadata=MODEL)
    output: Path | None = field(
        default=None,
        kw_only=False,
        metadata=metadata_of(
            "Where to write the encodings.", value="FILE", use="file", flags=("-o", "--output"), required=True
        ),
    )
    format: Format = field(metadata=FORMAT)
    float_model: Path | None = option(
        None, "Also write the model without its pairs.", value="FILE", use="file", before="hints"
    )
    activations: Literal["as-is", "unsigned"] = option(
        "as-is",
        "unsigned counts signed activations as unsigned, the same grid, as QNN's converter wants them.",
        shown=True, before="hints",
    )  # fmt: skip
    overwrite: bool = option(False, "Replace files that exist.", before="allow_findings")
    no_provenance: bool = option(False, "Leave out the metadata entry of the float model.", before="allow_findings")
    copy_data: bool = option(
        False, "Write a data file of the float model's own, where weights would stay in that of MODEL.",
        before="allow_findings",
    )  # fmt: skip

    def run(self) -> Exported:
        """The document, and what it leaves out.

        Raises:
            UnsupportedError: something the format cannot say; the message names the tensor and the format that can.
            ModelError: an encoding that is not constant.
        """
        import onnx_ir as ir
        from qdq_passes.verification.rules import verify

        from qdqtool.encodings.exporting import export
        from qdqtool.io.files import artifacts
        from qdqtool.io.models.save import refuse_own_data, save
        from qdqtool.io.models.working import opened, provenance_of, refuse_errors, repair

        work, source = opened(self.model)
        repairs = repair(work, self.warn)
        if self.float_model is not None:
            refuse_own_data(work, self.float_model)
        known = verify(work, minimum="error")
        file = "MODEL" if isinstance(self.model, ir.Model) else self.model
        done = export(work, self.format, activations=self.activations, hints=self.hints, file=file)
        if self.float_model is not None:
            refuse_errors(work, known, allow_findings=self.allow_findings)
            ran = ",".join([*repairs, "remove-qdq{float-io=true}"])
            entry = None if self.no_provenance else provenance_of(ran, source)
            save(work, self.float_model, overwrite=self.overwrite, provenance=entry, copy_data=self.copy_data)
        if self.output is not None:
            artifacts.write_document(self.output, done.document, overwrite=self.overwrite)
        return done


export_encodings = function_of(ExportEncodings)
