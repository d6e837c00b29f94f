"""The page of `report` in a real browser: it draws without a complaint, filters, sorts, opens what is clicked, and 1,000 nodes scroll."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qdqtool.page.report_page import report_page
from qdqtool.verbs.work.reporting import Reported
from tests.browser.netron_page import NO_BROWSER, browser_path, patient, screenshots, started
from tests.cases.cli_helpers import CALIB, DIGITS, cli
from tests.cases.records import WICKED, large_record, page_model
from tests.dial import some

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [pytest.mark.skipif(browser_path() is None, reason=NO_BROWSER), pytest.mark.product(days=3)]

POOL = "/head/pool_output_0"


@contextmanager
def opened(browser: Browser, path: Path, hash: str = "", **more: Any) -> Iterator[Page]:
    """The page, from its file, without a network; nothing may be said on the console."""
    context = patient(browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "offline": True, **more}))
    said: list[str] = []
    try:
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith("file:") else said.append(asked.url))
        page.goto(f"{path.as_uri()}{hash}")
        yield page
        assert said == []
    finally:
        context.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits in two forms."""
    folder = tmp_path_factory.mktemp("report")
    a, b = folder / "a.onnx", folder / "b.onnx"
    cli("quantize", DIGITS, "--preset", "xint8", "--data", CALIB, "-o", a, "--save-ranges", folder / "r.json", "-q")
    cli("quantize", DIGITS, "--preset", "a8w8", "--ranges", folder / "r.json", "-o", b, "-q")
    test = Path(DIGITS).with_name("test.npz")
    cli("report", a, b, "--float", DIGITS, "--data", test, "--samples", "4", "--ranges", folder / "r.json", "--target",
        "vitis_xint8", "--chip", "snapdragon_8_elite", "--worst", "2", "-o", folder / "page.html")  # fmt: skip
    return folder / "page.html"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "large.html"
    path.write_text(report_page([page_model(large_record(), "large.onnx")]), encoding="utf-8")
    return path


def first(page: Page, table: str) -> str:
    return page.locator(f"#{table} tbody tr:visible a").first.text_content() or ""


def test_the_culprit_is_what_one_sees_first(browser: Browser, digits: Path) -> None:
    """First in what to try, among the dearest, in the table; its histogram, its life and its edit are a click away."""
    with opened(browser, digits) as page:
        assert page.title() == "a.onnx, b.onnx"
        assert page.locator("#next li a").first.text_content() == POOL
        assert page.locator("#dearest article a").first.text_content() == POOL
        assert first(page, "tensors") == POOL
        page.locator("#next li a").first.click()
        detail = page.locator("#detail")
        assert (
            detail.locator("svg[role=img]")
            .first.get_attribute("aria-label")
            .startswith(f"Histogram of {POOL}: values 0 to")
        )  # type: ignore[union-attr]
        assert "align-pool of /head/pool" in (detail.text_content() or "")
        assert "qdqtool qdq set" in (detail.locator("code").first.text_content() or "")
        assert page.url.endswith("#model=0&tensor=%2Fhead%2Fpool_output_0")
        detail.locator("button", has_text="Copy").first.click()
        detail.locator("[role=status]", has_text="copied").first.wait_for()
        page.locator("#filter").focus()
        page.keyboard.press("Control+V")
        assert page.locator("#filter").input_value() == detail.locator("code").first.text_content()
        detail.locator("button", has_text="Close").click()
        assert detail.text_content() == ""


def test_a_click_on_a_node_shows_its_histograms(browser: Browser, digits: Path) -> None:
    """With the mouse on the overview, and with the keyboard."""
    with opened(browser, digits) as page:
        page.locator("#strip rect[data-name='/stem/conv']").click()
        pictures = page.locator("#detail svg[role=img]")
        assert pictures.count() >= 3  # its weight, its bias, and one that tells their shares or what it writes
        assert "npu-int" in (page.locator("#detail").text_content() or "")
        page.locator("#strip svg").focus()
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        page.wait_for_function("location.hash.includes('node=')")
        name = page.locator("#strip rect").last.get_attribute("data-name")
        assert page.locator("#detail h3").first.text_content() == name
        assert page.locator("#strip svg").get_attribute("aria-activedescendant") == page.locator(
            "#strip rect"
        ).last.get_attribute("id")


