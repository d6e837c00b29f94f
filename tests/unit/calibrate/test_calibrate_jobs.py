"""Calibration on several processes: the bytes of one, for every method and every form of data; resumed, interrupted, failing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from qdq_passes.errors import ModelError, SetupError, UsageError

from qdqtool import api
from qdqtool.calibrate import collect as collecting
from qdqtool.calibrate.collect import SAVE_EVERY, collect
from qdqtool.calibrate.observer import METHODS
from qdqtool.calibrate.ranges import Ranges
from qdqtool.io.feeds.feeds import input_specs, open_feeds
from qdqtool.io.models.load import load
from qdqtool.workers.cluster import InProcess, Workers, open_workers
from tests.cases.cli_helpers import CALIB, DIGITS, cli, command_line, environment, write
from tests.cases.waiting import PATIENCE, wait_for
from tests.dial import sized
from tests.golden_messages.refusal import refusal
from tests.unit.workers.test_local_workers import hear_interrupts

Array = npt.NDArray[Any]
LOG = "g (float[1,3] x) => (float[1,3] y) { l = Log(x)  n = Neg(l)  y = Exp(n) }"
PLUGIN = """from qdqtool.calibrate.methods.minmax import Minmax
class Own(Minmax):
    pass
"""


@pytest.fixture(scope="module")
def two() -> Iterator[Workers]:
    with open_workers(2) as workers:
        yield workers


@pytest.fixture(scope="module")
def three() -> Iterator[Workers]:
    with open_workers(3) as workers:
        yield workers


def text(ranges: Ranges) -> str:
    return json.dumps(ranges.to_json(), sort_keys=True)


def digits(method: str, workers: Workers | None, data: Any = CALIB, **options: Any) -> Ranges:
    model = load(DIGITS)
    return collect(model, open_feeds(data, input_specs(model), samples=19), method, workers=workers, **options)


@pytest.mark.product(cover=("method", "statistics"))
@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("method", METHODS.names())
def test_every_method_byte_for_byte(
    method: str, statistics: bool, two: Workers, request: pytest.FixtureRequest
) -> None:
    alone = text(digits(method, None, statistics=statistics))
    assert text(digits(method, InProcess(), statistics=statistics)) == alone
    assert text(digits(method, two, statistics=statistics)) == alone
    for name in sized(("three",), ()):
        assert text(digits(method, request.getfixturevalue(name), statistics=statistics)) == alone


def test_an_order_that_matters_stays_in_one_process(two: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = digits("pow2-minmse", None, options={"reference": True})
    monkeypatch.setattr(collecting, "observed_parts", None)
    assert text(digits("pow2-minmse", two, options={"reference": True})) == text(alone)


class Reader:
    """A data reader that may be read once, and uses its array again."""

    def __init__(self, rows: Array) -> None:
        self.rows, self.row = iter(rows), np.empty((1, 3), np.float32)

    def get_next(self) -> dict[str, Array] | None:
        row = next(self.rows, None)
        if row is None:
            return None
        self.row[:] = row
        return {"x": self.row}


def every_form(folder: Path, rows: Array) -> dict[str, Any]:
    """``rows`` [samples, 3] in the forms of ``--data``, made anew at each look."""
    files = folder / "files"
    files.mkdir(exist_ok=True)
    for number, row in enumerate(rows):
        np.savez(files / f"{number:02}.npz", x=row[None])
    np.savez(folder / "all.npz", x=rows)
    np.savez_compressed(folder / "small.npz", x=rows)
    (folder / "feeds.py").write_text(
        "import numpy as np\nrandom = np.random.default_rng(7)\n"
        "def feeds():\n    for _ in range(11):\n        yield {'x': np.exp(random.standard_normal((1, 3), np.float32))}\n"
    )
    return {
        "files": str(files),
        "npz": str(folder / "all.npz"),
        "compressed": folder / "small.npz",
        "arrays": {"x": rows},
        "list": [{"x": row[None]} for row in rows],
        "reader": Reader(rows),
        "function": lambda: ({"x": row[None]} for row in rows),
        "module": f"{folder / 'feeds.py'}:feeds",
        "random": "random:9:3",
    }


FORMS = ("files", "npz", "compressed", "arrays", "list", "reader", "function", "module", "random")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data(form: str, two: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqtool.io.feeds.stored_array.HELD", 16)
    net = load(write(tmp_path / "m.onnx", LOG.replace("Log(x)", "Tanh(x)")))
    rows = np.exp(np.random.default_rng(0).standard_normal((13, 3), np.float32))
    found = []
    for number, workers in enumerate((None, two)):
        (folder := tmp_path / str(number)).mkdir()
        feeds = open_feeds(every_form(folder, rows)[form], input_specs(net))
        told: list[tuple[int, int | None]] = []
        found.append(
            collect(net, feeds, "moving-average", workers=workers, progress=lambda *step, told=told: told.append(step))
        )
        assert told[-1] == (found[-1].samples, feeds.count)
        assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert text(found[0]) == text(found[1])
    assert found[0].samples == {"module": 11, "random": 9}.get(form, 13)
    taken = open_feeds(every_form(tmp_path / "1", rows)[form], input_specs(net), samples=5)
    assert collect(net, taken, workers=two).samples == 5


def test_images_are_opened_by_the_workers(two: Workers, tmp_path: Path) -> None:
    images = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for number in range(7):
        images.fromarray(random.integers(0, 256, (6, 6, 3), np.uint8)).save(tmp_path / f"{number}.png")
    net = load(write(tmp_path / "m.onnx", "g (float[2,3,4,4] x) => (float[2,3,4,4] y) { y = Tanh(x) }"))
    found, warned = [], []
    for workers in (None, two):
        feeds = open_feeds(tmp_path, input_specs(net))
        found.append(collect(net, feeds, workers=workers))
        warned.append(list(feeds.warnings))
    assert text(found[0]) == text(found[1])
    assert found[0].samples == 3
    assert warned[0] == warned[1]
    assert len(warned[0]) == 2


def test_warnings_of_the_workers_arrive(two: Workers, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.arange(1, 13, dtype=np.uint8).reshape(4, 3))
    net = load(write(tmp_path / "m.onnx", LOG))
    feeds = open_feeds(tmp_path / "d.npz", input_specs(net))
    collect(net, feeds, workers=two)
    assert feeds.warnings == ["input 'x': uint8 data for a float32 input, taken as 0..255 without scaling"]


@pytest.mark.parametrize("form", ["npz", "list"])
def test_the_first_bad_sample_is_named_alike(form: str, two: Workers, tmp_path: Path) -> None:
    rows = np.ones((20, 3), np.float32)
    rows[9, 1], rows[17, 0] = 0, -1  # log: -inf, nan
    model = write(tmp_path / "m.onnx", LOG)
    data = every_form(tmp_path, rows)[form]
    with refusal(ModelError):
        collect(load(model), open_feeds(data, input_specs(load(model))), workers=two)
    messages = []
    for jobs in (1, 2):
        with refusal(ModelError) as caught:
            api.calibrate(model, data, jobs=jobs)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert messages[0].startswith("l, n, y: NaN or Inf in the values")


def test_a_cache_goes_on_whoever_began(two: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = load(write(tmp_path / "m.onnx", LOG))
    rows = np.exp(np.random.default_rng(0).standard_normal((3 * SAVE_EVERY, 3), np.float32))
    np.savez(tmp_path / "d.npz", x=rows)
    alone = collect(net, open_feeds(tmp_path / "d.npz", input_specs(net)), "percentile")
    observed: list[int] = []

    def stop(done: int, total: int | None) -> None:
        observed.append(done)
        if done > SAVE_EVERY * 3 // 2:
            raise KeyboardInterrupt

    for first, second in ((None, two), (two, None), (two, two)):
        cache = tmp_path / f"{first is two}{second is two}"
        options = {"cache": cache}
        with pytest.raises(KeyboardInterrupt):
            collect(
                net,
                open_feeds(tmp_path / "d.npz", input_specs(net)),
                "percentile",
                workers=first,
                progress=stop,
                **options,
            )
        (part,) = cache.iterdir()
        assert ".part." in part.name
        assert SAVE_EVERY <= json.loads(part.read_text())["samples"] < observed[-1]
        observed.clear()
        found = collect(
            net, open_feeds(tmp_path / "d.npz", input_specs(net)), "percentile", workers=second,
            progress=lambda done, total: observed.append(done), **options,
        )  # fmt: skip
        assert text(found) == text(alone)
        assert observed[0] > SAVE_EVERY
        assert observed[-1] == 3 * SAVE_EVERY
        monkeypatch.setattr("qdqtool.calibrate.collect.observed_parts", None)
        again = collect(net, open_feeds(tmp_path / "d.npz", input_specs(net)), "percentile", workers=two, **options)
        assert text(again) == text(alone)
        monkeypatch.undo()


def test_no_sample_is_an_error(two: Workers, tmp_path: Path) -> None:
    with refusal(UsageError):
        collect(load(write(tmp_path / "m.onnx", LOG)), [], workers=two)


@pytest.mark.product(days=3)
def test_the_commands_write_the_same_bytes(tmp_path: Path) -> None:
    for jobs in "12":
        same = ("--data", CALIB, "--samples", "10", "--jobs", jobs)
        cli("calibrate", DIGITS, *same, "--method", "entropy", "-o", tmp_path / f"r{jobs}")
        cli("quantize", DIGITS, *same, "-o", tmp_path / f"q{jobs}", "--save-ranges", tmp_path / f"s{jobs}")
    for kind in "rqs":
        assert len({(tmp_path / f"{kind}{jobs}").read_bytes() for jobs in "12"}) == 1


@pytest.mark.product(days=3)
def test_a_method_of_ones_own_is_found_by_workers(tmp_path: Path) -> None:
    (tmp_path / "methods").mkdir()
    own = tmp_path / "methods" / "own.py"
    own.write_text(PLUGIN)
    command = ("calibrate", DIGITS, "--data", CALIB, "--samples", "6", "--method", "own", "--path", tmp_path)
    done = subprocess.run(
        command_line(*command, "--jobs", "2", "-o", tmp_path / "2"), env=environment(), check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cli(*command, "-o", tmp_path / "1")
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_another_source_of_a_method_is_refused(two: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "method_sha256", lambda method: "another")
    with refusal(SetupError):
        digits("minmax", two)


@pytest.mark.product(days=3)
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_an_interrupt_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\nfrom pathlib import Path\nimport numpy as np\n"
        "def feeds():\n    for number in range(1000):\n"
        "        (Path(__file__).parent / 'read').write_text(str(number))\n"
        "        time.sleep(0.05)\n        yield {'input': np.ones((1, 1, 8, 8), np.float32)}\n"
    )
    command = command_line(
        "calibrate", DIGITS, "--data", f"{tmp_path / 'slow.py'}:feeds", "--jobs", "2", "-o", tmp_path / "r.json"
    )
    with subprocess.Popen(
        command, env=environment(), stderr=subprocess.PIPE, text=True, preexec_fn=hear_interrupts
    ) as process:
        wait_for(lambda: (tmp_path / "read").exists() and int((tmp_path / "read").read_text() or 0) > 20)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert err.endswith("interrupted; nothing was written\n")
    assert not (tmp_path / "r.json").exists()
