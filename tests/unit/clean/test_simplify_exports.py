"""`simplify` on exports of real architectures: no more nodes than onnxslim leaves, and the same outputs."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from qdq_passes.graph.uses import all_nodes, is_standard
from qdq_passes.pipeline.pipeline import Report, run_pipeline

from qdqtool.io.models.load import model_of
from qdqtool.runtime.session import RUNTIME, compute, open_session
from qdqtool.verbs.edits.pipelines import Simplify
from tests.exports import exports

#: Nodes that onnxslim 0.1.98 leaves of each (`python -m tests.bench simplifying` measures every third).
ONNXSLIM = {
    "bert.dynamo": 84, "bert.dynamo_dyn": 104, "bert.ts": 88, "clip.dynamo": 180, "clip.ts": 169, "convnext.dynamo": 88,
    "convnext.ts": 107, "deeplabv3.dynamo": 89, "deeplabv3.ts": 89, "densenet.dynamo": 80, "densenet.ts": 80,
    "efficientnet_b0.dynamo": 150, "efficientnet_b0.ts": 150, "googlenet.dynamo": 152, "googlenet.ts": 152,
    "mobilenet_v3.dynamo": 80, "mobilenet_v3.ts": 80, "resnet50.dynamo": 45, "resnet50.dynamo_dyn": 45, "resnet50.ts": 45,
    "ssdlite.dynamo": 156, "ssdlite.ts": 272, "swin.dynamo": 238, "swin.ts": 260, "vit.dynamo": 84, "vit.dynamo_dyn": 84,
    "vit.ts": 90, "whisper_encoder.dynamo": 69, "whisper_encoder.ts": 79,
}  # fmt: skip
#: The bound of fold-constants{what=all}, in units of the largest magnitude of an output.
BOUND = 2.0**-16
each_export = pytest.mark.parametrize("name", exports.names())


@cache
def simplified(name: str) -> tuple[ir.Model, Report]:
    """The export ``name`` after `simplify`, and what was done."""
    model = model_of(exports.model(name))
    return model, run_pipeline(model, Simplify(model="m.onnx").pipeline(), inputs={RUNTIME: compute})


def computed(model: ir.Model, name: str) -> dict[str, NDArray[Any]]:
    """What onnxruntime computes of the first sample as the model is written."""
    samples = exports.samples(name, 1)
    return dict(open_session(model).run({v.name or "": _fit(samples[v.name or ""], v) for v in model.graph.inputs}))


def _fit(array: NDArray[Any], value: ir.Value) -> NDArray[Any]:
    return array[0] if value.shape is not None and array.ndim > len(value.shape) else array


@pytest.mark.product(cover=(), extra=6)
@each_export
def test_no_more_nodes_than_onnxslim(name: str) -> None:
    model, _ = simplified(name)
    assert len(model.graph) <= ONNXSLIM[name]


@pytest.mark.product(cover=(), extra=6)
@each_export
def test_the_same_outputs(name: str) -> None:
    model, _ = simplified(name)
    before, after = computed(model_of(exports.model(name)), name), computed(model, name)
    assert list(before) == list(after)
    for key, old in before.items():
        new = after[key]
        assert old.shape == new.shape
        assert old.dtype == new.dtype
        np.testing.assert_allclose(new, old, rtol=0, atol=BOUND * float(np.abs(old).max(initial=0)))


@pytest.mark.product(cover=(), extra=6)
@each_export
def test_nothing_hangs_on_static_shapes(name: str) -> None:
    """What makes shapes is gone, but where detections are counted or the batch is symbolic."""
    model, _ = simplified(name)
    makers = [n for n in all_nodes(model) if is_standard(n, "Shape", "ConstantOfShape", "Range", "ScatterND", "Sqrt")]
    if not name.startswith("ssdlite") and not name.endswith("_dyn"):
        assert not makers


def test_a_second_run_finds_nothing() -> None:
    model, _ = simplified("vit.ts")
    assert not run_pipeline(model, Simplify(model="m.onnx").pipeline(), inputs={RUNTIME: compute}).modified
