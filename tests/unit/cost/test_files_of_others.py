"""From the file of a benchmark to an estimate: `calibrate-chip` reads it, and what it writes is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qdqtool.chips.loading import load_chip
from tests.cases.cli_helpers import cli

FLM = "context_length_k,prefill_avg_toks_per_s,decoding_avg_toks_per_s\n1,1686,64.5\n2,2136,62.2\n4,2300,58\n"
GENIEX = {
    "plugin": "qairt", "device": "npu", "cell_id": "nimbus-qairt-npu-c4096", "model_path": "nimbus-w4a16",
    "params": {"n_prompt": 128, "n_ctx": 4096},
    "agg": {"prompt_tokens": {"median": 128}, "gen_tokens": {"median": 100}, "prefill_tps": {"median": 3100.0}, "decode_tps": {"median": 60.0}},
}  # fmt: skip


def calibrated(folder: Path, name: str, text: str, *more: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    made = folder / "mine.toml"
    cli("calibrate-chip", folder / name, *more, "-o", made, "--overwrite", "-q")
    return made


def test_rows_without_a_precision_are_in_the_usual_one(tmp_path: Path) -> None:
    """Those of `flm bench`, as published for this model: nothing contradicts, little moves, and a second file is taken on top."""
    name, chip = "bench_llama3.2_1b_20260401.csv", "krackan_xdna2"
    made = calibrated(tmp_path, name, FLM, "--chip", chip)
    said = cli("calibrate-chip", tmp_path / name, "--chip", made, "-o", tmp_path / "again.toml", "--json").json
    assert said["contradictions"] == []
    asked = ("--stack", "FastFlowLM", "--prompt", "1024", "--context", "1024")
    before, after = (
        [row["ms"] for row in cli("estimate", "Llama3.2-1B", "--chip", at, *asked, "--json").json["estimates"]]
        for at in (chip, tmp_path / "again.toml")
    )
    assert after == pytest.approx(before, rel=0.02)
    (profile,) = load_chip(made).profiles
    assert {row.precision for row in profile.measured} == {"w4 (group) bf16"}
    models = [row.model for row in profile.measured if (row.phase, row.context) == ("decode", 1024)]
    assert "llama3.2_1b" in models
    assert "Llama3.2-1B" not in models, "the published time of the same model at the same place gives way"


def test_runtime_and_model_can_be_told_for_rows_of_other_names(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(GENIEX), encoding="utf-8")
    given = ["calibrate-chip", tmp_path / "r.json", "--chip", "8 Elite", "-o", tmp_path / "r.toml"]
    assert "no shape of nimbus is known: give --model as `list shapes` has it" in cli(*given, code=2).error
    said = cli(*given, "--model", "Llama3.2-1B", code=2).error
    assert "no profile of language models under 'geniex_qairt'; it has qnn_dlc float, " in said
    assert said.endswith("--stack NAME takes the rows for those of one of these")
    made = calibrated(
        tmp_path, "r.json", json.dumps(GENIEX), "--chip", "8 Elite", "--model", "Llama3.2-1B", "--stack", "genie"
    )
    found = cli(
        "estimate", "Llama3.2-1B", "--chip", made, "--stack", "genie", "--prompt", "128", "--context", "4096", "--json"
    ).json
    prefill, token = (row["ms"] for row in found["estimates"])
    assert prefill == pytest.approx(128 / 3.1, rel=0.03)
    assert token == pytest.approx(1000 / 60, rel=0.03)


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("model,stack,ms\nLlama3.2-1B,llm.npu,20\n", (), "llm.npu runs language models, and the row tells no phase: give --phase"),
        ("model,stack,ms\nnet,foo,20\n", ("--stack", "llm.npu"), "the row tells no phase: give --phase"),
        ("model,stack,ms\nresnet18,qnn_dlc,20\n", (), "tells no precision: give --precision"),
        ("model,stack,ms,phase\nLlama3.2-1B,qnn_dlc,20,decode\n", (), "no profile of language models under 'qnn_dlc'; it has"),
        ("model,stack,ms,phase\na,genie,20,decode\nb,genie,9,decode\n", ("--model", "Llama3.2-1B"),
         "one model 'Llama3.2-1B' for rows of 2: a, b; give a file of one model"),
        ("model,stack,ms,phase\na,foo,20,decode\n", ("--stack", "bar", "--model", "c"), "no shape of a is known: give --model"),
        ("model,stack,ms,phase,out_range\nPhi-2,llm.npu,113,decode,2-4\n", (), "113 is probably of one token, not of 3"),
    ],
)  # fmt: skip
def test_what_is_missing_is_asked_for(text: str, more: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(text, encoding="utf-8")
    error = cli(
        "calibrate-chip", tmp_path / "r.csv", "--chip", "8 Gen 3", *more, "-o", tmp_path / "r.toml", code=2
    ).error
    assert said in error


def test_a_runtime_of_another_name_finds_the_chip_that_is_nearest(tmp_path: Path) -> None:
    rows = "model,stack,ms,phase,seq_len,ctx\nLlama3.2-1B,foo,16,decode,,4096\nLlama3.2-1B,foo,39,prefill,128,4096\n"
    (tmp_path / "r.csv").write_text(rows, encoding="utf-8")
    given = ("calibrate-chip", tmp_path / "r.csv", "--chip", "Acme", "-o", tmp_path / "r.toml")
    assert "no measured chip has such rows" in cli(*given, code=2).error
    assert "2 rows on the profiles of" in cli(*given, "--stack", "genie").out


def test_own_rows_do_not_change_what_is_usual(tmp_path: Path) -> None:
    rows = "model,stack,precision,ms,phase,seq_len,ctx\nGemma-2B,genie,w8a16,30,decode,,4096\n"
    made = calibrated(tmp_path, "r.csv", rows, "--chip", "8 Elite")
    found = cli("estimate", "Llama3.2-1B", "--chip", made, "--stack", "genie", "--json").json
    assert {row["precision"] for row in found["estimates"]} == {"w4a16"}


def test_a_prefill_of_a_data_set_with_answers_is_a_prefill(tmp_path: Path) -> None:
    rows = "model,stack,ms,seq_len,out_range\nGemma-2B,llm.npu,1500,512,2-4\n"
    made = calibrated(tmp_path, "r.csv", rows, "--chip", "8 Gen 3", "--phase", "prefill")
    (profile,) = load_chip(made).profiles_of("llm.npu").values()
    assert ("prefill", 512, 1500.0) in {(row.phase, row.tokens, row.ms) for row in profile.measured}
