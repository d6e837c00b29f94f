"""For all graphs: what several operators read is stored as well for each of them as a copy of its own would be."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from qdq_passes.graph.edit import copy_model
from qdq_passes.numerics.agreement import CEILING_DB, Accumulator

from qdqtool import api
from qdqtool.presets.loading import PRESETS
from qdqtool.runtime.session import compute
from tests.dial import examples
from tests.properties.graphs import DETERMINISTIC
from tests.properties.shared_graphs import SharedGraph, shared_graphs

PROFILE = settings(DETERMINISTIC, max_examples=examples(60), suppress_health_check=list(HealthCheck))
#: One moves what a reader wants whatever others lose, as its positions are those of the reference; the others quantize linear
#: layers alone.
LEFT_OUT = {"xint8-compat", "dynamic", "dynamic-per-token", "vulkan-8w", "xnnpack-dynamic", "xnnpack-dynamic-qc4"}
#: Most that the readers of a tensor may cost each other, at any output.
LOSS_DB = 6.0


def levels(graph: SharedGraph, preset: str, *, shared: bool) -> list[float]:
    """SQNR in dB of each output of ``graph``, quantized by ``preset`` on the samples that are compared."""
    model = graph.model(shared=shared)
    feeds = graph.samples(model)
    quantized = api.quantize(copy_model(model), preset=preset, data=feeds).model
    found = {name: Accumulator() for name in [value.name or "" for value in model.graph.outputs][: len(graph.outputs)]}
    for exact, rounded in zip(compute(model, feeds), compute(quantized, feeds), strict=True):
        for name, each in found.items():
            each.add(exact[name], rounded[name])
    return [CEILING_DB if (level := each.result().sqnr_db) is None else level for each in found.values()]


@pytest.mark.product(extra=1)
@pytest.mark.parametrize(
    "preset",
    [
        pytest.param(name, marks=[pytest.mark.always] if name in ("xint8", "qnn-a8w8") else [])
        for name in PRESETS.names()
        if name not in LEFT_OUT
    ],
)
def test_sharing_a_tensor_costs_no_output_more_than_a_bit(preset: str) -> None:
    @PROFILE
    @given(shared_graphs())
    def check(graph: SharedGraph) -> None:
        assume(graph.shares)
        own, copied = levels(graph, preset, shared=True), levels(graph, preset, shared=False)
        assert all(level >= like - LOSS_DB for level, like in zip(own, copied, strict=True)), (own, copied)

    check()
