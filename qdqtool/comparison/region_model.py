"""A model that holds regions side by side: each border is an input of its own, and of the pairs only some are there.

… → Conv → y → Q → DQ → Relu → …      ⇒      … → Conv → y → Q' → DQ' → y@out,    y@in → Q → DQ → Relu → …

A pair that is not there is looked through; of a weight the float data take its place. Quantizers of other tools drop a Relu or
Clip where the grid cuts alike: it stands before the pair again, so that cutting does not count as rounding."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.edit import Namer, copy_model
from qdq_passes.graph.operators.qdq_ops import OPERATORS, is_dequantize, is_quantize, is_quantize_dequantize
from qdq_passes.graph.uses import constant_array, dtype_of, is_standard, values_read
from qdq_passes.numerics.encoding import Encoding, is_integer_type
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.numerics.reencode import real_range
from qdq_passes.qdq.look.pairs import Pair, dequantizers, encoding_of, pair_of

from qdqtool.comparison.regions import Regions, is_conversion

Cause = Literal["weight", "activation", "output", "bias"]
#: Operators that cut.
CUTTING = ("Clip", "Relu")
CAUSES: tuple[Cause, ...] = ("weight", "activation", "output", "bias")

#: (low, high), None where nothing is cut.
Bounds: TypeAlias = "tuple[float | None, float | None]"

#: Rounding, to the nearest step or by a search up or down, is off by less than one step (float32 noise allowed).
ONE_STEP = 1.001
#: Share of the elements of a weight that must be so near to the float model's; others may have been clipped.
SAME_WEIGHT = 0.99


@dataclass(frozen=True, eq=False, kw_only=True)
class RegionModel:
    """Regions side by side.

    Args:
        model: the model.
        inputs: name of a graph input → tensor of the float model to feed it with.
        outputs: (region, tensor) → graph output.
        assumed: regions one of whose weights or biases is not known in float: it is as it is stored.
    """

    model: ir.Model
    inputs: dict[str, str]
    outputs: dict[tuple[str, str], str]
    assumed: frozenset[str]


@dataclass(frozen=True, eq=False, kw_only=True)
class Recipe:
    """What every variant of a model's regions is made from.

    Args:
        model: the quantized model, types inferred; only read.
        regions: its regions.
        constants: float constants of the float model by name.
        is_prepared: whether the float model was prepared as the quantized one was, so that these are its weights.
        moved: tensor → encoding instead of its own.
        bounds: tensor that a Relu or Clip of the float model writes → what it cuts to.
    """

    model: ir.Model
    regions: Regions
    constants: Mapping[str, ir.TensorProtocol] = field(default_factory=dict)
    is_prepared: bool = False
    moved: Mapping[str, Encoding] = field(default_factory=dict)
    bounds: Mapping[str, Bounds] = field(default_factory=dict)

    def build(self, active: Collection[Cause], wanted: Collection[str], *, moved: bool = False) -> RegionModel:
        """The regions named ``wanted`` with the pairs of the causes ``active``, on the encodings of ``moved`` if asked for."""
        copy = copy_model(self.model)
        return _Builder(self, copy, frozenset(active), Namer(copy)).build(wanted, moved=moved)


@dataclass(eq=False)
class _Builder:
    recipe: Recipe
    model: ir.Model
    active: frozenset[Cause]
    namer: Namer
    added: set[ir.Node] = field(default_factory=set)

    def build(self, wanted: Collection[str], *, moved: bool) -> RegionModel:
        found = self.recipe.regions.on(self.model)
        if moved:
            self._move()
        quantizers = {name: _quantizer(value) for name, value in found.borders.items()}
        self.model.graph.outputs.clear()
        inputs = {self._cut(name, value).name or "": name for name, value in found.borders.items()}
        names = [name for region in found.regions if region.name in wanted for name in region.results]
        ends = {name: self._ended(name, found.borders[name], quantizers[name]) for name in names}
        pairs = [pair for node in list(self.model.graph) if (pair := pair_of(node)) is not None]
        assumed = {pair.dq for pair in pairs if not self._settle(pair)}
        outputs, of_assumed = dict[tuple[str, str], str](), set[str]()
        for region in found.regions:
            if region.name in wanted:
                outputs |= {(region.name, name): ends[name].name or "" for name in region.results}
                if assumed and not assumed.isdisjoint(_behind([ends[name] for name in region.results])):
                    of_assumed.add(region.name)
        self.model.graph.outputs.extend(ends.values())
        read = self._keep_needed()
        inputs = {name: tensor for name, tensor in inputs.items() if name in read}
        return RegionModel(model=self.model, inputs=inputs, outputs=outputs, assumed=frozenset(of_assumed))

    def _move(self) -> None:
        """Give pairs the encodings of the recipe; stored integers become the floats that they would stand for."""
        done: set[ir.Node] = set()
        for pair in [pair for node in list(self.model.graph) if (pair := pair_of(node)) is not None]:
            encoding = self.recipe.moved.get(pair.tensor)
            if encoding is None or encoding_of(pair.dq) is None or is_conversion(pair):
                continue
            if pair.q is None:
                floats = self._floats(pair) if pair.kind in self.active else None  # `_settle` sees to the others
                if floats is not None:
                    self._replace(pair, dequantize(quantize(floats, encoding), encoding, floats.dtype))
                continue
            for node in {pair.q, pair.dq} - done:
                done.add(node)
                old = node.inputs[1]
                kind = dtype_of(old) if old is not None else None
                scale = encoding.scale_array().astype((kind or ir.DataType.FLOAT).numpy())
                node.replace_input_with(1, self._constant(f"{pair.tensor}_scale", ir.tensor(scale)))
                if len(node.inputs) > 2:
                    zero_point = ir.tensor(encoding.zero_point_array(), dtype=encoding.dtype)
                    node.replace_input_with(2, self._constant(f"{pair.tensor}_zero_point", zero_point))

    def _cut(self, name: str, value: ir.Value) -> ir.Value:
        """The graph input that everyone who read ``value`` reads now."""
        if value.is_graph_input():
            return value
        kind = value.type or ir.TensorType(dtype_of(value) or ir.DataType.FLOAT)
        border = ir.Value(name=self.namer.fresh(f"{name}_float"), type=kind, shape=value.shape)
        self.model.graph.inputs.append(border)
        producer = value.producer()
        if (
            producer is not None
            and is_dequantize(producer)
            and "activation" in self.active
            and len(producer.inputs) > 2
        ):
            operator, _ = OPERATORS[producer.domain]  # integers from outside: rounded here
            rounded = self._copied(operator, producer, border, name)
            read = self._copied(producer.op_type, producer, rounded, name)
            value.replace_all_uses_with(read)
        else:
            value.replace_all_uses_with(border)
        return border

    def _ended(self, name: str, value: ir.Value, quantizer: ir.Node | None) -> ir.Value:
        """The end of the region that writes ``value``: behind a pair of its own where ``output`` is active."""
        value = self._bounded(name, value, quantizer)
        if quantizer is None or "output" not in self.active:
            return value
        end = self._copied(quantizer.op_type, quantizer, value, name)
        if is_quantize_dequantize(quantizer):
            return end
        others = dequantizers(quantizer)
        return self._copied(OPERATORS[quantizer.domain][1], others[0] if others else quantizer, end, name)

    def _bounded(self, name: str, value: ir.Value, quantizer: ir.Node | None) -> ir.Value:
        """``value`` cut as the float model cuts it, where the grid of ``quantizer`` alone does so in this one."""
        bounds, writer = self.recipe.bounds.get(name), value.producer()
        grid = encoding_of(quantizer) if quantizer is not None else None
        if bounds is None or grid is None or writer is None or writer.op_type in CUTTING or not is_cut(grid, bounds):
            return value
        dtype = (dtype_of(value) or ir.DataType.FLOAT).numpy()
        for operator, bound in zip(("Max", "Min"), bounds, strict=True):
            if bound is not None:
                limit = self._constant(f"{name}_{operator}", ir.tensor(np.array(bound, dtype)))
                node = ir.Node("", operator, [value, limit], name=self.namer.fresh(f"{name}_{operator}"))
                node.outputs[0].name = self.namer.fresh(f"{name}_{operator}_Output")
                node.outputs[0].type = value.type
                self.model.graph.append(node)
                value = node.outputs[0]
        return value

    def _copied(self, operator: str, like: ir.Node, value: ir.Value, name: str) -> ir.Value:
        """What a new node ``operator`` makes of ``value``, with the parameters of ``like``."""
        kept = [a for a in like.attributes.values() if a.name != "output_dtype" or operator == like.op_type]
        node = ir.Node(
            like.domain, operator, [value, *like.inputs[1:]], kept, name=self.namer.fresh(f"{name}_{operator}"),
        )  # fmt: skip
        node.outputs[0].name = self.namer.fresh(f"{name}_{operator}_Output")
        self.model.graph.append(node)
        self.added.add(node)
        return node.outputs[0]

    def _settle(self, pair: Pair) -> bool:
        """Look through ``pair`` where its cause is not active; whether its float values are known."""
        if pair.kind == "activation":
            source = pair.q.inputs[0] if pair.q is not None and pair.dq not in self.added else None
            if "activation" not in self.active and source is not None:
                pair.output.replace_all_uses_with(source)
            return True
        if pair.kind in self.active:
            return True
        floats = self._floats(pair)
        if floats is None:
            return False
        self._replace(pair, floats)
        return True

    def _floats(self, pair: Pair) -> npt.NDArray[Any] | None:
        """The float data of a weight or bias: of the float model if it is the same weight, else its own; None if stored."""
        own = constant_array(pair.stored) if pair.stored is not None else None
        if own is None:
            return None
        tensor = self.recipe.constants.get(pair.tensor)
        if tensor is not None and tuple(tensor.shape.numpy()) == own.shape:
            given = tensor.numpy()
            if self.recipe.is_prepared or _is_same(given, own, pair):
                return given if pair.q is None else given.astype(own.dtype)
        return None if pair.q is None else own

    def _replace(self, pair: Pair, floats: npt.NDArray[Any]) -> None:
        dtype = dtype_of(pair.output)
        kept = floats if dtype is None else floats.astype(dtype.numpy())
        pair.output.replace_all_uses_with(self._constant(f"{pair.tensor}_float", ir.tensor(np.ascontiguousarray(kept))))

    def _constant(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        fresh = self.namer.fresh(name)
        value = ir.Value(
            name=fresh, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        self.model.graph.register_initializer(value)
        return value

    def _keep_needed(self) -> set[str]:
        """Drop what no output needs; the names of the inputs that are left."""
        graph = self.model.graph
        needed = _behind(list(graph.outputs))
        graph.remove([node for node in graph if node not in needed], safe=True)
        read = {value for node in needed for value in values_read(node)} | set(graph.outputs)
        for name, value in list(graph.initializers.items()):
            if value not in read:
                del graph.initializers[name]
        left = [value for value in graph.inputs if value in read]
        graph.inputs.clear()
        graph.inputs.extend(left)
        graph.sort()
        return {value.name or "" for value in left}


def bounds_of(model: ir.Model) -> dict[str, Bounds]:
    """The tensors that a Relu or Clip of constant bounds writes, with what it cuts to."""
    found: dict[str, Bounds] = {}
    for node in model.graph:
        name = node.outputs[0].name
        if name and is_standard(node, "Relu"):
            found[name] = (0.0, None)
        elif (
            name
            and is_standard(node, "Clip")
            and node.inputs
            and "min" not in node.attributes
            and "max" not in node.attributes
        ):
            given = [*node.inputs[1:3], None, None][:2]
            ends = [constant_array(value) if value is not None else None for value in given]
            if all(
                value is None or (end is not None and end.size == 1) for value, end in zip(given, ends, strict=True)
            ):
                low, high = (None if end is None else float(end.ravel()[0]) for end in ends)
                found[name] = (low, high)
    return found


def is_cut(grid: Encoding, bounds: Bounds) -> bool:
    """Whether ``grid`` reaches no step beyond ``bounds``."""
    if len(grid.scale) != 1 or not is_integer_type(grid.dtype):
        return False
    ends, step = [float(np.ravel(end)[0]) for end in real_range(grid)], grid.scale[0]
    low, high = bounds
    return (low is None or ends[0] > low - step) and (high is None or ends[1] < high + step)


def _quantizer(value: ir.Value) -> ir.Node | None:
    """The first QuantizeLinear that reads ``value``."""
    halves = (use.node for use in value.uses() if use.idx == 0)
    return next((node for node in halves if is_quantize(node) or is_quantize_dequantize(node)), None)


def _behind(values: list[ir.Value]) -> set[ir.Node]:
    """Every node that ``values`` are computed by."""
    found: set[ir.Node] = set()
    todo = list(values)
    while todo:
        node = todo.pop().producer()
        if node is not None and node not in found:
            found.add(node)
            todo += values_read(node)
    return found


def _is_same(given: npt.NDArray[Any], own: npt.NDArray[Any], pair: Pair) -> bool:
    """Whether ``given`` is the weight that ``pair`` stands on: its own float data, or integers within one step of it, or at the
    end of theirs that it lies beyond."""
    encoding = pair.encoding
    if pair.q is not None or encoding is None:
        return pair.q is not None and np.array_equal(given, own)
    if not own.size:
        return True
    off = given.astype(np.float64) - dequantize(own, encoding).astype(np.float64)
    scale = np.asarray(encoding.granularity.expand(encoding.scale_array(), own.shape), np.float64)
    near = np.abs(off) <= ONE_STEP * scale
    near |= ((own == own.max()) & (off > 0)) | ((own == own.min()) & (off < 0))
    return bool(np.mean(near) >= SAME_WEIGHT)
