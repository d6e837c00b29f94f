"""How far a model walks through the files, and that the counter follows what it says it follows."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.typed_names import MODEL, holders, indexed, modules
from tests.architecture.walks import VERBS, Flow, walk

#: Files that a verb's model may pass through. To quantize is since 2026-11 also to bound masks, to take token ids for folders, and to say
#: who runs what; since 2026-11-26 to hold what the file declares against its graph, and to look for loops without an end; since
#: 2026-11-28 to calibrate in onnxruntime's blocks, to say of poor outputs what costs them most, as `explain` does, and what tensors lose
#: by moved scales, to hold samples out and to say that a model is quantized already; both to carry out what is suggested on a copy, and
#: to judge it; to analyze also to try passes on a copy before it is said that there is none; since 2026-11-29 to
#: reach other libraries with its data, and to quantize again where layers behind a Concat of unlike ranges stay float.
LIMITS = {"quantize": 94, "analyze": 30, "split": 21}


@pytest.mark.parametrize("verb", LIMITS)
def test_a_model_walks_no_further(verb: str) -> None:
    visited = walk(*VERBS[verb].split(":"))
    assert len(visited) <= LIMITS[verb], "\n".join(sorted(visited))


def test_walks_reach_what_they_must() -> None:
    """In, through the pipeline and the verifier, out: a counter that lost its way would find few files."""
    ends = {
        "qdqtool.io.models.load",
        "qdq_passes.pipeline.pipeline",
        "qdq_passes.verification.rules",
        "qdqtool.io.models.save",
    }
    for verb in LIMITS:
        assert ends <= walk(*VERBS[verb].split(":")).keys(), verb


TRIED = """
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.uses import in_order, label
from qdq_passes.integers.look.integer_ops import quantized_defaults
from qdq_passes.verification.rules import Walk, verify
from qdqtool.io.files.atomic import refuse_existing
from qdqtool.io.files.read import read_text
from qdqtool.io.models.working import opened
from qdqtool.verbs.npu.analyze import Analyze

def start(model, asked: Analyze, models: Mapping[str, ir.Model]):
    copy_model(model)
    in_order(model.graph)
    for node in model.graph:
        label(node)
    rest, digest = opened(asked.model)
    verify(rest)
    refuse_existing(digest)
    for key in models:
        read_text(key)
    Walk(rest)
    quantized_defaults(rest.graph.inputs)
"""


def test_the_counter_follows_the_model_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model, its graph, that of an object that holds it, and what a tuple gives back; no node, no name, no list of inputs."""
    tried = indexed("tried", ast.parse(TRIED))
    monkeypatch.setitem(modules(), "tried", tried)
    flow = Flow(tried.functions["start"], frozenset({("model", MODEL)}))
    found = {f"{callee.owner}.{callee.function.name}" for callee, _ in flow.calls()}
    assert found == {".copy_model", ".in_order", ".opened", ".verify", "Walk.__init__"}


def test_holders_are_what_has_the_model_in_a_field() -> None:
    assert {("qdqtool.llm.plan.splitting", "StaticGraph"), ("qdqtool.verbs.split", "Split")} <= holders()
    assert ("qdqtool.targets.target", "Target") not in holders()
    assert ("qdq_passes.npu.units.units", "Unit") not in holders()
