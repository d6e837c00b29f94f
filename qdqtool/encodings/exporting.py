"""Export: a QDQ model → its float model and its encodings, in any format."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import QdqError, UnsupportedError
from qdq_passes.graph.uses import is_constant
from qdq_passes.numerics.encoding import Encoding, integer_format, is_integer_type
from qdq_passes.qdq.edit.pairs import can_hand_over

from qdqtool.encodings.boundaries import UNCONVERTED, unconverted_tensors
from qdqtool.encodings.entries import Convert, Encodings, Entry, Json
from qdqtool.encodings.formats import read_document, write_document
from qdqtool.encodings.formats.aimet_2 import NAMES
from qdqtool.encodings.formats.ort_overrides import BIASES, is_derived_bias
from qdqtool.encodings.formats.ort_overrides import NAME as ORT
from qdqtool.encodings.grid import as_type, integer_type
from qdqtool.encodings.hints import TensorHint, default_hint, to_json
from qdqtool.encodings.pair_extraction import QuantizedTensor, extract_pairs
from qdqtool.encodings.reading import encoding_for, represented
from qdqtool.encodings.tensors import values_by_name
from qdqtool.io.files.progress import Warned
from qdqtool.io.files.shown import Shown
from qdqtool.quantization.quantized_files import refusal_without_pairs

Activations = Literal["as-is", "unsigned"]
#: Tensors named in one message.
SHOWN = 3
#: Top-level fields of a file we make.
PRODUCER: Mapping[str, Json] = {"producer": {"package": "qdqtool"}}


@dataclass(frozen=True, kw_only=True, repr=False)
class Exported(Shown, Warned):
    """What `export` made.

    Args:
        model: the float model.
        encodings: the encodings of its tensors.
        document: the file, as JSON.
        format: its format.
        left: (node, reason) of quantizing nodes that the float model still has.
        notes: what the two do not tell.
        derived: int32 biases that the format leaves to its reader.
    """

    figures: ClassVar[Mapping[str, str]] = {"format": "format", "encodings": "encodings.entries"}

    model: ir.Model
    encodings: Encodings
    document: Mapping[str, Json]
    format: str
    left: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    derived: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; what the command prints."""
        roles = Counter(entry.role for entry in self.encodings.entries)
        return {
            "format": self.format,
            "tensors": len(self.encodings.entries),
            "activations": roles["activation"],
            "params": roles["param"],
            "hints": sorted(_hinted(self.encodings)),
            "left": [{"node": node, "reason": reason} for node, reason in self.left],
            "derived_biases": list(self.derived),
            "notes": list(self.notes),
        }


def _hinted(encodings: Encodings) -> list[str]:
    tensors = encodings.hints.get("tensors")
    return list(tensors) if isinstance(tensors, Mapping) else []


def export(
    model: ir.Model,
    format_name: str,
    *,
    activations: Activations = "as-is",
    hints: bool = True,
    file: str | os.PathLike[str] = "MODEL",
) -> Exported:
    """Take the pairs out of ``model``, in place, and write them down.

    Args:
        model: a model with QDQ pairs; it becomes the float model.
        format_name: one of `qdqtool.encodings.formats.FORMATS`.
        activations: ``unsigned`` counts signed activations as unsigned (int8 z → uint8 z + 128, the same grid).
        hints: write what only qdqtool reads, so that importing gives back the same QDQ model.
        file: the file of ``model``, for the command that a refusal advises.

    Raises:
        UnsupportedError: something that the format, or no format, can say; the message names the tensor and the way out.
        ModelError: a pair whose encoding is not constant, or differs between Q and DQ.
    """
    unconverted = unconverted_tensors(model) if hints else frozenset()
    extracted = extract_pairs(model)
    if not extracted.tensors:
        message, hint = refusal_without_pairs(model, file)
        raise UnsupportedError(message, where=model.graph.name, hint=hint)
    _refuse_scales(extracted.tensors)
    values = values_by_name(model)
    entries = tuple(_entry(tensor, activations) for tensor in extracted.tensors)
    bare = Encodings(format=format_name, entries=entries, extra={} if format_name in (ORT, "qnn") else PRODUCER)
    document = write_document(bare, format_name, values)
    if hints:
        bare = dataclasses.replace(bare, hints=_hints(extracted.tensors, bare, document, unconverted))
        document = write_document(bare, format_name, values)
    derived = tuple(entry.name for entry in entries if format_name == ORT and is_derived_bias(entry))
    return Exported(
        model=model, encodings=bare, document=document, format=format_name, left=extracted.left, notes=extracted.notes,
        derived=derived,
    )  # fmt: skip


