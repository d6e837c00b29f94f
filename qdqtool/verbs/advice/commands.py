"""Commands that suggestions name: complete for a shell, and as the passes that they run.

convert the encodings: `A`, then `B`; or quantize the float model for this target: `C`
└ a way of two commands, one behind the other ┘└ a way of one, which starts from the float model ┘"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from typing import Any, get_args

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.registry import FolderRegistry
from qdq_passes.errors import UsageError
from qdq_passes.pipeline.pipeline import Pipeline, parse_pipeline
from qdq_passes.pipeline.text import make_pass

from qdqtool.options import Field, options_of
from qdqtool.runtime.session import RUNTIME, compute
from qdqtool.targets.target import Target
from qdqtool.verbs.editing import Editing, PipelineEditing
from qdqtool.verbs.edits.pipelines import Opt
from qdqtool.verbs.pairs import PairEditing
from qdqtool.verbs.qdq.remove import Remove
from qdqtool.verbs.work.mends import NEXT, OUTPUT

#: Behind what was not carried out.
NOT_TRIED = " (not tried)"
#: Models that a suggestion cannot name.
FLOAT, DATA = "FLOAT.onnx", "DATA"
#: What stands between commands that run one behind the other.
_JOINED = re.compile(r"(, then |, then with [^`]* | and |, and )")
_COMMAND = re.compile(r"`(qdqtool [^`]*)`")
#: Sizes and names that only a user knows.
_OPEN = re.compile(r"[ =]N\b|INPUT=")
#: Words of a way whose commands start from the float model.
OF_FLOATS = "on the float model"
#: Commands that need more than the model, and what a shell must be told of it.
_NEEDS = {"quantize": f" {FLOAT}%s --data {DATA} -o {OUTPUT}", "calibrate": f" {FLOAT}%s --data {DATA} -o R.json",
          "split": f" {FLOAT}%s -o DIR"}  # fmt: skip
_REGISTRIES = {
    "qdq": FolderRegistry("qdq", ("qdqtool.verbs.qdq",), table="VERBS"),
    "": FolderRegistry("edits", ("qdqtool.verbs.edits",), table="VERBS"),
}


@dataclass(frozen=True)
class Way:
    """Commands of a suggestion that run one behind the other.

    Args:
        commands: as they stand in its text, without the model.
        is_of_floats: whether they start from the float model, or need data.
    """

    commands: tuple[str, ...]
    is_of_floats: bool


def ways_of(part: str) -> list[Way]:
    """Return the alternatives in a ``part`` of a suggestion, which ``; or`` separates from others."""
    found: list[list[str]] = []
    end = 0
    for match in _COMMAND.finditer(part):
        if found and _JOINED.fullmatch(part[end : match.start()]):
            found[-1].append(match[1])
        else:
            found.append([match[1]])
        end = match.end()
    return [Way(tuple(way), OF_FLOATS in part or any(map(_needs_more, way))) for way in found]


def _needs_more(command: str) -> bool:
    return command.split()[1] in _NEEDS or "--ranges" in command or _OPEN.search(command) is not None


def completed(part: str, model: str, target: Target | None = None) -> str:
    """Return ``part`` with commands that a shell takes: with the model they read, where they write, and the target."""
    if target is not None:
        of_model = shlex.join(["qdqtool", "analyze", model, "--target", target.name])
        part = part.replace("`qdqtool analyze --boundary", f"`{of_model} --boundary")
    step, end = 0, 0
    is_of_floats = OF_FLOATS in part

    def replaced(match: re.Match[str]) -> str:
        nonlocal step, end
        step = step + 1 if end and _JOINED.fullmatch(part[end : match.start()]) else 0
        end = match.end()
        start = FLOAT if is_of_floats else model
        return f"`{_completed(match[1], start if step == 0 else _output(step - 1), _output(step))}`"

    return _COMMAND.sub(replaced, part)


def untried(said: str, model: str, target: Target | None) -> str:
    """Return a suggestion that nobody tried, as such, with commands that a shell takes."""
    parts = (completed(part, model, target) for part in said.split("; or "))
    return "; or ".join(f"{part}{NOT_TRIED}" if "`" in part else part for part in parts)


def _output(step: int) -> str:
    return OUTPUT if step == 0 else NEXT % (step + 1)


def _completed(command: str, model: str, output: str) -> str:
    words = shlex.split(command)
    name = " ".join(words[1:3] if words[1] == "qdq" else words[1:2])
    head = f"qdqtool {name}"
    if " -o " in command or not command.startswith(head) or (_loads(name) is None and name not in _NEEDS):
        return command
    rest = command.removeprefix(head)
    return head + (_NEEDS[name] % rest if name in _NEEDS else f" {shlex.quote(model)} -o {output}{rest}")


def _loads(name: str) -> type[Editing] | None:
    """The verb that edits a model which the command ``name`` runs; None where it is no such command."""
    group, _, verb = name.rpartition(" ")
    entries = _REGISTRIES[group].entries() if group in _REGISTRIES else {}
    found = entries[verb].load() if verb in entries else None
    return found if isinstance(found, type) and issubclass(found, Editing) else None


def passes_of(command: str, graph: ir.Model) -> Pipeline | None:
    """Return the passes that ``command`` runs on ``graph``, which stays as it is.

    Returns:
        None where it is no command that edits a model, or where passes read files.
    """
    words = shlex.split(command)[1:]
    at = 2 if words[:1] == ["qdq"] else 1
    cls = _loads(" ".join(words[:at]))
    if cls is None:
        return None
    verb: Any = cls(model=os.devnull, output=os.devnull, **_given(cls, words[at:]))
    found: Pipeline | str | None = None
    if isinstance(verb, PairEditing):
        steps = verb.steps_on(graph) if isinstance(verb, Remove) else verb.steps()
        found = Pipeline(tuple(make_pass(name, dict(options)) for name, options in steps))
    elif isinstance(verb, Opt):
        found = Pipeline(verb.script().passes)
    elif isinstance(verb, PipelineEditing):
        found = verb.pipeline()
    pipeline = parse_pipeline(found) if isinstance(found, str) else found
    return pipeline if pipeline is not None and set(pipeline.needs()) <= {RUNTIME} else None


def _given(cls: type, words: Sequence[str]) -> dict[str, Any]:
    """The options that ``words`` give."""
    known = {spelling: each for each in options_of(cls) for spelling in "/".join(each.spellings).split("/")}
    found: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        each = known.get(word)
        if each is None:
            raise UsageError(f"there is no option {word}", hint="see `qdqtool COMMAND --help`")
        if each.is_switch and each.option.read is None:
            found[each.name] = not each.is_inverted and not each.spellings[0].endswith(f"/{word}")
        else:
            value = _value(each, next(rest))
            found[each.name] = [*found.get(each.name, ()), value] if each.is_many else value
    return found


def _value(each: Field, word: str) -> Any:
    if each.option.read is not None:
        return each.option.read(word)
    types = {inner for one in each.types for inner in (get_args(one) or (one,))}
    return int(word) if int in types else float(word) if float in types else word


def run_way(way: Way, model: ir.Model) -> bool:
    """Edit ``model`` in place by the commands of ``way``, one behind the other; False where one cannot be run in memory.

    Raises:
        QdqError: a command refuses the model.
    """
    for command in way.commands:
        pipeline = passes_of(command, model)
        if pipeline is None:
            return False
        pipeline.run(model, inputs={RUNTIME: compute} if RUNTIME in pipeline.needs() else {})
    return True
