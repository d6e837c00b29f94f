"""Writes docs/reference/presets.md, what presets make of the sample models: `python docs/make_preset_table.py` (some minutes).

Everything is done with the commands of the tool; figures are of onnxruntime with graph optimization disabled. `--check` prints
what differs from the stored page instead and exits 1 then; `--only digits,8a8w` takes some models and presets."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qdqtool.io.models.load import load
from qdqtool.runtime.session import open_session

ROOT = Path(__file__).resolve().parents[1]
SAMPLES, DEMO = ROOT / "sample_models", ROOT / "qdqtool" / "_demo"
PAGE = ROOT / "docs" / "reference" / "presets.md"
sys.path.insert(0, str(SAMPLES))
#: Tokens of a window of the held-out text.
WINDOW = 256
#: Windows of the training text that decoders are calibrated on.
WINDOWS = 8


def qdqtool(*words: object) -> dict[str, Any]:
    """What a command prints with ``--json``."""
    done = subprocess.run(
        [sys.executable, "-m", "qdqtool.cli.main", *map(str, words), "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run(model: Path, inputs: np.ndarray) -> np.ndarray:
    """The first output over ``inputs`` [N, …]."""
    session = open_session(load(model))
    return np.asarray(session.run({session.input_names[0]: inputs})[session.output_names[0]])


def accuracy(model: Path) -> str:
    """Top-1 on the demo's held-out digits."""
    data = np.load(DEMO / "test.npz")
    return f"{(run(model, data['input']).argmax(1) == data['labels']).mean():.2%}"


def mean_average_precision(model: Path) -> str:
    """mAP@0.5 on the held-out scenes."""
    from scenes import mean_average_precision as judge  # type: ignore[import-not-found]

    data = np.load(SAMPLES / "detector_test.npz")
    return f"{judge(run(model, data['input']), data['boxes'], data['labels']):.3f}"


