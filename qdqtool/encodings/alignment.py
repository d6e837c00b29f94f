"""Which tensor of a model each name in an encodings file means: by a map, by structure, or by the name itself."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import is_constant

from qdqtool.encodings.structure import Matched, match_structure
from qdqtool.encodings.tensors import Values, values_by_name

How = Literal["exact", "structure", "map"]


@dataclass(frozen=True)
class Match:
    """The tensor that a name means.

    Args:
        tensor: its name in the model; None when it is not found.
        how: how it was found.
        reason: why it was not.
    """

    tensor: str | None
    how: How = "exact"
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """The names of a file and the tensors they mean.

    Args:
        matches: name in the file → match.
        renamed: every tensor of the reference model that has another name here, old → new; for names beside the entries'.
    """

    matches: Mapping[str, Match]
    renamed: Mapping[str, str]

    def rename(self, name: str) -> str:
        """What the tensor ``name`` of the reference model is called here."""
        return self.renamed.get(name, name)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: how many names are what they were, and all that are not."""
        changed: dict[str, list[dict[str, str | None]]] = {"structure": [], "map": []}
        for name, match in self.matches.items():
            if match.tensor is not None and match.how != "exact":
                changed[match.how].append({"name": name, "tensor": match.tensor})
        return {
            "exact": sum(match.tensor is not None and match.how == "exact" for match in self.matches.values()),
            "by_structure": changed["structure"],
            "by_map": changed["map"],
            "unmatched": [
                {"name": name, "reason": match.reason} for name, match in self.matches.items() if match.tensor is None
            ],
        }


def align(
    names: Iterable[str],
    model: ir.Model,
    *,
    reference: ir.Model | None = None,
    renames: Mapping[str, str] | None = None,
) -> Alignment:
    """The tensors of ``model`` that ``names`` mean.

    With ``reference`` structure comes before the name: numbered names move from export to export, and would be found at the
    wrong place. A tensor whose part several tensors play is unmatched, unless its own name is one of theirs.

    Args:
        names: names in the file.
        model: the float model.
        reference: the float model that the file was made for.
        renames: old name → new name; comes first.
    """
    values = values_by_name(model)
    given = dict(renames or {})
    matched = Matched({}, {}) if reference is None else match_structure(reference, model)
    old = {} if reference is None else values_by_name(reference)
    taken: dict[str, str] = {}
    matches: dict[str, Match] = {}
    for name in names:
        match = _match(name, values, given, matched, old if reference is not None else None)
        if match.tensor is not None and match.tensor in taken:
            match = Match(None, reason=f"{match.tensor} is what {taken[match.tensor]} means already")
        if match.tensor is not None:
            taken[match.tensor] = name
        matches[name] = match
    renamed = {**{a: b for a, b in matched.pairs.items() if a != b}, **given}
    return Alignment(matches=matches, renamed=renamed)


def _match(name: str, values: Values, given: Mapping[str, str], matched: Matched, old: Values | None) -> Match:
    if name in given:
        target = given[name]
        return (
            Match(target, "map") if target in values else Match(None, reason=f"the map says {target}, no such tensor")
        )
    if old is None or name not in old:
        if name in values:
            return Match(name)
        near = difflib.get_close_matches(name, values, n=2)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        word = "the model has no such tensor" if old is None else "neither model has such a tensor"
        return Match(None, reason=word + hint)
    target = matched.pairs.get(name, "")
    if target in values:
        return Match(target, "exact" if target == name else "structure")
    partner = values.get(name)
    if partner is not None and name not in matched.pairs.values() and _is_like(old[name], partner):
        return Match(name)
    count = matched.alike.get(name, 0)
    return Match(None, reason=f"{count} tensors play its part" if count else "no tensor plays its part")


def _is_like(a: ir.Value, b: ir.Value) -> bool:
    """Whether two values of one name are made alike."""
    makers = a.producer(), b.producer()
    if None in makers:
        return makers == (None, None) and is_constant(a) == is_constant(b) and a.shape == b.shape
    first, second = makers
    assert first is not None
    assert second is not None
    return first.op_type == second.op_type and a.index() == b.index()
