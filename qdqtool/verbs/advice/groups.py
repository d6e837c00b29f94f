"""Edits of tensors that must be edited together: what a Concat reads and writes, which many targets want on one grid.

a ─Q─DQ─┐
b ─Q─DQ─┴ Concat ─ c ─Q─DQ─      one edit of {a, b, c}: an edit of one alone leaves the grid, or costs the target the Concat"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir
from qdq_passes.graph.uses import is_standard
from qdq_passes.select.globs import literal_tensor

from qdqtool.comparison.prices.refit import refitted
from qdqtool.comparison.prices.subjects import Subject
from qdqtool.verbs.qdq.remove import Remove
from qdqtool.verbs.qdq.set import Set
from qdqtool.verbs.work.mends import LEAST_GAIN, OUTPUT, WIDER, Mend


def group_edits(subject: Subject, subjects: Iterable[Subject], graph: ir.Model, model: str) -> Iterator[Sequence[Mend]]:
    """Yield edits of all that the Concats beside the activation ``subject`` read and write, each in one form.

    Args:
        subject: a quantized tensor.
        subjects: all of them.
        graph: the quantized model; only read.
        model: its path.
    """
    members = _group(subject, [one for one in subjects if one.record.kind == "activation"])
    encoding = subject.pair.encoding
    values = [one.values.ravel() for one in members if one.values is not None]
    if len(members) < 2 or encoding is None or len(encoding.scale) != 1:
        return
    names = tuple(literal_tensor(one.record.name) for one in members)
    if len(values) == len(members):
        together = np.concatenate(values)
        for kind, dtype in (("group", None), ("group-int16", WIDER.get(encoding.dtype))):
            found = refitted(together, encoding, dtype=dtype) if kind == "group" or dtype is not None else None
            if found is not None and found.gain > LEAST_GAIN:
                new = found.encoding
                verb = Set(
                    model=model, output=OUTPUT, select=names, scales=tuple(new.scale),
                    zero_points=tuple(map(int, new.zero_point)), dtype=None if dtype is None else dtype.name.lower(),
                )  # fmt: skip
                yield [Mend(kind=kind, verb=verb, steps=tuple(verb.steps()))]
    gone = Remove(model=model, output=OUTPUT, select=names)
    yield [Mend(kind="group-remove", verb=gone, steps=tuple(gone.steps_on(graph)))]


def _group(subject: Subject, activations: Sequence[Subject]) -> list[Subject]:
    """``subject`` and what the Concats that read or write it read and write, the first pair of each; none where there is none."""
    by_output = {id(one.pair.output): one for one in activations}
    by_source = {id(one.pair.source): one for one in activations}
    source = subject.pair.source
    concats = [*(use.node for use in subject.pair.output.uses()), None if source is None else source.producer()]
    found: dict[str, Subject] = {}
    for node in concats:
        if node is not None and is_standard(node, "Concat"):
            members = [by_output.get(id(value)) for value in node.inputs]
            members += [by_source.get(id(node.outputs[0]))]
            found |= {one.record.name: one for one in members if one is not None}
    return list(found.values())
