"""The verb `calibrate_chip`: a chip's profiles moved by own measured times."""

from __future__ import annotations

import os
import re
from dataclasses import field
from typing import TYPE_CHECKING, Literal

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.io.files.progress import Warned
from qdqtool.options import metadata_of, option
from qdqtool.verbs.groups import Path, Warns
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdqtool.chips.chip import Chip
    from qdqtool.cost.calibrating import Own
    from qdqtool.cost.contradictions import Checked, Contradiction
    from qdqtool.cost.networks import Amounts
    from qdqtool.cost.rows import Row


@dataclass(frozen=True, kw_only=True)
class CalibratedChip(Warned):
    """A chip that own rows have moved.

    Args:
        chip: with its profiles.
        base: whose profiles were the prior.
        why: that base.
        used: the rows, each with what is predicted of it before and after.
        passed: the rows that no profile is of, with the reason.
        contradictions: the rows that do not fit the base; unusable ones are not among ``used``.
    """

    chip: Chip
    base: Chip
    why: str
    used: Sequence[Checked]
    passed: Sequence[tuple[Row, str]]
    contradictions: Sequence[Contradiction]

    @property
    def text(self) -> str:
        """The chip's file; the same rows, in whatever order, give the same bytes."""
        from qdqtool.cost.chip_file import chip_text

        return chip_text(self.chip)


