"""LPBQ: blocks whose scale is a small integer times the scale of their channel, in files and in models."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.errors import QdqError
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import qdq_pairs

import qdqtool
from qdqtool.runtime.session import open_session
from tests.cases.encodings_helpers import DATA, back, there
from tests.cases.small_models import model


def test_lpbq_becomes_blocks() -> None:
    """Scale = factor · scale of the channel; the integers are those that this scale gives."""
    done = qdqtool.import_encodings(DATA / "model.onnxtxt", DATA / "aimet_1_0_0.json")
    pair = next(p for p in qdq_pairs(done.model) if p.tensor == "fc.weight")
    assert pair.encoding == Encoding(
        dtype=ir.DataType.INT4, scale=(0.5, 1.0, 0.75, 1.0), zero_point=(0,) * 4, shape=(2, 2), axis=1, block_size=2
    )
    weight = np.array([[0.5, 1.0, 2.0, -3.0], [0.75, -1.5, 1.0, 7.0]], np.float32)
    by_hand = np.rint(weight / np.array([[0.5, 0.5, 1, 1], [0.75, 0.75, 1, 1]], np.float32))
    assert pair.stored is not None
    assert pair.stored.const_value is not None
    np.testing.assert_array_equal(pair.stored.const_value.numpy().astype(np.float32), by_hand)
    assert open_session(done.model).run({"x": np.ones((1, 2, 2, 2), np.float32)})["y"].shape == (1, 2)


LPBQ_MODEL = """g (float[1,4] x) => (float[1,3] y) <int4[3,4] w_q = {33, 67, 121, 31, 18, 52}, uint8[3,2] f = {1, 2, 3, 4, 5, 16}, float[3] c = {0.1, 0.2, 0.3}>
  { [sd] s = DequantizeLinear<axis: int = 0>(f, c) [wd] w = DequantizeLinear<axis: int = 1, block_size: int = 2>(w_q, s)
    [m] y = Gemm<transB: int = 1>(x, w) }"""


@pytest.mark.parametrize("format_name", ["aimet-1.0.0", "aimet-2.0.0", "aimet-2.1.0"])
def test_lpbq_stays_lpbq(format_name: str) -> None:
    """AIMET's own models compute the scales of blocks; ours hold them, and remember the factors. Both are LPBQ in the file."""
    before = model(LPBQ_MODEL)
    bare, document, _ = there(before, format_name)
    entry = document["encodings"][0] if "encodings" in document else document["param_encodings"][0]
    assert entry["per_block_int_scale"] in ([1, 2, 3, 4, 5, 16], [[1, 2], [3, 4], [5, 16]])
    done = back(bare, document)
    _, again, _ = there(done.model, format_name)
    assert (again.get("encodings"), again.get("param_encodings")) == (
        document.get("encodings"),
        document.get("param_encodings"),
    )
    feed = {"x": np.array([[1, 2, 3, 4]], np.float32)}
    np.testing.assert_array_equal(open_session(done.model).run(feed)["y"], open_session(before).run(feed)["y"])


def test_factors_that_no_longer_make_the_scales() -> None:
    bare, document, _ = there(model(LPBQ_MODEL), "aimet-2.0.0")
    graph = back(bare, document).model
    dq = next(node for node in graph.graph if "qdqtool.lpbq" in node.metadata_props)
    scale = dq.inputs[1]
    assert scale is not None
    assert scale.const_value is not None
    scale.const_value = ir.tensor(scale.const_value.numpy() * 2)
    _, again, _ = there(graph, "aimet-2.0.0")
    assert "y_scale" in again["encodings"][0]
    dq.metadata_props["qdqtool.lpbq"] = "{"
    with pytest.raises(QdqError, match=r"its metadata qdqtool.lpbq is broken"):
        there(graph, "aimet-2.0.0")
