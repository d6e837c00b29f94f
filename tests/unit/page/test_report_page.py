"""The page of `report`: what is put into it stays data, it asks for nothing, and it is small."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from qdqtool.page.report_data import LEVELS, PageModel, levels, page_data, scope_rows
from qdqtool.page.report_page import embedded, report_page
from qdqtool.record.record import Histogram, NodeRecord, Record, TensorRecord, Whole, merged
from tests.cases.records import WICKED, large_record, page_model

MEGABYTE = 1_000_000


class Scripts(HTMLParser):
    """The elements of a page, and what its scripts and styles hold."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.held: list[tuple[str, str]] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] in ("script", "style") and data.strip():
            self.held.append((self.tags[-1], data))


@pytest.fixture(scope="module")
def page() -> str:
    return report_page(
        [page_model(large_record(), WICKED), page_model(large_record(nodes=20, tensors=30, seed=1), "b")]
    )


def test_names_cannot_break_out(page: str) -> None:
    """A label, names of nodes and tensors with ``</script>`` in them: there are the two scripts of the page, and no element more."""
    plain = report_page([page_model(large_record(nodes=3, tensors=3), "a")])
    assert Scripts(page).tags == Scripts(plain).tags
    assert Scripts(page).tags.count("script") == 2
    data = json.loads(next(text for tag, text in Scripts(page).held if tag == "script"))
    assert data["models"][0]["nodes"][1]["n"] == WICKED
    assert data["models"][0]["label"] == WICKED


def test_holes_in_names_stay_as_they_are() -> None:
    model = PageModel(label="@DATA@ @SCRIPT@", record=Record(nodes=(NodeRecord(name="@SCRIPT@"),)))
    found = Scripts(report_page([model]))
    assert json.loads(found.held[1][1])["models"][0]["nodes"][0]["n"] == "@SCRIPT@"


def test_nothing_else_runs_or_loads(page: str) -> None:
    """The policy names the style and the script of the page alone, and no element has an address but a section of the page."""
    held = [(tag, text) for tag, text in Scripts(page).held if not text.startswith("{")]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; ")
    for tag, text in held:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]
    assert not [
        value
        for name, value in Scripts(page).attributes
        if name in ("src", "href") and not (value or "").startswith("#")
    ]
    script = dict(held)["script"]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|XMLHttp", script)


@pytest.mark.parametrize("name", ["</script>", "<!--<script>", "]]>&", "\u2028", "\ud800"])
def test_embedded_json_is_the_same_json(name: str) -> None:
    text = embedded({name: [name]})
    assert not re.search("[<>&]|[^ -~]", text)
    assert json.loads(text) == {name: [name]}


def test_a_large_page_is_small() -> None:
    made = report_page([page_model(large_record(), "a")])
    assert len(made.encode()) <= 2 * MEGABYTE
    assert made == report_page([page_model(large_record(), "a")])


def test_what_is_not_known_is_left_out() -> None:
    """Infinities and empty records too."""
    nodes = (NodeRecord(name="n", here_db=float("inf")),)
    tensors = (TensorRecord(name="t", kind="activation", low=float("-inf"), high=1.0),)
    data = page_data(
        [PageModel(label="a", record=Record(nodes=nodes, tensors=tensors)), PageModel(label="b", record=Record())]
    )
    assert data["models"][0]["nodes"] == [{"n": "n"}]
    assert data["models"][0]["tensors"][0]["v"] == [None, 1.0]
    assert data["models"][1]["rows"] == []
    embedded(data)


def test_levels_show_a_single_value() -> None:
    found = levels(Histogram(low=0.0, high=1.0, counts=(0, 1, 1_000_000, 250_000)))
    assert [LEVELS.index(letter) for letter in found] == [0, 1, 63, 32]
    assert levels(Histogram(low=0.0, high=1.0, counts=(0, 0))) == "00"


def test_rows_follow_scopes_as_deep_as_there_is_room() -> None:
    assert scope_rows(["/a/x/c", "/a/x/d", "/a/y/c", "/b/c", "e"]) == [
        ["a/x", 0, 2],
        ["a/y", 2, 3],
        ["b", 3, 4],
        ["", 4, 5],
    ]
    many = scope_rows([f"/block{at // 50}/part{at}/conv" for at in range(1000)])
    assert len(many) == 20
    assert many[3] == ["block3", 150, 200]
    assert scope_rows([f"/layer{at}/conv" for at in range(1000)]) == [["", 0, 1000]]


def test_the_summary_says_what_each_model_knows() -> None:
    small = page_model(dataclasses.replace(large_record(nodes=3, tensors=3), whole=Whole(file_bytes=1_500_000)), "a")
    rows = dict(page_data([small, page_model(large_record(nodes=22, tensors=3), "b")])["summary"])
    assert rows["size"] == ["1.5 MB", "25 MB"]
    assert rows["operators on vitis_xint8"] == ["", "90.91 % (20 of 22)"]
    assert rows["one run on Snapdragon 8 Elite with qnn_dlc"][1] == "1.5 ms (80 % of measurements between 1.2 and 2)"


def test_placement_and_passes_are_summed_up() -> None:
    data = page_data([page_model(large_record(nodes=22, tensors=22), "a")])["models"][0]
    assert [(row[0], row[2], row[4]) for row in data["placement"]] == [
        ("npu-int", "", 20),
        ("fallback", "scale is no power of two", 2),
    ]
    assert [row[:3] for row in data["passes"]] == [["annotate-encodings", 22, 0], ["refine-positions", 0, 22]]
    assert data["passes"][1][3] == pytest.approx(1)


def test_records_of_one_model_become_one() -> None:
    """What a later one does not know stays; of the model as a whole too."""
    first = Record(nodes=(NodeRecord(name="n", op="Conv", bytes=8),), whole=Whole(file_bytes=5, us=1.0))
    later = Record(nodes=(NodeRecord(name="n", verdict="cpu"), NodeRecord(name="m")), whole=Whole(target="t", us=2.0))
    found = merged([first, later])
    assert found.nodes == (NodeRecord(name="n", op="Conv", bytes=8, verdict="cpu"), NodeRecord(name="m"))
    assert found.whole == Whole(file_bytes=5, target="t", us=2.0)
    assert found.to_json()["whole"] == {"file_bytes": 5, "target": "t", "us": 2.0}


def test_a_record_that_was_a_file_makes_the_same_page() -> None:
    record = large_record(nodes=40, tensors=60)
    read = Record.from_json(json.loads(json.dumps(record.to_json())))
    assert report_page([page_model(read, "one")]) == report_page([page_model(record, "one")])
