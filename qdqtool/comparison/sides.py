"""The two sides of a comparison node by node: the float model, prepared as the quantized one was, and that one in regions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.uses import all_values, is_constant, label
from qdq_passes.numerics.agreement import Accumulator
from qdq_passes.numerics.arrays import Array
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.calibrate.ranges import Ranges
from qdqtool.comparison.region_model import Recipe, RegionModel, bounds_of
from qdqtool.comparison.regions import Region, Regions, Shapes, regions_of
from qdqtool.comparison.replaying import Replayed, replay
from qdqtool.runtime.session import Session
from qdqtool.runtime.taps import Taps, float_tensors

#: Regions run together until their constants have so many bytes: each of up to seven sessions keeps a copy of them.
GROUP_BYTES = 128 << 20
#: Preparation moves float outputs by their rounding alone; below so many dB it changed what the model computes.
PREPARED_DB = 60.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Sides:
    """What is compared.

    Args:
        history: how the quantized model was made.
        reference: the float model, prepared alike, with its shapes.
        recipe: what variants of the regions are made from.
        regions: of the quantized model, which is the recipe's.
    """

    history: Replayed
    reference: ir.Model
    recipe: Recipe
    regions: Regions

    @classmethod
    def of(
        cls,
        a: ir.Model,
        b: ir.Model,
        ranges: Ranges | None = None,
        inputs: Mapping[str, Any] | None = None,
        *,
        is_moved: bool = True,
    ) -> Sides:
        """Of the float ``a`` and the quantized ``b``, neither of which is changed; the others as of `replay`.

        Raises:
            UsageError: the models have no tensor in common.
        """
        history = replay(a, b, ranges, inputs, is_moved=is_moved)
        tested, reference = _inferred(b), _inferred(history.reference)
        known = _shapes(reference)
        found = regions_of(tested, known)
        recipe = Recipe(
            model=tested,
            regions=found,
            constants=_constants(reference),
            is_prepared=history.is_prepared,
            moved=history.moved or {},
            bounds=bounds_of(reference),
        )
        if not found.regions:
            raise UsageError(
                "no node of B writes a tensor that A has", hint="give the float model and a quantized form of it"
            )
        return cls(history=history, reference=reference, recipe=recipe, regions=found)


def run_regions(
    made: RegionModel, session: Session, values: Mapping[str, Array], feed: Mapping[str, Array]
) -> dict[tuple[str, str], Array]:
    """What regions write: (region, tensor) → array.

    Args:
        made: the regions.
        session: on their model.
        values: tensors by name, in the float model or the quantized one: what the regions read.
        feed: of the model, for what is no float.
    """
    fed = {}
    for name in session.input_names:
        tensor = made.inputs.get(name)
        array = feed[name] if tensor is None else values[tensor]
        dtype = session.input_dtypes[name]
        fed[name] = array if dtype is None or dtype == array.dtype else array.astype(dtype)
    found = session.run(fed, list(dict.fromkeys(made.outputs.values())))
    return {key: np.asarray(found[name]) for key, name in made.outputs.items()}


def grouped(model: ir.Model, regions: list[Region]) -> Iterator[list[Region]]:
    """Consecutive regions, until their constants have `GROUP_BYTES`."""
    sizes: dict[str, int] = {}
    for node in model.graph:
        constants = [v for v in _feeding(node) if v.const_value is not None]
        sizes[label(node)] = sum(v.const_value.nbytes for v in constants if v.const_value is not None)
    group, size = list[Region](), 0
    for region in regions:
        own = sum(sizes.get(name, 0) for name in region.nodes)
        if group and size + own > GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(region)
        size += own
    yield group


def _feeding(node: ir.Node) -> list[ir.Value]:
    """The constants that ``node`` reads, through pairs."""
    found, todo = list[ir.Value](), [v for v in node.inputs if v is not None]
    while todo:
        value = todo.pop()
        producer = value.producer()
        if is_constant(value):
            found.append(value)
        elif producer is not None and producer.op_type.endswith(("QuantizeLinear", "DequantizeLinear")):
            todo += [v for v in producer.inputs[:1] if v is not None]
    return found


def prepared_otherwise(a: ir.Model, reference: ir.Model, feed: Mapping[str, Array], threads: int) -> list[str]:
    """What to say where preparing the float model changed what it computes: no node is to blame for that."""
    outputs = [v.name for v in a.graph.outputs if v.name and v.name in {w.name for w in reference.graph.outputs}]
    found = []
    with_a, with_reference = (Taps(model, outputs, threads=threads) for model in (a, reference))
    before, after = with_a.run(feed), with_reference.run(feed)
    for name in outputs:
        total = Accumulator()
        if before[name].shape == after[name].shape:
            total.add(before[name], after[name])
            db = total.result().sqnr_db
            if db is not None and db < PREPARED_DB:
                found.append(
                    f"preparing the float model changed its output {name} ({db:.1f} dB), which no node's figures hold"
                )
    with_a.session.close()
    with_reference.session.close()
    return found


def _inferred(model: ir.Model) -> ir.Model:
    copy = copy_model(model)
    run_pipeline(copy, "infer-shapes")
    return copy


def _shapes(model: ir.Model) -> Shapes:
    shapes: dict[str, tuple[int | str | None, ...] | None] = {}
    values = {v.name: v for v in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs))}
    for name in float_tensors(model):
        shape = values[name].shape
        shapes[name] = None if shape is None else tuple(d if isinstance(d, int) else d.value for d in shape.dims)
    return shapes


def _constants(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    return {v.name: v.const_value for v in all_values(model) if v.name and v.const_value is not None}
