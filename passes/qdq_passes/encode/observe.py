"""observe"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Protocol

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Named, Pass
from qdq_passes.encode.edit.encoding_policy import WithHistogram
from qdq_passes.encode.edit.precision import ObservedRange
from qdq_passes.encode.look.read_ranges import cut
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import CALIBRATED, Calibrated
from qdq_passes.graph.uses import all_values
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.documents import json_of

Feeds = Iterable[Mapping[str, Array]]


class Runtime(Protocol):
    """What runs a model on samples, and observes its values by a calibration method."""

    def observe(
        self,
        model: ir.Model,
        data: Feeds | None,
        tensors: Sequence[str] | None,
        method: str,
        options: Mapping[str, bool | int | float | str],
    ) -> Mapping[str, ObservedRange]:
        """The ranges of the values called ``tensors`` (None: of every float value of the main graph) over ``data``."""


def ranges_of(model: ir.Model) -> dict[str, Calibrated]:
    """What is annotated, by the names of the values."""
    ranges = {value.name: CALIBRATED.get(value) for value in all_values(model) if value.name}
    return {name: found for name, found in ranges.items() if found is not None}


@dataclass(frozen=True)
class Observe(Pass):
    """Run the model on samples and annotate the range of each value: calibration.

    Passes behind it find the ranges in ``@ranges``. Where that is bound already, it is not run: so the printed pipeline of a
    quantization replays with the ranges that were found.

    Graph: unchanged; values gain the annotation ``calibrated``.
    Requires: samples, and a runtime.
    Keeps: everything; numerics bit-exact.
    Skips: nothing; what bodies of If and Loop hold is not observed.

    Args:
        data: the samples; normally ``@data``.
        runtime: what runs the model; normally ``@runtime``.
        tensors: names of the values, as ``@tensors``; every float value of the main graph by default.
        method: calibration method, see `qdqtool list methods`.
        options: options of the method, as JSON: ``{"percentile": 99.9}``.
        cut: observe what readers tell apart alone: nothing below −3 in front of a HardSwish, which gives 0 there.
    """

    keeps: ClassVar[Keeps] = EXACT
    gives: ClassVar[Mapping[str, Callable[[ir.Model], object]]] = {"ranges": ranges_of}
    data: Named | Feeds
    runtime: Named | Runtime
    tensors: Named | tuple[str, ...] | None = None
    method: str = "minmax"
    options: str = ""
    cut: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Observe, then annotate in the order of the graph."""
        assert not isinstance(self.data, Named)
        assert not isinstance(self.runtime, Named)
        assert not isinstance(self.tensors, Named)
        try:
            options = dict(json_of(self.options or "{}").items())
        except (ValueError, AttributeError) as error:
            shown = 'as {"percentile": 99.9}'
            raise UsageError(f"options={self.options} is no JSON object", where=self.name(), hint=shown) from error
        seen = cut(model, self.tensors) if self.cut else model
        found = self.runtime.observe(seen, self.data, self.tensors, self.method, options)
        for value in all_values(model):
            observed = found.get(value.name or "")
            if observed is None:
                if CALIBRATED.get(value) is not None:
                    CALIBRATED.clear(value)
                    yield Change("annotate", value.name or "", "range of an earlier run taken away")
                continue
            histogram = observed.histogram if isinstance(observed, WithHistogram) else None
            calibrated = Calibrated(float(observed.low), float(observed.high), histogram)
            if CALIBRATED.get(value) != calibrated:
                yield Change("annotate", value.name or "", f"range {calibrated.low:.6g} to {calibrated.high:.6g}")
            CALIBRATED.set(value, calibrated)
