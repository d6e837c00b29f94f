"""fold-constants"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.clean.edit.wrap import changes_of, quiet
from qdq_passes.core.base import EXACT, Change, Keeps, Named, Pass, skip
from qdq_passes.graph.build import Builder, drop_chains
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.evaluate.apply import fold_walked, open_branches
from qdq_passes.graph.evaluate.rare import Compute
from qdq_passes.graph.evaluate.walk import LARGEST_RESULT, Scope, StaticWalk, walk
from qdq_passes.graph.operators.qdq_ops import is_quantization, opset_at
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.graph.uses import (
    FLOAT_TYPES,
    GraphLike,
    all_nodes,
    graph_likes,
    input_at,
    integer_of,
    is_constant,
    is_standard,
    label,
    with_bodies,
)

#: Operators of sequences, whose length onnxscript's folder finds.
_SEQUENCES = ("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SplitToSequence")
#: First opset for which it writes Split and Squeeze.
OPSET_OF_SEQUENCES = 13
#: Operators that onnxscript's folder gets wrong: it writes the sum of two names that Add computes out, which doubles with every
#: Add, drops CastLike's ``saturate`` and opens a Dropout that trains.
_SHIELDED = ("Add", "CastLike", "Dropout")
_SHIELD = "ai.qdqtool.shield"
#: First opset whose Constant has more than floats.
OPSET_OF_ANY_CONSTANT = 9
#: The share of the model's constants that one result may add to them.
_SHARE = 16


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Compute what depends on constants and static shapes only, and store the result.

    Graph: ``Add(2, 3) → shape → Reshape`` → ``5 → shape → Reshape``. Shape and Size of a static shape are constants too, and so
    is a static size that is picked of a dynamic shape; a Reshape is told a computed shape by numbers where all sizes but one are
    known; an If whose condition is constant becomes its branch. In one walk: what is computed gives the shapes of what comes
    after. In bodies and functions too.
    Requires: nothing. Q/DQ nodes are never folded: they carry the quantization.
    Keeps: inputs, outputs and their names; ``what=exact`` bit-exact (integers, booleans, movement, and of floats what IEEE 754
    rounds correctly: sums, differences, products, quotients, square roots; a runtime may sum the product with a stored weight in
    another order than with a computed one); ``what=all`` also other arithmetic of floats, which onnx's reference and the runtime
    may round differently: within the bound.
    Skips: what would make the file larger by more than ``max-growth``, each with its figures; random numbers, casts of floats
    that an integer cannot hold, operators that onnx does not define; without ``compute`` sums of more than 8192
    terms, Resize, and what rounds to 16 bits; without ``weights`` what is computed from a large initializer.

    Args:
        what: ``exact`` or ``all``.
        max_growth: bytes by which a result may be larger than the constants it is computed from; a sixteenth of all constants
            of the model where that is more.
        compute: what computes what may round: the runtime in the verbs of the tool; None: onnx's reference, which has no Resize
            that runtimes agree with.
        weights: whether initializers of more than 8192 elements are read; what hangs on shapes alone needs none of them.
    """

    what: Literal["exact", "all"] = "exact"
    max_growth: int = 2**20
    compute: Compute | Named | None = None
    weights: bool = True

    @property
    def keeps(self) -> Keeps:  # type: ignore[override]
        """Exact, or bounded by the rounding of folded float operators."""
        if self.what == "exact":
            return EXACT
        return Keeps(
            "bounded",
            bound=2.0**-16,
            why="a folded float operator differs by its rounding, ≤ 2^-24·n relative for n accumulated terms (n ≤ 2^13, "
            "random signs: 2^-24·√n ≈ 2^-17.5), amplified ≤ 2 by the consumers",
        )

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Graph after graph, the main graph first; sequences with onnxscript's folder."""
        is_newer = model.opset_imports.get("", 0) >= OPSET_OF_SEQUENCES
        if is_newer and any(is_standard(node, *_SEQUENCES) for node in all_nodes(model)):
            yield from changes_of(model, _fold_sequences, "the sequence is known")
        for root in graph_likes(model):
            done: set[GraphLike] = set()
            while graph := next((graph for graph in with_bodies(root) if graph not in done), None):
                done.add(graph)
                yield from self._fold(model, graph)

    def _fold(self, model: ir.Model, graph: GraphLike) -> Iterator[Change]:
        """Walk ``graph`` until no branch opens and nothing grows too much, then store."""
        compute = None if isinstance(self.compute, Named) else self.compute
        scope = Scope(weights=self.weights, rounding=self.what == "all", compute=compute, declared=True)
        walked = walk(model, {}, graph=graph, scope=scope)
        while opened := list(open_branches(model, walked)):
            yield from opened
            walked = walk(model, {}, graph=graph, scope=scope)
        limit = self.max_growth
        if any(array.nbytes > limit for array in walked.arrays.values()):
            limit = max(limit, _bytes_of_constants(model) // _SHARE)
        while growing := _growing(walked, limit):
            for node, (size, source) in growing.items():
                yield skip(node, f"its {size:,} bytes would take the place of {source:,}: more than max-growth allows")
            scope = replace(scope, barred=scope.barred | growing.keys())
            walked = walk(model, {}, graph=graph, scope=scope)
        while unsaid := _inexpressible(model, graph, walked):
            scope = replace(scope, barred=scope.barred | unsaid)
            walked = walk(model, {}, graph=graph, scope=scope)
        walked = _without_constants(walked)
        for node in walked.nodes:
            if node not in walked.computed | scope.barred and _reads_constants_only(node, walked):
                yield skip(node, self._why_not(node, walked))
        shapes = list(_shapes_with_one_gap(walked))
        yield from fold_walked(model, walked, graph)
        if shapes:
            yield from _told(model, shapes)

    def _why_not(self, node: ir.Node, walked: StaticWalk) -> str:
        count = max((np.prod(walked.shape(value) or [1], dtype=np.float64) for value in node.outputs), default=0)
        if count > LARGEST_RESULT:
            return f"its inputs are constant, but its result has over {LARGEST_RESULT:,} elements"
        floats = any(value.dtype is None or value.dtype.is_floating_point() for value in node.outputs)
        if self.what == "exact" and floats:
            return "its inputs are constant, but runtimes may round it differently (what=all folds it)"
        return "its inputs are constant, but its result cannot be foretold"


def _shapes_with_one_gap(walked: StaticWalk) -> Iterator[tuple[ir.Node, list[int]]]:
    """Reshapes whose computed shape can be said by numbers: 0 where a size is copied, −1 for the one that is left."""
    for node in walked.nodes:
        target = input_at(node, 1)
        if target not in walked.parts or not is_standard(node, "Reshape") or integer_of(node, "allowzero", 0):
            continue
        sizes = walked.sizes(node.inputs[0]) if node.inputs[0] is not None else None
        wanted = [
            0 if isinstance(size, str) and sizes is not None and size == dict(enumerate(sizes)).get(axis) else size
            for axis, size in enumerate(walked.parts[target].sizes)
        ]
        gaps = [axis for axis, size in enumerate(wanted) if not isinstance(size, int) or size == -1]
        zeros = [size for axis, size in enumerate(walked.parts[target].sizes) if size == 0]
        is_new = any(not isinstance(wanted[axis], int) for axis in gaps)
        if (
            len(gaps) < 2 and not zeros and not (is_new and 0 in wanted)
        ):  # of nothing −1 cannot be told beside a copied 0
            yield node, [size if isinstance(size, int) else -1 for size in wanted]


def _told(model: ir.Model, shapes: list[tuple[ir.Node, list[int]]]) -> Iterator[Change]:
    """Let each node read its shape as a constant."""
    builder = Builder(model)
    for node, sizes in shapes:
        old = node.inputs[1]
        node.replace_input_with(1, builder.at(node).constant(sizes, word="shape"))
        yield Change("edit", label(node), f"its shape is {sizes}")
        yield from drop_chains([old])


def _inexpressible(model: ir.Model, graph: GraphLike, walked: StaticWalk) -> set[ir.Node]:
    """Computed nodes whose results would have to be Constants, of a type that those do not have in the opset."""
    nodes = [producer for value in walked.arrays if (producer := value.producer()) is not None]
    if not nodes or opset_at(model, nodes[0]) >= OPSET_OF_ANY_CONSTANT:
        return set()
    as_nodes = not isinstance(graph, ir.Graph) or Namer(model).takes_no_initializers(graph)
    return {
        node
        for value, node in zip(walked.arrays, nodes, strict=True)
        if (as_nodes or value.is_graph_output())
        and walked.dtype(value) not in FLOAT_TYPES
        and not is_standard(node, "Constant")
    }


def _growing(walked: StaticWalk, limit: int) -> dict[ir.Node, tuple[int, int]]:
    """Computed nodes with results to store that are larger by more than ``limit`` bytes than the constants they are made of, and
    the nodes before those that are; to each the bytes of both."""
    found: dict[ir.Node, tuple[int, int]] = {}
    large = [value.producer() for value, array in walked.arrays.items() if array.nbytes > limit]
    for last in large:
        for node in [] if last is None else [last, *_computed_before(last, walked)]:
            size = max((_bytes_of(walked, value) for value in node.outputs), default=0)
            if size <= limit or node in found or is_standard(node, "Constant"):
                continue
            source = sum(_constant_bytes(value) for value in _roots(node, walked))
            if size > limit + source:
                found[node] = size, source
    return found


def _computed_before(last: ir.Node, walked: StaticWalk) -> dict[ir.Node, None]:
    """The computed nodes that ``last`` hangs on."""
    found: dict[ir.Node, None] = {}
    stack = [last]
    while stack:
        for value in stack.pop().inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer in walked.computed and producer not in found:
                found[producer] = None
                stack.append(producer)
    return found


def _roots(node: ir.Node, walked: StaticWalk) -> dict[ir.Value, None]:
    """The initializers and Constants that the computed ``node`` hangs on."""
    nodes = [node, *_computed_before(node, walked)]
    return dict.fromkeys(value for n in nodes for value in n.inputs if value is not None and is_constant(value))


def _bytes_of(walked: StaticWalk, value: ir.Value) -> int:
    dtype, shape = walked.dtype(value), walked.shape(value)
    return 0 if dtype is None or shape is None else int(np.prod(shape, dtype=np.int64) * dtype.itemsize)


def _constant_bytes(value: ir.Value) -> int:
    if value.const_value is not None:
        return value.const_value.nbytes
    producer = value.producer()
    tensor = None if producer is None else producer.attributes.get("value")
    return 8 if tensor is None or tensor.is_ref() else tensor.as_tensor().nbytes


def _bytes_of_constants(model: ir.Model) -> int:
    """Bytes of the initializers and the Constants of ``model``."""
    stored = sum(_constant_bytes(value) for graph in model.graphs() for value in graph.initializers.values())
    return stored + sum(_constant_bytes(n.outputs[0]) for n in all_nodes(model) if is_standard(n, "Constant"))


def _without_constants(walked: StaticWalk) -> StaticWalk:
    """``walked`` without the Constants that stay, which are stored as they are."""
    kept = {value.producer() for value in walked.arrays}
    constants = {node for node in walked.computed if is_standard(node, "Constant") and node in kept}
    arrays = {value: array for value, array in walked.arrays.items() if value.producer() not in constants}
    return replace(walked, computed=walked.computed - constants, arrays=arrays)


def _reads_constants_only(node: ir.Node, walked: StaticWalk) -> bool:
    given = [value for value in node.inputs if value is not None]
    is_plain = bool(given) and not is_quantization(node) and not is_standard(node, "If", "Loop", "Scan")
    return is_plain and all(is_constant(value) or value in walked.arrays for value in given)


def _fold_sequences(model: ir.Model) -> None:
    from onnxscript import optimizer

    with _shielded(model), quiet("onnxscript"):
        optimizer.fold_constants(model, onnx_shape_inference=False, should_fold=lambda _: False)


def _is_split_unknown(node: ir.Node) -> bool:
    """Whether ``node`` splits into pieces of a size that is computed: onnxscript's folder fails there."""
    split = input_at(node, 1)
    return (
        is_standard(node, "SplitToSequence")
        and split is not None
        and not is_constant(split)
        and static_sizes(split) == []
    )


@contextmanager
def _shielded(model: ir.Model) -> Iterator[None]:
    """Hide operators from onnxscript's folder behind a domain that is not imported: it passes those by."""
    hidden = [(n, n.domain) for n in all_nodes(model) if is_standard(n, *_SHIELDED) or _is_split_unknown(n)]
    for node, _ in hidden:
        node.domain = _SHIELD
    try:
        yield
    finally:
        for node, domain in hidden:
            node.domain = domain
