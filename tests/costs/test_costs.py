"""Costs are counted: what a command imports, calls, verifies and reads may only fall. `python -m tests.costs` records a new count."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.costs.counting import NOISE, Work, recorded, versions
from tests.costs.measuring import LONG, STARTS, modules_of, per_node, work

RECORDED = recorded()
#: Counts with libraries hold for the versions that they were recorded with.
SAME_VERSIONS = versions() == RECORDED.versions
HOW = "raised; if it has to rise, run `python -m tests.costs` and say why in the commit"


@pytest.fixture(scope="module")
def all_work(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Work], dict[str, float]]:
    return work(tmp_path_factory.mktemp("costs"))


@pytest.fixture(scope="module")
def counted(all_work: tuple[dict[str, Work], dict[str, float]]) -> dict[str, Work]:
    """The work of the commands on the digits network."""
    return all_work[0]


@pytest.fixture(scope="module")
def chains(all_work: tuple[dict[str, Work], dict[str, float]]) -> dict[str, float]:
    """The own calls that one more node of a chain costs each command."""
    return all_work[1]


def test_versions_are_those_of_the_record() -> None:
    """Counts with libraries are compared only then: all modules, all calls, bytes."""
    if not SAME_VERSIONS:
        other = [name for name, version in versions().items() if RECORDED.versions.get(name) != version]
        pytest.skip(f"counts with libraries were recorded with other versions of {', '.join(other)}")
    assert {"python", "numpy", "onnx", "onnxruntime"} <= RECORDED.versions.keys()


@pytest.mark.parametrize("start", STARTS)
def test_modules(start: str, tmp_path: Path) -> None:
    found, noted = modules_of(start, tmp_path), RECORDED.modules[start]
    assert found.own <= noted.own, f"modules of the product: {HOW}"
    assert not set(found.packages) - set(noted.packages), f"imported packages: {HOW}"
    assert not SAME_VERSIONS or found.total <= noted.total, f"modules: {HOW}"


def test_work(counted: dict[str, Work]) -> None:
    """One item: each count of each command."""
    raised = []
    for command, noted in RECORDED.work.items():
        found = counted[command]
        limits = {"own_calls": noted.own_calls, "verifications": noted.verifications, "files": noted.files}
        if SAME_VERSIONS:
            limits |= {"total_calls": round(noted.total_calls * (1 + NOISE)), "bytes": round(noted.bytes * (1 + NOISE))}
        raised += [
            f"{command}: {name} {getattr(found, name):,} > {limit:,}"
            for name, limit in limits.items()
            if getattr(found, name) > limit
        ]
    assert raised == [], HOW


def test_all_counts_are_recorded(counted: dict[str, Work], chains: dict[str, float]) -> None:
    assert set(counted) == set(RECORDED.work)
    assert set(chains) == set(RECORDED.per_node)
    assert set(STARTS) == set(RECORDED.modules)
    assert all(row.own_calls > 100 and row.files > 0 for row in counted.values())
    assert sys.platform != "linux" or all(row.bytes > 0 for row in counted.values())


@pytest.mark.parametrize("command", sorted(RECORDED.per_node))
def test_calls_of_one_more_node(command: str, chains: dict[str, float]) -> None:
    assert chains[command] <= RECORDED.per_node[command], HOW


@pytest.mark.product(days=8)
@pytest.mark.parametrize("command", sorted(set(RECORDED.per_node) - {"deploy"}))
def test_calls_of_one_more_node_of_a_long_chain(command: str, tmp_path: Path) -> None:
    """A term that grows with the square of the length would show here: calls are counted at 1,000 and 2,000 nodes."""
    assert per_node(command, LONG, tmp_path) <= RECORDED.per_node[command] * (1 + NOISE), HOW
