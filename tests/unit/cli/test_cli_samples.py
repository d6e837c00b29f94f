"""Every sample model is quantized, or refused in one helpful line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cases.cli_helpers import SAMPLES, accepted, cli
from tests.golden_messages.refusal import told

#: Model → (--data, least SQNR in dB of the worst output). Random inputs where no data is stored: the figures say that the
#: arithmetic is right, nothing about accuracy. Per-tensor 8 bit is expected to be poor where channels are outliers.
QUANTIZED = {
    "detector": (str(SAMPLES / "detector_calib.npz"), 25),  # its two Sigmoids become HardSigmoid
    "mobilenet_block": ("random:4", 15),
    "vit_block": ("random:4", 15),
    "if_branch": ("random:4", 20),
    "local_function": ("random:4", 20),
    "external_data": ("random:4", 20),
    "int4_weights": ("random:4", 20),
}


@pytest.mark.product(extra=3)
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized(name: str, tmp_path: Path) -> None:
    data, least = QUANTIZED[name]
    files = []
    for run in ("a", "b"):
        output = tmp_path / run / "q.onnx"
        done = cli("quantize", SAMPLES / f"{name}.onnx", "--data", data, "-o", output, "--json").json
        assert done["pairs"] >= 5
        assert done["sqnr_db"] > least
        files.append({p.name: p.read_bytes() for p in output.parent.iterdir()})
    assert files[0] == files[1]
    accepted(tmp_path / "a" / "q.onnx")


@pytest.mark.product(days=4)
def test_ranges_of_the_float_model_serve_for_what_is_made_of_it(tmp_path: Path) -> None:
    """A Gemm between two Reshapes stands for MatMul and Add: its output is the sum's, element for element."""
    model, ranges = SAMPLES / "vit_block.onnx", tmp_path / "r.json"
    cli("calibrate", model, "--data", "random:4", "--method", "pow2-minmse", "-o", ranges)
    cli("quantize", model, "--ranges", ranges, "-o", tmp_path / "a" / "q.onnx", "--no-provenance")
    cli("quantize", model, "--data", "random:4", "-o", tmp_path / "b" / "q.onnx", "--no-provenance")
    made = [{p.name: p.read_bytes() for p in (tmp_path / run).iterdir()} for run in "ab"]
    assert made[0] == made[1]
    pairs = cli("qdq", "list", tmp_path / "a" / "q.onnx", "--json").json["pairs"]
    assert any(pair["tensor"].endswith("_gemm_out") for pair in pairs)


def test_a_body_stays_float_and_is_listed(tmp_path: Path) -> None:
    done = cli("quantize", SAMPLES / "if_branch.onnx", "--data", "random:2", "-o", tmp_path / "q.onnx", "--json").json
    assert done["excluded"] == [{"node": "/if", "reason": "values inside its body stay float"}]


def test_a_model_that_is_one_loop_is_refused(tmp_path: Path) -> None:
    done = cli("quantize", SAMPLES / "loop_body.onnx", "--data", "random:2", "-o", tmp_path / "q.onnx", code=2)
    told(done.error)


def test_functions_are_inlined_or_kept(tmp_path: Path) -> None:
    command = ("quantize", SAMPLES / "local_function.onnx", "--data", "random:2", "-o", tmp_path / "q.onnx")
    told(cli(*command, "--keep-functions", code=2).error)
    cli(*command)
    assert cli("inspect", tmp_path / "q.onnx", "--json").json["functions"] == 0


def llama_data(folder: Path) -> str:
    """A prompt of eight tokens into an empty cache, and three tokens behind five."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for index, (past, length) in enumerate([(0, 8), (5, 3)]):
        feed = {
            "input_ids": random.integers(0, 1024, (1, length)),
            "attention_mask": np.ones((1, past + length), np.int64),
            "position_ids": np.arange(past, past + length, dtype=np.int64)[np.newaxis],
        }
        for layer in range(4):
            for part in ("key", "value"):
                cache = random.standard_normal((1, 2, past, 32)).astype(np.float32)
                feed[f"past_key_values.{layer}.{part}"] = cache
        np.savez(folder / f"{index}.npz", **feed)
    return str(folder)


@pytest.mark.product(days=4)
def test_a_language_model_with_its_mask_left_float(tmp_path: Path) -> None:
    """The mask of −3.4e38 swallows all scores; the options of the warning repair that."""
    data = llama_data(tmp_path / "data")
    command = (
        "quantize",
        SAMPLES / "tiny_llama.onnx",
        "--preset",
        "xint8",
        "--data",
        data,
        "--json",
        "--overwrite",
        "-o",
        tmp_path / "q.onnx",
        "--no-bound-masks",
    )
    done = cli(*command)
    assert done.json["sqnr_db"] < 8
    way_out = done.err.partition("leave it float with ")[2].partition("\n")[0].split()
    assert way_out == [
        "--exclude", "node_Where_239", "--exclude", "node_Add_241", "--exclude", "node_Add_417", "--exclude", "node_Add_593",
        "--exclude", "node_Add_769", "--isolate",
    ]  # fmt: skip
    better = cli(*command, *way_out)
    assert "leave it float" not in better.err
    assert better.json["sqnr_db"] > done.json["sqnr_db"] + 10
    accepted(tmp_path / "q.onnx")


def test_random_data_for_a_language_model_fails_in_one_line(tmp_path: Path) -> None:
    done = cli("quantize", SAMPLES / "tiny_llama.onnx", "--data", "random:1", "-o", tmp_path / "q.onnx", code=2)
    assert "compare the shapes and values of the feed with what the model wants" in done.error
