"""What a preset says of single nodes: which are stored or computed in another precision than the rest, and switches for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.toml_table import TomlTable
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.select.selectors import Selector

#: Precisions, as options and tables call them: float types; activations of 8 or 16 bit, with the signedness of the preset. Of
#: what a preset says of a node or value the first holds.
KINDS = ("float", "fp16", "bf16", "int8", "int16")

#: Precision → selectors of what has it.
Rules = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Switch:
    """Rules that are turned on and off by a name.

    Args:
        description: one line.
        rules: the rules.
        on: whether they hold unless the user says otherwise.
    """

    description: str
    rules: Rules
    on: bool = False

    def explain(self) -> str:
        """In words."""
        return f"{self.description} ({'on' if self.on else 'off'}; {in_words(self.rules)})"


@dataclass(frozen=True, kw_only=True)
class PrecisionRules:
    """The tables ``[precision]`` and ``[switches.NAME]``.

    Args:
        rules: what holds always.
        switches: what can be turned on and off.
        convert: operators that read activations of one width alone: where one has another, a converting pair stands between.
    """

    rules: Rules = field(default_factory=dict)
    switches: Mapping[str, Switch] = field(default_factory=dict)
    convert: tuple[str, ...] = ()

    def explain(self) -> list[tuple[str, str]]:
        """Rows of (what, how), for people."""
        rows = [("precision", in_words(self.rules))] if self.rules else []
        rows += [(f"switch {name}", switch.explain()) for name, switch in self.switches.items()]
        converted = f"converting pairs before {', '.join(self.convert)}"
        return [*rows, *([("boundaries of precision", converted)] if self.convert else [])]


NO_RULES = PrecisionRules()


def precision_of(precision: TomlTable, switches: TomlTable) -> PrecisionRules:
    """The rules of the two tables.

    Raises:
        ModelError: they cannot be read; the message names the table.
    """
    found = {}
    for name in switches.data:
        table = switches.table(name, "description", "on", *KINDS)
        rules = _rules(table)
        if not rules:
            raise table.error("it switches nothing", hint=f"give selectors for one of {', '.join(KINDS)}")
        found[name] = Switch(description=table.text("description"), rules=rules, on=_flag(table, "on"))
    return PrecisionRules(rules=_rules(precision), switches=found, convert=_selectors(precision, "convert"))


def in_words(rules: Rules) -> str:
    """``16 bit: role:norm, *head*; float16: role:softmax``."""
    words = {"int8": "8 bit", "int16": "16 bit", "fp16": "float16", "bf16": "bfloat16", "float": "float"}
    return "; ".join(f"{words[kind]}: {', '.join(texts)}" for kind, texts in rules.items())


def _rules(table: TomlTable) -> dict[str, tuple[str, ...]]:
    return {kind: _selectors(table, kind) for kind in KINDS if kind in table.data}


def _selectors(table: TomlTable, key: str) -> tuple[str, ...]:
    texts = table.texts(key) if key in table.data else ()
    try:
        Selector.of(*texts)
    except (UsageError, UnsupportedError) as error:
        raise table.error(f"{key!r}: {error.message}", hint=error.hint) from error
    return texts


def _flag(table: TomlTable, key: str) -> bool:
    return table.flag(key) if key in table.data else False
