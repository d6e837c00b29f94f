"""List passes, presets, targets, chips, shapes, methods, namings, devices or commands; with NAME show that one in full."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.registry import PASSES, Entry, unknown_name
from qdq_passes.errors import QdqError

from qdqtool.cli.options import command
from qdqtool.cli.render import Out, say, table
from qdqtool.cli.tables.summaries import summary_of


@dataclass(frozen=True)
class Listing:
    """One kind of registered things.

    Args:
        entries: everything there is, by name.
        describe: one of them in full, JSON-ready; loads it.
    """

    entries: Callable[[], Mapping[str, Entry]]
    describe: Callable[[Entry], dict[str, Any]]

    def described(self, entry: Entry) -> dict[str, Any]:
        """Return ``entry`` in full; of one that cannot be loaded the name, and the reason as its ``error``."""
        try:
            return self.describe(entry)
        except QdqError as error:
            return {"name": entry.name, "summary": f"cannot be loaded: {error}", "error": str(error)}

    def summary(self, entry: Entry) -> str:
        """One line about ``entry``."""
        return str(self.described(entry)["summary"])


def _whole(entry: dict[str, Any]) -> None:
    say(entry["name"])
    say(entry.get("text") or entry["summary"], lines=True)
    if entry.get("options"):
        say()
        table(("option", "value", "default"), [(o["name"], o["type"], o["default"]) for o in entry["options"]])


def _pass(entry: Entry) -> dict[str, Any]:
    import dataclasses
    import inspect

    from qdq_passes.pipeline.option_types import describe, field_type, to_text
    from qdq_passes.select.selectors import ALL, NONE

    def default(field: dataclasses.Field[Any]) -> str:
        if field.default is dataclasses.MISSING:
            return "required"
        return {ALL: "everything", NONE: "nothing"}.get(field.default) or to_text(field.default, field.name)

    cls = entry.load()
    text = inspect.getdoc(cls) or ""
    options = [
        {"name": f.name.replace("_", "-"), "type": describe(field_type(cls, f.name)), "default": default(f)}
        for f in dataclasses.fields(cls)
        if f.init
    ]
    return {
        "name": entry.name, "summary": _first_line(text), "text": text, "options": options, "origin": entry.origin,
    }  # fmt: skip


def _methods() -> Mapping[str, Entry]:
    from qdqtool.calibrate import METHODS

    return METHODS.entries()


def _method(entry: Entry) -> dict[str, Any]:
    import inspect

    text = inspect.getdoc(entry.load()) or ""
    return {"name": entry.name, "summary": _first_line(text), "text": text, "origin": entry.origin}


def _presets() -> Mapping[str, Entry]:
    from qdqtool.presets import PRESETS

    return PRESETS.entries()


def _preset(entry: Entry) -> dict[str, Any]:
    from qdqtool.presets.loading import load_preset

    preset = load_preset(entry.name)
    explained = preset.explain()
    text = "\n".join(f"  {key}: {value}" for key, value in explained)
    return {"name": entry.name, "summary": preset.description, "text": text, "settings": dict(explained)}


def _targets() -> Mapping[str, Entry]:
    from qdqtool.targets import TARGETS

    return TARGETS.entries()


def _target(entry: Entry) -> dict[str, Any]:
    from qdqtool.targets.loading import load_target

    target = load_target(entry.name)
    ops, traps = list(target.quantized_ops()), [trap.name() for trap in target.traps]
    text = f"operators: {', '.join(ops)}\ntraps: {', '.join(dict.fromkeys(traps)) or 'none known'}"
    return {"name": entry.name, "summary": target.description, "text": text, "ops": ops, "traps": traps}


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0]


def _namings() -> Mapping[str, Entry]:
    from qdqtool.llm.plan import NAMINGS

    return NAMINGS.entries()


def _naming(entry: Entry) -> dict[str, Any]:
    from qdqtool.llm.plan.naming import load_naming

    naming = load_naming(entry.name)
    explained = naming.explain()
    text = "\n".join(f"  {key}: {value}" for key, value in explained)
    return {
        "name": entry.name, "summary": naming.description, "text": text, "settings": dict(explained),
        "origin": entry.origin,
    }  # fmt: skip


def _devices() -> Mapping[str, Entry]:
    from qdqtool.llm.run import DEVICES

    return DEVICES.entries()


def _device(entry: Entry) -> dict[str, Any]:
    import inspect

    return {
        "name": entry.name, "summary": entry.first_doc_line(), "text": inspect.getdoc(entry.load()) or "",
        "origin": entry.origin,
    }  # fmt: skip


def _commands() -> list[dict[str, Any]]:
    from qdqtool.cli.main import COMMANDS, summary_of_command

    return [
        {"name": name, "summary": summary_of_command(entry), "origin": entry.origin}
        for name, entry in COMMANDS.entries().items()
    ]


def _chips() -> Mapping[str, Entry]:
    from qdqtool.chips import CHIPS

    return CHIPS.entries()


def _chip(entry: Entry) -> dict[str, Any]:
    from qdqtool.cli.tables.chips import described_chip

    return described_chip(entry.name)


def _shapes() -> list[dict[str, Any]]:
    from qdqtool.cli.tables.chips import listed_shapes

    return listed_shapes()


#: Kinds of which the summaries are stored.
LISTINGS = {
    "passes": Listing(PASSES.entries, _pass), "presets": Listing(_presets, _preset), "targets": Listing(_targets, _target),
    "methods": Listing(_methods, _method), "namings": Listing(_namings, _naming), "devices": Listing(_devices, _device),
    "chips": Listing(_chips, _chip),
}  # fmt: skip
#: The others, in full.
TABLES = {"shapes": _shapes, "commands": _commands}
KINDS = ("passes", "presets", "targets", "chips", "shapes", "methods", "namings", "devices", "commands")


@command(name="list")
@click.argument("what", metavar="WHAT", type=click.Choice(KINDS))
@click.argument("name", required=False)
def list_(out: Out, what: str, name: str | None) -> None:
    """List passes, presets, targets, chips, shapes, methods, namings, devices or commands; with NAME show that one in full."""
    if name is not None:
        found = _named(what, name)
        out.result(found, lambda: _whole(found))
        return
    if what in LISTINGS and not out.writes_json:
        listing, whole = LISTINGS[what], []
        entries = listing.entries().values()
        rows = [(entry.name, summary_of(what, entry, partial(listing.summary, entry))) for entry in entries]
    else:
        whole = _all(what)
        rows = [(each["name"], each["summary"]) for each in whole]
    out.result({what: whole}, lambda: table(("name", "what it is"), rows))


def _all(what: str) -> list[dict[str, Any]]:
    """Everything of one kind, in full."""
    if what in LISTINGS:
        return [LISTINGS[what].described(entry) for entry in LISTINGS[what].entries().values()]
    return TABLES[what]()


def _named(what: str, name: str) -> dict[str, Any]:
    """The one that is called ``name``, in full.

    Raises:
        UsageError: there is none; the nearest names are given.
    """
    if what in LISTINGS:
        entries = LISTINGS[what].entries()
        if what == "chips" and name not in entries:
            name = _file_of_chip(name)
        if name not in entries:
            raise unknown_name(what, name, entries)
        return LISTINGS[what].describe(entries[name])
    whole = {each["name"]: each for each in TABLES[what]()}
    if name not in whole:
        raise unknown_name(what, name, whole)
    return whole[name]


def _file_of_chip(name: str) -> str:
    """Return the name of the file of a chip that is known by another name, or ``name``."""
    from qdqtool.chips.loading import find_chip

    chip = find_chip(name)
    return name if chip is None else chip.file


command = list_
