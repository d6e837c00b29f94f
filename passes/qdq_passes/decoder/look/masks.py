"""What the attentions of a decoder hide, all their masks together, by their numbers under several sizes.

They must be causal, k ≤ past + q, or causal within a window besides, k > past + q - w; anything else is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.flow import is_attention
from qdq_passes.decoder.look.host_region import Host, Probed, Sizes, batch_of, fixed_sizes
from qdq_passes.decoder.look.scores import MaskEdge, mask_candidates, multiplies_streams
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.uses import integer_of, is_standard, label
from qdq_passes.numerics.arrays import Array

#: Added to a score, this hides it: exp(-1000) is 0 in float32 and below the least float64 beside any score of -200 or more.
HIDING = -1e3
#: What is added to visible scores at most; float masks made by multiplication leave -0.0 or a rounding.
_ZERO = 1e-6
#: Keys of the longest probe at most: of one that makes a square of them, and else.
_SQUARE, _LONG = 1100, 1 << 17
#: A constant beyond the longest probe, up to this, is taken for `_SMALL` instead: does the mask become a window of that size?
_LARGEST = 1 << 24
_SMALL = 1050
#: Tokens in the cache and new ones of the probes; and where a mask can be made of neither, those of a first run and of a single
#: token, all that such an export is for.
_RUNS, _STARTS = ((7, 3), (1, 5), (29, 2)), ((0, 5), (0, 3), (29, 1))


class MaskProbes:
    """The probes of all masks, and what they show of each."""

    def __init__(self, host: Host, values: Sequence[ir.Value]) -> None:
        self._host, self._values = host, list(dict.fromkeys(values))
        fixed = fixed_sizes(host)
        self._found = self._probed(_RUNS, fixed)
        self._new = 3
        if fixed == (0, 0) and not self._is_known(self._found):
            starts = self._probed(_STARTS, fixed)
            if self._is_known(starts):
                self._found, self._new = starts, 1
        self._whole = {s: host.probe(s) for s in list(self._found)[:2]}
        self._shrunk: list[tuple[int, Sizes, Probed]] = []
        if fixed == (0, 0):
            long, large = self._long()
            self._found[long] = host.probe(long, wanted=self._values)
            shrunk = Sizes(past=_SMALL + 40, new=self._new)
            for value, array, number in large:
                small = np.where(array == number, np.sign(number) * _SMALL, array).astype(array.dtype)
                probed = host.probe(shrunk, wanted=self._values, replaced={value: small})
                self._shrunk.append((abs(number), shrunk, probed))
        self._padded: tuple[Sizes, Probed] | None = None

    def _probed(self, runs: Sequence[tuple[int, int]], fixed: tuple[int, int]) -> dict[Sizes, Probed]:
        """The masks in ``runs`` of (past, new) tokens, those sizes kept that the file fixes."""
        sizes = dict.fromkeys(Sizes(past=fixed[0] or past, new=fixed[1] or new) for past, new in runs)
        return {each: self._host.probe(each, wanted=self._values) for each in sizes}

    def _is_known(self, found: Mapping[Sizes, Probed]) -> bool:
        return all(value in probed.arrays for probed in found.values() for value in self._values)

    def _long(self) -> tuple[Sizes, list[tuple[ir.Value, Array, int]]]:
        """Sizes in which every window shows that a constant may mean; and (value, array, number) of those too large for that."""
        sizes, found = list(self._found.items())[-1]
        squares = any(array.size >= sizes.total**2 for v, array in found.arrays.items() if v in self._host.dynamic)
        most = _SQUARE if squares else _LONG
        constants = {v: a for v, a in found.arrays.items() if v not in self._host.dynamic}
        buffers = [a.shape[-1] for a in constants.values() if _is_square(a)]
        if buffers:
            return Sizes(past=min(buffers) - self._new, new=self._new), []
        numbers = [(v, a, int(n)) for v, a in constants.items() for n in dict.fromkeys(_numbers(a).tolist())]
        total = max([64, *(abs(n) + 8 for _, _, n in numbers if abs(n) + 8 <= most)])
        return Sizes(past=total - self._new, new=self._new), [each for each in numbers if abs(each[2]) + 8 > most]

    def query_axis(self, edges: Sequence[MaskEdge]) -> int:
        """Axis of the queries in the scores that ``edges`` hide, from the end: -2, or -3 in [batch, sequence, heads, total]."""
        edge = next((edge for edge in edges if edge.data >= 0), None)
        value = edge.node.inputs[edge.data] if edge is not None else None
        shapes = [(sizes, found.specs[value].shape) for sizes, found in self._whole.items() if value in found.specs]
        if edge is None or not shapes or any(len(shape) != 4 or shape[1] != sizes.new for sizes, shape in shapes):
            return -2
        return -2 if all(shape[2] == sizes.new for sizes, shape in shapes) else -3

    def spans(self, edge: MaskEdge) -> bool:
        """Whether an operand goes along the keys."""
        for sizes, found in self._found.items():
            value = edge.node.inputs[edge.index]
            if value is None:
                return False
            array = found.array(value)
            if edge.form == "operand":
                return True
            if array.size > 1 and (array.shape[-1] == sizes.total or (edge.form == "where" and array.ndim > 1)):
                return True
        return False

    def classify(self, core: ir.Node, edges: Sequence[MaskEdge]) -> int:
        """The window of the masks of ``core`` together, 0 for none.

        Raises:
            UnsupportedError: they are not causal.
        """
        seen = {sizes: self._visible(core, edges, sizes, found) for sizes, found in self._found.items()}
        window = 0
        for sizes, visible in seen.items():
            counts = visible.reshape(-1, sizes.new, sizes.total)[0].sum(-1)
            if int(counts[-1]) < sizes.total:
                window = max(window, int(counts[-1]))
        window = window or self._beyond(core, edges)
        for sizes, visible in seen.items():
            differing = np.argwhere(visible != _expected(sizes, window))
            if len(differing):
                *_, query, key = (int(n) for n in differing[0])
                sees = "sees" if visible[tuple(differing[0])] else "does not see"
                seen_there = f"with {sizes.past} tokens in the cache, query {query} {sees} key {key}"
                where = edges[0].node if edges else core
                raise UnsupportedError(
                    f"its mask is neither causal nor a causal window: {seen_there}", where=label(where),
                    hint="only causal masks, all keys or the last w of them, can be replaced",
                )  # fmt: skip
        return window

    def _beyond(self, core: ir.Node, edges: Sequence[MaskEdge]) -> int:
        """The window of ``core`` that is larger than any probe, 0 for none: a constant n is taken for `_SMALL` instead.

        Raises:
            UnsupportedError: the mask follows the constant in another way.
        """
        found = set()
        read = [v for edge in edges for v in edge.node.inputs if v in self._values]
        for number, sizes, probed in self._shrunk:
            if any(v not in probed.arrays for v in read):
                continue  # a bound: no more keys than this are possible
            visible = self._visible(core, edges, sizes, probed)
            kept = int(visible.reshape(-1, sizes.new, sizes.total)[0, -1].sum())
            if not np.array_equal(visible, np.broadcast_to(_expected(sizes, kept), visible.shape)):
                where = edges[0].node if edges else core
                raise UnsupportedError(
                    f"its mask follows the constant {number} in a way that is no window", where=label(where),
                    hint="only causal masks, all keys or the last w of them, can be replaced",
                )  # fmt: skip
            if kept < sizes.total:
                found.add(number + kept - _SMALL)
        return min(found, default=0)

    def padding(self, core: ir.Node, edges: Sequence[MaskEdge], window: int) -> Literal["honoured", "ignored", "none"]:
        """What zeros in the mask input do.

        Raises:
            UnsupportedError: they do anything but hide their keys.
        """
        mask = self._host.io.mask
        if mask is None or (mask.shape is not None and len(mask.shape) != 2) or fixed_sizes(self._host) != (0, 0):
            return "none"
        sizes = Sizes(batch=batch_of(self._host), past=7, new=self._new)
        if self._padded is None:
            ones = np.ones((sizes.batch, sizes.total))
            ones[-1, :2] = 0
            self._padded = sizes, self._host.probe(sizes, mask=ones, wanted=self._values)
        visible = self._visible(core, edges, *self._padded)
        expected = np.broadcast_to(_expected(sizes, window), visible.shape)
        if np.array_equal(visible, expected):
            return "ignored"
        if visible.shape[0] % sizes.batch:
            expected = np.repeat(expected, sizes.batch, axis=0)
        rows = expected.copy().reshape(sizes.batch, -1, sizes.new, sizes.total)
        rows[-1, ..., :2] = False
        if visible.size == rows.size and np.array_equal(visible.reshape(rows.shape), rows):
            return "honoured"
        where = edges[0].node
        raise UnsupportedError(
            "zeros in the mask input do not hide just their keys", where=label(where),
            hint=f"{mask.name} must be 1 for tokens and 0 for padding",
        )  # fmt: skip

    def _visible(self, core: ir.Node, edges: Sequence[MaskEdge], sizes: Sizes, found: Probed) -> Array:
        """What all masks of ``core`` leave visible, [.., new, total]."""
        visible = np.ones((1, sizes.new, sizes.total), np.bool_)
        zeroed, axis = np.zeros(visible.shape, np.bool_), self.query_axis(edges)
        for edge in edges:
            value = edge.node.inputs[edge.index]
            shown = _shown(edge, found.array(value), sizes, found, axis) if value is not None else visible
            if edge.form == "multiply":
                zeroed = zeroed | ~shown
            else:
                visible = visible & shown
        visible = visible & _built_in(core, sizes)
        if (zeroed & visible).any():
            where = next(edge.node for edge in edges if edge.form == "multiply")
            raise UnsupportedError("scales scores that stay visible along the keys", where=where.name)
        return visible


def _expected(sizes: Sizes, window: int) -> Array:
    queries, keys = np.arange(sizes.past, sizes.total)[:, None], np.arange(sizes.total)
    return (keys <= queries) & ((keys > queries - window) | (window == 0))


def _numbers(array: Array) -> Array:
    """Numbers of a small constant that may mean a window."""
    if array.size > 4 or array.dtype.kind not in "iuf":
        return np.zeros(0)
    finite: Array = array[np.isfinite(array.astype(np.float64)) & (np.abs(array.astype(np.float64)) <= _LARGEST)]
    return finite


def _is_square(array: Array) -> bool:
    """Whether a constant is a buffer of queries and keys; no longer sequence is possible then."""
    return array.ndim >= 2 and array.shape[-1] == array.shape[-2] > 8


def _shown(edge: MaskEdge, array: Array, sizes: Sizes, found: Probed, axis: int = -2) -> Array:
    """What one mask leaves visible, broadcast to [.., new, total]; ``axis`` is that of the queries, from the end.

    Raises:
        UnsupportedError: it adds something to visible scores.
    """
    name = label(edge.node)
    if edge.form == "operand" and edge.index == 4:
        if array.ndim != 2:
            raise UnsupportedError("a padding mask of lengths, not of zeros and ones", where=name)
        shown = array[:, None, None, :] > 0
    elif edge.form == "where" or array.dtype == np.bool_:
        shown = array if edge.form != "where" or edge.data == 1 else ~array
        _check_fill(edge, found)
    elif edge.form == "multiply":
        shown = array != 0
        if not np.array_equal(array[shown], np.ones_like(array[shown])):
            raise UnsupportedError("scales scores along the keys by more than 0 and 1", where=name)
    else:
        added = -array.astype(np.float64) if edge.form == "subtract" else array.astype(np.float64)
        shown = added > HIDING
        biased = np.argwhere(~(np.abs(added) <= _ZERO) & ~(added <= HIDING))
        if len(biased):
            at = tuple(int(n) for n in biased[0])
            raise UnsupportedError(
                f"adds {added[at]:g} to a score that stays visible, at {list(at)}", where=name,
                hint="position biases (ALiBi, relative positions) are not handled",
            )  # fmt: skip
    if edge.form == "operand" and edge.index == 3 and shown.shape[-1] < sizes.total:
        shown = np.pad(shown, [(0, 0)] * (shown.ndim - 1) + [(0, sizes.total - shown.shape[-1])])
    if axis == -3:
        shown = np.swapaxes(shown.reshape((1,) * (4 - shown.ndim) + shown.shape), 1, 2)
    try:
        shape = np.broadcast_shapes(shown.shape, (1, sizes.new, sizes.total))
    except ValueError:
        shape = ()
    if shape[-2:] != (sizes.new, sizes.total):
        raise UnsupportedError(
            f"a mask of shape {list(shown.shape)} for {sizes.new} queries and {sizes.total} keys", where=name
        )
    result: Array = np.broadcast_to(shown, shape)
    return result


def _check_fill(edge: MaskEdge, found: Probed) -> None:
    """What Where puts in the place of hidden scores must hide them."""
    if edge.form != "where":
        return
    fill = edge.node.inputs[3 - edge.data]
    lowest = np.max(found.array(fill)) if fill is not None else 0.0
    if not lowest <= HIDING:
        raise UnsupportedError(f"puts {lowest:g} in the place of scores: that hides nothing", where=edge.node.name)


def _built_in(core: ir.Node, sizes: Sizes) -> Array:
    """What attributes of an attention of one node leave visible; with its cache inside, queries stand behind the past."""
    visible = np.ones((1, sizes.new, sizes.total), np.bool_)
    if not is_attention(core):
        return visible
    has_past = len(core.inputs) > (4 if is_standard(core, "Attention") else 6) and bool(
        core.inputs[4 if is_standard(core, "Attention") else 6]
    )
    queries, keys = np.arange(sizes.new)[:, None] + (sizes.past if has_past else 0), np.arange(sizes.total)
    if integer_of(core, "is_causal", 0) or integer_of(core, "unidirectional", 0):
        visible = visible & (keys <= queries)
    left, right = integer_of(core, "left_window_size", -1), integer_of(core, "right_window_size", -1)
    return visible & ((keys >= queries - left) | (left < 0)) & ((keys <= queries + right) | (right < 0))


#: Input of GroupQueryAttention: what is added to scores.
_GROUPED_BIAS = 10


@dataclass(frozen=True, kw_only=True)
class Masked:
    """One attention and what its masks are together.

    Args:
        core: Softmax, or an attention of one node.
        edges: its masks, that nearest to the Softmax first.
        window: keys that a query sees at most, itself included; 0 for all before it.
        padding: whether the mask input's zeros hide keys: ``honoured``, ``ignored``, or ``none`` without such an input.
        query_axis: axis of the queries in the scores, from the end; -3 where these are [batch, sequence, heads, total].
    """

    core: ir.Node
    edges: tuple[MaskEdge, ...]
    window: int
    padding: Literal["honoured", "ignored", "none"]
    query_axis: int = -2


def masked_attentions(host: Host) -> list[Masked]:
    """Every attention of the decoder with its masks; those that keep their mask to themselves (GroupQueryAttention) are left out.

    Raises:
        UnsupportedError: a mask that is neither causal nor a window, that depends on tokens, or that biases visible scores; a
            layer whose attention is not seen.
    """
    candidates = [found for node in host.nodes if (found := mask_candidates(host, node)) is not None]
    alone = [node for node in host.nodes if is_attention(node) and all(node is not core for core, _ in candidates)]
    for node in alone:
        _refuse_own_mask(node)
    values = [
        v for _, edges in candidates for edge in edges for v in edge.node.inputs if v is not None and _is_side(host, v)
    ]
    plan = MaskProbes(host, values)
    result = []
    for core, edges in candidates:
        real = tuple(edge for edge in edges if plan.spans(edge))
        if not real and not is_attention(core) and not multiplies_streams(host, core):
            continue  # a softmax over experts, or over words
        window = plan.classify(core, real)
        padding, axis = plan.padding(core, real, window), plan.query_axis(real)
        result.append(Masked(core=core, edges=real, window=window, padding=padding, query_axis=axis))
    seen = len(result) + len(alone)
    if seen < host.io.layers:
        raise UnsupportedError(
            f"{host.io.layers} layers keep a cache, and scores meet a Softmax in {seen}: not all masks are seen",
            where=host.graph_name, hint="attentions are MatMul, Softmax, MatMul, or one operator",
        )  # fmt: skip
    return result


def _refuse_own_mask(node: ir.Node) -> None:
    """An attention whose mask is its own must be one that hides later keys, and nothing else.

    Raises:
        UnsupportedError: it is not, or may not be.
    """
    if node.op_type != "GroupQueryAttention":
        raise UnsupportedError(
            f"{node.op_type} makes its mask itself, in a way that is not handled", where=label(node),
            hint="export the decoder with attentions of standard operators",
        )  # fmt: skip
    if len(node.inputs) > _GROUPED_BIAS and node.inputs[_GROUPED_BIAS] is not None:
        raise UnsupportedError(
            "adds a bias to its scores besides its own mask", where=label(node),
            hint="split with --decompose, or run decompose-group-query-attention first: the bias is a mask then",
        )  # fmt: skip
    if not integer_of(node, "causal", 1):
        raise UnsupportedError("sees later keys", where=label(node), hint="only causal attentions are split")


def _is_side(host: Host, value: ir.Value) -> bool:
    return value not in host.stream
