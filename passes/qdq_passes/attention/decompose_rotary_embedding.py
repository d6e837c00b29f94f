"""decompose-rotary-embedding"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.edit.primitives import ROTATION_BOUNDED, rotate
from qdq_passes.attention.look.group_query import last_size
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.build import Builder, Once, Site, take_place
from qdq_passes.graph.edit import drop_unused_domains
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import all_nodes, float_of, integer_of
from qdq_passes.select.selectors import ALL, Selector, select_operators


@dataclass(frozen=True)
class DecomposeRotaryEmbedding(Pass):
    """Write RotaryEmbedding, that of onnx and that of com.microsoft, in standard operators.

    y₁ = x₁·cos − x₂·sin, y₂ = x₂·cos + x₁·sin for the halves, or the even and odd elements, of the first R elements of each head.

    Graph: ``x, positions, cosines, sines → RotaryEmbedding → y`` → ``cosines, positions → Gather; x → Slice, Slice → Mul, Mul,
    Sub; … → Concat → y``; x [B, S, heads·size] or [B, heads, S, size].
    Requires: the number of axes of x; sizes of heads.
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: several sequences in one row, a factor other than 1.

    Args:
        select: the operators.
    """

    keeps: ClassVar[Keeps] = ROTATION_BOUNDED
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Node by node; cosines of the same positions are looked up once."""
        wanted, builder, inferred, once = select_operators(model, self.select), Builder(model), Inferred(model), Once()
        for node in all_nodes(model):
            if (
                node.op_type != "RotaryEmbedding"
                or node.domain not in ("", "ai.onnx", "com.microsoft")
                or node not in wanted
            ):
                continue
            found = _read(node, inferred)
            if isinstance(found, str):
                yield skip(node, found)
                continue
            site = builder.at(node)
            yield take_place(
                node, [_write(site, found, once)], builder.namer, "standard operators that compute the same"
            )
        drop_unused_domains(model, ["com.microsoft"])


@dataclass(frozen=True, kw_only=True)
class _Rotary:
    """What one node computes: ``flat`` says whether x is [B, S, heads·size], ``offset`` whether positions are one number, [1]."""

    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    positions: ir.Value | None
    flat: bool
    offset: bool
    heads: int
    size: int
    rotated: int
    interleaved: bool


def _read(node: ir.Node, inferred: Inferred) -> _Rotary | str:
    contrib = node.domain == "com.microsoft"
    given = [*node.inputs, *[None] * 4]
    x, cos, sin, positions = (given[0], given[2], given[3], given[1]) if contrib else given[:4]
    if x is None or cos is None or sin is None:
        return "lacks what it rotates, or the tables of cosines and sines"
    if integer_of(node, "is_packed_batching", 0) or float_of(node, "scale", 1.0) != 1.0:
        return "packs sequences" if integer_of(node, "is_packed_batching", 0) else "has a factor"
    rank, heads, rotated = (
        inferred.rank(x),
        integer_of(node, "num_heads", 0),
        integer_of(node, "rotary_embedding_dim", 0),
    )
    last, half = inferred.sizes(x, [-1]), inferred.sizes(cos, [-1])
    width = last[0] if last else last_size(x)
    if rank not in (3, 4):
        return (
            "the number of axes of its input is unknown; run infer-shapes first"
            if rank is None
            else f"its input has {rank} axes"
        )
    if half is None or (width is None and not (heads and not rotated)):
        return "the size of a head is unknown; run infer-shapes first"
    size = width // (heads if rank == 3 else 1) if width is not None and (heads or rank == 4) else 2 * half[0]
    offset = contrib and positions is not None and inferred.rank(positions) == 1
    return _Rotary(
        x=x, cos=cos, sin=sin, positions=positions, flat=rank == 3, offset=offset, heads=heads or (width or 0) // size, size=size,
        rotated=rotated or min(size, 2 * half[0]), interleaved=bool(integer_of(node, "interleaved", 0)),
    )  # fmt: skip


def _write(site: Site, found: _Rotary, once: Once) -> ir.Value:
    """The rotated heads, [B, S, heads, size] where x is flat: cosines [B, S, 1, R/2], else [B, 1, S, R/2]."""

    def angles(table: ir.Value) -> ir.Value:
        at = table if found.positions is None else site("Gather", table, _positions(site, found, once), axis=0)
        return site.unsqueeze(at, -2) if found.flat else site.unsqueeze(at, 0 if found.offset else 1)

    cos, sin = (
        once(("angles", table, found.positions, found.flat, site.graph), lambda t=table: angles(t))  # type: ignore[misc]
        for table in (found.cos, found.sin)
    )
    x = site.reshape(found.x, [0, 0, found.heads, found.size]) if found.flat else found.x
    y = rotate(site, x, cos, sin, size=found.size, rotated=found.rotated, interleaved=found.interleaved)
    return site.reshape(y, [0, 0, found.heads * found.size]) if found.flat else y


def _positions(site: Site, found: _Rotary, once: Once) -> ir.Value:
    """[B, S]; or [S] of a first position [1]."""
    assert found.positions is not None
    if not found.offset:
        return found.positions
    length = site.dim(found.x, 1 if found.flat else 2)
    return once(
        ("positions", found.positions, length, site.graph),
        lambda: site("Add", found.positions, site.arange(length), name="Positions"),
    )
