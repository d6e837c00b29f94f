"""What strangers write: JSON, TOML, values of declared types, and names on a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from qdq_passes.decoder.look.record import MaskInput
from qdq_passes.errors import ModelError, QdqError
from qdq_passes.numerics.documents import json_of, literal_of, sha256_in, toml_of, typed

from qdqtool.presets.loading import load_preset
from qdqtool.targets.loading import load_target
from qdqtool.verbs.quantize import Quantize
from qdqtool.verbs.work.quantizing import laid_under
from tests.architecture.places import ROOT
from tests.cases.cli_helpers import DIGITS, cli, process, write
from tests.golden_messages.refusal import refusal

EVIL = "a\x1b[2J\u202e\x9b\r\nno findings"


@pytest.mark.parametrize(("read", "text", "says"), [
    (json_of, "[-1e999]", "-1e999… is not a JSON number"), (json_of, "9" * 5000, f"{'9' * 20}… is not a JSON number"),
    (json_of, '"\\ud800"', "a text is no Unicode"), (json_of, b'"\xff"', "a text is no Unicode"),
    (json_of, "[" * 60_000, "nested too deeply"), (json_of, "[" * 70 + "]" * 70, "nested too deeply"),
    (toml_of, "a." * 50_000 + "b = 1", "nested too deeply"),  # tomllib takes minutes
    (toml_of, f"a = {2**64}", "a whole number is beyond 64 bits"),
    (toml_of, "a = 1\na = 2", "Cannot overwrite a value (at end of document)"),
])  # fmt: skip
def test_no_document(read: Callable[[Any], Any], text: str | bytes, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        read(text)


@pytest.mark.parametrize("text", ["-" * 60_000 + "1", "(" * 5000, "f()", "a", "[1", "1" * 100_000, "{[]: 1}"])
def test_no_literal(text: str) -> None:
    with pytest.raises(ValueError, match=r"literal|malformed"):
        literal_of(text)


def test_hashes() -> None:
    assert sha256_in("0" * 64, "a") == "0" * 64
    assert sha256_in(None, "a") == sha256_in("", "a") == ""
    for value in (1, "0" * 63, "g" * 64, "0" * 5000, ["0" * 64]):
        with pytest.raises(ValueError, match=r"^a is .*, expected 64 hex digits$"):
            sha256_in(value, "a")


def test_documents() -> None:
    """Whole numbers of more than 64 bits are floats, where the format allows it; many points are no depth; new keys are let be."""
    assert str(json_of(f"[{2**64 - 1}, {2**64}]")) == f"[{2**64 - 1}, {float(2**64)}]"
    assert json_of('"\\ud83d\\ude00"') == "😀"
    assert toml_of(f"a = '{'x.' * 99}'\nb.c = [{'0.5, ' * 99}]")["b"]["c"][0] == 0.5
    assert typed(MaskInput, {"name": "m", "new": 1}) == MaskInput(name="m")
    several: dict[str, str | float | bool] = {"a": "x", "b": 0.5, "c": True}
    assert typed(dict[str, str | float | bool], several) == several  # type: ignore[misc]
    assert typed(str | float | tuple[str, ...], 3) == 3.0  # type: ignore[arg-type]
    assert typed(str | float | tuple[str, ...], ["x"]) == ("x",)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is a list, expected"):
        typed(str | float, [1])  # type: ignore[arg-type]


def test_one_place_reads_and_no_error_is_raw() -> None:
    """Files of our own package, and lines between our own processes, are believed."""
    believed = {"documents", "options", "signatures", "prober", "probe", "provider", "summaries"}
    for file in [*(ROOT / "qdqtool").rglob("*.py"), *(ROOT / "passes").rglob("*.py")]:
        text = file.read_text(encoding="utf-8")
        assert file.stem in believed or not re.search(r"(json|tomllib)\.loads?\(", text), file
        assert "raise QdqError(" not in text, f"{file}: exit 70 is for bugs of ours; raise what it is"


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evil") / "e.onnx"
    cli("rename", DIGITS, "-o", path, "--node", f"/head/fc={EVIL}", "--value", f"logits=😀{EVIL}")
    return path


@pytest.mark.parametrize("words", [
    ("inspect",), ("match", "*"), ("match", f"x{EVIL}"), ("analyze", "-v", "--target", "qnn_htp"),
    ("quantize", "-o", "o", "--preset", EVIL),
])  # fmt: skip
def test_names_do_nothing_to_a_terminal(evil: Path, words: tuple[str, ...]) -> None:
    """Not in tables, messages or tracebacks; in JSON they are what they are, behind escapes of JSON's."""
    done = cli(words[0], evil, *words[1:], code=None)
    shown, raw = done.out + done.err, cli("inspect", evil, "--json")
    assert "\\x1b" in shown
    assert (shown + raw.out).replace("\n", "").isprintable()
    assert not re.search("^no findings", shown, re.MULTILINE)
    assert raw.json["outputs"][0]["name"] == f"😀{EVIL}"


@pytest.mark.parametrize(("more", "smile"), [(["--json"], "\\ud83d\\ude00"), ([], "\\U0001f600")])
def test_a_terminal_that_lacks_letters(evil: Path, more: list[str], smile: str) -> None:
    assert smile in process("inspect", evil, *more, PYTHONIOENCODING="cp1252").stdout


@pytest.mark.parametrize("number", ["nan", "-inf"])
def test_json_has_null_for_what_is_not_finite(tmp_path: Path, number: str) -> None:
    pair = f"<float s = {{{number}}}, int8 z = {{0}}> {{ q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }}"
    write(tmp_path / "m.onnx", f"g (float[1] x) => (float[1] y) {pair}")
    (found,) = cli("qdq", "list", tmp_path / "m.onnx", "--json").json["pairs"]
    assert found["scale"] is found["position"] is None


@pytest.mark.parametrize("read", [load_target, load_preset])
def test_a_family_of_files_has_an_end(tmp_path: Path, read: Callable[[Path], object]) -> None:
    for number in range(20):
        (tmp_path / f"{number}.toml").write_text(f'extends = "./{number + 1}.toml"')
    with refusal(ModelError):
        read(tmp_path / "0.toml")


@pytest.mark.parametrize("option", ["annotate = ['os:system']", "overwrite = true", "seed = '1'", "exclude = 1"])
def test_a_recipe_says_how_and_nothing_else(tmp_path: Path, option: str) -> None:
    (tmp_path / "r.toml").write_text(f"format = 'qdqtool.recipe'\nversion = 1\npreset = 'xint8'\n[options]\n{option}")
    with refusal(QdqError):
        laid_under(Quantize("m.onnx"), tmp_path / "r.toml")
