"""`view --overlay` in a real browser: what is clicked is recorded, and replays to the bytes of the command that is printed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest
from qdq_passes.select.selectors import Selector, select

from qdqtool.io.models.load import load
from tests.browser.netron_page import NO_BROWSER, browser_path, patient, screenshots, served, started
from tests.cases.cli_helpers import CALIB, DIGITS, cli
from tests.cases.overlays import clamped, deep

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [pytest.mark.skipif(browser_path() is None, reason=NO_BROWSER), pytest.mark.product(days=6)]

POOL = "/head/pool_output_0"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("overlay") / "int8.onnx"
    cli("quantize", DIGITS, "--preset", "xint8", "--data", CALIB, "-o", path, "-q")
    return path


@contextmanager
def opened(browser: Browser, *given: str | Path, folder: Path | None = None, **more: object) -> Iterator[Page]:
    """The page of ``view`` with ``given``; nothing may be said on the console, and nothing asked of another address."""
    with served(*given, folder=folder) as url:
        context = patient(browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **more}))  # type: ignore[arg-type]
        said: list[str] = []
        try:
            page = context.new_page()
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("request", lambda asked: None if asked.url.startswith(url) else said.append(asked.url))
            page.goto(url)
            page.locator(".one").first.wait_for()
            yield page
            # of a refused edit Chromium itself says that its status was 400
            assert [text for text in said if "status of 400" not in text] == []
        finally:
            context.close()


def find(page: Page, selector: str) -> None:
    page.locator("#find").fill(selector)
    page.locator("#find").press("Enter")
    page.locator("#message", has_text=re.compile("quantized tensors")).wait_for()


def press(page: Page, button: str) -> None:
    before = page.locator("#edits li").count()
    page.locator("#actions button", has_text=re.compile(f"^{re.escape(button)}$")).click()
    page.locator("#edits li").nth(before).wait_for()


def of_chip(tensor: str) -> str:
    return f".chip[data-tensor={json.dumps(tensor)}]"


def exclude_the_head(page: Page) -> None:
    find(page, "/head/*")
    press(page, "Leave float")


def free_a_node(page: Page) -> None:
    page.locator("[data-node='/block1/conv1/conv'] text").first.locator("..").click(position={"x": 20, "y": 12})
    press(page, "Leave float")


def free_a_pair(page: Page) -> None:
    page.locator(of_chip("/stem/relu_output_0")).click()
    press(page, "Leave float")


def move_a_pair(page: Page) -> None:
    page.locator(of_chip("/block1/relu2_output_0")).click()
    press(page, "Move down")


def set_a_scale(page: Page) -> None:
    find(page, f"tensor:{POOL}")
    assert page.locator("#scale").input_value() == "0.0625"
    page.locator("#scale").fill("0.03125")
    press(page, "Set")


def set_a_weight(page: Page) -> None:
    find(page, "tensor:head.fc.weight")
    press(page, "÷2")


def raise_to_16_bit(page: Page) -> None:
    find(page, "op:Gemm")
    page.locator("#type").select_option("int16")
    press(page, "Convert")


def a_pair_for_each_reader(page: Page) -> None:
    page.locator(of_chip("/stem/relu_output_0")).click()
    press(page, "Dedicate")


def weights_per_channel(page: Page) -> None:
    page.locator(of_chip("/stem/bn_output_0_weight")).click()
    page.locator(of_chip("/block1/conv1/bn_output_0_weight")).click(modifiers=["Shift"])
    press(page, "Per channel")


def any_passes(page: Page) -> None:
    page.locator("#passes").fill("remove-qdq{select=op:Concat}")
    press(page, "Run")


def several_and_one_taken_back(page: Page) -> None:
    set_a_scale(page)
    exclude_the_head(page)
    page.locator("#edits button", has_text="Undo the last").click()
    page.locator("#message", has_text="taken back").wait_for()
    raise_to_16_bit(page)
    assert page.locator("#edits li").count() == 2


TASKS: list[Callable[[Page], None]] = [
    exclude_the_head, free_a_node, free_a_pair, move_a_pair, set_a_scale, set_a_weight, raise_to_16_bit, a_pair_for_each_reader,
    weights_per_channel, any_passes, several_and_one_taken_back,
]  # fmt: skip


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_what_is_clicked_replays_to_the_same_bytes(
    browser: Browser, int8: Path, tmp_path: Path, task: Callable[[Page], None]
) -> None:
    record = tmp_path / "edits.toml"
    with opened(browser, int8, "--overlay", "type", "--record", record, "--float", DIGITS) as page:
        task(page)
        edits = [text or "" for text in page.locator("#edits li code").all_text_contents()]
        replay = page.locator("#replay").text_content() or ""
    held(int8, record, edits, replay)


def held(model: Path, record: Path, edits: list[str], replay: str) -> None:
    """The script gives what the page had, and so do the printed commands, beside it; of several these write a history of as many
    entries."""
    made = model.with_name(f"{model.stem}_edited.onnx")
    cli(*shlex.split(replay)[1:], "--overwrite")
    script = tomllib.loads(record.read_text())
    assert sha256(made.read_bytes()).hexdigest() == script["result_sha256"] != script["source_sha256"]
    more = [] if len(edits) == 1 else ["--no-provenance"]
    for edit in edits:
        cli(*shlex.split(edit)[1:], "--overwrite", *more)
    cli(*shlex.split(replay)[1:], "--overwrite", *more)
    last = model.with_name(f"{model.stem}_{len(edits)}.onnx")
    assert last.read_bytes() == made.read_bytes()


def test_what_is_kept_for_quantize_gives_the_bytes_of_its_options(browser: Browser, tmp_path: Path) -> None:
    made, ranges, record = tmp_path / "int8.onnx", tmp_path / "ranges.json", tmp_path / "edits.toml"
    cli("quantize", DIGITS, "--preset", "xint8", "--data", CALIB, "--save-ranges", ranges, "-o", made, "-q")
    with opened(browser, made, "--overlay", "type", "--float", DIGITS, "--ranges", ranges, "--record", record) as page:
        find(page, "op:Gemm")
        press(page, "--exclude")
        page.locator(of_chip("/stem/relu_output_0")).click()
        press(page, "--int16")
        edits = page.locator("#edits li code").all_text_contents()
        anew = page.locator("#anew").text_content() or ""
    cli(*shlex.split(anew)[1:], "-q")
    hand = [word for edit in edits for word in shlex.split(edit)]
    cli("quantize", DIGITS, "--preset", "xint8", "--ranges", ranges, *hand, "-o", tmp_path / "hand.onnx", "-q")
    assert (tmp_path / "int8_quantized.onnx").read_bytes() == (tmp_path / "hand.onnx").read_bytes()
    assert hand == ["--exclude", "/head/fc", "--int16", "tensor:/stem/relu_output_0"]


def test_a_relu_that_was_left_out_comes_back(browser: Browser, tmp_path: Path) -> None:
    model, record = clamped(tmp_path / "clamped.onnx"), tmp_path / "edits.toml"
    with opened(browser, model, "--overlay", "type", "--record", record) as page:
        assert page.locator("[data-node]", has_text="Relu").count() == 0
        find(page, "op:Conv")
        press(page, "Restore Relu")
        page.locator("[data-node]", has_text="Relu").first.wait_for()
        edits = [text or "" for text in page.locator("#edits li code").all_text_contents()]
        replay = page.locator("#replay").text_content() or ""
    held(model, record, edits, replay)


def test_what_cannot_be_is_said_and_not_recorded(browser: Browser, int8: Path, tmp_path: Path) -> None:
    record = tmp_path / "edits.toml"
    with opened(browser, int8, "--overlay", "type", "--record", record) as page:
        find(page, f"tensor:{POOL}")
        page.locator("#actions button", has_text="Move up").click()
        wrong = page.locator("#message.wrong")
        wrong.wait_for()
        assert "Mul does not commute with rounding" in (wrong.text_content() or "")
        page.locator("#find").fill("op:Sofmax")
        page.locator("#find").press("Enter")
        page.locator("#message.wrong", has_text="matches nothing").wait_for()
    assert not record.exists()


def test_colours_cards_and_a_new_measurement(browser: Browser, int8: Path, tmp_path: Path) -> None:
    """The dearest pair is the darkest; its card has a histogram; after an edit the noise is measured again."""
    for name in ("digits.onnx", "test.npz"):
        shutil.copy(Path(DIGITS).with_name(name), int8.parent)
    given = ["--float", "digits.onnx", "--data", "test.npz", "--samples", "4", "--target", "vitis_xint8"]
    with opened(browser, "int8.onnx", "--overlay", "price", *given, folder=int8.parent) as page:
        find(page, f"tensor:{POOL}")
        assert page.locator(f"{of_chip(POOL)} rect").get_attribute("class") == "q6"
        assert page.locator("#picked svg[role=img]").count() >= 1
        page.screenshot(path=screenshots(tmp_path) / "overlay.png")
        before = page.locator(".pane h2").text_content() or ""
        page.locator("#picked .command button", has_text="Make").first.click()
        page.locator("#edits li", has_text="qdqtool qdq set int8.onnx --output int8_1.onnx").wait_for()
        assert "before the edits" in (page.locator(".pane h2").text_content() or "")
        page.locator("#edits button", has_text="Measure again").click()
        page.locator("#message", has_text="SQNR").wait_for()
        after = page.locator(".pane h2").text_content() or ""
        sqnr = [float(re.search(r"SQNR ([\d.]+)", text)[1]) for text in (before, after)]  # type: ignore[index]
        assert sqnr[1] > sqnr[0] + 0.5
        page.locator("#metric").select_option("verdict")  # the DPU does not shift behind a pool
        assert page.locator("[data-node='/head/pool'] rect").first.get_attribute("class") == "box v-fallback"
        page.locator("#edits button", has_text="Undo the last").click()
        page.locator("#message", has_text="taken back").wait_for()
        page.locator("#edits button", has_text="Measure again").click()
        page.locator("[data-node='/head/pool'] rect.v-npu-int").wait_for()


def test_two_models_side_by_side(browser: Browser, int8: Path, tmp_path: Path) -> None:
    """What differs is marked in both, and picking in one goes to the same in the other."""
    other = tmp_path / "other.onnx"
    cli("qdq", "set", int8, "--select", f"tensor:{POOL}", "--scale", "0.03125", "-o", other, "-q")
    with opened(browser, int8, other, "--overlay", "changes") as page:
        assert page.locator(".pane").count() == 2
        page.locator(".pane").first.locator("svg[role=listbox]").focus()
        page.keyboard.press("End")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        find(page, f"tensor:{POOL}")
        for at in (0, 1):
            chip = page.locator(".pane").nth(at).locator(of_chip(POOL))
            assert "differs" in (chip.get_attribute("class") or "").split()
            assert chip.locator("rect").get_attribute("class") == "v-differs"
            assert "picked" in (chip.get_attribute("class") or "").split()
        assert page.locator("#picked h4", has_text="other.onnx").count() >= 1


def test_keys_walk_in_every_pane(browser: Browser, int8: Path, tmp_path: Path) -> None:
    """Enter in the second picks of the second, also where the first is longer and was walked to its end."""
    with opened(browser, int8, deep(tmp_path / "deep.onnx", 6), "--overlay", "changes") as page:
        panes = page.locator("svg[role=listbox]")
        panes.first.focus()
        page.keyboard.press("End")
        panes.last.focus()
        page.keyboard.press("Enter")
        assert page.locator("[data-node='x'].picked").count() == 1
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert page.locator("[data-node='/b0/conv'].picked").count() == 1
        assert page.locator("#actions button").first.is_disabled()
        assert "Not in int8.onnx" in (page.locator("#actions").text_content() or "")


def test_an_input_is_edited_as_its_tensor(browser: Browser, tmp_path: Path) -> None:
    model = deep(tmp_path / "deep.onnx", 6)
    with opened(browser, model, "--overlay", "type") as page:
        page.locator("[data-node='x'] text").first.locator("..").click(position={"x": 20, "y": 12})
        press(page, "Leave float")
        edit = page.locator("#edits li code").text_content() or ""
        assert edit.endswith(" --select tensor:x")
        assert "--record FILE keeps the script" in (page.locator("#edits").text_content() or "")
        # nothing was measured: there is no price to show
        assert "price" not in (page.locator("#metric").text_content() or "") + (
            page.locator("#picked").text_content() or ""
        )


def test_a_scale_times_two_is_of_one_pair(browser: Browser, int8: Path) -> None:
    """The others would get twice the scale of the last."""
    with opened(browser, int8, "--overlay", "type") as page:
        page.locator(of_chip("/stem/relu_output_0")).click()
        page.locator(of_chip("/block1/relu2_output_0")).click(modifiers=["Shift"])
        assert page.locator("#scale").input_value() == ""
        page.locator("#actions button", has_text="×2").click()
        page.locator("#message.wrong", has_text="for one pair with one scale").wait_for()
        page.locator("#scale").fill("2^-3")
        press(page, "Set")
        assert "--scale 0.125" in (page.locator("#edits li code").text_content() or "")


def test_a_second_click_before_the_answer_does_nothing(browser: Browser, int8: Path) -> None:
    with opened(browser, int8, "--overlay", "type") as page:
        set_a_scale(page)
        raise_to_16_bit(page)
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.method))
        page.locator("#edits button", has_text="Undo the last").dblclick()
        page.locator("#message", has_text="taken back").wait_for()
        assert requests == ["POST"]
        assert page.locator("#edits li").count() == 1


def test_what_is_typed_and_where_it_was_typed_stays(browser: Browser, int8: Path) -> None:
    """The buttons are made anew with each pick and edit: the type that was chosen, and the focus of who has keys alone, stay."""
    with opened(browser, int8, "--overlay", "type") as page:
        find(page, "op:Gemm")
        page.locator("#type").select_option("uint8")
        page.locator("#passes").fill("remove-qdq{select=op:Concat}")
        page.locator("#rough").check()
        page.locator(of_chip("/stem/relu_output_0")).click()
        assert page.locator("#type").input_value() == "uint8"
        assert page.locator("#rough").is_checked()
        page.locator("#actions button", has_text=re.compile("^Run$")).focus()
        page.keyboard.press("Enter")
        page.locator("#edits li").wait_for()
        assert page.locator("#actions button:focus").text_content() == "Run"
        assert page.locator("#passes").input_value() == "remove-qdq{select=op:Concat}"


def test_an_answer_is_in_sight_on_a_phone(browser: Browser, int8: Path) -> None:
    with opened(browser, int8, "--overlay", "type", viewport={"width": 390, "height": 700}) as page:
        page.locator("[data-node='/stem/conv'] text").first.locator("..").click(position={"x": 20, "y": 12})
        page.locator("#actions button", has_text="Symmetric").click()
        message = page.locator("#message.wrong", has_text="changes nothing")
        message.wait_for()
        box = message.bounding_box()
        assert box is not None
        assert 0 <= box["y"] < 700
        assert page.locator("body").bounding_box()["width"] == 390  # type: ignore[index]


def test_what_stands_in_a_body_is_not_drawn(browser: Browser, tmp_path: Path) -> None:
    bodies = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (bool c, float[2] x) => (float[2] y)'
        "{ [n] y = If(c) <then_branch = t () => (float[2] a) { [inner] a = Relu(x) },"
        " else_branch = e () => (float[2] b) { b = Neg(x) }> }"
    )
    onnx.save(bodies, tmp_path / "bodies.onnx")
    with opened(browser, tmp_path / "bodies.onnx", "--overlay", "type") as page:
        page.locator("#find").fill("inner")
        page.locator("#find").press("Enter")
        page.locator("#message.wrong", has_text="that is not drawn: it stands in a body").wait_for()
        find(page, "tensor:y")  # float, so it is the node that writes it
        assert page.locator("[data-node='n'].picked").count() == 1


@pytest.mark.parametrize("name", ["a*[0]?", "b&c d", "x:0", "!n", "it's (1.5) -|^$", "</script><b>", "ü→"])
def test_a_node_of_any_name_is_excluded_by_it(browser: Browser, tmp_path: Path, name: str) -> None:
    """What the page prints for `quantize` denotes that node and no other."""
    path = deep(tmp_path / "deep.onnx", 6)
    model = onnx.load(path)
    next(node for node in model.graph.node if node.op_type == "Conv").name = name
    onnx.save(model, path)
    with opened(browser, path, "--overlay", "type") as page:
        find(page, "op:Conv")
        printed = page.locator("#actions code").text_content() or ""
    flag, selector = shlex.split(printed)
    assert flag == "--exclude"
    assert [node.name for node in select(load(str(path)), Selector.of(selector)).nodes] == [name]
