"""What the shell completes: names of presets, targets, methods and passes, selectors, files. Names import nothing heavy."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
from qdq_passes.core.registry import PASSES
from qdq_passes.errors import QdqError

from qdqtool.options import Field

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _presets() -> list[str]:
    from qdqtool.presets import PRESETS

    return PRESETS.names()


def _targets() -> list[str]:
    from qdqtool.targets import TARGETS

    return TARGETS.names()


def _methods() -> list[str]:
    from qdqtool.calibrate import METHODS

    return METHODS.names()


#: What there is lists of → its names.
NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "presets": _presets, "targets": _targets, "methods": _methods, "passes": PASSES.names,
}  # fmt: skip
#: How selectors begin, beside names of nodes; behind ``op:`` and ``role:`` there is more to complete.
BEGINNINGS = (
    "op:",
    "role:",
    "layer:",
    "tensor:",
    "scope:",
    "re:",
    "in:",
    "io:",
    "after:",
    "before:",
    "path:",
    "between:",
)
#: Bytes of a model up to which its nodes are looked at.
READ = 64 << 20
#: Names that no shell makes something else of.
_PLAIN = re.compile(r"[\w./:+@=,%-]+")


def completer(each: Field) -> Completer | None:
    """What completes the values of an option or argument; None leaves it to its type."""
    form, listed = each.option.value or "", each.option.listed_by
    if listed in NAMES:
        return lambda context, parameter, begun: [*_starting(NAMES[listed](), begun), *_files(form, begun)]
    if form.startswith("SEL"):
        return _selectors
    if "--pipeline" in each.spellings:
        return _passes
    if {"FILE", "DIR", "MODEL", "D"} & set(form.replace("…", "").strip("[]").split("|")):
        return lambda context, parameter, begun: _files(form, begun)
    return None


def _item(text: str, type: str = "plain") -> CompletionItem:
    from click.shell_completion import CompletionItem

    return CompletionItem(text, type)


def _starting(names: Iterable[str], begun: str, front: str = "") -> list[CompletionItem]:
    return [_item(front + name) for name in names if name.startswith(begun)]


def _files(form: str, begun: str) -> list[CompletionItem]:
    """Leave it to the shell, which knows files."""
    takes = {"FILE", "MODEL", "D"} & set(form.strip("[]").split("|"))
    return [_item(begun, "file" if takes else "dir")] if takes or "DIR" in form else []


def _passes(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The last pass of a pipeline, or the file that holds one."""
    if begun.startswith("@"):
        return [_item(begun, "file")]
    done, comma, last = begun.rpartition(",")
    return _starting(NAMES["passes"](), last, done + comma)


def _selectors(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The last term of a selector: how it begins, roles, and operators and names of the model where it is given already."""
    mark = max(begun.rfind(sign) for sign in ("&", "!")) + 1
    front, term = begun[:mark], begun[mark:].lstrip()
    front += begun[mark : len(begun) - len(term)]
    while (prefix := next((p for p in ("in:", "io:", "after:", "before:") if term.startswith(p)), "")) != "":
        front, term = front + prefix, term.removeprefix(prefix)
    if term.startswith("role:"):
        from qdq_passes.roles.roles import ROLES

        return _starting((f"role:{role}" for role in ROLES), term, front)
    if term.startswith("op:"):
        return _starting(
            (f"op:{op_type}" for op_type in sorted({op for op, _ in _nodes(context)})),
            term,
            front,
        )
    return _starting((*BEGINNINGS, *(name for _, name in _nodes(context) if name)), term, front)


def _nodes(context: click.Context) -> list[tuple[str, str]]:
    """(operator, name) of the nodes of the model that the command has been given."""
    given = (context.params.get("model"), *context.args)  # arguments stay there while the value of an option is missing
    path = next((text for text in given if isinstance(text, str) and os.path.isfile(text)), None)
    if path is None or os.path.getsize(path) > READ:
        return []
    from qdqtool.io.models.parse import read_model

    try:
        nodes = read_model(path).graph.node
        return [(node.op_type, node.name) for node in nodes if _PLAIN.fullmatch(f"{node.op_type}{node.name}")]
    except QdqError:
        return []
