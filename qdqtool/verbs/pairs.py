"""What the verbs share that edit pairs: what they act on, and how their passes run."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.options import option
from qdqtool.verbs.editing import PipelineEditing
from qdqtool.verbs.groups import AllowsEmpty, Findings, Path, Selected

if TYPE_CHECKING:
    from qdq_passes.pipeline.pipeline import Pipeline

    from qdqtool.io.files.edit_script import NamedInputs
    from qdqtool.verbs.work.editing import Saved

#: A pass by name, with its options.
Step = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class PairEditing(PipelineEditing, Selected, AllowsEmpty, Findings):
    """A model whose pairs are edited."""

    record: Path | None = option(
        None, "Append the edit to this TOML script, which `opt -p @FILE` replays to the same bytes.",
        value="FILE", use="kept", before="select",
    )  # fmt: skip

    @property
    def is_whole_between(self) -> bool:
        """Whether the model is to be without new errors after every pass, not only after the last."""
        return True

    @abstractmethod
    def steps(self) -> Sequence[Step]:
        """The passes that do it."""

    def inputs(self) -> NamedInputs:
        """What the passes read by name."""
        return {}

    def pipeline(self) -> Pipeline:
        """The passes behind those that repair what no edit could be saved with; a description is written anew."""
        from qdqtool.verbs.work.editing import with_repairs

        return with_repairs(self.paths[0], self.steps(), self.warn)

    def run(self) -> Saved:
        """What the passes did, and what was written."""
        from qdqtool.verbs.work.editing import run_and_save

        record = None if self.record is None else os.fspath(self.record)
        return run_and_save(
            self, self.pipeline(), inputs=self.inputs(), allow_findings=self.allow_findings, record=record,
            verify_each=self.is_whole_between,
        )  # fmt: skip

    def optionally_selected(self) -> dict[str, Any]:
        """The pass option ``select``; none given denotes everything.

        With ``allow_empty`` texts that match nothing are a warning and left out.
        """
        from qdqtool.verbs.work.editing import matching

        if not self.select:
            return {}
        if not self.allow_empty:
            return {"select": list(self.select)}
        return {"select": matching(self.paths[0], self.select, self.warn)}


@dataclass(frozen=True, kw_only=True)
class All:
    """Everything, where it must be said."""

    everything: bool = option(False, "Everything, instead of --select.", flags=("--all",))


def selected(verb: PairEditing, where: str, *, everything: bool) -> dict[str, Any]:
    """The pass option ``select`` of ``--select`` or ``--all``.

    Raises:
        UsageError: neither or both are given.
    """
    if bool(verb.select) == everything:
        raise wrong(where, "give either --select or --all")
    return verb.optionally_selected()


def wrong(verb: str, text: str) -> UsageError:
    """An error about options of ``qdq VERB`` that do not go together."""
    return UsageError(f"qdq {verb}: {text}", hint=f"see `qdqtool qdq {verb} --help`")


@dataclass(frozen=True, kw_only=True)
class Boundaries:
    """What becomes of borders between widths."""

    boundaries: bool = option(
        True, "Where tensors of one width meet operators of another, insert the converting pair.", shown=True
    )
