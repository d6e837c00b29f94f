"""annotate-kv-cache"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Named, Pass, skip
from qdq_passes.decoder.look.cache_tensors import CacheValues, cache_values
from qdq_passes.encode.edit.encoding_policy import Ranges, range_of
from qdq_passes.encode.look.demands import why_not_quantizable
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import DEMAND, ENCODING, OBSERVED, SHARED, Demand, Shared
from qdq_passes.graph.uses import all_values, dtype_of
from qdq_passes.numerics.encoding import (
    FLOAT32_TINY,
    SMALLEST_SCALE,
    Encoding,
    encoding_of_range,
    integer_format,
    parse_dtype,
)
from qdq_passes.qdq.edit.checks import OperatorDomain, domain_named

#: Who demands the encoding of a tensor of the cache.
KV_CACHE = "kv-cache"


@dataclass(frozen=True)
class AnnotateKvCache(Pass):
    """Give each tensor of a decoder's KV cache one encoding: past, new rows and present have the same, so that rows that are
    read, moved and written again stay as they are, to the bit, through any number of runs.

    Graph: unchanged; past, new rows, present and what joins them gain the annotations ``encoding``, ``demand`` and ``shared``, in
    place of what `annotate-encodings` said of them; what shares an encoding with one of them has theirs.
    Requires: a range of past, new rows or present; their union counts. Run it behind `annotate-encodings`.
    Keeps: everything; numerics bit-exact (what `insert-qdq` does with it is not).
    Skips: caches that an operator keeps itself (GroupQueryAttention, Attention with a cache): run decompose-group-query-attention
        or expose-kv-cache first; graphs without a cache.

    Args:
        ranges: tensor name → observed range; normally ``@ranges``.
        dtype: ``int8`` and ``int16`` are symmetric, ``uint8`` and ``uint16`` have a zero point.
        scales: ``pow2`` rounds every scale up to a power of two.
        domain: whose operators `insert-qdq` will make.
    """

    keeps: ClassVar[Keeps] = EXACT
    ranges: Named | Ranges
    dtype: Literal["int8", "uint8", "int16", "uint16"] = "int8"
    scales: Literal["pow2", "any"] = "any"
    domain: OperatorDomain = "onnx"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """One tensor of the cache after the other."""
        found = cache_values(model)
        if not found:
            yield skip(model.graph.name or "graph", "keeps no cache of keys and values")
        for each in found:
            if isinstance(each, tuple):
                yield skip(*each)
                continue
            yield from self._annotate(model, each)

    def _annotate(self, model: ir.Model, each: CacheValues) -> Iterator[Change]:
        for value in each.values:
            reason = why_not_quantizable(value, model.opset_imports.get("", 1), domain_named(self.domain))
            if reason is not None:
                raise UsageError(reason, where=value.name, hint="the cache stays float without --kv-cache")
        encoding = self._encoding(each)
        first = each.values[0]
        names = {value.name for value in each.values}
        if all(ENCODING.get(value) == encoding for value in each.values):
            return
        for value in each.values:
            demand = DEMAND.get(value)
            nodes = (*(demand.nodes if demand else ()), KV_CACHE)
            DEMAND.set(value, Demand(tuple(dict.fromkeys(nodes))))
            ENCODING.set(value, encoding)
            SHARED.clear(value)
            if value is not first:
                SHARED.set(value, Shared(first.name or ""))
        for value in all_values(model):
            mark = SHARED.get(value)
            if mark is not None and mark.of in names and value not in each.values:
                ENCODING.set(value, encoding)
                SHARED.set(value, Shared(first.name or ""))
        text = f"{encoding.dtype.name.lower()} scale {encoding.scale[0]:.6g}"
        yield Change("annotate", first.name or "", f"kv-cache, {text}, as {', '.join(sorted(filter(None, names)))}")

    def _encoding(self, each: CacheValues) -> Encoding:
        assert not isinstance(self.ranges, Named)
        seen = []
        for value in each.values:
            said = OBSERVED.get(value)
            found = (said.low, said.high) if said is not None else range_of(self.ranges, value.name or "")
            seen += [found] if found is not None else []
        if not seen:
            raise UsageError(
                "no range for this tensor of the cache", where=each.values[0].name,
                hint="calibrate the folder again with --kv-cache, or name past or present among the tensors",
            )  # fmt: skip
        dtype = parse_dtype(self.dtype)
        return encoding_of_range(
            min(low for low, _ in seen), max(high for _, high in seen), dtype=dtype, symmetric=integer_format(dtype)[0] or
            self.scales == "pow2", power_of_two=self.scales == "pow2",
            smallest=SMALLEST_SCALE.get(dtype_of(each.values[0]) or ir.DataType.FLOAT, FLOAT32_TINY),
        )  # fmt: skip
