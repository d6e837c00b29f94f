"""What every model goes through besides load → save: each pass of the registry with its default options, and the rows below.

A pass whose options all have defaults needs no row. One with required options does; without it `steps_of` raises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import onnx
import onnx_ir as ir
from qdq_passes.core.base import EXACT, Keeps
from qdq_passes.core.registry import PASSES
from qdq_passes.encode.look.demands import QUANTIZED_OPS
from qdq_passes.errors import UsageError
from qdq_passes.legalize.split_operators import FORMS
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.pipeline.pipeline import Pipeline, bind, parse_pipeline

from tests.golden.fake_target import FakeTarget


@dataclass(frozen=True)
class Row:
    """A further pipeline that a pass is tried in.

    Args:
        text: the pipeline; its named inputs come from `INPUTS`.
        keeps: what the pipeline as a whole promises, where that is more than its passes do.
        without: operators; a model that has one of them is left out.
        runs: whether what runs a model must run the result too, even if it may compute something else.
    """

    text: str
    keeps: Keeps | None = None
    without: frozenset[str] = frozenset()
    runs: bool = False


_IMITATING = (
    "round-clip-bounds", "round-leaky-relu", "scale-average-pool", "scale-hard-sigmoid", "scale-reduce-mean",
    "sigmoid-to-hard-sigmoid",
)  # fmt: skip
_QDQ = frozenset({"QuantizeLinear", "DequantizeLinear"})
_ANNOTATE = "annotate-encodings{encodings=@ranges}"
_WIDE = "annotate-encodings{encodings=@ranges activations=uint16}"
#: Every policy of insertion at once.
_POLICIES = (
    "annotate-encodings{encodings=@ranges activations=uint8 weights=uint8 bias=int32 scales=any symmetric=false "
    "weights-symmetric=false per-axis=[Conv,ConvTranspose,Gemm,MatMul,LayerNormalization:-1,PRelu:0,Add:0] reduce-range=true "
    "min-range=0.001 outputs-stay-float=[Conv,Softmax] constant-b-only=true follow-input=true}"
)

#: What imitates a chip acts on quantized operators alone unless it is told otherwise.
_IMITATIONS = {
    name: (
        Row(f"{name}{{operators=all}}", runs=True),
        Row(f"{_ANNOTATE},insert-qdq{{weights=dq}},{name}", runs=True),
    )
    for name in _IMITATING
}

#: Quantized, assigned, then lowered by one pass; what comes out needs the library of the NPU to run.
_LOWERINGS = {
    f"lower-{family}": (
        Row(f"lower-{family}{{target=@target}}"),
        Row(
            f"{_ANNOTATE},insert-qdq{{weights={weights}}},infer-shapes,assign-targets{{target=@target}},"
            f"lower-{family}{{target=@target}}"
        ),
    )
    for family, weights in (
        ("convolutions", "qdq"), ("products", "dq"), ("elementwise", "dq"), ("tables", "qdq"), ("pools", "qdq"),
        ("movement", "dq"), ("softmax", "dq"), ("rotary-embeddings", "dq"),
        ("einsums", "dq"), ("norms", "dq"), ("floats", "dq"),
    )
}  # fmt: skip
#: Every operator in floating point, quantized or not.
_LOWERINGS["lower-floats"] = (
    Row("infer-shapes,assign-targets{target=@floats},lower-floats{target=@floats}"),
    Row(
        f"{_ANNOTATE},insert-qdq{{weights=dq}},infer-shapes,assign-targets{{target=@floats}},lower-floats{{target=@floats}}"
    ),
)

#: Pass → its rows. One with the bare name of the pass stands in for its default options.
ROWS: dict[str, tuple[Row, ...]] = {
    **_IMITATIONS,
    **_LOWERINGS,
    "adjust-ranges": (
        Row("adjust-ranges{ranges=@ranges}"),
        Row(f"adjust-ranges{{ranges=@ranges}},{_ANNOTATE},insert-qdq", runs=True),
    ),
    "annotate-encodings": (Row(_ANNOTATE), Row(f"{_POLICIES},insert-qdq{{dedicated=true}}", runs=True)),
    "apply-encodings": (
        Row("apply-encodings{encodings=@encodings}"),
        Row("apply-encodings{encodings=@encodings},insert-qdq"),
    ),
    "assign-targets": (
        Row("assign-targets{target=@target}"),
        Row("infer-shapes,assign-targets{target=@target}", runs=True),
    ),
    "clip-to-relu": (Row("clip-to-relu{clip6=true}", runs=True),),
    "convert-bias": (
        Row(f"{_ANNOTATE},insert-qdq{{weights=dq}},convert-bias", runs=True),
        Row("convert-bias{to=int8}"),
    ),
    "convert-boundaries": (Row(f"{_ANNOTATE},insert-qdq,convert-boundaries{{dtype=uint8}}"),),
    "convert-encodings": (
        Row("convert-encodings{dtype=uint8}"),
        Row(f"{_ANNOTATE},insert-qdq{{weights=dq}},convert-encodings{{granularity=per-axis symmetric=false}}"),
    ),
    "convert-layout": (Row("convert-layout,convert-layout{to=nchw}", EXACT),),
    "convert-opset": (Row("convert-opset", EXACT),),
    "convert-precision": (Row("convert-precision{dtype=float16}"),),
    "convert-qdq-domain": (Row('convert-qdq-domain{to="com.microsoft"},convert-qdq-domain', runs=True),),
    "convert-qoperators": (Row("convert-qoperators", runs=True),),
    "decompose-einsum": (Row(f"{_ANNOTATE},insert-qdq{{weights=dq}},infer-shapes,decompose-einsum", runs=True),),
    "narrow-second-factors": (Row(f"{_WIDE},insert-qdq,narrow-second-factors", runs=True),),
    "unify-widths": (
        Row(f"{_WIDE},insert-qdq{{weights=dq}},narrow-second-factors,unify-widths", runs=True),
        Row(f"{_WIDE},apply-encodings{{encodings=@encodings}},insert-qdq{{weights=dq}},unify-widths"),
    ),
    "dedicate-qdq": (Row(f"{_ANNOTATE},insert-qdq,dedicate-qdq,share-qdq", runs=True),),
    "fix-shapes": (Row("fix-shapes", EXACT),),
    "fold-batch-norm": (Row("fold-batch-norm{precision=float32 reference=true}", runs=True),),
    "fold-constants": (Row("fold-constants{what=all}"),),
    "fold-weight-qdq": (Row(f"{_ANNOTATE},insert-qdq,fold-weight-qdq", runs=True),),
    "isolate-concats": (Row(f"isolate-concats{{ranges=@ranges}},{_ANNOTATE},insert-qdq", runs=True),),
    "isolate-divisors": (Row(f"isolate-divisors{{ranges=@ranges}},{_ANNOTATE},insert-qdq", runs=True),),
    "isolate-operators": (
        Row(f"isolate-operators{{taken=[{','.join(QUANTIZED_OPS)}]}},{_ANNOTATE},insert-qdq", runs=True),
    ),
    "split-operators": (Row(f"split-operators{{operators=[{','.join(FORMS)}]}}", runs=True),),
    "insert-qdq": (Row(f"{_ANNOTATE},insert-qdq", runs=True), Row(f"{_ANNOTATE},insert-qdq{{weights=dq}}", runs=True)),
    "insert-dynamic-quantization": (
        Row("insert-dynamic-quantization", runs=True),
        Row(
            "insert-dynamic-quantization{granularity=per-token readers=all},remove-dynamic-quantization",
            EXACT,
            without=_QDQ,
        ),
    ),
    "move-qdq": (
        Row("move-qdq{direction=up}"),
        Row(f"{_ANNOTATE},insert-qdq,move-qdq,move-qdq{{direction=up}},fold-qdq", runs=True),
    ),
    "outline-partitions": (
        Row(
            f"{_ANNOTATE},insert-qdq{{weights=dq}},infer-shapes,assign-targets{{target=@target boundary=npu}},"
            "outline-partitions",
            runs=True,
        ),
    ),
    "remove-identity": (Row("remove-identity{names=removed}", runs=True),),
    "merge-reshapes": (Row("infer-shapes,merge-reshapes", EXACT),),
    "merge-slices": (Row("infer-shapes,merge-slices", EXACT),),
    "scatter-nd-to-concat": (Row("infer-shapes,scatter-nd-to-concat", EXACT),),
    "remove-no-ops": (Row("infer-shapes,remove-no-ops{names=removed identities=true}", runs=True),),
    "refine-positions": (
        Row(f"{_ANNOTATE},insert-qdq{{weights=dq}},refine-positions", runs=True),
        Row(f"{_ANNOTATE},insert-qdq,refine-positions{{stored=keep reference=true}}", runs=True),
    ),
    "remove-qdq": (Row("remove-qdq", runs=True), Row(f"{_ANNOTATE},insert-qdq,remove-qdq", EXACT, without=_QDQ)),
    "round-scales-pow2": (Row("round-scales-pow2", runs=True),),
    "split-large-pool": (Row("split-large-pool{largest=4}", runs=True),),
    "split-to-slice": (Row("split-to-slice{constant=node}", runs=True),),
    "annotate-kv-cache": (Row("annotate-kv-cache{ranges=@ranges}"),),
    "bound-attention-mask": (Row("bound-attention-mask{ranges=@ranges}"),),
    "correct-bias": (Row(f"{_ANNOTATE},insert-qdq,correct-bias{{statistics=@statistics}}", runs=True),),
    "observe": (Row("observe{data=@data runtime=@runtime}"),),
    "requantize-constants": (Row("requantize-constants{floats=@float}", EXACT),),
    "learn-rounding": (Row(f"{_ANNOTATE},insert-qdq,learn-rounding{{statistics=@statistics}}", runs=True),),
    "tune-weights": (Row(f"{_ANNOTATE},insert-qdq,tune-weights{{statistics=@statistics}}", runs=True),),
    "round-weights": (Row(f"{_ANNOTATE},insert-qdq,round-weights{{statistics=@statistics}}", runs=True),),
    "search-scales": (Row(f"{_ANNOTATE},insert-qdq,search-scales{{statistics=@statistics}}", runs=True),),
    "smooth-activations": (Row("smooth-activations{statistics=@statistics}"),),
    "set-qdq": (Row(f"{_ANNOTATE},insert-qdq,set-qdq{{scale=0.25 zero-point=1}}", runs=True, without=_QDQ),),
}


@dataclass(frozen=True)
class Range:
    """An observed range, as calibration would give it."""

    low: float = -8.0
    high: float = 8.0


class SameRange(Mapping[str, Range]):
    """The same range for every tensor there is."""

    def __getitem__(self, name: str) -> Range:
        return Range()

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class FakeRuntime:
    """Runs nothing; every value has the same range."""

    def observe(self, *_: object) -> SameRange:
        return SameRange()


#: Passes that need a named input although their options have defaults.
BOUND = ("annotate-encodings",)

#: Values of the named inputs that rows use.
INPUTS: dict[str, object] = {
    "ranges": SameRange(),
    "data": (),
    "runtime": FakeRuntime(),
    "encodings": dict.fromkeys(
        ("x", "X", "y", "Y", "data", "input", "result"), Encoding.per_tensor(ir.DataType.UINT8, 0.5, 128)
    ),
    "target": FakeTarget(),
    "floats": FakeTarget(floats=frozenset(schema.name for schema in onnx.defs.get_all_schemas())),
    # Of no layer, as the sizes of layers differ: what is done with statistics is tested in tests/properties/test_recover.py.
    "statistics": {},
    "float": {},
}


@dataclass(frozen=True)
class Step:
    """A pipeline that every model goes through.

    Args:
        text: the pipeline, named inputs unbound.
        pipeline: the pipeline, named inputs bound.
        keeps: what it promises.
        without: operators; a model that has one of them is left out.
        runs: whether the result must run in any case.
    """

    text: str
    pipeline: Pipeline
    keeps: Keeps
    without: frozenset[str] = frozenset()
    runs: bool = False


def step_of(row: Row) -> Step:
    """The step of a row."""
    pipeline = Pipeline(tuple(bind(pass_, INPUTS) for pass_ in parse_pipeline(row.text).passes))
    return Step(row.text, pipeline, row.keeps or kept_by(pipeline), row.without, row.runs)


def kept_by(pipeline: Pipeline) -> Keeps:
    """What all passes keep together: bounds add up."""
    kept = [pass_.keeps for pass_ in pipeline.passes]
    changing = [keeps for keeps in kept if keeps.numerics == "changes"]
    if changing:
        return changing[0]
    bounds = [keeps.bound for keeps in kept if keeps.numerics == "bounded"]
    return Keeps("bounded", sum(bounds)) if bounds else EXACT


@cache
def steps_of(name: str) -> tuple[Step, ...]:
    """The steps that stand for pass ``name``: its default options, if they are enough, and its rows.

    Raises:
        UsageError: the pass has required options and no row, or cannot be loaded.
    """
    rows = tuple(step_of(row) for row in ROWS.get(name, ()))
    if any(row.text == name for row in rows) or name in BOUND:
        return rows
    try:
        return (step_of(Row(name)), *rows)
    except UsageError as error:
        if rows:
            return rows
        raise UsageError(error.message, where=name, hint="give it a row in ROWS of tests/suites/steps.py") from error


@cache
def all_steps() -> tuple[Step, ...]:
    """Every step of every pass that can be tried; a pass without its row is left to its own test."""
    steps: dict[str, Step] = {}
    for name in PASSES.names():
        try:
            steps |= {step.text: step for step in steps_of(name)}
        except UsageError:
            continue
    return tuple(steps.values())
