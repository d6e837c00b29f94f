"""Setting and converting encodings on generated graphs: what is set reads back, exact conversions are exact, biases follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from qdq_passes.graph.dump import dump
from qdq_passes.graph.uses import all_nodes, all_values, constant_array
from qdq_passes.numerics.encoding import Encoding, integer_range
from qdq_passes.numerics.quantize import dequantize
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.biases import coupled_biases, product_at
from qdq_passes.qdq.look.pairs import Pair, encoding_of, qdq_pairs

from tests.cases.small_models import Observed
from tests.dial import sized
from tests.golden.numerics import outputs_of
from tests.properties.graphs import DETERMINISTIC, parse, texts

FEW = settings(DETERMINISTIC, max_examples=sized(40, 12))
INSERTED = "give-names,annotate-encodings{encodings=@ranges scales=%s},insert-qdq{weights=dq}"


@st.composite
def quantized(draw: st.DrawFn) -> ir.Model:
    """A generated graph with pairs on its activations, integer weights and int8 or (at s_x·s_w) int32 biases."""
    model = parse(draw(texts()))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    ranges = {
        value.name: Observed(*sorted(random.uniform(-4, 4, 2).tolist())) for value in all_values(model) if value.name
    }
    _run(model, INSERTED % draw(st.sampled_from(["any", "pow2"])), ranges)
    if draw(st.booleans()):
        _run(model, "convert-bias")
    return model


def _run(model: ir.Model, pipeline: str, ranges: Mapping[str, Observed] | None = None) -> list[str]:
    report = run_pipeline(model, pipeline, inputs={"ranges": ranges or {}}, hooks=[VerifyEach()])
    return [str(change) for change in report.changes]


def _encodings(model: ir.Model) -> dict[str, Encoding | None]:
    return {pair.tensor: pair.encoding for pair in qdq_pairs(model)}


def _constants(model: ir.Model) -> dict[str, npt.NDArray[Any]]:
    """Real values of every stored tensor, by its float name."""
    found = {}
    for pair in qdq_pairs(model):
        array, encoding = constant_array(pair.stored), pair.encoding
        if pair.q is None and array is not None and encoding is not None:
            found[pair.tensor] = dequantize(array, encoding)
    return found


def _choose(data: st.DataObject, pairs: list[Pair]) -> Pair:
    assume(pairs)
    return data.draw(st.sampled_from(pairs))


@FEW
@given(st.data(), quantized())
def test_what_is_set_reads_back(data: st.DataObject, model: ir.Model) -> None:
    """Of one tensor, any of scale, zero point and type; all the others keep what they had, but for biases that follow."""
    pair = _choose(data, [p for p in qdq_pairs(model) if p.kind != "bias"])
    before = _encodings(model)
    old = before[pair.tensor]
    assert old is not None
    dtype = data.draw(st.sampled_from(["int8", "uint8", "int16", "uint16"]))
    qmin, qmax = integer_range(ir.DataType[dtype.upper()], symmetric=False)
    zero_point = data.draw(st.sampled_from([qmin, qmax]) | st.integers(qmin, qmax))
    scale = data.draw(st.floats(2.0**-12, 4.0, width=32))
    fields = data.draw(st.sampled_from([("scale",), ("scale", "zero-point", "dtype"), ("zero-point", "dtype")]))
    values = {"scale": scale, "zero-point": zero_point, "dtype": dtype}
    options = " ".join(f"{name}={values[name]!r}".replace("'", "") for name in fields)
    _run(model, f'set-qdq{{select="tensor:{pair.tensor}" {options}}}')
    wanted = Encoding.per_tensor(
        ir.DataType[dtype.upper()] if "dtype" in fields else old.dtype,
        scale if "scale" in fields else old.scale[0],
        zero_point if "zero-point" in fields else int(old.zero_point[0]),
    )
    after = _encodings(model)
    assert after[pair.tensor] == wanted
    biases = {p.tensor for p in qdq_pairs(model) if p.kind == "bias"}
    assert {n: e for n, e in after.items() if n != pair.tensor and n not in biases} == {
        n: e for n, e in before.items() if n != pair.tensor and n not in biases
    }
    for one in coupled_biases(all_nodes(model)):
        product, encoding = product_at(one.node, one.index), one.bias.encoding
        assert isinstance(product, Encoding)
        assert encoding is not None
        assert encoding.scale == product.scale


@FEW
@given(quantized())
def test_wider_then_narrower_is_the_identity(model: ir.Model) -> None:
    """int8 → int16 → int8: encodings and stored integers; and stored values stay what they are in between."""
    before, text = _constants(model), dump(model)
    biases = {pair.tensor for pair in qdq_pairs(model) if pair.kind == "bias"}
    _run(model, "convert-encodings{dtype=int16}")
    for pair in qdq_pairs(model):
        assert pair.kind == "bias" or encoding_of(pair.dq).dtype == ir.DataType.INT16  # type: ignore[union-attr]
    between = _constants(model)
    for name, values in before.items():
        if name not in biases:
            np.testing.assert_array_equal(between[name], values)
    _run(model, "convert-encodings{dtype=int8}")
    assert _untyped(dump(model)) == _untyped(text)


def _untyped(text: str) -> str:
    """A dump without the types of integers between Q and DQ, which are written down once they change."""
    return "\n".join(line.split("= QuantizeLinear")[-1] for line in text.splitlines())


@FEW
@given(quantized())
def test_wider_weights_compute_the_same(model: ir.Model) -> None:
    before = outputs_of(model)
    _run(model, "convert-encodings{dtype=int16 kinds=[weight]}")
    _assert_equal(outputs_of(model), before)


@FEW
@given(quantized())
def test_the_other_sign_computes_the_same(model: ir.Model) -> None:
    """int8 → uint8 and back: outputs are bit-equal, and the way back is the identity."""
    before, text = outputs_of(model), dump(model)
    _run(model, "convert-encodings{dtype=uint8}")
    assert {e.dtype for e in _encodings(model).values() if e is not None} <= {
        ir.DataType.UINT8, ir.DataType.INT32, *_types_of_biases(model)
    }  # fmt: skip
    _assert_equal(outputs_of(model), before)
    _run(model, "convert-encodings{dtype=int8}")
    assert _untyped(dump(model)) == _untyped(text)


def _types_of_biases(model: ir.Model) -> set[ir.DataType]:
    return {e.dtype for p in qdq_pairs(model) if p.kind == "bias" and (e := p.encoding) is not None}


@FEW
@given(quantized())
def test_domains_round_trip(model: ir.Model) -> None:
    before, text = outputs_of(model), dump(model)
    _run(model, 'convert-qdq-domain{to="com.microsoft"}')
    assert all(node.domain == "com.microsoft" for pair in qdq_pairs(model) for node in (pair.q, pair.dq) if node)
    _assert_equal(outputs_of(model), before)
    for domain in ("com.vai.quantize", "com.amd.quark"):
        _run(model, f'convert-qdq-domain{{to="{domain}"}}')
        assert all(node.domain == domain for pair in qdq_pairs(model) for node in (pair.q, pair.dq) if node)
    _run(model, "convert-qdq-domain")
    assert dump(model) == text


@FEW
@given(quantized())
def test_fix_neurons_round_trip(model: ir.Model) -> None:
    """Where every scale is a power of two, pairs become FixNeurons and pairs again, and compute the same."""
    _run(model, "round-scales-pow2,convert-bias{to=int8}")
    before, encodings = outputs_of(model), _encodings(model)
    _run(model, "convert-qdq-domain{to=fix-neuron}")
    assert not any(pair.q is not pair.dq for pair in qdq_pairs(model))
    assert _encodings(model) == encodings
    _run(model, "convert-qdq-domain")
    _assert_equal(outputs_of(model), before)
    assert _encodings(model) == encodings


def test_biases_stay_within_half_a_step() -> None:
    """|ΔB| ≤ s/2, in float64 of the float32 numbers; what is int32 stands at s_x·s_w. One rounding of the bias's own float32."""
    acted = 0

    @settings(DETERMINISTIC, max_examples=40)  # also in the part: what it counts is over so many
    @given(quantized(), st.sampled_from(["int32", "int8"]))
    def holds(model: ir.Model, to: str) -> None:
        nonlocal acted
        before = _constants(model)
        _run(model, f"convert-bias{{to={to}}}")
        seen = 0
        for pair in qdq_pairs(model):
            encoding = pair.encoding
            if pair.kind != "bias" or encoding is None or pair.tensor not in before:
                continue
            seen += 1
            acted += 1
            assert encoding.dtype == ir.DataType[to.upper()]
            array = constant_array(pair.stored)
            assert array is not None
            exact = dequantize(array, encoding, np.float64)
            step = np.array(encoding.scale).reshape(encoding.shape)
            slack = 2.0**-24 * np.abs(before[pair.tensor])
            assert np.all(np.abs(exact - before[pair.tensor]) <= step / 2 + slack)
        if to == "int32":
            assert len({one.bias.tensor for one in coupled_biases(all_nodes(model))}) == seen

    holds()
    assert acted >= 5


