"""Runs every golden case; see `tests.golden.golden` for what a case file says."""

from __future__ import annotations

import functools
from collections.abc import Callable

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
from tests.dial import some
from tests.golden.golden import FOLDER, Golden, cases, filecheck
from tests.golden.numerics import differences, outputs_of

CASES = cases()
#: Cases whose numbers need the newest onnxruntime.
NEWEST = [case for case in CASES if case.directives("NEWEST") and not case.has("FAILS")]
#: Passes that report again what they were told, without changing anything.
REPORT_AGAIN = {"annotate-encodings", "extract-subgraph"}


@functools.lru_cache(maxsize=1)  # the checks of one case follow each other
def parsed(case: Golden) -> ir.Model:
    """The model of the case. It is not to be changed; a clone would want sorted nodes."""
    return case.model()


@functools.lru_cache(maxsize=1)
def result(case: Golden) -> tuple[ir.Model, str]:
    """The model after the pipeline, and its changes as text. Neither is to be changed."""
    model = case.model()
    report = case.run(model)
    return model, "\n".join(str(change) for change in report.changes) + "\n"


def expected(case: Golden) -> None:
    """The result or the error matches the lines of the file."""
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


def survives_the_file(case: Golden) -> None:
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


def keeps_numerics(case: Golden) -> None:
    """onnxruntime computes what the passes promise; a model it ran before it still runs."""
    reasons = case.directives("NUMERICS")
    if reasons:
        assert "because" in reasons[0]
        return
    before = outputs_of(parsed(case))
    after = outputs_of(result(case)[0])
    assert not differences(before, after, [pass_.keeps for pass_ in parse_pipeline(case.pipeline).passes])


def second_run_changes_nothing(case: Golden) -> None:
    """The pipeline changes nothing in its own result."""
    reasons = case.directives("TWICE")
    if reasons:
        assert "because" in reasons[0]
        return
    model = result(case)[0].clone()
    before = dump(model)
    report = run_pipeline(model, parse_pipeline(case.pipeline), inputs=case.inputs())
    assert dump(model) == before
    if report.passes[-1].modified:
        assert case.path.parent.name in REPORT_AGAIN, [str(c) for c in report.passes[-1].changes]


def keeps_scopes(case: Golden) -> None:
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


FURTHER = (survives_the_file, second_run_changes_nothing, keeps_scopes)


def checks_of(case: Golden) -> list[Callable[[Golden], None]]:
    """Return the checks of a case: what the file expects, and, if it has a result, its numerics and, in the part, one of
    `FURTHER`, else all."""
    if case.has("FAILS"):
        return [expected]
    numerics = [] if case.directives("NEWEST") else [keeps_numerics]
    return [expected, *numerics, *some(FURTHER, 1)]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_case(case: Golden) -> None:
    """All checks run, and each that fails is named with its reason."""
    failures = []
    for check in checks_of(case):
        try:
            check(case)
        except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # noqa: BLE001  (raised below, together with the others)
            error.add_note(f"{case.path.relative_to(FOLDER)}: check {check.__name__} failed")
            failures.append(error)
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} checks of {case.name} failed", failures)


@pytest.mark.newest
@pytest.mark.parametrize("case", NEWEST, ids=[case.name for case in NEWEST])
def test_numerics_of_the_newest(case: Golden) -> None:
    """Numbers that need the newest onnxruntime, with a reason."""
    assert all(reason.startswith("because ") for reason in case.directives("NEWEST"))
    keeps_numerics(case)


def test_every_pass_has_cases() -> None:
    folders: dict[str, list[str]] = {}
    for case in CASES:
        folders.setdefault(case.path.parent.name, []).append(case.path.stem)
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
