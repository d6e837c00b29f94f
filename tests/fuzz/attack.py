"""The inputs of an attack: input ``number`` of a seed is the same wherever it is made."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import onnx

from tests.fuzz import commands, mutators, texts
from tests.fuzz.seeds import ROOT, Seed, seeds, shared
from tests.fuzz.worker import Job

CACHE = ROOT / "build" / "fuzz"
#: Of so many inputs one is of texts.
TEXTS = 10


@dataclass(frozen=True)
class Attack:
    """What inputs are made of.

    Args:
        seed: of the attack.
        sources: the models.
        shared: files beside each.
    """

    seed: int
    sources: Sequence[Seed]
    shared: dict[str, bytes]

    @classmethod
    def prepared(cls, seed: int, folder: Path = CACHE) -> Attack:
        """The attack ``seed``; what it needs is made in ``folder`` once."""
        return cls(seed, seeds(folder), shared(folder))

    @cached_property
    def _values(self) -> dict[str, list[str]]:
        models = {source.name: onnx.ModelProto.FromString(source.model) for source in self.sources}
        return {name: [v for node in m.graph.node[:40] for v in node.output] for name, m in models.items()}

    def job(self, number: int, *, only: int | None = None) -> Job | None:
        """Input ``number``, or ``only`` one of its steps; None where it has no such step."""
        rng = random.Random(f"{self.seed}-{number}")
        source, other = rng.choices(self.sources, [s.weight for s in self.sources], k=2)
        steps = list(range(rng.choice((1, 1, 1, 2, 2, 3, 5))))
        if only is not None:
            steps = [step for step in steps if step == only]
            if not steps:
                return None
        arguments = commands.line(rng, self._values[source.name])
        data = mutators.mutated(source.model, [f"{self.seed}-{number}-{k}" for k in steps], other.model)
        label = f"{self.seed}-{number} {source.name}"
        return Job(label, arguments, {**source.files, "o.onnx": source.model, "m.onnx": data})

    def without(self, job: Job) -> Callable[[int], Job | None]:
        """Of ``job``, the input with one step of its damage alone."""
        number = int(job.label.split()[0].rpartition("-")[2])
        return lambda step: self.job(number, only=step)


def jobs(attack: Attack, first: int, last: int) -> Iterator[Job]:
    """Inputs ``first`` to ``last`` of ``attack``; one in `TEXTS` is of texts."""
    for number in range(first, last):
        if number % TEXTS == TEXTS - 1:
            for label, arguments, files in islice(texts.inputs(attack.seed * 10_000_019 + number), 1):
                yield Job(f"{attack.seed}-{number} {label}", arguments, files)
        else:
            job = attack.job(number)
            assert job is not None
            yield job
