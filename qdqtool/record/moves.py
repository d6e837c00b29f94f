"""Who changes encodings while passes run: a hook that looks at every tensor behind each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir
from qdq_passes.core.base import Change, Pass
from qdq_passes.graph.annotate import ENCODING
from qdq_passes.graph.uses import all_values
from qdq_passes.numerics.arrays import Numbers
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.pipeline.hooks import QuietHook
from qdq_passes.qdq.look.pairs import qdq_pairs

from qdqtool.record.record import Moved


class EncodingWatch(QuietHook):
    """Notes every encoding that a pass chooses or moves, with the rule that it tells; of very many scales their form alone."""

    def __init__(self) -> None:
        self._last: dict[str, Encoding] = {}
        self._moves: dict[str, list[tuple[str, str, Encoding | None, Encoding]]] = {}

    def after(self, pass_: Pass, model: ir.Model, changes: Sequence[Change]) -> None:
        """Compare with what was before; a pass that changed nothing is not looked at."""
        because = {change.where: change.because for change in changes if not change.is_skip}
        if because:
            self.note(encodings_of(model), type(pass_).name(), because)

    def note(self, now: Mapping[str, Encoding], by: str, because: Mapping[str, str]) -> None:
        """Note what is another encoding than before.

        Args:
            now: encodings of tensors.
            by: who chose or moved them.
            because: its rules, by tensor.
        """
        for name, found in now.items():
            before, encoding = self._last.get(name), _outlined(found)
            if before is None or not _is_same(before, encoding):
                move = (by, because.get(name, ""), before, encoding)
                self._moves.setdefault(name, []).append(move)
                self._last[name] = encoding

    def moves(self, names: Iterable[str]) -> Mapping[str, tuple[Moved, ...]]:
        """Of the tensors ``names``, the first choice first; ends that have very many scales are left out."""
        return {
            name: tuple(
                Moved(by=by, because=because, before=encoding_json(before), after=encoding_json(after))
                for by, because, before, after in self._moves.get(name, ())
            )
            for name in names
        }


def _outlined(encoding: Encoding) -> Encoding:
    """``encoding`` without its numbers where these are very many: who keeps them keeps the weights that they come from."""
    if not isinstance(encoding.scale, Numbers):
        return encoding
    count = len(encoding.scale)
    return dataclasses.replace(encoding, scale=Numbers.same(count, 1), zero_point=Numbers.same(count, 0))


def _is_same(one: Encoding, other: Encoding) -> bool:
    """Of such outlines the numbers are not looked at."""
    if isinstance(one.scale, Numbers) and isinstance(other.scale, Numbers):
        return all(getattr(one, name) == getattr(other, name) for name in ("dtype", "shape", "axis", "block_size"))
    return one == other


def encodings_of(model: ir.Model) -> dict[str, Encoding]:
    """Tensor → encoding: of its pair, else what is annotated."""
    found: dict[str, Encoding] = {}
    for pair in qdq_pairs(model):
        if pair.tensor not in found and (encoding := pair.encoding) is not None:
            found[pair.tensor] = encoding
    for value in all_values(model):
        annotated = ENCODING.get(value)
        if value.name is not None and annotated is not None:
            found.setdefault(value.name, annotated)
    return found


def encoding_json(encoding: Encoding | None) -> dict[str, object] | None:
    """Its JSON; None of one with so many scales that it holds an array of them: a weight in small blocks has as many as a
    smaller model has weights."""
    if encoding is None or isinstance(encoding.scale, Numbers):
        return None
    return encoding.to_json()
