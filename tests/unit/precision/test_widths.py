"""What counts as a change of the width in which nodes compute."""

from __future__ import annotations

import pytest
from qdq_passes.graph.uses import main_nodes
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.precision.look.widths import is_float_cast

from tests.cases.small_models import model


@pytest.mark.parametrize(
    ("source", "to", "is_one"),
    [("float", 10, True), ("float16", 1, True), ("float", 1, False), ("int32", 1, False), ("float", 6, False)],
)
def test_casts_from_float_to_another_float(source: str, to: int, is_one: bool) -> None:
    graph = model(f"g ({source}[2] x) => (y) {{ y = Cast<to = {to}>(x) }}")
    run_pipeline(graph, "infer-shapes")
    assert is_float_cast(main_nodes(graph)[0]) == is_one
