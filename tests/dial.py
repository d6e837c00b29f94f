"""How much of the tests that are products runs: a part, drawn by the seed of the day (UTC), or the whole (``--whole``).

A test that is a product (every pass × every odd model, operators × arithmetics × widths) says so by a mark::

    @pytest.mark.product(cover=("name", ("operator", "dtype")), extra=3)

In the part there stays of it, per function, an item for every value of each parameter that ``cover`` names (a tuple of names: for
every combination of their values), ``extra`` further ones, those with the mark ``always``, those of ``pinned.txt``, which failed
once, and those that failed on this machine in the last seven days (`tests.recent_failures`). The seed draws the rest, and seeds
hypothesis. With ``product(days=3)`` the tests of a file take turns: each is in the part one day in three. Loops and samples inside of a
test are drawn by `some`, its sizes are said by `sized`, and hypothesis is asked for `examples`. For seven days, a test that failed
takes all its samples and whole sizes; hypothesis draws for it with the seed that it failed with, unless ``--hypothesis-seed`` gives one.
An item that the command line names, as ``file.py::test[case]``, is never left out."""

from __future__ import annotations

import os
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, TypeVar

import hypothesis.core
import pytest
from hypothesis import HealthCheck, settings

from tests.recent_failures import SAMPLED, pin_name, recently_failed, today

T = TypeVar("T")

PINNED = Path(__file__).with_name("pinned.txt")
#: In the part hypothesis makes one in so many examples, and not less than FEWEST.
THINNED, FEWEST = 4, 10

