"""Plant faults and see who finds them: ``python -m tests.bench.planted_faults [SEED…] [--loud N]`` prints what each costs and at
which place of a ranking its culprit stands. Seed s plants kind s mod 11; without seeds 0 to 32, three of a kind. A minute.

One wrong pair is easy to see where all others are right. With ``--loud N`` up to N other tensors are coarse, in the model without
the fault too, where outputs lose no 0.3 dB by it: then it takes a price at the outputs to tell what matters."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from tests.bench.faults.baselines import RANKERS, rank
from tests.bench.faults.explained import verdict
from tests.bench.faults.fault import Base, Fault, base, sqnr
from tests.bench.faults.kinds import KINDS, FaultKind

__all__ = ["KINDS", "RANKERS", "Fault", "faults", "main"]

#: End-to-end cost in dB of a fault: at least, and between which bounds it is taken at once, as what ruins a model is found by anything;
#: how many forms and places are tried in a model.
LEAST_DB, WANTED_DB, TRIES = 1.5, (3.0, 6.0), 30
#: A culprit is found among the worst so many.
WORST = 3
#: Columns of a name in the table.
WIDTH = 84


def faults(seeds: Iterable[int], *, loud: int = 0) -> Iterator[Fault]:
    """A fault a seed, among up to ``loud`` tensors that are coarse and do no harm.

    Raises:
        LookupError: in no place it costs enough.
    """
    for seed in seeds:
        yield _fault(seed, loud)


def _fault(seed: int, loud: int) -> Fault:
    """The kind and the model by the seed's turn, the place by chance; another place or model where it costs too little."""
    name = list(KINDS)[seed % len(KINDS)]
    kind, random = KINDS[name], np.random.default_rng(seed)
    for turn in range(len(kind.bases)):
        place = kind.bases[(seed // len(KINDS) + turn) % len(kind.bases)]
        found = _costly(seed, name, kind, base(*place, loud), random)
        if found is not None:
            return found
    raise LookupError(f"seed {seed}: no place where {name} costs {LEAST_DB} dB")


def _costly(seed: int, name: str, kind: FaultKind, where: Base, random: np.random.Generator) -> Fault | None:
    """The first place that costs what is wanted; else of those tried the one that is nearest; None where none costs enough."""
    low, high = WANTED_DB
    tried: list[Fault] = []
    before: dict[ir.Model, float] = {}
    for planted in itertools.islice(kind.plant(where, random), TRIES):
        if planted.culprits & where.loud_names:
            continue
        float_model, good = planted.float_model or where.float_model, planted.good or where.good
        if good not in before:
            before[good] = sqnr(float_model, good, where.test)
        cost = before[good] - sqnr(float_model, planted.bad, where.test)
        fault = Fault(
            name=f"{seed}-{name}-{where.model}-{where.preset}-{planted.place}",
            kind=name,
            float_model=float_model,
            good=good,
            bad=planted.bad,
            data=where.test,
            culprits=planted.culprits,
            cause=kind.cause,
            cost_db=cost,
        )
        if low <= cost < high:
            return fault
        if cost >= LEAST_DB:
            tried.append(fault)
    return min(tried, key=lambda fault: max(low - fault.cost_db, fault.cost_db - high), default=None)


def main(arguments: Sequence[str]) -> None:
    """Print the table, and how many each ranking finds among the worst."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.planted_faults")
    parser.add_argument("seeds", nargs="*", type=int)
    parser.add_argument("--loud", type=int, default=0)
    asked = parser.parse_args(arguments)
    found = dict.fromkeys(RANKERS, 0)
    count = 0
    right = kept = 0
    found["explain"] = 0
    heads = [*(f"{name:>10}" for name in found), "cause", "promised", "won"]
    print("  ".join([f"{'fault':{WIDTH}}", "cost dB", *heads]))
    for fault in faults(asked.seeds or range(3 * len(KINDS)), loud=asked.loud):
        ranks = {name: rank(ranker(fault), fault.culprits) for name, ranker in RANKERS.items()}
        told = verdict(fault, WORST)
        ranks["explain"] = told.place
        right, kept = right + told.is_right, kept + told.is_kept
        said = f"{told.cause}{'' if told.is_right else f' (is {fault.cause})'}"
        print(
            "  ".join(
                [
                    f"{fault.name:{WIDTH}}",
                    f"{fault.cost_db:7.1f}",
                    *(f"{r:10g}" for r in ranks.values()),
                    said,
                    f"{told.promised_db:.2f}",
                    f"{told.won_db:.2f}",
                ]
            ),
            flush=True,
        )
        for name, place in ranks.items():
            found[name] += place <= WORST
        count += 1
    shown = ", ".join(f"{name} {hits}" for name, hits in found.items())
    print(f"culprit among the worst {WORST} of {count}: {shown}")
    print(f"explain: right cause {right}, the printed edit won what was promised {kept}")


if __name__ == "__main__":
    main(sys.argv[1:])
