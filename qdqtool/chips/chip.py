"""A chip as its file tells it: identity, hardware with sources, and for each runtime the coefficients fitted on measured rows."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import field

import numpy as np
from numpy.typing import NDArray
from qdq_passes._lazy_dataclass import dataclass

from qdqtool.targets.cost import Figure

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Dated(Figure[float]):
    """A number of the hardware.

    Args:
        value: in the unit that its key names.
        source: where it stands.
        confidence: how sure it is.
        date: when it was read or measured, ``2026-02``.
    """

    date: str


@dataclass(frozen=True, eq=False)
class Fitted:
    """Coefficients of a form: milliseconds a unit of work, normal in their logarithms.

    Args:
        names: of the coefficients.
        mean: logarithms [n].
        covariance: of the logarithms [n, n].
    """

    names: tuple[str, ...]
    mean: Array
    covariance: Array

    @property
    def errors(self) -> Array:
        """Standard errors of the logarithms [n]."""
        errors: Array = np.sqrt(np.diag(self.covariance))
        return errors


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A time that was measured on the chip.

    Args:
        model: network or language model.
        ms: of a run, a prefill, a token.
        phase: ``prefill``, ``decode``, or "" of a network.
        tokens: of the prefill; 1 of a token.
        context: tokens in the cache, or static context.
        precision: where the profile is of several.
        dataset: that it is the mean over, with the range of lengths, ``2wiki 2-4``; "" of one length.
    """

    model: str
    ms: float
    precision: str = ""
    phase: str = ""
    tokens: int = 0
    context: int = 0
    dataset: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """What is known of one runtime on the chip in one precision (networks), or in all (language models).

    Args:
        stack: the runtime.
        precision: ``float``, ``w8a8``, ``w8a16``; "" where the form takes it as an input.
        form: name of the form.
        version: of the runtime, or its range.
        date: of the rows.
        rows: how many the fit saw; 0 of one that was carried over from data sheets.
        fitted: the coefficients for a model that was not seen.
        families: the same for families of models that were seen.
        noise: standard deviation of log ms of a row, by phase.
        unseen: what a network adds to it that was never measured.
        scale: factor on the coefficients' standard deviations that lets 80 % intervals hold what they promise.
        training: lowest and highest of what was seen, by quantity.
        datasets: how many times longer data sets take than the middle of the range of their lengths does, and the standard
            deviation of its logarithm, by name: ``2wiki 2-4 decode``.
        shifted: networks that were measured elsewhere, as own rows say they are here: ms, standard deviation of log ms.
        measured: rows by which estimates are held against what was measured.
        carried: the chip that the profile was carried over from; "" where it is the chip's own.
    """

    stack: str
    form: str
    precision: str = ""
    version: str = ""
    date: str = ""
    rows: int = 0
    fitted: Fitted
    families: Mapping[str, Fitted] = field(default_factory=dict)
    noise: Mapping[str, float] = field(default_factory=dict)
    unseen: float = 0.0
    scale: float = 1.0
    training: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    datasets: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    shifted: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    measured: tuple[Measured, ...] = ()
    carried: str = ""

    @functools.cached_property
    def of_model(self) -> Mapping[str, tuple[Measured, ...]]:
        """The rows of each model."""
        found: dict[str, list[Measured]] = {}
        for row in self.measured:
            found.setdefault(row.model, []).append(row)
        return {model: tuple(rows) for model, rows in found.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class Chip:
    """A chip.

    Args:
        name: as its vendor calls it.
        file: name of its file: ``snapdragon_8_elite``.
        vendor: who makes it.
        npu: generation of its NPU.
        target: that judges which operators run there.
        aliases: other names.
        boards: that carry it, as rows name them.
        like: file of the measured chip that is nearest, for what nobody measured on this one.
        hardware: numbers by key, see `HARDWARE`.
        watts: of a stack while it computes, by stack.
        profiles: one a runtime, or a runtime and precision.
    """

    name: str
    file: str
    vendor: str
    npu: str
    target: str
    aliases: tuple[str, ...] = ()
    boards: tuple[str, ...] = ()
    like: str = ""
    hardware: Mapping[str, Dated] = field(default_factory=dict)
    watts: Mapping[str, Dated] = field(default_factory=dict)
    profiles: tuple[Profile, ...] = ()

    @property
    def stacks(self) -> tuple[str, ...]:
        """The runtimes with a profile."""
        return tuple(dict.fromkeys(profile.stack for profile in self.profiles))

    def profiles_of(self, stack: str) -> dict[str, Profile]:
        """Those of one runtime by precision."""
        return {profile.precision: profile for profile in self.profiles if profile.stack == stack}


#: Key → what it is, in which unit.
HARDWARE: Mapping[str, str] = {
    "int8_tops": "10¹² integer operations of 8 bits a second, two a multiply-accumulate",
    "float16_tflops": "10¹² operations on float16 a second",
    "bandwidth_gbs": "10⁹ bytes a second between DRAM and chip",
    "dram_gb": "10⁹ bytes of DRAM that boards have, at most",
    "addressable_gb": "2³⁰ bytes that one session of the NPU addresses",
    "on_chip_mb": "2²⁰ bytes beside the engines",
    "clock_mhz": "10⁶ cycles a second",
}
