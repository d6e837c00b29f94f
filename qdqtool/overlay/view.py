"""What `view` is asked, and what its page holds: models with what is known of them, the first as it is edited."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from qdq_passes.errors import UsageError
from qdq_passes.graph.uses import label
from qdq_passes.integers.look.quantized_table import qdq_rows
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.select.selectors import Selector, select

from qdqtool.io.models.load import load
from qdqtool.options import metadata_of, option
from qdqtool.overlay.drawing import drawing_of
from qdqtool.overlay.editing import Chosen, Editor
from qdqtool.page.report_data import PageModel, page_data
from qdqtool.record.record import Record, merged
from qdqtool.verbs.groups import DATA, OnChip, Path, Reports, Samples, Threaded, Tokenized
from qdqtool.verbs.story.report import Judged, Report
from qdqtool.verbs.verb import Verb
from qdqtool.verbs.work.records import graph_record, named_graph_record
from qdqtool.verbs.work.reporting import labels_of, page_models

if TYPE_CHECKING:
    import onnx_ir as ir

    from qdqtool.io.feeds.feeds import FeedSpec

#: What nodes and pairs can have the colour of.
Metric = Literal["type", "price", "sqnr", "clipped", "here", "whole", "verdict", "time", "bytes", "changes"]
#: Options that a metric needs.
NEEDED: Mapping[str, str] = {
    "price": "data", "sqnr": "data", "clipped": "data", "here": "data", "whole": "data", "verdict": "target", "time": "chip",
}  # fmt: skip
#: Models side by side.
MOST = 3
#: Changes of an edit that are told one by one.
SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class View(Judged, OnChip, Samples, Tokenized, Threaded, Reports, Verb["Overlay"]):
    """Open MODEL in Netron, with scales and annotations of Q/DQ as metadata; served on 127.0.0.1 until interrupted.

    --overlay serves a page of ours beside it: the graph in the colours of a metric, two or three models side by side, and a click
    makes the same edit as a qdq command, recorded by --record.
    """

    examples: ClassVar = (
        "view int8.onnx",
        "view int8.onnx --overlay price --float model.onnx --data calib.npz --record edits.toml",
        "view a.onnx b.onnx --overlay changes",
    )

    models: Sequence[Path] = field(
        kw_only=False,
        metadata=metadata_of("Models; several with --overlay.", kind="argument", value="MODEL...", use="read"),
    )
    overlay: Metric | None = option(
        None,
        "Serve a page of ours too, with the graph in the colours of this metric, where clicks are edits.",
        value="METRIC",
    )
    data: FeedSpec | None = field(default=None, metadata=DATA)
    record: Path | None = option(
        None, "Append edits of the first MODEL to this TOML script, which `opt -p @FILE` replays to the same bytes.",
        value="FILE", use="kept",
    )  # fmt: skip
    port: int = option(0, "Port on loopback; a free one by default.", value="N", least=0, most=65535)
    browser: bool = option(True, "Serve only; print the address.", flags=("--no-browser",))
    once: bool = option(False, "Fetch the page once, to see that it is served, and stop (for scripts).")

    def run(self) -> Overlay:
        """What the page holds; nothing is served yet.

        Raises:
            UsageError: no overlay, too many models, or a metric that needs more than is given.
        """
        return Overlay(self)


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
        self._folder = tempfile.TemporaryDirectory(prefix="qdqtool-view-")
        self.folder = self._folder.name
        record, floats = (None if path is None else os.fspath(path) for path in (asked.record, asked.float_model))
        self.editor = Editor(paths[0], self.folder, record=record, floats=floats, warn=asked.warn)
        self._looked = [_Looked.at(path, asked.overlay) for path in [self.editor.current, *paths[1:]]]
        self._labels = labels_of(paths)
        self._priced = self._measured([self.editor.current, *paths[1:]])
        self._is_stale = False

    def close(self) -> None:
        """Remove what is edited but not recorded."""
        self._folder.cleanup()

    def edit(self, command: str, options: Mapping[str, Any], chosen: Chosen) -> None:
        """Make an edit, see `Editor.edit`."""
        self.editor.edit(command, options, chosen)
        self._redraw()

    def undo(self) -> None:
        """Take back the last edit, see `Editor.undo`."""
        self.editor.undo()
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
            "before": editor.is_recorded_before, "replay": editor.replay, "has_float": editor.floats is not None,
            "edits": [
                {
                    "command": one.command, "changes": [str(change) for change in one.changes[:SHOWN]],
                    "more": max(0, len(one.changes) - SHOWN),
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
        models, _ = page_models(report, is_priced=asked.data is not None)
        return models

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
