"""A run of the benchmarks: bounds that break once and twice, what is printed when, the file of a run, and the page that is made of it."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.bench import __main__ as bench
from tests.bench import page
from tests.bench.measure import Result, median, progress, run
from tests.bench.results import BenchRun, Measured, machine, read_run


def tries(*values: float, bound: float | None = 1.0) -> Iterator[list[Result]]:
    """What a benchmark with one figure gives, try after try."""
    for value in values:
        yield [Result("figure", value, "s", bound, f"said {value}")]


def measured(*values: float, bound: float | None = 1.0) -> Measured:
    left = tries(*values, bound=bound)
    return bench.measured_twice("fake", lambda name: next(left))


def test_a_bound_that_holds_is_measured_once() -> None:
    found = measured(0.5, 7)
    assert (found.tries, found.holds, found.results[0].value) == (1, True, 0.5)
    assert measured(5, bound=None).holds


def test_a_bound_that_breaks_twice_fails(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(3, 2, 0.5)
    assert (found.tries, found.holds, found.broken) == (2, False, ("figure",))
    assert found.results[0].value == 2
    assert "once more" in capsys.readouterr().out


def test_a_bound_that_breaks_once_holds_and_the_smaller_figure_counts() -> None:
    assert (measured(3, 0.5).holds, measured(3, 0.5).results[0].value) == (True, 0.5)
    first = [Result("a", 3, "s", 1, "first"), Result("b", 0.5, "s", 1, "first"), Result("c", 1, "s", None, "first")]
    second = [Result("a", 0.9, "s", 1, "second"), Result("b", 8, "s", 1, "second"), Result("c", 2, "s", None, "second")]
    left = iter([first, second])
    found = bench.measured_twice("fake", lambda name: next(left))
    assert found.holds
    assert {one.name: one.detail for one in found.results} == {"a": "second", "b": "first", "c": "second"}


def test_one_that_fails_is_told_and_the_others_still_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def measure(name: str) -> Iterable[Result]:
        if name == "bad":
            raise bench.Failed("exit 1 of its process")
        return [Result(name, 1, "s", 2, "")]

    done = bench.run_all(["bad", "good"], measure, tmp_path / "build" / "bench.json")
    assert [one.holds for one in done.benches.values()] == [False, True]
    assert "bad FAILED: exit 1 of its process" in capsys.readouterr().out
    assert read_run(tmp_path / "build" / "bench.json") == done


@pytest.mark.parametrize(("values", "code"), [((0.5,), 0), ((3, 0.5), 0), ((3, 2), 1)])
def test_the_exit_code(values: tuple[float, ...], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tries(*values)
    monkeypatch.setattr(bench, "measure_apart", lambda name, is_quick: next(left))
    assert bench.main(["verifying"]) == code


def test_figures_are_printed_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line before a long measurement, and one for each result before the next begins."""

    def results() -> Iterator[Result]:
        progress("the first")
        assert "… the first" in capsys.readouterr().out
        yield Result("one", 1, "s", 2, "")
        assert "one" in capsys.readouterr().out
        yield Result("two", 2, "s", None, "")

    monkeypatch.setitem(sys.modules, "tests.bench.fake", SimpleNamespace(results=results))
    assert bench.main(["--one", "fake", str(tmp_path / "out.json")]) == 0
    assert [one["name"] for one in json.loads((tmp_path / "out.json").read_text())] == ["one", "two"]


def test_a_process_that_dies_fails() -> None:
    with pytest.raises(bench.Failed, match="exit 1 of its process"):
        bench.measure_apart("no_such_benchmark", is_quick=False)


def test_every_benchmark_gives_results_one_after_the_other() -> None:
    for name in bench.ALL:
        module = importlib.import_module(f"tests.bench.{name}")
        assert isinstance(module.results(), Iterator), name  # nothing is measured before it is asked for
        assert hasattr(module, "quick") == (name in bench.QUICK), name


def test_medians_of_runs() -> None:
    first, second, third = (run([sys.executable, "-c", f"print({n})"]) for n in range(3))
    assert median([first, second, third]).cpu == sorted([first.cpu, second.cpu, third.cpu])[1]
    assert median([first, third]).output == "2\n"


def whole_run(value: float = 0.123456) -> BenchRun:
    """A run of all benchmarks with one figure each."""
    about = {
        "processor": "A processor", "cores": 2, "memory_gib": 7.6, "flags": ["avx2"], "versions": {"python": "3.11.7", "onnx": "1.2"},
    }  # fmt: skip
    benches = {name: Measured((Result(f"{name} | x", value, "×", 2.0, "d"),), 30.0) for name in bench.ALL}
    return BenchRun("2026-01-02", "0123abcd", about, benches)


def test_the_page_has_a_place_for_every_benchmark() -> None:
    blocks = page.blocks_of(page.PAGE.read_text(encoding="utf-8"))
    assert sorted(blocks) == sorted([page.RUN, *bench.ALL])


def test_figures_of_the_page_come_from_the_run_alone() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    found = page.rendered(text, whole_run())
    assert found == page.rendered(text, whole_run()) == page.rendered(found, whole_run())
    for name in bench.ALL:
        assert f"| {name} \\| x | 0.12 × | 2 × | d |" in found
    assert "Run of 2026-01-02, commit `0123abcd`: 14 benchmarks in 7.0 minutes on 2 cores," in found
    other = page.rendered(found, whole_run(1234.5))
    assert "0.12 ×" not in other
    assert other.count("1,234 ×") == len(bench.ALL)


def test_broken_bounds_and_failures_stand_on_the_page() -> None:
    done = whole_run()
    done.benches["npu"] = Measured((), 1.0, error="exit 1 of its process")
    done.benches["growth"] = Measured((Result("g", 3, "", 1.1, ""),), 1.0, tries=2, broken=("g",))
    found = page.rendered(page.PAGE.read_text(encoding="utf-8"), done)
    assert "No figures: exit 1 of its process" in found
    assert "| g | 3.00 | **1.1, broken** |" in found
    assert "Broken bounds or errors: npu, growth." in found


def test_a_part_of_the_benchmarks_is_not_written_into_the_page() -> None:
    done = whole_run()
    del done.benches["npu"]
    with pytest.raises(LookupError, match="on the page but not in the run: npu"):
        page.rendered(page.PAGE.read_text(encoding="utf-8"), done)


def test_the_report_is_made_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, file, text = tmp_path / "page.md", tmp_path / "bench.json", page.PAGE.read_text(encoding="utf-8")
    copy.write_text(text, encoding="utf-8")
    whole_run().write(file)
    monkeypatch.setattr(page, "PAGE", copy)
    assert bench.main(["--report", "--json-out", str(file)]) == 0
    assert copy.read_text(encoding="utf-8") == page.rendered(text, whole_run())


def test_the_machine() -> None:
    found = machine()
    assert found["cores"] >= 1
    assert set(found["versions"]) == {"python", "onnxruntime", "onnx", "onnx-ir", "numpy"}
    assert json.loads(json.dumps(found)) == found
