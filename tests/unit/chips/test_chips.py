"""Chip files: every number has a source, what is written is read back, and what is wrong is one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from qdq_passes.errors import ModelError, UsageError

from qdqtool.chips.loading import chip_names, find_chip, load_chip
from qdqtool.cost.chip_file import chip_text
from qdqtool.cost.choosing import check_forms
from qdqtool.targets import TARGETS
from tests.bench.chip_fit import PAGE, is_other

ACME = """name = "K2"
vendor = "Acme"
npu = "K"
target = "qnn_htp"
like = "snapdragon_8_elite"

[hardware.int8_tops]
value = 12.5
source = "data sheet of K2, page 3"
confidence = "documented"
date = "2026-01"
"""


@pytest.mark.parametrize("name", chip_names())
def test_a_shipped_chip_is_whole(name: str) -> None:
    chip = load_chip(name)
    assert chip.target in TARGETS.names()
    assert chip.hardware
    assert all(
        one.source and re.fullmatch(r"\d{4}-\d{2}", one.date) and one.value > 0 for one in chip.hardware.values()
    )
    assert chip.profiles or load_chip(chip.like).profiles
    for profile in chip.profiles:
        assert profile.rows > 0
        assert profile.measured
        assert profile.fitted.errors.min() > 0


@pytest.mark.parametrize("name", ["Snapdragon 8 Elite", "8 elite", "Samsung Galaxy S25", "snapdragon_8_elite"])
def test_names_aliases_and_boards_are_the_chip(name: str) -> None:
    assert load_chip(name).file == "snapdragon_8_elite"
    assert find_chip("Snapdragon 9") is None


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    text = chip_text(load_chip("krackan_xdna2"))
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    chip = load_chip(tmp_path / "mine.toml")
    assert chip_text(chip) == text
    assert chip.profiles[0].measured
    assert chip.profiles[0].families


def test_a_chip_of_acme_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "k2.toml").write_text(ACME, encoding="utf-8")
    chip = load_chip(tmp_path / "k2.toml")
    assert chip.hardware["int8_tops"].value == 12.5
    assert chip.profiles == ()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('source = "data sheet of K2, page 3"\n', "", "'source' is missing"),
        ("value = 12.5", "value = -1", "value is -1"),
        ('date = "2026-01"', 'date = "January"', "date is 'January'"),
        ('confidence = "documented"', 'confidence = "sure"', "sure"),
        ("int8_tops", "int9_tops", "int9_tops"),
        ('npu = "K"\n', "", "'npu' is missing"),
    ],
)
def test_a_number_without_a_source_is_refused(old: str, new: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "k2.toml"
    path.write_text(ACME.replace(old, new), encoding="utf-8")
    with pytest.raises(ModelError) as error:
        load_chip(path)
    assert why in str(error.value)
    assert "k2.toml" in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('form = "streaming"', 'form = "dreaming"', "no form is called 'dreaming'"),
        ("coefficients = {weights", "coefficients = {weight", "do not name the same"),
        ("training = {weights = [", "training = {weights = ['low', ", "training.weights"),
        ('measured = [\n    ["', 'measured = [\n    [7, 8, "', "measured is no list of rows"),
        ('measured = [\n    ["', 'measured = [\n    [7, "', "'model' cannot be 7; expected one line of text"),
        ('"decode", 1, 1024', '"decode", "one", 1024', "tokens"),
    ],
)
def test_a_broken_profile_is_one_line(old: str, new: str, why: str, tmp_path: Path) -> None:
    text = chip_text(load_chip("krackan_xdna2"))
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ModelError) as error:
        check_forms(load_chip(path))
    assert why in str(error.value)
    assert "mine" in str(error.value)


def test_no_such_chip_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="snapdragon_8_elite"):
        load_chip("snapdragon_8_elit")


@pytest.mark.parametrize(
    ("before", "after", "other"),
    [
        ("rows = 21\na = 0.1234", "rows = 21\na = 0.1236", False),
        ("c = [50, -7]", "c = [51, -8]", False),
        ("rows = 21", "rows = 22", True),
        ("a = 0.12", "a = 0.13", True),
        ("c = [50]", "c = [55]", True),
        ("float", "w8a8", True),
    ],
)
def test_a_fit_again_may_differ_by_rounding_alone(before: str, after: str, other: bool) -> None:
    assert is_other(before, after) == other


#: Of rows that were left out: the largest median, in percent.
MEDIANS = {
    ("float", "the network in this precision"): 7, ("w8a8", "the network in this precision"): 6,
    ("w8a16", "the network in this precision"): 7, ("float", "the network"): 14, ("w8a8", "the network"): 14,
    ("w8a16", "the network"): 14, ("FastFlowLM", "the model"): 8, ("Genie, AI Hub", "the model"): 15, ("llm.npu", "the model"): 20,
}  # fmt: skip


def test_the_page_says_how_good_profiles_are_and_that_is_enough() -> None:
    """Its tables are what the fit prints (`python -m tests.bench.chip_fit`, which test-all runs)."""
    table = re.search("<!-- fit -->(.*)<!-- /fit -->", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert table is not None
    rows = [
        [cell.strip(" %") for cell in line.split("|")[1:-1]]
        for line in table[1].splitlines()
        if re.search(r"\d % \|", line)
    ]
    assert MEDIANS.keys() <= {(name, left_out) for name, left_out, *_ in rows}
    for name, left_out, _, median, _, inside, width in rows:
        assert float(median) <= MEDIANS.get((name, left_out), 20), name
        assert 70 <= float(inside) <= 92, name
        assert float(width) <= 1.6, name
