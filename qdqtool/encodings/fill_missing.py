"""Fill in encodings that a file leaves out: from neighbours, from data by the rule that the file follows, or by calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import onnx_ir as ir
from qdq_passes.errors import UsageError
from qdq_passes.graph.uses import is_constant
from qdq_passes.numerics.encoding import Encoding

from qdqtool.calibrate.observer import Range
from qdqtool.encodings.biases import biases_of, product_encodings
from qdqtool.encodings.coverage import Missing
from qdqtool.encodings.entries import Entry, Wish
from qdqtool.encodings.filling import Rule, from_data, from_range, not_shared, propagate, rules_of
from qdqtool.encodings.formats.ort_overrides import BIASES
from qdqtool.encodings.formats.ort_overrides import NAME as ORT
from qdqtool.encodings.import_plan import ImportPlan

MissingMode = Literal["error", "propagate", "float", "calibrate"]
BiasMode = Literal["auto", "file", "int32"]
#: Ranges of tensors of the float model, by name.
Calibrate = Callable[[list[str]], Mapping[str, Range]]
#: Tensors named in one message.
SHOWN = 8


def fill_missing(job: ImportPlan, missing: MissingMode, bias: BiasMode, calibrate: Calibrate | None) -> None:
    """Give encodings to values that the file leaves out, as far as ``missing`` and ``bias`` say.

    Raises:
        UsageError: ``missing="error"`` and there are some; calibration without data.
    """
    if missing in ("propagate", "calibrate"):
        _propagate(job)
    if missing == "calibrate":
        _calibrate(job, calibrate)
    for value, wish in job.wishes.items():
        if value not in job.chosen:
            _from_wish(job, value, wish)
    if bias == "int32" or (bias == "auto" and job.file.format == ORT):
        _derive_biases(job, everything=bias == "int32")
    if missing == "error":
        _refuse(job)


def _propagate(job: ImportPlan) -> None:
    for value, (encoding, near) in propagate(job.model, job.chosen, job.missing()).items():
        job.fill(value, encoding, f"its neighbour {near.name}")


def _calibrate(job: ImportPlan, calibrate: Calibrate | None) -> None:
    rules = rules_of(job.chosen, {one.value: one.role for one in job.demanded})
    wanted = [one for one in job.missing() if not one.fused and one.role in rules]
    activations = not_shared(job.model, [one.value for one in wanted if one.role == "activation"], job.chosen)
    if activations and calibrate is None:
        raise UsageError("--missing calibrate without data", hint="give --data")
    ranges = calibrate([value.name or "" for value in activations]) if activations and calibrate is not None else {}
    for value in activations:
        found = ranges.get(value.name or "")
        if found is not None:
            job.fill(value, from_range(found, rules["activation"], value), "calibration")
    _propagate(job)
    for one in wanted:
        if one.value not in job.chosen and one.role != "activation":
            _from_rule(job, one, rules[one.role])


def _from_rule(job: ImportPlan, one: Missing, rule: Rule) -> None:
    """A weight or bias by its data, or an int32 bias by the scales of its layer."""
    if rule.dtype != ir.DataType.INT32:
        encoding = from_data(one.value, rule)
        if encoding is not None:
            job.fill(one.value, encoding, "its data")
        return
    made = product_encodings([one.value], job.chosen)[one.value]
    if isinstance(made, Encoding):
        job.fill(one.value, made, "the scales of input and weight")
    else:
        job.notes.append(f"{one.value.name} stays float: {made}")


def _from_wish(job: ImportPlan, value: ir.Value, wish: Wish) -> None:
    """A constant whose type alone the file gives: its data tell the rest."""
    encoding = None
    if is_constant(value):
        dtype = wish.dtype or ir.DataType.INT8
        rule = Rule(dtype=dtype, symmetric=wish.symmetric is not False, reduced=bool(wish.reduce_range))
        encoding = from_data(value, rule, wish.axis)
    if encoding is not None:
        job.fill(value, encoding, "its data, as the file asks")
    elif all(one.value is not value for one in job.missing()):
        job.declined.append((value.name or "", "the file asks for an encoding and gives none; calibrate it"))


def _derive_biases(job: ImportPlan, *, everything: bool) -> None:
    """int32 biases that the file leaves to its reader: all of them, or those that our own export left out."""
    hinted = job.file.hints.get(BIASES) if job.use_hints else None
    listed = hinted if isinstance(hinted, Mapping) and not everything else None
    old = {new: name for name, new in job.alignment.renamed.items()}
    names = {value: old.get(value.name or "", value.name or "") for value in biases_of(job.model)}
    biases = [
        value
        for value, name in names.items()
        if value not in job.chosen and value not in job.floats and (listed is None or name in listed)
    ]
    for value, made in product_encodings(biases, job.chosen).items():
        if not isinstance(made, Encoding):
            job.notes.append(f"{value.name} stays float: {made}")
            continue
        job.fill(value, made, "the scales of input and weight")
        data = listed.get(names[value]) if listed is not None else None
        if data:
            job.hints[value] = job.hint(value, Entry(name=names[value], holds=made), data)


def _refuse(job: ImportPlan) -> None:
    """Biases count only where the file lists biases: older formats leave them to their readers."""
    has_biases = any(one.role == "bias" and one.value in job.chosen for one in job.demanded)
    counted = [one for one in job.missing() if not one.fused and (one.role != "bias" or has_biases)]
    if not counted:
        return
    names = [one.value.name or "" for one in counted]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    raise UsageError(
        f"{len(names)} tensor{'s have' if len(names) > 1 else ' has'} no encoding: {', '.join(names[:SHOWN])}{more}",
        hint="--missing float leaves them float, propagate and calibrate find one",
    )
