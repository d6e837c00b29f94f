"""annotate-encodings"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Named, Pass, skip
from qdq_passes.encode.edit.encoding_policy import EncodingPolicy, Ranges, check_min_scale
from qdq_passes.encode.edit.precision import ObservedRange, float_nodes, is_stored_otherwise, whole_range
from qdq_passes.encode.edit.weight_policy import check_blocks, parse_weight_types
from qdq_passes.encode.edit.whole_groups import is_inside_whole, touched_by, whole_groups
from qdq_passes.encode.look.demands import QUANTIZED_OPS, Demands, Rules, demands_of, sharing_outputs
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import DEMAND, ENCODING, FUSED, OBSERVED, SHARED, STYLE, Demand, Shared, Style
from qdq_passes.graph.evaluate.exact import REARRANGING
from qdq_passes.graph.operators.channels import parse_per_axis
from qdq_passes.graph.uses import SHARING, all_values, has_body, is_constant, is_standard, label, main_nodes
from qdq_passes.numerics.encoding import Encoding, parse_dtype
from qdq_passes.numerics.override import parse_overrides
from qdq_passes.qdq.edit.biases import bias_encoding, widen_weight
from qdq_passes.qdq.edit.checks import OperatorDomain, domain_named
from qdq_passes.select.selectors import ALL, NONE, Selector, select_nodes

ActivationType = Literal["int8", "uint8", "int16", "uint16", "none"]
WeightType = Literal["int8", "uint8", "int16", "uint16", "int4", "uint4"]
BiasType = Literal["int8", "int16", "int32", "none"]

#: How the reason begins why a bias that was to be int32 is not.
STAYS_FLOAT = "stays float: "


@dataclass(frozen=True)
class AnnotateEncodings(Pass):
    """Choose an encoding for every tensor that an operator to be quantized demands, and annotate it. `insert-qdq` makes it real.

    Activations get theirs from ``encodings`` (observed ranges, or ready encodings, by tensor name; the annotation ``observed``
    goes before an observed range), weights and biases from their data. Outputs of data-movement operators and MaxPool have the
    encoding of their input, scale and zero point in one with it, so that they stay exact.

    Graph: unchanged; values gain the annotations ``encoding`` and ``demand``, those that share one ``shared``, int32 biases
    ``style``, as they must be stored.
    Requires: a range for every activation that is demanded.
    Keeps: everything; numerics bit-exact (what `insert-qdq` does with it is not).
    Skips: operators not in ``ops``; nodes of ``exclude`` and outside ``only``, and those that `set-precision` made float (a value
    that another node demands is "kept for" that node, unless ``isolate``); values inside a fused group whose nodes are all
    quantized, or, where they make up one operator, all selected (a graph output is never inside); values that have a pair;
    constants that are not finite (masks of −∞); float64 and unknown types; bodies of If and Loop; with ``bias=int32`` a bias
    whose layer's input or weight has no encoding, one that layers of different products s_x·s_w share, and one that int32 does
    not reach (``bias-overflow``).

    Args:
        encodings: tensor name → observed range or encoding; normally ``@ranges``. Not needed where activations stay float.
        activations: storage type of activations; ``none`` leaves them float, and constants alone are demanded.
        weights: storage type of weights.
        bias: storage type of biases, with a scale of their own; ``int32`` has the scale s_x·s_w of its layer (per-axis where
            the weight is); ``none`` leaves them float.
        scales: ``pow2`` makes every scale a power of two; ``any`` leaves them.
        rounding: to which one: ``up``, so that nothing seen clips, or the ``nearest`` in log2, as the reference does.
        constants: weights and biases have the scale that their ``range`` asks for, or of five powers of two about it the one of
            the least squared error, ``minmse``.
        symmetric: zero point 0; false lets activations have one.
        asymmetric_outputs: operator types whose outputs may have one all the same: Softmax, whose negative half is of no use.
        weights_symmetric: false lets weights have one.
        per_axis: operator types whose weights have a scale per index of an axis: ``Conv`` (Conv, ConvTranspose, Gemm, MatMul:
            the axis of output channels) or ``MatMul:1`` (that axis; negative counts from the end).
        block_size: weights have a scale for so many elements along the axis that is summed over (MatMul [K, N]: K), in the type
            of the weight; per-axis where an operator sums over several axes. ``constants=minmse``: two rounds of least squares.
        reduce_range: weights use one bit less, int8 within ±64.
        bias_overflow: an int32 bias beyond 2^31 steps of s_x·s_w stays ``float``, or the scale of its weight is raised in that
            channel, ``widen``, as onnxruntime's quantizer does it; beside ``bias=none`` too, so that int32 can hold it later.
        weight_types: operator types whose weights are stored otherwise: ``LayerNormalization:uint8``, ``*:activation`` (all
            others, in the type and symmetry of activations).
        min_range: an observed range narrower than this is widened.
        min_scale: smallest scale, of activations, weights and biases with a scale of their own, and that of what is 0 everywhere
            (the eps of PyTorch's observers); 0 sets no bound.
        widening: most times that min-range and min-scale widen what is not 0: 2, one bit; 0 for whatever it takes.
        ops: operator types that are quantized.
        sharing: operator types whose (first) output shares the encoding of their first input.
        share_constants: also with a weight of the type of activations (what a Gather takes out of a table), by value.
        followers: operator types that demand nothing unless an earlier node demanded their input.
        hard_sigmoid: which HardSigmoid is quantized: ``any``, or ``dpu``, x/6 + 1/2 alone.
        batch_norm_parameters: the four parameters of a BatchNormalization are weights; they stay float otherwise.
        outputs_stay_float: operator types whose outputs get no encoding, unless another node demands one.
        constant_b_only: a MatMul of two activations demands nothing.
        follow_input: operators that only move values demand nothing while their input stays float.
        exclude: nodes that demand nothing.
        only: the only nodes that demand.
        isolate: values that an excluded node touches stay float even if another node demands them.
        overrides: what is said of single tensors instead, as JSON: ``{"w": {"dtype": "int16", "symmetric": false}}``; keys are
            axis, dtype, low, high, reduced, symmetric, or scale and zero_point, which leave nothing to choose.
        domain: whose operators `insert-qdq` will make; float16 needs opset 19 only of ONNX's own.
    """

    keeps: ClassVar[Keeps] = EXACT
    encodings: Named | Ranges | None = None
    activations: ActivationType = "int8"
    weights: WeightType = "int8"
    bias: BiasType = "int8"
    scales: Literal["pow2", "any"] = "pow2"
    rounding: Literal["up", "nearest"] = "up"
    constants: Literal["range", "minmse"] = "range"
    symmetric: bool = True
    asymmetric_outputs: tuple[str, ...] = ()
    weights_symmetric: bool = True
    per_axis: tuple[str, ...] = ()
    block_size: int = 0
    bias_overflow: Literal["float", "widen"] = "float"
    weight_types: tuple[str, ...] = ()
    reduce_range: bool = False
    min_range: float = 0.0
    min_scale: float = 0.0
    widening: float = 2.0
    ops: tuple[str, ...] = QUANTIZED_OPS
    sharing: tuple[str, ...] = tuple(sorted(SHARING))
    share_constants: bool = True
    followers: tuple[str, ...] = ()
    hard_sigmoid: Literal["any", "dpu"] = "any"
    batch_norm_parameters: bool = False
    outputs_stay_float: tuple[str, ...] = ()
    constant_b_only: bool = False
    follow_input: bool = False
    exclude: Selector = NONE
    only: Selector = ALL
    isolate: bool = False
    overrides: str = ""
    domain: OperatorDomain = "onnx"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Collect demands, then choose in the order of the graph; int32 biases last, as they need the scales of the others."""
        if self.encodings is None and self.activations != "none":
            raise UsageError("no ranges for the activations", hint="give encodings=@ranges, or activations=none")
        policy, excluded = self.policy(model), self.excluded(model)
        demands, sharing = self.demands(model), sharing_outputs(model, self.sharing)
        for node in main_nodes(model):
            if has_body(node):
                yield skip(node, "values inside its body stay float")
        for value, reason in demands.refused.items():
            yield skip(value, reason)
        biases, later, wanted = [], [], self._wanted(model)
        for value, nodes in _sources_first(demands.items(), sharing):
            refusal = self._refusal(value, demands, excluded, wanted)
            if refusal is not None:
                yield refusal
            elif self._is_accumulated(value, demands, policy):
                biases.append((value, nodes))
            else:
                source = sharing.get(value)
                source = None if policy.says(value) or is_stored_otherwise(value, source) else source
                yield self._annotate(value, Demand(nodes), demands, excluded, policy, source)
                later += (
                    [value] if self.bias == "none" and demands.role(value) == "bias" and not ENCODING.get(value) else []
                )
        for value in (*later, *(value for value, _ in biases)):
            yield from self._widened(value, demands, policy)
        for value, nodes in biases:
            yield self._annotate_bias(value, Demand(nodes), demands, excluded)
        for value in all_values(model) if policy.overrides else ():
            if policy.says(value) and value not in demands.nodes and value not in demands.refused:
                yield skip(value, "is overridden, but no quantized operator demands an encoding")

    def policy(self, model: ir.Model) -> EncodingPolicy:
        """How encodings are chosen.

        Raises:
            UsageError: power-of-two scales with zero points; an entry of ``per_axis``, ``weight_types`` or ``overrides`` that
                cannot be read, or a tensor that is not in ``model``; a ``min_scale`` that is none.
        """
        if self.scales == "pow2" and not (self.symmetric and self.weights_symmetric and not self.asymmetric_outputs):
            raise UsageError("power-of-two scales are symmetric", hint="drop asymmetric or the power-of-two rule")
        for option, value, default in (("rounding", self.rounding, "up"), ("constants", self.constants, "range")):
            if self.scales != "pow2" and value != default and not (option == "constants" and self.block_size):
                raise UsageError(f"{option}={value} is about power-of-two scales", hint="drop it, or write scales=pow2")
        check_min_scale(self.min_scale, power_of_two=self.scales == "pow2")
        overrides = parse_overrides(self.overrides)
        if overrides:
            names = {value.name for value in all_values(model) if value.name}
            for name in overrides:
                if name not in names:
                    near = ", ".join(difflib.get_close_matches(name, sorted(names), n=3))
                    raise UsageError(
                        f"there is no tensor {name!r} to override", hint=f"nearest: {near}" if near else "see `inspect`"
                    )
        weights, own = parse_dtype(self.weights), self.bias not in ("int32", "none")
        check_blocks(
            self.block_size, weights, power_of_two=self.scales == "pow2", symmetric=self.weights_symmetric,
            reduced=self.reduce_range,
        )  # fmt: skip
        return EncodingPolicy(
            dtypes={
                "activation": weights if self.activations == "none" else parse_dtype(self.activations),
                "weight": weights,
                "bias": parse_dtype(self.bias) if own else weights,
            },
            power_of_two=self.scales == "pow2",
            nearest=self.rounding == "nearest",
            minmse=self.constants == "minmse",
            symmetric=self.symmetric,
            asymmetric_outputs=self.asymmetric_outputs,
            weights_symmetric=self.weights_symmetric,
            reduced=self.reduce_range,
            min_range=self.min_range,
            min_scale=self.min_scale,
            widening=self.widening,
            per_axis=parse_per_axis(self.per_axis),
            block_size=self.block_size,
            weight_types=parse_weight_types(self.weight_types),
            overrides=overrides,
        )

    def excluded(self, model: ir.Model) -> set[ir.Node]:
        """The nodes of ``model`` that demand nothing: those of ``exclude``, and those that compute in a float precision."""
        return select_nodes(model, self.exclude) | set(float_nodes(model))

    def demands(self, model: ir.Model) -> Demands:
        """What the nodes of ``model`` demand under this policy."""
        return demands_of(
            model,
            set(self.ops),
            self._wanted(model),
            rules=Rules(
                float_outputs=self.outputs_stay_float,
                constant_b_only=self.constant_b_only,
                follow_input=self.follow_input,
                followers=self.followers,
                dpu_hard_sigmoid=self.hard_sigmoid == "dpu",
                batch_norm_parameters=self.batch_norm_parameters,
                constants_only=self.activations == "none",
            ),
            groups=whole_groups(model),
            domain=domain_named(self.domain),
        )

    def _given(self, name: str | None) -> ObservedRange | Encoding | None:
        """What is known of the tensor ``name``."""
        assert not isinstance(self.encodings, Named)
        return self.encodings.get(name) if name and self.encodings is not None else None

    def _wanted(self, model: ir.Model) -> set[ir.Node]:
        return select_nodes(model, self.only) - self.excluded(model)

    def _is_accumulated(self, value: ir.Value, demands: Demands, policy: EncodingPolicy) -> bool:
        """Whether ``value`` is a bias that takes the scale of its layer's products: nothing else is said of it."""
        given = self._given(value.name)
        is_bias = self.bias == "int32" and demands.role(value) == "bias"
        return is_bias and not policy.says(value) and not isinstance(given, Encoding)

    def _annotate(
        self,
        value: ir.Value,
        demand: Demand,
        demands: Demands,
        excluded: set[ir.Node],
        policy: EncodingPolicy,
        source: ir.Value | None,
    ) -> Change:
        role, given = demands.role(value), self._given(value.name)
        if role == "bias" and self.bias == "none" and not policy.says(value):
            return skip(value, "biases stay float")
        shared = self._shared(source, policy) if source is not None and not isinstance(given, Encoding) else None
        if shared is not None and source is not None:
            of = None if is_constant(source) else SHARED.get(source) or Shared(source.name or "")
            because = f"shares the encoding of {source.name}"
            return self._set(value, shared, demand, excluded, because, shared=of)
        if given is None and role == "activation":
            given = self._rearranged(value)
        observed = None if isinstance(given, Encoding) else OBSERVED.get(value)
        chosen = whole_range(value, observed or given, given, policy.dtypes["activation"])
        encoding, remark = policy.choose(value, role, chosen, demands.uses.get(value, ()))
        if observed is not None and policy.needs_range(value):
            remark = f"{remark}, range {observed.low:.6g} to {observed.high:.6g}".removeprefix(", ")
        because = f"{role}, {_describe(encoding)}" + (f" ({remark})" if remark else "")
        return self._set(value, encoding, demand, excluded, because)

    def _rearranged(self, value: ir.Value) -> ObservedRange | None:
        """The range of what a Reshape or the like makes of ``value``, the same elements: the float model that was calibrated may
        have only that one, before fuse-matmul-add put a Gemm between two Reshapes."""
        for node in value.consumers():
            name = node.outputs[0].name if is_standard(node, *REARRANGING) and node.inputs[0] is value else None
            found = self._given(name)
            if found is not None and not isinstance(found, Encoding):
                return found
        return None

    def _shared(self, source: ir.Value, policy: EncodingPolicy) -> Encoding | None:
        """The encoding of ``source`` where what moves its values can have it too: one scale, and of a constant the same type."""
        found = ENCODING.get(source)
        if found is None or found.axis is not None:
            return None
        taken = not is_constant(source) or (self.share_constants and found.dtype == policy.dtypes["activation"])
        return found if taken else None

    def _widened(self, value: ir.Value, demands: Demands, policy: EncodingPolicy) -> Iterator[Change]:
        """Make room for the bias ``value`` in the encodings of its weights, where it takes that and nobody said them in full."""
        for node, _ in demands.uses[value] if self.bias_overflow == "widen" else ():
            weight = node.inputs[1]
            if weight is None or isinstance(self._given(weight.name), Encoding) or policy.has_scale(weight):
                continue
            factor = widen_weight(value, node, power_of_two=self.scales == "pow2")
            if factor is not None:
                because = f"scales up to {factor:.3g} times as large, so that int32 holds {value.name}"
                yield Change("annotate", weight.name or "", because)

    def _annotate_bias(self, value: ir.Value, demand: Demand, demands: Demands, excluded: set[ir.Node]) -> Change:
        found = bias_encoding(value, demands.uses[value])
        if isinstance(found, str):
            return skip(value, STAYS_FLOAT + found)
        return self._set(value, found, demand, excluded, f"bias, {_describe(found)} = s_x·s_w")

    def _refusal(
        self, value: ir.Value, demands: Demands, excluded: set[ir.Node], wanted: set[ir.Node]
    ) -> Change | None:
        near = touching(value, excluded)
        if is_inside_group(value, demands.quantized_around(value), wanted):
            return skip(value, "is inside a fused group")
        if near and self.isolate:
            return skip(value, f"is isolated with {near[0].name}")
        return None

    def _set(
        self,
        value: ir.Value,
        encoding: Encoding,
        demand: Demand,
        excluded: set[ir.Node],
        because: str,
        *,
        shared: Shared | None = None,
    ) -> Change:
        ENCODING.set(value, encoding)
        DEMAND.set(value, demand)
        SHARED.clear(value)
        if shared is not None:
            SHARED.set(value, shared)
        if encoding.dtype == ir.DataType.INT32 and is_constant(value):
            STYLE.set(value, Style(stored=True))
        if near := touching(value, excluded):
            because += f"; excluded {near[0].name} touches it, kept for {demand.nodes[0]}"
        return Change("annotate", value.name or "", because)


def is_inside_group(value: ir.Value, demanding: Collection[str], wanted: Collection[ir.Node] | None = None) -> bool:
    """Whether ``value`` never leaves a fused group: marked so, no graph output, and every node that touches it is quantized.

    Args:
        value: the value.
        demanding: names of the quantized nodes that touch it.
        wanted: nodes that may be quantized, all by default; a group that makes up one operator asks for this of its nodes alone.
    """
    mark = FUSED.get(value)
    if mark is None or value.is_graph_output():
        return False
    if mark.whole:
        return is_inside_whole(value, wanted)
    return all(label(node) in demanding for node in touched_by(value))


def touching(value: ir.Value, nodes: Collection[ir.Node]) -> list[ir.Node]:
    """Those of ``nodes`` that write or read ``value``; with ``isolate`` they keep it float."""
    return [node for node in touched_by(value) if node in nodes]


def _sources_first(
    demanded: Iterable[tuple[ir.Value, tuple[str, ...]]], sharing: Mapping[ir.Value, ir.Value]
) -> list[tuple[ir.Value, tuple[str, ...]]]:
    """What is demanded, in its order; but what shares an encoding comes after its source, wherever the nodes stand."""
    left, ordered = dict(demanded), dict[ir.Value, tuple[str, ...]]()
    for value in list(left):
        chain = dict.fromkeys([value] if value in left else [])
        while chain and (source := sharing.get(next(reversed(chain)))) in left and source not in chain:
            chain[source] = None
        ordered |= {v: left.pop(v) for v in reversed(chain)}
    return list(ordered.items())


def _describe(encoding: Encoding) -> str:
    name = encoding.dtype.name.lower()
    if encoding.axis is not None:
        count, blocks = len(encoding.scale), f"in blocks of {encoding.block_size} " if encoding.block_size else ""
        return f"{name} {count} scale{'s' if count != 1 else ''} {blocks}along axis {encoding.axis}"
    position = encoding.position
    return f"{name} scale {f'2^{-position[0]}' if position else f'{encoding.scale[0]:.6g}'}"
