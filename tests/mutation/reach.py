"""A plugin of pytest: which functions of the product each passed test calls, into the folder that ``REACHED`` names.

The functions that a fixture calls are noted for every test that uses it; those behind a cache for the test that came first."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

from tests.architecture.places import ROOT

VARIABLE = "REACHED"
PRODUCT = (str(ROOT / "passes") + os.sep, str(ROOT / "qdqtool") + os.sep)
_codes: set[CodeType] = set()
#: Name of a shared fixture, and where tests see it → the functions that its setups called.
_of_fixture: dict[tuple[str, str], set[CodeType]] = defaultdict(set)
_failed = pytest.StashKey[bool]()


def _note(frame: FrameType, event: str, argument: object) -> None:
    _codes.add(frame.f_code)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _codes.clear()
    threading.settrace(_note)
    sys.settrace(_note)
    try:
        return (yield)  # type: ignore[return-value]
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        if not item.stash.get(_failed, False):
            for (name, place), codes in _of_fixture.items():
                if name in item.fixturenames and item.nodeid.startswith(place):  # type: ignore[attr-defined]
                    _codes.update(codes)
            found = sorted({f"{_short(code)}:{code.co_firstlineno}" for code in _codes if _is_ours(code)})
            with (Path(os.environ[VARIABLE]) / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as rows:
                rows.write(json.dumps([item.nodeid, found]) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Iterator[object]:
    """Note the calls of a fixture that tests share."""
    if fixturedef.scope == "function":
        return (yield)
    before = set(_codes)
    _codes.clear()
    try:
        return (yield)
    finally:
        _of_fixture[fixturedef.argname, fixturedef.baseid] |= _codes
        _codes.update(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if not report.passed:  # type: ignore[attr-defined]
        item.stash[_failed] = True
    return report


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(PRODUCT) and code.co_name != "<module>"


def _short(code: CodeType) -> str:
    return Path(code.co_filename).relative_to(ROOT).as_posix()
