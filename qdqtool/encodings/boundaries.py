"""Where tensors of one width meet operators of another: whether a model converts there, kept as a hint."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from qdq_passes.errors import QdqError
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.uses import label
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.pairs import qdq_pairs

from qdqtool.encodings.entries import Encodings
from qdqtool.encodings.import_plan import ImportPlan

#: Key in the hint of a tensor that an operator of another width reads without a converting pair.
UNCONVERTED = "unconverted"


def widths_of(model: ir.Model) -> frozenset[int]:
    """Bits of the activations of ``model`` that have pairs."""
    found = (pair.encoding for pair in qdq_pairs(model) if pair.kind == "activation")
    return frozenset(encoding.dtype.bitwidth for encoding in found if encoding is not None)


def unconverted_tensors(model: ir.Model) -> frozenset[str]:
    """Tensors with pairs that convert-boundaries would convert for some reader; all where it refuses the model."""
    pairs = qdq_pairs(model)
    if len(widths_of(model)) < 2:
        return frozenset()
    work, known = copy_model(model), {pair.output.name for pair in pairs}
    try:
        run_pipeline(work, "convert-boundaries")
    except QdqError:
        return frozenset(pair.tensor for pair in pairs)
    after = qdq_pairs(work)
    first = {pair.output: pair.tensor for pair in after}
    return frozenset(
        first[pair.source]
        for pair in after
        if pair.source is not None and pair.source in first and pair.output.name not in known
    )


def convert_boundaries(job: ImportPlan) -> bool:
    """Convert where widths meet, in place; whether anything was. A conversion that rounds is noted."""
    if len(widths_of(job.model)) < 2:
        return False
    known = {pair.output.name for pair in qdq_pairs(job.model)}
    modified = run_pipeline(job.model, "convert-boundaries").modified
    first = {pair.output: pair for pair in qdq_pairs(job.model)}
    for pair in first.values():
        before = first.get(pair.source) if pair.source is not None else None
        old, new = before and before.encoding, pair.encoding
        if before is None or not old or not new or pair.output.name in known:
            continue
        if new.dtype.bitwidth < old.dtype.bitwidth:
            readers = ", ".join(dict.fromkeys(label(use.node) for use in pair.output.uses()))
            job.notes.append(
                f"{before.tensor} is narrowed to {new.dtype.name.lower()} for {readers}; --no-boundaries leaves it"
            )
    return modified


def has_unconverted(file: Encodings) -> bool:
    """Whether ``file`` hints at a tensor that is not converted."""
    tensors = file.hints.get("tensors")
    hints = tensors.values() if isinstance(tensors, Mapping) else ()
    return any(isinstance(hint, Mapping) and hint.get(UNCONVERTED) is True for hint in hints)
