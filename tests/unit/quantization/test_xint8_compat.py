"""The preset xint8-compat against the reference quantizer: every position, every stored integer, every operator.

The data come from AMD Quark 0.13 (XINT8, enable_npu_cnn): per model and method the position of what each QuantizeLinear reads,
position and SHA-256 of each stored parameter, and the number of nodes of each type."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from qdq_passes.graph.uses import constant_array
from qdq_passes.qdq.look.pairs import encoding_of, is_quantize, qdq_pairs

import qdqtool
from qdqtool.io.models.load import model_of

DATA = Path(__file__).parents[2] / "data" / "xint8_parity"
METHODS = {"minmse": "pow2-minmse", "nonoverflow": "pow2-nonoverflow"}
MODELS = sorted(path.stem for path in DATA.glob("?.onnx"))


def position(node: ir.Node) -> int:
    encoding = encoding_of(node)
    assert encoding is not None
    assert encoding.position is not None
    return encoding.position[0]


def facts(model: ir.Model) -> dict[str, Any]:
    """What the data say of a model, read off a quantized one."""
    activations = {
        str(node.inputs[0].name): position(node)
        for node in model.graph
        if is_quantize(node) and node.inputs[0] is not None
    }
    parameters = {}
    for pair in qdq_pairs(model):
        integers = constant_array(pair.stored)
        if integers is not None:
            digest = hashlib.sha256(integers.tobytes()).hexdigest()
            parameters[pair.tensor] = {"int8_sha256": digest, "position": position(pair.dq)}
    return {"activations": activations, "parameters": parameters, "ops": dict(Counter(n.op_type for n in model.graph))}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_the_same_positions_integers_and_operators(name: str, method: str) -> None:
    source, calibration = DATA / f"{name}.onnx", DATA / f"{name}_calib.npz"
    expected = json.loads((DATA / f"{name}.{method}.json").read_text())
    done = qdqtool.quantize(source, preset="xint8-compat", method=METHODS[method], data=str(calibration))
    found = facts(done.model)
    assert found["ops"] == expected["ops"]
    assert found["activations"] == expected["activations"]
    assert found["parameters"] == expected["parameters"]


def test_the_data_hold_what_the_reference_writes() -> None:
    """`facts` reads the reference's own file as its figures say."""
    expected = json.loads((DATA / "a.minmse.json").read_text())
    assert facts(model_of(onnx.load(DATA / "peer_output_minmse.onnx"))) == expected


def test_positions_and_parameters_are_counted() -> None:
    """A file that is missing would make the tests above say less."""
    reports = [json.loads(path.read_text()) for path in DATA.glob("*.json")]
    assert len(reports) == 2 * len(MODELS)
    assert sum(len(r["activations"]) + len(r["parameters"]) for r in reports) == 340
    assert all(np.load(DATA / f"{name}_calib.npz").files for name in MODELS)