def test_wider_boundaries_are_exact() -> None:
    """Reading 8-bit tensors as 16-bit ones changes no output; a second run finds nothing to do."""
    acted = 0

    @FEW
    @given(quantized())
    def holds(model: ir.Model) -> None:
        nonlocal acted
        before = outputs_of(model)
        text = "convert-boundaries{dtype=uint16}"
        biases = {
            pair.tensor for pair in qdq_pairs(model) if pair.encoding and pair.encoding.dtype == ir.DataType.INT32
        }
        _run(model, text)
        if not biases:  # those that follow s_x·s_w are rounded again
            acted += 1
            _assert_equal(outputs_of(model), before)
        assert all(change.startswith("skip") for change in _run(model, text))

    holds()
    assert acted >= 5


@FEW
@given(st.data(), quantized())
def test_boundaries_of_mixed_types(data: st.DataObject, model: ir.Model) -> None:
    """After some tensors went to 16 bits, every operator reads activations of one width, that of what it writes."""
    chosen = [p.tensor for p in qdq_pairs(model) if p.kind == "activation" and data.draw(st.booleans())]
    assume(chosen)
    names = ",".join(f'"tensor:{name}"' for name in chosen)
    _run(model, f"convert-encodings{{select=[{names}] dtype=int16 kinds=[activation]}},convert-boundaries")
    written = {p.tensor: p.encoding for p in qdq_pairs(model)}
    for node in model.graph:
        if node.op_type not in ("Conv", "Gemm", "MatMul", "Add", "Mul", "Softmax", "Concat"):
            continue
        output = written.get(node.outputs[0].name or "") or written.get(
            (node.outputs[0].name or "").removesuffix("_QuantizeLinear_Input")
        )
        read = {
            e.dtype.bitwidth
            for value in node.inputs
            if value is not None
            and (dq := value.producer()) is not None
            and dq.inputs[0] is not None
            and constant_array(dq.inputs[0]) is None
            and (e := encoding_of(dq)) is not None
        }
        assert output is None or read <= {output.dtype.bitwidth}
    assert all(change.startswith("skip") for change in _run(model, "convert-boundaries"))


