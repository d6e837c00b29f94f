"""The public rows and graphs that chips' profiles are fitted on (tests/data/chips/README.md), and the heads of chip files."""

from __future__ import annotations

import functools
import lzma
import re
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from qdqtool.chips.chip import Chip
from qdqtool.chips.loading import CHIPS, chip_names, load_chip
from qdqtool.cost.counting import counted
from qdqtool.cost.decoder_fit import chip_of
from qdqtool.cost.networks import Amounts, amounts_of
from qdqtool.cost.reading import read_rows
from qdqtool.cost.rows import Row
from qdqtool.io.models.load import load

DATA = Path(__file__).parents[1] / "data" / "chips"


@functools.cache
def public_rows() -> tuple[Row, ...]:
    """All of them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.csv")
        path.write_bytes(lzma.decompress((DATA / "rows.csv.xz").read_bytes()))
        return tuple(read_rows(path))


@functools.cache
def public_networks() -> Mapping[str, Amounts]:
    """What the networks do of which there are graphs, by name; a component's is ``model--component``."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(DATA / "networks.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        return {
            path.stem: amounts_of(counted(load(path, weights=False))[0]) for path in sorted(Path(folder).glob("*.onnx"))
        }


def chips() -> list[Chip]:
    """Every chip there is, in the order of their files' names."""
    return [load_chip(name) for name in chip_names()]


def head_of(chip: Chip) -> str:
    """What stands before the profiles in a chip's file: that is written by hand."""
    text = CHIPS.path(chip.file).read_text(encoding="utf-8")
    return text.partition("\n[[profile]]")[0].rstrip("\n") + "\n"


def with_chips(rows: Sequence[Row], known: Sequence[Chip]) -> list[tuple[Chip, Row]]:
    """Each row with its chip; rows of chips without a file are let be."""
    names = {_key(name): chip for chip in known for name in (chip.name, *chip.aliases, *chip.boards)}
    pairs = [(names.get(_key(row.chip or chip_of(row))), row) for row in rows]
    return [(chip, row) for chip, row in pairs if chip is not None]


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
