"""Units and partitions of a large graph, against reading the same graph: what is not linear in the nodes would show here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import onnx_ir as ir
from qdq_passes.graph.uses import main_nodes
from qdq_passes.npu.partitions.partitions import partitions
from qdq_passes.npu.units.units import units_of
from qdq_passes.npu.units.verdict import Verdict

from tests.bench.measure import Result, progress
from tests.bench.verifying import LAYERS, chain

TAKEN = Verdict(kind="npu-int", engine="NPU", rule="taken")
DECLINED = Verdict(kind="fallback", engine="CPU", rule="declined")


def results() -> Iterator[Result]:
    """Find the units and partition them, every fourth declined, against `onnx_ir.from_proto`: CPU times, made in turn, at most 5×
    (1.5-2.7 measured)."""
    progress(f"{3 * LAYERS:,} nodes, 5 rounds")
    proto, pairs = chain(), []
    for _ in range(5):
        start = time.process_time()
        model = ir.from_proto(proto)
        middle = time.process_time()
        units = units_of(model)
        found = partitions(
            main_nodes(model), units, [TAKEN if i % 4 else DECLINED for i in range(len(units))], "node", "cpu"
        )
        pairs.append((time.process_time() - middle, middle - start))
    if len(found.partitions) != LAYERS // 4:
        raise RuntimeError(f"the model that is measured has {len(found.partitions)} partitions")
    first, second = (statistics.median(times) for times in zip(*pairs, strict=True))
    detail = f"{first * 1000:.0f} ms against {second * 1000:.0f} ms, {3 * LAYERS:,} nodes, medians of {len(pairs)}"
    yield Result("partition / onnx_ir.from_proto", first / second, "×", 5.0, detail)
