"""Small decoders split and run: each row of each chunk against the dynamic model, fed whole."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.decoder.look.record import HIDDEN_FLOAT16
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.uses import all_nodes, all_values
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.io.models.load import load, model_of
from qdqtool.io.models.save import save
from qdqtool.llm import Session
from qdqtool.llm.plan.specializations import Specialization
from qdqtool.llm.plan.splitting import SplitPlan, split_model
from qdqtool.llm.run.dynamic import DynamicDecoder
from qdqtool.llm.run.verifying import TOLERANCE, verify_split
from qdqtool.verbs.split import split
from tests.cases.small_decoders import ADDED, CAUSAL, HEADS, IDS, MASK, SIZE, VOCABULARY, WIDTH, decoder, difference
from tests.golden_messages.refusal import refusal
from tests.unit.decoder.test_replace_positions import MORE, SOURCES


def in_half(model: ir.Model) -> ir.Model:
    """``model`` with every float32 as float16: inputs, outputs, constants, casts. In place."""
    for node in all_nodes(model):
        for attribute in list(node.attributes.values()):
            if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == ir.DataType.FLOAT:
                node.attributes[attribute.name] = ir.AttrTensor(attribute.name, _halved(attribute.as_tensor()))
            if (node.op_type, attribute.name) == ("Cast", "to") and attribute.as_int() == ir.DataType.FLOAT:
                node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.FLOAT16))
    for value in all_values(model):
        if value.const_value is not None and value.const_value.dtype == ir.DataType.FLOAT:
            value.const_value = _halved(value.const_value)
        if value.dtype == ir.DataType.FLOAT:
            value.dtype = ir.DataType.FLOAT16
    return model


def _halved(tensor: ir.TensorProtocol) -> ir.Tensor[Array]:
    """Beyond ±65504 the lowest or largest number, as exporters cast their masks."""
    return ir.Tensor(np.clip(tensor.numpy(), -65504, 65504).astype(np.float16), name=tensor.name)


def merged(model: ir.Model) -> ir.Model:
    """``model`` in the then-branch of an If, chosen by an input ``use_cache_branch``; the other branch gives zeros."""
    graph = ir.to_proto(model).graph
    outputs = list(graph.output)
    zeros = [
        onnx.helper.make_node(
            "ConstantOfShape", [f"{o.name}_zeros"], [f"{o.name}_none"], value=onnx.helper.make_tensor("v", 1, [1], [0])
        )
        for o in outputs
    ]
    shapes = [
        onnx.numpy_helper.from_array(np.array([1, 1, 1, 1][: len(o.type.tensor_type.shape.dim)]), f"{o.name}_zeros")
        for o in outputs
    ]
    makers = [onnx.helper.make_node("Constant", [], [shape.name], value=shape) for shape in shapes]
    nones = [onnx.helper.make_tensor_value_info(f"{o.name}_none", 1, None) for o in outputs]
    inner = [onnx.helper.make_tensor_value_info(f"{o.name}_inner", 1, None) for o in outputs]
    names = {o.name: f"{o.name}_inner" for o in outputs}
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    branch = onnx.helper.make_node(
        "If", ["use_cache_branch"], [o.name for o in outputs], name="merged",
        then_branch=onnx.helper.make_graph(list(graph.node), "with_past", [], inner),
        else_branch=onnx.helper.make_graph([*makers, *zeros], "without", [], nones),
    )  # fmt: skip
    flag = onnx.helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1])
    whole = onnx.helper.make_graph([branch], "g", [*graph.input, flag], outputs, initializer=list(graph.initializer))
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    return model_of(onnx.helper.make_model(whole, opset_imports=opsets, ir_version=8))


Array = npt.NDArray[Any]
#: Sums of as many terms in another order, in units of the largest logit: 2^-24 each, with room for a dozen of them.
CLOSE = 1e-6
#: In float16 a term is 2^-11 off; a sum of eight, through six sums one after the other.
CLOSE_HALF = 6 * 8 * 2.0**-11
LAYOUTS = ["in-place", "slide"]
GENAI = Path(__file__).parents[2] / "data" / "decoders" / "llama_genai_int4" / "model.onnx"


def tokens(count: int, row: int = 0) -> list[int]:
    return [int(n) for n in np.random.default_rng(row).integers(0, VOCABULARY, count)]


def worst(model: ir.Model, folder: Path, layout: str, rows: int, **options: Any) -> float:
    """Largest difference of any logit, prefill of several chunks and decode, in units of the largest logit."""
    source = folder / "model.onnx"
    save(model, source)
    split(
        source,
        folder / "split",
        prefill=(4,),
        context=(20,),
        batch=(rows,),
        layout=layout,
        overwrite=True,
        **options,  # type: ignore[arg-type]
    )
    session, dynamic = Session(folder / "split"), DynamicDecoder(source)
    texts = [tokens(18, row) for row in range(rows)]
    expected = []
    for text in texts:
        dynamic.reset()
        expected.append(dynamic.logits(text))
    scale = max(float(np.abs(logits).max()) for logits in expected)
    found = 0.0
    for first in (1, 4, 7):
        lengths = [first + 3 * row for row in range(rows)]
        session.reset()
        for step in range(6):
            pieces = [text[:n] if step == 0 else text[n + step - 1] for text, n in zip(texts, lengths, strict=True)]
            given: Any = pieces if rows > 1 else pieces[0]
            got = np.asarray(session.decode(given) if step else session.prefill(given)).reshape(rows, -1)
            for row, n in enumerate(lengths):
                found = max(found, float(np.abs(got[row] - expected[row][n - 1 + step]).max()))
    return found / scale


@pytest.mark.product(cover=("name", "layout"))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["range", "outer product", "a table of four dimensions cut"])
def test_rows_of_different_lengths(name: str, layout: str, tmp_path: Path) -> None:
    """Positions that the export counts for all rows together are counted for each."""
    model = decoder(ADDED, SOURCES[name][0], inputs=f"{IDS}, {MASK}", more=MORE)
    assert worst(model, tmp_path, layout, 2) <= CLOSE


#: Positions as OPT counts them, of the mask, whose symbols are its own; the batch of the hidden states is read of it, too.
COUNTED = """
  counted = CumSum(attention_mask, one) kept = Mul(counted, attention_mask) counted_all = Sub(kept, one)
  so_many = Shape <start = 2, end = 3> (past_key) last = Shape <start = 1, end = 2> (attention_mask)
  counted_new = Slice(counted_all, so_many, last, one_axis) rows = Add(counted_new, two) embedded = Gather(places, rows)
  placed = Add(words, embedded) batch = Shape <start = 0, end = 1> (attention_mask) new = Shape <start = 1, end = 2> (input_ids)
  sizes = Concat <axis = 0> (batch, new, width) x = Reshape(placed, sizes)"""


@pytest.mark.parametrize("layout", ["in-place", "slide"])
def test_a_mask_whose_size_alone_is_left(layout: str, tmp_path: Path) -> None:
    """Its symbols are those of no other input; it goes once its sizes are known."""
    source = decoder(
        positions=COUNTED, inputs=f"{IDS}, int64[s43,s53] attention_mask", more={"width": np.array([WIDTH])}
    )
    save(source, tmp_path / "opt.onnx")
    done = split(tmp_path / "opt.onnx", tmp_path / "out", prefill=(4,), context=(16,), layout=layout)
    for graph in done.graphs:
        names = [value.name for value in load(tmp_path / "out" / graph.parts[0].file).graph.inputs]
        assert "padding_mask" not in names
        assert "attention_mask" in names
    assert verify_split(tmp_path / "out", tmp_path / "opt.onnx").worst < TOLERANCE


def test_rows_that_cannot_be_told_apart_are_refused() -> None:
    model = decoder(ADDED, SOURCES["the sequence first"][0], inputs=f"{IDS}, {MASK}", more=MORE)
    plan = SplitPlan(specializations=(Specialization.of(2, 4, 20),))
    with refusal(UnsupportedError):
        split_model(model, plan)
    one = SplitPlan(specializations=(Specialization.of(1, 4, 20),))
    assert (
        len(
            split_model(
                decoder(ADDED, SOURCES["the sequence first"][0], inputs=f"{IDS}, {MASK}", more=MORE), one
            ).graphs
        )
        == 1
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_group_query_attention_of_a_batch(layout: str) -> None:
    """Its positions, a Range expanded to the batch, are replaced where they have rows; the size of a head is only named there."""
    plan = SplitPlan(specializations=(Specialization.of(2, 4, 20),), layout=layout)  # type: ignore[arg-type]
    graphs = split_model(load(GENAI), plan).graphs
    nodes, inputs = graphs[0].model.graph, graphs[0].model.graph.inputs
    assert [list(v.shape or ()) for v in inputs if v.name == "position_ids"] == [[2, 4]]
    assert not {n.op_type for n in nodes} & {"GroupQueryAttention", "Range", "Shape"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_half_precision(layout: str, tmp_path: Path) -> None:
    model = in_half(decoder(ADDED, SOURCES["range"][0], inputs=f"{IDS}, {MASK}", more=MORE))
    assert worst(model, tmp_path, layout, 2) <= CLOSE_HALF
    found = verify_split(tmp_path / "split", tmp_path / "model.onnx", lengths=[3, 9])
    assert found.tolerance == TOLERANCE
    assert found.is_half
    assert found.worst <= CLOSE_HALF


@pytest.mark.parametrize(("hidden", "is_finite"), [(HIDDEN_FLOAT16, True), (-65504.0, False)])
def test_a_row_of_padding_stays_finite_in_half_precision(hidden: float, is_finite: bool) -> None:
    """The first row of the first chunk is padding and sees no key. One token four times over: its scores are all alike, and in
    one of two heads -100 or less. Computed as the file says."""
    plan = SplitPlan(specializations=(Specialization.of(1, 4, 4),), layout="slide")
    source = in_half(decoder())
    source.graph.initializers["half"].const_value = ir.tensor(np.float16(40), name="half")
    graph = split_model(source, plan).graphs[0].model
    mask = np.full((1, 1, 4, 4), hidden, np.float16)
    mask[..., 1:, 1:] = np.where(np.tri(3, dtype=bool), 0, hidden)
    feed = {"input_ids": np.zeros((1, 4), np.int64), "position_ids": np.zeros((1, 4), np.int64), "attention_mask": mask}
    feed |= {name: np.zeros((1, HEADS, 0, SIZE), np.float16) for name in ("past_key", "past_value")}
    with np.errstate(all="ignore"):
        found = ReferenceEvaluator(ir.to_proto(graph)).run(None, feed | {"last_index": np.array([0])})
    assert isinstance(found, list)
    assert all(np.isfinite(array).all() for array in found) == is_finite


MERGED = "cut = Reshape(flat, split_heads) heads = Transpose <perm = [0, 2, 1, 3]> (cut)"
GROUPED = """heads_flat, present_key, present_value = com.microsoft.GroupQueryAttention
  <num_heads = 1, kv_num_heads = 1, local_window_size = 5> (xq, xk, xv, past_key, past_value, lengths, total32)
  m_shape = Shape(attention_mask) t_size = Gather <axis = 0> (m_shape, one) total32 = Cast <to = 6> (t_size)
  rows = ReduceSum <keepdims = 0> (attention_mask, one_axis) last = Sub(rows, one) lengths = Cast <to = 6> (last)
  flat = Identity(heads_flat) """
#: Attentions that keep cache and mask inside → opset, text.
KEEPING = {
    "Attention, causal": (
        23, "heads, present_key, present_value = Attention <is_causal = 1> (q, k, v, , past_key, past_value)",
    ),
    "Attention, masked": (
        23, CAUSAL + "heads, present_key, present_value = Attention (q, k, v, is_causal, past_key, past_value)",
    ),
    "MultiHeadAttention": (
        18, """flat, present_key, present_value = com.microsoft.MultiHeadAttention <num_heads = 2, unidirectional = 1>
        (xq, xk, xv, , , , past_key, past_value) """ + MERGED,
    ),
    "GroupQueryAttention": (18, GROUPED + MERGED),
    "GroupQueryAttention with a ring": (18, GROUPED.replace("local_", "sliding_window_cache = 1, local_") + MERGED),
}  # fmt: skip


def _window_counts(name: str, layout: str, decompose: bool) -> bool:
    """Whether the pieces are compared with onnxruntime's GroupQueryAttention, which lets a query see local_window_size + 1 keys
    in 1.23.2 and local_window_size in 1.31.1, which the decomposition follows."""
    return name.startswith("Group") and (decompose or layout == "slide")


@pytest.mark.product(cover=("name", "layout", "decompose"), extra=2)
@pytest.mark.parametrize(
    ("name", "layout", "decompose"),
    [
        pytest.param(*case, marks=[pytest.mark.newest] if _window_counts(*case) else [])
        for case in itertools.product(KEEPING, LAYOUTS, (False, True))
    ],
)
def test_attentions_that_keep_cache_and_mask(name: str, layout: str, decompose: bool, tmp_path: Path) -> None:
    opset, text = KEEPING[name]
    model = decoder(attention=text, opset=opset, joins=False)
    if "Group" in name:  # onnxruntime takes heads of multiples of 8
        for value in [*model.graph.inputs, *model.graph.outputs]:
            if "key" in (value.name or "") or "value" in (value.name or ""):
                assert value.shape is not None
                value.shape = ir.Shape([value.shape[0], 1, value.shape[2], HEADS * SIZE])
    assert worst(model, tmp_path, layout, 1, decompose=decompose) <= CLOSE


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_decoder_merged_with_the_one_without_a_cache(layout: str, tmp_path: Path) -> None:
    """The branch that reads the cache is left, and ``use_cache_branch`` is gone."""
    model = merged(decoder())
    with refusal(UnsupportedError):
        decoder_io(model)
    assert worst(model, tmp_path, layout, 2) <= CLOSE
    opened = run_pipeline(merged(decoder()), "choose-branch").model
    assert "use_cache_branch" not in [v.name for v in opened.graph.inputs]
    assert difference(decoder(), opened) == 0
