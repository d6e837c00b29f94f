"""What a target lacks is written with what it has."""

from __future__ import annotations

import pytest
from qdq_passes.clean.infer_shapes import InferShapes
from qdq_passes.core.registry import PASSES
from qdq_passes.fuse.edit.fusion import SINCE, FusionPass
from qdq_passes.legalize.split_operators import SplitOperators
from qdq_passes.pipeline.pipeline import Pipeline, parse_pipeline

from qdqtool.presets.loading import load_preset
from qdqtool.quantization.lowerings import FUSIONS, LOWERINGS, fused_for, lowerings
from qdqtool.quantization.plan import plan
from qdqtool.targets.loading import load_target


def written(taken: tuple[str, ...]) -> set[str]:
    """The operators that are written with others for a target that takes ``taken``, by form or by pass."""
    passes = lowerings(taken).passes
    forms = [name for p in passes if isinstance(p, SplitOperators) for name in p.operators]
    return {*forms, *(p.name() for p in passes if not isinstance(p, SplitOperators | InferShapes))}


@pytest.mark.parametrize(
    ("taken", "wanted"),
    [
        (("HardSigmoid", "Mul"), {"split-hard-swish", "pow-to-mul", "Div", "Neg"}),
        (("HardSwish", "HardSigmoid", "Div", "Mul", "Neg", "Pow"), {"Reciprocal"}),
        (("Relu",), set()),
        (("Exp", "Min", "Relu"), set()),
        (("Clip", "HardSigmoid", "LeakyRelu", "PRelu", "Add", "Mul"), {"split-hard-swish"}),
        (("Clip", "LeakyRelu", "PRelu", "Add", "Mul"), {"HardSigmoid", "HardSwish"}),
    ],
    ids=["lacks it", "has it", "one", "lacks a piece", "by a pass", "by a form"],
)
def test_an_operator_is_written_with_what_there_is(taken: tuple[str, ...], wanted: set[str]) -> None:
    anyhow = {"BatchNormalization", "Div", "Mean", "Neg", "Sub", "Sum", "pow-to-mul"} if "Add" in taken else set()
    assert written(taken) == wanted | anyhow


@pytest.mark.parametrize(("target", "is_split"), [("vitis_xint8", True), ("generic_int8", False)])
def test_the_tables_of_a_target_choose(target: str, is_split: bool) -> None:
    made = plan(load_preset("xint8"), ops=load_target(target).quantized_ops())
    assert ("split-hard-swish" in [p.name() for p in made.prepare.passes]) == is_split


def test_all_of_them_are_passes() -> None:
    assert {row.pass_name for row in LOWERINGS} <= set(PASSES.names())


@pytest.mark.parametrize(
    ("taken", "wanted"),
    [
        (("Gelu",), "fuse-gelu{raise-opset=true}"),
        (("Add", "Div", "Erf", "Mul"), ""),
        (("Erf",), "fuse-gelu"),
    ],
    ids=["has it", "has its pieces", "has neither"],
)
def test_a_fusion_is_as_a_target_takes_it(taken: tuple[str, ...], wanted: str) -> None:
    assert str(fused_for(parse_pipeline("fuse-gelu"), taken)) == wanted


def test_the_length_of_a_vector_stays_in_pieces_where_only_those_are_taken() -> None:
    pieces = ("Clip", "Div", "Expand", "ReduceL2")
    whole = fused_for(parse_pipeline("fuse-l2-norm"), (*pieces, "LpNormalization"))
    assert str(fused_for(parse_pipeline("fuse-l2-norm"), pieces)) == ""
    assert str(whole) == "fuse-l2-norm{raise-opset=true}"


def test_a_norm_about_0_is_written_with_the_norm_that_there_is() -> None:
    found = fused_for(parse_pipeline("fuse-rms-norm"), ("Concat", "LayerNormalization", "Mul", "Slice"))
    assert str(found) == "fuse-rms-norm{raise-opset=true layer-norm=true}"


def test_no_model_is_brought_to_an_opset_that_npus_do_not_know() -> None:
    found = fused_for(
        parse_pipeline("fuse-silu,fuse-rms-norm,fuse-layer-norm"), ("Mul", "RMSNormalization", "Sigmoid", "Swish")
    )
    assert str(found) == "fuse-rms-norm,fuse-layer-norm"


def test_fusions_name_what_their_passes_make() -> None:
    assert all(issubclass(PASSES.load(row.pass_name), FusionPass) and row.op in SINCE for row in FUSIONS)


RECURRENT = ("Add", "Concat", "MatMul", "Mul", "Sigmoid", "Slice", "Sub", "Tanh", "Unsqueeze")


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("vitis_xint8", ["unroll-recurrent"]),
        ("qnn_htp", ["unroll-recurrent{operators=[RNN]}"]),  # GRU and LSTM it computes in float16
        ("", ["unroll-recurrent{operators=[GRU,RNN]}"]),
    ],
)
def test_recurrent_operators_are_written_out_where_a_target_has_none(target: str, wanted: list[str]) -> None:
    if target:
        chip = load_target(target)
        made = plan(load_preset("xint8"), ops=chip.quantized_ops(), legalization=chip.legalization).prepare
    else:
        made = lowerings((*RECURRENT, "LSTM"))
    assert [str(Pipeline((p,))) for p in made.passes if p.name() == "unroll-recurrent"] == wanted