@FEW
@given(
    st.data(),
    quantized(),
    st.sampled_from(["symmetric=false", "symmetric=true", "symmetric=false dtype=uint8", "dtype=uint16"]),
)
def test_converting_twice_changes_nothing_more(data: st.DataObject, model: ir.Model, options: str) -> None:
    granularity = data.draw(st.sampled_from(["", " granularity=per-axis", " granularity=per-tensor"]))
    pipeline = f"convert-encodings{{{options}{granularity}}}"
    _run(model, pipeline)
    text = dump(model)
    assert all(change.startswith("skip") for change in _run(model, pipeline))
    assert dump(model) == text


def test_per_axis_weights_lose_at_most_half_a_step() -> None:
    """A scale per channel covers the channel, so nothing is clipped; the largest weight of each keeps within half a step."""
    acted = 0

    @FEW
    @given(quantized())
    def holds(model: ir.Model) -> None:
        nonlocal acted
        before = _constants(model)
        _run(model, "convert-encodings{granularity=per-axis}")
        for pair in qdq_pairs(model):
            encoding, array = pair.encoding, constant_array(pair.stored)
            if pair.kind != "weight" or array is None or encoding is None or encoding.axis is None:
                continue
            step = encoding.granularity.expand(encoding.scale_array().astype(np.float64), array.shape)
            change = np.abs(dequantize(array, encoding, np.float64) - before[pair.tensor])
            acted += 1
            assert np.all(change <= step * (0.5 + 2.0**-16))  # 127 steps of a scale that is rounded by 2^-24, twice

    holds()
    assert acted >= 5


def _assert_equal(found: Mapping[str, npt.NDArray[Any]], wanted: Mapping[str, npt.NDArray[Any]]) -> None:
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)
