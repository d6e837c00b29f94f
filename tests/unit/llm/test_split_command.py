"""`qdqtool split` as it is used: what is shown, its JSON, and what it says of bad input."""

from __future__ import annotations

import json
import shutil
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from qdq_passes.errors import UsageError

import qdqtool
from qdqtool.io.files import folders
from qdqtool.llm.plan.buckets import padding_of
from qdqtool.llm.plan.specializations import Specialization, crossed
from qdqtool.verbs.split import split
from tests.cases.cli_helpers import DIGITS, cli
from tests.golden_messages.refusal import refusal, told
from tests.unit.llm.test_split_forms import exported, tiny

__all__ = ["tiny"]  # a fixture
SHAPE = ("--prefill", "4", "--context", "16")


def test_what_is_shown(tiny: Path, tmp_path: Path) -> None:
    done = cli("split", tiny, "-o", tmp_path / "split", *SHAPE, "--verify", "-v", "--prompt-lengths", "3,9")
    lines = [line.split() for line in done.out.splitlines()]
    assert ["role", "name", "because"] in lines
    assert ["ids", "input_ids", "ids:", "chooses", "rows", "of", "an", "embedding", "table", "of", "50"] in lines
    assert ["prefill_b1_s4_c16", "1", "4", "16"] in [line[:4] for line in lines]
    assert any("padded ÷ real tokens" in line for line in done.out.splitlines())
    assert f"wrote 5 files to {tmp_path / 'split'}, weights 27.1 KiB" in done.out
    assert done.out.splitlines()[-1].startswith("equal: at most ")
    assert cli("split", tiny, "-o", tmp_path / "split", *SHAPE, "--overwrite", "-q").out == ""


def test_roles_are_shown_without_being_asked_for(tiny: Path, tmp_path: Path) -> None:
    """Of the cache the first tensor and the last; `-q` prints nothing, a comparison neither."""
    shown = cli("split", tiny, "-o", tmp_path / "split", *SHAPE).out.splitlines()
    rows = [line.split(maxsplit=1) for line in shown[: shown.index("")]]
    assert rows[:5] == [
        ["role", "name"],
        ["ids", "input_ids"],
        ["mask", "attention_mask"],
        ["positions", "position_ids"],
        ["logits", "logits"],
    ]
    assert [line.split() for line in shown[5 : shown.index("")]] == [
        ["key", "of", "layer", "0", "past_key_values.0.key", "→", "present.0.key"],
        ["…", "2", "more"],
        ["value", "of", "layer", "1", "past_key_values.1.value", "→", "present.1.value"],
    ]
    assert cli("split", tiny, "-o", tmp_path / "quiet", *SHAPE, "--verify", "-q").out == ""


def test_json(tiny: Path, tmp_path: Path) -> None:
    found = cli("split", tiny, "-o", tmp_path / "a", *SHAPE, "--verify", "--prompt-lengths", "3,9", "--json").json
    assert list(found) == [
        "folder", "layout", "roles", "specializations", "pipelines", "padding", "weight_bytes", "files", "verification",
        "warnings",
    ]  # fmt: skip
    assert found["verification"]["passed"] is True
    assert {row["role"]: row["name"] for row in found["roles"]}["mask"] == "attention_mask"
    assert [one["name"] for one in found["specializations"]] == ["prefill_b1_s4_c16", "decode_b1_s1_c16"]
    assert found["specializations"][0]["parts"] == [{"model": "prefill_b1_s4_c16.onnx", "nodes": 57}]
    assert [(row["padded_tokens"], row["real_tokens"]) for row in found["padding"]] == [
        (32, 12),
        (4 + 4 + 4 + 1, 12),
        (4 + 16, 12),
    ]
    printed = cli("split", tiny, "-o", tmp_path / "b", *SHAPE, "--print-pipeline", "--json").json
    assert printed["pipelines"] == found["pipelines"]
    assert not (tmp_path / "b").exists()


