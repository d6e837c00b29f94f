"""set-batch: what takes fewer samples at a time computes of each what it did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.pipeline.pipeline import run_pipeline

import qdqtool
from qdqtool.runtime.session import open_session
from tests.cases.small_models import model
from tests.exports import exports

GOLDEN = Path(__file__).parents[2] / "golden" / "set-batch"


def fewer(given: ir.Model, size: int) -> ir.Model:
    done = run_pipeline(given, f"set-batch{{size={size}}}", copy=True)
    assert not [change for change in done.changes if change.kind == "skip"]
    return done.model


def same(given: ir.Model, size: int, feed: dict[str, np.ndarray], tolerance: float) -> None:
    count = len(next(iter(feed.values())))
    whole, few = open_session(given).run(feed), open_session(fewer(given, size))
    parts = [few.run({name: data[at : at + size] for name, data in feed.items()}) for at in range(0, count, size)]
    for name, found in whole.items():
        np.testing.assert_allclose(np.concatenate([part[name] for part in parts]), found, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "size"), [("acts_rows_and_heads", 1), ("acts_two_at_a_time", 1), ("acts_two_at_a_time", 2)]
)
def test_each_sample_has_its_result(name: str, size: int) -> None:
    """Products of at most 16 numbers of float32 below 100: summed in another order they differ by less than 16 · 100 · 2^-24."""
    text = (GOLDEN / f"{name}.onnxtxt").read_text(encoding="utf-8")
    given = model(text[text.index("<ir_version") :])
    shape = [dim for dim in given.graph.inputs[0].shape or () if isinstance(dim, int)]
    feed = {"x": np.random.default_rng(3).normal(size=shape).astype(np.float32)}
    same(given, size, feed, 16 * 100 * 2.0**-24)


def bound(name: str) -> ir.Model:
    """The export ``name``, bound to four samples and folded, as an exporter writes it that is given four."""
    given = ir.from_proto(exports.model(name))
    folded = "fold-constants,remove-no-ops{identities=true},fold-constants,remove-unused,infer-shapes"
    return run_pipeline(given, f'fix-shapes{{dims=["batch=4"]}},{folded}').model


def test_an_export_with_a_static_batch() -> None:
    """Logits are below 10, sums of up to 2048 numbers."""
    same(bound("resnet50.dynamo_dyn"), 1, exports.samples("resnet50.dynamo_dyn", 4), 10 * 2048 * 2.0**-24)


def test_what_is_not_known_to_keep_samples_apart_is_named() -> None:
    given = bound("bert.dynamo_dyn")  # its mask is looked up by numbers of samples and of tokens
    done = run_pipeline(given, "set-batch", copy=True)
    assert [change.where for change in done.changes if change.kind == "skip"] == ["node_GatherND_47"]
    assert [value.shape for value in done.model.graph.inputs] == [value.shape for value in given.graph.inputs]


def test_a_target_of_one_sample_says_so_and_takes_it_then(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    text = (GOLDEN / "acts_two_at_a_time.onnxtxt").read_text(encoding="utf-8")
    qdqtool.save(model(text[text.index("<ir_version") :]), path)
    data = np.random.default_rng(3).normal(size=(4, 2, 3, 3)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=data)
    four = qdqtool.quantize(path, data=str(tmp_path / "d.npz"), target="vitis_xint8")
    assert four.placed is not None
    assert four.placed.npu_compute_nodes == 0
    assert "`qdqtool opt -p set-batch`" in four.placed.refusals[0].suggestion
    one = qdqtool.quantize(fewer(qdqtool.load(path), 1), data=str(tmp_path / "d.npz"), target="vitis_xint8")
    assert one.placed is not None
    assert one.placed.npu_compute_nodes == one.placed.compute_nodes
