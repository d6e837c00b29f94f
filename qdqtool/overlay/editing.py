"""Edits of one model, one after the other: each a command's, recorded to an edit script, taken back by the last."""

from __future__ import annotations

import functools
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Pass
from qdq_passes.errors import UsageError
from qdq_passes.pipeline.pipeline import Pipeline
from qdq_passes.pipeline.text import make_pass
from qdq_passes.select.globs import literal, literal_tensor

from qdqtool.io.files.atomic import refuse_inputs, refuse_unwritable, write_whole
from qdqtool.io.files.edit_script import NamedInputs, append_script, has_script, read_script
from qdqtool.io.files.progress import Warn, pass_on
from qdqtool.io.files.read import read_text, sha256_of_file
from qdqtool.io.models.load import load
from qdqtool.options import options_of
from qdqtool.overlay.values import value_of
from qdqtool.quantization.options import SELECTING
from qdqtool.verbs.edits.pipelines import Opt
from qdqtool.verbs.pairs import PairEditing
from qdqtool.verbs.qdq.convert import Convert
from qdqtool.verbs.qdq.insert import Insert
from qdqtool.verbs.qdq.move import Move
from qdqtool.verbs.qdq.remove import Remove
from qdqtool.verbs.qdq.set import Set
from qdqtool.verbs.qdq.sharing import Dedicate, Fold, Share
from qdqtool.verbs.quantize import Quantize
from qdqtool.verbs.work.command_lines import command_line
from qdqtool.verbs.work.editing import run_and_save
from qdqtool.verbs.work.from_the_start import command_of
from qdqtool.verbs.work.named import bind, named_inputs
from qdqtool.verbs.work.removal import ways_to_pairs

