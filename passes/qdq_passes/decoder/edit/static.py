"""The static shapes of a decoder: sizes of its inputs for B rows, S new tokens and a context of C, by role and by names that
roles bind; and edits that follow a `StaticWalk`: shapes are written down. What stays dynamic is refused, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.dimensions import substitute_dim
from qdq_passes.decoder.look.io import CachePair, DecoderIo
from qdq_passes.decoder.look.updates import SCATTERS
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.evaluate.walk import LARGEST_RESULT, StaticWalk
from qdq_passes.graph.operators.kinds import kind_of
from qdq_passes.graph.sizes import rank_or
from qdq_passes.graph.uses import FLOAT_TYPES, bodies_of, is_constant, is_standard, values_read

#: Operators that make a shape or a constant of one: none of them is left in a static graph.
MAKERS = ("ConstantOfShape", "NonZero", "Range", "Shape", "Size")


def write_shapes(model: ir.Model, walked: StaticWalk) -> None:
    """Types and shapes of the values of the main graph as ``walked`` found them; bodies know none any more."""
    for node in model.graph:
        for value in node.outputs:
            sizes, dtype = walked.shape(value), walked.dtype(value)
            if dtype is not None:
                value.type = ir.TensorType(dtype)
            value.shape = None if sizes is None else ir.Shape(sizes)
        for body in bodies_of(node):
            for inner in body.all_nodes():
                for value in inner.outputs:
                    value.shape = None


def refuse_dynamic(model: ir.Model, walked: StaticWalk) -> None:
    """Refuse the first node of the main graph whose shape is not static, or that makes a shape.

    Raises:
        UnsupportedError: names the node and what makes it dynamic.
    """
    for node in walked.nodes:
        if node.graph is not model.graph:
            continue
        shapeless = any(value.name and walked.shape(value) is None for value in node.outputs)
        if shapeless or is_standard(node, *MAKERS):
            reason, hint = _why_dynamic(model, node, walked)
            raise UnsupportedError(f"{node.op_type} stays dynamic: {reason}", where=node.name, hint=hint)


def _why_dynamic(model: ir.Model, node: ir.Node, walked: StaticWalk) -> tuple[str, str]:
    """In words why nothing static is known of ``node``, and what to do."""
    if node.op_identifier() in model.functions:
        return "it calls a local function", "run inline-functions first"
    if any(v is not None and walked.shape(v) is None for v in node.inputs):
        return "an input of it has no static shape", "look at it with inspect"
    if all(value is None or is_constant(value) for value in node.inputs):
        return (
            f"its result is no constant that can be computed here, or has over {LARGEST_RESULT} elements",
            "fold it before",
        )
    roots = _inputs_behind(model, [v for v in values_read(node) if not is_constant(v)])
    if is_standard(node, *MAKERS) or is_standard(
        node, "Compress", "Unique", "Loop", "If", "Scan", "Resize", "Reshape", "Expand"
    ):
        return (
            f"its shape follows from what {' and '.join(roots) or 'its inputs'} holds",
            "export experts that run over all tokens"
            if is_standard(node, "NonZero", "Compress", "Unique")
            else "export it with static shapes",
        )
    if node.domain in ("", "ai.onnx"):
        sizes = [str(list(walked.shape(value) or [])).replace(" ", "") for value in node.inputs if value is not None]
        return (
            f"inputs of {' and '.join(sizes)} do not fit",
            "an input of the model has other sizes than its role tells",
        )
    return f"no shape function is known for {node.domain}::{node.op_type}", "decompose or inline it first"


def _inputs_behind(model: ir.Model, values: list[ir.Value]) -> list[str]:
    """Names of the graph inputs that ``values`` are computed from."""
    seen, stack = set(values), list(values)
    while stack:
        producer = stack.pop().producer()
        for value in values_read(producer) if producer is not None else ():
            if value not in seen:
                seen.add(value)
                stack.append(value)
    return [value.name or "" for value in model.graph.inputs if value in seen]


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
    """Whether ``value`` is one more mask: of scores, [batch, 1, sequence, total]; of padding, [batch, total], whatever its dims
    are called: one whose size alone is read once masks of scores and positions are inputs of their own."""
    rank = rank_or(value, 0)
    if rank == 2 and value.dtype not in FLOAT_TYPES:
        return "mask" in (value.name or "").lower()
    return value.dtype in FLOAT_TYPES and value.shape is not None and rank == 4 and value.shape[1] == 1


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
