"""`debug reduce`: the smallest part that still fails, of planted faults; parts of a model run by themselves and keep pairs whole."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes.errors import UsageError
from qdq_passes.graph.uses import main_nodes
from qdq_passes.qdq.look.pairs import half_pairs

import qdqtool
from qdqtool import api
from qdqtool.reduction.checks import Candidate, CommandCheck
from qdqtool.reduction.parts import Parts
from qdqtool.reduction.prober import Prober
from qdqtool.reduction.smallest import smallest
from qdqtool.runtime.session import open_session
from tests.cases.cli_helpers import CALIB, DIGITS, cli, write
from tests.cases.waiting import HASTE, PATIENCE
from tests.dial import examples, some
from tests.golden_messages.refusal import refusal, told

#: A command that finds an operator in a file: the fault is there as long as it does.
HOLDS = f"{shlex.quote(sys.executable)} -I -S -c \"import sys; sys.exit(7 if sys.argv[2].encode() in open(sys.argv[1], 'rb').read() else 0)\" {{}} "


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("reduce") / "int8.onnx"
    cli("quantize", DIGITS, "--data", CALIB, "--samples", "8", "-o", path)
    return str(path)


@settings(max_examples=examples(200))
@given(
    st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=4)))
)
def test_the_search_finds_what_must_be_there(case: tuple[int, set[int]]) -> None:
    count, needed = case
    found = smallest(range(count), lambda part: needed <= set(part), lambda part: list(part))
    assert set(found) == needed


def test_a_prefix_is_cut_down_to_what_its_end_needs() -> None:
    asked: list[Sequence[int]] = []

    def fails(part: Sequence[int]) -> bool:
        asked.append(part)
        return 6 in part

    assert smallest(range(8), fails, lambda part: [n for n in part if n % 2 == 0]) == [6]
    assert [0, 2, 4, 6] in asked


def test_parts_run_and_keep_pairs_whole(int8: str) -> None:
    model = qdqtool.load(int8)
    qdqtool.run_pipeline(model, "infer-shapes")
    parts = Parts(model)
    assert len(parts.units) == 19, "the operators, without pairs and what is constant"
    with np.load(CALIB) as data:
        values = {"input": data["input"][:1]}
    for seed in some(12, 4):
        drawn = np.random.default_rng(seed).permutation(len(parts.units))[: 1 + seed % 7]
        part = parts.part([parts.units[i] for i in sorted(drawn)], values)
        session = open_session(part)
        feed = {name: np.zeros([d if isinstance(d, int) else 1 for d in session.input_shapes[name]], np.float32) for name in session.input_names}  # fmt: skip
        assert all(np.isfinite(array).all() for array in session.run(feed).values())
        assert half_pairs(part) == []


def test_a_command(int8: str, tmp_path: Path) -> None:
    found = cli(
        "debug", "reduce", int8, "--check", f"{HOLDS} GlobalAveragePool", "-o", tmp_path / "r.onnx", "--json"
    ).json
    ops = [node.op_type for node in onnx.load(tmp_path / "r.onnx").graph.node]
    assert ops == ["QuantizeLinear", "DequantizeLinear", "GlobalAveragePool"]
    assert (found["failure"], found["stopped"], found["files"]) == ("exit status 7", "", [str(tmp_path / "r.onnx")])
    assert found["nodes_before"] == len(main_nodes(qdqtool.load(int8)))
    assert found["checks"] < 25


def test_the_status_and_the_text_that_count(tmp_path: Path) -> None:
    model = str(tmp_path / "m.onnx")
    shout = f"{shlex.quote(sys.executable)} -c \"print('Aua'); raise SystemExit(3)\""
    fails = {
        (): "exit status 3: Aua", (3,): "exit status 3: Aua", (4,): None
    }  # fmt: skip
    for codes, wanted in fails.items():
        assert CommandCheck(command=shout, timeout=PATIENCE, codes=codes)(Candidate(model=model)) == wanted
    assert CommandCheck(command=shout, timeout=PATIENCE, text="A.a")(Candidate(model=model)) == "exit status 3: Aua"
    assert CommandCheck(command=shout, timeout=PATIENCE, text="Oh")(Candidate(model=model)) is None
    with pytest.raises(TimeoutError):
        CommandCheck(command="sleep 60", timeout=HASTE)(Candidate(model=model))
    named = f"{shlex.quote(sys.executable)} -c \"import os; raise SystemExit(os.environ['QDQTOOL_FEEDS'] == 'f.npz')\""
    assert CommandCheck(command=named, timeout=PATIENCE)(Candidate(model=model, feeds="f.npz")) == "exit status 1"


@pytest.fixture(scope="module")
def broken(int8: str) -> Path:
    """With a pair whose scale clips everything."""
    path = Path(int8).with_name("broken.onnx")
    cli("qdq", "set", int8, "--select", "tensor:/fuse/relu_output_0", "--scale", "0.0009765625", "-o", path)
    return path


def test_a_scale_that_was_moved(broken: Path, tmp_path: Path) -> None:
    """It is found, with the feed and the float model that show it."""
    files = [str(tmp_path / name) for name in ("r.onnx", "r.npz", "r_float.onnx")]
    asked = ["debug", "reduce", broken, "--min-sqnr", "10", "--data", CALIB, "-o", files[0]]
    assert cli(*asked, "--json").json["files"] == files
    part, feed = onnx.load(files[0]), dict(np.load(files[1]))
    assert [node.op_type for node in part.graph.node] == ["Relu", "QuantizeLinear", "DequantizeLinear"]
    outputs = [open_session(file).run(feed) for file in (files[0], files[2])]
    assert api.compare(files[2], files[0], files[1], tensors=[]).min_sqnr < 10  # type: ignore[operator]
    assert len(outputs[0]) == len(outputs[1]) == 1


@pytest.mark.product(days=3)
def test_a_scale_that_was_moved_is_found_by_the_float_model_that_is_given(broken: Path, tmp_path: Path) -> None:
    asked = ("debug", "reduce", broken, "--min-sqnr", "10", "--data", CALIB, "-o", tmp_path / "r.onnx")
    assert "/fuse/relu" in cli(*asked, "--float", DIGITS, "--json").json["nodes"]


CRASH = """g (float[1,4] x) => (float[1,4] y) {
    a = Relu(x)
    b = Neg(a)
    c = com.acme.Odd(b)
    d = Abs(c)
    y = Relu(d)
}"""


@pytest.mark.product(days=3)
def test_what_onnxruntime_does_not_load(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", CRASH)
    found = cli("debug", "reduce", model, "--crashes", "-o", tmp_path / "r.onnx", "--json").json
    assert [node.op_type for node in onnx.load(tmp_path / "r.onnx").graph.node] == ["Odd"]
    assert "com.acme" in found["failure"]


RUNS = """g (float[1,4] x) => (float[1,4] y) {
    k = Constant <value = int64[1] {9}> ()
    a = Relu(x)
    i = Cast <to = 7> (a)
    j = Add(i, k)
    g = GatherElements <axis = 1> (a, j)
    y = Neg(g)
}"""


@pytest.mark.product(days=3)
def test_what_does_not_run(tmp_path: Path) -> None:
    """What comes before the fault runs: it is cut off there, with the indices that it computes; so are Constants."""
    model = write(tmp_path / "m.onnx", RUNS)
    cli("debug", "reduce", model, "--crashes", "-o", tmp_path / "r.onnx")
    assert [node.op_type for node in onnx.load(tmp_path / "r.onnx").graph.node] == ["GatherElements"]
    session = open_session(str(tmp_path / "r.onnx"))
    with np.load(tmp_path / "r.npz") as feed, pytest.raises(Exception, match="GatherElements"):
        session.run(dict(feed))


def test_it_stops_with_the_smallest_so_far(int8: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["debug", "reduce", int8, "--check", f"{HOLDS} GlobalAveragePool", "--json", "-o"]
    few = cli(*asked, tmp_path / "few.onnx", "--max-checks", "3").json
    assert (few["checks"], few["stopped"]) == (3, "stopped after 3 checks")
    whole = CommandCheck.__call__
    left = iter(range(3))

    def interrupted(self: CommandCheck, candidate: Candidate) -> str | None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return whole(self, candidate)

    monkeypatch.setattr(CommandCheck, "__call__", interrupted)
    cut = cli(*asked, tmp_path / "cut.onnx", code=130).json
    assert cut["stopped"] == "interrupted"
    assert (tmp_path / "cut.onnx").read_bytes() == (tmp_path / "few.onnx").read_bytes()


@pytest.mark.product(days=3)
def test_a_model_that_does_not_fail(int8: str, tmp_path: Path) -> None:
    told(cli("debug", "reduce", int8, "--crashes", "-o", tmp_path / "r.onnx", code=2).error)
    assert list(tmp_path.iterdir()) == []


def test_options_that_do_not_go_together(int8: str, tmp_path: Path) -> None:
    output = tmp_path / "r.onnx"
    for options in (
        {}, {"check": "true", "crashes": True}, {"crashes": True, "fail_codes": (1,)}, {"crashes": True, "float_model": DIGITS},
        {"min_sqnr": 10.0}, {"crashes": True, "timeout": 0.0}, {"check": "true", "fail_text": "("},
    ):  # fmt: skip
        with refusal(UsageError):
            api.reduce(int8, output, **options)
    (tmp_path / "r.npz").write_bytes(b"")
    with refusal(UsageError):
        api.reduce(int8, output, crashes=True)


def test_a_process_that_dies_is_started_again(tmp_path: Path) -> None:
    write(tmp_path / "m.onnx", "g (float[1] x) => (float[1] y) { y = Relu(x) }")
    np.savez(tmp_path / "f.npz", x=np.zeros(1, np.float32))
    with Prober(PATIENCE) as prober:
        died = prober.ask("run", model=str(tmp_path / "m.onnx"), feeds=str(tmp_path / "absent.npz"))
        assert died["failure"] == "onnxruntime dies with exit status 1"
        assert prober.ask("run", model=str(tmp_path / "m.onnx"), feeds=str(tmp_path / "f.npz")) == {}
    with Prober(HASTE) as slow, pytest.raises(TimeoutError):
        slow.ask("run", model=str(tmp_path / "m.onnx"), feeds=str(tmp_path / "f.npz"))


def test_a_command_that_is_not_told_the_file(int8: str, tmp_path: Path) -> None:
    """It fails whatever the part is: a warning says so, and the failure what it says itself."""
    asked = ["debug", "reduce", int8, "--check", "echo no such file; false", "-o", tmp_path / "r.onnx"]
    done = cli(*asked)
    assert "does not say where the file of the part goes" in done.err
    assert "exit status 1: no such file" in done.out
    quiet = cli(*asked[:4], "test ! $QDQTOOL_MODEL", "-o", tmp_path / "other.onnx")
    assert "does not say" not in quiet.err
