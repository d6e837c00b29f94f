"""Texts of a stranger: presets, targets, recipes, JSON files, pipelines and selectors as our commands write or take them, damaged
byte by byte, and word by word."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping
from pathlib import Path

from tests.cases.cli_helpers import ROOT
from tests.fuzz.commands import CHOICES

#: Command lines that make the files.
MADE = (
    "quantize plain.onnxtxt --data random:2 --save-ranges r.json -o q.onnx",
    "calibrate plain.onnxtxt --data random:2 --method entropy --statistics -o s.json", "check q.onnx --json-out check.json",
    "analyze q.onnx --target qnn_htp --json-out analyze.json",
    "mixed-precision plain.onnxtxt --data random:2 --min-sqnr 30 --keep-sigmoid --exclude op:Relu -o p.onnx --recipe recipe.toml",
    "qdq remove q.onnx --select tensor:x -o edited.onnx --record edits.toml",
    "sensitivity plain.onnxtxt --data random:2 --ranges r.json -o o.json --resume journal.json",
    *(f"encodings export q.onnx --format {form} -o {form}.json" for form in CHOICES["format"]),
)  # fmt: skip
#: A file that is damaged, or LAST for the last argument, and a command line that reads it.
LINES = (
    "r.json quantize plain.onnxtxt --ranges r.json -o o.onnx", "r.json calibrate --merge r.json s.json -o o.json",
    "s.json quantize plain.onnxtxt --method entropy --ranges s.json -o o.onnx", "check.json check q.onnx --baseline check.json",
    "analyze.json analyze q.onnx --target qnn_htp --baseline analyze.json",
    "recipe.toml quantize plain.onnxtxt --recipe recipe.toml --ranges r.json -o o.onnx",
    "edits.toml opt q.onnx -p @edits.toml -o o.onnx", "plain.onnxtxt simplify plain.onnxtxt -o o.onnx",
    "journal.json sensitivity plain.onnxtxt --ranges r.json --data random:2 -o o.json --resume journal.json --overwrite",
    "split/manifest.json generate split --prompt-ids 1,2 --max-new 2 --no-verify", "split/manifest.json check split --no-runtime",
    "presets.toml quantize plain.onnxtxt --ranges r.json --preset presets.toml -o o.onnx",
    "targets.toml quantize plain.onnxtxt --ranges r.json --target targets.toml -o o.onnx",
    *(f"{form}.json encodings import plain.onnxtxt {form}.json -o o.onnx" for form in CHOICES["format"]),
    *(f"{form}.json encodings convert {form}.json --format qnn --model plain.onnxtxt -o o.json" for form in CHOICES["format"]),
    'LAST opt q.onnx -o o.onnx -p fold-batch-norm,insert-qdq{weights=int8},remove-qdq{select=["tensor:s","!op:Relu"]}',
    "LAST opt q.onnx -o o.onnx -p bind-shapes{dims=[N=1]},infer-shapes,round-scales-pow2{rounding=nearest}",
    "LAST match q.onnx re:^(pro|s).*t$&!after:path:product..end", "LAST match q.onnx io:before:in:layer:0..3",
    "LAST quantize plain.onnxtxt --data random:2 -o o.onnx --extra-options WeightSymmetric=True",
    "LAST calibrate plain.onnxtxt -o o.json --data random:2:3",
)  # fmt: skip
#: What a word may become, in JSON or TOML or neither.
HOSTILE = (
    "null", "true", "-1", "0", "1e999", "NaN", "-inf", "1.5", "1e-320", "9" * 19, "9" * 5000, '""', '"x"', '"\\u0000"', '"\\ud800"',
    '"\\u001b[2J\\u202e"', '"../../x"', '"/etc/passwd"', "[]", "{}", '[[1], "a"]', "[null]", '{"a": 1, "a": 2}', "[" * 60_000,
    '{"a":' * 60_000, "1979-05-27", "0x7fffffffffffffffffff", '"é🙂"', f'"{"a" * 50_000}"', '"re:^(a+)+$"', f'"{"*" * 20_000}"',
    '"float"', '"int4"', "2147483648", "-9223372036854775809", '"' + "(" * 3000 + '"', '"' + "in:" * 5000 + 'x"', "[0.5, -0.5]",
    '"re:' + "(" * 500 + ")" * 500 + '"', '"x.shape[9] + -x.rank * 7 // 0"', '{"min": 1, "max": -1}', "0x" + "f" * 5000, f'"{"f" * 5000}"', f'"{"g" * 64}"', "\n" * 40_000, "'''a\nb'''", "",
)  # fmt: skip
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\w.+-]*|[\[\]{}]|\b[a-z_]+\b')


def line(rng: random.Random, files: Mapping[str, bytes]) -> tuple[list[str], dict[str, bytes]]:
    """A command line, and the damaged file that it reads, by its name; none where an argument is damaged."""
    name, *words = rng.choice(LINES).split()
    if name == "LAST":
        return [*words[:-1], os.fsdecode(_damaged(words[-1].encode(), rng)).replace("\0", "") or "x"], {}
    shipped = sorted((ROOT / "qdqtool" / Path(name).stem).glob("*.toml"))
    return words, {name: _damaged(rng.choice(shipped).read_bytes() if shipped else files[name], rng)}


def _damaged(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        data = rng.choice((_bytes, _word, _word))(data, rng)
    return data


def _bytes(data: bytes, rng: random.Random) -> bytes:
    """Bytes changed, put in, left out, doubled, or cut off; or another encoding."""
    at, size = rng.randrange(len(data) + 1), rng.randrange(40)
    new = rng.choice((b"\0", b"\xff", b"\xef\xbb\xbf", b"\r", b"\x1b[2J", b'"', b"\\", b"[", b"}", rng.randbytes(1)))
    if rng.random() < 0.1:
        return data.decode(errors="replace").encode(rng.choice(("utf-16", "utf-8-sig", "utf-32-le")))
    ends = (new + data[at + 1 :], new + data[at:], data[at + size :], data[max(0, at - size) :], b"")
    return data[:at] + rng.choice(ends)


def _word(data: bytes, rng: random.Random) -> bytes:
    """A word, number or bracket replaced by another of the text, or by a hostile one."""
    text = data.decode(errors="replace")
    if not (found := list(_TOKEN.finditer(text))):
        return data
    start, end = rng.choice(found).span()
    new = rng.choice(HOSTILE) if rng.random() < 0.7 else rng.choice(found)[0]
    return f"{text[:start]}{new}{text[end:]}".encode(errors="replace")
