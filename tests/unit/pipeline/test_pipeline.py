"""Pipelines: order of passes and hooks, named inputs, errors that name the pass, and the text they are written in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
from qdq_passes import Change, Keeps, Pass, Pipeline, dump, parse_pipeline, run_pipeline, skip
from qdq_passes.core.base import Named
from qdq_passes.errors import ModelError, UsageError, VerifyError
from qdq_passes.pipeline.hooks import QuietHook, StopAfter, VerifyEach
from qdq_passes.pipeline.pipeline import PassError, StopPipeline
from qdq_passes.pipeline.text import make_pass
from qdq_passes.select.selectors import Selector

from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

RELU = "g (float[2] x) => (float[2] y) { [relu] y = Relu(x) }"


@dataclass(frozen=True)
class Rename(Pass):
    """Renames the first node."""

    to: str = "renamed"

    def run(self, model: ir.Model) -> Iterator[Change]:
        node = model.graph[0]
        if node.name == self.to:
            yield skip(node, "has the name")
            return
        node.name = self.to
        yield Change("rename", self.to, "as told")


@dataclass(frozen=True)
class Break(Pass):
    """Raises what it is told to, after an edit."""

    error: Any = None

    def run(self, model: ir.Model) -> Iterator[Change]:
        model.graph[0].name = "half"
        yield Change("rename", "half")
        raise self.error


@dataclass(frozen=True)
class Duplicate(Pass):
    """Breaks the model: two nodes of one name."""

    def run(self, model: ir.Model) -> Iterator[Change]:
        node = ir.node("Neg", [model.graph.inputs[0]], name=model.graph[0].name)
        model.graph.append(node)
        yield Change("insert", node.name or "")


@dataclass(frozen=True)
class Wants(Pass):
    """Wants a value."""

    table: Named | dict[str, int] = Named("table")  # noqa: RUF009  (a frozen dataclass)
    seen: list[Any] = field(default_factory=list, compare=False)

    def run(self, model: ir.Model) -> Iterator[Change]:
        self.seen.append(self.table)
        return iter(())


@dataclass
class Log(QuietHook):
    """Writes down what it sees."""

    name: str
    lines: list[str]
    stop_before: str = ""

    def before(self, pass_: Pass, model: ir.Model) -> None:
        if pass_.name() == self.stop_before:
            raise StopPipeline
        self.lines.append(f"{self.name} before {pass_.name()}")

    def after(self, pass_: Pass, model: ir.Model, changes: Sequence[Change]) -> None:
        self.lines.append(f"{self.name} after {pass_.name()} {[str(c) for c in changes]}")

    def on_error(self, pass_: Pass, model: ir.Model, error: Exception) -> None:
        self.lines.append(f"{self.name} error {pass_.name()} {type(error).__name__} {model.graph[0].name}")


def test_hooks_run_in_order_around_each_pass() -> None:
    lines: list[str] = []
    Pipeline((Rename("a"), Rename("a"))).run(model(RELU), hooks=[Log("one", lines), Log("two", lines)])
    assert lines == [
        "one before rename", "two before rename", "one after rename ['rename a: as told']",
        "two after rename ['rename a: as told']", "one before rename", "two before rename",
        "one after rename ['skip a: has the name']", "two after rename ['skip a: has the name']",
    ]  # fmt: skip


def test_the_report_counts_changes_and_not_skips() -> None:
    report = Pipeline((Rename("a"), Rename("a"))).run(model(RELU))
    assert [p.modified for p in report.passes] == [True, False]
    assert report.modified
    assert [str(c) for c in report.changes] == ["rename a: as told", "skip a: has the name"]
    first, second = report.to_json()
    assert (first["pass"], first["changes"], first["skips"]) == (
        "rename{to=a}", [{"kind": "rename", "where": "a", "because": "as told"}], [],
    )  # fmt: skip
    assert second["changes"] == []
    assert second["skips"][0]["because"] == "has the name"
    assert not Pipeline(()).run(model(RELU)).modified


def test_stopping() -> None:
    lines: list[str] = []
    report = parse_pipeline("sort,give-names,infer-shapes").run(model(RELU), hooks=[StopAfter(2), Log("log", lines)])
    assert [p.text for p in report.passes] == ["sort", "give-names"]
    assert lines[-1].startswith("log after give-names")
    report = parse_pipeline("sort,give-names").run(model(RELU), hooks=[Log("log", lines, stop_before="sort")])
    assert report.passes == ()


def test_named_inputs() -> None:
    wants = Wants()
    pipeline = Pipeline((Rename(), wants))
    assert pipeline.needs() == ["table"]
    with refusal(UsageError):
        pipeline.run(original := model(RELU))
    assert original.graph[0].name == "relu"  # refused before anything ran
    pipeline.run(model(RELU), inputs={"table": {"a": 1}, "unused": 2})
    assert wants.seen == [{"a": 1}]
    assert wants.table == Named("table")
    with refusal(UsageError):
        wants(model(RELU))
    assert Wants({"a": 2})(model(RELU)) == []


def test_an_error_names_the_pass() -> None:
    lines: list[str] = []
    error = ModelError("is odd", where="relu", hint="look")
    with refusal(ModelError) as caught:
        Pipeline((Rename("a"), Break(error))).run(model(RELU), hooks=[Log("log", lines)])
    assert caught.value is error
    assert caught.value.__notes__ == ["in pass break{error=@error}"]
    assert lines[-1] == "log error break ModelError half"


def test_a_bug_becomes_a_pass_error() -> None:
    with refusal(PassError) as caught:
        Pipeline((Break(ValueError("oops")),)).run(model(RELU))
    assert caught.value.exit_code == 70
    assert caught.value.where == "break{error=@error}"
    assert isinstance(caught.value.__cause__, ValueError)


def test_verify_each_blames_the_pass_only_for_what_it_broke() -> None:
    with refusal(VerifyError):
        Pipeline((Rename("relu"), Duplicate())).run(model(RELU), hooks=[VerifyEach()])
    twice = model("g (float[2] x) => (float[2] y) { [n] t = Relu(x) [n] y = Neg(t) }")
    assert Pipeline((Rename("n"),)).run(twice, hooks=[VerifyEach()]).passes


def test_a_model_that_came_with_errors_is_to_blame() -> None:
    """Whether a pass fails or leaves an error: what is added is of two types, or the nodes are out of order."""
    unfit = "g (float[2] x) => (float[2] y) <int64[2] w = {1, 2}> { [n] y = Add (x, w) }"
    unsorted = "g (float[2] x) => (float[2] y) { [n] y = Neg (h)  h = Abs (x) }"
    for pass_, text in ((Break(ValueError("no")), unfit), (Duplicate(), unfit), (Duplicate(), unsorted)):
        with refusal(ModelError):
            Pipeline((pass_,)).run(model(text), hooks=[VerifyEach()])


def test_copy_leaves_the_model_alone() -> None:
    original = model("g (float[2] x) => (float[2] y) { [relu] y = Relu(x) [dead] z = Neg(x) }")
    before = dump(original)
    report = run_pipeline(original, "remove-unused", copy=True)
    assert dump(original) == before
    assert report.model is not original
    assert len(report.model.graph) == 1
    assert run_pipeline(original, "remove-unused").model is original
    assert len(original.graph) == 1


def test_pipelines_add_up() -> None:
    assert str(parse_pipeline("sort") + parse_pipeline("give-names,sort")) == "sort,give-names,sort"


def test_a_pass_from_python_needs_no_registry() -> None:
    """Selectors, keeps and names of a class of one's own."""
    assert Rename.name() == "rename"
    assert Rename.keeps == Keeps("exact")
    report = run_pipeline(model(RELU), Pipeline((Rename("a"), make_pass("remove-qdq", {"select": "a"}))))
    assert report.passes[0].modified
    assert str(Selector.of("a").texts[0]) == "a"
