"""Own rows that contradict a chip's profiles, each with what it likely is: a swapped unit, a copied row, a slow way to run it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from qdq_passes._lazy_dataclass import dataclass

from qdqtool.chips.chip import Chip
from qdqtool.cost.calibrating import Own, calibrated, predicted
from qdqtool.cost.networks import Amounts
from qdqtool.cost.rows import MS, Row
from qdqtool.cost.shapes import shape_named

#: A row is listed where it lies beyond so many standard deviations: 98 % of rows lie within; the least of these in log ms.
FAR, LEAST = 2.33, 0.1
#: How near to a unit's factor, or to what another precision takes, a row lies, in standard deviations and in log ms.
NEAR, NEAR_LOG = 2.0, 1.2
UNITS = {"us": 1e-3, "s": 1e3}
#: Digits in which copied rows agree, and by what factor their predictions differ.
DIGITS, DIFFER = 3, 1.15
#: Rows up to which each is left out once; of more, one of a few.
LEFT_OUT = 24


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """A row that does not fit.

    Args:
        own: the row.
        ms: predicted; 0 where nothing tells.
        factor: measured by predicted.
        outside: share of rows that lie nearer to the prediction, 0 to 1.
        causes: the likeliest first.
        unusable: whether it tells nothing of the chip: another unit, another row's time.
    """

    own: Own
    ms: float
    factor: float
    outside: float
    causes: tuple[str, ...]
    unusable: bool = False

    def text(self, place: str) -> str:
        """``5.1 times slower than 8 Gen 3 with llm.npu: 98 % outside; graph built inside the timing, CPU fallback``."""
        how = f"{max(self.factor, 1 / self.factor):.3g} times {'slower' if self.factor > 1 else 'faster'} than {place}"
        return f"{self.own.row.id}: {how}: {min(round(100 * self.outside), 99)} % outside; {', '.join(self.causes)}"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """An own row and what base, calibrated chip and the other rows say of it, in ms; 0 where nothing tells."""

    own: Own
    before: float
    after: float
    left_out: float


def checked(
    chips: Sequence[Chip], base: Chip, chip: Chip, rows: Sequence[Own], amounts: Mapping[str, Amounts]
) -> list[Checked]:
    """Each row as the base, the calibrated chip and the chip calibrated without it predict it; left out is one of a few."""
    found = []
    now = calibrated(chips, base, chip, rows, amounts)
    step = -(-len(rows) // LEFT_OUT)
    for index, own in enumerate(rows):
        without = [one for one in rows if one.key != own.key]
        left_out = 0.0
        if index % max(step, 1) == 0:
            left_out = _ms(chips, calibrated(chips, base, chip, without, amounts), own, amounts)
        before, after = (_ms(chips, one, own, amounts) for one in (base, now))
        found.append(Checked(own=own, before=before, after=after, left_out=left_out))
    return found


def _ms(chips: Sequence[Chip], chip: Chip, own: Own, amounts: Mapping[str, Amounts]) -> float:
    told = predicted([chip, *(other for other in chips if other.file != chip.file)], chip, own, amounts)
    return 0.0 if told is None else math.exp(told[0])


def contradictions(
    chips: Sequence[Chip], base: Chip, rows: Sequence[Own], amounts: Mapping[str, Amounts], *, speed: float = 0.0
) -> list[Contradiction]:
    """The rows that are no time of their model on such a chip, or hardly.

    Args:
        chips: that are known.
        base: whose profiles tell what is expected.
        rows: own ones.
        amounts: of graphs, by model.
        speed: standard deviation of log ms by which the chip may differ from the base altogether.
    """
    told = [predicted(chips, base, own, amounts) for own in rows]
    offs = [math.log(own.ms) - one[0] for own, one in zip(rows, told, strict=True) if one is not None]
    shift = float(np.median(offs)) if speed and offs else 0.0
    copies = _copies(rows, told, base)
    found = []
    for index, (own, one) in enumerate(zip(rows, told, strict=True)):
        if one is None:
            continue
        sd = math.hypot(one[1], LEAST)
        off = math.log(own.ms) - one[0]
        off = off - shift if abs(off - shift) < abs(off) else off
        far = abs(off) > FAR * sd
        unit = _unit(own, off, sd) if far else ""
        if not far and index not in copies:
            continue
        causes = [*([unit] if unit else []), *copies.get(index, [])]
        causes = causes or [*_other_precision(chips, base, own, amounts), *_causes(off)]
        outside = math.erf(abs(off) / sd / math.sqrt(2))
        unusable = bool(unit) or index in copies
        ms, factor = math.exp(one[0]), math.exp(off)
        found.append(
            Contradiction(own=own, ms=ms, factor=factor, outside=outside, causes=tuple(causes), unusable=unusable)
        )
    return found


def _unit(own: Own, off: float, sd: float) -> str:
    """What the number would be in which unit."""
    near = min(max(NEAR_LOG, NEAR * sd), math.log(MS) / 3)
    for name, factor in UNITS.items():
        meant = off + math.log(factor)
        if abs(meant) < near and abs(off) > 2 * near:
            return f"{own.row.value:g} is probably in {name}, not in {own.row.unit}"
    if own.shape is not None:
        other = "tok/s" if own.row.metric == "latency" else "ms"
        tokens = own.call.tokens if own.call.phase == "prefill" else 1
        swapped = tokens * MS / own.row.value if other == "tok/s" else own.row.value
        if abs(off + math.log(swapped / own.ms)) < min(near, abs(off) / 2):
            if own.row.metric == "latency_total":
                return f"{own.row.value:g} is probably of one token, not of {own.row.out_tokens:g}"
            return f"{own.row.value:g} is probably in {other}, not in {own.row.unit}"
    return ""


def _digits(row: Row) -> str:
    """Digits of the value without zeros at either end; "" of one with too few to be known again."""
    digits = f"{row.value:.6g}".replace(".", "").partition("e")[0].strip("0")
    return digits if len(digits) >= DIGITS else ""


def _said(own: Own) -> tuple[object, ...]:
    return own.stack, own.precision, own.row.phase, own.row.value


def _copies(rows: Sequence[Own], told: Sequence[tuple[float, float] | None], base: Chip) -> dict[int, list[str]]:
    """Of rows with the digits of another model, or of another board, that fits them better: index → what they are copies of."""
    found: dict[int, list[str]] = {}
    for at, own in enumerate(rows):
        mine = told[at]
        if not _digits(own.row) or mine is None:
            continue
        for index, other in enumerate(rows):
            theirs = told[index]
            if index == at or theirs is None or _said(own) != _said(other):
                continue
            boards = own.row.device != other.row.device and own.name == other.name and at > index
            nearer = abs(math.log(own.ms) - theirs[0]) < abs(math.log(own.ms) - mine[0])
            better = nearer and abs(theirs[0] - mine[0]) > math.log(DIFFER)
            if boards or (own.name != other.name and better):
                whose = other.row.device if boards else other.name
                text = f"the digits {own.row.value:g} are those of {whose} ({other.row.id}): a copied row"
                found.setdefault(at, []).append(text)
        for row in base.profiles_of(own.stack)[own.precision].measured:
            off = abs(math.log(own.ms / row.ms))
            far = abs(math.log(own.ms) - mine[0]) > FAR * math.hypot(mine[1], LEAST)
            is_other = own.name != row.model and (own.shape is None or shape_named(row.model) != own.shape)
            if far and own.row.phase == row.phase and is_other and off < 10.0**-DIGITS / 2:
                found.setdefault(at, []).append(f"{own.ms:.4g} ms is the published time of {row.model}: a copied row")
    return {at: list(dict.fromkeys(texts)) for at, texts in found.items()}


def _other_precision(chips: Sequence[Chip], base: Chip, own: Own, amounts: Mapping[str, Amounts]) -> Iterator[str]:
    """The precisions of the runtime in which the row would be no surprise."""
    for precision in sorted(base.profiles_of(own.stack).keys() - {own.precision, ""}):
        told = predicted(chips, base, replace(own, precision=precision), amounts)
        if told is not None and abs(math.log(own.ms) - told[0]) < math.hypot(told[1], LEAST):
            yield f"it fits {precision} ({math.exp(told[0]):.3g} ms)"


def _causes(off: float) -> tuple[str, ...]:
    """What makes a time e to ``off`` times longer than expected."""
    if off > math.log(8):
        return "CPU fallback", "graph built inside the timing"
    if off > math.log(2.5):
        return "graph built inside the timing", "CPU fallback", "power mode"
    if off > 0:
        return "power mode", "heat", "part of it on the CPU"
    return "a smaller input or a shorter prompt", "another precision", "time of a part alone"
