"""What the page of `view --overlay` holds: models with what is known of them, the first as it is edited."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, get_args

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.graph.uses import label
from qdq_passes.integers.look.quantized_table import qdq_rows
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.select.selectors import Selector, select

from qdqtool.io.models.load import load
from qdqtool.overlay.asked import NEEDED, Metric, View
from qdqtool.overlay.drawing import drawing_of
from qdqtool.overlay.editing import Chosen, Editor
from qdqtool.page.report_data import PageModel, page_data
from qdqtool.record.record import Record, merged
from qdqtool.verbs.story.report import Report
from qdqtool.verbs.work.editing import with_repairs
from qdqtool.verbs.work.mends import Mend
from qdqtool.verbs.work.records import graph_record, named_graph_record
from qdqtool.verbs.work.reporting import labels_of, page_models

if TYPE_CHECKING:
    import onnx_ir as ir


#: Models side by side.
MOST = 3
#: Changes of an edit that are told one by one.
SHOWN = 20


class Overlay:
    """The page's models, and the edits of the first."""

    def __init__(self, asked: View) -> None:
        """Look at the models; see `View.run` for what it raises."""
        paths = [os.fspath(path) for path in asked.models]
        if asked.overlay is None:
            raise UsageError("what colour?", hint=f"give --overlay {'|'.join(get_args(Metric))}")
        if len(paths) > MOST:
            raise UsageError(f"{len(paths)} models side by side", hint=f"give {MOST} at most")
        need = NEEDED.get(asked.overlay)
        if need is not None and getattr(asked, need) is None:
            raise UsageError(f"--overlay {asked.overlay} needs --{need}", hint=f"give --{need} too, or another metric")
        if asked.overlay == "changes" and len(paths) == 1:
            raise UsageError("--overlay changes is of several models", hint="name the model before and the one after")
        self._asked = asked
        record, floats = (None if path is None else os.fspath(path) for path in (asked.record, asked.float_model))
        ranges = os.fspath(asked.ranges[0]) if asked.ranges else None
        self._labels = labels_of(paths)
        self._mends: dict[tuple[str, str], Mend] = {}
        self._measured_on = ""
        self._is_stale = False
        with ExitStack() as stack:  # the folder goes where a model is refused
            self.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="qdqtool-view-"))
            self.editor = Editor(paths[0], self.folder, record=record, floats=floats, ranges=ranges, warn=asked.warn)
            self._looked = [_Looked.at(path, asked.overlay) for path in [self.editor.current, *paths[1:]]]
            self._priced = self._measured([self.editor.current, *paths[1:]])
            self._folder = stack.pop_all()

    def close(self) -> None:
        """Remove what is edited but not recorded."""
        self._folder.close()

    def edit(self, command: str, options: Mapping[str, Any], chosen: Chosen) -> None:
        """Make an edit, see `Editor.edit`."""
        self.editor.edit(command, options, chosen)
        self._redraw()

    def pick(self, option: str, chosen: Chosen) -> None:
        """Record an option of `quantize`, see `Editor.pick`."""
        self.editor.pick(option, chosen)

    def mend(self, name: str, kind: str) -> None:
        """Make an edit that was advised, see `Editor.run`.

        Args:
            name: of the tensor or node.
            kind: of the edit.

        Raises:
            UsageError: nothing of that kind was advised.
        """
        mend = self._mends.get((name, kind))
        if mend is None:
            raise UsageError(f"no edit {kind!r} of {name} was measured", hint="pick it, and use the edits below")
        steps = with_repairs(self.editor.current, mend.steps, self._asked.warn)
        self.editor.run(steps, self.editor.named(mend.command, of=self._measured_on, is_made=True))
        self._redraw()

    def undo(self) -> None:
        """Take back the last edit, see `Editor.undo`."""
        before = self.editor.current
        self.editor.undo()
        if self.editor.current != before:
            self._redraw()

    def measure(self) -> None:
        """Price the model as it is edited, and have the target and the chip look at it.

        Raises:
            UsageError: none of these was given.
        """
        if self._priced[0] is None:
            raise UsageError("nothing to measure on", hint="start `view` with --data, --target or --chip")
        self._priced = (*self._measured([self.editor.current]), *self._priced[1:])
        self._is_stale = False

    def hit(self, text: str) -> dict[str, list[str]]:
        """Names of ``nodes`` and ``tensors`` of the edited model that the selector ``text`` denotes.

        Raises:
            UsageError: it is no selector, or matches nothing.
        """
        model = self._looked[0].model
        found = select(model, Selector.of(text))
        nodes, values = set(found.nodes), set(found.values)
        rows = [row for row in qdq_rows(model) if row.is_hit(nodes, values, found.named)]
        drawn = {node["n"] for node in self._looked[0].drawing["nodes"]}
        names = [label(node) for node in found.nodes if label(node) in drawn]
        return {"nodes": names, "tensors": list(dict.fromkeys(row.tensor for row in rows))}

    def state(self) -> dict[str, Any]:
        """All that the page draws, JSON-ready: that of `page_data`, of each model its ``graph``, and the edits."""
        shown = zip(self._labels, self._priced, self._looked, strict=True)
        data = page_data([looked.page(label, page) for label, page, looked in shown])
        for model, looked in zip(data["models"], self._looked, strict=True):
            model["graph"] = looked.drawing
        editor = self.editor
        return data | {
            "metric": self._asked.overlay, "stale": self._is_stale, "can_measure": self._priced[0] is not None,
            "before": editor.is_recorded_before, "begun": editor.begun, "replay": editor.replay,
            "kept": editor.record is not None,
            "has_float": editor.floats is not None,
            "options": {name: list(texts) for name, texts in editor.options.items()}, "anew": editor.anew,
            "edits": [
                {
                    "command": one.command, "changes": [str(change) for change in one.changes[:SHOWN]],
                    "more": max(0, len(one.changes) - SHOWN), "is_option": one.is_option,
                }
                for one in editor.edits
            ],
        }  # fmt: skip

    def _measured(self, paths: Sequence[str]) -> tuple[PageModel | None, ...]:
        """What data, a target and a chip tell; None where none of them is given."""
        asked = self._asked
        if asked.data is None and asked.target is None and asked.chip is None:
            return (None,) * len(paths)
        ranges = asked.ranges if len(paths) == len(asked.models) or len(asked.ranges) < 2 else asked.ranges[:1]
        wanted = {each.name: getattr(asked, each.name) for each in fields(Report) if hasattr(asked, each.name)}
        report = Report(**{**wanted, "models": paths, "ranges": ranges, "output": ""})
        models, found = page_models(report, is_priced=asked.data is not None)
        if found:
            self._measured_on = paths[0]
            models = (self._printed(models[0]), *models[1:])
            self._mends = {(told.record.name, mend.kind): mend for told in found[0].told for mend in told.mends}
        return models

    def _printed(self, page: PageModel) -> PageModel:
        """Its commands with names of files that outlive the page."""
        named = [
            replace(
                one,
                edits=tuple(
                    replace(e, command=self.editor.named(e.command, of=self._measured_on, is_made=False))
                    for e in one.edits
                ),
            )
            for one in page.advice
        ]
        return replace(page, advice=tuple(named))

    def _redraw(self) -> None:
        self._looked[0] = _Looked.at(self.editor.current, self._asked.overlay)
        self._is_stale = self._priced[0] is not None


@dataclass(frozen=True, kw_only=True)
class _Looked:
    """What a file itself says."""

    model: ir.Model
    drawing: Mapping[str, Any]
    record: Record

    @classmethod
    def at(cls, path: str, metric: Metric | None) -> _Looked:
        """Read ``path``; sizes are inferred where they are what is looked at, which takes longer than all else."""
        model = load(path)
        run_pipeline(model, "give-names")
        drawing, tensors = drawing_of(model)
        graph = graph_record(model, path) if metric == "bytes" else named_graph_record(model, path)
        return cls(model=model, drawing=drawing, record=merged([graph, tensors]))

    def page(self, label: str, priced: PageModel | None) -> PageModel:
        """What is shown: of what was ``priced`` that which the file still has, the file's own word before it."""
        if priced is None:
            return PageModel(label=label, record=self.record)
        nodes, tensors = ({one.name for one in part} for part in (self.record.nodes, self.record.tensors))
        known = replace(
            priced.record,
            nodes=tuple(one for one in priced.record.nodes if one.name in nodes),
            tensors=tuple(one for one in priced.record.tensors if one.name in tensors),
        )
        return replace(priced, label=label, record=merged([known, self.record]))
