"""The static shapes of a decoder's inputs for B rows, S new tokens and a context of C: by role, and by names that roles bind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from qdq_passes.core.names import substitute_dim
from qdq_passes.decoder.look.io import CachePair, DecoderIo
from qdq_passes.decoder.look.updates import SCATTERS
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.operators.kinds import kind_of
from qdq_passes.graph.sizes import rank_or
from qdq_passes.graph.uses import FLOAT_TYPES

#: What writes new rows into a cache that is as long as the context; all else makes it longer by them.
IN_PLACE = SCATTERS | {"DecoderMaskedMultiHeadAttention", "GroupQueryAttention", "PagedAttention", "SparseAttention"}


@dataclass(frozen=True, kw_only=True)
class DecoderSizes:
    """The sizes of a static decoder.

    Args:
        batch: rows, B.
        sequence: new tokens of one run, S.
        context: tokens in the cache after a run, C.
    """

    batch: int
    sequence: int
    context: int

    def past(self, pair: CachePair) -> int:
        """Length of the cache before a run: C where it is updated in place, else C - S."""
        return self.context if kind_of(pair.update) in IN_PLACE else self.context - self.sequence

    def shapes(self, io: DecoderIo) -> dict[ir.Value, list[int | None]]:
        """Input → its sizes; None where neither a role nor a name tells, in caches alone.

        Raises:
            UnsupportedError: an input has another size already, or one that nothing tells.
        """
        roles = dict(self._by_role(io))
        names = _names(roles)
        found = {value: _sizes(value, dims, names) for value, dims in roles.items()}
        for value in io.others:
            if value not in found:
                found[value] = _sizes(value, [None] * rank_or(value, 0), names)
        pasts = {pair.past for pair in io.pairs}
        for value, sizes in found.items():
            if None in sizes and value not in pasts:
                raise UnsupportedError(
                    f"axis {sizes.index(None)} of {_text(value)} is neither batch, sequence nor context",
                    where=value.name,
                    hint="bind it first with fix-shapes",
                )
        return found

    def _by_role(self, io: DecoderIo) -> Iterator[tuple[ir.Value, list[int | None]]]:
        """(input, sizes that its role tells)."""
        rows = [self.batch, self.sequence]
        yield io.ids, [*rows, *([None] * max(rank_or(io.ids, 2) - 2, 0))]
        if io.positions is not None:
            rank = rank_or(io.positions, 2)
            yield io.positions, [*([None] * max(rank - 2, 0)), *(rows[2 - rank :] if rank < 2 else rows)]
        for value in (io.mask, *io.others):
            if value is not None and (value is io.mask or _is_mask(value)):
                yield value, self._mask(rank_or(value, 2))
        for pair in io.pairs:
            sizes: list[int | None] = [None] * rank_or(pair.past, 4)
            sizes[pair.batch_axis], sizes[pair.axis] = self.batch, self.past(pair)
            yield pair.past, sizes

    def _mask(self, rank: int) -> list[int | None]:
        shapes: dict[int, list[int | None]] = {
            1: [self.context],
            3: [self.batch, self.sequence, self.context],
            4: [self.batch, None, self.sequence, self.context],
        }
        return shapes.get(rank, [self.batch, self.context])


def _text(value: ir.Value) -> str:
    return "?" if value.shape is None else str(value.shape)


def _is_mask(value: ir.Value) -> bool:
    """Whether ``value`` is one more mask of scores, [batch, 1, sequence, total]."""
    return value.dtype in FLOAT_TYPES and value.shape is not None and len(value.shape) == 4 and value.shape[1] == 1


def _names(roles: Mapping[ir.Value, Sequence[int | None]]) -> dict[str, int]:
    """Name of a dim → its size, as far as inputs agree about it."""
    found: dict[str, set[int]] = {}
    for value, sizes in roles.items():
        for dim, size in zip(value.shape or (), sizes, strict=False):
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None and size is not None:
                found.setdefault(dim.value, set()).add(size)
    return {name: sizes.pop() for name, sizes in found.items() if len(sizes) == 1}


def _sizes(value: ir.Value, by_role: Sequence[int | None], names: Mapping[str, int]) -> list[int | None]:
    """Sizes of ``value``: of the role, else of the file, else by the name of the dim or the expression that it is."""
    dims = list(value.shape) if value.shape is not None else [None] * len(by_role)
    found: list[int | None] = []
    for axis, dim in enumerate(dims):
        wanted = by_role[axis] if axis < len(by_role) else None
        if isinstance(dim, int):
            if (
                wanted is not None
                and wanted != dim
                and not (dim == 1 and rank_or(value, 0) > 2 and axis < rank_or(value, 0) - 2)
            ):
                raise UnsupportedError(
                    f"has the shape {_text(value)}, whose axis {axis} would have to be {wanted}",
                    where=value.name,
                    hint=f"export the model with that axis dynamic, or ask for {dim}",
                )
            found.append(dim)
        elif wanted is not None:
            found.append(wanted)
        else:
            text = dim.value if isinstance(dim, ir.SymbolicDim) else None
            size = substitute_dim(text, names) if text is not None else None
            found.append(size if isinstance(size, int) else None)
    return found
