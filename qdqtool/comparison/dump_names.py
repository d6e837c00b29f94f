"""Which tensor a dumped file is: names as boards mangle them.

/conv1/Relu_output_0:0 → conv1_relu_output_0, _conv1_Relu_output_0_0.raw, conv1_Relu_output_0_native: all one tensor"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir
from qdq_passes.qdq.look.pairs import half_pairs, qdq_pairs

#: What boards put behind a name, by and by taken off until something fits.
_ENDS = re.compile(
    r"(?:_(?:native|raw|bin|out|output|nhwc|nchw|float|f32|int8|uint8|dequantizelinear|dequantized|quantized)|_\d+)$"
)


@dataclass(frozen=True)
class Names:
    """Every name that a tensor may be dumped under.

    Args:
        tensors: names of the tensors.
        aliases: mangled name → tensors it may be: their own names and those of what Q and DQ make of them.
        by_node: mangled node name → the tensor that it writes first.
    """

    tensors: frozenset[str]
    aliases: Mapping[str, frozenset[str]]
    by_node: Mapping[str, frozenset[str]]

    def find(self, name: str) -> str | list[str]:
        """The tensor called ``name``; several when it may be any of them, none when it is none."""
        if name in self.tensors:
            return name
        wanted = mangled(name)
        while wanted:
            for table in (self.aliases, self.by_node):
                found = table.get(wanted)
                if found is not None:
                    return next(iter(found)) if len(found) == 1 else sorted(found)
            shorter = _ENDS.sub("", wanted)
            if shorter == wanted:
                break
            wanted = shorter
        return []

    def nearest(self, name: str) -> list[str]:
        """Up to three tensors of similar names."""
        close = difflib.get_close_matches(mangled(name), list(self.aliases), n=3)
        return list(dict.fromkeys(tensor for key in close for tensor in sorted(self.aliases[key])))[:3]


def mangled(name: str) -> str:
    """``name`` in small letters, everything but letters and digits one underscore, none at the ends."""
    return re.sub(r"[^0-9a-z]+", "_", name.lower()).strip("_")


def names_of(tensors: Iterable[str], models: Iterable[ir.Model]) -> Names:
    """The names under which ``tensors`` of ``models`` may be dumped."""
    known = frozenset(tensors)
    aliases: dict[str, set[str]] = {}
    by_node: dict[str, set[str]] = {}
    for name in known:
        aliases.setdefault(mangled(name), set()).add(name)
    for model in models:
        made = [(p.tensor, v) for p in qdq_pairs(model) for v in (p.output, p.dq.inputs[0])]
        made += [(half.tensor, half.node.outputs[0]) for half in half_pairs(model)]
        for tensor, value in made:
            if tensor in known and value is not None and value.name:
                aliases.setdefault(mangled(value.name), set()).add(tensor)
        for node in model.graph:
            if node.name and node.outputs and node.outputs[0].name in known:
                by_node.setdefault(mangled(node.name), set()).add(node.outputs[0].name)
    return Names(known, _frozen(aliases), _frozen(by_node))


def _frozen(table: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    return {key: frozenset(found) for key, found in table.items()}
