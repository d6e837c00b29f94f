"""What a decoder computes on the side: all that depends neither on ids or embeddings nor on what is in the cache.

Shapes of those may be read: masks, positions and the sizes of reshapes are made of them. This *host region* is evaluated in
numbers under given sizes; of everything else the shapes alone are followed. Weights are not read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.flow import SHAPE_READERS, depending_on
from qdq_passes.decoder.look.io import DecoderIo
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.evaluate.node import SHOWN, NodeEvaluator, Spec
from qdq_passes.graph.operators.kinds import kind_of
from qdq_passes.graph.sizes import rank_or, size_at
from qdq_passes.graph.uses import FLOAT_TYPES, constant_array, in_order, is_constant, label, needed_for, values_read
from qdq_passes.numerics.arrays import Array

#: Bytes of a constant up to which it is read: causal buffers and tables of positions, not embeddings of words.
READ_BYTES = 1 << 26
#: Size of an axis of the cache that the file only names, until the rows that join the cache tell it.
_HEAD_SIZE = 16
#: Name of a mask input of rank 4 that is made for a window of keys.
_WINDOW = re.compile(r"_w(\d+)$")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of one probe.

    Args:
        batch: rows.
        past: tokens in the cache.
        new: tokens of this run.
    """

    batch: int = 1
    past: int
    new: int

    @property
    def total(self) -> int:
        """Tokens in all."""
        return self.past + self.new


@dataclass
class Probed:
    """What one probe found.

    Args:
        arrays: values of the host region in numbers.
        specs: types and shapes, of other values too.
        failures: nodes of the host region that could not be evaluated, and why.
    """

    arrays: dict[ir.Value, Array] = field(default_factory=dict)
    specs: dict[ir.Value, Spec] = field(default_factory=dict)
    failures: dict[ir.Node, str] = field(default_factory=dict)

    def array(self, value: ir.Value) -> Array:
        """``value`` in numbers.

        Raises:
            UnsupportedError: it could not be evaluated; the node at which that failed is named.
        """
        if value in self.arrays:
            return self.arrays[value]
        node, why = self._cause(value)
        if node is None:
            raise UnsupportedError(
                "is an input that nothing is known to feed", where=why,
                hint="only decoders whose states are keys and values are handled; make it a constant, or export without it",
            )  # fmt: skip
        raise UnsupportedError(f"cannot be evaluated: {why}", where=label(node), hint=f"{value.name} depends on it")

    def _cause(self, value: ir.Value) -> tuple[ir.Node | None, str]:
        """The node that failed and why; None and the name of the input that is not known."""
        stack, seen = [value], {value}
        while stack:
            at = stack.pop()
            node = at.producer()
            if node is None:
                return None, at.name or ""
            if node in self.failures:
                return node, self.failures[node]
            missing = [v for v in values_read(node) if v not in self.arrays and v not in seen]
            seen.update(missing)
            stack += missing
        return value.producer(), "its inputs are not known"


