"""What the tests of reading and writing files share."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, QdqError, UnsupportedError

from qdqtool.io.models.load import load
from tests.cases.small_models import model

HEADER = '<ir_version: 10, opset_import: ["" : 21, "f" : 1]>'
GRAPH = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { [n] y = Add (x, w) }"
#: Bytes of each weight below: over the threshold of external data, a whole page.
BIG = 4096


def weighted(**weights: int) -> ir.Model:
    """y0 + a + b…, for each name a weight of `BIG` bytes, full of the given number."""
    tensors = ", ".join(f"float[1024] {name} = {{{', '.join([str(value)] * 1024)}}}" for name, value in weights.items())
    nodes = " ".join(f"y{i + 1} = Add (y{i}, {name})" for i, name in enumerate(weights))
    return model(f"g (float[1024] y0) => (float[1024] y{len(weights)}) <{tensors}> {{ {nodes} }}")


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def refused(path: Path, *words: str, unsupported: bool = False) -> str:
    """Load must refuse ``path`` in one line with ``words``, and write nothing; the line."""
    folder = path.parent if path.parent.is_dir() else Path()
    before = sorted(folder.iterdir())
    with pytest.raises(QdqError) as caught:
        load(path)
    line = str(caught.value)
    assert type(caught.value) is (UnsupportedError if unsupported else ModelError)
    assert caught.value.exit_code == (3 if unsupported else 2)
    assert "\n" not in line
    assert line.startswith(str(path))
    assert caught.value.hint
    assert len(line) < len(str(path)) + 800
    for word in words:
        assert word in line, line
    assert sorted(folder.iterdir()) == before
    return line


def parsed(text: str = GRAPH) -> onnx.ModelProto:
    return onnx.parser.parse_model(text if text.startswith("<") else f"{HEADER} {text}")


def write(folder: Path, proto: onnx.ModelProto) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path
