"""Rankings to beat: onnxruntime's `qdq_loss_debug`, and nodes by local SQNR. Each gives names, worst first."""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.comparison.local import compare_local
from tests.bench.faults.fault import Fault

#: A way to find the culprit: names of tensors or nodes, worst first.
Ranker = Callable[[Fault], list[str]]


class _Reader:
    """Feeds as onnxruntime's data readers give them."""

    def __init__(self, fault: Fault) -> None:
        self._feeds = iter(fault.feeds())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._feeds


def by_onnxruntime(fault: Fault, error: str = "qdq_err") -> list[str]:
    """Activations and weights in one list by the SQNR that `qdq_loss_debug` gives each.

    Weights behind pairs are stored as integers first, which it takes alone.

    Args:
        fault: the fault.
        error: of activations: ``qdq_err``, before the pair to behind it; ``xmodel_err``, float model to behind the pair.
    """
    from onnxruntime.quantization import qdq_loss_debug as debug

    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for name, model in (("float", fault.float_model), ("bad", fault.bad)):
            paths[name] = Path(folder) / f"{name}.onnx"
            done = run_pipeline(model, "fold-weight-qdq", copy=True).model if name == "bad" else model
            ir.save(done, paths[name])
        activations = {}
        for name, path in paths.items():
            augmented = path.with_suffix(".augmented.onnx")
            debug.modify_model_output_intermediate_tensors(str(path), str(augmented))
            activations[name] = debug.collect_activations(str(augmented), _Reader(fault))
        matched = debug.create_activation_matching(activations["bad"], activations["float"])
        errors = debug.compute_activation_error({name: match for name, match in matched.items() if "float" in match})
        logging.disable(logging.ERROR)  # it complains of every constant that the float model lacks
        try:
            stored = debug.create_weight_matching(str(paths["float"]), str(paths["bad"]))
        finally:
            logging.disable(logging.NOTSET)
    weights = debug.compute_weight_error({name: _arrays(match) for name, match in stored.items()})
    found = {**{name: each[error] for name, each in errors.items()}, **weights}
    return sorted(found, key=lambda name: (found[name], name))


def _arrays(match: Mapping[str, Any]) -> dict[str, Any]:
    """A weight and its integers as arrays; of a scalar `qdq_loss_debug` makes a number, which it then cannot compare."""
    return {key: np.asarray(array).reshape(-1) for key, array in match.items()}


def by_onnxruntime_across(fault: Fault) -> list[str]:
    """`by_onnxruntime` with activations against the float model's."""
    return by_onnxruntime(fault, "xmodel_err")


def by_local_sqnr(fault: Fault) -> list[str]:
    """Nodes by their SQNR on the float model's inputs."""
    return [node.name for node in compare_local(fault.float_model, fault.bad, fault.feeds()).nodes]


def rank(names: list[str], culprits: frozenset[str]) -> float:
    """The place of the first culprit among ``names``, from 1; infinite where none is."""
    return next((place for place, name in enumerate(names, 1) if name in culprits), math.inf)


#: By the heading of its column. What explains a model ranks here too: one function, names of nodes or tensors, worst first.
RANKERS: Mapping[str, Ranker] = {
    "ort qdq": by_onnxruntime,
    "ort xmodel": by_onnxruntime_across,
    "local": by_local_sqnr,
}
