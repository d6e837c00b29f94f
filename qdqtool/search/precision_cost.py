"""What it costs not to compute in 8 bit: the one place where the price of a mix of precisions is defined.

    cost = Σ_t MACs_t · (f_t − 1) + p · bytes                          unit: the time of one multiply-accumulate in 8 bit

MACs_t are the multiply-accumulates whose wider operand has type t (`qdq_passes.precision.look.widths`); one of type t takes
f_t times as long as one in 8 bit or less. bytes are those of the boundary crossings: a tensor that is held both in 8 bit and in
something wider is read in the one and written in the other, by the vector unit, as which p multiply-accumulates in 8 bit take as
long a byte.

f_t and p are the speeds of the target where one is given (its ``[cost]``), else those that a target file has by default: 1024
multiply-accumulates a cycle in 8 bit, 585 in 16 bit, 394 in floats, 64 bytes a cycle in the vector unit. Half-size floats count
as 16 bit. Operators that do not multiply cost nothing but their crossings; the number of nodes does not count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.macs import MULTIPLYING, macs_of
from qdq_passes.graph.operators.qdq_ops import is_qdq
from qdq_passes.graph.uses import SHARING, all_nodes, all_values, dtype_of, is_standard
from qdq_passes.precision.look.widths import EIGHT, Crossing, OperandWidths, boundary_crossings

from qdqtool.targets.cost import Cost as Speeds

#: Kinds of multiply-accumulates, cheapest first.
KINDS = ("8", "16", "fp16", "float")
_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True, kw_only=True)
class Prices:
    """How much longer other types take than 8 bit.

    Args:
        factors: kind of multiply-accumulate → f_t.
        per_byte: p, multiply-accumulates in 8 bit a byte.
    """

    factors: Mapping[str, float] = field(default_factory=lambda: {"8": 1.0, "16": 1.75, "fp16": 1.75, "float": 2.6})
    per_byte: float = 16.0

    @classmethod
    def of(cls, speeds: Speeds) -> Prices:
        """Those of a target."""
        rates = {key: figure.value for key, figure in speeds.macs_per_cycle.items()}
        fast = rates.get("8", 1024.0)
        wide = fast / rates["16"] if "16" in rates else fast / rates.get("float", fast)
        slow = fast / rates["float"] if "float" in rates else wide
        factors = {"8": 1.0, "16": wide, "fp16": min(wide, slow), "float": slow}
        return cls(factors=factors, per_byte=fast / speeds.vector_elements_per_cycle.value)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The price of one mix.

    Args:
        macs: multiply-accumulates of one inference by kind.
        crossings: number of tensors held in 8 bit and in something wider.
        bytes: what these take in both forms together.
        total: the cost, in multiply-accumulates in 8 bit.
    """

    macs: Mapping[str, int]
    crossings: int
    bytes: int
    total: float

    @property
    def share_8_bit(self) -> float:
        """Share of the multiply-accumulates in 8 bit or less, 0 to 1; 1 where nothing is multiplied."""
        everything = sum(self.macs.values())
        return self.macs.get("8", 0) / everything if everything else 1.0

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; inverse of `from_json`."""
        return {
            "cost": self.total,
            "macs": dict(self.macs),
            "boundary_crossings": self.crossings,
            "crossing_bytes": self.bytes,
            "share_8_bit": round(self.share_8_bit, 6),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cost:
        """Read the form that `to_json` writes."""
        return cls(
            macs={str(k): int(v) for k, v in data["macs"].items()},
            crossings=int(data["boundary_crossings"]),
            bytes=int(data["crossing_bytes"]),
            total=float(data["cost"]),
        )


def cost_of(model: ir.Model, prices: Prices) -> Cost:
    """The cost of the quantized ``model``; dimensions that are not known count as 1."""
    widths = OperandWidths(model)
    macs = dict.fromkeys(KINDS, 0)
    for node in all_nodes(model):
        if is_standard(node, *MULTIPLYING):
            macs[_kind(node, widths.of_product(node))] += macs_of(node) or 0
    crossings = boundary_crossings(model)
    values = {value.name: value for value in all_values(model)}
    size = sum(_bytes(crossing, values.get(crossing.tensor)) for crossing in crossings)
    total = sum(count * (prices.factors[kind] - 1) for kind, count in macs.items()) + prices.per_byte * size
    return Cost(macs=macs, crossings=len(crossings), bytes=size, total=total)


def _kind(node: ir.Node, bits: int) -> str:
    if bits <= EIGHT:
        return "8"
    if bits <= 16:
        return "16"
    first = node.inputs[0]
    return "fp16" if first is not None and dtype_of(first) in _HALF else "float"


def _bytes(crossing: Crossing, value: ir.Value | None) -> int:
    """Bytes of a tensor in its narrowest and in its widest form together."""
    dims = value.shape.dims if value is not None and value.shape is not None else ()
    elements = math.prod(d for d in dims if isinstance(d, int))
    dtype = dtype_of(value) if value is not None else None
    held = 2 if crossing.widths[-1] <= 16 or dtype in _HALF or _is_halved(value) else 4
    return elements * (1 + held)


def _is_halved(value: ir.Value | None) -> bool:
    """Whether ``value`` is read in half size: behind its pair stands a Cast."""
    front = [] if value is None else list(value.consumers())
    seen: set[ir.Node] = set()
    while front:
        node = front.pop()
        if is_standard(node, "Cast") and dtype_of(node.outputs[0]) in _HALF:
            return True
        if node not in seen and (is_qdq(node) or is_standard(node, *SHARING)):
            seen.add(node)
            front += [user for output in node.outputs for user in output.consumers()]
    return False
