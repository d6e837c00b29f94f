"""How the verbs that edit pairs make a pipeline of their steps."""

from __future__ import annotations

from collections.abc import Sequence

from qdq_passes.errors import UsageError
from qdq_passes.graph.uses import all_nodes, all_values
from qdq_passes.pipeline.pipeline import Pipeline, parse_pipeline
from qdq_passes.pipeline.text import make_pass
from qdq_passes.qdq.edit.display import is_described
from qdq_passes.select.selectors import NONE, Selector, select

from qdqtool.io.files.progress import Warn, pass_on
from qdqtool.io.models.load import load
from qdqtool.io.models.working import repair_warnings, repairs_of
from qdqtool.verbs.pairs import Step


def with_repairs(model: str, steps: Sequence[Step], warn: Warn | None) -> Pipeline:
    """``steps`` behind the passes that repair ``model``; a description that it has is written anew."""
    graph = load(model)
    repairs = repairs_of(graph)
    pass_on(repair_warnings(repairs), warn)
    last: list[Step] = [("describe-encodings", {})] if is_described([*all_nodes(graph), *all_values(graph)]) else []
    first = parse_pipeline(",".join(repairs)).passes if repairs else ()
    return Pipeline((*first, *(make_pass(name, dict(options)) for name, options in [*steps, *last])))


def matching(model: str, texts: Sequence[str], warn: Warn | None) -> list[str]:
    """Those of the selectors ``texts`` that match anything; the others are told."""
    graph, kept = load(model), []
    for text in texts:
        try:
            select(graph, Selector.of(text))
            kept.append(text)
        except UsageError as error:
            pass_on([str(error)], warn)
    return kept or list(NONE.texts)
