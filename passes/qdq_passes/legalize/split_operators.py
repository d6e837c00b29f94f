"""split-operators"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import PART
from qdq_passes.graph.build import Builder, Site, drop_chains, take_place
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import FLOAT_TYPES, UNKNOWN_TYPE
from qdq_passes.legalize.edit.forms import Declined, Form, Given, Written
from qdq_passes.legalize.edit.function_forms import FUNCTIONS
from qdq_passes.legalize.edit.tensor_forms import TENSORS
from qdq_passes.select.selectors import ALL, Selector, nodes_of_types

#: Opset since which operators broadcast, and take axes as inputs, as the forms write them.
OLDEST = 13
#: Every form by its name, in the order in which they are tried.
FORMS = {form.name: form for form in (*FUNCTIONS, *TENSORS)}


@dataclass(frozen=True)
class SplitOperators(Pass):
    """Write operators that an NPU lacks with those that it has; each form is an identity of arithmetic, not an approximation.

    Functions: ``Abs``, ``Celu``, ``Clip``, ``Elu``, ``Gelu``, ``HardSigmoid``, ``HardSwish``, ``LeakyRelu``, ``Mish``,
    ``Neg``, ``PRelu``, ``Pow``, ``Reciprocal``, ``Selu``, ``Sigmoid``, ``Softplus``, ``Softsign``, ``Swish``, ``Tanh``. Of
    two forms one is named by what it is made of: ``Elu:Exp``, ``Elu:Tanh``; ``Softplus:Sigmoid`` is that of Softplus and
    Tanh, as exporters write Mish, ``Expand:Pad`` that of an Expand and a Concat, a token before those of each sample,
    ``AveragePool:Large`` that of more than 9 elements.
    Sums: ``Div`` (by a constant), ``Max`` and ``Min`` (of more than two), ``Mean``, ``ReduceMax``, ``ReduceSum``, ``Softmax``,
    ``Sub``, ``Sum``. Normalizations: ``BatchNormalization``, ``GroupNormalization``, ``InstanceNormalization``,
    ``LayerNormalization``, ``RMSNormalization``. Pools: ``AveragePool``, ``GlobalAveragePool``, ``GlobalMaxPool``. Moves:
    ``Col2Im`` (of blocks side by side), ``DepthToSpace``, ``Expand``, ``Flatten``, ``GatherElements`` and
    ``ScatterElements`` (at constant places), ``SpaceToDepth``, ``Squeeze``, ``Tile``, ``Unsqueeze``.

    Graph: ``x → Mish → y`` → ``r = Sigmoid(−x); y = x·((1 − r²)/(1 + r²))``; ``x → Elu → y`` → ``t = Tanh(min(x, 0)/2);
    y = Relu(x) + 2α·t/(1 − t)``; ``x → GroupNormalization → y`` → ``x → Reshape → InstanceNormalization → Reshape → Mul → Add
    → y``.
    Requires: sizes, for reductions, normalizations and moves; finite numbers: of -inf alone a MaxPool makes the lowest float.
    Keeps: inputs, outputs and their names; numerics within the bound, moves bit-exact.
    Skips: parameters that are computed, sizes that are not known; reductions and normalizations of other axes; nodes that are
    quantized as one with others; bfloat16, of which the bound does not hold; opsets below 13.

    Args:
        operators: names of forms; the first of an operator that fits is taken.
        select: the operators.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=2.0**-12,
        why="up to ten roundings of 2^-24 of values that cancel to no less than 2^-6 of their size; sums of n elements associate "
        "differently, n·2^-24 at worst",
    )
    operators: tuple[str, ...] = ()
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Operator by operator.

        Raises:
            UsageError: there is no such form.
        """
        for name in self.operators:
            if name not in FORMS:
                near = difflib.get_close_matches(name, FORMS, n=3)
                raise UsageError(
                    f"split-operators: there is no form {name!r}",
                    hint=f"nearest: {', '.join(near)}" if near else f"forms are {', '.join(FORMS)}",
                )
        forms: dict[str, list[Form]] = {}
        for name in self.operators:
            forms.setdefault(FORMS[name].op, []).append(FORMS[name])
        builder, inferred = Builder(model), Inferred(model)
        for node in nodes_of_types(model, self.select, *forms):
            if node.graph is not None:
                yield from _split(node, forms[node.op_type], builder, inferred)


def _split(node: ir.Node, forms: list[Form], builder: Builder, inferred: Inferred) -> Iterator[Change]:
    """Write ``node`` by the first of ``forms`` that fits."""
    dtype = inferred.dtype(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    reasons = []
    for form in forms:
        try:
            found, made = _written(node, form, dtype, builder.at(node), inferred)
        except Declined as reason:
            reasons.append(str(reason))
            continue
        read, kinds = list(found.node.inputs), ", ".join(dict.fromkeys(each.op_type for each in made))
        yield take_place(found.node, [found.value], builder.namer, f"written with {kinds}")
        yield from drop_chains(read)
        return
    yield skip(node, reasons[0])


def _written(
    node: ir.Node, form: Form, dtype: ir.DataType | None, site: Site, inferred: Inferred
) -> tuple[Written, list[ir.Node]]:
    """What takes the place of which node, and the nodes made for it.

    Raises:
        Declined: the form does not fit.
    """
    if PART.get(node) is not None:
        raise Declined("is quantized as one with others")
    if dtype is None:
        raise Declined(UNKNOWN_TYPE)
    if not form.any_type and (dtype not in FLOAT_TYPES or dtype == ir.DataType.BFLOAT16):
        raise Declined(f"is of {dtype.name.lower()}")
    if site.opset < OLDEST:
        raise Declined(f"is of opset {site.opset}; run convert-opset")
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        raise Declined("has attributes of its function")
    if any(0 in (inferred.sizes(value) or ()) for value in node.inputs if value is not None):
        raise Declined("is of nothing")
    found = form.write(Given(node, site, inferred, dtype))
    return found if isinstance(found, Written) else Written(node, found), site.nodes
