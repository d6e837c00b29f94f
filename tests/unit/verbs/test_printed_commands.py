"""Every command that `explain` and `report` print runs as it stands, one after another, and wins what stands beside it; prices of
many kinds of nets and presets add up to the noise that `compare` measures."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from qdqtool.verbs.work.mends import Outputs
from tests.cases.cli_helpers import CALIB, DIGITS, SAMPLES, cli
from tests.cases.small_nets import small_net

#: Each takes as long as ten of the others.
LARGE = [("detector", "8a8w"), ("detector", "a16w8"), ("mobilenet_block", "qnn-a8w8"), ("vit_block", "a16w8")]
#: Net → presets: symmetric powers of two with int8 biases, a zero point and scales along channels, 16 bits, and what stands between.
CASES = [
    ("digits", "xint8"), ("digits", "a8w8"), *(pytest.param(*case, marks=pytest.mark.extra) for case in LARGE), ("if_branch", "8a8w"), ("local_function", "xint8"), ("external_data", "u8w8"),
    ("int4_weights", "xint8"), ("unet", "vint8"), ("unet", "qnn-a16w8"), ("gated", "xint8"), ("gated", "16a8w"),
    ("attention", "u8w8"), ("attention", "xint8"), ("recurrent", "8a8w"), ("recurrent", "vint8"), ("quoted", "8a8w"),
    ("quoted", "xint8"),
]  # fmt: skip
#: A line of the table of edits: what it wins, and the command.
EDIT = re.compile(r"^([+-]\d+\.\d\d) +(qdqtool .*)$", re.MULTILINE)
COUNT, MORE = ("--samples", "2"), ("--samples", "16")


@cache
def quantized_digits(preset: str) -> Path:
    """A folder with the digits network, int8.onnx and ranges.json: made once, and copied by who needs it."""
    folder = Path(mkdtemp())
    with quantized(folder, "digits", preset, anew=True):
        return folder


@contextmanager
def quantized(folder: Path, name: str, preset: str, *, anew: bool = False) -> Iterator[tuple[str, str, str]]:
    """In ``folder``: (float model, data, quantized model), named as a person there would; ranges lie in ``ranges.json``."""
    if name == "digits" and not anew:
        shutil.copytree(quantized_digits(preset), folder, dirs_exist_ok=True)
        with chdir(folder):
            yield f"./{Path(DIGITS).name}", CALIB, "int8.onnx"
        return
    with chdir(folder):
        if name == "digits":
            source, data = shutil.copy(DIGITS, "."), CALIB
        elif (SAMPLES / f"{name}.onnx").exists():
            made = SAMPLES / f"{name}_calib.npz"
            source, data = str(SAMPLES / f"{name}.onnx"), str(made) if made.exists() else "random:2"
        else:
            source, data = (path.name for path in small_net(name, Path()))
        cli(
            "quantize",
            source,
            "--preset",
            preset,
            "--data",
            data,
            "-o",
            "int8.onnx",
            "--save-ranges",
            "ranges.json",
            "-q",
        )
        yield source, data, "int8.onnx"


def noise(source: str, made: str, data: str) -> float:
    """Noise over signal, summed over the outputs, as `compare` measures it."""
    told = cli("compare", source, made, "--data", data, *COUNT, "--outputs-only", "--json").json["outputs"].values()
    return float(sum(10 ** (-one["sqnr_db"] / 10) for one in told if one["sqnr_db"] is not None))


def won(source: str, before: str, after: str, data: str) -> float:
    """dB, exact as 200, as `explain` counts."""
    return 10 * math.log10(max(noise(source, before, data), 1e-20) / max(noise(source, after, data), 1e-20))


def run(command: str) -> str:
    """Carry out ``command`` as it stands; the file that it wrote."""
    words = shlex.split(command)
    assert words[0] == "qdqtool"
    cli(*words[1:])
    return words[words.index("--output") + 1]


@pytest.mark.product(extra=1)
@pytest.mark.parametrize(("name", "preset"), CASES)
def test_prices_sum_to_what_compare_measures_and_edits_win_what_is_printed(
    tmp_path: Path, name: str, preset: str
) -> None:
    """Sums agree but for what preparing the float model moves; wins to the rounding of the print and that."""
    with quantized(tmp_path, name, preset) as (source, data, made):
        given = (made, "--float", source, "--data", data, *COUNT, "--ranges", "ranges.json")
        record = cli("explain", *given, "--json").json["record"]
        total = noise(source, made, data)
        assert 10 * math.log10(sum(record["causes"].values()) / total) == pytest.approx(0, abs=1e-3)
        assert sum(record["causes"].values()) == pytest.approx(sum(record["noise"].values()), rel=1e-9)
        edits = EDIT.findall(cli("explain", *given, "--worst", "4", "-v").out)
        assert edits
        for promised, command in edits:
            written = run(command)
            assert won(source, made, written, data) == pytest.approx(float(promised), abs=0.006), command


@pytest.mark.product(days=3)
def test_what_a_report_of_two_prints_runs(tmp_path: Path) -> None:
    with quantized(tmp_path, "gated", "xint8") as (source, data, made):
        cli("quantize", source, "--preset", "8a8w", "--data", data, "-o", "other.onnx", "-q")
        models = [made, "other.onnx"]
        cli(
            "report",
            *models,
            "--float",
            source,
            "--data",
            data,
            *COUNT,
            "--target",
            "vitis_xint8",
            "-o",
            "page.html",
            "-q",
        )
        told = data_of(Path("page.html"))["models"]
        files = set()
        for model, each in zip(models, told, strict=True):
            edits = [edit for advice in each["advice"] for edit in advice["edits"]]
            assert edits
            for _, command, promised, *_ in edits:
                written = run(command)
                assert won(source, model, written, data) == pytest.approx(promised, abs=0.006), command
                files.add(written)
        assert len(files) == sum(len(advice["edits"]) for each in told for advice in each["advice"])


def data_of(page: Path) -> Any:
    """What the page is about."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert found is not None
    return json.loads(found[1])


