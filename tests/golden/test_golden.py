"""Runs every golden case; see `tests.golden.golden` for what a case file says."""

from __future__ import annotations

import functools
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from qdq_passes.core.registry import PASSES
from qdq_passes.errors import QdqError
from qdq_passes.graph.annotate import DEMAND, Demand, write_metadata
from qdq_passes.graph.dump import dump
from qdq_passes.graph.nesting import SCOPE
from qdq_passes.graph.uses import all_nodes, all_values
from qdq_passes.pipeline.pipeline import parse_pipeline, run_pipeline

from qdqtool.io.models.load import model_of
from qdqtool.io.models.save import serialize
from tests.golden.golden import FOLDER, Golden, cases, filecheck
from tests.golden.numerics import differences, outputs_of

CASES = cases()
#: Passes that report again what they were told, without changing anything.
REPORT_AGAIN = {"annotate-encodings", "extract-subgraph"}

each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@functools.cache
def parsed(case: Golden) -> ir.Model:
    return case.model()


@functools.cache
def result(case: Golden) -> tuple[ir.Model, str]:
    """The model after the pipeline, and its changes as text. Neither is to be changed."""
    model = case.model()
    report = case.run(model)
    return model, "\n".join(str(change) for change in report.changes) + "\n"


@each_case
def test_case(case: Golden) -> None:
    problems = ""
    if case.has("FAILS"):
        with pytest.raises(QdqError) as caught:
            result(case)
        assert caught.value.exit_code != 70, "an error of ours, not of the user"
        assert not filecheck("FAILS", case.path, f"{type(caught.value).__name__}: {caught.value}\n")
        return
    model, changes = result(case)
    if case.directives("UNCHANGED"):
        assert dump(model) == dump(parsed(case))
        assert all(line.startswith("skip ") for line in changes.splitlines() if line), changes
    if case.has("CHECK"):
        problems += filecheck("CHECK", case.path, dump(model))
    if case.has("CHANGES"):
        problems += filecheck("CHANGES", case.path, changes)
    assert not problems, problems
    assert case.has("CHECK") or case.has("CHANGES") or case.directives("UNCHANGED"), "the case checks nothing"


def ran() -> list[Golden]:
    return [case for case in CASES if not case.has("FAILS")]


@pytest.mark.product(extra=350)
@pytest.mark.parametrize("case", ran(), ids=[case.name for case in ran()])
def test_result_survives_the_file(case: Golden) -> None:
    """Serialized with its annotations and read back, the result is the same; onnx.checker accepts it if it did before."""
    model = result(case)[0].clone()
    write_metadata(model)
    proto = serialize(model)
    read = model_of(onnx.ModelProto.FromString(proto.SerializeToString()))
    assert dump(read) == dump(result(case)[0])
    if is_clean(serialize(parsed(case))):
        onnx.checker.check_model(proto, full_check=True)


def is_clean(proto: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def marked(case: Golden) -> Any:
    """The case as a parameter; with the mark for those whose numbers need the newest onnxruntime."""
    reasons = case.directives("NEWEST")
    assert all(reason.startswith("because ") for reason in reasons), case.name
    return pytest.param(case, id=case.name, marks=[pytest.mark.newest] if reasons else [])


@pytest.mark.product(extra=350)
@pytest.mark.parametrize("case", [marked(case) for case in ran()])
def test_numerics(case: Golden) -> None:
    """onnxruntime computes what the passes promise; a model it ran before it still runs."""
    reasons = case.directives("NUMERICS")
    if reasons:
        assert "because" in reasons[0]
        return
    before = outputs_of(parsed(case))
    after = outputs_of(result(case)[0])
    assert not differences(before, after, [pass_.keeps for pass_ in parse_pipeline(case.pipeline).passes])


@pytest.mark.product(extra=350)
@pytest.mark.parametrize("case", ran(), ids=[case.name for case in ran()])
def test_second_run_changes_nothing(case: Golden) -> None:
    reasons = case.directives("TWICE")
    if reasons:
        assert "because" in reasons[0]
        return
    model = case.model()
    case.run(model)
    before = dump(model)
    report = run_pipeline(model, parse_pipeline(case.pipeline), inputs=case.inputs())
    assert dump(model) == before
    if report.passes[-1].modified:
        assert case.path.parent.name in REPORT_AGAIN, [str(c) for c in report.passes[-1].changes]


def test_every_pass_has_cases() -> None:
    folders = {folder.name: [g.path.stem for g in CASES if g.path.parent == folder] for folder in FOLDER.iterdir()}
    for name in PASSES.names():
        stems = folders.get(name, [])
        assert stems, f"tests/golden/{name}/ has no case"
        kinds = {stem.partition("_")[0] for stem in stems}
        assert "acts" in kinds, f"tests/golden/{name}/ has no case where it acts, only {stems}"
        assert kinds & {"declines", "complains"}, f"tests/golden/{name}/ has no case where it declines or complains"
        assert kinds <= {"acts", "declines", "complains", "border"}, f"unknown kind of case in {stems}"


def test_no_case_is_left_over() -> None:
    names = PASSES.names()
    for case in CASES:
        assert case.path.parent.name in names, f"{case.name}: there is no such pass"
        assert case.path.parent.name in case.pipeline, f"{case.name} does not run its pass"


@pytest.mark.product(extra=350)
@pytest.mark.parametrize("case", ran(), ids=[case.name for case in ran()])
def test_scopes_survive(case: Golden) -> None:
    """Nodes that stay keep their scope, nodes that are new have one; annotations of values that stay are still there."""
    model = case.model()
    scopes = {}
    for node in all_nodes(model):
        node.metadata_props.setdefault(SCOPE, f"model.{node.name}")
        scopes[node.name] = node.metadata_props[SCOPE]
    for value in all_values(model):
        DEMAND.set(value, Demand((value.name or "",)))
    case.run(model)
    for node in all_nodes(model):
        assert node.metadata_props.get(SCOPE), f"{node.op_type} {node.name} has no scope"
        if case.path.parent.name != "inline-functions":  # nodes of a body take over the scope of the call
            assert node.metadata_props[SCOPE] == scopes.get(node.name, node.metadata_props[SCOPE])
    if case.path.parent.name not in ("annotate-encodings", "insert-qdq"):
        for value in model.graph.outputs:
            assert DEMAND.get(value) is not None, f"the annotation of {value.name} is lost"
