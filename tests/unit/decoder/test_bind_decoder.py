"""A decoder bound to sizes computes, bit for bit, what the dynamic one does on inputs of these sizes; and that of one token alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from qdq_passes import run_pipeline
from qdq_passes.decoder.edit.static import MAKERS
from qdq_passes.graph.edit import copy_model
from qdq_passes.pipeline.hooks import VerifyEach

import qdqtool
from qdqtool.runtime.session import Session, open_session

SAMPLES = Path(__file__).parents[3] / "sample_models"
VOCABULARY = 300


def builder(name: str) -> ModuleType:
    """A script of the sample models as a module; it imports its neighbours."""
    sys.path.insert(0, str(SAMPLES))
    try:
        spec = importlib.util.spec_from_file_location(name, SAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(SAMPLES))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2's shape with two layers of width 64."""
    path = tmp_path_factory.mktemp("qwen2") / "tiny.onnx"
    module = builder("qwen2_shape")
    shape = module.Shape(layers=2, hidden=64, heads=4, kv_heads=2, intermediate=96, vocabulary=VOCABULARY)
    module.write(path, shape, seed=3)
    return path


def bound(path: Path, sizes: tuple[int, int, int], more: str = "") -> ir.Model:
    batch, sequence, context = sizes
    model = qdqtool.load(path)
    text = f"bind-decoder{{batch={batch} sequence={sequence} context={context}}}{more}"
    run_pipeline(model, text, hooks=[VerifyEach()])
    return model