def test_printed_pipelines_replay(tmp_path: Path) -> None:
    """With `opt -p`, file by file, for a model whose attention keeps its cache itself."""
    source = exported("llama_genai_int4")
    texts = cli("split", source, "-o", tmp_path / "x", *SHAPE, "--print-pipeline", "--json").json["pipelines"]
    split(source, tmp_path / "split", prefill=(4,), context=(16,))
    cli("opt", source, "-o", tmp_path / "prepared.onnx", "-p", texts.pop("prepare"))
    for name, text in texts.items():
        cli("opt", tmp_path / "prepared.onnx", "-o", tmp_path / f"{name}.onnx", "-p", text)
        same = cli("diff", tmp_path / f"{name}.onnx", tmp_path / "split" / f"{name}.onnx", "--json").json
        assert same["differences"] == []


def test_warnings_of_group_query_attention(tmp_path: Path) -> None:
    source = exported("llama_genai_int4")
    common = ("split", source, *SHAPE, "--print-pipeline", "-o", tmp_path / "x")
    assert "gives out no new rows alone: it is decomposed" in cli(*common, "--layout", "slide").err
    assert "runs several tokens of one row only: it is decomposed" in cli(*common, "--batch", "2").err
    assert "scatter-nd is not used; pass --decompose" in cli(*common, "--scatter", "scatter-nd").err
    assert cli(*common, "--scatter", "scatter-nd", "--decompose").err == ""


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--prefill", "4,x"], 2),
        (["--prefill", "0"], 2),
        (["--context", ""], 2),
        (["--prefill", "²"], 2),
        (["--prefill", "none", "--decode", "none"], 2),
        (["--prefill", "32", "--context", "16"], 2),
        (["--decode", "2"], 2),
        (["--prefill", "4", "--context", "100000000000"], 3),
        (["--layout", "slide", "--scatter", "scatter-nd"], 2),
        (["--naming", "nothing"], 2),
        (["--naming", "nothing.toml"], 2),
        (["--naming", "genai", "--layout", "slide"], 2),
        (["--tolerance", "nan"], 2),
        (["--max-part-bytes", "12TB"], 2),
        (["--max-part-bytes", "-5"], 2),
        (["--specializations", "s.json", "--context", "16"], 2),
        (["--tokenizer", "/nothing"], 2),
        ([*SHAPE, "--prompt-lengths", "17"], 2),
        (["--specializations", "/nothing.json"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_bad_options(options: list[str], code: int, tiny: Path, tmp_path: Path) -> None:
    told(cli("split", tiny, "-o", tmp_path / "split", *options, code=code).error)
    assert not (tmp_path / "split").exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--parts", "0"], "0 is not in the range x>=1"),
        (["--layout", "sideways"], "'sideways' is not one of 'in-place', 'slide'"),
    ],
)
def test_options_that_click_refuses(options: list[str], why: str, tiny: Path, tmp_path: Path) -> None:
    assert why in cli("split", tiny, "-o", tmp_path / "split", *options, code=2).error
    assert not (tmp_path / "split").exists()


def test_bad_models(tiny: Path, tmp_path: Path) -> None:
    told(cli("split", DIGITS, "-o", tmp_path / "a", code=3).error)
    told(cli("split", tmp_path / "nothing.onnx", "-o", tmp_path / "a", code=2).error)
    cli("split", tiny, "-o", tmp_path / "split", *SHAPE)
    told(cli("split", tmp_path / "split" / "decode_b1_s1_c16.onnx", "-o", tmp_path / "a", *SHAPE, code=3).error)
    told(cli("split", tmp_path / "split", "-o", tmp_path / "a", code=2).error)
    told(cli("split", tiny, "-o", tmp_path / "split", *SHAPE, code=2).error)
    told(cli("split", tiny, "-o", "/proc/nothing", *SHAPE, code=2).error)
    assert not (tmp_path / "a").exists()


