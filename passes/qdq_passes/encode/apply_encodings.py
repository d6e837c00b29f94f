"""apply-encodings"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Named, Pass, skip
from qdq_passes.encode.look.demands import why_not_quantizable
from qdq_passes.graph.annotate import ENCODING, STYLE, Style
from qdq_passes.graph.operators.qdq_ops import has_pair
from qdq_passes.graph.uses import is_constant
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.edit.checks import OperatorDomain, domain_named


@dataclass(frozen=True)
class ApplyEncodings(Pass):
    """Annotate every value that is named with the encoding given for it, whatever the value is. `insert-qdq` makes it real.

    Unlike `annotate-encodings` it chooses nothing: no operator list, no ranges, no sharing.

    Graph: unchanged; values gain the annotation ``encoding``, constants in int32 (which no QuantizeLinear writes) ``style`` too.
    Requires: nothing.
    Keeps: everything; numerics bit-exact (what `insert-qdq` does with it is not).
    Skips: names that no value of the main graph or of a body bears, or several; values that have a pair already; types that
    QuantizeLinear does not take; constants that are not finite.

    Args:
        encodings: tensor name → encoding; normally ``@encodings``.
        domain: whose operators `insert-qdq` will make; float16 needs opset 19 only of ONNX's own.
    """

    keeps: ClassVar[Keeps] = EXACT
    encodings: Named | Mapping[str, Encoding]
    domain: OperatorDomain = "onnx"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Annotate in the order of the encodings."""
        assert not isinstance(self.encodings, Named)
        values = _values(model)
        opset, domain = model.opset_imports.get("", 1), domain_named(self.domain)
        for name, encoding in self.encodings.items():
            bearing = values.get(name, [])
            if len(bearing) != 1:
                yield skip(name, _not_one(name, len(bearing), values))
                continue
            (value,) = bearing
            reason = "has a pair already" if has_pair(value) else why_not_quantizable(value, opset, domain)
            if reason is not None:
                yield skip(value, reason)
                continue
            if ENCODING.get(value) == encoding:
                yield skip(value, "has this encoding already")
                continue
            ENCODING.set(value, encoding)
            if encoding.dtype == ir.DataType.INT32 and is_constant(value):
                STYLE.set(value, Style(stored=True))
            yield Change("annotate", name, f"{encoding.dtype.name.lower()} {encoding.granularity.kind}")


def _values(model: ir.Model) -> dict[str, list[ir.Value]]:
    """Values of the main graph and of bodies by name."""
    found: dict[str, list[ir.Value]] = {}
    for graph in model.graphs():
        values = [*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)]
        for value in dict.fromkeys(v for v in values if v.name):
            found.setdefault(value.name or "", []).append(value)
    return found


def _not_one(name: str, count: int, values: Mapping[str, object]) -> str:
    if count:
        return f"{count} values bear this name, in different bodies"
    near = difflib.get_close_matches(name, values, n=2)
    return "no value bears this name" + (f"; nearest: {', '.join(near)}" if near else "")
