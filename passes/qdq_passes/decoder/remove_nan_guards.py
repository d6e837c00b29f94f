"""remove-nan-guards

A softmax of finite numbers is finite: exp(s - max) lies in (0, 1] and their sum is at least 1."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.decoder.edit.masks import MASK
from qdq_passes.decoder.edit.sizes import IN_PLACE
from qdq_passes.decoder.look.io import DecoderIo, decoder_io
from qdq_passes.decoder.look.nan_guards import nan_guard, why_nan
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.edit import Namer, bypass, drop_unread, remove
from qdq_passes.graph.sizes import rank_of
from qdq_passes.graph.uses import FLOAT_TYPES, main_nodes


@dataclass(frozen=True)
class RemoveNanGuards(Pass):
    """Remove what turns rows of NaN behind a Softmax into zeros, where no row can be NaN.

    Graph: ``Softmax → p → IsNaN → Where(·, 0, p)`` → ``Softmax → p``.
    Requires: finite scores (below 5·10^30 in float32). Masks that are inputs hold what `replace-attention-mask` says, 0 and -1e9
    (in float16 -2^15); in float16 each query sees a key, itself, where the cache is updated in place.
    Keeps: inputs, outputs and their names; numerics bit-exact for finite scores.
    Skips: masks that may be infinite; in float16 caches that slide, whose rows of padding see no key.
    """

    keeps: ClassVar[Keeps] = Keeps("exact", why="no row is NaN where scores are finite")

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Guard by guard."""
        guards = [guard for node in main_nodes(model) if (guard := nan_guard(node)) is not None]
        if not guards:
            return
        masks, sees_itself = _masks(model)
        namer = Namer(model)
        for guard in guards:
            reason = why_nan(guard.softmax, masks, sees_itself=sees_itself)
            if reason:
                yield skip(guard.where, reason)
                continue
            parameters = list(guard.where.inputs)
            tests = [user for user in guard.source.consumers() if user.op_type == "IsNaN"]
            yield bypass(guard.where, namer, "no row is NaN", source=guard.source)
            for test in tests:
                if not test.outputs[0].uses() and not test.outputs[0].is_graph_output():
                    yield from remove(test, "nobody asks")
            yield from drop_unread(parameters)


def _masks(model: ir.Model) -> tuple[frozenset[ir.Value], bool]:
    """Inputs that are masks by the names that `replace-attention-mask` gives; whether each query sees itself."""
    name = re.compile(rf"{MASK}(_w\d+)?")
    found = frozenset(
        v for v in model.graph.inputs
        if name.fullmatch(v.name or "") and v.dtype in FLOAT_TYPES and rank_of(v) == 4
    )  # fmt: skip
    try:
        io: DecoderIo | None = decoder_io(model)
    except UnsupportedError:
        io = None
    return found, io is not None and all(pair.update.op_type in IN_PLACE for pair in io.pairs)
