"""Fit the chips' profiles on the public rows again: ``python -m tests.bench.chip_fit`` compares, ``--write`` writes the chip files
and the tables of docs/chips.md. A minute or two; the same rows give the same bytes."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from qdqtool.chips.chip import Chip, Fitted, Measured, Profile
from qdqtool.chips.loading import CHIPS
from qdqtool.cost import network_fit
from qdqtool.cost.chip_file import chip_text
from qdqtool.cost.decoder_fit import ChipFit, call_of, chip_of, fit_decoders, leave_one_model_out, observed
from qdqtool.cost.decoders import FORMS
from qdqtool.cost.fitting import EIGHTY, Posterior
from qdqtool.cost.network_fit import NOISE, SPREAD, LeftOut, NetworkFit, leave_out, seen
from qdqtool.cost.networks import NAMES
from qdqtool.cost.rows import Row
from tests.bench.chip_rows import chips, head_of, public_networks, public_rows, with_chips

#: Months of the rows, by the form of their runtime.
DATES = {"network": "2026-02", "static-context": "2026-02", "streaming": "2026-02", "pipelined-linear": "2024-07"}
VERSIONS = {"genie": "AI Hub 2026-02", "qnn_context_binary": "AI Hub 2024-03 to 2026-02", "llm.npu": "arXiv 2407.05858",
            "FastFlowLM": "0.9.30 to 0.9.40"}  # fmt: skip
#: As many networks as tell as much of a precision's intervals as those of the other precisions do.
SCALE_NETWORKS = 30
#: A number of a fit; how many rows there are is none.
NUMBER = re.compile(r"(?<!rows = )(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")
PAGE = Path(__file__).parents[2] / "docs" / "chips.md"


def fitted_chips() -> list[Chip]:
    """Every chip with profiles from the public rows; chips without rows stay as they are."""
    known = chips()
    pairs = with_chips(public_rows(), known)
    named = [replace(row, chip=chip.file) for chip, row in pairs]
    profiles = [*_networks(named), *_decoders(named)]
    return [replace(chip, profiles=tuple(p for file, p in profiles if file == chip.file)) for chip in known]


def _networks(rows: Sequence[Row]) -> list[tuple[str, Profile]]:
    usable = seen(rows, public_networks())
    found = NetworkFit(usable)
    scales = scale_of(leave_out(usable, precision=False))
    own = math.sqrt(sum(SPREAD[key] ** 2 for key in SPREAD if key.startswith("network")))
    totals = np.array([amounts.totals for amounts in public_networks().values()])
    training = {name: (0.0, float(totals[:, at].max())) for at, name in enumerate(NAMES) if totals[:, at].max() > 1}
    profiles = []
    order = [network_fit.STACKS.index, network_fit.PRECISIONS.index]
    for place in sorted(found.places, key=lambda p: (p[0], order[0](p[1]), order[1](p[2]))):
        chip, stack, precision = place
        profile = Profile(
            stack=stack,
            precision=precision,
            form="network",
            version="AI Hub 2026-02",
            date=DATES["network"],
            rows=sum(row.place == place for row in usable),
            fitted=_fitted(NAMES, found.coefficients(place)),
            noise={"run": NOISE},
            unseen=own,
            scale=scales[precision],
            training=training,
            measured=tuple(_measured_networks(rows, place)),
        )
        profiles.append((chip, profile))
    return profiles


def _measured_networks(rows: Iterable[Row], place: tuple[str, str, str]) -> Iterable[Measured]:
    """One row of each network; a part of one of several is ``model--component``."""
    here = [row for row in rows if (row.chip, row.stack, row.precision) == place and not row.phase and not row.suspect]
    parts: dict[str, set[str]] = {}
    for row in rows:
        if not row.phase:
            parts.setdefault(row.model, set()).add(row.component)
    found: dict[str, list[float]] = {}
    for row in here:
        found.setdefault(row.model if len(parts[row.model]) == 1 else f"{row.model}--{row.component}", []).append(
            row.ms
        )
    return [Measured(model=model, ms=float(np.median(ms))) for model, ms in sorted(found.items())]


def scale_of(left_out: Sequence[LeftOut]) -> dict[str, float]:
    """By precision, what standard deviations are multiplied by so that 80 % of the rows left out are in their intervals; nearer to
    that of all precisions the fewer networks there are, as one of ten that is odd takes a tenth of the rows with it."""

    def needed(of: Sequence[LeftOut]) -> float:
        offs = [((one.log_ms - one.seen.log_ms) / EIGHTY) ** 2 - NOISE**2 for one in of]
        scales = [math.sqrt(max(off, 0) / (one.sd**2 - NOISE**2)) for off, one in zip(offs, of, strict=True)]
        return float(np.quantile(scales, 0.8))

    found = {}
    for precision in sorted({one.seen.place[2] for one in left_out}):
        own = [one for one in left_out if one.seen.place[2] == precision]
        count = len({one.seen.row.model for one in own})
        share = count / (count + SCALE_NETWORKS)
        found[precision] = needed(own) ** share * needed(left_out) ** (1 - share)
    return found


def _decoders(rows: Sequence[Row]) -> list[tuple[str, Profile]]:
    usable = [row for form in FORMS for row in (one.row for one in observed(rows, form))]
    return [
        (
            chip,
            _decoder_profile(chip, stack, fit, [row for row in usable if (chip_of(row), row.stack) == (chip, stack)]),
        )
        for (chip, stack), fit in sorted(fit_decoders(usable).items())
        if chip
    ]


def _decoder_profile(chip: str, stack: str, fit: ChipFit, rows: Sequence[Row]) -> Profile:
    names = fit.form.names
    families = {name: one for name, one in fit.near.items() if name.islower() and name.isalpha()}
    measured = [
        Measured(
            model=row.model, ms=row.ms / (row.out_tokens or 1), precision=row.precision, phase=row.phase,
            tokens=row.seq_len if row.phase == "prefill" else 1, context=row.ctx or (row.seq_len if row.phase == "decode" else 0),
            dataset=call_of(row).dataset,
        )
        for row in rows
    ]  # fmt: skip
    return Profile(
        stack=stack,
        form=fit.form.name,
        version=VERSIONS[stack],
        date=DATES[fit.form.name],
        rows=len(rows),
        fitted=_fitted(names, fit.posterior),
        families={name: _fitted(names, one) for name, one in sorted(families.items())},
        noise=fit.noise,
        scale=fit.scale,
        training=fit.training,
        datasets={name: (math.exp(longer), sd) for name, (longer, sd) in fit.datasets.items()},
        measured=tuple(measured),
    )


def _fitted(names: Sequence[str], posterior: Posterior) -> Fitted:
    return Fitted(tuple(names), posterior.mean, posterior.covariance)


def tables() -> str:
    """What leaving rows out says, as the tables of the page."""
    known = with_chips(public_rows(), chips())
    rows = [replace(row, chip=chip.file) for chip, row in known]
    usable = seen(rows, public_networks())
    lines = [
        "| networks | left out | rows | median | p90 | in the 80 % interval | width |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for precision, what in ((True, "the network in this precision"), (False, "the network")):
        left_out = leave_out(usable, precision=precision)
        networks = sorted({one.seen.row.model for one in left_out})
        scales = {m: scale_of([one for one in left_out if one.seen.row.model != m]) for m in networks}
        for name in network_fit.PRECISIONS:
            own = [one for one in left_out if one.seen.place[2] == name]
            lines.append(_line(name, what, [(one.log_ms - one.seen.log_ms, _wide(one, scales)) for one in own]))
    lines += ["", "| language models | left out | rows | median | p90 | in the 80 % interval | width |", lines[1]]
    found: dict[str, list[tuple[float, float]]] = {}
    for row, ms, low, high in leave_one_model_out(rows):
        group = {"genie": "Genie, AI Hub", "qnn_context_binary": "Genie, AI Hub"}.get(row.stack, row.stack)
        truth = row.ms / (row.out_tokens or 1)
        for name in (f"{group}, {row.phase}", *([group] if (row.stack, row.phase) != ("llm.npu", "decode") else ())):
            found.setdefault(name, []).append((math.log(ms / truth), math.log(high / low) / 2))
    lines += [_line(name, "the model", pairs) for name, pairs in sorted(found.items())]
    return "\n".join(lines) + "\n"


def _wide(one: LeftOut, scales: Mapping[str, Mapping[str, float]]) -> float:
    """Half the width of a row's 80 % interval, scaled by what the rows of other networks need."""
    scale = scales[one.seen.row.model][one.seen.place[2]]
    return EIGHTY * math.hypot(scale * math.sqrt(one.sd**2 - NOISE**2), NOISE)