#: Commands that edit; `opt` runs any passes.
EDITS: Mapping[str, type[PairEditing | Opt]] = {
    "qdq set": Set, "qdq convert": Convert, "qdq remove": Remove, "qdq move": Move, "qdq insert": Insert, "qdq share": Share,
    "qdq dedicate": Dedicate, "qdq fold": Fold, "opt": Opt,
}  # fmt: skip
#: The field of `qdq set` that is true for the float model that the page has.
FLOAT = "float_model"
#: Fields that are not for the page to say: where models and files lie is ours.
OURS = ("model", "output", "overwrite", "record", "no_provenance", "copy_data", "select")


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What an edit acts on.

    Args:
        tensors: names of float values.
        nodes: names of nodes; `qdq remove` frees all that they read and write, other commands act on what they write.
        selectors: selectors as a person writes them.
    """

    tensors: Sequence[str] = ()
    nodes: Sequence[str] = ()
    selectors: Sequence[str] = ()

    def select(self, command: str) -> tuple[str, ...]:
        """Selectors for ``command``."""
        around = "io:" if command == "qdq remove" else ""
        return (
            *map(literal_tensor, self.tensors),
            *(f"{around}{literal(name)}" for name in self.nodes), *self.selectors,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Edited:
    """One edit that was made.

    Args:
        command: that does it, for a shell, from the file before to the file after.
        changes: what the passes did.
        is_option: it is an option of `quantize`, kept for that: the model stays as it is.
    """

    command: str
    changes: tuple[Change, ...] = ()
    is_option: bool = False


@dataclass(frozen=True, kw_only=True)
class _State:
    path: str
    sha256: str
    passes: tuple[Pass, ...]
    inputs: NamedInputs
    script: str | None
    has_data: bool = False  # weights lie in a file beside the model
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Editor:
    """A model that is edited step by step. A step runs all that was recorded on the first model: the script gives its bytes."""

    def __init__(
        self,
        model: str,
        folder: str,
        *,
        record: str | None = None,
        floats: str | None = None,
        ranges: str | None = None,
        warn: Warn | None = None,
    ) -> None:
        """Start with ``model``; a script that is there and was recorded on it goes on.

        Args:
            model: path; never written.
            folder: of our own, for the edited models.
            record: edit script; one in ``folder`` without.
            floats: path of the float model, for edits that quantize weights anew.
            ranges: path of the ranges that it was quantized with, for the command that does so with what is picked.
            warn: is told what is likely a mistake.

        Raises:
            UsageError: the script was recorded on another model, or cannot be written.
        """
        self.model, self.record, self.floats, self.ranges = model, record, floats, ranges
        self._script = record or os.path.join(folder, "edits.toml")
        self._folder, self._warn, self._count = folder, warn, 0
        self._digest = sha256_of_file(model)
        refuse_inputs(self._script, [model, floats])
        self._states = [_State(path=model, sha256=self._digest, passes=(), inputs={}, script=None)]
        self.edits: list[Edited] = []
        refuse_unwritable(self._script)
        if has_script(self._script):
            self._go_on()

    @property
    def current(self) -> str:
        """Path of the model as edited so far."""
        return self._states[-1].path

    @property
    def replay(self) -> str:
        """The command that makes the edited model; "" where nothing was edited."""
        if not self._states[-1].passes:
            return ""
        return command_line("opt", self._replay("edited"))

    @property
    def options(self) -> Mapping[str, tuple[str, ...]]:
        """Selectors that were picked for `quantize`, by the option's name."""
        return self._states[-1].options

    @property
    def anew(self) -> str:
        """The command that quantizes the float model again with what is picked; "" where it is not known."""
        made = self._made if self.options else None
        output = self._named("quantized")
        return "" if made is None else command_line("quantize", replace(made, output=output, picks=self._script))

    @functools.cached_property
    def _made(self) -> Quantize | None:
        """The command that made the model."""
        if self.floats is None or self.ranges is None:
            return None
        return command_of(load(self.model), self.floats, self.ranges)

    @property
    def is_recorded_before(self) -> int:
        """How many passes the script held at the start."""
        return len(self._states[0].passes)

    @property
    def begun(self) -> str:
        """The command that makes the model as the script had it at the start; "" where there was none."""
        count = len(self._states[0].passes)
        if not count:
            return ""
        return command_line("opt", replace(self._replay("0"), stop_after=count))

    def _replay(self, name: str) -> Opt:
        return Opt(self.model, self._named(name), text=f"@{self._script}", copy_data=self._states[-1].has_data)

    def edit(self, command: str, options: Mapping[str, Any], chosen: Chosen) -> Edited:
        """Make an edit, and record it.

        Args:
            command: of `EDITS`.
            options: its options by the names of the class's fields, as JSON has them.
            chosen: what it acts on; for `opt` the text says that.

        Raises:
            UsageError: it cannot be said so, cannot be made, or changes nothing; then nothing is recorded.
        """
        verb = self._verb(command, options, chosen)
        if isinstance(verb, PairEditing):
            return self.run(verb.pipeline(), self._shown(command, verb), verb.inputs())
        return self.run(Pipeline(verb.script().passes), self._shown(command, verb))

    def pick(self, option: str, chosen: Chosen) -> Edited:
        """Record what `quantize` is to be told of what is chosen; the model stays as it is.

        Args:
            option: of `SELECTING`.
            chosen: what it is told.

        Raises:
            UsageError: there is no such option, nothing is chosen, all of it is recorded, or the script was changed.
        """
        if option not in SELECTING:
            raise UsageError(f"{option!r} is no option of selectors", hint=f"there is {', '.join(SELECTING)}")
        self._refuse_changed()
        before = self._states[-1]
        known = before.options.get(option, ())
        new = [text for text in chosen.select("quantize") if text not in known]
        if not new:
            raise UsageError("that changes nothing", hint="pick a node or a pair that is not recorded yet")
        append_script(
            self._script, (), source_sha256=self._digest, result_sha256=before.sha256, inputs={},
            options={option: new},
        )  # fmt: skip
        options = {**before.options, option: (*known, *new)}
        self._states.append(replace(before, script=read_text(self._script), options=options))
        done = Edited(command=shlex.join(word for text in new for word in (f"--{option}", text)), is_option=True)
        self.edits.append(done)
        return done

    def run(self, pipeline: Pipeline, shown: str, inputs: NamedInputs | None = None) -> Edited:
        """Run passes on the model as it is, and record them.

        Args:
            pipeline: the passes.
            shown: the command that does so.
            inputs: what they read by name; the float model is bound where there is one.

        Raises:
            UsageError: they cannot be run, or change nothing, or the script was changed; then nothing is recorded.
        """
        self._refuse_changed()
        before, passes = self._states[-1], pipeline.passes
        files = {name: given.file for name, given in (inputs or {}).items()}
        if "float" in pipeline.needs():
            files["float"] = self._floats()
        bound = {name: bind(name, file, self.model) for name, file in files.items()}  # as `opt` does
        state = self._ran((*before.passes, *passes), {**before.inputs, **bound}, len(passes))
        append_script(self._script, passes, source_sha256=self._digest, result_sha256=state.sha256, inputs=bound)
        self._states.append(replace(state, script=read_text(self._script), options=before.options))
        done = Edited(command=shown, changes=self._changes)
        self.edits.append(done)
        return done

    def undo(self) -> None:
        """Take the last edit back, in the script too.

        Raises:
            UsageError: there is none, or the script was changed.
        """
        if not self.edits:
            raise UsageError("there is no edit to take back")
        self._refuse_changed()
        script = self._states[-2].script
        if script is None:
            os.unlink(self._script)
        else:
            write_whole(self._script, script.encode(), overwrite=True)
        self._states.pop()
        self.edits.pop()

    def _refuse_changed(self) -> None:
        """Refuse to write a script that another wrote or removed since: it would not say what was made.

        Raises:
            UsageError: it is not as it was left.
        """
        there = read_text(self._script) if has_script(self._script) else None
        if there != self._states[-1].script:
            problem = "was removed" if there is None else "was changed"
            raise UsageError(
                f"{problem} since the last edit",
                where=self._script,
                hint="start `view` again, or put it back as it was",
            )

    def _go_on(self) -> None:
        script = read_script(self._script)
        if script.source_sha256 != self._digest:
            problem = "was recorded on another model" if script.source_sha256 else "is no recorded script"
            raise UsageError(problem, where=self._script, hint="give --record another file")
        if not script.passes:
            text = read_text(self._script)
            self._states = [replace(self._states[0], script=text, options=script.options)]
            return
        needed = Pipeline(script.passes).needs()
        inputs = named_inputs(self._warn, self.model, script, {"float": self.floats}, needed)
        state = self._ran(script.passes, inputs, len(script.passes))
        if state.sha256 != script.result_sha256:
            pass_on([f"{self._script} gives another model than when it was recorded"], self._warn)
        self._states = [replace(state, script=read_text(self._script), options=script.options)]

    def _ran(self, passes: Sequence[Pass], inputs: NamedInputs, new: int) -> _State:
        """All of ``passes`` on the first model.

        Raises:
            UsageError: the last ``new`` change nothing.
        """
        self._count += 1
        folder = os.path.join(self._folder, str(self._count))
        os.makedirs(folder)
        path = os.path.join(folder, os.path.basename(self._named("edited")))  # as `replay`: a data file has its name
        verb = Opt(self.model, path, text="", warn=self._warn)
        saved = run_and_save(verb, Pipeline(tuple(passes)), inputs=inputs, hashed=True)
        parts = saved.report.passes[-new:]
        self._changes = tuple(change for part in parts for change in part.changes if not change.is_skip)
        if not any(part.modified for part in parts):
            skips = [change for part in parts for change in part.changes if change.is_skip]
            first = {skip.because: skip.where for skip in reversed(skips)}
            told = Counter(skip.because for skip in skips).most_common(2)
            why = "; ".join(
                f"{first[reason]}{f' and {count - 1} more' if count > 1 else ''}: {reason}" for reason, count in told
            )
            ways = [
                why or "it is so already, or nothing that is picked is of that kind",
                *ways_to_pairs(saved.report.model),
            ]
            raise UsageError("that changes nothing", hint="; ".join(ways))
        has_data = len(saved.files) > 1
        return _State(
            path=path, sha256=saved.sha256, passes=tuple(passes), inputs=inputs, script=None, has_data=has_data
        )  # fmt: skip

    def _floats(self) -> str:
        if self.floats is None:
            raise UsageError("that takes the weights of the float model", hint="start `view` with --float FILE")
        return self.floats

    def named(self, command: str, *, of: str, is_made: bool) -> str:
        """A command about the model as it is, with the names that the files of the printed commands have.

        Args:
            command: that reads ``of``.
            of: what was `current` when the command was made.
            is_made: it is the next of these, and writes what the one behind it reads.
        """
        words = shlex.split(command)
        words = [self._source() if word == of else word for word in words]
        if is_made and "--output" in words:
            words[words.index("--output") + 1] = self._named(str(self._count_made + 1))
        return shlex.join(words)

    def _source(self) -> str:
        return self._named(str(self._count_made)) if self._count_made else self._began()

    @property
    def _count_made(self) -> int:
        """Of the edits those that made a model."""
        return sum(not one.is_option for one in self.edits)

    def _began(self) -> str:
        """The model, or what the script made of it that was there at the start: the file of `begun`."""
        return self._named("0") if self._states[0].passes else self.model

    def _verb(self, command: str, options: Mapping[str, Any], chosen: Chosen) -> PairEditing | Opt:
        made = EDITS.get(command)
        if made is None:
            raise UsageError(f"{command!r} is no edit", hint=f"there is {', '.join(EDITS)}")
        known = {each.name: each for each in options_of(made) if each.name not in OURS and each.option.kind == "option"}
        known = {name: each for name, each in known.items() if each.option.use is None or name == "text"}  # no files
        if made is Opt and "pass" in options:  # one pass on what is picked
            pass_ = make_pass(str(options["pass"]), {"select": list(chosen.select(command))})
            options = {"text": str(Pipeline((pass_,)))}
        given: dict[str, Any] = {}
        for name, value in options.items():
            if name == FLOAT and value is True and made is Set:
                given[name] = self._floats()
            elif name not in known:
                raise UsageError(f"{command} has no option {name!r}", hint=f"there is {', '.join(sorted(known))}")
            else:
                given[name] = value_of(known[name], value)
        if issubclass(made, Opt):
            return made(self.current, "", **given)
        return made(self.current, "", select=chosen.select(command), **given)

    def _shown(self, command: str, verb: PairEditing | Opt) -> str:
        """``verb`` as a command; its files stand beside the model, numbered."""
        output = self._named(str(self._count_made + 1))
        return command_line(command, replace(verb, model=self._source(), output=output))

    def _named(self, what: str) -> str:
        stem, end = os.path.splitext(self.model)
        return f"{stem}_{what}{end}"
