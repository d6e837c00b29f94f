"""Pipelines: passes in order, run with hooks around each. Text form in `qdq_passes.pipeline.text`."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Named, Pass, is_modified
from qdq_passes.core.names import CONTRADICTION
from qdq_passes.errors import ModelError, QdqError, UsageError
from qdq_passes.graph.edit import copy_model
from qdq_passes.pipeline.text import format_pass, parse_passes


class Hook(Protocol):
    """Called around each pass of a running pipeline. Hooks look, they do not edit."""

    def before(self, pass_: Pass, model: ir.Model) -> None:
        """Before ``pass_`` runs; raising `StopPipeline` ends the run here without an error."""

    def after(self, pass_: Pass, model: ir.Model, changes: Sequence[Change]) -> None:
        """After ``pass_`` ran to its end."""

    def on_error(self, pass_: Pass, model: ir.Model, error: Exception) -> None:
        """When ``pass_`` or a hook after it raised; ``model`` may be half edited."""


class StopPipeline(Exception):
    """Raised by a hook's ``before`` to end the run."""


class PassError(QdqError):
    """A pass raised something that is not a message to the user: our bug, exit 70."""


@dataclass(frozen=True)
class PassReport:
    """What one pass did.

    Args:
        text: the pass as pipeline text.
        changes: changes and skips in order.
        seconds: wall time of the pass alone, hooks left out.
    """

    text: str
    changes: tuple[Change, ...]
    seconds: float

    @property
    def modified(self) -> bool:
        """Whether the pass changed the graph."""
        return is_modified(list(self.changes))


@dataclass(frozen=True)
class Report:
    """What a pipeline did.

    Args:
        model: the model that was edited.
        passes: one report per pass that ran.
    """

    model: ir.Model
    passes: tuple[PassReport, ...]

    @property
    def modified(self) -> bool:
        """Whether any pass changed the graph."""
        return any(p.modified for p in self.passes)

    @property
    def changes(self) -> list[Change]:
        """All changes and skips, in order."""
        return [change for p in self.passes for change in p.changes]

    def to_json(self) -> list[dict[str, Any]]:
        """JSON-ready: per pass its text, seconds, changes and skips."""
        return [
            {
                "pass": p.text,
                "seconds": round(p.seconds, 6),
                "changes": [dataclasses.asdict(c) for c in p.changes if not c.is_skip],
                "skips": [dataclasses.asdict(c) for c in p.changes if c.is_skip],
            }
            for p in self.passes
        ]


@dataclass(frozen=True)
class Pipeline:
    """Passes in the order they run.

    Args:
        passes: the passes.
    """

    passes: tuple[Pass, ...] = ()

    def __str__(self) -> str:
        return ",".join(format_pass(p) for p in self.passes)

    def __add__(self, other: Pipeline) -> Pipeline:
        return Pipeline(self.passes + other.passes)

    def needs(self) -> list[str]:
        """Names of the named inputs, ``@name``, in order of first use."""
        return list(dict.fromkeys(name for p in self.passes for name in _named(p).values()))

    def todo(self, bound: Collection[str]) -> tuple[Pass, ...]:
        """The passes that run where the named inputs ``bound`` are given: not those whose result is given (`Pass.gives`)."""
        return tuple(p for p in self.passes if not p.gives or not set(p.gives) <= set(bound))

    def run(self, model: ir.Model, *, inputs: Mapping[str, Any] | None = None, hooks: Iterable[Hook] = ()) -> Report:
        """Run every pass on ``model``, in place.

        Args:
            model: edited in place; after an error it may be half edited.
            inputs: values of the named inputs; a pass that makes such (`Pass.gives`) is not run where they are here.
            hooks: called around each pass, in order.

        Raises:
            UsageError: a named input is missing.
            QdqError: a pass or hook refused; ``where`` names the pass.
        """
        bound = dict(inputs or {})
        todo = self.todo(bound)
        if _missing(todo, bound):
            hint = "bind it: --ranges FILE binds @ranges, --target @target"
            raise UsageError(f"the pipeline needs {_wanted(todo, bound)}", hint=hint)
        hooks = tuple(hooks)
        reports: list[PassReport] = []
        for pass_ in todo:
            try:
                for hook in hooks:
                    hook.before(pass_, model)
            except StopPipeline:
                break
            reports.append(_run_one(pass_, bind(pass_, bound), model, hooks))
            bound |= {name: read(model) for name, read in pass_.gives.items()}
        return Report(model, tuple(reports))