def _line(name: str, what: str, pairs: Sequence[tuple[float, float]]) -> str:
    errors = [abs(math.expm1(off)) for off, _ in pairs]
    inside = sum(abs(off) <= wide for off, wide in pairs) / len(pairs)
    width = math.exp(2 * float(np.median([wide for _, wide in pairs])))
    median, p90 = np.quantile(errors, [0.5, 0.9])
    return f"| {name} | {what} | {len(pairs)} | {100 * median:.1f} % | {100 * p90:.1f} % | {100 * inside:.0f} % | {width:.2f} |"


def is_other(before: str, after: str) -> bool:
    """Whether two texts differ in more than numbers that are alike: the fit stops when no logarithm of a coefficient moves by more
    than `SHORTEST`, 0.001, from where each of its 14 may lie on another side; whole percents by as much and a rounding."""
    if NUMBER.sub("", before) != NUMBER.sub("", after):
        return True
    pairs = zip(NUMBER.findall(before), NUMBER.findall(after), strict=True)
    return any(abs(float(a) - float(b)) > (0.02 * abs(float(b)) if "." in b else 2) for a, b in pairs)


def main(arguments: Sequence[str]) -> int:
    """Compare, or write; what is compared may lie off by what another machine's rounding does."""
    write, different = "--write" in arguments, []
    for chip in fitted_chips():
        text = chip_text(chip, head=head_of(chip)) if chip.profiles else head_of(chip)
        path = Path(str(CHIPS.path(chip.file)))
        if (path.read_text(encoding="utf-8") != text) if write else is_other(path.read_text(encoding="utf-8"), text):
            different.append(chip.file)
            if write:
                path.write_text(text, encoding="utf-8")
    found = tables()
    print(found)
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else "<!-- fit -->\n<!-- /fit -->\n"
    new = re.sub(
        r"(<!-- fit -->\n).*(<!-- /fit -->)", lambda m: m[1] + "\n" + found + "\n" + m[2], page, flags=re.DOTALL
    )
    if (new != page) if write else is_other(page, new):
        different.append(str(PAGE.name))
        if write:
            PAGE.write_text(new, encoding="utf-8")
    print("written:" if write else "different:", ", ".join(different) or "nothing")
    return 0 if write or not different else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
