"""The work of a page for a large model: elements, requests, and blocks of script that run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qdqtool.page.report_page import report_page
from tests.browser.netron_page import (
    NO_BROWSER,
    browser_path,
    count_elements,
    count_script_blocks,
    patient,
    served,
    started,
)
from tests.cases.overlays import deep
from tests.cases.records import large_record, page_model

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [pytest.mark.skipif(browser_path() is None, reason=NO_BROWSER), pytest.mark.product(days=2)]

#: Blocks of script that draw a graph of 5,000 operators at most; a third more than what they take.
BLOCKS = 1_250_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as chromium:
        yield chromium


def test_5000_operators_open_with_bounded_work(browser: Browser, tmp_path: Path) -> None:
    """With their pairs 15,000 nodes, in one request. The end can be reached, and every operator that is in sight is drawn."""
    with served(deep(tmp_path / "deep.onnx", 5000), "--overlay", "type") as url:
        context = patient(browser.new_context(viewport={"width": 1280, "height": 900}))
        page, requests = context.new_page(), []
        page.on("request", lambda request: requests.append(request.url))
        count = count_script_blocks(page)
        page.goto(url)
        page.locator(".one").first.wait_for()
        page.locator(".pane canvas[height]").wait_for()
        assert count() < BLOCKS
        assert len(requests) == 1
        assert count_elements(page) < 2000
        page.locator("svg[role=listbox]").focus()
        page.keyboard.press("End")
        last = page.locator("#m0-n5001")
        last.wait_for()
        assert last.get_attribute("data-node") == "y"
        assert page.locator(".one").count() < 1000
        context.close()


def test_the_work_of_a_page_is_linear(browser: Browser, tmp_path: Path) -> None:
    """A node and its tensors add 40 elements and 800 blocks of script at most, however many there are."""
    elements, blocks = [], []
    for nodes in (100, 400, 700):
        path = tmp_path / f"{nodes}.html"
        path.write_text(
            report_page([page_model(large_record(nodes=nodes, tensors=nodes * 3 // 2), "large.onnx")]), "utf-8"
        )
        context = patient(browser.new_context(viewport={"width": 1280, "height": 900}, offline=True))
        page = context.new_page()
        count = count_script_blocks(page)
        page.goto(path.as_uri())
        blocks.append(count())
        elements.append(count_elements(page))
        context.close()
    for counts, most in ((elements, 40), (blocks, 800)):
        first, second = ((b - a) / 300 for a, b in itertools.pairwise(counts))
        assert 1 < first < most
        assert second == pytest.approx(first, rel=0.1)
