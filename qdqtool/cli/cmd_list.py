"""List passes, presets, targets, chips, shapes, methods, namings, devices or commands; with NAME show that one in full."""

from __future__ import annotations

from typing import Any

import click

from qdqtool.cli.options import command
from qdqtool.cli.render import Out, say, table


def _whole(entry: dict[str, Any]) -> None:
    say(entry["name"])
    say(entry.get("text") or entry["summary"], lines=True)
    if entry.get("options"):
        say()
        table(("option", "value", "default"), [(o["name"], o["type"], o["default"]) for o in entry["options"]])


def _passes() -> list[dict[str, Any]]:
    import dataclasses
    import inspect

    from qdq_passes.core.registry import PASSES
    from qdq_passes.pipeline.option_types import describe, field_type, to_text
    from qdq_passes.select.selectors import ALL, NONE

    found = []

    def default(field: dataclasses.Field[Any]) -> str:
        if field.default is dataclasses.MISSING:
            return "required"
        return {ALL: "everything", NONE: "nothing"}.get(field.default) or to_text(field.default, field.name)

    for name, entry in PASSES.entries().items():
        cls = entry.load()
        text = inspect.getdoc(cls) or ""
        options = [
            {
                "name": f.name.replace("_", "-"),
                "type": describe(field_type(cls, f.name)),
                "default": default(f),
            }
            for f in dataclasses.fields(cls)
            if f.init
        ]
        found.append(
            {"name": name, "summary": _first_line(text), "text": text, "options": options, "origin": entry.origin}
        )
    return found


def _methods() -> list[dict[str, Any]]:
    import inspect

    from qdqtool.calibrate.methods import METHODS

    found = []
    for name, entry in METHODS.entries().items():
        text = inspect.getdoc(entry.load()) or ""
        found.append({"name": name, "summary": _first_line(text), "text": text, "origin": entry.origin})
    return found


def _presets() -> list[dict[str, Any]]:
    from qdqtool.presets import PRESETS
    from qdqtool.presets.loading import load_preset

    found = []
    for name in PRESETS.names():
        preset = load_preset(name)
        explained = preset.explain()
        text = "\n".join(f"  {key}: {value}" for key, value in explained)
        found.append({"name": name, "summary": preset.description, "text": text, "settings": dict(explained)})
    return found


def _targets() -> list[dict[str, Any]]:
    from qdqtool.targets.loading import load_target, target_names

    found = []
    for name, description in target_names().items():
        target = load_target(name)
        ops, traps = list(target.quantized_ops()), [trap.name() for trap in target.traps]
        text = f"operators: {', '.join(ops)}\ntraps: {', '.join(dict.fromkeys(traps)) or 'none known'}"
        found.append({"name": name, "summary": description, "text": text, "ops": ops, "traps": traps})
    return found


def _commands() -> list[dict[str, Any]]:
    from qdqtool.cli.main import COMMANDS, in_one_line

    return [
        {
            "name": name,
            "summary": entry.first_doc_line() or in_one_line(entry.load()),
            "origin": entry.origin,
        }
        for name, entry in COMMANDS.entries().items()
    ]


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0]


def _namings() -> list[dict[str, Any]]:
    from qdqtool.llm.plan.naming import NAMINGS, load_naming

    found = []
    for name, entry in NAMINGS.entries().items():
        explained = load_naming(name).explain()
        text = "\n".join(f"  {key}: {value}" for key, value in explained)
        summary = load_naming(name).description
        found.append(
            {"name": name, "summary": summary, "text": text, "settings": dict(explained), "origin": entry.origin}
        )
    return found


def _devices() -> list[dict[str, Any]]:
    import inspect

    from qdqtool.llm.run.devices import DEVICES

    return [
        {
            "name": name, "summary": entry.first_doc_line(), "text": inspect.getdoc(entry.load()) or "",
            "origin": entry.origin,
        }
        for name, entry in DEVICES.entries().items()
    ]  # fmt: skip


def _chips() -> list[dict[str, Any]]:
    from qdqtool.cli.tables.chips import listed_chips

    return listed_chips()


def _shapes() -> list[dict[str, Any]]:
    from qdqtool.cli.tables.chips import listed_shapes

    return listed_shapes()


KINDS = {
    "passes": _passes, "presets": _presets, "targets": _targets, "chips": _chips, "shapes": _shapes, "methods": _methods,
    "namings": _namings, "devices": _devices, "commands": _commands,
}  # fmt: skip


@command(name="list")
@click.argument("what", metavar="WHAT", type=click.Choice(list(KINDS)))
@click.argument("name", required=False)
def list_(out: Out, what: str, name: str | None) -> None:
    """List passes, presets, targets, chips, shapes, methods, namings, devices or commands; with NAME show that one in full."""
    entries = KINDS[what]()
    if name is None:
        out.result({what: entries}, lambda: table(("name", "what it is"), [(e["name"], e["summary"]) for e in entries]))
        return
    if what == "chips":
        from qdqtool.chips.loading import find_chip

        chip = find_chip(name)
        name = name if chip is None else chip.file
    found = next((e for e in entries if e["name"] == name), None)
    if found is None:
        from qdq_passes.core.registry import unknown_name

        raise unknown_name(what, name, [e["name"] for e in entries])
    out.result(found, lambda: _whole(found))


command = list_
