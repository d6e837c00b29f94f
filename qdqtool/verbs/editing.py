"""What the verbs share that change a model."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.verbs.groups import MODEL, OUTPUT_NEEDED, Path, Reports, Saving
from qdqtool.verbs.verb import Verb

if TYPE_CHECKING:
    from qdq_passes.pipeline.pipeline import Pipeline

    from qdqtool.verbs.work.editing import Saved

#: A verb that writes a model.
Edit: TypeAlias = Verb["Saved"]


@dataclass(frozen=True, kw_only=True)
class Editing(Saving, Reports):
    """A model file, and where the changed one goes."""

    leads: ClassVar[tuple[type, ...]] = (Saving,)

    model: Path = field(kw_only=False, metadata=MODEL)
    output: Path | None = field(kw_only=False, metadata=OUTPUT_NEEDED)

    @property
    def paths(self) -> tuple[str, str]:
        """The model, and where it goes.

        Raises:
            UsageError: nothing says where.
        """
        if self.output is None:
            raise UsageError("no output", hint="say where the model goes: -o FILE")
        return os.fspath(self.model), os.fspath(self.output)


@dataclass(frozen=True, kw_only=True)
class PipelineEditing(Editing):
    """A model file that a pipeline changes."""

    @abstractmethod
    def pipeline(self) -> Pipeline | str:
        """What runs.

        Raises:
            UsageError: there is nothing to run.
        """

    def run(self) -> Saved:
        """What the passes did, and what was written."""
        from qdqtool.verbs.work.editing import run_and_save

        return run_and_save(self, self.pipeline())