@dataclass(frozen=True, kw_only=True)
class CalibrateChip(Warns, Verb["CalibratedChip"]):
    """Move the profiles of a chip by the measured times in ROWS: two rows move its speed, ten all coefficients."""

    examples = (
        "calibrate-chip mine.csv -o mine.toml",
        "calibrate-chip mine.csv --chip 'Acme 9' --transfer snapdragon_8_elite -o acme_9.toml",
    )

    rows: Path = field(
        kw_only=False,
        metadata=metadata_of(
            "Measured times: own CSV or JSON, or a benchmark's file.", kind="argument", value="ROWS", use="read"
        ),
    )
    chip: str = option("", "Chip that the rows are of, or its file (default: as the rows tell).", value="CHIP")
    transfer: str = option(
        "", "Chip whose profiles a new chip begins with (default: the one most like the rows).", value="CHIP"
    )
    nets: Path | None = option(None, "Folder of graphs MODEL.onnx of networks in the rows.", value="DIR", use="read")
    name: str = option("", "Name of the chip in the result.", value="NAME")
    stack: str = option("", "Runtime, where the rows do not tell it or the chip knows none of that name.", value="NAME")
    precision: str = option("", "Precision, where the rows do not tell it.", value="NAME")
    model: str = option("", "Model, where the rows do not tell it or no shape of theirs is known.", value="NAME")
    phase: Literal["", "prefill", "decode"] = option("", "Phase of a language model, where the rows do not tell it.")

    def run(self) -> CalibratedChip:
        """The chip.

        Raises:
            QdqError: rows that cannot be read, an unknown chip, no row that a profile is of.
        """
        from dataclasses import replace

        from qdqtool.chips.loading import all_known
        from qdqtool.cost.calibrating import OTHER, calibrated
        from qdqtool.cost.choosing import check_forms
        from qdqtool.cost.contradictions import checked, contradictions
        from qdqtool.cost.reading import read_rows

        rows = read_rows(self.rows, stack=self.stack, precision=self.precision, model=self.model, phase=self.phase)
        chips = all_known()
        amounts = self._amounts({row.model for row in rows if not row.phase})
        chip, base, why = self._chips(rows, chips, amounts)
        check_forms(base)
        own, passed = self._own(rows, base, chips)
        speed = OTHER.speed if base.file != chip.file else 0.0
        odd = contradictions(chips, base, own, amounts, speed=speed)
        bad = [one.own for one in odd if one.unusable]
        usable = [one for one in own if one not in bad]
        if not usable:
            reasons = [reason for _, reason in passed] or [cause for one in odd for cause in one.causes]
            raise UsageError(
                "no row to calibrate by", where=os.fspath(self.rows), hint="; ".join(dict.fromkeys(reasons))
            )
        found = calibrated(chips, base, chip, usable, amounts)
        if self.name:
            found = replace(found, name=self.name, file=_file_name(self.name))
        told = checked(chips, base, chip, usable, amounts)
        return CalibratedChip(chip=found, base=base, why=why, used=told, passed=passed, contradictions=odd)

    def _own(self, rows: Sequence[Row], base: Chip, chips: Sequence[Chip]) -> tuple[list[Own], list[tuple[Row, str]]]:
        """`own_rows` under the names that were given."""
        from qdqtool.cost.calibrating import own_rows
        from qdqtool.cost.shapes import shape_named

        unknown = sorted({row.model for row in rows if row.phase and row.model and shape_named(row.model) is None})
        if self.model and len(unknown) > 1:
            said = f"one model {self.model!r} for rows of {len(unknown)}: {', '.join(unknown)}"
            raise UsageError(said, where=os.fspath(self.rows), hint="give a file of one model")
        return own_rows([self._known(row, base) for row in rows], base, chips)

    def _known(self, row: Row, base: Chip) -> Row:
        """``row`` with the runtime that was given where ``base`` has no profile of its own, and so with the language model."""
        from dataclasses import replace

        from qdqtool.cost.shapes import shape_named

        if self.stack in base.stacks and row.stack not in base.stacks:
            row = replace(row, stack=self.stack)
        if shape_named(self.model) is not None and row.phase and shape_named(row.model) is None:
            row = replace(row, model=self.model)
        return row

    def _chips(
        self, rows: Sequence[Row], chips: Sequence[Chip], amounts: Mapping[str, Amounts]
    ) -> tuple[Chip, Chip, str]:
        """The chip that the rows are of, the one whose profiles are the prior, and why that."""
        from dataclasses import replace

        from qdqtool.chips.loading import find_chip, load_chip
        from qdqtool.cost.decoder_fit import chip_of

        named = {found.name if (found := find_chip(chip_of(row))) else chip_of(row) for row in rows} - {""}
        given = self.chip or (named.pop() if len(named) == 1 else "")
        if not given:
            said = f"rows of {len(named)} chips: {', '.join(sorted(named))}" if named else "the rows tell no chip"
            raise UsageError(said, where=os.fspath(self.rows), hint="give --chip")
        chip = load_chip(given) if given.endswith(".toml") else find_chip(given)
        if self.transfer:
            base, why = load_chip(self.transfer), "as asked"
        elif chip is not None and chip.profiles:
            base, why = chip, "its own profiles"
        else:
            base, why = self._sibling(rows, chips, amounts, chip)
        if not base.profiles:
            raise UsageError(f"{base.name} has no profiles", hint=f"--transfer {base.like or 'CHIP'}")
        made = chip or replace(
            base, name=given, file=_file_name(given), like=base.file, aliases=(), boards=(), hardware={}, watts={}
        )
        return made, base, why

    def _sibling(
        self, rows: Sequence[Row], chips: Sequence[Chip], amounts: Mapping[str, Amounts], chip: Chip | None
    ) -> tuple[Chip, str]:
        """The measured chip whose ratios to the rows scatter least; of few rows the one that the chip's file calls like it."""
        import math
        import statistics

        from qdqtool.chips.loading import load_chip
        from qdqtool.cost.calibrating import predicted

        found = []
        for other in chips:
            own: Sequence[Own] = self._own(rows, other, chips)[0] if other.profiles else []
            told = [(one, predicted(chips, other, one, amounts)) for one in own]
            offs = [math.log(one.ms) - log[0] for one, log in told if log is not None]
            if len(offs) >= 2:
                middle = statistics.median(offs)
                scatter = statistics.median(abs(off - middle) for off in offs)
                found.append((-len(offs), scatter + abs(middle) / 10, other.file))
        if chip is not None and chip.like and len(rows) < 4:
            return load_chip(chip.like), "its file says that it is like it"
        if not found:
            raise UsageError("no measured chip has such rows", hint="give --transfer")
        return load_chip(min(found)[2]), "of the measured chips its ratios to the rows scatter least"

    def _amounts(self, models: set[str]) -> dict[str, Amounts]:
        from qdqtool.cost.counting import counted
        from qdqtool.cost.networks import amounts_of
        from qdqtool.io.models.load import load

        files = (
            {} if self.nets is None else {model: os.path.join(self.nets, f"{model}.onnx") for model in sorted(models)}
        )
        return {
            m: amounts_of(counted(load(file, weights=False))[0]) for m, file in files.items() if os.path.exists(file)
        }


def _file_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


calibrate_chip = function_of(CalibrateChip)
