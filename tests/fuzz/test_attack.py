"""A small attack in every run of the tests, and what attacks found."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import click
import onnx
import pytest

from qdqtool.cli.main import cli
from tests.fuzz import commands
from tests.fuzz.attack import Attack, jobs
from tests.fuzz.minimise import FOUND, minimised
from tests.fuzz.mutators import mutated
from tests.fuzz.worker import CPU, MEMORY, Job, Worker, run_all

#: Inputs of the attack in every run: half a minute. The seed is fixed, so that a run says something of a change.
INPUTS = 300


def leaves(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, by the words that call it."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for word in command.list_commands(context):
        found = command.get_command(context, word)
        assert found is not None
        yield from leaves(found, f"{name} {word}".strip())


def test_every_command_is_attacked() -> None:
    assert set(dict(leaves(cli))) == set(commands.LINES) | set(commands.LEFT_OUT)


def test_its_command_lines_are_right() -> None:
    """click takes every one of them, so that what is refused is what they are given."""
    rng = random.Random(1)
    for name, command in leaves(cli):
        for line in commands.LINES.get(name, ()):
            words = [commands.filled(word, rng, ["x"]) for word in line.split()]
            command.make_context(name, words)


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Attack:
    return Attack.prepared(1, tmp_path_factory.mktemp("seeds"))


def test_a_small_attack(attack: Attack, tmp_path: Path) -> None:
    outcomes = list(run_all(jobs(attack, 0, INPUTS), tmp_path, workers=1, shared=attack.shared))
    assert len(outcomes) == INPUTS
    assert [f"{o.signature} ({o.job.label}: {' '.join(o.job.arguments)})" for o in outcomes if o.problem] == []
    codes = [outcome.code for outcome in outcomes]
    assert all(codes.count(code) >= INPUTS / 100 for code in (0, 2)), (
        "an attack that is always, or never, let in says nothing"
    )


def test_damage_can_be_made_again(attack: Attack) -> None:
    model = attack.sources[0].model
    made = {mutated(model, [f"1-{k}"], model) for k in range(20)}
    assert len(made) > 15
    assert made == {mutated(model, [f"1-{k}"], model) for k in range(20)}


def test_the_watch_sees_what_goes_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that ends the process, hangs, raises, or takes memory: each is told from the others."""
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "cmd_bad.py").write_text(
        '"""Bad."""\nimport click, os, time\n@click.command()\n@click.argument("how")\n@click.option("-v", is_flag=True)\n'
        "def command(how, v):\n"
        "    if how == 'die': os.abort()\n"
        "    if how == 'raise': raise ValueError('x')\n"
        "    if how == 'memory': b'x' * (1 << 30)\n"
        "    while how == 'hang': pass\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("QDQTOOL_PATH", str(tmp_path))
    monkeypatch.setattr("tests.fuzz.worker.CPU", CPU / 4)
    monkeypatch.setattr("tests.fuzz.worker.MEMORY", MEMORY // 3)
    worker = Worker(tmp_path / "w", {})
    try:
        found = {
            how: worker.check(Job(how, ["bad", how], {})).problem for how in ("fine", "die", "raise", "memory", "hang")
        }
    finally:
        worker.end()
    assert found.pop("die").startswith("dead process")
    assert found == {"fine": "", "raise": "exit 70", "memory": "memory", "hang": "hang"}


def test_a_finding_is_made_small(tmp_path: Path) -> None:
    """Of a model that `check` finds something in, what is found stays and the rest goes."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
        a = Neg(x)  b = Abs(a)  c = Add(b, w)  y = Nonsense(c) }"""
    model = onnx.parser.parse_model(text)
    worker = Worker(tmp_path / "w", {})
    job = Job("1-1 x", ["check", "m.onnx"], {"m.onnx": model.SerializeToString()})
    try:
        outcome = worker.check(job)
        assert outcome.code == 1
        outcome.problem = ""
        small = minimised(outcome, worker, lambda step: None)
    finally:
        worker.end()
    assert len(onnx.ModelProto.FromString(small.files["m.onnx"]).graph.node) < 4


@pytest.mark.parametrize("path", sorted(p for p in FOUND.iterdir() if p.suffix != ".run"), ids=lambda path: path.stem)
def test_what_attacks_found(path: Path, tmp_path: Path) -> None:
    said = path.with_suffix(".run") if path.suffix == ".onnx" else path
    line = next(line for line in said.read_text(encoding="utf-8").splitlines() if line.startswith("# RUN: "))
    worker = Worker(tmp_path / "w", {})
    try:
        words = ["m" + path.suffix if word == "MODEL" else word for word in line.removeprefix("# RUN: ").split()]
        outcome = worker.check(Job(path.stem, words, {"m" + path.suffix: path.read_bytes()}))
    finally:
        worker.end()
    assert not outcome.problem, f"{outcome.problem} {outcome.said}"
