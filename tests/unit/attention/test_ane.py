"""Rewrites for Apple's Neural Engine: each keeps the logits of a real split, and weights are neither read nor doubled."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes import run_pipeline
from qdq_passes.decoder.look.cache_tensors import CacheWidths
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.decoder.look.record import Decoder
from qdq_passes.errors import ModelError, UnsupportedError, UsageError
from qdq_passes.graph.edit import Namer, copy_model, new_constant
from qdq_passes.graph.operators.moved_axes import REPEAT, Factor, sources_of
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.graph.uses import constant_array
from qdq_passes.legalize.edit.conv_weights import as_conv

from qdqtool import api
from qdqtool.io.models.load import load
from qdqtool.io.models.shared_weights import save_shared
from qdqtool.llm.plan.naming import load_naming
from qdqtool.llm.plan.specializations import Specialization
from qdqtool.llm.plan.splitting import SplitPlan, described, split_model
from qdqtool.llm.run.session import Session
from qdqtool.runtime.session import open_session
from tests.cases.small_models import model
from tests.dial import examples
from tests.golden_messages.refusal import refusal

Array = npt.NDArray[Any]
LLAMA = Path(__file__).parents[3] / "sample_models" / "tiny_llama.onnx"
#: Sums of at most 2^8 float32 products in another order, some layers deep, of logits about 1: 2^8·2^-24 a layer.
TOLERANCE = 1e-4
PASSES = (
    "split-attention-heads", "slice-queries{above=3}", "linear-to-conv", "linear-to-conv{weights=computed}",
    "pow-to-mul,split-attention-heads,slice-queries{above=3},linear-to-conv",
)  # fmt: skip


@cache
def static(batch: int) -> tuple[ir.Model, Decoder]:
    """The sample llama for 8 tokens and 16 slots. Not to be changed."""
    one = Specialization.of(batch, 8, 16)
    split = split_model(load(LLAMA), SplitPlan(specializations=(one,)))
    return split.graphs[0].model, split.graphs[0].decoder


def feed(decoder: Decoder, shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    """Tokens at positions 3 to 10, behind a cache of random numbers."""
    random = np.random.default_rng(5)
    rows, positions, slots = decoder.batch_size, np.arange(3, 3 + decoder.seq_len), np.arange(decoder.ctx_len)
    mask = np.where(slots <= positions[:, None], 0, -1e9).astype(np.float32)
    found: dict[str, Array] = {
        decoder.ids: random.integers(0, 50, (rows, decoder.seq_len)),
        decoder.positions: np.tile(positions, (rows, 1)),
        decoder.last_index: np.full(rows, decoder.seq_len - 1),
        decoder.masks[0].name: np.broadcast_to(mask, (rows, 1, *mask.shape)).copy(),
    }
    return found | {t.past: random.normal(size=shapes[t.past]).astype(np.float32) for t in decoder.cache}


@pytest.mark.product(cover=("batch", "pipeline"))
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("pipeline", PASSES)
def test_each_pass_alone_keeps_the_outputs(pipeline: str, batch: int) -> None:
    source, decoder = static(batch)
    session = open_session(source)
    given_ = feed(decoder, {n: tuple(map(int, s)) for n, s in session.input_shapes.items()})
    wanted = session.run(given_)
    work = copy_model(source)
    report = run_pipeline(work, pipeline)
    assert report.modified
    found = open_session(work).run(given_)
    for name, value in wanted.items():
        assert np.abs(found[name] - value).max() <= TOLERANCE * np.abs(value).max(), name


def test_a_block_stays_channels_first() -> None:
    """Between two attentions there is no layout change but the Transposes of the heads: q, k, v taken out, one joined, a layer."""
    work = copy_model(static(1)[0])
    layers = decoder_io(work).layers
    run_pipeline(work, "split-attention-heads,linear-to-conv")
    kinds = [node.op_type for node in work.graph]
    assert "MatMul" in kinds  # the two products of each head
    assert kinds.count("Squeeze") <= 2  # the last hidden state, the logits
    channels = [n for n in work.graph if n.op_type == "Transpose" and n.attributes["perm"].as_ints() == (0, 3, 1, 2)]
    assert len(channels) <= 2  # the embeddings, the row of the last token
    heads = [n for n in work.graph if n.op_type == "Transpose" and (n.inputs[0].producer() or n).op_type == "Reshape"]
    assert len(heads) == 3 * layers


def test_no_key_is_repeated_for_its_queries() -> None:
    work = copy_model(static(1)[0])
    heads = static_sizes(decoder_io(work).pairs[0].past)
    run_pipeline(work, "split-attention-heads")
    cut = [node for node in work.graph if node.op_type == "Split" and (node.inputs[0] or 0) in work.graph.outputs]
    assert heads is not None
    assert {len(node.outputs) for node in cut} == {heads[1]}


@pytest.mark.product(cover=("states", "batch"))
@pytest.mark.parametrize("states", ["two", "one"])
@pytest.mark.parametrize("batch", [1, 2])
def test_states_hold_what_the_layers_held(states: str, batch: int) -> None:
    source, decoder = static(batch)
    work = copy_model(source)
    run_pipeline(work, f"unify-kv-state{{states={states}}}")
    one = Specialization.of(batch, decoder.seq_len, decoder.ctx_len)
    unified = described(work, one, SplitPlan(specializations=(one,)))
    assert [(t.part, t.past) for t in unified.cache] == (
        [("key", "keyCache"), ("value", "valueCache")] if states == "two" else [("both", "kvCache")]
    )
    assert decoder_io(work).layers == decoder_io(source).layers
    assert Decoder.from_json(unified.to_json()) == unified
    session = open_session(source)
    given_ = feed(decoder, {n: tuple(map(int, s)) for n, s in session.input_shapes.items()})
    wanted = session.run(given_)

    def joined(part: str, values: dict[str, Array], *, past: bool) -> Array:
        parts = ("key", "value") if part == "both" else (part,)
        tensors = [t for p in parts for t in decoder.cache if t.part == p]
        return np.concatenate([values[t.past if past else t.present] for t in tensors])

    states_in = {t.past: joined(t.part, given_, past=True) for t in unified.cache}
    old = {t.past for t in decoder.cache}
    found = open_session(work).run({n: v for n, v in given_.items() if n not in old} | states_in)
    assert np.array_equal(found[decoder.logits], wanted[decoder.logits])
    for tensor in unified.cache:
        assert np.array_equal(found[tensor.present], joined(tensor.part, wanted, past=False))


def rows(folder: Path, batch: int) -> Array:
    """Logits of prompts of several lengths and of single tokens, through both contexts."""
    session, random = Session(folder, batch_size=batch), np.random.default_rng(1)
    found = []
    for count in (11, 3, 9):
        ids = [random.integers(0, 50, count + row).tolist() for row in range(batch)]
        found.append(session.prefill(ids if batch > 1 else ids[0]))
    for token in random.integers(0, 50, (5, batch)).tolist():
        found.append(session.decode(token if batch > 1 else token[0]))
    return np.stack(found)


@pytest.mark.product(days=4)
@pytest.mark.parametrize("batch", [1, 2])
def test_the_session_runs_the_ane_profile(batch: int, tmp_path: Path) -> None:
    said: list[str] = []
    for naming in ("exported", "ane"):
        api.split(
            LLAMA, tmp_path / naming, prefill=[8], context=[16, 48], batch=[batch], naming=naming, warn=said.append
        )
    wanted, found = rows(tmp_path / "exported", batch), rows(tmp_path / "ane", batch)
    assert np.abs(found - wanted).max() <= TOLERANCE * np.abs(wanted).max()
    sizes = [sum(p.stat().st_size for p in (tmp_path / n).glob("*.data")) for n in ("exported", "ane")]
    tables = 2 * (16 + 48) * 32 * 4 + 4 * 4096  # cosines and sines of both contexts, each on a page
    assert sizes[1] <= sizes[0] + tables  # no weight is stored twice
    assert any("sizes 48 of" in text and "are no powers of two" in text for text in said)
    assert len(said) == len(set(said))


def test_the_profile_takes_one_layout() -> None:
    profile = load_naming("ane")
    one = Specialization.of(1, 8, 16)
    with refusal(UsageError):
        profile.applied(SplitPlan(specializations=(one,), layout="slide"))
    assert profile.applied(SplitPlan(specializations=(one,))).decompose
    assert profile.applied(SplitPlan(specializations=(one,))).tabulate_angles


@pytest.mark.parametrize("text", ["last_axis_bytes = -1", "last_axis_bytes = 1.5", "powers_of_two = 1", "other = 1"])
def test_a_broken_profile_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'description = "mine"\n[cache]\n{text}\n')
    with refusal(ModelError):
        load_naming(path)


def test_widths() -> None:
    widths = CacheWidths(last_axis_bytes=64, powers_of_two=True, itemsize=2)
    assert widths.complaints([3, 2, 64, 32], 4) == []
    assert widths.complaints([2, 2, 64, 48], 4) == [
        "its last axis of 48 is 96 bytes, padded to 128: 1.33 times the memory",
        "sizes 48 of [2, 2, 64, 48] are no powers of two",
    ]
    assert CacheWidths(last_axis_bytes=64).complaints([1, 3, 5, 16], 4) == []


def test_mixed_states_are_refused() -> None:
    """Keys and values by turns in one state: which slots are which part cannot be told."""
    source = copy_model(static(1)[0])
    graph, namer = source.graph, Namer(source)
    run_pipeline(source, "unify-kv-state{states=one}")
    join = next(node for node in graph if node.name == "kvCache_Concat")
    slices = [node for node in graph if node.op_type == "Slice" and node.inputs[0].name == "kvCache"]
    slices.sort(key=lambda node: int(constant_array(node.inputs[1])[0]))
    half = len(slices) // 2
    for node, number in ((slices[1], half), (slices[half], 1)):
        for index, bound in ((1, number), (2, number + 1)):
            node.replace_input_with(index, new_constant(graph, namer, "bound", np.array([bound], np.int64)))
    first, second = join.inputs[1], join.inputs[half]
    join.replace_input_with(1, second)
    join.replace_input_with(half, first)
    with refusal(UnsupportedError):
        decoder_io(source)


class Unread(ir.Tensor[npt.NDArray[np.float32]]):
    """Counts how often it is read."""

    reads = 0

    def numpy(self) -> npt.NDArray[np.float32]:
        Unread.reads += 1
        return super().numpy()


def test_a_weight_is_read_when_it_is_saved_and_not_before() -> None:
    graph = model("g (float[1,2,64] x) => (float[1,2,64] y) <float[2] w = {1,2}> { [fc] y = MatMul(x, w) }")
    array = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    value = new_constant(graph.graph, Namer(graph), "large", Unread(array, name="large"))
    graph.graph[0].replace_input_with(1, value)
    Unread.reads = 0
    run_pipeline(graph, "linear-to-conv")
    assert Unread.reads == 0
    made = graph.graph.initializers["large_conv"].const_value
    assert made is not None
    assert np.array_equal(made.numpy(), array.T.reshape(64, 64, 1, 1))
    assert "large" not in graph.graph.initializers


def test_a_weight_in_a_file_that_need_not_move_stays_there(tmp_path: Path) -> None:
    array = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    (tmp_path / "w.data").write_bytes(b"\0" * 128 + array.tobytes())
    tensor = ir.ExternalTensor(
        "w.data",
        128,
        array.nbytes,
        ir.DataType.FLOAT,
        shape=ir.Shape(array.shape),
        name="w",
        base_dir=os.fspath(tmp_path),
    )
    kept, moved = as_conv(tensor, "kept", is_turned=True), as_conv(tensor, "moved", is_turned=False)
    assert isinstance(kept, ir.ExternalTensor)
    assert (kept.offset, kept.shape.numpy()) == (128, (64, 32, 1, 1))
    assert np.array_equal(kept.numpy()[:, :, 0, 0], array)
    assert np.array_equal(moved.numpy()[:, :, 0, 0], array.T)
    graph = model("g (float[64] x) => (float[64] y) { [n] y = Neg(x) }")
    for each in (tensor, kept):
        new_constant(graph.graph, Namer(graph), each.name or "", each)
    save_shared({"m.onnx": graph}, tmp_path / "out")
    assert sum(p.stat().st_size for p in (tmp_path / "out").glob("*.data")) == array.nbytes


@st.composite
def moves(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[str, list[int]]]]:
    """Sizes, and operators that move elements, with their parameter."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=2, max_size=4))
    now, steps = list(sizes), []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["Transpose", "Reshape", "Unsqueeze", "Expand", "Tile"]))
        if kind == "Transpose":
            steps.append((kind, draw(st.permutations(range(len(now))))))
            now = [now[axis] for axis in steps[-1][1]]
        elif kind == "Unsqueeze" and len(now) < 6:
            axis = draw(st.integers(0, len(now)))
            steps.append((kind, [axis]))
            now.insert(axis, 1)
        elif kind == "Reshape":
            now = draw(st.sampled_from(_shapes(int(np.prod(now)))))
            steps.append((kind, list(now)))
        elif kind in ("Expand", "Tile") and int(np.prod(now)) < 300:
            repeats = [draw(st.sampled_from([1, 2])) if kind == "Tile" or size == 1 else 1 for size in now]
            steps.append((kind, [r * s for r, s in zip(repeats, now, strict=True)] if kind == "Expand" else repeats))
            now = [r * s for r, s in zip(repeats, now, strict=True)]
    return tuple(sizes), steps


