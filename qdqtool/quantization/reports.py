"""What quantizing did to each tensor (range, encoding, what lies beyond it, noise), and what a target does not take of it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.encode.edit.encoding_policy import histogram_of
from qdq_passes.graph.annotate import DEMAND
from qdq_passes.graph.uses import all_values, constant_array, label, main_nodes, op_type_of
from qdq_passes.numerics.agreement import worst_first
from qdq_passes.numerics.arrays import Numbers
from qdq_passes.numerics.encoding import Encoding, nested
from qdq_passes.numerics.mapped import is_large_file
from qdq_passes.numerics.price import Fit, fit_of, fit_of_histogram
from qdq_passes.qdq.look.pairs import Kind, Pair, qdq_pairs

from qdqtool.calibrate.observer import Range

if TYPE_CHECKING:
    from qdqtool.targets.target import Target


@dataclass(frozen=True, kw_only=True)
class TensorReport:
    """One quantized tensor.

    Args:
        tensor: name of the float value.
        kind: weight, bias or activation.
        encoding: how it is stored.
        low: smallest value seen (the data's own for constants); None where nothing was seen.
        high: largest value seen.
        fit: what lies beyond the encoding, and its noise; None for an activation whose method keeps no histogram, and for a
            weight in a large file, which is not read once more for it.
    """

    tensor: str
    kind: Kind
    encoding: Encoding
    low: float | None
    high: float | None
    fit: Fit | None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; ``sqnr_db`` is null where the tensor is exact (``exact`` is 1.0 then) or nothing is known; ``scale``,
        ``zero_point`` and ``position`` are null where there are many, ``scales`` says how many."""
        encoding, is_long = self.encoding, isinstance(self.encoding.scale, Numbers)
        position = None if is_long else encoding.position
        data: dict[str, Any] = {
            "tensor": self.tensor,
            "kind": self.kind,
            "dtype": encoding.dtype.name.lower(),
            "range": None if self.low is None else [self.low, self.high],
            "scale": None if is_long else nested(encoding.scale, encoding.shape),
            "zero_point": None if is_long else nested(encoding.zero_point, encoding.shape),
            "position": None if position is None else nested(position, encoding.shape),
            "axis": encoding.axis,
            "block_size": encoding.block_size,
            "scales": len(encoding.scale),
            "clipped": None if self.fit is None else self.fit.clipped,
            "sqnr_db": None if self.fit is None else self.fit.sqnr_db,
        }
        return {**data, "exact": 1.0} if self.fit is not None and self.fit.sqnr_db is None else data


def constants_of(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """The float constants of ``model`` by name, as they are before they are quantized; no data is read."""
    return {v.name: v.const_value for v in all_values(model) if v.name and v.const_value is not None}


def tensor_reports(
    model: ir.Model,
    ranges: Mapping[str, Range],
    constants: Mapping[str, ir.TensorProtocol],
    masked: Collection[str] = (),
) -> tuple[TensorReport, ...]:
    """A report for every pair of the quantized ``model``, the noisiest first, exact ones and those without figures last.

    Args:
        model: the quantized model.
        ranges: observed ranges by tensor.
        constants: float data by tensor, from `constants_of`.
        masked: tensors in which a mask hides keys, which is no signal: they have no figures.
    """
    found: dict[str, TensorReport] = {}
    for pair in qdq_pairs(model):
        if pair.encoding is not None and pair.tensor not in found:
            report = _report(pair, pair.encoding, ranges, constants)
            found[pair.tensor] = replace(report, fit=None) if pair.tensor in masked else report
    return tuple(sorted(found.values(), key=lambda r: worst_first(r.fit.sqnr_db if r.fit is not None else None)))


def _report(
    pair: Pair, encoding: Encoding, ranges: Mapping[str, Range], constants: Mapping[str, ir.TensorProtocol]
) -> TensorReport:
    fit, observed = None, ranges.get(pair.tensor)
    low, high = (None, None) if observed is None else (observed.low, observed.high)
    if pair.kind != "activation":
        tensor = constants.get(pair.tensor)
        array = None if is_large_file(tensor) else tensor.numpy() if tensor is not None else constant_array(pair.source)
        if array is not None and np.issubdtype(array.dtype, np.floating):
            fit = fit_of(array, encoding)
    elif encoding.axis is None and (histogram := histogram_of(ranges, pair.tensor)) is not None:
        fit = fit_of_histogram(histogram, encoding)
    if fit is not None:
        low, high = fit.low, fit.high
    return TensorReport(tensor=pair.tensor, kind=pair.kind, encoding=encoding, low=low, high=high, fit=fit)


#: Nodes named in one warning.
SHOWN = 3


def target_refusals(model: ir.Model, target: Target) -> tuple[tuple[str, str], ...]:
    """(node, reason) for every quantized node whose encodings ``target`` does not take, or between whose positions it
    cannot shift; a node may have several."""
    quantized = {name for value in all_values(model) if (demand := DEMAND.get(value)) for name in demand.nodes}
    pairs = qdq_pairs(model)
    made = {pair.output: pair for pair in pairs}
    read = {pair.source: pair for pair in pairs if pair.q is not None}
    found: dict[tuple[str, str], None] = {}
    for node in main_nodes(model):
        name = label(node)
        if name not in quantized:
            continue
        given: dict[Kind, dict[Encoding, None]] = {"activation": {}, "weight": {}, "bias": {}}
        for pair in [*(made.get(v) for v in node.inputs if v is not None), *(read.get(v) for v in node.outputs)]:
            if pair is not None and pair.encoding is not None:
                given[pair.kind][pair.encoding] = None
        choices: list[list[Encoding | None]] = [list(encodings) or [None] for encodings in given.values()]
        for activation, weight, bias in itertools.product(*choices):
            reason = target.allows(op_type_of(node), activation=activation, weight=weight, bias=bias)
            if reason is not None:
                found[name, reason] = None
    from qdq_passes.refine.look.shifts import violations

    from qdqtool.targets.remedies import of_shift

    for violation in violations(model, target.shifts) if target.shifts is not None else ():
        mend = of_shift(violation.node, target.name)
        found[label(violation.node), f"{violation.because}; {mend}"] = None
    return tuple(found)


def grouped(refusals: Iterable[tuple[str, str]]) -> list[str]:
    """One line a reason, with the first nodes that it holds for."""
    nodes: dict[str, list[str]] = {}
    for node, reason in refusals:
        nodes.setdefault(reason, []).append(node)
    return [
        f"{', '.join(names[:SHOWN])}{f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''}: {reason}"
        for reason, names in nodes.items()
    ]
