"""How `report` works: each model's record, filled by those who know something of it, and the page of all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.io.files.atomic import refuse_existing, write_whole
from qdqtool.io.files.progress import Warned, pass_on
from qdqtool.io.files.shown import Shown
from qdqtool.io.models.load import load, missing_warnings, missing_weights
from qdqtool.page.report_data import Advice, Edit, PageModel
from qdqtool.page.report_page import report_page
from qdqtool.record.record import Record, TensorRecord, merged
from qdqtool.targets.loading import load_target
from qdqtool.verbs.advice.trying import Advisor, placed_with_advice
from qdqtool.verbs.groups import Path
from qdqtool.verbs.story.explain import Explain
from qdqtool.verbs.work.chip_times import estimated_on_chip
from qdqtool.verbs.work.explaining import Explained, Told, explained
from qdqtool.verbs.work.judging import Judge
from qdqtool.verbs.work.mends import Outputs
from qdqtool.verbs.work.records import graph_record

if TYPE_CHECKING:
    from qdqtool.verbs.story.report import Report


@dataclass(frozen=True, kw_only=True, repr=False)
class Reported(Shown, Warned):
    """What `report` found.

    Args:
        models: what stands on the page.
        explained: of each model.
        page: the HTML.
        written: its file.
    """

    figures: ClassVar[Mapping[str, str]] = {"models": "models", "written": "written"}

    models: tuple[PageModel, ...]
    explained: tuple[Explained, ...]
    page: str
    written: str

    def _repr_html_(self) -> str:
        """The page in a frame, for notebooks."""
        return f'<iframe srcdoc="{escape(self.page)}" title="Report" width="100%" height="800"></iframe>'

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: ``models`` with ``label``, ``told`` and ``record``, ``bytes`` of the page, ``written``."""
        models = [
            {"label": model.label, "told": [one.to_json() for one in found.told], "record": model.record.to_json()}
            for model, found in zip(self.models, self.explained, strict=True)
        ]
        return {"models": models, "bytes": len(self.page.encode()), "written": self.written}


def reported(asked: Report) -> Reported:
    """See `qdqtool.verbs.story.report.Report.run`."""
    output = os.fspath(asked.output)
    refuse_existing(output, overwrite=asked.overwrite)
    models, found = page_models(asked)
    page = report_page(models)
    write_whole(output, page.encode(), overwrite=asked.overwrite)
    return Reported(models=models, explained=found, page=page, written=output)


def page_models(asked: Report, *, is_priced: bool = True) -> tuple[tuple[PageModel, ...], tuple[Explained, ...]]:
    """What a page shows of each model.

    Args:
        asked: its models.
        is_priced: run data through them; otherwise nothing is explained.

    Raises:
        UsageError: no model, or not one file of ranges for each.
    """
    paths, ranges = [os.fspath(path) for path in asked.models], list(asked.ranges)
    if not paths:
        raise UsageError("no model to report on", hint="give quantized models")
    if len(ranges) not in (0, 1, len(paths)):
        raise UsageError(f"{len(ranges)} files of --ranges for {len(paths)} models", hint="give one, or one for each")
    first = ranges[0] if ranges else None
    given: list[Path | None] = [*ranges] if len(ranges) == len(paths) else [first] * len(paths)
    before = [_placed(path, asked) for path in paths]
    if not is_priced:
        plain = zip(labels_of(paths), before, strict=True)
        return tuple(PageModel(label=label, record=merged(known)) for label, (known, _) in plain), ()
    outputs = Outputs()
    found = [
        explained(_explaining(path, each, asked), outputs, judge, is_anew=False)
        for path, each, (_, judge) in zip(paths, given, before, strict=True)
    ]
    models = tuple(
        PageModel(
            label=label,
            record=merged([*known, one.record]),
            advice=tuple(_advice(told) for told in one.told),
        )
        for label, (known, _), one in zip(labels_of(paths), before, found, strict=True)
    )
    return models, tuple(found)


def labels_of(paths: Sequence[str]) -> list[str]:
    """Names of the files, with as many folders as tell them apart; of one path twice the second has a number."""
    for count in range(1, 1 + max(len(path.split(os.sep)) for path in paths)):
        found = ["/".join(path.split(os.sep)[-count:]) for path in paths]
        if len(set(found)) == len(set(paths)):
            break
    return [name if (at := found[:n].count(name)) == 0 else f"{name} ({at + 1})" for n, name in enumerate(found)]


def _placed(path: str, asked: Report) -> tuple[list[Record], Judge | None]:
    """What its graph tells, a target and a chip; and the target, which has looked at it."""
    model = load(path)
    records, judge, on_cpu, crossings = [graph_record(model, path)], None, None, 0
    if asked.target is not None:
        pass_on(missing_warnings(missing_weights(model)), asked.warn)
        judge = Judge(model, load_target(asked.target))
        advisor = Advisor(model, judge.target, path, judge=judge)
        records.append(placed_with_advice(judge.placed, advisor).record)
        on_cpu, crossings = judge.placed.on_cpu, judge.placed.partitions
    time = estimated_on_chip(model, asked, on_cpu=on_cpu, crossings=crossings)
    return records if time is None else [*records, time.record], judge


def _explaining(path: str, ranges: Path | None, asked: Report) -> Explain:
    return Explain(
        path, asked.data, float_model=asked.float_model, worst=asked.worst, ranges=ranges, target=asked.target,
        samples=asked.samples, seed=asked.seed, image=asked.image, tokenizer=asked.tokenizer, jobs=asked.jobs, warn=asked.warn,
        progress=asked.progress,
    )  # fmt: skip


def _advice(told: Told) -> Advice:
    edits = tuple(
        Edit(kind=mend.kind, command=mend.command, wins_db=mend.wins_db, note=mend.judged.said)
        for mend in told.mends
        if mend.wins_db > 0
    )
    kind = "tensor" if isinstance(told.record, TensorRecord) else "node"
    return Advice(
        name=told.record.name, kind=kind, cause=told.cause, why=told.why, share=told.share, edits=edits
    )  # fmt: skip