# A busy machine takes its time, and one with CI in its environment draws by the seed too (by default it draws the same every day).
settings.register_profile("seeded", deadline=None, derandomize=False, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("seeded")

_COUNTS = pytest.StashKey[tuple[int, int]]()


class Dial:
    """What the command line says.

    Attributes:
        whole: everything runs.
        seed: draws the part.
        pins: items that are always in the part, by their names.
        seeds: what hypothesis drew with when an item failed, by its name.
        named: beginnings of node ids on the command line.
        sampled: node ids of tests that asked `some` or `sized`.
    """

    whole = False
    seed = 1
    pins: frozenset[str] = frozenset()
    seeds: ClassVar[Mapping[str, int | str]] = {}
    named: tuple[str, ...] = ()
    sampled: ClassVar[set[str]] = set()


def some(values: Sequence[T] | int, count: int = 1) -> list[T]:
    """``count`` of ``values`` (a number: of so many from 0), drawn for the test that asks; all of them in the whole, and for a test
    that is pinned or named."""
    every: list[T] = list(range(values)) if isinstance(values, int) else list(values)  # type: ignore[arg-type]
    if count >= len(every):
        return every
    test = _sampling()
    if _is_whole(test):
        return every
    kept = set(random.Random(f"{Dial.seed} {test}").sample(range(len(every)), count))
    return [value for at, value in enumerate(every) if at in kept]


def sized(whole: T, part: T) -> T:
    """How much a test looks at: what ``whole`` says, or, in the part, ``part``; asked in a test that is pinned or named, ``whole``."""
    return whole if _is_whole(_sampling()) else part


def examples(count: int) -> int:
    """How many examples hypothesis makes of ``count``."""
    return count if Dial.whole else min(count, max(count // THINNED, FEWEST))


def _sampling() -> str:
    """Note that the running test looks at a part, and return its node id; "" while a module is imported."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    Dial.sampled.add(test)
    return test


def _is_whole(test: str) -> bool:
    return Dial.whole or pin_name(test) in Dial.pins or _is_named(test)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dial", "how much of the tests that are products runs")
    group.addoption("--whole", action="store_true", help="run all of every test that is a product")
    group.addoption("--dial-seed", type=int, metavar="N", help="draw the part by N in place of the UTC date")


def pytest_configure(config: pytest.Config) -> None:
    """Fix the seed once, in the controller, so that a run past midnight stays on one seed. Comes before hypothesis reads its seed."""
    if config.option.dial_seed is None:
        config.option.dial_seed = getattr(config, "workerinput", {}).get("dial_seed", today())
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(config.option.dial_seed)
    Dial.whole, Dial.seed = config.option.whole, config.option.dial_seed
    failures = recently_failed(config)
    Dial.pins = pinned() | failures.keys()
    Dial.seeds = {name: failed.seed for name, failed in failures.items()}
    Dial.named = tuple(arg.replace("\\", "/") for arg in config.args if "::" in arg)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the seed to a worker of pytest-xdist."""
    node.workerinput["dial_seed"] = Dial.seed


def pytest_report_header() -> str:
    if Dial.whole:
        return "dial: the whole"
    return f"dial: the part drawn by --dial-seed {Dial.seed}; --whole runs all"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the part has not drawn; what marks and ``-k`` leave out is gone by now."""
    if Dial.whole:
        return
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if (mark := item.get_closest_marker("product")) is not None:
            groups[item.nodeid.partition("::" if "days" in mark.kwargs else "[")[0]].append(item)
    kept = {item for group in groups.values() for item in drawn(group)}
    out = [item for group in groups.values() for item in group if item not in kept]
    left = set(out)
    config.stash[_COUNTS] = (len(items) - len(out), len(items))
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=out)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells how much it left out; all leave out the same."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None and _COUNTS in session.config.stash:
        output["dial"] = session.config.stash[_COUNTS]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """What a worker of pytest-xdist told is told by the whole run."""
    counts = getattr(node, "workeroutput", {}).get("dial")
    if counts:
        node.config.stash[_COUNTS] = tuple(counts)  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = config.stash.get(_COUNTS, None)
    if counts is not None:
        kept, total = counts
        terminalreporter.write_line(f"part: {kept:,} of {total:,} items, --dial-seed {Dial.seed}; --whole for all")


def drawn(group: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The items of one test, or with ``days`` of one file, that stay in the part."""
    mark = group[0].get_closest_marker("product")
    assert mark is not None
    allowed = {"days"} if "days" in mark.kwargs else {"cover", "extra"}
    unknown = set(mark.kwargs) - allowed
    if mark.args or unknown:
        raise pytest.UsageError(
            f"{group[0].nodeid}: product(cover=(...), extra=0) or product(days=N), not {[*mark.args, *unknown]}"
        )
    sure = [item for item in group if _is_sure(item)]
    if "days" in mark.kwargs:
        turns = sorted(group, key=lambda item: (random.Random(item.nodeid).random(), item.nodeid))
        today = [item for at, item in enumerate(turns) if (at + Dial.seed) % mark.kwargs["days"] == 0]
        return list(dict.fromkeys([*sure, *today]))
    wanted = {item: set(_covers(item, mark.kwargs.get("cover", ()))) for item in group}
    shuffled = sorted(set(group) - set(sure), key=lambda item: _order(item, wanted[item]))
    covered = {value for item in sure for value in wanted[item]}
    chosen: list[pytest.Item] = []
    for new in range(max(map(len, wanted.values())), 0, -1):
        for item in shuffled:
            if len(wanted[item] - covered) >= new:
                covered |= wanted[item]
                chosen.append(item)
    rest = [item for item in shuffled if item not in set(chosen)]
    return [*sure, *chosen, *rest[: mark.kwargs.get("extra", 0)]]


def _order(item: pytest.Item, covers: set[tuple[object, ...]]) -> tuple[float, float]:
    """Where the seed puts an item: tests of a file that cover the same draw the same, and share what they have made of it."""
    case = item.nodeid.partition("[")[2]
    first, second = (
        random.Random(f"{Dial.seed} {item.path.stem} {text}") for text in (sorted(map(repr, covers)), case)
    )
    return first.random(), second.random()


def _is_sure(item: pytest.Item) -> bool:
    return item.get_closest_marker("always") is not None or _is_whole(item.nodeid)


def _is_named(nodeid: str) -> bool:
    return nodeid.startswith(Dial.named) if Dial.named else False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Let hypothesis draw with the seed that a recent failure had: by a seed of its own it replays no stored example."""
    usual = hypothesis.core.global_force_seed
    hypothesis.core.global_force_seed = Dial.seeds.get(pin_name(item.nodeid), usual)
    try:
        return (yield)
    finally:
        hypothesis.core.global_force_seed = usual


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Say of a test that it took a part of its values, which `tests.recent_failures` reads."""
    report = yield
    if item.nodeid in Dial.sampled:
        report.user_properties.append((SAMPLED, True))  # type: ignore[attr-defined]
    return report


def _covers(item: pytest.Item, cover: Iterable[str | tuple[str, ...]]) -> Iterator[tuple[object, ...]]:
    """What an item covers: names of parameters with their values, told apart by what they print as."""
    params = item.callspec.params  # type: ignore[attr-defined]
    for names in cover:
        names = (names,) if isinstance(names, str) else names
        if missing := set(names) - set(params):
            raise pytest.UsageError(f"{item.nodeid}: covers {', '.join(sorted(missing))}, which is no parameter")
        yield (names, *(_plain(params[name]) for name in names))


def _plain(value: object) -> object:
    """The same in every process: what a value prints as has addresses, of which a function's line is the better sign."""
    if isinstance(value, str | int | float | bool | type(None)):
        return value
    line = value.__code__.co_firstlineno if isinstance(value, FunctionType) else ""
    return re.sub(r" at 0x[0-9a-f]+", f" {line}", repr(value))


def pinned() -> frozenset[str]:
    """The names in ``pinned.txt``: ``<stem of the file>::<test>[<case>]  # why``, one a line."""
    lines = (line.partition("  #")[0].strip() for line in PINNED.read_text(encoding="utf-8").splitlines())
    return frozenset(line for line in lines if line and not line.startswith("#"))