def _refuse_scales(tensors: tuple[QuantizedTensor, ...]) -> None:
    """Runtimes take negative scales (onnxruntime's 4-bit weights have them); no format and no reader of one does."""
    bad = [
        (tensor.value.name, scale) for tensor in tensors for scale in tensor.encoding.scale if not 0 < scale < math.inf
    ]
    names = list(dict.fromkeys(name for name, _ in bad))
    if names:
        more = f"; so have {len(names) - 1} more tensors" if len(names) > 1 else ""
        selects = " ".join(f"--select tensor:{name}" for name in names[:SHOWN]) + (" …" if len(names) > SHOWN else "")
        raise UnsupportedError(
            f"has the scale {bad[0][1]:g}, and scales in encodings files are positive{more}",
            where=names[0],
            hint=f"quantize it again with positive scales, or take its pair out: qdq remove {selects} --allow-findings",
        )


def _entry(tensor: QuantizedTensor, activations: Activations) -> Entry:
    shift = activations == "unsigned" and not is_constant(tensor.value)
    second = _counted(tensor.second, shift) if tensor.second is not None else None
    convert = None if second is None else Convert(holds=second, readers=tensor.second_readers)
    return Entry(
        name=tensor.value.name or "",
        holds=tensor.lpbq or _counted(tensor.encoding, shift),
        role="param" if is_constant(tensor.value) else "activation",
        convert=convert,
    )


def _counted(encoding: Encoding, unsigned: bool) -> Encoding:
    if not unsigned or not is_integer_type(encoding.dtype):
        return encoding
    return as_type(encoding, integer_type(integer_format(encoding.dtype)[1], signed=False))


def _hints(
    quantized: tuple[QuantizedTensor, ...],
    encodings: Encodings,
    document: Mapping[str, Json],
    unconverted: Collection[str],
) -> dict[str, Json]:
    """What reading ``document`` back would not give."""
    constants = [tensor for tensor in quantized if is_constant(tensor.value)]
    stored = [tensor for tensor in constants if tensor.hint is not None and tensor.hint.stored is not None]
    mostly = encodings.format == ORT or 2 * len(stored) >= len(constants)
    again = read_document(document).by_name
    tensors: dict[str, Json] = {}
    for tensor in quantized:
        name, hint = tensor.value.name or "", tensor.hint
        if name in unconverted:
            tensors[name] = {UNCONVERTED: True}
        if hint is None:
            continue
        found = encoding_for(again[name], tensor.value, None) if name in again else None
        if found is not None and found != tensor.encoding:
            hint = _represented(hint, found, tensor.encoding, tensor.value, encodings.format)
        default = functools.partial(_default, name, tensor.value)
        is_stored = is_constant(tensor.value) and (mostly or tensor.encoding.dtype == ir.DataType.INT32)
        data = to_json(hint, default, is_stored=is_stored)
        if data:
            tensors[name] = {**data, UNCONVERTED: True} if name in unconverted else data
    result: dict[str, Json] = {}
    if encodings.format == ORT:
        derived = [entry.name for entry in encodings.entries if is_derived_bias(entry)]
        result[BIASES] = {name: tensors.pop(name, {}) for name in derived}
    elif constants:
        result["weights"] = "dq" if mostly else "qdq"
    return {**result, **({"tensors": tensors} if tensors else {})}


def _default(name: str, value: ir.Value, stored: bool) -> TensorHint:
    return default_hint(name, stored=stored, is_output=can_hand_over(value))


def _represented(hint: TensorHint, found: Encoding, wanted: Encoding, value: ir.Value, format_name: str) -> TensorHint:
    """``hint`` with the type and the axis that make ``wanted`` of what was read."""
    hint = dataclasses.replace(
        hint,
        dtype=wanted.dtype.name.lower() if found.dtype != wanted.dtype else None,
        axis=wanted.axis if found.axis != wanted.axis else None,
    )
    lost = UnsupportedError(
        "its encoding does not survive in this format",
        where=value.name,
        hint="write aimet-2.0.0 or take --no-hints" if format_name not in NAMES else "take --no-hints",
    )
    try:
        same = represented(found, hint, value) == wanted
    except QdqError as error:
        raise lost from error
    if not same:
        raise lost
    return hint
