"""Import: a float model and an encodings file → a QDQ model, with a report of every tensor and every name that went astray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, UnsupportedError, UsageError
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.operators.qdq_ops import is_dequantize
from qdq_passes.graph.uses import dtype_of
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.edit.checks import check_encoding
from qdq_passes.qdq.edit.pairs import insert_pairs
from qdq_passes.qdq.look.pairs import qdq_pairs

from qdqtool.encodings.alignment import Alignment
from qdqtool.encodings.boundaries import convert_boundaries, has_unconverted
from qdqtool.encodings.entries import Convert, Encodings
from qdqtool.encodings.fill_missing import BiasMode, Calibrate, MissingMode, fill_missing
from qdqtool.encodings.hints import Weights
from qdqtool.encodings.import_plan import ImportPlan, Missing, plan_import
from qdqtool.encodings.lpbq import remember
from qdqtool.encodings.reading import made_of
from qdqtool.encodings.restoring import Builder
from qdqtool.encodings.tensors import values_by_name
from qdqtool.io.files.progress import Warned


@dataclass(frozen=True, kw_only=True)
class Imported(Warned):
    """What `put_in` did.

    Args:
        model: the QDQ model (the one given, edited in place).
        format: format of the file.
        alignment: which tensor each name of the file meant.
        encoded: tensors that have pairs now.
        missing: tensors that have none although operators want them to.
        fused: those inside a layer with its activation, where no encoding belongs.
        floats: tensors that the file leaves float.
        filled: tensor → where its encoding came from, for those that the file has not.
        declined: (tensor, reason) of those that the file has and that stay float.
        notes: what else is odd.
        pipeline: text of the passes that ran.
    """

    model: ir.Model
    format: str
    alignment: Alignment
    encoded: tuple[str, ...]
    missing: tuple[Missing, ...]
    fused: tuple[str, ...]
    floats: tuple[str, ...]
    filled: Mapping[str, str]
    declined: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    pipeline: str

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; what the command prints, and its report."""
        return {
            "format": self.format,
            "encoded": len(self.encoded),
            "alignment": self.alignment.to_json(),
            "missing": [one.to_json() for one in self.missing],
            "fused": list(self.fused),
            "float": list(self.floats),
            "filled": [{"tensor": name, "from": source} for name, source in self.filled.items()],
            "declined": [{"tensor": name, "reason": reason} for name, reason in self.declined],
            "notes": list(self.notes),
        }


def put_in(
    model: ir.Model,
    file: Encodings,
    alignment: Alignment,
    *,
    weights: Weights | None = None,
    missing: MissingMode = "float",
    bias: BiasMode = "auto",
    hints: bool = True,
    boundaries: bool | None = None,
    calibrate: Calibrate | None = None,
) -> Imported:
    """Put the encodings of ``file`` into the float ``model``, in place.

    Args:
        model: a float model.
        file: the encodings.
        alignment: which tensor each name means.
        weights: pair on the float weight, or stored integers; by default as the file was made, else stored integers.
        missing: what becomes of tensors that operators want quantized and that the file leaves out.
        bias: ``int32`` gives biases that the file leaves out s_x·s_w; ``auto`` does so for formats that leave this to the reader.
        hints: honour what qdqtool wrote into the file beside the encodings.
        boundaries: insert the converting pair where operators of one width read tensors of another; by default unless a hint says
            that the model the file was made of had none there.
        calibrate: gives ranges for ``missing="calibrate"``.

    Raises:
        UsageError: no name of the file is in the model; ``missing="error"`` and there are some; calibration without data.
        UnsupportedError: an encoding that the model's opset cannot hold, or whose axis cannot be told.
    """
    inferred = _infer_types(model, alignment)
    job = plan_import(model, file, alignment, weights=weights, use_hints=hints)
    if not job.chosen and not job.floats and not job.wishes:
        if qdq_pairs(model):
            raise UsageError(
                "the model is quantized already",
                where=model.graph.name,
                hint="take its pairs out first: qdq remove --all",
            )
        names = ", ".join(list(file.by_name)[:3])
        raise UsageError(
            f"none of the {len(file.entries)} names in the file is a tensor to encode (first are {names})",
            hint="give --names-of, the model that the file was made for, or --map",
        )
    fill_missing(job, missing, bias, calibrate)
    left = job.missing()
    encoded = tuple(value.name or "" for value in job.chosen)
    floats = tuple(value.name or "" for value in job.floats)
    pipeline = _insert(job)
    wanted = not (hints and has_unconverted(file)) if boundaries is None else boundaries
    if wanted and convert_boundaries(job):
        pipeline += ",convert-boundaries"
    return Imported(
        model=model,
        format=file.format,
        alignment=alignment,
        encoded=encoded,
        missing=tuple(one for one in left if not one.fused),
        fused=tuple(one.value.name or "" for one in left if one.fused),
        floats=floats,
        filled=job.filled,
        declined=tuple(job.declined),
        notes=tuple(job.notes),
        pipeline=inferred + pipeline,
    )


