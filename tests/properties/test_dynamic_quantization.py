"""For all small graphs: dynamic quantization that was inserted is found again, runs, and is taken back without a trace."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from qdq_passes.graph.dump import dump
from qdq_passes.integers.look.dynamic_quantization import dynamic_groups
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.pipeline.pipeline import run_pipeline

from tests.golden.numerics import outputs_of
from tests.properties.graphs import DETERMINISTIC, parse, texts


@DETERMINISTIC
@given(texts(), st.sampled_from(["per-tensor", "per-token"]), st.sampled_from(["linear", "all"]), st.booleans())
def test_remove_undoes_insert(text: str, granularity: str, readers: str, inferred: bool) -> None:
    model = parse(text)
    if inferred:
        run_pipeline(model, "infer-shapes")
    before = dump(model)
    insert = f"insert-dynamic-quantization{{granularity={granularity} readers={readers}}}"
    report = run_pipeline(model, insert, hooks=[VerifyEach()])
    inserted = {change.where for change in report.changes if not change.is_skip}
    assert {group.source.name for group in dynamic_groups(model)} == inserted
    outputs_of(model)
    assert not run_pipeline(model, insert).modified
    run_pipeline(model, "remove-dynamic-quantization", hooks=[VerifyEach()])
    assert dump(model) == before