def test_an_edit_writes_over_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mended.onnx", "mended_3.onnx"):
        Path(name).touch()
    names = Outputs()
    assert [names.next() for _ in range(3)] == ["mended_2.onnx", "mended_4.onnx", "mended_5.onnx"]


@pytest.mark.product(days=6)
@pytest.mark.parametrize("preset", ["xint8", "8a8w"])
def test_edits_are_judged_as_analyze_judges_what_they_write(tmp_path: Path, preset: str) -> None:
    """Those with which fewer operators are on the NPU, or in integers, say so and stand behind the others; without a target none does."""
    target = "vitis_xint8" if preset == "xint8" else "qnn_htp"
    with quantized(tmp_path, "digits", preset) as (source, data, made):
        given = (made, "--float", source, "--data", data, *MORE, "--json")
        before = placed(made, target)
        judged = set()
        for one in cli("explain", *given, "--target", target).json["told"]:
            lost = [bool(mend.get("loses")) for mend in one["mends"]]
            assert lost == sorted(lost)
            for mend in one["mends"]:
                if mend["wins_db"] > 0:
                    after = placed(run(mend["command"]), target)
                    assert bool(mend.get("loses")) == (after < before), mend
                    assert bool(mend.get("gains")) == (after[0] > before[0]), mend
                    judged.add(after < before)
        assert True in judged
        assert all("loses" not in mend for one in cli("explain", *given).json["told"] for mend in one["mends"])


def placed(made: str, target: str) -> tuple[int, int]:
    """Less operators that are not on the NPU, and of those on it less those in floats."""
    nodes = [
        node for node in cli("analyze", made, "--target", target, "--json").json["nodes"] if node["kind"] == "compute"
    ]
    return -sum(node["device"] == "CPU" for node in nodes), -sum(node["verdict"] == "npu-float" for node in nodes)