def test_the_overview_takes_any_metric(browser: Browser, digits: Path) -> None:
    with opened(browser, digits) as page:
        metrics = page.locator("#metric option").evaluate_all("all => all.map(one => one.value)")
        assert metrics == ["price", "here", "whole", "verdict", "us", "bytes"]
        assert page.locator("#strip rect[data-name='/head/pool']").get_attribute("class") == "q6"
        for metric in metrics[1:]:
            page.locator("#metric").select_option(metric)
            label = page.locator("#strip rect[data-name='/stem/conv']").get_attribute("aria-label") or ""
            assert "not known" not in label, metric
        page.locator("#metric").select_option("verdict")
        assert page.locator("#strip rect[data-name='/stem/conv']").get_attribute("class") == "v-npu-int"


#: What is typed → how many rows stay.
FILTERS = {
    "op:Conv": (375, 250), "op:conv kind:weight": (125, 0), "!op:Conv": (1125, 750), "op:Con": (0, 0), "op:C*": (375, 250),
    "verdict:fallback": (137, 91), "power of two": (0, 91), "layers.7 & op:Add": (10, 5), "tensor:*.999_output_0": (1, 1),
    "cause:shared": (1, 1), "[": (0, 0), "op:": (0, 0), "op:(": (0, 0), '"onerror=alert(1)"': (2, 1), "pass:refine-*": (1500, 1000),
    "": (1500, 1000),
}  # fmt: skip


def test_filters(browser: Browser, large: Path) -> None:
    with opened(browser, large) as page:
        page.keyboard.press("/")
        for text, (tensors, nodes) in some(list(FILTERS.items()), 5):
            page.keyboard.type(text)
            assert page.locator("#found").text_content() == f"{tensors} tensors, {nodes} nodes", text
            shown = "id => [...document.querySelectorAll(`#${id} tbody tr`)].filter(one => one.offsetParent).length"
            assert (page.evaluate(shown, "tensors"), page.evaluate(shown, "nodes")) == (tensors, nodes), text
            page.keyboard.press("Escape")
            assert page.locator("#found").text_content() == "1500 tensors, 1000 nodes"


def test_tables_sort_by_any_column(browser: Browser, large: Path) -> None:
    with opened(browser, large) as page:
        for title, column in (("price", 0), ("SQNR, dB", 6)):
            button = page.locator("#tensors th button", has_text=title)
            for way in ("descending", "ascending"):
                head = page.locator(f"#tensors th:nth-child({column + 1})")
                if head.get_attribute("aria-sort") != way:
                    button.click()
                assert head.get_attribute("aria-sort") == way
                cells = page.locator(f"#tensors tbody td:nth-child({column + 1})").all_text_contents()
                numbers = [float(cell.split()[0]) for cell in cells]
                assert numbers == sorted(numbers, reverse=way == "descending")
        page.locator("#nodes th button", has_text="operator").click()
        page.locator("#nodes th button", has_text="operator").click()
        assert page.locator("#nodes tbody td:nth-child(3)").first.text_content() == "Add"


