"""The inputs of an attack: input ``number`` of a seed is the same wherever it is made.

What is damaged are small models of every kind, each with data for it, from the tree or made of those by commands, and the files of other
kinds that commands read."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qdqtool.io.feeds.feeds import open_feeds
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.models.load import load
from qdqtool.io.models.parse import read_model
from tests.cases.cli_helpers import ROOT, SAMPLES, cli
from tests.fuzz import commands, mutators, texts
from tests.fuzz.worker import Job

#: Models as they lie in the tree, and how often each is taken, the large ones less.
STORED = {
    "qdqtool/_demo/digits.onnx": 1.5, "sample_models/if_branch.onnx": 3, "sample_models/loop_body.onnx": 3,
    "sample_models/int4_weights.onnx": 3, "sample_models/local_function.onnx": 3, "sample_models/quark_layout.onnx": 3,
    "sample_models/external_data.onnx": 1, "sample_models/mobilenet_block.onnx": 2, "sample_models/vit_block.onnx": 0.25,
    "sample_models/detector.onnx": 0.25, "tests/data/xint8_parity/a.onnx": 3, "tests/data/xint8_parity/d.onnx": 3,
    "tests/data/xint8_parity/n.onnx": 3, "tests/data/decoders/gpt2_torchscript/model.onnx": 0.5,
    "tests/data/decoders/llama_dynamo23/model.onnx": 2, "tests/data/decoders/llama_genai_int4/model.onnx": 2,
    "tests/fuzz/tiny.onnxtxt": 6,
}  # fmt: skip
#: Models that commands make of them, encodings, and a split folder.
MADE = {
    "digits-qdq.onnx": "quantize {digits} --preset xint8 --data random:2",
    "digits-a8w8.onnx": "quantize {digits} --preset qnn-a8w8 --data random:2",
    "vit-qdq.onnx": "quantize {vit_block} --preset a16w8 --data random:2",
    "d-qdq.onnx": "quantize {d} --preset xint8 --data random:2",
    "digits-lowered.onnx": "lower digits-qdq.onnx --target vitis_xint8",
    "digits-compiled.onnx": "compile digits-qdq.onnx --target vitis_xint8",
    "e.json": "encodings export digits-qdq.onnx --format aimet-1.0.0",
    "split": "split {llama_dynamo23} --prefill 4 --decode 1 --context 8",
}  # fmt: skip
#: Of so many inputs one is of texts.
TEXTS = 10
#: How many steps of damage a model takes.
STEPS = (1, 1, 1, 2, 2, 3, 5)


@dataclass(frozen=True)
class Seed:
    """A model, and what goes with it.

    Args:
        name: of the model.
        model: bytes of the ``.onnx``.
        files: further files, by name: ``d.npz``, external data.
        values: names of some of its values.
        weight: how often it is taken.
    """

    name: str
    model: bytes
    files: dict[str, bytes]
    values: list[str]
    weight: float


@dataclass(frozen=True)
class Attack:
    """What inputs are made of.

    Args:
        seed: of the attack.
        sources: the models.
        beside: other files that commands read, by name.
    """

    seed: int
    sources: Sequence[Seed]
    beside: Mapping[str, bytes]

    @classmethod
    def prepared(cls, seed: int) -> Attack:
        """The attack ``seed``."""
        with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
            return cls(seed, *_seeds(Path(folder)))

    def job(self, number: int, steps: slice = slice(None)) -> Job:
        """Input ``number``, or that with only some ``steps`` of the damage to its model."""
        label = f"{self.seed}-{number}"
        rng = random.Random(label)
        if number % TEXTS == TEXTS - 1:
            arguments, files = texts.line(rng, self.beside)
        else:
            source, other = rng.choices(self.sources, [source.weight for source in self.sources], k=2)
            taken = range(rng.choice(STEPS))[steps]
            arguments = commands.line(rng, source.values)
            data = mutators.mutated(source.model, [f"{label}-{step}" for step in taken], other.model)
            files, label = {**source.files, "o.onnx": source.model, "m.onnx": data}, f"{label} {source.name}"
        named = {argument.strip("@") for argument in arguments}
        beside = {name: data for name, data in self.beside.items() if name.partition("/")[0] in named}
        return Job(label, arguments, {**beside, **files})

    def alone(self, number: int) -> list[Job]:
        """Input ``number`` with each step of its damage alone."""
        return [self.job(number, slice(step, step + 1)) for step in range(max(STEPS))]


def _seeds(folder: Path) -> tuple[list[Seed], dict[str, bytes]]:
    """All models, and the files beside them by their names; commands make them in ``folder``, which is empty."""
    (folder / "text.txt").write_text("the quick brown fox " * 20)
    shutil.copy(SAMPLES / "tokenizer.json", folder / "tok.json")
    shutil.copy(ROOT / "tests" / "fuzz" / "plain.onnxtxt", folder)
    stored = {_name(Path(path)): ROOT / path for path in STORED}
    with contextlib.chdir(folder):
        for name, line in MADE.items():
            cli(*line.format_map(stored).split(), "-o", name)
        for line in texts.MADE:
            cli(*line.split())
    weights = {ROOT / path: weight for path, weight in STORED.items()}
    weights |= {folder / name: 1.5 for name in MADE if name.endswith(".onnx")}
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return [_seed(path, weight) for path, weight in weights.items()], files


def _name(path: Path) -> str:
    return path.parent.name if path.stem == "model" else path.stem


def _seed(path: Path, weight: float) -> Seed:
    model = read_model(path)
    entries = [each for tensor in model.graph.initializer for each in tensor.external_data]
    files = {each.value: (path.parent / each.value).read_bytes() for each in entries if each.key == "location"}
    values = [value for node in model.graph.node[:40] for value in node.output]
    return Seed(_name(path), model.SerializeToString(), {**files, "d.npz": _samples(path)}, values, weight)


def _samples(path: Path) -> bytes:
    """Two samples for every input."""
    specs, buffer = input_specs(load(path)), io.BytesIO()
    one, two = open_feeds("random:2", specs)
    np.savez(buffer, **{name: np.concatenate([np.atleast_1d(one[name]), np.atleast_1d(two[name])]) for name in one})
    return buffer.getvalue()
