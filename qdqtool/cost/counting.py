"""What each node of a graph has to do, judged after the folding that a compiler does, before any chip is asked how long it takes.

Weights count by their shapes, so that a graph without its data file is enough.
Folded are constants and shape arithmetic; one function each are a norm, a GELU, a SiLU, a softmax in its pieces; nothing costs a
QDQ pair, a reshape, an activation or a BatchNormalization behind its layer, a bias behind its product, a repeated KV head."""

from __future__ import annotations

import math
from typing import Literal

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.budget import uncollected
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.annotate import PART
from qdq_passes.graph.operators.fused_products import is_attention
from qdq_passes.graph.operators.kinds import ELEMENTWISE, NORMS, is_passed, kind_of
from qdq_passes.graph.operators.macs import macs_of
from qdq_passes.graph.shapes.inference import infer_shapes
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.graph.uses import FLOAT_TYPES, integer_of, integers_of, is_constant, label, only_reader, readers
from qdq_passes.pipeline.pipeline import run_pipeline

#: What marks functions in their pieces, after the folding.
FUSING = "remove-nan-guards," + ",".join(
    f"fuse-{name}{{into=group}}"
    for name in ("layer-norm", "rms-norm", "gelu", "silu", "hard-swish", "l2-norm", "instance-norm")
)

Kind = Literal["dense", "grouped", "depthwise", "product", "move", "elementwise", "function", "pool"]

