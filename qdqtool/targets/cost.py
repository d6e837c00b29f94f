"""What a target's time is estimated from: numbers of its engines and memories, each with its source and how sure it is.

Measurements of simulators say nothing about time, so most of these are assumed; an estimate made of them shows what limits a
model, and compares two models, rather than tell milliseconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Generic, Literal, TypeVar

from qdq_passes._lazy_dataclass import dataclass

Confidence = Literal["measured", "documented", "assumed"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Figure(Generic[T]):
    """A number and where it comes from.

    Args:
        value: the number, in the unit that its key names.
        source: specification, paper, measurement or reasoning.
        confidence: how sure it is.
    """

    value: T
    source: str
    confidence: Confidence


#: What the speeds of wider types are assumed from.
_PAIRS = "ratio of {} published pairs of AI Hub, 2026-02: {} takes"


def _assumed(value: T) -> Figure[T]:
    return Figure(value=value, source="qdqtool's default: the target file does not say", confidence="assumed")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memories and what the matrix unit takes from them at once.

    Args:
        tile: [rows, depth, columns] of the products of matrices that the matrix unit does at once; smaller ones fill it up.
        tile_bytes: of the memory beside the engines: inputs, weights and outputs of a tile must fit in at once.
        addressable_bytes: what one compiled group may hold, weights and activations.
    """

    tile: Figure[tuple[int, int, int]] = dataclasses.field(default_factory=lambda: _assumed((32, 32, 32)))
    tile_bytes: Figure[float] = dataclasses.field(default_factory=lambda: _assumed(1 << 20))
    addressable_bytes: Figure[float] = dataclasses.field(default_factory=lambda: _assumed(1 << 31))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Speeds.

    Args:
        clock_mhz: cycles a microsecond.
        macs_per_cycle: multiply-accumulates a cycle by the storage type of the activations (``int8`` and ``uint8`` alike: its
            bits, ``8``, ``16``), ``float`` for what is computed in floating point.
        vector_elements_per_cycle: element operations a cycle, of 8 bits.
        dram_bytes_per_cycle: between the addressable memory and the memory beside the engines.
        dispatch_us: microseconds to start one group of nodes.
        boundary_bytes_per_us: between the CPU's memory and the NPU's, at the edges of a group.
        per_group_penalty: cycles for each group of a grouped convolution: it runs, but slowly.
        blocked_penalty: how many times longer a product with a scale per block takes than one of 8 bits with one scale; in wider
            types and floating point no less than there without blocks.
        cpu_macs_per_us: multiply-accumulates a microsecond of the CPU beside the NPU, on which falls what the target refuses;
            `[cost.cpu]` ``macs_per_us`` in target files.
        cpu_elements_per_us: element operations a microsecond of that CPU; ``elements_per_us`` likewise.
    """

    clock_mhz: Figure[float] = dataclasses.field(default_factory=lambda: _assumed(1000.0))
    macs_per_cycle: Mapping[str, Figure[float]] = dataclasses.field(
        default_factory=lambda: {
            "8": _assumed(1024.0),
            "16": Figure(
                value=585.0, source=f"{_PAIRS.format(206, 'w8a16')} 1.75 times the w8a8 time", confidence="assumed"
            ),
            "float": Figure(
                value=394.0, source=f"{_PAIRS.format(701, 'float')} 2.6 times the w8a8 time", confidence="assumed"
            ),
        }
    )
    vector_elements_per_cycle: Figure[float] = dataclasses.field(default_factory=lambda: _assumed(64.0))
    dram_bytes_per_cycle: Figure[float] = dataclasses.field(default_factory=lambda: _assumed(16.0))
    dispatch_us: Figure[float] = dataclasses.field(default_factory=lambda: _assumed(50.0))
    boundary_bytes_per_us: Figure[float] = dataclasses.field(default_factory=lambda: _assumed(4000.0))
    per_group_penalty: Figure[float] = dataclasses.field(default_factory=lambda: _assumed(100.0))
    blocked_penalty: Figure[float] = Figure(
        value=10.7,
        source="up to so many times slower on Hexagon (arXiv 2407.05858, weights in groups)",
        confidence="assumed",
    )
    cpu_macs_per_us: Figure[float] = Figure(
        value=50_000.0,
        source="100 GFLOP/s: order of magnitude of four big cores of a telephone with float32 vectors of 128 bits",
        confidence="assumed",
    )
    cpu_elements_per_us: Figure[float] = Figure(
        value=2_500.0,
        source="float32 elements read and written once, 8 bytes, at 20 GB/s",
        confidence="assumed",
    )
