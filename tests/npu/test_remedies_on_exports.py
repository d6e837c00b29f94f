"""What is advised for the exports is carried out: the commands run, and the operator that they are about is no longer on the CPU."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from qdq_passes.errors import QdqError

import qdqtool
from qdqtool.npu.report import Analysis
from tests.cases.cli_helpers import cli
from tests.cases.suggested import commands, without_files
from tests.exports import exports

#: Words of a suggestion whose commands begin with the float model.
OF_FLOATS = "on the float model"


def ways(suggestion: str) -> list[str]:
    """The ways out that ``suggestion`` names a command for; one that hangs on what a user knows is none (a constant condition)."""
    parts = (
        suggestion.replace(" (not tried)", "")
        .replace("; tried without success", "; or tried without success")
        .split("; or ")
    )
    return [part for part in parts if commands(part) and not part.startswith("where ")]


def carried_out(way: str, start: dict[str, Path], data: Path, folder: Path) -> Path:
    """The model that the commands of ``way`` end with."""
    model = start["float" if OF_FLOATS in way or "qdqtool quantize" in way else "quantized"]
    for number, command in enumerate(commands(way)):
        words = shlex.split(command)[1:]
        if words[0] == "calibrate":  # where the ranges come from
            continue
        if "R.json" in words and not start["ranges"].exists():
            cli("calibrate", start["float"], "--data", data, "-o", start["ranges"])
        words = [str(start["ranges"]) if word == "R.json" else word for word in words]
        at, output = (2 if words[0] == "qdq" else 1), folder / f"step{number}.onnx"
        more = ["--data", data, "--samples", "2"] if words[0] == "quantize" else []
        options = [word for word in without_files(words, at) if word not in ("--data", "DATA")]
        cli(*words[:at], model, "-o", output, *options, *more)
        model = output
    return model


def left(found: Analysis, node: str) -> bool:
    return any(each.name == node and each.is_compute and not each.is_npu for each in found.nodes)


@pytest.mark.product(cover=("target",))
@pytest.mark.parametrize(("name", "target"), [(n, t) for n in exports.names() for t in ("qnn_htp", "vitis_xint8")])
def test_every_remedy_works(name: str, target: str, tmp_path: Path) -> None:
    model, data = exports.write(name, tmp_path, 2)
    start = {"float": model, "quantized": tmp_path / "q.onnx", "ranges": tmp_path / "R.json"}
    try:
        qdqtool.quantize(model, start["quantized"], target=target, data=str(data))
    except QdqError as error:
        pytest.skip(f"is not quantized: {error.message}")
    found = qdqtool.analyze(start["quantized"], target=target)
    for number, refusal in enumerate(found.refusals):
        for other, way in enumerate(ways(refusal.suggestion)):
            folder = tmp_path / f"{number}_{other}"
            folder.mkdir()
            after = qdqtool.analyze(carried_out(way, start, data, folder), target=target, trials=False)
            assert not left(after, refusal.nodes[0]), f"{refusal.who}: {way}"