def test_links_land(browser: Browser, digits: Path) -> None:
    """Those of the page, one that was kept, and one of what is not there."""
    with opened(browser, digits) as page:
        for link in page.locator("nav a:visible").all():
            link.click()
            top = page.evaluate("document.querySelector(location.hash).getBoundingClientRect().top")
            assert -1 <= top < 900
        names = page.locator("#tensors a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
        assert len(names) == len(set(names)) == 27
    with opened(browser, digits, "#model=1&node=%2Fhead%2Ffc") as page:
        assert page.locator("#detail h3").first.text_content() == "/head/fc"
        assert page.locator("#models input").nth(1).is_checked()
    with opened(browser, digits, "#model=7&tensor=nowhere") as page:
        assert "has no nowhere" in (page.locator("#detail").text_content() or "")


def test_two_models_side_by_side(browser: Browser, digits: Path) -> None:
    """What differs is marked with a colour and a sign; the other model is a click away."""
    with opened(browser, digits) as page:
        row = page.locator("#beside tbody tr", has=page.locator("a", has_text=POOL))
        texts = row.locator("td").all_text_contents()
        assert "≠ int8, scale 2^-4, zero point 0" in texts
        assert "≠ npu-int" in texts
        assert row.locator("td.differs").count() >= 4
        assert page.locator("#summary td.differs").count() >= 4
        assert not re.search("NaN|undefined|Infinity", page.locator("body").inner_text())
        page.locator("#models label", has_text="b.onnx").click()
        page.wait_for_function("location.hash.includes('model=1')")
        page.locator("#tensors a", has_text=POOL).click()
        assert "scale 2^-4" not in (page.locator("#detail dl").first.text_content() or "")


def test_a_thousand_nodes_open_and_scroll(browser: Browser, large: Path) -> None:
    """And names that look like HTML stay text."""
    with opened(browser, large) as page:
        assert page.title() == "large.onnx"
        assert page.locator("#strip rect").count() == 1000
        assert page.locator("img").count() == 0
        page.locator("#tensors tbody tr a").last.scroll_into_view_if_needed()
        assert page.locator("#tensors tbody tr a").last.is_visible()
        page.mouse.wheel(0, 100_000)
        page.evaluate("name => { location.hash = new URLSearchParams({ model: 0, node: name }) }", WICKED)
        page.wait_for_function("document.querySelector('#detail h3')")
        assert page.locator("#detail h3").first.text_content() == WICKED
        page.locator("#tensors a").first.focus()
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.getAttribute('href')") == page.locator("#tensors a").nth(
            1
        ).get_attribute("href")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("wide", [360, 1280])
def test_it_fits_any_screen(browser: Browser, digits: Path, scheme: Any, wide: int) -> None:
    """Nothing is wider than the screen; text stands out from what is behind it."""
    size = {"viewport": {"width": wide, "height": 800}, "color_scheme": scheme}
    with opened(browser, digits, "#model=0&tensor=%2Fhead%2Fpool_output_0", **size) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= wide
        ink, behind = page.evaluate("(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))")
        light, dark = sorted((luminance(ink), luminance(behind)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 7
        assert (luminance(behind) < 0.5) == (scheme == "dark")


def test_a_notebook_shows_it_in_a_frame(browser: Browser, digits: Path, tmp_path: Path) -> None:
    found = Reported(models=(), explained=(), page=digits.read_text(encoding="utf-8"), written="")
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><body>{found._repr_html_()}", encoding="utf-8")
    with opened(browser, notebook) as page:
        frame = page.frame_locator("iframe")
        frame.locator("#next li a").first.click()
        assert frame.locator("#detail h3").first.text_content() == POOL


@pytest.mark.parametrize(
    ("name", "scheme", "size", "hash"),
    [
        ("light", "light", (1000, 680), "#model=0&tensor=%2Fhead%2Fpool_output_0"),
        ("dark", "dark", (1000, 680), "#model=0&node=%2Fhead%2Fpool"),
        ("phone", "light", (390, 740), "#model=0&tensor=%2Fhead%2Fpool_output_0"),
    ],
)
def test_pictures_of_the_docs(
    browser: Browser, digits: Path, tmp_path: Path, name: str, scheme: Any, size: tuple[int, int], hash: str
) -> None:
    picture = screenshots(tmp_path) / f"report_{name}.png"
    viewport = {"width": size[0], "height": size[1]}
    with opened(browser, digits, hash, viewport=viewport, color_scheme=scheme) as page:
        page.locator("#detail h3").first.wait_for()
        if name == "dark":
            page.evaluate("document.querySelector('#overview').scrollIntoView()")
        picture.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=picture)
    assert 10_000 < picture.stat().st_size <= 150_000


def luminance(colour: str) -> float:
    """Of ``rgb(r, g, b)``, as WCAG has it."""
    parts = [int(part) / 255 for part in re.findall("[0-9]+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
