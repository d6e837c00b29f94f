"""Where a decoder may be cut into consecutive parts: where one activation alone leads on, or two.

Two lead on between the layers of fused norms: what a layer adds, and the sum it is added to. Positions, masks and rotary angles
do not count: each part makes them again of the inputs. The bytes of a part are its weights and its share of the KV cache, which
must lie in the device's memory together; what two parts read lies in both."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.flow import depending_on
from qdq_passes.decoder.look.io import DecoderIo
from qdq_passes.errors import UsageError

#: Activations that may lead on.
WIDEST = 2
#: Cuts where two lead on are taken where they make the largest part smaller by more than so much.
WORTH = 0.1


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A place between two nodes of the main graph.

    Args:
        values: the activations that lead on; none at the end of the graph.
        reads: weights and caches read by the nodes since the place before this one, name → bytes.
    """

    values: tuple[ir.Value, ...]
    reads: Mapping[str, int] = field(default_factory=dict)


def cuts(nodes: Sequence[ir.Node], io: DecoderIo, widest: int = 1) -> list[Cut]:
    """The places where at most ``widest`` activations lead on, in order, and last the end.

    Args:
        nodes: those of a decoder's main graph, producers first.
        io: its roles.
        widest: how many may lead on.
    """
    pasts = {pair.past for pair in io.pairs}
    stream = depending_on(nodes, [io.ids, *pasts]) - {io.ids, *pasts}
    last = {value: number for number, node in enumerate(nodes) for value in node.inputs if value is not None}
    found: list[Cut] = []
    live: list[ir.Value] = []
    reads: dict[str, int] = {}
    made_of: dict[ir.Value, dict[str, int]] = {}
    for number, node in enumerate(nodes):
        read = _read_by(node, pasts, made_of)
        if all(v is None or v.is_initializer() or v in made_of for v in node.inputs) and stream.isdisjoint(
            node.outputs
        ):
            made_of.update(
                dict.fromkeys(node.outputs, read)
            )  # a stored weight and its DequantizeLinear go with the reader
            continue
        reads |= read
        new = [value for value in node.outputs if value in stream and last.get(value, -1) > number]
        live = [value for value in live if last[value] > number] + new
        if new and len(live) <= widest:
            found.append(Cut(values=tuple(live), reads=reads))
            reads = {}
    found.append(Cut(values=(), reads=reads))
    return found


def _read_by(
    node: ir.Node, pasts: Collection[ir.Value], made_of: Mapping[ir.Value, Mapping[str, int]]
) -> dict[str, int]:
    """Weights and caches that ``node`` reads, also through nodes that read nothing else, name → bytes."""
    found: dict[str, int] = {}
    for value in node.inputs:
        if value is not None and value in made_of:
            found |= made_of[value]
        elif value is not None and (value.is_initializer() or value in pasts):
            found[value.name or ""] = _bytes(value)
    return found


def _bytes(value: ir.Value) -> int:
    if value.const_value is not None:
        return value.const_value.nbytes
    count = 1
    for size in value.shape or ():
        count *= size if isinstance(size, int) else 1
    return count * (value.dtype.bitwidth if value.dtype is not None else 32) // 8


def chosen_cuts(
    nodes: Sequence[ir.Node],
    io: DecoderIo,
    *,
    parts: int | None = None,
    max_bytes: int | None = None,
    sizes: Mapping[str, int] | None = None,
) -> list[tuple[ir.Value, ...]]:
    """The activations at each cut, so that the largest part is as small as possible; none where one part will do.

    Args:
        nodes: of the decoder's main graph, producers first.
        io: its roles.
        parts: how many parts; None for as few as ``max_bytes`` allows.
        max_bytes: of a part.
        sizes: name of a weight or a past → the bytes that count, none for others; None for all as they are stored.

    Raises:
        UsageError: there are fewer places than parts ask for, or a part would be larger than ``max_bytes``.
    """
    best: tuple[int, list[tuple[ir.Value, ...]]] | None = None
    for widest in range(1, WIDEST + 1):
        places = cuts(nodes, io, widest)
        if sizes is not None:
            places = [replace(place, reads={n: sizes[n] for n in place.reads if n in sizes}) for place in places]
        found = _balanced(places, parts if parts is not None else _fewest(places, max_bytes))
        if found is None:
            continue
        chosen = found[0], [places[end].values for end in found[1][:-1]]
        if best is None or _is_better(chosen, best, parts is None):
            best = chosen
    if best is None:
        raise UsageError(
            f"{parts} parts, and it can be cut in {len(places)} at most", hint=f"give --parts {len(places)} or fewer"
        )
    if max_bytes is not None and best[0] > max_bytes:
        raise UsageError(
            f"a part would have {best[0]:,} bytes of weights and cache, more than {max_bytes:,}",
            hint="give a larger --max-part-bytes, a shorter context, or weights of fewer bits",
        )
    return best[1]


def _is_better(
    new: tuple[int, list[tuple[ir.Value, ...]]], old: tuple[int, list[tuple[ir.Value, ...]]], is_free: bool
) -> bool:
    """Whether cuts where more leads on are worth it: fewer parts, or parts smaller by far."""
    if is_free and len(new[1]) != len(old[1]):
        return new[0] < old[0] if len(new[1]) > len(old[1]) else new[0] <= old[0]
    return new[0] < old[0] * (1 - WORTH)


def _fewest(places: Sequence[Cut], max_bytes: int | None) -> int:
    """How many runs of ``places`` hold at most ``max_bytes`` each, filled one after the other; one that cannot, stands alone."""
    count = 1
    held: dict[str, int] = {}
    for place in places:
        wider = {**held, **place.reads}
        if held and max_bytes is not None and sum(wider.values()) > max_bytes:
            count, wider = count + 1, dict(place.reads)
        held = wider
    return count


def _balanced(places: Sequence[Cut], count: int) -> tuple[int, list[int]] | None:
    """``places`` in ``count`` runs of which the largest is smallest: its bytes, and the index of the last place of each run;
    None where there are fewer places."""
    ends = len(places)
    if not 1 <= count <= ends:
        return None
    sizes = [_sizes_back(places, end) for end in range(ends)]
    best: list[tuple[int, list[int]]] = [(sizes[end][0], [end]) for end in range(ends)]  # one run, to each place
    for run in range(1, count):
        longer: list[tuple[int, list[int]]] = [(0, [])] * ends
        for end in range(run, ends):
            value, before = min((max(best[b][0], sizes[end][b + 1]), b) for b in range(run - 1, end))
            longer[end] = (value, [*best[before][1], end])
        best = longer
    return best[ends - 1]


def _sizes_back(places: Sequence[Cut], end: int) -> list[int]:
    """Bytes of the run from each place to ``end``, what is read several times counted once."""
    sizes, held, total = [0] * (end + 1), set[str](), 0
    for first in range(end, -1, -1):
        for name, size in places[first].reads.items():
            if name not in held:
                held.add(name)
                total += size
        sizes[first] = total
    return sizes