class Host:
    """The host region of ``model``; built once, probed often."""

    def __init__(self, model: ir.Model, io: DecoderIo) -> None:
        self.io, self.graph_name = io, model.graph.name
        self.inputs, self.outputs = tuple(model.graph.inputs), tuple(model.graph.outputs)
        self.nodes = in_order(model.graph)
        contents = [io.ids, *(pair.past for pair in io.pairs)]
        #: What depends on ids or the content of the cache.
        self.stream = depending_on(self.nodes, contents)
        inputs = [v for v in self.inputs if v.name not in model.graph.initializers]
        #: What depends on any input or its shape.
        self.dynamic = depending_on(self.nodes, inputs, by_shape=True)
        self._evaluator = NodeEvaluator(model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1)))
        self._constants: dict[ir.Value, Array] = {}
        self._joins = {pair.update: pair for pair in io.pairs if kind_of(pair.update) == "Concat"}

    def is_host(self, value: ir.Value) -> bool:
        """Whether ``value`` lies in the region and is no constant."""
        return value in self.dynamic and value not in self.stream

    def probe(
        self,
        sizes: Sizes,
        *,
        mask: Array | None = None,
        positions: Array | None = None,
        replaced: Mapping[ir.Value, Array] | None = None,
        wanted: Collection[ir.Value] | None = None,
    ) -> Probed:
        """Evaluate under ``sizes``.

        Args:
            sizes: rows and tokens.
            mask: [batch, total] for the mask input, all ones by default.
            positions: [batch, new] for the input of positions, past + 0…new-1 by default.
            replaced: values that are something else than what the graph computes.
            wanted: evaluate what these need; everything by default.
        """
        found = Probed()
        for value, array in self._feeds(sizes, mask, positions).items():
            if array is not None:
                _put(found, value, array)
        found.specs = self._specs(sizes) | found.specs
        for value, array in (replaced or {}).items():
            _put(found, value, array)
        needed = None if wanted is None else needed_for(wanted)
        for node in self.nodes:
            if (needed is None or node in needed) and any(v in self.dynamic for v in node.outputs):
                self._step(node, found, set(replaced or ()))
        for value in wanted or ():
            if value not in found.arrays and value not in self.dynamic:
                self._read(value, found)
        return found

    def _step(self, node: ir.Node, found: Probed, replaced: Collection[ir.Value]) -> None:
        """Put what ``node`` computes into ``found``."""
        outputs = [v for v in node.outputs if v not in replaced]
        if not any(v in self.stream for v in node.outputs):
            arrays: list[Array] | str | None
            if kind_of(node) in SHAPE_READERS and node.inputs[0] is not None:
                arrays = self._shape_of(node, node.inputs[0], found)
            else:
                missing = [v for v in values_read(node) if v not in found.arrays and not self._read(v, found)]
                arrays = None if missing else self._evaluator.arrays(node, found.arrays)
            if isinstance(arrays, str):
                found.failures[node] = arrays
            for value, array in zip(node.outputs, arrays if isinstance(arrays, list) else (), strict=False):
                if value in outputs:
                    _put(found, value, array)
            if isinstance(arrays, list):
                return
        for v in node.inputs:
            if v is not None and v not in found.specs:
                self._describe(v, found)
        self._settle(node, found)
        for value, spec in zip(node.outputs, self._evaluator.specs(node, found.specs, found.arrays), strict=True):
            if spec is not None and value in outputs:
                found.specs[value] = spec

    def _shape_of(self, node: ir.Node, value: ir.Value, found: Probed) -> list[Array] | str:
        if value not in found.specs:
            self._describe(value, found)
        if value not in found.specs:
            return f"the shape of {value.name} is not known"
        shape = np.array(found.specs[value].shape, np.int64)
        if kind_of(node) == "Size":
            return [np.array(shape.prod(), np.int64)]
        first, last = node.attributes.get("start"), node.attributes.get("end")
        return [shape[slice(first.as_int() if first else None, last.as_int() if last else None)]]

    def _describe(self, value: ir.Value, found: Probed) -> None:
        """Type and shape of a constant or of what is computed from some; small ones are read, for they may be axes and sizes."""
        if value in self.dynamic:
            return
        tensor, node = value.const_value, value.producer()
        if tensor is not None:
            found.specs[value] = Spec(tensor.dtype, tuple(int(size) for size in tensor.shape.numpy()))
        elif node is not None and not is_constant(value):
            for v in values_read(node):
                if v not in found.specs:
                    self._describe(v, found)
            for output, spec in zip(node.outputs, self._evaluator.specs(node, found.specs, found.arrays), strict=True):
                if spec is not None:
                    found.specs[output] = spec
        if value not in found.specs or np.prod(found.specs[value].shape) <= SHOWN:
            self._read(value, found)

    def _read(self, value: ir.Value, found: Probed) -> bool:
        """Whether ``value`` is a constant, or computed from constants, and could be read."""
        if value in self.dynamic:
            return False
        if value not in self._constants:
            array = None
            node = value.producer()
            if is_constant(value):
                tensor = value.const_value
                array = constant_array(value) if tensor is None or tensor.nbytes <= READ_BYTES else None
            elif node is not None and all(self._read(v, found) for v in values_read(node)):
                arrays = self._evaluator.arrays(node, found.arrays)
                if isinstance(arrays, str):
                    found.failures[node] = arrays
                else:
                    array = dict(zip(node.outputs, arrays, strict=True))[value]
            if array is None:
                return False
            self._constants[value] = array
        _put(found, value, self._constants[value])
        return True

    def _specs(self, sizes: Sizes) -> dict[ir.Value, Spec]:
        """Types and shapes of ids, caches and inputs without a role; those by the names of their dimensions."""
        found = {self.io.ids: Spec(self.io.ids.dtype, _shape(self.io.ids, [sizes.batch, sizes.new]))}
        named = dict(zip(_names(self.io.ids), (sizes.batch, sizes.new), strict=False))
        for value in self.io.others:
            if value.shape is not None:
                found[value] = Spec(value.dtype, _shape(value, [named.get(name or "") for name in _names(value)]))
        for pair in self.io.pairs:
            rank = rank_or(pair.past, 4)
            known = {pair.batch_axis: sizes.batch, pair.axis: sizes.past}
            guessed = [known.get(axis, size_at(pair.present, axis)) for axis in range(rank)]
            found[pair.past] = Spec(pair.past.dtype, _shape(pair.past, guessed, free=_HEAD_SIZE))
        return found

    def _settle(self, node: ir.Node, found: Probed) -> None:
        """Sizes of a past that the file only names, from the rows that ``node`` joins to it."""
        pair = self._joins.get(node)
        if pair is None or pair.past not in node.inputs or pair.past not in found.specs:
            return
        spec = found.specs[pair.past]
        rows = next((found.specs[v].shape for v in node.inputs if v is not pair.past and v in found.specs), ())
        if len(rows) == len(spec.shape):
            dims = list(pair.past.shape) if pair.past.shape is not None else [None] * len(rows)
            is_open = [a not in (pair.axis, pair.batch_axis) and not isinstance(d, int) for a, d in enumerate(dims)]
            sizes = tuple(rows[a] if is_open[a] else size for a, size in enumerate(spec.shape))
            found.specs[pair.past] = Spec(spec.dtype, sizes)

    def _feeds(self, sizes: Sizes, mask: Array | None, positions: Array | None) -> dict[ir.Value, Array | None]:
        """Inputs in numbers; those without a role by what their type and name suggest."""
        arange = np.broadcast_to(np.arange(sizes.past, sizes.total), (sizes.batch, sizes.new))
        given = arange if positions is None else positions
        ones = np.ones((sizes.batch, sizes.total)) if mask is None else mask
        found: dict[ir.Value, Array | None] = {}
        if self.io.mask is not None:
            found[self.io.mask] = _as(self.io.mask, _mask(self.io.mask, ones, sizes))
        for value in (self.io.positions, *self.io.others):
            if value is not None:
                is_position = value is self.io.positions
                rows = given if is_position else arange
                is_mask = "mask" in (value.name or "") and not is_position
                found[value] = (
                    _as(value, _mask(value, ones, sizes)) if is_mask else _other(value, rows, sizes, is_position)
                )
        return found


