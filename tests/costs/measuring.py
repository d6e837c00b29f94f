"""Counts of commands, each made in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from tests.costs.counting import Modules, Work, child
from tests.costs.working import DEMO

MODEL = str(DEMO / "digits.onnx")
#: What starts → its arguments; no arguments are ``import qdqtool``.
STARTS: dict[str, tuple[str, ...]] = {
    "import qdqtool": (),
    "--version": ("--version",),
    "--help": ("--help",),
    "list passes": ("list", "passes"),
    "list presets": ("list", "presets"),
    "inspect": ("inspect", MODEL),
    "check": ("check", MODEL),
    "qdq list": ("qdq", "list", MODEL),
    "quantize": (
        "quantize",
        MODEL,
        "--preset",
        "xint8",
        "--data",
        str(DEMO / "calib.npz"),
        "-o",
        "modules.onnx",
        "--overwrite",
    ),
}
#: Nodes of the two chains in `make test`; the calls grow linearly, so that longer chains give the same count for each node.
LENGTHS = (50, 100)
#: Nodes of the long chain, and of the short one that it is compared with.
LONG = (1000, 2000)


def modules_of(start: str, folder: Path) -> Modules:
    """Return the modules in a fresh process after ``start``."""
    return Modules(**cast(dict[str, Any], child("importing", *STARTS[start], folder=folder)))


def work(folder: Path) -> tuple[dict[str, Work], dict[str, float]]:
    """Return the work of the commands on the digits network, command → work, and the own calls that one more node of a chain costs,
    command → calls. One process counts all, as its imports cost more than what is counted."""
    digits, chains = cast(Any, child("working", "digits", *map(str, LENGTHS), folder=folder))
    return {name: Work(**row) for name, row in digits.items()}, {
        name: _slope(calls, LENGTHS) for name, calls in chains.items()
    }


def per_node(command: str, lengths: Sequence[int], folder: Path) -> float:
    """Return the own calls that one more node costs, between chains of the two lengths."""
    return _slope(cast(Any, child("working", "chain", command, *map(str, lengths), folder=folder)), lengths)


def _slope(calls: dict[str, int], lengths: Sequence[int]) -> float:
    short, long = lengths
    return (calls[str(long)] - calls[str(short)]) / (long - short)
