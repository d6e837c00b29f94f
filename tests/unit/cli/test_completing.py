"""What the shell completes, asked as bash asks."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from qdqtool.cli.main import cli
from tests.cases.cli_helpers import DIGITS


def completed(*words: str) -> list[str]:
    """What the last of ``words`` may become; a file is ``FILE`` or a folder ``DIR``, which the shell completes."""
    asked = BashComplete(cli, {}, "qdqtool", "_QDQTOOL_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [each.value if each.type == "plain" else each.type.upper() for each in asked]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("quant",), ["quantize"]),
        (("qdq", "re"), ["remove"]),
        (("quantize", "--save-ra"), ["--save-ranges"]),
        (("quantize", "--preset", "xint8"), ["xint8", "xint8-compat", "FILE"]),
        (("analyze", "m.onnx", "--target", "vitis"), ["vitis_xint8", "FILE"]),
        (("calibrate", "m.onnx", "--method", "pow2-m"), ["pow2-minmse"]),
        (("opt", "m.onnx", "-p", "sort,fold-bat"), ["sort,fold-batch-norm"]),
        (("opt", "m.onnx", "-p", "@edits"), ["FILE"]),
        (("quantize", "dig"), ["FILE"]),
        (("quantize", "m.onnx", "--exclude", "role:so"), ["role:softmax"]),
        (("quantize", "m.onnx", "--exclude", "!af"), ["!after:"]),
        (("quantize", "m.onnx", "--exclude", "op:C"), []),
        (("quantize", DIGITS, "--exclude", "op:C"), ["op:Concat", "op:Conv"]),
        (("quantize", DIGITS, "--exclude", "op:Relu & in:op:Con"), ["op:Relu & in:op:Concat", "op:Relu & in:op:Conv"]),
        (("match", DIGITS, "/head/fc"), ["/head/fc"]),
    ],
    ids=lambda value: " ".join(value).replace(DIGITS, "digits") if isinstance(value, tuple) else None,
)
def test_completion(words: tuple[str, ...], wanted: list[str]) -> None:
    assert completed(*words) == wanted


def test_a_file_that_is_no_model_has_no_nodes(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    assert completed("quantize", str(tmp_path / "broken.onnx"), "--exclude", "op:") == []