def test_python_says_the_same(tiny: Path, tmp_path: Path) -> None:
    for options in ({"layout": "sideways"}, {"mask": "none"}, {"scatter": "add"}, {"prefill": [0]}, {"context": []}):
        with refusal(UsageError):
            qdqtool.split(str(tiny), tmp_path / "split", **({"prefill": [4], "context": [16]} | options))  # type: ignore[arg-type]
    stages: list[tuple[str, int, int | None]] = []
    qdqtool.split(
        qdqtool.load(str(tiny)),
        tmp_path / "split",
        prefill=[4],
        context=[16],
        progress=lambda *told: stages.append(told),
    )
    assert stages == [("prefill_b1_s4_c16", 0, 2), ("decode_b1_s1_c16", 1, 2), ("writing", 0, None)]


def test_shapes_are_crossed() -> None:
    names = [one.name for one in crossed((8, 4), (1,), (4, 8), (2,))]
    assert names == ["prefill_b2_s4_c4", "decode_b2_s1_c4", "prefill_b2_s8_c8", "prefill_b2_s4_c8", "decode_b2_s1_c8"]
    one = Specialization.of(1, 4, 8)
    with refusal(UsageError):
        qdqtool.split("unread.onnx", "unwritten", specializations=[one, one])


def test_padding_by_hand() -> None:
    """A run of S costs 16 + S: behind 128 tokens of 130, a run of 16 (32) is cheaper than two of 1 (34)."""
    shapes = crossed((16, 64), (1,), (128, 256))
    maximum, buckets, powers = padding_of([5, 20, 70, 130], shapes)
    assert (maximum.padded, powers.padded) == (256 * 4, 8 + 32 + 128 + 256)
    assert buckets.padded == 16 + (16 + 16) + (64 + 16) + (64 + 64 + 16)
    assert {row.real for row in (maximum, buckets, powers)} == {225}
    assert maximum.waste == 1024 / 225
    assert maximum.strategy == "the context, 256"
    assert buckets.strategy == "chunks of 1, 16, 64"
    assert padding_of([1, 2, 4], crossed((4,), (1,), (8,)))[2].padded == 1 + 2 + 4
    assert padding_of([8], [Specialization.of(1, 8, 8), Specialization.of(1, 4, 64)])[1].padded == 8
    assert padding_of([9], [Specialization.of(1, 8, 8), Specialization.of(1, 4, 64)])[1].padded == 4 + 4 + 4
    assert json.dumps(maximum.to_json()) == (
        '{"strategy": "the context, 256", "padded_tokens": 1024, "real_tokens": 225, "waste": 4.551111111111111}'
    )


def test_namings_are_listed() -> None:
    found = cli("list", "namings", "--json").json["namings"]
    assert [entry["name"] for entry in found] == ["ane", "cloud-ai", "exported", "genai"]
    assert all(entry["summary"] for entry in found)
    text = cli("list", "namings", "cloud-ai").out
    assert "past: past_{part}.{layer}" in text
    assert "layout: in-place" in text
    told(cli("list", "namings", "nothing", code=2).error)


@pytest.mark.parametrize("overwrite", [False, True])
def test_another_run_that_wrote_meanwhile(
    overwrite: bool, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One version is left: that of the other run, or with --overwrite this one's, without files of the other."""
    folder, other = tmp_path / "split", tmp_path / "other"
    cli("split", tiny, "-o", other, "--prefill", "8", "--context", "16")
    if overwrite:
        cli("split", tiny, "-o", folder, *SHAPE)

    def late(listing: str) -> AbstractContextManager[None]:
        shutil.copytree(other, folder, dirs_exist_ok=True)
        return folders.one_writer(listing)

    monkeypatch.setattr("qdqtool.llm.folder.folders.one_writer", late)
    done = cli("split", tiny, "-o", folder, *SHAPE, *["--overwrite"] * overwrite, code=0 if overwrite else 2)
    graphs = {path.stem for path in folder.glob("*.onnx")}
    assert ("exists" in done.err, graphs & {"prefill_b1_s4_c16", "prefill_b1_s8_c16"}) == (
        not overwrite, {f"prefill_b1_s{4 if overwrite else 8}_c16"}
    )  # fmt: skip
