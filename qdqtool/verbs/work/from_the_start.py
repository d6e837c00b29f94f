"""A model quantized anew: the command that made it, where its history tells that, and the same with one option more or less."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import onnx_ir as ir
from qdq_passes.encode.annotate_encodings import AnnotateEncodings
from qdq_passes.encode.set_precision import SetPrecision
from qdq_passes.errors import QdqError
from qdq_passes.pipeline.pipeline import parse_pipeline
from qdq_passes.qdq.look.pairs import qdq_pairs
from qdq_passes.select.globs import literal
from qdq_passes.select.selectors import NONE, Selector, select_nodes

from qdqtool.calibrate.ranges import Ranges
from qdqtool.io.files.read import sha256_of_file
from qdqtool.io.models.provenance import history
from qdqtool.presets import PRESETS
from qdqtool.quantization.plan import RANGES
from qdqtool.verbs.quantize import Quantize
from qdqtool.verbs.work.mends import OUTPUT, Measured, Mend
from qdqtool.verbs.work.quantizing import begun

#: Integers of 16 bits, as --int16 makes them.
WIDE = ("int16", "uint16")


def command_of(model: ir.Model, floats: str | os.PathLike[str], ranges: str | os.PathLike[str]) -> Quantize | None:
    """The `quantize` that made ``model`` of ``floats`` with ``ranges``; None where its history tells of others, of edits since,
    or of options that are not known from it.

    The pipeline is told, a preset is not: it is that whose pipeline, with the same nodes left out and widened, is this one.
    """
    entries = history(model.metadata_props)
    entry = entries[-1] if len(entries) == 1 and isinstance(entries[-1], dict) else {}
    read = entry.get("inputs")
    text, given = entry.get("pipeline"), Ranges.given(ranges)
    if not isinstance(text, str) or not isinstance(read, dict) or given is None:
        return None
    if read != {"model": sha256_of_file(floats), RANGES: given.sha256}:
        return None
    try:
        passes = parse_pipeline(text).passes
    except QdqError:  # of another version
        return None
    out = [one.exclude for one in passes if isinstance(one, AnnotateEncodings) and one.exclude != NONE]
    wide = [one.select for one in passes if isinstance(one, SetPrecision) and one.dtype in WIDE]
    texts = [tuple(text for selector in found for text in selector.texts) for found in (out, wide)]
    options = [sorted({(), each}, key=len, reverse=True) for each in texts]
    for preset, (exclude, int16) in product(PRESETS.names(), product(*options)):
        verb = Quantize(floats, OUTPUT, preset=preset, ranges=ranges, exclude=exclude, int16=int16)
        try:
            planned = str(begun(verb)[0].pipeline)
        except QdqError:  # options that this preset has not
            continue
        if planned == text:
            return verb
    return None


def again(verb: Quantize, floats: ir.Model, node: str, measured: Measured, *, edge: str = "") -> tuple[Mend, ...]:
    """``verb`` with ``node`` left out, and with 16 bits for what it writes: those that win, what wins most first.

    Args:
        verb: the command.
        floats: its model, read once.
        node: its name.
        measured: tells what an edit wins.
        edge: a tensor at a boundary: also without what leaves a node float that writes or reads it; "" of none.
    """
    found = []
    for kind, made in (*_with(verb, literal(node)), *_without(verb, measured.model, edge)):
        try:
            result = replace(made, model=floats, output=None).run().model
            mend = measured.weighed(Mend(kind=kind, verb=made, steps=()), result)
        except QdqError:  # the node is folded by then, or 16 bits are nothing that the preset has
            continue
        if mend.wins_db > 0:
            found.append(mend)
    return tuple(sorted(found, key=lambda one: (one.judged.rank, -one.wins_db)))


def _with(verb: Quantize, text: str) -> Iterator[tuple[str, Quantize]]:
    yield "exclude", replace(verb, exclude=(*verb.exclude, text))
    yield "int16", replace(verb, int16=(*verb.int16, text))


def _without(verb: Quantize, model: ir.Model, edge: str) -> Iterator[tuple[str, Quantize]]:
    """``verb`` with one selector less of those that leave a node at ``edge`` float."""
    pairs = [pair for pair in qdq_pairs(model) if edge and pair.tensor == edge]
    ends = {pair.source.producer() for pair in pairs if pair.source is not None}
    ends |= {use.node for pair in pairs for use in pair.output.uses()}
    for text in verb.exclude:
        if not ends.isdisjoint(select_nodes(model, Selector.of(text), allow_empty=True)):
            yield "include", replace(verb, exclude=tuple(other for other in verb.exclude if other != text))
