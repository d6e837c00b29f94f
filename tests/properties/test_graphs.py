"""For all small graphs: what passes keep, and that a second run finds nothing left to do."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from qdq_passes.graph.dump import dump
from qdq_passes.graph.uses import all_values
from qdq_passes.pipeline.pipeline import parse_pipeline, run_pipeline

from qdqtool.io.models.save import serialize, to_bytes
from tests.cases.small_models import Observed
from tests.golden.numerics import differences, outputs_of
from tests.properties.graphs import DETERMINISTIC, parse, texts

CLEANING = (
    "infer-shapes", "fold-constants", "remove-unused", "give-names", "sort", "unshare-initializers", "inline-functions",
    "remove-identity", "merge-transposes", "fold-batch-norm", "fuse-conv-activation", "convert-opset",
)  # fmt: skip
QUANTIZE = "annotate-encodings{encodings=@ranges},insert-qdq"


def ranges_of(model: ir.Model) -> dict[str, object]:
    """A range for every value, another one for each name."""
    names = sorted(value.name or "" for value in all_values(model))
    return {"ranges": {name: Observed(-1.0 - 0.37 * i, 2.0 + i) for i, name in enumerate(names)}}


def without_annotations(text: str) -> str:
    """A dump without what follows the `;` of a line, and without the lines of annotated inputs."""
    return re.sub(r" ; .*", "", re.sub(r"^ +%\S+ ;.*\n", "", text, flags=re.MULTILINE))


def check_numerics(before: ir.Model, after: ir.Model, pipeline: str) -> None:
    keeps = [pass_.keeps for pass_ in parse_pipeline(pipeline).passes]
    found = differences(outputs_of(before), outputs_of(after), keeps)
    assert not found, f"{found}\n{dump(after)}"


@DETERMINISTIC
@given(texts())
def test_remove_undoes_insert(text: str) -> None:
    """For pairs on float weights and activations, remove-qdq after insert-qdq gives the graph back, names included."""
    model = parse(text)
    before = dump(model)
    run_pipeline(model, QUANTIZE, inputs=ranges_of(model))
    assert "QuantizeLinear" in dump(model) or "encoding" not in dump(model)
    run_pipeline(model, "remove-qdq")
    assert without_annotations(dump(model)) == without_annotations(before)


@DETERMINISTIC
@given(texts(), st.booleans())
def test_inserted_pairs_run_and_round_to_their_grid(text: str, stored: bool) -> None:
    """A quantized graph runs, and stored integers compute the same bits as pairs on float weights."""
    model, other = parse(text), parse(text)
    run_pipeline(model, QUANTIZE + ("{weights=dq}" if stored else ""), inputs=ranges_of(model))
    run_pipeline(other, QUANTIZE, inputs=ranges_of(other))
    a, b = outputs_of(model), outputs_of(other)
    assert list(a) == list(b)
    assert all(np.array_equal(a[name], b[name]) for name in a)


@DETERMINISTIC
@given(texts())
def test_folding_weights_is_exact(text: str) -> None:
    model = parse(text)
    run_pipeline(model, QUANTIZE, inputs=ranges_of(model))
    before = model.clone()
    run_pipeline(model, "fold-weight-qdq")
    check_numerics(before, model, "fold-weight-qdq")


@DETERMINISTIC
@given(texts())
def test_cleaning_keeps_what_it_promises(text: str) -> None:
    pipeline = ",".join(CLEANING)
    model = parse(text)
    run_pipeline(model, pipeline)
    check_numerics(parse(text), model, pipeline.removesuffix(",convert-opset"))


@pytest.mark.parametrize("name", CLEANING)
def test_a_second_run_finds_nothing(name: str) -> None:
    @DETERMINISTIC
    @given(texts())
    def property_of(text: str) -> None:
        model = parse(text)
        run_pipeline(model, name)
        before = dump(model)
        report = run_pipeline(model, name)
        assert not report.modified, [str(change) for change in report.changes]
        assert dump(model) == before

    assert property_of() is None


@DETERMINISTIC
@given(texts())
def test_same_input_same_bytes(text: str) -> None:
    pipeline = f"{','.join(CLEANING)},{QUANTIZE},fold-weight-qdq,round-scales-pow2"
    results = []
    for _ in range(2):
        model = parse(text)
        report = run_pipeline(model, pipeline, inputs=ranges_of(parse(text)))
        results.append((to_bytes(serialize(model)), dump(model), [str(change) for change in report.changes]))
    assert results[0] == results[1]


@DETERMINISTIC
@given(st.integers(1, 5), st.integers(1, 8), st.integers(1, 3), st.integers(-3, 12), st.integers(0, 9), st.booleans())
def test_outliers_leave_the_outputs_exactly_equal(n: int, k: int, m: int, exponent: int, seed: int, bias: bool) -> None:
    """γ·2^e and W·2^-e cancel in every product: the outputs are equal bit for bit."""
    random = np.random.default_rng(seed)

    def numbers(count: int) -> str:
        return ", ".join(map(str, random.normal(size=count).astype(np.float16).astype(float).tolist()))

    shift = f", float[{k}] shift = {{{numbers(k)}}}" if bias else ""
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[{n},{k}] x) => (float[{n},{m}] y)
    <float[{k}] gain = {{{numbers(k)}}}{shift}, float[{k},{m}] w = {{{numbers(k * m)}}}>
    {{ [norm] t = LayerNormalization(x, gain{", shift" if bias else ""}) [mul] y = MatMul(t, w) }}"""
    model = parse(text)
    pipeline = f"inject-outliers{{channels=2 exponent={exponent} seed={seed}}}"
    assert run_pipeline(model, pipeline).modified
    check_numerics(parse(text), model, pipeline)