@pytest.mark.product(days=3)
def test_a_power_of_two_is_offered_to_a_target_that_shifts(tmp_path: Path) -> None:
    """0.3 keeps the DPU off; the best grid of any form would as well. --undo takes what the target takes."""
    with quantized(tmp_path, "digits", "xint8") as (source, data, made):
        tensor = "/block1/relu1_output_0"
        cli("qdq", "set", made, "--select", f"tensor:{tensor}", "--scale", "0.3", "-o", "odd.onnx", "-q")
        given = ("odd.onnx", "--float", source, "--data", data, *MORE, "--target", "vitis_xint8")
        (told,) = cli("explain", *given, tensor, "--json").json["told"]
        best = told["mends"][0]
        assert (best["kind"], best["gains"]) == ("pow2", "vitis_xint8: 19 operators more on the NPU")
        assert "--scale 0.0625" in best["command"]
        assert any(mend["kind"] == "set" and "gains" not in mend for mend in told["mends"][1:])
        cli("explain", *given, tensor, "--undo", "-o", "undone.onnx", "-q")
        assert placed("undone.onnx", "vitis_xint8") == placed(made, "vitis_xint8")


@pytest.mark.product(days=3)
def test_undo_leaves_out_what_the_target_does_not_take(tmp_path: Path) -> None:
    with quantized(tmp_path, "digits", "xint8") as (source, data, made):
        given = (made, "--float", source, "--data", data, *MORE, "/head/pool_output_0", "--undo", "-o", "undone.onnx")
        said = cli("explain", *given, "--target", "vitis_xint8", code=2).error
        assert "no edit that was tried wins anything that vitis_xint8 takes" in said
        cli("explain", *given, "-q")
        assert placed("undone.onnx", "vitis_xint8") < placed(made, "vitis_xint8")


@pytest.mark.product(days=3)
def test_what_quantizing_anew_wins_is_told_where_the_history_tells_how_it_was_done(tmp_path: Path) -> None:
    """With the options it had; not without its ranges, of another float model, or behind an edit, which would be lost."""
    with quantized(tmp_path, "digits", "xint8") as (source, data, _):
        options = ("--exclude", "/head/pool", "--int16", "/stem/conv", "--ranges", "ranges.json")
        cli("quantize", source, "--preset", "xint8", *options, "-o", "made.onnx", "-q")
        given = ("made.onnx", "logits", "--float", source, "--data", data, *MORE, "--json")
        (told,) = cli("explain", *given, "--ranges", "ranges.json").json["told"]
        assert {mend["kind"] for mend in told["anew"]} == {"exclude", "int16"}
        for mend in told["anew"]:
            assert "--preset xint8 --ranges ranges.json --exclude /head/pool" in mend["command"]
            assert "--int16 /stem/conv" in mend["command"]
            cli("quantize", *shlex.split(mend["command"])[2:], "-q")
        assert cli("explain", *given).json["told"][0]["anew"] == []
        cli("qdq", "set", "made.onnx", "--select", "tensor:logits", "--scale", "0.5", "-o", "edited.onnx", "-q")
        assert cli("explain", "edited.onnx", *given[1:], "--ranges", "ranges.json").json["told"][0]["anew"] == []
        cli("simplify", source, "-o", "other.onnx", "-q")
        other = ("made.onnx", "logits", "--float", "other.onnx", *given[4:], "--ranges", "ranges.json")
        assert cli("explain", *other).json["told"][0]["anew"] == []


@pytest.mark.product(days=3)
def test_what_left_a_neighbour_float_is_undone(tmp_path: Path) -> None:
    """The pair between the Conv that is left float and its Relu goes with the --exclude; what that wins is what `compare` says."""
    with quantized(tmp_path, "digits", "xint8") as (source, data, _):
        options = ("--exclude", "/fuse/conv", "--exclude", "/head/pool", "--data", data)
        cli("quantize", source, "--preset", "xint8", *options, "--save-ranges", "own.json", "-o", "made.onnx", "-q")
        given = ("made.onnx", "/fuse/bn_output_0", "--float", source, "--data", data, *COUNT, "--json")
        found = cli("explain", *given, "--ranges", "own.json").json
        prices = {one["name"]: one.get("price", {}) for one in found["record"]["tensors"]}
        assert list(prices["/fuse/bn_output_0"]) == ["boundary"]
        (mend,) = [mend for mend in found["told"][0]["anew"] if mend["kind"] == "include"]
        assert mend["command"].endswith("--exclude /head/pool")
        undone = run(mend["command"])
        assert "/fuse/bn_output_0" not in {
            pair["tensor"] for pair in cli("qdq", "list", undone, "--json").json["pairs"]
        }
        assert won(source, "made.onnx", undone, data) == pytest.approx(mend["wins_db"], abs=0.006)
