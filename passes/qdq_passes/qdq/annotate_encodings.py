"""annotate-encodings"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import onnx_ir as ir

from qdq_passes.analysis.demands import QUANTIZED_OPS, Demands, demands_of, sharing_outputs
from qdq_passes.analysis.uses import constant_array, dtype_of, has_body, main_nodes
from qdq_passes.core.annotate import DEMAND, ENCODING, FUSED, Demand
from qdq_passes.core.base import EXACT, Change, Keeps, Named, Pass, skip
from qdq_passes.core.select import ALL, NONE, Selector, select_nodes
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.encoding import FLOAT32_TINY, Encoding, encoding_of_range, parse_dtype


class ObservedRange(Protocol):
    """What calibration knows of a tensor."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


#: Smallest positive number of a float type whose range is below float32's; scales are stored in the tensor's own type.
SMALLEST_SCALE = {ir.DataType.FLOAT16: 2.0**-24}

IntegerType = Literal["int8", "uint8", "int16", "uint16"]


@dataclass(frozen=True)
class AnnotateEncodings(Pass):
    """Choose an encoding for every tensor that an operator to be quantized demands, and annotate it. `insert-qdq` makes it real.

    Activations get theirs from ``encodings`` (observed ranges, or ready encodings, by tensor name), weights and biases from
    their data. Outputs of data-movement operators and MaxPool share the encoding of their input, so that they stay exact.

    Graph: unchanged; values gain the annotations ``encoding`` and ``demand``.
    Requires: a range for every activation that is demanded.
    Keeps: everything; numerics bit-exact (what `insert-qdq` does with it is not).
    Skips: operators not in ``ops``; nodes of ``exclude`` and outside ``only`` (a value that another node demands is "kept
    for" that node, unless ``isolate``); values inside a fused group whose nodes are all quantized; values that have a
    pair; constants that are not finite (masks of −∞); float64 and unknown types; bodies of If and Loop.

    Args:
        encodings: tensor name → observed range or encoding; normally ``@ranges``.
        activations: storage type of activations.
        weights: storage type of weights.
        bias: storage type of biases, with a scale of their own; ``none`` leaves them float.
        scales: ``pow2`` rounds every scale up to a power of two; ``any`` leaves them.
        symmetric: zero point 0; false lets activations have one.
        ops: operator types that are quantized.
        exclude: nodes that demand nothing.
        only: the only nodes that demand.
        isolate: values that an excluded node touches stay float even if another node demands them.
    """

    keeps: ClassVar[Keeps] = EXACT
    encodings: Named | Mapping[str, ObservedRange | Encoding]
    activations: IntegerType = "int8"
    weights: Literal["int8", "int16"] = "int8"
    bias: Literal["int8", "int16", "none"] = "int8"
    scales: Literal["pow2", "any"] = "pow2"
    symmetric: bool = True
    ops: tuple[str, ...] = QUANTIZED_OPS
    exclude: Selector = NONE
    only: Selector = ALL
    isolate: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Collect demands, then choose in the order of the graph."""
        assert not isinstance(self.encodings, Named)
        excluded = select_nodes(model, self.exclude)
        demands = demands_of(model, set(self.ops), select_nodes(model, self.only) - excluded)
        sharing = sharing_outputs(model)
        for node in main_nodes(model):
            if has_body(node):
                yield skip(node, "values inside its body stay float")
        for value, reason in demands.refused.items():
            yield skip(value, reason)
        for value, nodes in demands.items():
            yield from self._annotate(value, Demand(nodes), demands, excluded, sharing)

    def _annotate(
        self,
        value: ir.Value,
        demand: Demand,
        demands: Demands,
        excluded: set[ir.Node],
        sharing: dict[ir.Value, ir.Value],
    ) -> Iterator[Change]:
        near = touching(value, excluded)
        if is_inside_group(value, demand.nodes):
            yield skip(value, "is inside a fused group")
            return
        if near and self.isolate:
            yield skip(value, f"is isolated with {near[0].name}")
            return
        role = demands.role(value)
        if role == "bias" and self.bias == "none":
            yield skip(value, "biases stay float")
            return
        source = sharing.get(value)
        shared = ENCODING.get(source) if source is not None else None
        encoding = shared or self._choose(value, role)
        ENCODING.set(value, encoding)
        DEMAND.set(value, demand)
        because = (
            f"shares the encoding of {source.name}"
            if shared and source is not None
            else f"{role}, {_describe(encoding)}"
        )
        if near:
            because += f"; excluded {near[0].name} touches it, kept for {demand.nodes[0]}"
        yield Change("annotate", value.name or "", because)

    def _choose(self, value: ir.Value, role: str) -> Encoding:
        assert not isinstance(self.encodings, Named)
        given = self.encodings.get(value.name or "")
        if isinstance(given, Encoding):
            return given
        if role == "activation":
            if given is None:
                raise UsageError(
                    "no range for this tensor",
                    where=value.name,
                    hint="calibrate this model again, or leave the tensor out with --exclude",
                )
            low, high = given.low, given.high
        else:
            array = constant_array(value)
            assert array is not None
            low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
        return self._encoding(low, high, role, value)

    def _encoding(self, low: float, high: float, role: str, value: ir.Value) -> Encoding:
        name = {"activation": self.activations, "weight": self.weights, "bias": self.bias}[role]
        try:
            return encoding_of_range(
                low,
                high,
                dtype=parse_dtype(name),
                symmetric=self.symmetric or role != "activation",
                power_of_two=self.scales == "pow2",
                smallest=SMALLEST_SCALE.get(dtype_of(value) or ir.DataType.FLOAT, FLOAT32_TINY),
            )
        except ModelError as error:
            error.where = value.name
            raise


def is_inside_group(value: ir.Value, demanding: Collection[str]) -> bool:
    """Whether ``value`` never leaves a fused group: marked so, and every node that touches it is quantized (``demanding``)."""
    touched_by = [n for n in (value.producer(), *value.consumers()) if n is not None]
    return FUSED.get(value) is not None and all((n.name or n.op_type) in demanding for n in touched_by)


def touching(value: ir.Value, nodes: Collection[ir.Node]) -> list[ir.Node]:
    """Those of ``nodes`` that write or read ``value``; with ``isolate`` they keep it float."""
    return [n for n in (value.producer(), *value.consumers()) if n is not None and n in nodes]


def _describe(encoding: Encoding) -> str:
    position = encoding.position
    scale = f"2^{-position[0]}" if position else f"{encoding.scale[0]:.6g}"
    return f"{encoding.dtype.name.lower()} scale {scale}"
