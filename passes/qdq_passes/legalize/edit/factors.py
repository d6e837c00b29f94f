"""Surgery that puts a factor behind an operator, and small constants where a tool looks for them."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Pass, skip
from qdq_passes.encode.look.demands import scalings
from qdq_passes.encode.look.quantized import Operators, operators_of
from qdq_passes.graph.annotate import FUSED, Fused, annotation_kinds
from qdq_passes.graph.edit import Namer, graph_of, inherit, make_node, move_annotations, new_constant
from qdq_passes.graph.operators.qdq_ops import opset_at
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import FLOAT_TYPES, label, readers
from qdq_passes.numerics.price import in_db, sqnr_of_rescaled
from qdq_passes.select.selectors import ALL, Selector

#: First opset whose Mul takes tensors of different shapes as they are.
OPSET_OF_MUL = 7

#: How a small constant is kept: among the initializers, or as a Constant node before its reader.
ConstantForm = Literal["initializer", "node"]


def make_constant(near: ir.Node, wanted: str, data: ir.TensorProtocol, namer: Namer, form: ConstantForm) -> ir.Value:
    """A constant called ``wanted`` for ``near``: an initializer of its graph, or a Constant node right before it."""
    graph = graph_of(near)
    if form == "initializer":
        return new_constant(graph, namer, wanted, data, [near])
    name = namer.fresh(wanted)
    value = ir.Value(name=name, type=ir.TensorType(data.dtype), shape=ir.Shape(data.shape.numpy()))
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", data)], outputs=[value], name=name)
    graph.insert_before(near, inherit(node, [near]))
    return value


class Factors:
    """Puts factors behind operators of one model, each in the float type of what it multiplies; one per run of a pass."""

    def __init__(self, model: ir.Model, form: ConstantForm) -> None:
        self.inferred = Inferred(model)
        self._model, self._namer, self._form = model, Namer(model), form

    def insert(self, node: ir.Node, factor: float) -> Change:
        """`put_factor`, with its price; a skip where that is not to be."""
        dtype = self.inferred.dtype(node.outputs[0])
        if dtype not in FLOAT_TYPES or dtype is None:
            return skip(
                node, "the type it writes is unknown; run infer-shapes first" if dtype is None else "writes no floats"
            )
        stored = float(np.array(factor, dtype.numpy()))
        if factor != 1 and stored == 1:
            return skip(node, f"{dtype.name.lower()} rounds its factor {factor:.10g} to 1")
        if has_factor(node, stored):
            return skip(node, f"has its factor {factor:.10g} already")
        if (opset := opset_at(self._model, node)) < OPSET_OF_MUL:
            return skip(node, f"Mul multiplies by one number since opset {OPSET_OF_MUL}, this is {opset}")
        mul = put_factor(node, factor, dtype, self._namer, self._form)
        return Change(
            "insert", mul.name or "", f"factor {factor:.10g} of {node.name}, {in_db(sqnr_of_rescaled(stored))}"
        )


def put_factor(node: ir.Node, factor: float, dtype: ir.DataType, namer: Namer, form: ConstantForm) -> ir.Node:
    """Multiply what ``node`` writes: ``t`` becomes ``t_Mul → Mul(t_Scale) → t``, so that every reader of t and the graph's output
    read the product. The two are marked as fused: no pair is to come between them.

    Returns:
        The Mul.
    """
    value, graph = node.outputs[0], graph_of(node)
    name = value.name or node.name or "value"
    uses, is_output = readers(value), value.is_graph_output()
    inner = namer.fresh(f"{name}_Mul")
    mul = make_node("Mul", [value, None], name=inner, output=name, like=value, stands_for=[node])
    graph.insert_after(node, mul)
    tensor = ir.tensor(np.array(factor, dtype.numpy()), dtype=dtype)
    mul.replace_input_with(1, make_constant(mul, f"{name}_Scale", tensor, namer, form))
    product = mul.outputs[0]
    for reader, index in uses:
        reader.replace_input_with(index, product)
    for index, output in enumerate(graph.outputs) if is_output else ():
        if output is value:
            graph.outputs[index] = product
    value.name, product.name = inner, name
    move_annotations(value, product)
    for annotation in annotation_kinds():
        annotation.clear(value)
    product.metadata_props.update(value.metadata_props)
    value.metadata_props.clear()
    FUSED.set(value, Fused(label(node)))
    return mul


def has_factor(node: ir.Node, factor: float) -> bool:
    """Whether a Mul by ``factor`` reads what ``node`` writes, itself or behind a pair."""
    return any(float(constant.item()) == factor for _, constant, _ in scalings(node.outputs[0]))


@dataclass(frozen=True)
class ScalePass(Pass, abc.ABC):
    """A pass that puts a factor behind operators."""

    #: The operators.
    op_types: ClassVar[tuple[str, ...]]
    select: Selector = ALL
    operators: Operators = "quantized"
    constant: ConstantForm = "initializer"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """A Mul behind each."""
        nodes, skips = operators_of(model, self.select, self.operators, *self.op_types)
        yield from skips
        factors = Factors(model, self.constant)
        for node in nodes:
            factor = self.factor(node, factors.inferred)
            if isinstance(factor, str):
                yield skip(node, factor)
            elif factor is not None:
                yield factors.insert(node, factor)

    @abc.abstractmethod
    def factor(self, node: ir.Node, inferred: Inferred) -> float | str | None:
        """What the DPU's result is relative to the exact one; why that is not known; None where it needs no Mul."""
