"""Variants of the node cases with constants in them: the cases hand every operand in as an input, which real models do not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from tests.suites.cases import Case

#: First IR version in which an initializer need not be an input.
IR_OF_CONSTANTS = 4
#: Nodes of the largest model that is made into variants. Larger ones are bodies of functions, which have constants already.
LARGEST = 10


def variants(cases: Iterable[Case]) -> list[Case]:
    """Per node case up to two: every input a constant, and every input but the first."""
    made = (frozen(case, keep=keep) for case in cases if case.kind == "node" for keep in (0, 1))
    return [variant for variant in made if variant is not None]


def frozen(case: Case, *, keep: int) -> Case | None:
    """``case`` with all tensor inputs after the first ``keep`` turned into initializers, called ``<case>+frozen<keep>``.

    A tensor of another shape than its input declares stays an input. None for a large model, or when nothing was turned.
    """
    (feed,) = case.feeds
    model = onnx.ModelProto.FromString(case.model)
    names = {value.name for value in list(model.graph.input)[keep:] if _is_tensor(feed[value.name], value)}
    if not names or len(model.graph.initializer) or len(model.graph.node) > LARGEST:
        return None
    model.graph.initializer.extend(numpy_helper.from_array(feed[name], name) for name in feed if name in names)
    inputs = [value for value in model.graph.input if value.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, IR_OF_CONSTANTS)
    left = {name: value for name, value in feed.items() if name not in names}
    return replace(case, name=f"{case.name}+frozen{keep}", model=model.SerializeToString(), feeds=(left,))


def _is_tensor(value: object, wanted: onnx.ValueInfoProto) -> bool:
    dims = wanted.type.tensor_type.shape.dim
    if not isinstance(value, np.ndarray) or value.ndim != len(dims):
        return False
    return all(dim.dim_value in (0, size) for dim, size in zip(dims, value.shape, strict=True))