def _infer_types(model: ir.Model, alignment: Alignment) -> str:
    """Infer types and shapes where a tensor to encode has none; returns the text of the pass that did."""
    values = values_by_name(model)
    if all(match.tensor is None or dtype_of(values[match.tensor]) is not None for match in alignment.matches.values()):
        return ""
    try:
        run_pipeline(model, "infer-shapes")
    except ModelError:  # onnx gives up on this graph: each such tensor is declined with its reason
        return ""
    return "infer-shapes,"


def _insert(job: ImportPlan) -> str:
    """Rebuild what hints tell, run the passes for the rest; returns the text of the passes."""
    builder = Builder(job.model, job.alignment.rename)
    readers = {value: next(iter(value.uses())) for value in job.lpbq if value.uses()}
    _share(job)
    for value, hint in job.hints.items():
        second = job.seconds.get(value)
        both = made_of(second.holds, value) if second is not None else None
        builder.build(value, job.chosen[value], both, hint)
    plain = {value: encoding for value, encoding in job.chosen.items() if value not in job.hints}
    names = {value: value.name or "" for value in plain}
    weights = "{weights=dq}" if job.style == "dq" else ""
    text = f"apply-encodings{{encodings=@encodings}},insert-qdq{weights}"
    given = {names[value]: encoding for value, encoding in plain.items()}
    report = run_pipeline(job.model, text, inputs={"encodings": given})
    job.declined += [(c.where, c.because) for part in report.passes for c in part.changes if c.is_skip]
    for value, convert in job.seconds.items():
        if value not in job.hints:
            _convert(job, value, convert)
    for value, use in readers.items():
        read = use.node.inputs[use.idx]
        maker = read.producer() if read is not None else None
        if maker is not None and is_dequantize(maker):
            remember(maker, job.lpbq[value])
    return text


def _share(job: ImportPlan) -> None:
    """A plain tensor whose scale or zero point serves others too is built along with them."""
    nodes = [
        node for hint in job.hints.values() for pair in hint.pairs for node in (pair.q, pair.dq) if node is not None
    ]
    shared = {name for node in nodes for name in (node.scale, node.zero_point)}
    entries = {match.tensor: job.file.by_name[name] for name, match in job.alignment.matches.items()}
    for value in job.chosen:
        name = value.name or ""
        if value not in job.hints and name in entries and {f"{name}_scale", f"{name}_zero_point"} & shared:
            job.hints[value] = job.plain_hint(value, entries[name])


def _convert(job: ImportPlan, value: ir.Value, convert: Convert) -> None:
    """A second pair behind the one on ``value``, for the readers that take another encoding."""
    encoding = made_of(convert.holds, value)
    if encoding is None:
        raise UnsupportedError(
            "its second encoding has no scale", where=value.name, hint="give scale and zero_point under convert"
        )
    first = next(
        (dq.outputs[0] for q in value.consumers() for dq in q.outputs[0].consumers() if is_dequantize(dq)), None
    )
    if first is None:
        return
    check_encoding(first, encoding, job.model.opset_imports.get("", 1), stored=False)
    uses = [(use.node, use.idx) for use in first.uses() if convert.readers is None or use.node.name in convert.readers]
    if uses or convert.readers is None:
        insert_pairs(job.model, first, encoding, Namer(job.model), uses=None if convert.readers is None else uses)
