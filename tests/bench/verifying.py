"""The verifier on a large graph, against reading the same graph: a rule that is not linear in the nodes would show here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import onnx
import onnx.parser
import onnx_ir as ir
from qdq_passes import verify

from tests.bench.measure import Result, progress

#: Layers of the chain; each is a QDQ pair and a Relu.
LAYERS = 7000


def results() -> Iterator[Result]:
    """Verify against `onnx_ir.from_proto`, 21,000 nodes: CPU times, made in turn, at most 3× (0.9-1.1 measured)."""
    progress(f"{3 * LAYERS:,} nodes, 7 rounds")
    proto = chain()
    model = ir.from_proto(proto)
    pairs = []
    for _ in range(7):
        start = time.process_time()
        findings = verify(model)
        middle = time.process_time()
        ir.from_proto(proto)
        pairs.append((middle - start, time.process_time() - middle))
        if findings:
            raise RuntimeError(f"the model that is measured has findings: {findings[0]}")
    first, second = (statistics.median(times) for times in zip(*pairs, strict=True))
    detail = f"{first * 1000:.0f} ms against {second * 1000:.0f} ms, {3 * LAYERS:,} nodes, medians of {len(pairs)}"
    yield Result("verify / onnx_ir.from_proto", first / second, "×", 3.0, detail)


def chain() -> onnx.ModelProto:
    """A chain of QDQ pairs and Relus."""
    head = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[8] x0) => (float[8] x{LAYERS}) <float s = {{0.5}}, int8 z = {{0}}> {{"""
    layers = [
        f"[q{i}] q{i} = QuantizeLinear (x{i}, s, z) [d{i}] d{i} = DequantizeLinear (q{i}, s, z) [r{i}] x{i + 1} = Relu (d{i})"
        for i in range(LAYERS)
    ]
    return onnx.parser.parse_model("\n".join([head, *layers, "}"]))
