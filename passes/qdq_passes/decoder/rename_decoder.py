"""rename-decoder"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import Namer


@dataclass(frozen=True)
class RenameDecoder(Pass):
    """Give inputs and outputs of a decoder the names that a client expects, by their roles.

    Graph: same wiring; ``past="past_{part}.{layer}"`` calls the key of layer 0 ``past_key.0``.
    Requires: a decoder with a KV cache; ``past`` and ``present`` hold ``{layer}`` and ``{part}`` (key or value).
    Keeps: names of all else; numerics bit-exact. Whatever bears a wanted name already gets a fresh one.
    Skips: nothing; an empty option leaves that name as it is. One name for two values is refused.

    Args:
        ids: name of the ids.
        positions: name of the positions, where they are an input.
        logits: name of the logits.
        past: pattern of the names of the cache that goes in.
        present: pattern of the names of the cache that comes out.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="inputs and outputs bear other names")
    ids: str = ""
    positions: str = ""
    logits: str = ""
    past: str = ""
    present: str = ""

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Name by name."""
        io, namer = decoder_io(model), Namer(model)
        wanted: list[tuple[ir.Value | None, str]] = [
            (io.ids, self.ids), (io.positions, self.positions), (io.logits, self.logits)
        ]  # fmt: skip
        for pair in io.pairs:
            wanted.append((pair.past, _filled(self.past, pair.layer, pair.part)))
            wanted.append((pair.present, _filled(self.present, pair.layer, pair.part)))
        given = [(value, name) for value, name in wanted if value is not None and name]
        taken = {name for _, name in given}
        if len(taken) < len(given):
            raise UsageError(
                "two inputs or outputs would have one name", hint="put {layer} and {part} into the patterns"
            )
        yield from _make_room(model, taken, {id(value) for value, _ in given}, namer)
        for value, name in given:
            if value.name != name:
                old, value.name = value.name, name
                yield Change("rename", old or "", f"→ {name}")


def _filled(pattern: str, layer: int, part: str) -> str:
    return pattern.replace("{layer}", str(layer)).replace("{part}", part)


def _make_room(model: ir.Model, taken: set[str], named: set[int], namer: Namer) -> Iterator[Change]:
    """Fresh names for other values of the names wanted."""
    graph = model.graph
    values = [*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)]
    for value in values:
        if value.name in taken and id(value) not in named:
            old, value.name = value.name, namer.fresh(value.name)
            yield Change("rename", old, f"→ {value.name}: the name is wanted")
