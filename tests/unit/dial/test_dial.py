"""The dial: what stays of a product in the part, and that it is the same for everyone who has the seed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import dial


@dataclass(eq=False)
class Fake:
    """What the dial asks of an item."""

    nodeid: str
    params: dict[str, Any]
    marks: dict[str, Any]
    path: Path = Path("test_a.py")
    callspec: Any = field(init=False)

    def __post_init__(self) -> None:
        self.callspec = SimpleNamespace(params=self.params)

    def get_closest_marker(self, name: str) -> Any:
        return self.marks.get(name)


def product(always: str = "", **options: Any) -> list[Any]:
    """Items of 6 passes × 5 models."""
    mark = pytest.mark.product(**options).mark
    return [
        Fake(f"test_a.py::test[{a}-{b}]", {"a": a, "b": b}, {"product": mark, **({"always": mark} if always == f"{a}-{b}" else {})})
        for a, b in itertools.product("uvwxyz", range(5))
    ]  # fmt: skip


def names(items: list[Any]) -> list[str]:
    return sorted(item.nodeid.partition("[")[2][:-1] for item in items)


@pytest.fixture(autouse=True)
def _part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial.Dial, "whole", False)
    monkeypatch.setattr(dial.Dial, "seed", 7)
    monkeypatch.setattr(dial.Dial, "pins", frozenset())
    monkeypatch.setattr(dial.Dial, "named", ())
    monkeypatch.setattr(dial.Dial, "sampled", set())


@pytest.mark.parametrize("seed", range(5))
def test_every_value_is_covered(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial.Dial, "seed", seed)
    kept = dial.drawn(product(cover=("a", "b")))
    assert {item.params["a"] for item in kept} == set("uvwxyz")
    assert {item.params["b"] for item in kept} == set(range(5))
    assert 6 <= len(kept) <= 9
    assert len(dial.drawn(product(cover=(("a", "b"),)))) == 30
    assert len(dial.drawn(product(extra=4))) == 4


def test_a_seed_draws_the_same_and_another_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = (names(dial.drawn(product(extra=8))) for _ in range(2))
    assert first == again
    assert dial.some(100, 5) == dial.some(100, 5)
    monkeypatch.setattr(dial.Dial, "seed", 8)
    assert names(dial.drawn(product(extra=8))) != first


def test_tests_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    days = []
    for seed in range(70, 77):
        monkeypatch.setattr(dial.Dial, "seed", seed)
        days.append(names(dial.drawn(product(days=4, always="u-1"))))
    assert [len(set(day) - {"u-1"}) for day in days] == pytest.approx([7.5] * 7, abs=1)
    assert sorted({name for day in days[:4] for name in day}) == names(product())
    assert days[0] == days[4]
    assert all("u-1" in day for day in days)


def test_tests_that_cover_the_same_draw_the_same() -> None:
    first, second = product(cover=("a",)), product(cover=("a",))
    for item in second:
        item.nodeid = item.nodeid.replace("::test", "::test_other")
    assert names(dial.drawn(first)) == names(dial.drawn(second))


def test_what_is_pinned_marked_or_named_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial.Dial, "pins", frozenset({"test_a::test[v-2]"}))
    monkeypatch.setattr(dial.Dial, "named", ("test_a.py::test[w-3]",))
    kept = dial.drawn(product(always="u-1"))
    assert names(kept) == ["u-1", "v-2", "w-3"]


def test_what_a_mark_cannot_say() -> None:
    with pytest.raises(pytest.UsageError, match="covers c, which is no parameter"):
        dial.drawn(product(cover=("c",)))
    with pytest.raises(pytest.UsageError, match="not \\['extra'\\]"):
        dial.drawn(product(days=3, extra=1))
    with pytest.raises(pytest.UsageError, match="not \\['often'\\]"):
        dial.drawn(product(often=3))


def test_loops_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # this test may be named, or have failed
    assert len(dial.some("abcdef", 2)) == 2
    assert dial.some("ab", 2) == ["a", "b"]
    assert (dial.examples(200), dial.examples(20), dial.examples(5), dial.sized(9, 3)) == (50, 10, 5, 3)
    monkeypatch.setattr(dial.Dial, "whole", True)
    assert dial.some(3) == [0, 1, 2]
    assert (dial.examples(200), dial.sized(9, 3)) == (200, 9)


@pytest.mark.parametrize("name", ["pins", "named"])
def test_a_test_that_is_pinned_or_named_takes_all_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nodeid = "tests/test_a.py::test[x y]"
    monkeypatch.setenv("PYTEST_CURRENT_TEST", f"{nodeid} (call)")
    assert len(dial.some("abc")) == 1
    assert nodeid in dial.Dial.sampled
    assert dial.sized(9, 3) == 3
    monkeypatch.setattr(dial.Dial, name, {"pins": frozenset({"test_a::test[x y]"}), "named": (nodeid,)}[name])
    assert dial.some("abc") == ["a", "b", "c"]
    assert dial.sized(9, 3) == 9


def test_pins_name_tests_with_a_reason() -> None:
    assert all("::" in pin for pin in dial.pinned())
    lines = [line for line in dial.PINNED.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert all("  # " in line for line in lines)


def test_what_is_covered_is_told_apart_by_what_every_process_sees() -> None:
    """Workers draw the same: no address of an object counts."""

    def one() -> None: ...
    def two() -> None: ...

    items = {
        name: Fake(f"test_a.py::test[{name}]", {"a": value}, {}) for name, value in {"one": one, "two": two}.items()
    }
    covered = {name: list(dial._covers(item, ["a"])) for name, item in items.items()}  # type: ignore[arg-type]
    assert covered["one"] != covered["two"]
    assert "0x" not in str(covered)