def perplexity(folder: Path) -> str:
    """Perplexity of the held-out text."""
    text = SAMPLES / "text" / "held_out.txt"
    found = qdqtool("llm", "perplexity", folder, "--data", text, "--window", WINDOW)
    return f"{found['perplexity']:.3f}"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample model.

    Args:
        title: of its column.
        model: what is quantized.
        data: what it is calibrated on.
        figure: of the quantized model; None shows the SQNR of the worst output.
    """

    title: str
    model: Path
    data: object
    figure: Callable[[Path], str] | None = None


def samples(scratch: Path) -> dict[str, Sample]:
    """The sample models by name; the decoder is split first, as it is and with outliers."""
    llama, text = SAMPLES / "tiny_llama.onnx", SAMPLES / "text" / "train.txt"
    hard, tokens = scratch / "outliers.onnx", SAMPLES / "tokenizer.json"
    qdqtool("opt", llama, "-p", "inject-outliers", "-o", hard)
    for model, folder in ((llama, "llama"), (hard, "llama_outliers")):
        qdqtool(
            "split", model, "-o", scratch / folder, "--prefill", 128, "--decode", 1, "--context", WINDOW,
            "--tokenizer", tokens, "--all-logits",
        )  # fmt: skip
    return {
        "digits": Sample(
            title="digits, accuracy", model=DEMO / "digits.onnx", data=DEMO / "calib.npz", figure=accuracy
        ),
        "detector": Sample(
            title="detector, mAP@0.5",
            model=SAMPLES / "detector.onnx",
            data=SAMPLES / "detector_calib.npz",
            figure=mean_average_precision,
        ),
        "mobilenet_block": Sample(
            title="mobilenet_block, dB", model=SAMPLES / "mobilenet_block.onnx", data="random:16"
        ),
        "vit_block": Sample(title="vit_block, dB", model=SAMPLES / "vit_block.onnx", data="random:16"),
        "tiny_llama": Sample(title="tiny_llama, perplexity", model=scratch / "llama", data=text, figure=perplexity),
        "tiny_llama_outliers": Sample(
            title="the same with outliers", model=scratch / "llama_outliers", data=text, figure=perplexity
        ),
    }


def size_of(path: Path) -> int:
    """Bytes of a model, or of the graphs and weights of a folder."""
    files = [path] if path.is_file() else [f for f in path.iterdir() if f.suffix in (".onnx", ".data")]
    return sum(f.stat().st_size for f in files)


def cell(sample: Sample, preset: str, scratch: Path) -> str:
    """Figure, size and share of MACs in 8 bit of one sample with one preset; why there is none where it is refused."""
    output = scratch / re.sub(r"\W", "_", f"{sample.title}_{preset}")
    output = output if sample.model.is_dir() else output.with_suffix(".onnx")
    try:
        few = ["--samples", WINDOWS] if sample.model.is_dir() else []
        done = qdqtool("quantize", sample.model, "--preset", preset, "--data", sample.data, *few, "-o", output)
    except RuntimeError as error:
        return f"refused: {str(error).removeprefix('error: ').split(';')[0]}"
    figure = sample.figure(output) if sample.figure else decibels(done["sqnr_db"])
    shares = (done["graphs"][0] if "graphs" in done else done)["mac_shares"]
    return f"{figure} · {size_of(output) / 1e6:.2f} MB · {shares['4'] + shares['8']:.0%}"


def decibels(sqnr: float | None) -> str:
    """SQNR for people."""
    return "exact" if sqnr is None else f"{sqnr:.1f}"


def page(only: set[str], progress: Callable[[str], None]) -> str:
    """The whole page; ``only`` names the models and presets to do, all where it is empty."""
    names = [e["name"] for e in qdqtool("list", "presets")["presets"] if not e["name"].endswith("-qat")]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        models = samples(scratch)
        chosen = {n: s for n, s in models.items() if not only & models.keys() or n in only}
        rows = [["preset", *(s.title for s in chosen.values())]]
        floats = [(s.figure(s.model) if s.figure else "") for s in chosen.values()]
        rows.append(
            [
                "float",
                *(
                    f"{f or '-'} · {size_of(s.model) / 1e6:.2f} MB"
                    for f, s in zip(floats, chosen.values(), strict=True)
                ),
            ]
        )
        for name in [n for n in names if not only & set(names) or n in only]:
            rows.append([f"`{name}`"])
            for sample in chosen.values():
                progress(f"{name}: {sample.title}")
                rows[-1].append(cell(sample, name, scratch))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    return HEAD + "\n".join(lines) + "\n"


HEAD = f"""# What every preset makes of the sample models

Written by `python docs/make_preset_table.py`. Each cell: the figure of the column · bytes on disk · share of the
multiply-accumulates whose operands are both of 8 bit or less (integer weights times float activations count as float).
Figures are of onnxruntime with graph optimization disabled; dB are the SQNR of the worst output against the float model.
The decoder is split into a prefill graph of 128 tokens and a decode graph, context {WINDOW}, and quantized as a folder with
{WINDOWS} windows of the training text; its perplexity is that of the held-out text, 8,181 tokens in windows of
{WINDOW}. "With outliers" is the same function with channels 64 times larger behind each norm (`inject-outliers`). Nothing is
recovered here beyond what a preset does by itself: [accuracy recovery](../accuracy_recovery.md) has what smoothing and rounding
win back. The forms for training on, `…-qat`, have the numbers of the presets they are named after.

"""


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    options = parser.parse_args()
    made = page({word for word in options.only.split(",") if word}, lambda text: print(text, file=sys.stderr))
    if not options.check:
        options.output.write_text(made, encoding="utf-8")
        return 0
    stored = set(PAGE.read_text(encoding="utf-8").splitlines())
    differing = [line for line in made.splitlines() if line not in stored]
    print("\n".join(differing) or "as stored")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
