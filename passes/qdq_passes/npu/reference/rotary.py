"""RotaryEmbedding in the reference: onnx's and com.microsoft's, on integers.

y₁ = x₁·c − x₂·s and y₂ = x₂·c + x₁·s are sums of two exact products, of which each has its scale s_x·s_c or s_x·s_s, as the sides
of an Add have theirs; what is not turned moves.
`Heads` is what it turns, on integers or numbers: heads, pairs in them, angles of each place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.npu.reference.values import Addends, Joined, Moved, NotRepresentable, ReferenceNode, Stored, Value
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.requantize import exact_product


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The form of what is turned.

    Args:
        shape: of the data, [B, heads, S, size] or [B, S, heads·size].
        size: of a head.
        rotated: elements of a head that are turned, from the first on.
        is_interleaved: whether the elements of a pair are neighbours, not from the two halves.
    """

    shape: tuple[int, ...]
    size: int
    rotated: int
    is_interleaved: bool

    @property
    def is_flat(self) -> bool:
        """Whether heads stand in one axis."""
        return len(self.shape) == 3

    def by_head(self, data: Array) -> Array:
        """[B, heads, S, size]"""
        return data.reshape(*self.shape[:2], -1, self.size).transpose(0, 2, 1, 3) if self.is_flat else data

    def pairs(self, data: Array) -> tuple[Array, Array]:
        """The first and the second of each pair, [B, heads, S, rotated / 2]."""
        turned = self.by_head(data)[..., : self.rotated]
        if self.is_interleaved:
            return turned[..., 0::2], turned[..., 1::2]
        return turned[..., : self.rotated // 2], turned[..., self.rotated // 2 :]

    def rest(self, data: Array) -> Array:
        """What is not turned."""
        return self.by_head(data)[..., self.rotated :]

    def joined(self, first: Array, second: Array, rest: Array) -> Array:
        """What has the form of the data again."""
        turned = np.concatenate([first, second], axis=-1)
        if self.is_interleaved:
            turned = np.stack([first, second], axis=-1).reshape(*first.shape[:-1], self.rotated)
        found = np.concatenate([turned, rest], axis=-1)
        return found.transpose(0, 2, 1, 3).reshape(self.shape) if self.is_flat else found


def heads_of(node: ir.Node, shape: tuple[int, ...], half: int) -> Heads:
    """The heads of ``node``, a RotaryEmbedding of data of ``shape`` with ``half`` angles a head.

    Raises:
        NotRepresentable: it packs sequences, or has a factor.
    """
    attributes = node.attributes
    if attributes.get_int("is_packed_batching", 0) or attributes.get_float("scale", 1.0) != 1.0:
        raise NotRepresentable("it packs sequences, or has a factor")
    count = attributes.get_int("num_heads", 0)
    size = shape[-1] if len(shape) == 4 else shape[-1] // count if count else 2 * half
    return Heads(
        shape=shape, size=size, rotated=attributes.get_int("rotary_embedding_dim", 0) or min(size, 2 * half),
        is_interleaved=attributes.get_int("interleaved", 0) != 0,
    )  # fmt: skip


def angles_of(table: Array, positions: Array | None, heads: Heads) -> Array:
    """Cosines or sines of each place, [B or 1, 1, S, half]: chosen from [rows, half] by ``positions`` [B, S], or by those that
    follow the one in [1]; ``table`` [B, S, half] itself where there are none."""
    if positions is None:
        return table[:, None]
    if positions.ndim == 1:
        positions = (positions.item() + np.arange(heads.shape[1 if heads.is_flat else 2]))[None]
    return np.asarray(table[positions.astype(np.int64)][:, None])


def rotary_embedding(node: ReferenceNode) -> Sequence[Value]:
    """The operator of onnx: x, cosines, sines, positions."""
    return [_rotated(node, node.stored(0), node.stored(1), node.stored(2), node.array(3))]


def contrib_rotary_embedding(node: ReferenceNode) -> Sequence[Value]:
    """The operator of com.microsoft: x, positions, cosines, sines; positions [1] are the first of those that follow."""
    return [_rotated(node, node.stored(0), node.stored(2), node.stored(3), node.array(1))]


def _rotated(node: ReferenceNode, x: Stored, cos: Stored, sin: Stored, positions: Array | None) -> Joined:
    for angles in (cos, sin):
        if len(angles.encoding.scale) != 1:
            raise NotRepresentable(f"its angles have {angles.encoding.granularity.kind} scales")
    heads = heads_of(node.node, x.integers.shape, cos.integers.shape[-1])
    c, s = (angles_of(angles.centered(), positions, heads) for angles in (cos, sin))
    x1, x2 = heads.pairs(x.centered())
    x_scale, c_scale, s_scale = (np.float64(stored.encoding.scale[0]) for stored in (x, cos, sin))
    first, second = (
        Addends(
            a=exact_product(a, c), b=exact_product(b, s), a_scale=x_scale * c_scale, b_scale=sign * x_scale * s_scale
        )
        for a, b, sign in ((x1, x2, -1.0), (x2, x1, 1.0))
    )
    return Joined(parts=(first, second, Moved(parts=(x.moved(heads.rest),))), join=lambda parts: heads.joined(*parts))