#: Layers, the activations that they compute themselves, and what costs nothing in a compiled graph.
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_INSIDE = ("Clip", "LeakyRelu", "PRelu", "Relu")
_FREE = frozenset(
    {"Constant", "ConstantOfShape", "Flatten", "Range", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"}
)
#: Dimensions of a map of features: a product of such with weights is a 1x1 convolution.
_MAP = 4
_FUNCTIONS = frozenset({"Cos", "Erf", "Exp", "Gelu", "Log", "LogSoftmax", "Mish", "Pow", "Sigmoid", "Sin", "Softmax", "Softplus",
                        "Sqrt", "Swish", "Tanh"}) | NORMS - {"BatchNormalization"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Count:
    """What one node, or a group that is one operator, does in one run of batch 1.

    Args:
        name: of the node, or of the group's first.
        op: its operator, or the one that the group computes.
        kind: which of the form's terms it belongs to.
        macs: multiply-accumulates.
        weights: elements of its constants of more than one dimension.
        reads: elements that flow in.
        writes: elements that flow out; of a pool those that its windows read.
        width: input channels of one group of a grouped convolution, else 0.
    """

    name: str
    op: str
    kind: Kind
    macs: int = 0
    weights: int = 0
    reads: int = 0
    writes: int = 0
    width: int = 0


def counted(model: ir.Model) -> tuple[list[Count], list[str]]:
    """The nodes of ``model`` that a compiled graph spends time on, and the names of those whose shapes are not static.

    Args:
        model: it is changed, and good for nothing else; files of its weights may be missing (`load` without ``weights``).

    Raises:
        UnsupportedError: no node has static shapes; with the inputs that have none.
    """
    with uncollected():
        if model.functions:
            run_pipeline(model, "inline-functions")
        moving = _bind_batch(model)
        _fold(model)
        counting = _Counting(model)
        counting.run()
    if moving and not any(count.kind in ("dense", "product") for count in counting.counts):
        raise UnsupportedError(
            "its sizes are not static",
            where=", ".join(moving),
            hint="qdqtool fix-shapes; for a decoder qdqtool split, or its config.json",
        )
    return counting.counts, counting.uncounted


def _fold(model: ir.Model) -> None:
    """What a compiler folds, on a copy that is thrown away; shapes are inferred where they are not written down."""
    run_pipeline(model, "give-names,lift-constants")
    if _unknown(model):
        infer_shapes(model)
    before = len(model.graph)
    run_pipeline(model, "fold-constants{weights=false}")
    if len(model.graph) != before and _unknown(model):
        infer_shapes(model)
    run_pipeline(model, FUSING)


def _unknown(model: ir.Model) -> bool:
    return any(static_sizes(value) is None for node in model.graph for value in node.outputs if value.name)


def _bind_batch(model: ir.Model) -> list[str]:
    """Make the first dimension of each input 1 where it is not static; returns the inputs that have others that are not."""
    moving = []
    for value in model.graph.inputs:
        if value.shape is not None and value.shape and not isinstance(value.shape[0], int):
            value.shape = ir.Shape([1, *value.shape[1:]])
        if value.shape is None or not value.shape.is_static():
            moving.append(value.name or "")
    return moving


class _Counting:
    def __init__(self, model: ir.Model) -> None:
        self.nodes = list(model.graph)
        self.fixed = set(model.graph.initializers.values())
        self.counts: list[Count] = []
        self.uncounted: list[str] = []
        self.seen: set[str] = set()

    def run(self) -> None:
        """Count, in the order of the graph."""
        for node in self.nodes:
            data = [value for value in node.inputs if value is not None]
            if all(value in self.fixed or is_constant(value) for value in data) and not node.op_type.startswith(
                "Random"
            ):
                self.fixed.update(node.outputs)
                continue
            try:
                found = self._count(node)
            except UnsupportedError:
                self.uncounted.append(label(node))
                continue
            if found is not None:
                self.counts.append(found)

    def _count(self, node: ir.Node) -> Count | None:
        kind = kind_of(node)
        if kind in _FREE or is_passed(node) or not node.outputs:
            return None
        if (node.outputs[0].dtype or ir.DataType.FLOAT) not in FLOAT_TYPES and not node.op_type.startswith("QLinear"):
            return None
        part = PART.get(node)
        if part is not None:
            if part.of in self.seen:
                return None
            self.seen.add(part.of)
            return self._made(node, "function", op=part.operator)
        if kind in _LAYERS or is_attention(node):
            return self._layer(node, kind)
        if self._is_inside(node, kind):
            return None
        if kind in _FUNCTIONS:
            return self._made(node, "function")
        if "Pool" in kind or kind.startswith(("Reduce", "Arg")):
            return self._pool(node)
        return self._made(node, "elementwise" if kind in ELEMENTWISE or kind == "BatchNormalization" else "move")

    def _is_inside(self, node: ir.Node, kind: str) -> bool:
        """Whether ``node`` costs nothing beside the one it stands behind or before."""
        source = node.inputs[0]
        maker = source.producer() if source is not None else None
        behind = kind_of(maker) if source is not None and maker is not None and only_reader(source) is node else ""
        if kind in _INSIDE:
            return behind in (*_LAYERS, "Add", "BatchNormalization")
        if kind == "BatchNormalization":
            return behind in ("Conv", "ConvTranspose", "Gemm")
        if kind == "Add":
            return any(self._is_bias(node, index) for index in (0, 1))
        if kind == "Expand":
            return _feeds_products(node.outputs[0])
        return kind == "Transpose" and (_is_renaming(node) or _is_layout(node))

    def _is_bias(self, node: ir.Node, index: int) -> bool:
        value, other = node.inputs[index], node.inputs[1 - index]
        maker = value.producer() if value is not None else None
        if value is None or maker is None or other not in self.fixed:
            return False
        return kind_of(maker) in _LAYERS and only_reader(value) is node

    def _layer(self, node: ir.Node, kind: str) -> Count:
        macs = macs_of(node)
        if macs is None:
            raise _not_static(node)
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        if is_attention(node) or (weight is not None and self._source(weight) not in self.fixed):
            return self._made(node, "product", macs=macs)
        sizes = _sizes(node, weight)
        groups, width = integer_of(node, "group", 1), sizes[1] if len(sizes) > 1 else 1
        if kind not in ("Conv", "ConvTranspose") or groups == 1:
            op = "Conv" if kind == "MatMul" and len(_sizes(node, node.inputs[0])) == _MAP else ""
            return self._made(node, "dense", op=op, macs=macs, weights=math.prod(sizes))
        form: Kind = "depthwise" if width == 1 else "grouped"
        return self._made(node, form, macs=macs, weights=math.prod(sizes), width=width)

    def _source(self, value: ir.Value) -> ir.Value:
        """``value`` before the pairs and casts it went through."""
        while (maker := value.producer()) is not None and is_passed(maker) and maker.inputs[0] is not None:
            value = maker.inputs[0]
        return value

    def _pool(self, node: ir.Node) -> Count:
        window = math.prod(integers_of(node, "kernel_shape")) if integers_of(node, "kernel_shape") else 0
        read = math.prod(_sizes(node, node.inputs[0]))
        return self._made(node, "pool", writes=math.prod(_sizes(node, node.outputs[0])) * window if window else read)

    def _made(
        self,
        node: ir.Node,
        kind: Kind,
        *,
        op: str = "",
        macs: int = 0,
        weights: int = 0,
        writes: int | None = None,
        width: int = 0,
    ) -> Count:
        flowing = [
            value for value in node.inputs if value is not None and value not in self.fixed and not is_constant(value)
        ]
        return Count(
            name=label(node),
            op=op or node.op_type,
            kind=kind,
            macs=macs,
            weights=weights,
            reads=sum(math.prod(_sizes(node, value)) for value in flowing),
            writes=sum(math.prod(_sizes(node, v)) for v in node.outputs if v.name) if writes is None else writes,
            width=width,
        )


def _sizes(node: ir.Node, value: ir.Value | None) -> list[int]:
    sizes = static_sizes(value)
    if sizes is None:
        raise _not_static(node)
    return sizes


def _not_static(node: ir.Node) -> UnsupportedError:
    return UnsupportedError(
        "its shapes are not static",
        where=label(node),
        hint="make them so: qdqtool fix-shapes, or qdqtool split for a decoder",
    )


def _is_renaming(node: ir.Node) -> bool:
    """Whether a Transpose leaves the elements where they are, or is the turned operand of a product."""
    order, sizes = integers_of(node, "perm"), static_sizes(node.inputs[0])
    if sizes is None or sorted(order) != [*range(len(sizes))]:
        return False
    kept = [axis for axis in order if sizes[axis] != 1]
    if kept == sorted(kept):
        return True
    rank = len(order)
    turned = order == [*range(rank - 2), rank - 1, rank - 2]
    return turned and all(kind_of(reader) == "MatMul" for reader, _ in readers(node.outputs[0]))


def _is_layout(node: ir.Node) -> bool:
    """Whether a Transpose takes a map's channels to the end, where runtimes keep them anyway, or back from there; what a Reshape
    or the caller gives is no map of that order yet."""
    order, source = integers_of(node, "perm"), node.inputs[0]
    maker = source.producer() if source is not None else None
    return order == [0, 3, 1, 2] or (order == [0, 2, 3, 1] and maker is not None and kind_of(maker) != "Reshape")


def _feeds_products(value: ir.Value) -> bool:
    """Whether all that reads ``value``, through reshapes and transposes, are products: KV heads that are repeated."""
    found = readers(value)
    return bool(found) and all(
        kind_of(reader) == "MatMul"
        or (kind_of(reader) in ("Reshape", "Transpose", "Unsqueeze") and _feeds_products(reader.outputs[0]))
        for reader, _ in found
    )
