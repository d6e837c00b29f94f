"""Every command as an attack calls it: ``m.onnx`` is the mutated model, ``o.onnx`` the sound one, ``d.npz`` data, ``out*`` what is
written, ``e.json`` encodings, ``split`` a folder that `split` wrote. Words in braces are chosen anew each time."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from qdq_passes.core.registry import PASSES

#: Command → its command lines; IO stands for a model that is read and one that is written.
_LINES: dict[str, tuple[str, ...]] = {
    "inspect": ("m.onnx", "m.onnx --json", "m.onnx --target {target}"),
    "check": ("m.onnx", "m.onnx --json --target {target}", "m.onnx --data d.npz --preset {preset}"),
    "diff": ("m.onnx o.onnx", "o.onnx m.onnx --json"),
    "match": ("m.onnx op:Conv * --allow-empty", "m.onnx role:softmax scope:* --json --allow-empty", "m.onnx tensor:* layer:0..3 --allow-empty"),
    "opt": ("IO -p {pass}", "IO -p {pass},{pass},{pass}", "IO -p {pass} --verify-each"), "simplify": ("IO", "m.onnx --json"),
    "extract": ("IO --outputs {value}", "IO --inputs {value} --outputs {value}"),
    "rename": ("IO --value {value}=a/b", "IO --dim N=M --node n1=n2"),
    "fix-shapes": ("IO --dim N=2", "IO --dim N=2 --dim batch=1"),
    "convert-opset": ("IO --opset 21", "IO --opset 13", "IO --opset 18"), "externalize": ("IO --threshold 16", "IO --inline"),
    "calibrate": ("m.onnx -o out.json --data d.npz --method {method}", "m.onnx -o out.json --data random:1"),
    "calibrate-chip": ("e.json -o out.toml --chip snapdragon_8_gen_3 --stack qnn_dlc --precision float --nets .",),
    "quantize": ("IO --preset {preset} --data d.npz", "IO --preset {preset} --data random:1",
        "IO --target {target} --data d.npz", "IO --preset w8"),
    "sensitivity": ("m.onnx --data d.npz --preset {preset} --samples 1 --by type",),
    "mixed-precision": ("IO --data d.npz --preset {preset} --min-sqnr 5 --samples 1",), "qdq list": ("m.onnx", "m.onnx --json"),
    "qdq insert": ("IO --dtype int8 --scale 0.5 --select tensor:*", "IO --dynamic --select *"),
    "qdq remove": ("IO --all", "IO --select op:Conv --allow-empty"),
    "qdq move": ("IO --all --up", "IO --all --down --allow-approximate"),
    "qdq set": ("IO --scale 0.25 --all", "IO --all --round-pow2", "IO --all --dtype uint8"),
    "qdq share": ("IO --all", "IO --select {value}"), "qdq dedicate": ("IO --all",), "qdq fold": ("IO --select *", "IO"),
    "qdq convert": ("IO --qoperators", "IO --dtype int16", "IO --per-axis --kinds weight",
        "IO --domain com.microsoft", "IO --domain fix-neuron", "IO --symmetric --bias int8"),
    "encodings export": ("m.onnx -o out.json --format {format}", "m.onnx -o out.json --format {format} --float-model outf.onnx"),
    "encodings import": ("IO --encodings e.json",), "encodings convert": ("e.json -o out.json --format {format}",),
    "compare": ("o.onnx m.onnx --data d.npz", "m.onnx o.onnx --data d.npz --mode local", "m.onnx m.onnx --data random:1 --json"),
    "explain": ("m.onnx --float o.onnx --data d.npz --samples 1", "o.onnx {value} --data random:1 --json"),
    "report": ("m.onnx --float o.onnx --data d.npz --samples 1 -o out.html", "m.onnx m.onnx --data random:1 --target {target} -o out.html"),
    "analyze": ("m.onnx --target {target}", "m.onnx --target {target} --json"),
    "plan": ("m.onnx --chip snapdragon_8_elite", "m.onnx --chip snapdragon_8_elite --json"),
    "estimate": ("m.onnx --chip snapdragon_8_elite --stack qnn_dlc", "split --chip snapdragon_8_elite --stack genie"),
    "compile": ("IO --target {target}",), "lower": ("IO --target {target}",),
    "simulate": ("m.onnx --target {target} --data d.npz", "m.onnx --target {target} --data random:1 --json"),
    "split": ("m.onnx -o out --prefill 4 --decode 1 --context 8", "m.onnx -o out --prefill 2,4 --context 16 --parts 2"),
    "llm perplexity": ("m.onnx --data text.txt --tokenizer tok.json --window 4 --max-tokens 9",),
    "llm verify": ("split m.onnx --decoded 1 --lengths 2",), "generate": ("split --prompt-ids 1,2 --max-new 2 --no-warm-up",),
    "deploy": ("m.onnx -o out --target {target} --data d.npz --samples 1",),
    "debug reduce": ("IO --check false --max-checks 5", "IO --crashes --max-checks 5"),
}  # fmt: skip
LINES = {command: [line.replace("IO", "m.onnx -o out.onnx") for line in lines] for command, lines in _LINES.items()}
#: How often a command is chosen; 4 where nothing stands.
WEIGHTS = {
    "deploy": 1,
    "sensitivity": 1,
    "mixed-precision": 1,
    "debug reduce": 1,
    "report": 1,
    "opt": 24,
    "quantize": 10,
}
#: Commands that no attack calls, and why.
LEFT_OUT = {"view": "serves until it is interrupted (tests/browser)", "demo": "reads no file", "list": "reads no file"}


CHOICES: dict[str, Sequence[str]] = {
    "target": ("vitis_xint8", "qnn_htp", "cloud_ai100", "generic_int8", "apple_ane"),
    "preset": ("xint8", "a8w8", "qnn-a8w8", "a16w8", "16a4w", "dynamic", "w4-g32", "u8w8", "vint8", "mobilequant", "xint8-compat"),
    "method": ("minmax", "entropy", "percentile", "pow2-nonoverflow", "pow2-minmse", "mse", "distribution"),
    "format": ("aimet-0.6.1", "aimet-1.0.0", "aimet-2.0.0", "aimet-2.1.0", "qnn", "ort"),
}  # fmt: skip


def line(rng: random.Random, values: Sequence[str]) -> list[str]:
    """The arguments of one call; ``values`` are names of the model."""
    command = rng.choices(list(LINES), [WEIGHTS.get(name, 4) for name in LINES])[0]
    words = [*command.split(), *rng.choice(LINES[command]).split()]
    return [filled(word, rng, values) for word in words]


def filled(word: str, rng: random.Random, values: Sequence[str]) -> str:
    """``word`` with what stands in braces chosen."""
    choices = {**CHOICES, "pass": PASSES.names(), "value": values or ["x"]}
    return re.sub(r"\{(\w+)\}", lambda found: rng.choice(choices[found[1]]), word)
