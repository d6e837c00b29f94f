"""A model with gradients as further outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass, RemoveUnusedNodesPass
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.clean.convert_opset import ConvertOpset
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.edit import Namer
from qdq_passes.numerics.arrays import Array
from qdq_passes.pipeline.pipeline import Pipeline

from qdqtool.runtime.gradients import elementwise, linear, movement, reductions
from qdqtool.runtime.gradients.backward import OPSET, Backward
from qdqtool.runtime.taps import Taps

#: From the builder and a value: the gradient of what is minimized with respect to the value.
Seed = Callable[[Backward, ir.Value], ir.Value]
#: Imported for the rules that they register.
RULE_MODULES = (elementwise, linear, movement, reductions)


@dataclass(frozen=True, eq=False, kw_only=True)
class Gradients:
    """A model that computes gradients.

    Args:
        model: its inputs are those of the forward model, what was asked for that nodes made, and what seeds read; its outputs the
            values that have seeds, and the gradients.
        inputs: input that is fed with it, by the value that was asked for.
        gradients: output that is the gradient, by the value that was asked for; none of what nothing depends on.
    """

    model: ir.Model
    inputs: Mapping[str, str]
    gradients: Mapping[str, str]


def given(name: str) -> Seed:
    """A seed that is fed: an input ``name`` of the value's shape."""

    def seed(b: Backward, value: ir.Value) -> ir.Value:
        return b.fed(name, b.shape(value))

    return seed


def at_opset(model: ir.Model) -> None:
    """Bring ``model``, in place, to the opset that rules build in, its constants among the initializers."""
    Pipeline((ConvertOpset(version=OPSET, at_least=True),)).run(model)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def with_gradients(
    model: ir.Model, feeds: Sequence[Mapping[str, Array]], seeds: Mapping[str, Seed], wanted: Mapping[str, Array]
) -> Gradients:
    """``model``, edited in place, with the gradients of ``wanted``.

    Args:
        model: the forward model, in float32 but for pairs of quantization; nothing of it lies in functions.
        feeds: samples, each run once for the shapes of everything: gradients are for samples of the shapes of the first.
        seeds: by the value that what is minimized is of.
        wanted: values, and what they are; what nodes made before is fed, and what made it goes.

    Raises:
        UnsupportedError: an operator between a seed and what is wanted has no gradient here, or a shape depends on the data.
    """
    at_opset(model)
    named = {value.name: value for node in model.graph for value in node.outputs}
    named |= {value.name: value for value in [*model.graph.inputs, *model.graph.initializers.values()]}
    namer = Namer(model)
    values = {name: _as_input(model, named[name], array, namer) for name, array in wanted.items()}
    ends = {name: named[name] for name in seeds}
    model.graph.outputs[:] = list(ends.values())
    RemoveUnusedNodesPass()(model)
    known = {value.name or "": wanted[name] for name, value in values.items()}
    own = [{**{name: array for name, array in feed.items() if name in named}, **known} for feed in feeds]
    builder = Backward(model, *_seen(model, own))
    begun = {end: seeds[name](builder, end) for name, end in ends.items()}
    found = builder.of(begun, list(values.values()))
    model.graph.outputs.extend(found.values())
    for value in found.values():
        value.type = ir.TensorType(ir.DataType.FLOAT)
    RemoveUnusedNodesPass()(model)
    return Gradients(
        model=model,
        inputs={name: value.name or "" for name, value in values.items()},
        gradients={name: found[value].name or "" for name, value in values.items() if value in found},
    )


def _seen(model: ir.Model, feeds: Sequence[Mapping[str, Array]]) -> tuple[dict[str, Array], dict[str, tuple[int, ...]]]:
    """Each value of the main graph of ``model`` on the first of ``feeds``, an array of its shape and type without memory; and the
    shape of those that have another on the others.

    Raises:
        UnsupportedError: a value is no tensor.
    """
    taps = Taps(model, [value.name for node in model.graph for value in node.outputs if value.name])
    first, others = dict[str, Array](), dict[str, tuple[int, ...]]()
    for feed in feeds:
        values = taps.run(feed)
        odd = [name for name, value in values.items() if not hasattr(value, "shape")]
        if odd:
            raise UnsupportedError("is no tensor", where=odd[0])
        first = first or {
            name: np.broadcast_to(np.empty((), array.dtype), array.shape) for name, array in {**values, **feed}.items()
        }
        others |= {name: value.shape for name, value in values.items() if value.shape != first[name].shape}
    taps.session.close()
    return first, others


def _as_input(model: ir.Model, value: ir.Value, array: Array, namer: Namer) -> ir.Value:
    """``value`` as an input of the graph, in the place of what makes it."""
    if value.is_graph_input():
        return value
    name = namer.fresh(f"{value.name}_fed")
    made = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(array.shape))
    value.replace_all_uses_with(made)
    model.graph.inputs.append(made)
    return made