def fixed_sizes(host: Host) -> tuple[int, int]:
    """Tokens in the cache and tokens of a run where the file fixes them, 0 where not."""
    pair = host.io.pairs[0]
    return size_at(pair.past, pair.axis) or 0, size_at(host.io.ids, 1) or 0


def batch_of(host: Host) -> int:
    """Rows of a probe of a whole batch: what the file fixes, else 2."""
    ids = host.io.ids.shape
    batch = ids[0] if ids is not None and len(ids) else 2
    return batch if isinstance(batch, int) else 2


def _put(found: Probed, value: ir.Value, array: Array) -> None:
    found.arrays[value] = array
    found.specs[value] = Spec(value.dtype or ir.DataType.from_numpy(array.dtype), array.shape)


def _shape(value: ir.Value, known: Sequence[int | None], free: int = 1) -> tuple[int, ...]:
    """Sizes of ``value``: those known by role, else those of the file, else ``free``."""
    dims: list[object] = list(value.shape) if value.shape is not None else [None] * len(known)
    sizes: list[int] = []
    for axis, dim in enumerate(dims):
        role = known[axis] if axis < len(known) else None
        sizes.append(role if role is not None else dim if isinstance(dim, int) else free)
    return tuple(sizes)


def _names(value: ir.Value) -> list[str | None]:
    """Names of dimensions, None for numbers."""
    return [] if value.shape is None else [None if isinstance(d, int) else d.value for d in value.shape]


def _as(value: ir.Value, array: Array) -> Array:
    return array.astype(value.dtype.numpy()) if value.dtype is not None else array.astype(np.int64)


def _mask(value: ir.Value, ones: Array, sizes: Sizes) -> Array:
    """[batch, total] as it is; of rank 4 causal besides, within the window of its name, and additive where it is float."""
    rank = rank_or(value, 2)
    if rank <= 2:
        return ones if rank == 2 else ones[0]
    queries, keys = np.arange(sizes.past, sizes.total)[:, None], np.arange(sizes.total)
    window = _WINDOW.search(value.name or "")
    seen = (
        (keys <= queries)
        & (ones[:, None, None, :] > 0)
        & (keys > queries - (int(window[1]) if window else sizes.total))
    )
    seen = seen if rank == 4 else seen[:, 0]
    return np.where(seen, 0.0, -3e4) if value.dtype in FLOAT_TYPES else seen


def _other(value: ir.Value, positions: Array, sizes: Sizes, is_position: bool) -> Array | None:
    """Positions in the shape that ``value`` has; flags are set, counts by their names, the rest zeros of its shape."""
    rank, name = rank_or(value, 2), (value.name or "").lower()
    if is_position or "position" in name:
        shapes = {0: positions[0, 0], 1: positions[0], 2: positions}
        return _as(value, shapes[rank] if rank in shapes else np.broadcast_to(positions, (3, *positions.shape)))
    if value.dtype is None or not (value.dtype.is_integer() or value.dtype == ir.DataType.BOOL):
        return None
    shape = _shape(value, [sizes.batch, sizes.new][:rank])
    number = sizes.total if "total" in name else sizes.past if "past" in name else int(value.dtype == ir.DataType.BOOL)
    return _as(value, np.full(shape, number))