def _named(pass_: Pass) -> dict[str, str]:
    """Option → name, of the options of ``pass_`` that are named inputs."""
    values = {f.name: getattr(pass_, f.name) for f in dataclasses.fields(pass_)}
    return {option: value.name for option, value in values.items() if isinstance(value, Named)}


def _missing(passes: Iterable[Pass], bound: Iterable[str]) -> list[str]:
    """Named inputs that are neither bound nor made by a pass before."""
    known, missing = set(bound), dict[str, None]()
    for each in passes:
        missing |= dict.fromkeys(name for name in _named(each).values() if name not in known)
        known |= set(each.gives)
    return list(missing)


def _wanted(passes: Sequence[Pass], bound: Collection[str]) -> str:
    """The named inputs that are missing; of a pass that is not run where what it makes is bound, that or its own."""
    lacking = [p for p in passes if p.gives and _missing([p], bound)]
    rest = _missing([p for p in passes if p not in lacking], {*bound, *(name for p in lacking for name in p.gives)})
    ways = (f"{_listed(p.gives)}, or {_listed(_missing([p], bound))} for {p.name()}" for p in lacking)
    return ", ".join((*([_listed(rest)] if rest else []), *ways))


def _listed(names: Iterable[str]) -> str:
    return ", ".join("@" + name for name in names)


def bind(pass_: Pass, inputs: Mapping[str, Any]) -> Pass:
    """``pass_`` with its named inputs replaced by their values."""
    return dataclasses.replace(pass_, **{option: inputs[name] for option, name in _named(pass_).items()})


def _run_one(pass_: Pass, bound: Pass, model: ir.Model, hooks: Sequence[Hook]) -> PassReport:
    text = format_pass(pass_)
    try:
        start = time.perf_counter()
        changes = tuple(bound.run(model))
        report = PassReport(text, changes, time.perf_counter() - start)
        for hook in hooks:
            hook.after(pass_, model, changes)
    except Exception as error:
        if pass_.gives:  # what a runtime and data raise is theirs, and nothing that is written would replay it
            raise
        for hook in hooks:
            hook.on_error(pass_, model, error)
        if isinstance(error, QdqError):
            error.add_note(f"in pass {text}")
            raise
        message = f"failed with {type(error).__name__}: {error}{_raised_in(pass_, error)}"
        if contradiction := model.meta.get(CONTRADICTION):
            raise ModelError(message, where=text, hint=f"the model does not fit together: {contradiction}") from error
        raise PassError(message, where=text) from error
    return report


def _raised_in(pass_: Pass, error: BaseException) -> str:
    """File and line of ``error`` in the module of ``pass_``, or where it was raised: `` (my_pass.py, line 12)``."""
    frames = traceback.extract_tb(error.__traceback__)
    own = getattr(sys.modules.get(type(pass_).__module__), "__file__", None)
    frame = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1] if frames else None)
    return "" if frame is None else f" ({os.path.basename(frame.filename)}, line {frame.lineno})"


def parse_pipeline(text: str) -> Pipeline:
    """Read the text form, ``fold-batch-norm,insert-qdq{weights=int8}``.

    Raises:
        UsageError: syntax, unknown pass or option; with a caret and the nearest names.
    """
    return Pipeline(tuple(parse_passes(text)))


def run_pipeline(
    model: ir.Model,
    pipeline: str | Pipeline,
    *,
    inputs: Mapping[str, Any] | None = None,
    hooks: Iterable[Hook] = (),
    copy: bool = False,
) -> Report:
    """Run a pipeline given as text or object; ``copy=True`` leaves ``model`` as it is and edits a clone (``report.model``)."""
    pipeline = parse_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
    return pipeline.run(copy_model(model) if copy else model, inputs=inputs, hooks=hooks)
