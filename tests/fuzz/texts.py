"""Texts of a stranger: presets, targets, scripts, JSON files, pipelines and selectors as our commands write or take them, damaged
byte by byte, word by word, and value by value."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from qdqtool.cli.main import run
from tests.cases.tiny_decoder import dynamic, folder

PACKAGE = Path(__file__).parents[2] / "qdqtool"
MODEL = """<ir_version: 10, opset_import: ["" : 21]>
g (float[1,4] x) => (float[1,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}, float[4] b = {1,2,3,4}> {
  [product] h = MatMul (x, w)
  [sum] s = Add (h, b)
  [end] y = Relu (s)
}
"""
_FORMATS = ("aimet-0.6.1", "aimet-1.0.0", "aimet-2.0.0", "qnn", "ort")
#: Command lines whose files are the seeds.
_MADE = (
    """quantize m.onnxtxt --data random:2 --save-ranges r.json -o q.onnx
calibrate m.onnxtxt --data random:2 --method entropy --statistics -o s.json
check q.onnx --json-out check.json
analyze q.onnx --target qnn_htp --json-out analyze.json
compare m.onnxtxt q.onnx --data random:2 --json-out compare.json
mixed-precision m.onnxtxt --data random:2 --min-sqnr 30 --keep-sigmoid --exclude op:Relu -o p.onnx --recipe recipe.toml
qdq remove q.onnx --select tensor:x -o e.onnx --record edits.toml
deploy m.onnxtxt --data random:1 --target generic_int8 -o dp
sensitivity m.onnxtxt --data random:2 --ranges r.json -o o.json --resume journal.json""".splitlines()
    + [f"encodings export q.onnx --format {form} -o {form}.json" for form in _FORMATS]
)
#: A seed, and a command line that reads it.
_READ = (
    """r.json quantize m.onnxtxt --ranges r.json -o o.onnx
r.json calibrate --merge r.json s.json -o o.json
s.json calibrate --merge s.json s.json -o o.json
s.json quantize m.onnxtxt --method entropy --ranges s.json -o o.onnx
check.json check q.onnx --baseline check.json
analyze.json analyze q.onnx --target qnn_htp --baseline analyze.json
compare.json compare m.onnxtxt q.onnx --data random:1 --baseline compare.json
recipe.toml quantize m.onnxtxt --recipe recipe.toml --ranges r.json -o o.onnx
edits.toml opt q.onnx -p @edits.toml -o o.onnx
edits.toml qdq remove q.onnx --select tensor:s -o o.onnx --record edits.toml
journal.json sensitivity m.onnxtxt --ranges r.json --data random:2 -o o.json --overwrite --resume journal.json
overrides.json quantize m.onnxtxt --data random:2 --extra-options TensorQuantOverrides=@overrides.json -o o.onnx
names.json encodings import m.onnxtxt qnn.json --map names.json -o o.onnx
lengths.json split d.onnx -o o --specializations lengths.json --print-pipeline
config.json split d.onnx -o o --print-pipeline
dp/report.json deploy m.onnxtxt --data random:1 --target generic_int8 -o dp --overwrite
d/manifest.json generate d --prompt-ids 1,2 --max-new 2 --no-verify
d/manifest.json generate d --prompt-ids 1,2 --max-new 2
d/manifest.json split d.onnx -o d --overwrite --context 8 --prefill 4
d/manifest.json quantize d --data random:1 -o o
d/manifest.json check d --no-runtime
m.onnxtxt inspect m.onnxtxt
m.onnxtxt check m.onnxtxt --json
m.onnxtxt simplify m.onnxtxt -o o.onnx
p.toml quantize m.onnxtxt --ranges r.json --preset p.toml -o o.onnx
t.toml analyze q.onnx --target t.toml
t.toml quantize m.onnxtxt --ranges r.json --target t.toml -o o.onnx""".splitlines()
    + [
        f"{form}.json encodings {rest.format(form)}"
        for form in _FORMATS
        for rest in (
            "import m.onnxtxt {}.json -o o.onnx",
            "convert {}.json --format aimet-2.1.0 --model m.onnxtxt -o o.json",
            "convert {}.json --format qnn -o o.json --json",
        )
    ]
)
#: A command line, and the text behind it that is damaged.
_SPOKEN = """opt q.onnx -o o.onnx -p | fold-batch-norm,insert-qdq{weights=int8},remove-qdq{select=["tensor:s","!op:Relu"]}
opt q.onnx -o o.onnx -p | bind-shapes{dims=[N=1]},infer-shapes,round-scales-pow2{rounding=nearest}
match q.onnx | re:^(pro|s).*t$ & !after:path:product..end
match q.onnx | in:layer:0..3
match q.onnx | io:before:tensor:*[s-t]?
analyze q.onnx --target qnn_htp --require-npu | 95%
quantize m.onnxtxt --data random:2 -o o.onnx --extra-options | WeightSymmetric=True
calibrate m.onnxtxt --data random:1 -o o.json --method percentile --method-option | percentile=99.9
calibrate m.onnxtxt -o o.json --data | random:2:3
split d.onnx -o o --prefill | 8,16
qdq set q.onnx --select tensor:s -o o.onnx --scale | 0.5
encodings convert qnn.json -o o.json --model m.onnxtxt --format | ort""".splitlines()
#: What a value may become, in JSON or TOML or neither.
HOSTILE = (
    "null", "true", "-1", "0", "1e999", "-1e999", "NaN", "-inf", "1.5", "1e-320", "9" * 19, "9" * 400, "9" * 5000, '""', '"x"',
    '"\\u0000"', '"\\ud800"', '"\\u001b[2J\\u202e"', '"../../x"', '"/etc/passwd"', "[]", "{}", '[[1], "a"]', "[1, 2, 3]", "[null]",
    '{"a": 1, "a": 2}', "[" * 300 + "]" * 300, "[" * 60_000, '{"a":' * 60_000, "1979-05-27", "0x7fffffffffffffffffff", '"é🙂"',
    f'"{"a" * 50_000}"', '"re:^(a+)+$"', f'"{"*" * 20_000}"', '"@ranges"', '"float"', '"int4"', "2147483648", "-9223372036854775809",
    '"' + "(" * 3000 + '"', '"' + "in:" * 5000 + 'x"', '"re:' + "(" * 500 + ")" * 500 + '"', '"{' + "{" * 50 + '"', "'''a\nb'''",
    '"any(d > 1 for d in attr.dilations)"', '"x.shape[9] + -x.rank * 7 // 0"', "[0.5, -0.5]", '{"min": 1, "max": -1}', "4294967296",
)  # fmt: skip
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\w.+-]*|\b(?:true|false|null)\b|[\[\]{}]|\b[a-z_]+\b')


#: Seeds that no command writes.
_BY_HAND = {
    "m.onnxtxt": MODEL.encode(),
    "overrides.json": b'{"h": [{"quant_type": "QInt8", "symmetric": true}], "w": [{"axis": 1, "scale": [0.5], "zero_point": [0]}]}',
    "names.json": b'{"x": "x", "h": "s"}',
    "lengths.json": b'{"specializations": [{"name": "Decode", "symbols": {"batch_size": "1", "seq_len": "1", "ctx_len": "8"}}]}',
    "config.json": b'{"hidden_size": 16, "num_attention_heads": 2, "eos_token_id": [1, 2], "bos_token_id": 1, "text_config": {}}',
}


@functools.cache
def seeds() -> dict[str, bytes]:
    """The files as they should be, by the names that their readers know."""
    here, silent = os.getcwd(), io.StringIO()
    with tempfile.TemporaryDirectory() as made, contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
        os.chdir(made)
        try:
            for name, data in _BY_HAND.items():
                Path(name).write_bytes(data)
            for line in _MADE:
                assert run(line.split()) == 0, (line, silent.getvalue())
            folder(Path("d"), [(1, 4, 8), (1, 1, 8)])
            dynamic(Path("d.onnx"))
            return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}
        finally:
            os.chdir(here)


def inputs(seed: int) -> Iterator[tuple[str, list[str], dict[str, bytes]]]:
    """Without end: what was done, a command line, and the files that it reads, by their names."""
    draw, files = random.Random(seed), seeds()
    shipped = {"p.toml": [*PACKAGE.glob("presets/*.toml")], "t.toml": [*PACKAGE.glob("targets/*.toml")]}
    while True:
        if draw.random() < 0.2:
            line, text = draw.choice(_SPOKEN).split(" | ")
            damaged = os.fsdecode(_damaged(draw, text.encode(), draw.choice((_bytes, _words)))).replace("\0", "")
            yield f"spoken {line.split()[0]}", [*line.split(), damaged or "x"], dict(files)
            continue
        name, *arguments = draw.choice(_READ).split()
        data = draw.choice(sorted(shipped[name])).read_bytes() if name in shipped else files[name]
        how = draw.choice((_bytes, _words, _values) if name.endswith(".json") else (_bytes, _words, _words))
        yield f"{name} {how.__name__}", arguments, {**files, name: _damaged(draw, data, how)}


def _damaged(draw: random.Random, data: bytes, how: Callable[[random.Random, bytes], bytes]) -> bytes:
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        data = how(draw, data)
    return data


def _bytes(draw: random.Random, data: bytes) -> bytes:
    """Bytes changed, cut, doubled, or put in."""
    at, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    strange = (
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\r",
        b"\x1b[2J",
        b'"',
        b"\\",
        b"[",
        b"}",
        b"\n\n",
        bytes([draw.randrange(256)]),
    )
    end = min(end, at + 40)
    return draw.choice(
        (
            data[:at] + draw.choice(strange) + data[at + 1 :],
            data[:at] + draw.choice(strange) + data[at:],
            data[:at] + data[end:],
            data[:end] + data[at:],
            data[:at],
            data.decode(errors="replace").encode(draw.choice(("utf-16", "utf-8-sig", "utf-32-le"))),
        )
    )


def _words(draw: random.Random, data: bytes) -> bytes:
    """A word or number replaced by another of the text or by a hostile one; a line taken out, or there twice."""
    text = data.decode(errors="replace")
    if draw.random() < 0.25:
        lines = text.splitlines(keepends=True) or [""]
        at = draw.randrange(len(lines))
        lines[at : at + 1] = draw.choice(([], [lines[at]] * 2, [lines[at], draw.choice(lines)]))
        return "".join(lines).encode(errors="replace")
    found = [*_TOKEN.finditer(text)]
    if not found:
        return data
    at = draw.choice(found)
    word = draw.choice(HOSTILE) if draw.random() < 0.7 else draw.choice(found)[0]
    return f"{text[: at.start()]}{word}{text[at.end() :]}".encode(errors="replace")


def _values(draw: random.Random, data: bytes) -> bytes:
    """A value of a JSON document replaced by one of another kind, or taken out, or put under another key as well."""
    try:
        document = json.loads(data)
        places = [*_places(document)]
    except (ValueError, RecursionError):
        return _words(draw, data)
    if not places:
        return draw.choice(HOSTILE).encode()
    holder, key = draw.choice(places)
    mark, act = f"\u0001{draw.random()}", draw.random()
    if act < 0.2:
        del holder[key]
    elif act < 0.3:
        holder[key] = draw.choice(places)[0]
    else:
        holder[key] = mark
    try:
        return json.dumps(document).replace(json.dumps(mark), draw.choice(HOSTILE)).encode()
    except (ValueError, RecursionError):  # it holds itself
        return data


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(document, dict | list):
        for key in [*(document if isinstance(document, dict) else range(len(document)))]:
            yield document, key
            yield from _places(document[key])