def _shapes(count: int) -> list[list[int]]:
    found = [[count]] + [[a, count // a] for a in range(1, count + 1) if count % a == 0]
    return found + [[*shape[:-1], b, shape[-1] // b] for shape in found for b in (2, 3) if shape[-1] % b == 0]


def _moved(array: Array, steps: Sequence[tuple[str, list[int]]]) -> Array:
    for kind, parameter in steps:
        if kind == "Transpose":
            array = array.transpose(parameter)
        elif kind == "Unsqueeze":
            array = np.expand_dims(array, parameter[0])
        elif kind == "Tile":
            array = np.tile(array, parameter)
        else:
            array = array.reshape(parameter) if kind == "Reshape" else np.broadcast_to(array, parameter)
    return array


def _indices(factors: Sequence[Factor], strides: Sequence[int]) -> Array:
    """What each index along an axis adds to the flat index in the source."""
    found = np.zeros(1, np.int64)
    for factor in factors:
        step = 0 if factor.source == REPEAT else factor.stride * strides[factor.source]
        found = (found[:, None] + step * np.arange(factor.size)).ravel()
    return found


@settings(max_examples=examples(150), deadline=None)
@given(moves())
def test_factors_tell_where_each_element_comes_from(case: tuple[tuple[int, ...], list[tuple[str, list[int]]]]) -> None:
    sizes, steps = case
    source = np.arange(int(np.prod(sizes))).reshape(sizes)
    value = ir.Value(name="x", shape=ir.Shape(sizes))
    at = value
    for number, (kind, parameter) in enumerate(steps):
        inputs: list[ir.Value] = [at]
        if kind != "Transpose":
            tensor = ir.tensor(np.array(parameter, np.int64))
            inputs.append(ir.Value(name=f"p{number}", const_value=tensor))
        attributes = {"perm": parameter} if kind == "Transpose" else {}
        node = ir.node(kind, inputs, attributes)
        at = node.outputs[0]
        at.shape = ir.Shape(_moved(source, steps[: number + 1]).shape)
    for moved in sources_of(at, static_sizes):
        if moved.source is value:
            strides = [int(np.prod(sizes[axis + 1 :])) for axis in range(len(sizes))]
            flat = np.zeros((), np.int64)
            for factors in moved.axes:
                flat = flat[..., None] + _indices(factors, strides)
            assert np.array_equal(flat, _moved(source, steps))


def test_a_factor_is_not_cut_between_its_digits() -> None:
    """[4, 3] as [6, 2]: an index of the first axis is no sum of digits of both."""
    x = ir.Value(name="x", shape=ir.Shape([4, 3]))
    node = ir.node("Reshape", [x, ir.Value(name="s", const_value=ir.tensor(np.array([6, 2], np.int64)))])
    node.outputs[0].shape = ir.Shape([6, 2])
    assert [moved.source for moved in sources_of(node.outputs[0], static_sizes)] == [node.outputs[0]]
