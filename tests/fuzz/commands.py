"""Every command as an attack calls it: ``m.onnx`` is the mutated model, ``o.onnx`` the sound one, ``d.npz`` data, ``out*`` what is
written, ``e.json`` encodings, ``split`` a folder that `split` wrote. Words in braces are chosen anew each time."""

from __future__ import annotations

import random
from collections.abc import Sequence

from qdq_passes.core.registry import PASSES

#: Command → its command lines, the heavy ones seldom.
LINES: dict[str, tuple[str, ...]] = {
    "inspect": ("m.onnx", "m.onnx --json", "m.onnx --target {target}"),
    "check": ("m.onnx", "m.onnx --json --target {target}", "m.onnx --data d.npz --preset {preset}"),
    "diff": ("m.onnx o.onnx", "o.onnx m.onnx --json"),
    "match": ("m.onnx op:Conv * --allow-empty", "m.onnx role:softmax scope:* --json --allow-empty", "m.onnx tensor:* layer:0..3 --allow-empty"),
    "opt": ("m.onnx -o out.onnx -p {pass}", "m.onnx -o out.onnx -p {pass},{pass},{pass}", "m.onnx -o out.onnx -p {pass} --verify-each"),
    "simplify": ("m.onnx -o out.onnx", "m.onnx --json"),
    "extract": ("m.onnx -o out.onnx --outputs {value}", "m.onnx -o out.onnx --inputs {value} --outputs {value}"),
    "rename": ("m.onnx -o out.onnx --value {value}=a/b", "m.onnx -o out.onnx --dim N=M --node n1=n2"),
    "fix-shapes": ("m.onnx -o out.onnx --dim N=2", "m.onnx -o out.onnx --dim N=2 --dim batch=1"),
    "convert-opset": ("m.onnx -o out.onnx --opset 21", "m.onnx -o out.onnx --opset 13", "m.onnx -o out.onnx --opset 18"),
    "externalize": ("m.onnx -o out.onnx --threshold 16", "m.onnx -o out.onnx --inline"),
    "calibrate": ("m.onnx -o out.json --data d.npz --method {method}", "m.onnx -o out.json --data random:1"),
    "quantize": (
        "m.onnx -o out.onnx --preset {preset} --data d.npz", "m.onnx -o out.onnx --preset {preset} --data random:1",
        "m.onnx -o out.onnx --target {target} --data d.npz", "m.onnx -o out.onnx --preset w8",
    ),
    "sensitivity": ("m.onnx --data d.npz --preset {preset} --samples 1",),
    "mixed-precision": ("m.onnx -o out.onnx --data d.npz --preset {preset} --min-sqnr 5 --samples 1",),
    "qdq list": ("m.onnx", "m.onnx --json"),
    "qdq insert": ("m.onnx -o out.onnx --dtype int8 --scale 0.5 --select tensor:*", "m.onnx -o out.onnx --dynamic --select *"),
    "qdq remove": ("m.onnx -o out.onnx --all", "m.onnx -o out.onnx --select op:Conv --allow-empty"),
    "qdq move": ("m.onnx -o out.onnx --all --up", "m.onnx -o out.onnx --all --down --allow-approximate"),
    "qdq set": ("m.onnx -o out.onnx --scale 0.25 --all", "m.onnx -o out.onnx --all --round-pow2", "m.onnx -o out.onnx --all --dtype uint8"),
    "qdq share": ("m.onnx -o out.onnx --all", "m.onnx -o out.onnx --select {value}"),
    "qdq dedicate": ("m.onnx -o out.onnx --all",),
    "qdq fold": ("m.onnx -o out.onnx --select *", "m.onnx -o out.onnx"),
    "qdq convert": (
        "m.onnx -o out.onnx --qoperators", "m.onnx -o out.onnx --dtype int16", "m.onnx -o out.onnx --per-axis --kinds weight",
        "m.onnx -o out.onnx --domain com.microsoft", "m.onnx -o out.onnx --domain fix-neuron", "m.onnx -o out.onnx --symmetric --bias int8",
    ),
    "encodings export": ("m.onnx -o out.json --format {format}", "m.onnx -o out.json --format {format} --float-model outf.onnx"),
    "encodings import": ("m.onnx -o out.onnx --encodings e.json",),
    "encodings convert": ("e.json -o out.json --format {format}",),
    "compare": ("o.onnx m.onnx --data d.npz", "m.onnx o.onnx --data d.npz --mode local", "m.onnx m.onnx --data random:1 --json"),
    "analyze": ("m.onnx --target {target}", "m.onnx --target {target} --json"),
    "compile": ("m.onnx -o out.onnx --target {target}",),
    "lower": ("m.onnx -o out.onnx --target {target}",),
    "simulate": ("m.onnx --target {target} --data d.npz", "m.onnx --target {target} --data random:1 --json"),
    "split": ("m.onnx -o out --prefill 4 --decode 1 --context 8", "m.onnx -o out --prefill 2,4 --context 16 --parts 2"),
    "llm perplexity": ("m.onnx --data text.txt --tokenizer tok.json --window 4 --max-tokens 9",),
    "llm verify": ("split m.onnx --decoded 1 --lengths 2",),
    "generate": ("split --prompt-ids 1,2 --max-new 2 --no-warm-up",),
    "deploy": ("m.onnx -o out --target {target} --data d.npz --samples 1",),
    "debug reduce": ("m.onnx -o out.onnx --check false --max-checks 5", "m.onnx -o out.onnx --crashes --max-checks 5"),
    "list": ("passes",),
}  # fmt: skip
#: How often a command is chosen; 4 where nothing stands.
WEIGHTS = {
    "deploy": 1,
    "sensitivity": 1,
    "mixed-precision": 1,
    "list": 0.1,
    "generate": 0.5,
    "debug reduce": 1,
    "opt": 24,
    "quantize": 10,
}
#: Commands that no attack calls, and why.
LEFT_OUT = {"view": "serves until it is interrupted; tests/browser looks at it", "demo": "reads no file"}

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
    for key, choices in (*CHOICES.items(), ("pass", PASSES.names()), ("value", values or ["x"])):
        while f"{{{key}}}" in word:
            word = word.replace(f"{{{key}}}", rng.choice(choices), 1)
    return word