def feed_of(model: ir.Model, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    rng, feed = np.random.default_rng(seed), {}
    for value in model.graph.inputs:
        name, shape = value.name or "", [int(size) for size in value.shape or ()]
        if value.dtype == ir.DataType.FLOAT:
            feed[name] = rng.standard_normal(shape, np.float32)
        elif name == "attention_mask":
            feed[name] = np.ones(shape, np.int64)
            feed[name][:, :2] = 0
        elif name == "position_ids":
            feed[name] = np.broadcast_to(np.arange(shape[1]) + 40, shape).copy()
        elif name == "last_index":
            feed[name] = np.arange(shape[0]) + 1
        else:
            feed[name] = rng.integers(0, VOCABULARY, shape)
    return feed


def outputs(model: ir.Model | Path, feed: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    session: Session = open_session(model)
    found = session.run(feed)
    session.close()
    return {name: np.asarray(array) for name, array in found.items()}


@pytest.mark.parametrize("sizes", [(1, 8, 24), (1, 1, 24), (3, 4, 9), (2, 5, 5)])
def test_bits_are_those_of_the_dynamic_model(tiny: Path, sizes: tuple[int, int, int]) -> None:
    static = bound(tiny, sizes)
    batch, sequence, context = sizes
    for value in (*static.graph.inputs, *static.graph.outputs, *(v for n in static.graph for v in n.outputs)):
        assert value.shape is not None, value.name
        assert value.shape.is_static(), value.name
    assert not {node.op_type for node in static.graph} & set(MAKERS)
    feed = feed_of(static)
    assert feed["past_key_values.0.key"].shape == (batch, 2, context - sequence, 16)
    after, before = outputs(static, feed), outputs(tiny, feed)
    assert after.keys() == before.keys()
    for name in before:
        assert after[name].shape == before[name].shape
        assert after[name].tobytes() == before[name].tobytes(), name


def test_weights_are_not_read(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = qdqtool.load(tiny)

    def refuse(tensor: ir.ExternalTensor) -> npt.NDArray[Any]:
        raise AssertionError(f"{tensor.name} was read")

    monkeypatch.setattr(ir.ExternalTensor, "numpy", refuse)
    large = [v for v in model.graph.initializers.values() if v.const_value is not None and v.const_value.size > 8192]
    assert large
    for value in model.graph.initializers.values():  # what is small may be a constant to compute with
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and value not in large:
            value.const_value = ir.tensor(np.zeros(tensor.shape.numpy(), np.float32), name=value.name)
    run_pipeline(model, "bind-decoder{sequence=4 context=16},keep-last-logits,remove-nan-guards,remove-no-ops")


def test_a_copy_is_bound_and_the_source_stays_dynamic(tiny: Path) -> None:
    model = qdqtool.load(tiny)
    before = [str(value.shape) for value in model.graph.inputs]
    for sequence in (4, 1):
        copy = copy_model(model)
        run_pipeline(copy, f"bind-decoder{{sequence={sequence} context=16}}")
        assert [int(d) for d in copy.graph.inputs[0].shape or ()] == [1, sequence]
    assert [str(value.shape) for value in model.graph.inputs] == before


@pytest.mark.parametrize("sizes", [(1, 6, 16), (3, 6, 16)])
def test_logits_of_one_token_are_those_of_its_row(tiny: Path, sizes: tuple[int, int, int]) -> None:
    """On one row a runtime may choose another kernel: the sum of 64 products of about 0.1 is out by 64·2^-24 of its size at most."""
    static = bound(tiny, sizes, ",keep-last-logits")
    feed = feed_of(static)
    found = outputs(static, feed)
    index = feed.pop("last_index")
    full = outputs(tiny, feed)
    rows = np.stack([full["logits"][row, at] for row, at in enumerate(index)])[:, None]
    assert found["logits"].shape == (sizes[0], 1, VOCABULARY)
    np.testing.assert_allclose(found["logits"], rows, rtol=0, atol=64 * 2.0**-24 * np.abs(rows).max())
    for name in full:
        assert name == "logits" or found[name].tobytes() == full[name].tobytes()


def test_logits_of_one_token_of_a_dynamic_model(tiny: Path) -> None:
    model = qdqtool.load(tiny)
    run_pipeline(model, "keep-last-logits", hooks=[VerifyEach()])
    feed = feed_of(bound(tiny, (2, 3, 7)))
    full = outputs(tiny, feed)
    for index in ([0, 2], [1, 1]):
        found = outputs(model, {**feed, "last_index": np.array(index)})
        rows = np.stack([full["logits"][row, at] for row, at in enumerate(index)])[:, None]
        np.testing.assert_allclose(found["logits"], rows, rtol=0, atol=64 * 2.0**-24 * np.abs(rows).max())


def test_guards_go_without_a_change(tiny: Path) -> None:
    """The exporter's mask, the lowest float, leaves a row of padding a mean, never NaN: the guard does nothing there either."""
    guarded = bound(tiny, (1, 4, 12))
    free = bound(tiny, (1, 4, 12), ",remove-nan-guards")
    assert "IsNaN" in {node.op_type for node in guarded.graph}
    assert "IsNaN" not in {node.op_type for node in free.graph}
    feed = feed_of(guarded)
    feed["attention_mask"][:] = 0
    before, after = outputs(guarded, feed), outputs(free, feed)
    assert all(np.isfinite(array).all() for array in before.values())
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)


def test_the_builder(tmp_path: Path, tiny: Path) -> None:
    """Two builds give the same bytes, another seed others; onnx finds nothing wrong; the real sizes are those of Qwen2-0.5B."""
    module = builder("qwen2_shape")
    shape = module.Shape(layers=2, hidden=64, heads=4, kv_heads=2, intermediate=96, vocabulary=VOCABULARY)
    module.write(tmp_path / "tiny.onnx", shape, seed=3)
    assert (tmp_path / "tiny.onnx").read_bytes() == tiny.read_bytes()
    data = tiny.with_name("tiny.onnx.data").read_bytes()
    assert (tmp_path / "tiny.onnx.data").read_bytes() == data
    module.write(tmp_path / "tiny.onnx", shape, seed=4)
    assert (tmp_path / "tiny.onnx.data").read_bytes() != data
    onnx.checker.check_model(str(tiny), full_check=True)
    whole = module.Decoder(module.Shape(), "weights.data")
    graph = whole.decoder()
    assert len(graph.node) >= 2000
    assert sum(int(np.prod(dims)) for dims, _, _ in whole.drawn) == 494_032_768
    offsets = [int(entry.value) for t in graph.initializer for entry in t.external_data if entry.key == "offset"]
    assert all(offset % 4096 == 0 for offset in offsets)
