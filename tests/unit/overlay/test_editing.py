"""Edits of the page: recorded, replayed to the same bytes, taken back; what cannot be is refused and leaves nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from qdq_passes.errors import UsageError
from qdq_passes.qdq.look.pairs import qdq_pairs

from qdqtool.io.files.edit_script import read_script
from qdqtool.io.files.read import sha256_of_file
from qdqtool.io.models.load import load
from qdqtool.overlay.editing import Chosen, Editor
from tests.cases.cli_helpers import CALIB, DIGITS, cli
from tests.cases.small_models import model

POOL = Chosen(tensors=["/head/pool_output_0"])


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("editing") / "int8.onnx"
    cli("quantize", DIGITS, "--preset", "xint8", "--data", CALIB, "-o", path, "-q")
    return path


def editor(model: Path, tmp_path: Path, **more: Any) -> Editor:
    folder = tmp_path / "own"
    folder.mkdir()
    return Editor(str(model), str(folder), record=str(tmp_path / "edits.toml"), **more)


def test_a_chain_replays_to_the_same_bytes(int8: Path, tmp_path: Path) -> None:
    """Edits that depend on one another, one that takes the float model's weights among them."""
    found = editor(int8, tmp_path, floats=DIGITS)
    found.edit("qdq set", {"scales": [0.03125]}, POOL)
    found.edit("qdq convert", {"dtype": "int16"}, POOL)
    found.edit("qdq set", {"scales": [2.0**-9], "float_model": True}, Chosen(tensors=["head.fc.weight"]))
    found.edit("qdq remove", {}, Chosen(nodes=["/stem/conv"]))
    cli("opt", int8, "-p", f"@{tmp_path / 'edits.toml'}", "-o", tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == Path(found.current).read_bytes()
    assert "--scale 0.001953125 --float" in found.edits[2].command
    assert read_script(tmp_path / "edits.toml").result_sha256 == sha256_of_file(found.current)


@pytest.mark.parametrize(
    ("command", "options", "chosen"),
    [("qdq set", {"scales": [2.0**-4]}, Chosen(tensors=["head.fc.weight"])), ("qdq set", {"scales": [0.03125]}, POOL)],
    ids=["weights change", "weights stay"],
)
def test_a_data_file_is_replayed_too(
    int8: Path, tmp_path: Path, command: str, options: Mapping[str, Any], chosen: Chosen
) -> None:
    """The model names its data file, which is named by the model: the printed command has the name that was recorded."""
    model = tmp_path / "model.onnx"
    onnx.save(onnx.load(int8), model, save_as_external_data=True, location="all.data", size_threshold=0)
    found = editor(model, tmp_path)
    found.edit(command, options, chosen)
    cli(*shlex.split(found.replay)[1:])
    digest = sha256_of_file(tmp_path / "model_edited.onnx")
    assert digest == sha256_of_file(found.current) == read_script(tmp_path / "edits.toml").result_sha256


def test_undo_goes_back_to_where_it_was(int8: Path, tmp_path: Path) -> None:
    found, record = editor(int8, tmp_path), tmp_path / "edits.toml"
    found.edit("qdq set", {"scales": [0.03125]}, POOL)
    script, model = record.read_bytes(), found.current
    found.edit("qdq remove", {}, POOL)
    found.undo()
    assert (record.read_bytes(), found.current) == (script, model)
    found.undo()
    assert not record.exists()
    assert (found.current, found.replay) == (str(int8), "")
    with pytest.raises(UsageError, match="no edit to take back"):
        found.undo()


def test_a_script_goes_on_where_it_ended(int8: Path, tmp_path: Path) -> None:
    first = editor(int8, tmp_path)
    first.edit("qdq set", {"scales": [0.03125]}, POOL)
    (tmp_path / "second").mkdir()
    second = Editor(str(int8), str(tmp_path / "second"), record=str(tmp_path / "edits.toml"))
    assert (second.is_recorded_before, second.edits) == (1, [])
    assert Path(second.current).read_bytes() == Path(first.current).read_bytes()
    second.edit("qdq remove", {}, POOL)
    cli(*shlex.split(second.begun)[1:], "--overwrite")
    begun = int8.with_name("int8_0.onnx")
    assert begun.read_bytes() == Path(first.current).read_bytes()
    assert f" {begun} --output {int8.with_name('int8_1.onnx')} " in second.edits[0].command
    second.undo()
    assert len(read_script(tmp_path / "edits.toml").passes) == 1


def test_a_script_of_another_model_is_refused(int8: Path, tmp_path: Path) -> None:
    editor(int8, tmp_path).edit("qdq set", {"scales": [0.03125]}, POOL)
    with pytest.raises(UsageError, match="recorded on another model"):
        Editor(DIGITS, str(tmp_path), record=str(tmp_path / "edits.toml"))
    (tmp_path / "text.toml").write_text('[[pass]]\nname = "sort"\n')
    with pytest.raises(UsageError, match="is no recorded script"):
        Editor(DIGITS, str(tmp_path), record=str(tmp_path / "text.toml"))


@pytest.mark.parametrize(
    ("command", "options", "chosen", "text"),
    [
        ("rm", {}, POOL, "'rm' is no edit; there is qdq set"),
        ("qdq set", {"scale": [1]}, POOL, "qdq set has no option 'scale'; there is"),
        ("qdq set", {"output": "x"}, POOL, "qdq set has no option 'output'"),
        ("qdq insert", {"ranges": "/etc/passwd"}, POOL, "qdq insert has no option 'ranges'"),
        ("qdq set", {"scales": ["a"]}, POOL, "--scale does not take 'a'"),
        ("qdq set", {"scales": [True]}, POOL, "--scale does not take True"),
        ("qdq set", {"zero_points": [1.5]}, POOL, "--zero-point does not take 1.5"),
        ("qdq set", {"sharing": "no"}, POOL, "--sharing does not take 'no'"),
        ("qdq set", {"round_pow2": 1}, POOL, "--round-pow2 does not take 1"),
        ("qdq set", {"scales": [0.0625]}, Chosen(), "give either --select or --all"),
        ("qdq set", {"scales": [0.0625]}, POOL, "that changes nothing; it is so already"),
        ("qdq set", {"scales": [1.0], "float_model": True}, POOL, "the float model; start `view` with --float FILE"),
        ("qdq move", {"up": True}, POOL, "/head/pool_output_0: stays behind Mul"),
        ("qdq convert", {"per_axis": True}, Chosen(nodes=["/stem/relu"]), "/stem/relu_output_0: is an activation"),
        ("qdq remove", {}, Chosen(nodes=["/nowhere"]), "matches nothing"),
        ("opt", {"text": "no-such-pass"}, POOL, "no-such-pass"),
        ("opt", {"text": "annotate-encodings{encodings=@ranges}"}, POOL, "ranges"),
    ],
)
def test_what_cannot_be_is_refused(
    int8: Path, tmp_path: Path, command: str, options: Mapping[str, Any], chosen: Chosen, text: str
) -> None:
    found = editor(int8, tmp_path)
    with pytest.raises(UsageError, match=re.escape(text)):
        found.edit(command, options, chosen)
    assert not (tmp_path / "edits.toml").exists()
    assert found.current == str(int8)


def test_names_with_signs_of_selectors_are_meant_as_they_are() -> None:
    chosen = Chosen(tensors=["a*[0]"], nodes=["b&c"], selectors=["op:*"])
    assert chosen.select("qdq set") == ("tensor:a[*][[]0]", "b\\&c", "op:*")
    assert chosen.select("qdq remove")[1] == "io:b\\&c"


@pytest.mark.parametrize(
    "name", ["onnx::Conv_1", "x:0", "-x", "!x", "tensor:x", "a*[0]?", "b&c", "b\\&c", 'it\'s "x"', " x ", "x\n", "ü→"]
)
def test_a_tensor_of_any_name_can_be_edited(tmp_path: Path, name: str) -> None:
    """Exporters call weights ``onnx::Conv_298``, and tensors ``x:0``."""
    graph = onnx.parser.parse_graph(
        "g (float[2] x) => (float[2] y) <float s = {0.5}, int8 z = {0}>"
        "{ t = Relu(x) q = QuantizeLinear(t, s, z) d = DequantizeLinear(q, s, z) y = Relu(d) }"
    )
    graph.node[0].output[0] = graph.node[1].input[0] = name
    opset = onnx.helper.make_opsetid("", 21)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), tmp_path / "named.onnx")
    found = editor(tmp_path / "named.onnx", tmp_path)
    assert len(found.edit("qdq set", {"scales": [0.25]}, Chosen(tensors=[name])).changes) > 0
    cli("opt", tmp_path / "named.onnx", "-p", f"@{tmp_path / 'edits.toml'}", "-o", tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == Path(found.current).read_bytes()
    cli(*shlex.split(found.edits[0].command)[1:])
    assert (tmp_path / "named_1.onnx").read_bytes() == Path(found.current).read_bytes()


def test_a_script_that_another_wrote_is_left_alone(int8: Path, tmp_path: Path) -> None:
    """The page would go on from an edit that the script no longer has, or has another before."""
    found, record = editor(int8, tmp_path), tmp_path / "edits.toml"
    found.edit("qdq set", {"scales": [0.03125]}, POOL)
    made = found.current
    record.write_text(record.read_text() + "# mine\n")
    for again in (lambda: found.edit("qdq remove", {}, POOL), found.undo):
        with pytest.raises(UsageError, match=r"edits.toml: was changed since the last edit"):
            again()
    record.unlink()
    for again in (lambda: found.edit("qdq remove", {}, POOL), found.undo):
        with pytest.raises(UsageError, match=r"edits.toml: was removed since the last edit"):
            again()
    assert (found.current, len(found.edits), record.exists()) == (made, 1, False)


def test_a_folder_is_no_script(int8: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder; give the name of a file"):
        Editor(str(int8), str(tmp_path), record=str(tmp_path))


def test_options_of_quantize_are_kept_for_it(tmp_path: Path) -> None:
    """What is picked gives the bytes of the same options written by hand; `opt` makes the edits alone, and undoing takes both back."""
    made, ranges, record = tmp_path / "m.onnx", tmp_path / "r.json", tmp_path / "edits.toml"
    cli(
        "quantize",
        DIGITS,
        "--preset",
        "xint8",
        "--data",
        CALIB,
        "--samples",
        "8",
        "--save-ranges",
        ranges,
        "-o",
        made,
        "-q",
    )
    found = editor(made, tmp_path, floats=DIGITS, ranges=str(ranges))
    found.pick("exclude", Chosen(nodes=["/head/fc"]))
    assert (found.current, found.replay) == (str(made), "")
    assert "holds no [[pass]]" in cli("opt", made, "-p", f"@{record}", "-o", tmp_path / "no.onnx", code=2).err
    found.edit("qdq set", {"scales": [0.03125]}, POOL)
    found.pick("int16", Chosen(tensors=["/stem/relu_output_0"]))
    with pytest.raises(UsageError, match="that changes nothing"):
        found.pick("exclude", Chosen(nodes=["/head/fc"]))
    assert read_script(record).options == {"exclude": ("/head/fc",), "int16": ("tensor:/stem/relu_output_0",)}
    assert f" {made} --output {tmp_path / 'm_1.onnx'} " in found.edits[1].command
    cli(*shlex.split(found.replay)[1:])
    assert (tmp_path / "m_edited.onnx").read_bytes() == Path(found.current).read_bytes()
    cli(*shlex.split(found.anew)[1:], "-q")
    hand = ("--exclude", "/head/fc", "--int16", "tensor:/stem/relu_output_0")
    cli("quantize", DIGITS, "--preset", "xint8", "--ranges", ranges, *hand, "-o", tmp_path / "hand.onnx", "-q")
    assert (tmp_path / "m_quantized.onnx").read_bytes() == (tmp_path / "hand.onnx").read_bytes()
    (tmp_path / "second").mkdir()
    again = Editor(str(made), str(tmp_path / "second"), record=str(record))
    assert again.options == found.options
    found.undo()
    assert "int16" not in read_script(record).options
    found.undo()
    found.undo()
    assert not record.exists()


def test_an_empty_file_is_a_script_to_be_written(int8: Path, tmp_path: Path) -> None:
    (tmp_path / "edits.toml").touch()
    found = editor(int8, tmp_path)
    found.edit("qdq set", {"scales": [0.03125]}, POOL)
    assert len(read_script(tmp_path / "edits.toml").passes) == 1
    (tmp_path / "more.toml").touch()
    cli(
        "qdq",
        "set",
        int8,
        "--select",
        "tensor:logits",
        "--scale",
        "0.5",
        "-o",
        tmp_path / "o.onnx",
        "--record",
        tmp_path / "more.toml",
    )
    assert len(read_script(tmp_path / "more.toml").passes) == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[quantize]\nexclude = 'a'\n", "quantize is no table of lists of selectors"),
        ("[quantize]\nmethod = ['mse']\n", "[quantize] has no option 'method' of selectors; there is bf16, exclude"),
        ('[[pass]]\nname = "sort"\n', "holds no [quantize]"),
    ],
)
def test_picks_that_are_none(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    said = cli(
        "quantize", DIGITS, "--picks", tmp_path / "p.toml", "--data", CALIB, "-o", tmp_path / "o.onnx", code=2
    ).err
    assert error in said


@pytest.mark.parametrize(
    ("body", "way"),
    [
        (
            "q = QuantizeLinear(x, s, z)  p = QLinearMatMul(q, s, z, w, s, z, s, z)  y = DequantizeLinear(p, s, z)",
            "convert-qoperators",
        ),
        (
            "q, a, b = DynamicQuantizeLinear(x)  p = MatMulInteger(q, w, b)  f = Cast<to = 1>(p)  g = Mul(a, s)  y = Mul(f, g)",
            "convert-qoperators,remove-dynamic-quantization",
        ),
    ],
)
def test_who_has_no_pairs_is_told_what_makes_some(tmp_path: Path, body: str, way: str) -> None:
    """The passes that are told run, and pairs of weights or of all can be edited then."""
    path = tmp_path / "m.onnx"
    text = f"g (float[1,4] x) => (float[1,4] y) <float s = {{0.5}}, uint8 z = {{8}}, uint8[4,4] w> {{ {body} }}"
    ir.save(model(text, {"w": np.arange(16, dtype=np.uint8).reshape(4, 4)}), path)
    found = editor(path, tmp_path)
    with pytest.raises(UsageError, match=f"changes nothing.*pair.*`{way}`|no scale.*`{way}`"):
        found.edit("qdq convert", {"dtype": "int16"}, Chosen(tensors=["p"]))
    found.edit("opt", {"text": way}, Chosen())
    assert [pair.kind for pair in qdq_pairs(load(found.current))].count("weight") == 1
