"""Run the benchmarks (or those named: start_up, verifying, partitioning, big_model, quantize, npu, splitting, generating,
weight_only, recovering, decoder_block, simplifying, deploying, growth), print one line each, exit 1 when a bound is broken.

Other work on the machine only ever adds to a figure, so what breaks a bound is measured once more; broken twice, it is broken."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.bench import (
    big_model,
    decoder_block,
    deploying,
    generating,
    growth,
    npu,
    partitioning,
    quantize,
    recovering,
    simplifying,
    splitting,
    start_up,
    verifying,
    weight_only,
)

ALL = {
    "start_up": start_up.results,
    "verifying": verifying.results,
    "partitioning": partitioning.results,
    "big_model": big_model.results,
    "quantize": quantize.results,
    "npu": npu.results,
    "splitting": splitting.results,
    "generating": generating.results,
    "weight_only": weight_only.results,
    "recovering": recovering.results,
    "decoder_block": decoder_block.results,
    "simplifying": simplifying.results,
    "deploying": deploying.results,
    "growth": growth.results,
}


def main(names: Sequence[str]) -> int:
    """Run and report."""
    broken: set[str] = set()
    for name in names or ALL:
        found = _printed(name)
        if found:
            print(f"{name} once more, as a bound was broken", flush=True)
            broken |= found & _printed(name)
    return 1 if broken else 0


def _printed(name: str) -> set[str]:
    """Run one of them and print its figures; the names of those that break their bounds."""
    broken = set()
    for result in ALL[name]():
        print(result, flush=True)
        broken |= set() if result.holds else {result.name}
    return broken


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
