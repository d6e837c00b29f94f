"""A small attack in every run of the tests, and what attacks found."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from tests.cases.cli_helpers import every_command
from tests.fuzz import commands
from tests.fuzz.attack import Attack
from tests.fuzz.minimise import FOUND, keep, minimised
from tests.fuzz.worker import MEMORY, Job, Worker, run_all

#: Inputs of the attack in every run: a few seconds. The seed is fixed, so that a run says something of a change.
INPUTS = 60


def test_every_command_is_attacked() -> None:
    assert set(dict(every_command())) == set(commands.LINES) | set(commands.LEFT_OUT)


def test_its_command_lines_are_right() -> None:
    """click takes every one of them, so that what is refused is what they are given."""
    rng = random.Random(1)
    for name, command in every_command():
        for line in commands.LINES.get(name, ()):
            words = [commands.filled(word, rng, ["x"]) for word in line.split()]
            command.make_context(name, words)


@pytest.fixture(scope="module")
def attack() -> Attack:
    return Attack.prepared(1)


def test_a_small_attack(attack: Attack, tmp_path: Path) -> None:
    outcomes = list(run_all(attack.job, range(INPUTS), tmp_path, workers=1))
    assert [outcome.job.label.split()[0] for outcome in outcomes] == [f"1-{number}" for number in range(INPUTS)]
    assert [str(outcome) for outcome in outcomes if outcome.problem] == []
    codes = [outcome.code for outcome in outcomes]
    assert min(codes.count(0), codes.count(2)) > INPUTS / 100, "an attack that is always, or never, let in says nothing"


def test_damage_can_be_made_again(attack: Attack) -> None:
    made = [attack.job(number) for number in range(20)]
    assert len({job.files["m.onnx"] for job in made if "m.onnx" in job.files}) > 10, "the damage differs"
    assert made == [attack.job(number) for number in range(20)]


def test_the_watch_sees_what_goes_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that ends the process, hangs, raises, takes memory, or leaves what it must not: each is told from the others."""
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "cmd_bad.py").write_text(
        '"""Bad."""\nimport click, os, time\n@click.command()\n@click.argument("how")\n@click.option("-v", is_flag=True)\n'
        "def command(how, v):\n"
        "    if how == 'die': os.abort()\n"
        "    if how == 'raise': raise ValueError('x')\n"
        "    if how == 'memory': b'x' * (1 << 29)\n"
        "    if how == 'escape': click.echo(chr(155))\n"
        "    if how == 'change': open('input', 'w').write('x')\n"
        "    if how == 'leave': open('.x.tmp', 'w')\n"
        "    while how == 'hang': pass\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("QDQTOOL_PATH", str(tmp_path))
    words = ("fine", "die", "raise", "memory", "escape", "change", "leave", "hang")
    with Worker(tmp_path / "w", cpu=1, memory=MEMORY // 4) as worker:
        found = [worker.check(Job(how, ["bad", how], {"input": b""})).signature for how in words]
    assert found == [
        ": bad", "dead process (exit -6): bad", "exit 70: ValueError in qdqtool/cli/main.py/_result", "memory: bad",
        "control characters: bad", "changed input: bad", "left .x.tmp: bad", "hang: bad",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def shared_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with Worker(tmp_path_factory.mktemp("shared") / "w") as worker:
        yield worker


def test_a_finding_is_made_small(shared_worker: Worker, tmp_path: Path) -> None:
    """Of a model that `check` finds something in, what is found stays and the rest goes."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
        a = Neg(x)  b = Abs(a)  c = Add(b, w)  y = Nonsense(c) }"""
    model = onnx.parser.parse_model(text)
    job = Job("1-1 x", ["check", "m.onnx"], {"m.onnx": model.SerializeToString()})
    outcome = shared_worker.check(job)
    assert outcome.code == 1
    small = minimised(outcome, shared_worker, [])
    assert len(onnx.ModelProto.FromString(small.files["m.onnx"]).graph.node) < 4
    path = keep(small, outcome, tmp_path)
    assert path.read_text(encoding="utf-8").startswith("# RUN: check MODEL\n")


@pytest.mark.parametrize("path", sorted(p for p in FOUND.iterdir() if p.suffix != ".run"), ids=lambda path: path.stem)
def test_what_attacks_found(path: Path, shared_worker: Worker) -> None:
    said = path.with_suffix(".run") if path.suffix == ".onnx" else path
    line = next(line for line in said.read_text(encoding="utf-8").splitlines() if line.startswith("# RUN: "))
    words = line.removeprefix("# RUN: ").replace("MODEL", "m" + path.suffix).split()
    outcome = shared_worker.check(Job(path.stem, words, {"m" + path.suffix: path.read_bytes()}))
    assert not outcome.problem, f"{outcome.problem} {outcome.said}"
