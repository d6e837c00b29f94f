"""`qdqtool view` and the page of `report` in a real browser: the tests of tests/browser, none of which may be skipped here."""

from __future__ import annotations

import importlib.util
import sys

from tests.browser.netron_page import BROWSERS, browser_path
from tests.extra.part import Failed, Missing, pytest_summary


def run() -> str:
    """Let the installed browser draw models, click nodes and tensors, and look for their encodings in the page."""
    if browser_path() is None:
        raise Missing(" or ".join(BROWSERS))
    if importlib.util.find_spec("playwright") is None:
        raise Missing("playwright, of the extra `test`")
    summary = pytest_summary(sys.executable, "tests/browser", whole=True)
    if "skipped" in summary:
        raise Failed(f"tests/browser: {summary}")
    return f"Netron shows encodings: {summary}"
