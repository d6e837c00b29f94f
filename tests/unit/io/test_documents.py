"""What strangers write: JSON, TOML, values of declared types, and names on a terminal."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from qdq_passes.decoder.look.record import Decoder
from qdq_passes.errors import ModelError, QdqError
from qdq_passes.numerics.documents import json_of, toml_of, typed

from qdqtool.presets.loading import load_preset
from qdqtool.targets.loading import load_target
from qdqtool.verbs.quantize import Quantize
from qdqtool.verbs.work.quantizing import laid_under
from tests.architecture.places import ROOT
from tests.cases.cli_helpers import DIGITS, cli, command_line, environment, write
from tests.golden_messages.refusal import refusal

EVIL = "a\x1b[2J\u202e\x9b\r\nno findings"
DEEP = "[" * 70 + "]" * 70


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1, "b": [{"c": 1, "c": 1}]}', "the key 'c' stands twice in one object"),
        ("[NaN]", "NaN is not a JSON number"),
        ("[-1e999]", "-1e999… is not a JSON number"),
        ("9" * 400, f"{'9' * 20}… is not a JSON number"),
        ("9" * 5000, f"{'9' * 20}… is not a JSON number"),
        ('"\\ud800"', "a text is no Unicode"),
        (b'"\xff"', "a text is no Unicode"),
        ("[" * 60_000, "nested too deeply"),
        (DEEP, "nested too deeply"),
    ],
)
def test_no_json(text: str | bytes, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        json_of(text)


def test_whole_numbers_of_more_than_64_bits_are_floats() -> None:
    assert json_of('[18446744073709551615, 18446744073709551616, "\\ud83d\\ude00"]') == [2**64 - 1, float(2**64), "😀"]
    assert type(json_of(str(-(2**63)))) is int


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"a = {2**64}", "a whole number is beyond 64 bits"),
        (f"a = {'9' * 5000}", "a whole number is beyond 64 bits"),
        (f"a = {'[' * 60_000}", "nested too deeply"),
        (f"a = {DEEP}", "nested too deeply"),
        ("a." * 50_000 + "b = 1", "nested too deeply"),  # tomllib takes minutes
        ("a = 1\na = 2", "Cannot overwrite a value (at end of document)"),
    ],
)
def test_no_toml(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        toml_of(text)
    assert toml_of(f"a = '{'x.' * 99}'\nb.c = [{'0.5, ' * 99}]")["b"]["c"][0] == 0.5


GRAPH = {"layout": "slide", "phase": "decode", "batch_size": 1, "seq_len": 1, "ctx_len": 8, "ids": "i", "logits": "l"}
CACHE = {"past": "p", "present": "q", "layer": 0, "part": "key", "axis": 2}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seq_len": "1"}, "seq_len is text, expected a whole number"),
        ({"seq_len": True}, "seq_len is true or false, expected a whole number"),
        ({"layout": "up"}, "layout is text, expected in-place or slide"),
        ({"cache": [CACHE, {**CACHE, "axis": {}}]}, "cache[1].axis is an object, expected a whole number"),
        ({"masks": [{"name": "m", "window": 2**40}]}, "a layer, an axis or a window is below 0, or beyond 31 bits"),
        ({"masks": [{}]}, "masks[0].name is missing"),
        ({"batch_size": 0}, "a run of 0 × 1 in 8 is none: batch size and lengths are 1 or more"),
    ],
)
def test_values_of_declared_types(change: dict[str, Any], says: str) -> None:
    assert typed(Decoder, {**GRAPH, "cache": [CACHE], "new": 1}).to_json() == {
        **GRAPH,
        "cache": [{**CACHE, "layers": 1}],
    }
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        typed(Decoder, {**GRAPH, **change})


def test_one_place_reads_and_no_error_is_raw() -> None:
    """Files of our own package, and lines between our own processes, are believed."""
    believed = {"documents", "options", "signatures", "prober", "probe", "provider"}
    for file in [*(ROOT / "qdqtool").rglob("*.py"), *(ROOT / "passes").rglob("*.py")]:
        text = file.read_text(encoding="utf-8")
        assert file.stem in believed or not re.search(r"(json|tomllib)\.loads?\(", text), file
        assert "raise QdqError(" not in text, f"{file}: exit 70 is for bugs of ours; raise what it is"


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evil") / "e.onnx"
    cli("rename", DIGITS, "-o", path, "--node", f"/head/fc={EVIL}", "--value", f"logits=é{EVIL}")
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("inspect",),
        ("match", "*"),
        ("match", f"x{EVIL}"),
        ("quantize", "-o", "o", "--preset", EVIL),
        ("analyze", "-v", "--target", "qnn_htp"),
    ],
)
def test_names_do_nothing_to_a_terminal(evil: Path, words: tuple[str, ...]) -> None:
    """Not in tables, messages or tracebacks; in JSON they are what they are, behind escapes of JSON's."""
    shown = cli(words[0], evil, *words[1:], code=None)
    assert "\\x1b" in shown.out + shown.err
    assert set(shown.out + shown.err) - {"\n"} <= set(filter(str.isprintable, shown.out + shown.err))
    assert not re.search("^no findings", shown.out + shown.err, re.MULTILINE)
    raw = cli("inspect", evil, "--json")
    assert raw.json["outputs"][0]["name"] == f"é{EVIL}"
    assert raw.out.replace("\n", "").isprintable()


@pytest.mark.parametrize("coding", ["ascii", "cp1252"])
def test_a_terminal_that_lacks_letters(evil: Path, coding: str) -> None:
    for words in (["inspect", evil, "--json"], ["inspect", evil], ["inspect", f"{evil}→"], ["--help"]):
        done = subprocess.run(
            command_line(*words), capture_output=True, check=False, env=environment(PYTHONIOENCODING=coding)
        )
        assert done.returncode == (2 if "→" in str(words) else 0), done.stderr
        assert "--json" not in words or json.loads(done.stdout)["outputs"][0]["name"] == f"é{EVIL}"


@pytest.mark.parametrize("number", ["NaN", "-Infinity"])
def test_json_has_null_for_what_is_not_finite(tmp_path: Path, number: str) -> None:
    text = f"g (float[1] x) => (float[1] y) <float s = {{{number.lower().removesuffix('inity')}}}, int8 z = {{0}}> {{ q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }}"
    found = cli("qdq", "list", write(tmp_path / "m.onnx", text), "--json").json["pairs"][0]
    assert found["scale"] is found["position"] is None


@pytest.mark.parametrize("kind", ["target", "preset"])
def test_a_family_of_files_has_an_end(tmp_path: Path, kind: str) -> None:
    for number in range(1500):
        (tmp_path / f"{number}.toml").write_text(
            f'description = "d"\nversion = "1"\nextends = "./{number + 1}.toml"\n'.replace(
                'version = "1"\n', "" if kind == "preset" else 'version = "1"\n'
            )
        )
    with refusal(ModelError):
        (load_target if kind == "target" else load_preset)(tmp_path / "0.toml")


@pytest.mark.parametrize(
    "option",
    ["annotate = ['os:system']", "output = 'x'", "overwrite = true", "data = 'm:f'", "seed = '1'", "exclude = 1"],
)
def test_a_recipe_says_how_and_nothing_else(tmp_path: Path, option: str) -> None:
    (tmp_path / "r.toml").write_text(f"format = 'qdqtool.recipe'\nversion = 1\npreset = 'xint8'\n[options]\n{option}")
    with refusal(QdqError):
        laid_under(Quantize("m.onnx"), tmp_path / "r.toml")
